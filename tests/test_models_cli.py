"""`satchel model …`, with a server on loopback in place of the hub."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hub_server import COMMIT, HubServer, tiny_files, write_model
from in_process import Run
from small_talks import open_manager, say, small_model
from terminals import Terminal

from satchel.engine.hub_transfer import fetch_file, part_of
from satchel.engine.model import LoadedModel
from satchel.errors import DamagedError, NetworkError, SatchelError

MB = 1_000_000
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def content() -> dict[str, bytes]:
    return tiny_files(12 * MB)


@pytest.fixture
def hub(content: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """With a model of 12 MB, `me/tiny`; the hub's library asks it, and has an empty cache."""
    from huggingface_hub import constants

    with HubServer("me/tiny", content) as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url())
        template = server.url() + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the model comes to be."""
    return tmp_path / "hf" / "hub" / "models--me--tiny" / "snapshots" / COMMIT


@pytest.fixture
def environment(hub: HubServer, tmp_path: Path) -> dict[str, str]:
    """For a process of its own, with the same server and caches."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SATCHEL_", "HF_", "NO_"))}
    kept |= {
        "SATCHEL_HOME": str(tmp_path / "home"),
        "HF_HOME": str(tmp_path / "hf"),
        "HF_ENDPOINT": hub.url(),
    }
    return kept | {"TERM": "xterm-256color", "PYTHONUTF8": "1"}


# --- fetching ----------------------------------------------------------------------------------------------


def test_pull_use_and_remove(satchel: Run, hub: HubServer, folder: Path) -> None:
    pulled = satchel("model", "pull", "me/tiny")
    assert (pulled.returncode, pulled.stdout) == (0, f"{folder}\n")
    assert pulled.stderr == "downloading me/tiny from the Hugging Face hub\n"  # and no bar on a pipe
    assert sorted(file.name for file in folder.iterdir()) == [
        "config.json",
        WEIGHTS,
        "tokenizer.json",
    ]  # no Python, no words
    assert (folder / WEIGHTS).read_bytes() == hub.files[WEIGHTS]

    again = satchel("model", "pull", "me/tiny", "--json")
    assert json.loads(again.stdout) == {"name": "me/tiny", "path": str(folder), "was_here": True}
    assert len(hub.fetched(WEIGHTS)) == 1

    used = satchel("model", "use", "me/tiny")
    assert used.stdout.startswith("me/tiny is used now when no model is named")
    listed = {each["name"]: each for each in json.loads(satchel("model", "list", "--json").stdout)}
    assert listed["me/tiny"]["is_default"]
    assert listed["me/tiny"]["kind"] == "hub"

    removed = satchel("model", "rm", "me/tiny", "--yes", "--json")
    assert json.loads(removed.stdout)["freed_bytes"] > 12 * MB
    assert not folder.exists()


def test_an_interrupted_pull_ends_at_once_and_goes_on_where_it_stopped(
    satchel: Run, hub: HubServer, folder: Path, environment: dict[str, str]
) -> None:
    hub.stall_at = 7 * MB
    command = [sys.executable, "-m", "satchel", "model", "pull", "me/tiny"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    blobs = folder.parents[1] / "blobs"
    deadline = time.monotonic() + 60
    while not any(file.stat().st_size > 6 * MB for file in blobs.glob("*part")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == 130
    came = part_of(blobs / hub.etag(WEIGHTS)).stat().st_size

    partly = satchel("model", "list")
    assert "me/tiny: it came in part only: `satchel model pull me/tiny` goes on" in partly.stderr
    hub.stall_at = None
    assert satchel("model", "pull", "me/tiny").returncode == 0
    assert hub.fetched(WEIGHTS)[-1].range == f"bytes={came}-"
    assert (folder / WEIGHTS).read_bytes() == hub.files[WEIGHTS]


def test_what_is_not_agreed_to_is_not_fetched(
    satchel: Run, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("models", "options"):
        monkeypatch.setattr(f"satchel.cli.{module}.at_terminal", lambda: True)
    done = satchel("model", "pull", "me/tiny", stdin=b"n\n")
    assert done.returncode == 6
    assert done.stderr.splitlines()[-1].endswith("satchel: me/tiny was not fetched")
    assert hub.fetched(WEIGHTS) == []


def test_at_a_terminal_the_size_is_agreed_to_and_a_bar_shows_the_way(
    hub: HubServer, environment: dict[str, str]
) -> None:
    command = [sys.executable, "-m", "satchel", "model", "pull", "me/tiny"]
    hub.pause_s = 0.016  # about three seconds in all
    agreed = Terminal(command, environment)
    agreed.wait_for("Fetch me/tiny (12.0 MB)? [y/N]:")
    agreed.child.send("y\r")
    agreed.wait_for("fetching tiny")
    agreed.wait_for("MB/s")
    assert agreed.exit_code() == 0
    shown = "\n".join(agreed.lines())
    assert "fetching" not in shown  # it is gone
    assert "Fetching" not in shown  # nor has the hub's library drawn any
    assert "it/s" not in shown


@pytest.mark.parametrize(
    ("name", "exit_code", "message"),
    [
        (
            "me/none",
            3,
            "the Hugging Face hub has no model 'me/none' that this user may read; check the name; ",
        ),
        ("qwen3.5-9", 3, "there is no model 'qwen3.5-9' to fetch; did you mean qwen3.5-9b?"),
        ("zzzz", 3, "there is no model 'zzzz' to fetch; `satchel model list --known` shows the short names"),
        ("/", 2, "'/' is on this machine already; `satchel chat --model /` uses it"),
    ],
)
def test_what_cannot_be_pulled(satchel: Run, hub: HubServer, name: str, exit_code: int, message: str) -> None:
    done = satchel("model", "pull", name)
    assert (done.returncode, done.stdout) == (exit_code, "")
    assert done.stderr.startswith(f"satchel: {message}")
    assert done.stderr.count("\n") == 1


def test_a_model_that_cannot_run_is_refused_before_its_weights_come(satchel: Run, hub: HubServer) -> None:
    hub.files = tiny_files(8 * MB, model_type="odd")
    done = satchel("model", "pull", "me/tiny")
    assert done.returncode == 2
    assert "satchel: mlx-lm has no model type 'odd'" in done.stderr
    assert hub.fetched(WEIGHTS) == []


def test_a_repository_of_gguf_files_is_said_to_be_one(satchel: Run, hub: HubServer) -> None:
    hub.files = {"x.gguf": b"GGUF"}
    done = satchel("model", "pull", "me/tiny")
    assert done.returncode == 3
    assert (
        "me/tiny on the Hugging Face hub has no config.json, so it is no MLX model; fetch its .gguf"
        in done.stderr
    )


@pytest.mark.parametrize(
    "entry",
    [
        {"path": "../../../../taken.json", "size": 6 * MB, "oid": "0" * 40},
        {"path": "/tmp/taken.json", "size": 10, "oid": "0" * 40},
        {"path": "model-2.safetensors", "size": 6 * MB, "oid": "../../../../taken"},
        {"path": "tokenizer.model", "size": 6 * MB, "oid": "x", "lfs": {"oid": "../taken", "size": 6 * MB}},
        {"path": "vocab.json", "size": -5, "oid": "0" * 40},
        {"path": "vocab.json", "size": "many", "oid": "0" * 40},
        {"path": "a\x1b[31m.json", "size": 5, "oid": "0" * 40},
        {"no": "path"},
    ],
)
def test_a_hub_cannot_name_files_outside_its_cache(
    satchel: Run, hub: HubServer, tmp_path: Path, entry: dict[str, object]
) -> None:
    hub.lies = [{"type": "file", **entry}]
    done = satchel("model", "pull", "me/tiny")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("satchel: what the hub says of me/tiny makes no sense (")
    assert done.stderr.count("\n") == 1
    assert "\x1b" not in done.stderr
    assert not [path for path in tmp_path.rglob("*") if "taken" in path.name]


def test_a_commit_that_is_none_is_refused(satchel: Run, hub: HubServer) -> None:
    hub.commit = "../../../taken"
    done = satchel("model", "pull", "me/tiny")
    assert done.returncode == 4
    assert "makes no sense (commit '../../../taken')" in done.stderr


# --- one file ----------------------------------------------------------------------------------------------


def fetch(hub: HubServer, target: Path, sha256: str | None = None, name: str = WEIGHTS) -> list[int]:
    pieces: list[int] = []
    url = f"{hub.url()}/me/tiny/resolve/main/{name}"
    fetch_file(url, {}, target, len(hub.files[WEIGHTS]), sha256 or hub.etag(WEIGHTS), pieces.append)
    return pieces


def test_a_file_goes_on_from_what_is_there(hub: HubServer, tmp_path: Path) -> None:
    target, content = tmp_path / "blob", hub.files[WEIGHTS]
    part_of(target).write_bytes(content[:5_000_001])
    assert sum(fetch(hub, target)) == len(content) - 5_000_001
    assert target.read_bytes() == content
    assert [each.range for each in hub.fetched(WEIGHTS)] == ["bytes=5000001-"]
    assert not part_of(target).exists()


def test_a_part_of_another_file_is_noticed(hub: HubServer, tmp_path: Path) -> None:
    target = tmp_path / "blob"
    part_of(target).write_bytes(b"x" * 1000)
    with pytest.raises(DamagedError, match="came damaged"):
        fetch(hub, target)
    assert not target.exists()
    fetch(hub, target)
    assert target.read_bytes() == hub.files[WEIGHTS]


def test_a_part_longer_than_the_file_is_begun_anew(hub: HubServer, tmp_path: Path) -> None:
    target, content = tmp_path / "blob", hub.files[WEIGHTS]
    part_of(target).write_bytes(content + b"x")
    assert sum(fetch(hub, target)) == len(content)
    assert target.read_bytes() == content


def test_a_server_that_breaks_off_is_asked_again(hub: HubServer, tmp_path: Path) -> None:
    hub.break_at = [3 * MB, 7 * MB]
    target = tmp_path / "blob"
    fetch(hub, target)
    assert target.read_bytes() == hub.files[WEIGHTS]
    assert len(hub.fetched(WEIGHTS)) == 3


def test_a_server_that_cannot_go_on_begins_anew(hub: HubServer, tmp_path: Path) -> None:
    hub.has_ranges = False
    target, content = tmp_path / "blob", hub.files[WEIGHTS]
    part_of(target).write_bytes(content[:1000])
    assert sum(fetch(hub, target)) == len(content)
    assert target.read_bytes() == content


def test_a_file_that_is_refused_is_not_asked_for_again(hub: HubServer, tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match=r"the server refuses .* \(status 404\)"):
        fetch(hub, tmp_path / "blob", name="other")
    assert len(hub.fetched("other")) == 1


@pytest.mark.parametrize("location", ["file:///etc/passwd", "model.safetensors"])
def test_a_server_that_sends_elsewhere_in_vain_is_asked_once(
    hub: HubServer, tmp_path: Path, location: str
) -> None:
    hub.location = location
    with pytest.raises(NetworkError, match=r"the server sends http://.* elsewhere \("):
        fetch(hub, tmp_path / "blob")


def test_two_processes_do_not_fetch_the_same_file(hub: HubServer, tmp_path: Path) -> None:
    import fcntl

    target = tmp_path / "blob"
    with part_of(target).open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(SatchelError, match="another process is fetching this model"):
            fetch(hub, target)


# --- what is here ------------------------------------------------------------------------------------------


def test_list_marks_the_default_and_counts_sessions(
    satchel: Run, smollm: LoadedModel, satchel_home: Path
) -> None:
    model = replace(small_model(smollm), name="embedded")
    session = open_manager(satchel_home, model).new()
    say(session, "Hello", max_tokens=2)
    session.save()
    done = satchel("model", "list")
    header, *rows = done.stdout.splitlines()
    assert header.split() == ["MODEL", "SIZE", "KIND", "WEIGHTS", "SESSIONS"]
    (row,) = (row.split() for row in rows if " embedded " in row)
    assert row[:2] == ["*", "embedded"]
    assert row[-2:] == ["Q4_1", "1"]
    (record,) = (each for each in json.loads(satchel("model", "list", "--json").stdout) if each["is_default"])
    assert (record["name"], record["kind"], record["sessions"]) == ("embedded", "embedded", 1)
    assert record["parameters"] == 134_515_008


def test_the_known_ones_say_what_fits(satchel: Run) -> None:
    done = satchel("model", "list", "--known")
    header, *rows = done.stdout.splitlines()
    assert header.split() == ["MODEL", "FETCH", "CONTEXT", "HERE", "ABOUT"]
    assert any(row.startswith("qwen3.5-9b ") for row in rows)
    records = json.loads(satchel("model", "list", "--known", "--json").stdout)
    sizes = [record["download_bytes"] for record in records]
    assert sizes == sorted(sizes)
    assert all(0 <= record["longest_context"] <= record["context_length"] for record in records)


def test_info_of_the_embedded_model(satchel: Run) -> None:
    record = json.loads(satchel("model", "info", "embedded", "--json").stdout)
    assert (record["architecture"], record["parameters"], record["context_length"]) == (
        "llama",
        134_515_008,
        8192,
    )
    assert (record["full_attention_layers"], record["window_layers"], record["is_guess"]) == (30, 0, False)
    profiles = {profile["name"]: profile for profile in record["profiles"]}
    assert list(profiles) == ["exact", "k8v4", "turbo4", "turbo3", "turbo2", "v-only"]
    assert profiles["turbo4"]["kv_bytes_per_token"] == 6664
    text = satchel("model", "info", "embedded").stdout
    assert "layers        30 with full attention\n" in text
    assert "context       8,192 tokens\n" in text
    assert "\nturbo4            6,664 " in text


def test_info_of_a_known_model_that_is_not_here(satchel: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("satchel.engine.library.cached_folder", lambda name: None)
    done = satchel("model", "info", "qwen3.5-9b")
    assert "repository    mlx-community/Qwen3.5-9B-4bit\n" in done.stdout
    assert "to fetch      6.0 GB\n" in done.stdout
    assert "layers        8 with full attention, recurrent state of 5" in done.stdout
    assert done.stderr == "it is not on this machine: `satchel model pull qwen3.5-9b` fetches it\n"


def test_info_of_a_folder(satchel: Run, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "mine\x1b[31m")
    done = satchel("model", "info", folder)
    assert done.returncode == 0
    assert "weights       float16\n" in done.stdout
    assert "\x1b" not in done.stdout
    other = write_model(tmp_path / "other", model_type="unheard_of")
    assert "an architecture unknown here" in satchel("model", "info", other).stderr


def test_use_takes_what_is_here_only(satchel: Run, satchel_home: Path, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "mine")
    done = satchel("model", "use", folder, "--json")
    settings = satchel_home / "config.toml"
    assert json.loads(done.stdout) == {"model": str(folder), "settings": str(settings)}
    assert settings.read_text() == f'model = "{folder}"\n'
    refused = satchel("model", "use", "no-such-model")
    assert refused.returncode == 3
    assert settings.read_text() == f'model = "{folder}"\n'


def test_what_has_no_tokenizer_is_not_used(satchel: Run, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "bare")
    (folder / "tokenizer.json").unlink()
    done = satchel("model", "use", folder)
    assert done.returncode == 3
    assert done.stderr == (f"satchel: {folder} has no tokenizer files; copy those of the same model there\n")


def test_use_says_that_the_environment_goes_before(satchel: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATCHEL_MODEL", "other/model")
    assert (
        satchel("model", "use", "embedded").stderr
        == "but SATCHEL_MODEL is set, to 'other/model', and goes before it\n"
    )


@pytest.mark.parametrize(
    "command", [("model", "use"), ("model", "info"), ("model", "rm"), ("ask", "q", "--model")]
)
def test_what_is_no_model_is_refused_in_one_line(satchel: Run, command: tuple[str, ...]) -> None:
    done = satchel(*command, "/etc/passwd")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("satchel: passwd is not a GGUF file")
    assert done.stderr.count("\n") == 1


def test_rm_never_deletes_what_is_yours(satchel: Run, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "mine")
    done = satchel("model", "rm", folder, "--yes")
    assert done.returncode == 6
    assert (
        done.stderr
        == f"satchel: {folder} is your own, not a copy of Satchel's; `rm -r {folder}` deletes it\n"
    )
    assert (folder / WEIGHTS).is_file()
