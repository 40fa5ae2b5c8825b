"""The guide of the first run: what it suggests, what it asks, and what it leaves."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from in_process import Run
from terminals import CTRL_C, Terminal, environment  # noqa: F401 (a fixture)

from satchel.cli import init as guide
from satchel.config.profiles import get_profile
from satchel.engine import model_names
from satchel.engine.device import Device, current_device
from satchel.engine.fit import Shape
from satchel.engine.model_names import NamedModel
from satchel.sync.configuration import load_config

GB = 10**9
TURBO4 = get_profile("turbo4")


def metal(gigabytes: float) -> Device:
    return Device("metal", None, int(gigabytes * GB))


def named(name: str, gigabytes: float, context: int = 131072) -> NamedModel:
    """A model with 32 layers of 8 KV heads, whose exact KV takes 131,072 bytes a token."""
    config = {
        "model_type": "llama",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": context,
    }
    return NamedModel(name, f"owner/{name}", 8 * GB, int(gigabytes * GB), True, "MIT", "", config)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four models in place of the package's."""
    models = [named("tiny", 1), named("middle", 5), named("short", 6, context=16384), named("large", 11)]
    monkeypatch.setattr(model_names, "named_models", lambda: {model.name: model for model in models})


def settings_in(home: Path) -> dict[str, Any]:
    return tomllib.loads((home / "config.toml").read_text())


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("gigabytes", "tokens", "profile", "suggested"),
    [
        (4, 32768, "turbo4", "embedded"),
        (8, 32768, "turbo4", "tiny"),
        (16, 32768, "turbo4", "middle"),
        (16, 8192, "turbo4", "short"),
        (16, 32768, "exact", "tiny"),
        (32, 32768, "turbo4", "large"),
        (64, 262144, "turbo4", "embedded"),
    ],
)
def test_the_largest_model_that_fits_with_ease_is_suggested(
    gigabytes: float, tokens: int, profile: str, suggested: str
) -> None:
    device, chosen = metal(gigabytes), get_profile(profile)
    assert guide._suggested(guide._choices(tokens, chosen, device), chosen, device) == suggested


@pytest.mark.usefixtures("table")
def test_without_a_gpu_the_embedded_model_is_suggested() -> None:
    device = Device("cpu", None, 64 * GB)
    choices = guide._choices(8192, TURBO4, device)
    assert [choice.name for choice in choices] == ["embedded", "tiny", "middle", "short", "large"]
    assert guide._suggested(choices, TURBO4, device) == "embedded"


@pytest.mark.usefixtures("table")
def test_what_was_chosen_before_is_suggested_again(satchel_home: Path) -> None:
    satchel_home.mkdir()
    (satchel_home / "config.toml").write_text('model = "embedded"\n')
    assert guide._suggested(guide._choices(8192, TURBO4, metal(64)), TURBO4, metal(64)) == "embedded"
    (satchel_home / "config.toml").write_text('model = "owner/never-fetched"\n')
    assert guide._suggested(guide._choices(8192, TURBO4, metal(64)), TURBO4, metal(64)) == "large"


@pytest.mark.usefixtures("table")
def test_the_table_shows_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    device = metal(16)
    guide._show(guide._choices(32768, TURBO4, device), 32768, device)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "GB of memory with 32,768 tokens, by KV profile; (too much for this machine):"
    assert (
        lines[3:]
        == [
            "    MODEL                  FETCH   exact    k8v4  turbo4  turbo3  turbo2",
            " 1  embedded                here  made for shorter contexts",
            " 2  tiny                  1.0 GB     5.3     3.3     2.8     2.6     2.3",
            " 3  middle                5.0 GB     9.3     7.3     6.8     6.6     6.3",
            " 4  large                11.0 GB  (15.3)  (13.3)  (12.8)  (12.6)  (12.3)",
            "",
            "`satchel model list --known` lists more; hub names, folders and GGUF files will do.",
        ][:-1]
        or lines
    )


def test_a_profile_that_fits_is_named_where_the_chosen_one_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shape = Shape("llama", 32, 32, 8, 128, 128, 131072, 5 * GB)
    exact = get_profile("exact")
    assert guide._fitting(shape, exact, 32768, metal(16), ask=False) is exact
    assert capsys.readouterr().err == ""
    assert guide._fitting(shape, exact, 65536, metal(16), ask=False) is exact
    assert capsys.readouterr().err == (
        "with the KV profile exact it takes 13.6 GB, more than there should be\n"
    )


@pytest.mark.parametrize(
    ("text", "tokens"), [("8k", 8192), ("32 K", 32768), ("100000", 100_000), ("4096k", 1 << 22)]
)
def test_lengths_of_contexts(text: str, tokens: int) -> None:
    assert guide._tokens(text) == tokens


def test_without_a_terminal_it_takes_what_options_say(satchel: Run, satchel_home: Path) -> None:
    done = satchel("init", "--yes", "--model", "embedded", "--context", "8k", "--kv", "turbo3", "--json")
    assert done.returncode == 0, done.stderr
    assert settings_in(satchel_home) == {"model": "embedded", "kv_profile": "turbo3"}
    record = json.loads(done.stdout)
    needed, memory = record.pop("needed_bytes"), record.pop("memory_bytes")
    assert record == {
        "model": "embedded",
        "kv_profile": "turbo3",
        "context_tokens": 8192,
        "settings": str(satchel_home / "config.toml"),
        "sync": None,
    }
    assert 10**8 < needed < 10**9
    assert memory < current_device().memory_bytes


@pytest.mark.usefixtures("cheap_passphrases")
def test_sync_is_set_up_as_by_its_own_command(
    satchel: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SATCHEL_PASSPHRASE", "correct horse battery staple")
    remote = (tmp_path / "nas").as_uri()
    (tmp_path / "nas").mkdir()
    done = satchel("init", "--yes", "--model", "embedded", "--sync", remote)
    assert done.returncode == 0, done.stderr
    assert "The recovery words." in done.stdout
    config = load_config()
    assert config is not None
    assert config.url == remote


@pytest.mark.parametrize(
    ("arguments", "exit_code", "complaint"),
    [
        ((), 2, "init asks questions at a terminal; `--yes` takes what is suggested"),
        (("--yes", "--context", "long"), 2, "'long' is no length of a context; write tokens"),
        (("--yes", "--context", "0"), 2, "'0' is no length of a context"),
        (("--yes", "--model", "qwen3.5-9c"), 3, "there is no model 'qwen3.5-9c'"),
        (("--yes", "--kv", "turbo9"), 2, "no KV profile is called 'turbo9'"),
    ],
)
def test_what_is_wrong_leaves_nothing(
    satchel: Run, satchel_home: Path, arguments: tuple[str, ...], exit_code: int, complaint: str
) -> None:
    done = satchel("init", *arguments)
    assert (done.returncode, done.stderr.splitlines()[-1][: len(complaint) + 9]) == (
        exit_code,
        f"satchel: {complaint}",
    )
    assert not (satchel_home / "config.toml").exists()


def test_a_new_user_is_told_of_it_once(satchel_home: Path) -> None:
    assert guide.notice_of_first_run() == (
        "new here? `satchel init` finds a model for this machine and sets up sync"
    )
    satchel_home.mkdir(exist_ok=True)
    (satchel_home / "config.toml").write_text("")
    assert guide.notice_of_first_run() is None
    (satchel_home / "config.toml").unlink()
    heads = satchel_home / "v1" / "heads"
    heads.mkdir(parents=True)
    (heads / "a.json").write_text("{}")
    assert guide.notice_of_first_run() is None


def test_at_a_terminal_it_asks(environment: dict[str, str], tmp_path: Path) -> None:
    terminal = Terminal([sys.executable, "-m", "satchel", "init"], environment)
    terminal.wait_for("How long should contexts be (8k, 32k, 128k) [32k]:")
    terminal.child.send("2 pages\r8k\r")
    terminal.wait_for("'2 pages' is no length of a context")
    terminal.wait_for("Which model (a number, name or path) [embedded]:")
    terminal.child.send("qwen3.5-9c\r")
    terminal.wait_for("there is no model 'qwen3.5-9c'")
    terminal.child.send("1\r")
    terminal.wait_for("Sync: no, new (this is the first machine) or join [no]:")
    terminal.child.send("\r")
    assert terminal.exit_code() == 0
    assert settings_in(tmp_path) == {"model": "embedded"}
    shown = "\n".join(terminal.lines())
    assert " 1  embedded                here" in shown
    assert "`satchel` starts a talk" in shown


def test_ctrl_c_leaves_the_settings_as_they_were(
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    terminal = Terminal([sys.executable, "-m", "satchel", "init", "--model", "embedded"], environment)
    terminal.wait_for("How long should contexts be")
    terminal.child.send("\r")
    terminal.wait_for("Sync: no, new")
    terminal.child.send(CTRL_C)
    assert terminal.exit_code() == 130
    assert "stopped: the settings are as they were" in "\n".join(terminal.lines())
    assert not (tmp_path / "config.toml").exists()
