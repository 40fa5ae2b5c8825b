"""`satchel doctor`: what it looks at, and that what is wrong is a line of it, not its end."""

import json
import os
import re
import sys

import pexpect
import pytest

from satchel.cli.doctor import DoctorRecord
from satchel.cli.schemas import faults
from satchel.engine import device as devices
from satchel.engine import library
from satchel.engine.device import Device
from satchel.errors import NotFoundError


@pytest.fixture
def no_model(monkeypatch):
    """A machine without models."""

    def find(name, *options):
        raise NotFoundError(f"the model {name!r} is not on this machine", "fetch it")

    monkeypatch.setattr(library, "find", find)
    monkeypatch.setattr("satchel.engine.embedded.find_embedded_gguf", lambda: None)


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """8 GB, Linux, no OpenBLAS."""
    advice = ["prefill is about 16 to 20 times faster with OpenBLAS: install it"]
    monkeypatch.setattr(devices, "current_device", lambda: Device("cpu", None, 8_000_000_000))
    monkeypatch.setattr(Device, "advice", lambda self: advice)


def facts(printed):
    """The lines by their labels; problems and advice as lists."""
    found = {"problem": [], "advice": []}
    for line in printed.stdout.splitlines():
        if match := re.match("(problem|advice): (.*)", line):
            found[match[1]].append(match[2])
        else:
            found[line[:17].strip()] = line[18:]
    return found


def test_a_fresh_machine(satchel, satchel_home, no_model):
    shown = satchel("doctor")
    assert (shown.returncode, shown.stderr) == (0, "")
    found = facts(shown)
    assert found["satchel"].endswith(
        f"on Python {sys.version.split()[0]}, {sys.platform} {os.uname().machine}"
    )
    assert re.fullmatch(r"mlx \d\S+, mlx-lm \d\S+, transformers \d\S+", found["packages"])
    assert {key: found[key] for key in ("device", "BLAS", "memory", "model", "embedded model")} == {
        "device": "cpu",
        "BLAS": "MLX's own",
        "memory": "8.0 GB",
        "model": "embedded, which is not on this machine",
        "embedded model": "missing: satchel model pull embedded",
    }
    assert {key: found[key] for key in ("settings", "sessions", "store", "sync", "terminal")} == {
        "settings": str(satchel_home / "config.toml"),
        "sessions": str(satchel_home),
        "store": "0 sessions, 0 bytes",
        "sync": "not set up: satchel sync setup",
        "terminal": "none: plain text",
    }
    assert found["problem"] == []
    assert found["advice"] == [
        "prefill is about 16 to 20 times faster with OpenBLAS: install it",
        "the model 'embedded' is not on this machine; fetch it",
    ]
    assert not satchel_home.exists()


def test_wrong_settings_are_a_line_and_the_rest_is_looked_at(satchel, satchel_home, no_model, monkeypatch):
    satchel_home.mkdir()
    (satchel_home / "config.toml").write_text("max_token = 5\n")
    monkeypatch.setenv("SATCHEL_QWERTY", "1")
    shown = satchel("doctor")
    found = facts(shown)
    complaint = f"{satchel_home}/config.toml: there is no setting 'max_token'; did you mean max_tokens?"
    assert (shown.returncode, found["problem"]) == (0, [complaint])
    assert (found["store"], found["memory"]) == ("0 sessions, 0 bytes", "8.0 GB")
    assert found["model"] == "known when the settings are right"
    assert found["advice"][-1] == "SATCHEL_QWERTY in the environment is no setting"


def test_a_variable_that_is_nearly_a_setting_is_told_once(satchel, no_model, monkeypatch):
    monkeypatch.setenv("SATCHEL_MODLE", "x")
    found = facts(satchel("doctor"))
    assert found["problem"] == [
        "environment: there is no setting 'SATCHEL_MODLE'; did you mean SATCHEL_MODEL?"
    ]
    assert not [line for line in found["advice"] if "SATCHEL_MODLE" in line]


def test_damage_in_the_store_is_told(satchel, satchel_home, no_model):
    heads = satchel_home / "v1" / "heads"
    heads.mkdir(parents=True)
    for number in range(5):
        (heads / f"{number:032x}.json").write_text("{")
    found = facts(satchel("doctor"))
    assert found["store"] == "0 sessions, 0 bytes"
    assert len(found["problem"]) == 4
    assert found["problem"][-1] == "2 more sessions are damaged"
    assert found["advice"][-1] == "`satchel store verify` says what is damaged and what can be done"


def test_a_store_and_a_remote_that_are_something_else_are_told(satchel, satchel_home, no_model):
    (satchel_home / "sync").mkdir(parents=True)
    (satchel_home / "sync" / "remote.json").write_text("nonsense")
    (satchel_home / "v1").write_text("")
    shown = satchel("doctor")
    found = facts(shown)
    assert (shown.returncode, found["store"]) == (0, "not known")
    assert [line.split(": ")[0] for line in found["problem"]] == [
        f"{satchel_home}/v1 is not a directory",
        f"{satchel_home}/sync/remote.json is damaged",
    ]


def test_an_mlx_that_cannot_be_loaded_is_told(satchel, no_model, monkeypatch):
    def fail():
        raise ImportError("libmlx.so:\n cannot open shared object file")

    monkeypatch.setattr(devices, "current_device", fail)
    shown = satchel("doctor")
    found = facts(shown)
    assert (shown.returncode, found["device"], found["memory"]) == (0, "not known", "not known")
    assert found["problem"] == ["libmlx.so: cannot open shared object file"]


def test_whether_the_model_fits_is_told(satchel, monkeypatch, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 128,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
    }
    (folder / "config.json").write_text(json.dumps(config))
    header = json.dumps({"w": {"dtype": "F16", "shape": [1000], "data_offsets": [0, 2000]}}).encode()
    weights = len(header).to_bytes(8, "little") + header + bytes(2000)
    (folder / "model.safetensors").write_bytes(weights)
    monkeypatch.setenv("SATCHEL_MODEL", str(folder))
    found = json.loads(satchel("doctor", "--json").stdout)
    assert (found["model"], found["model_place"]) == (str(folder), str(folder))
    assert found["model_bytes"] == len(weights) + len(json.dumps(config))
    assert (found["longest_context"], found["problems"]) == (4096, [])
    monkeypatch.setattr(devices, "current_device", lambda: Device("cpu", None, 1_500_000_000))
    found = json.loads(satchel("doctor", "--json").stdout)
    assert found["longest_context"] == 0
    assert found["problems"][0].startswith(f"the model {folder} takes ")


def test_the_record_is_as_its_schema_says(satchel, no_model):
    found = json.loads(satchel("doctor", "--json").stdout)
    assert list(faults(found, DoctorRecord)) == []
    assert (found["settings_exist"], found["settings_right"], found["memory_bytes"]) == (
        False,
        True,
        8_000_000_000,
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"COLORTERM": "truecolor"}, "xterm-256color, 90×30, true colour, utf-8"),
        ({"NO_COLOR": "1"}, "xterm-256color, 90×30, no colour, utf-8"),
    ],
)
def test_the_terminal_is_described(changes, said):
    environment = {
        key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")
    }
    environment |= {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", "COLORTERM": ""} | changes
    shown = pexpect.run(
        f"{sys.executable} -m satchel doctor",
        env=environment,
        encoding="utf-8",
        dimensions=(30, 90),
        timeout=60,
    )
    assert f"terminal          {said}\r\n" in shown
