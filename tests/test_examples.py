"""The examples of every command's help run as printed, on a machine that has what they name. Minutes long."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from s3_servers import moto  # noqa: F401 (a fixture)
from web_servers import SearXNGServer, article

from satchel.cli.app import app

RUN_S = 300
TALK = [
    {"role": "user", "content": "Our dog is called Bruno."},
    {"role": "assistant", "content": "That is a fine name."},
]
TEXT = "A satchel is a bag with a strap. It is worn over the shoulder, and carries books and papers."

# What an example has that cannot be here, and why it is not run.
NOT_RUN = {
    "qwen3.5-": "downloads gigabytes",
    "mlx-community/": "downloads a model",
    "Qwen/": "downloads a model",
    "llama.gguf": "is a file of the user's",
    "satchel init": "asks, and may download",
    "sync setup  ": "asks",
    "--words": "needs recovery words of a setup that was seen",
    "satchel receive": "needs a link that was made just now",
    "config edit": "opens an editor",
    "completion": "writes to the shell's files",
    "bench kv": "takes minutes to hours",
    "search": "the embedded model is too small to answer from pages: tests/test_agent_cli.py",
    "shell": "the embedded model is too small to propose commands: tests/test_agent_cli.py",
    "COMMAND": "is a pattern",
    "sessions archive": "needs a session with a compressed state",
    "model rm": "downloads a model",
    "bruno.safetensors": "needs a session with its state",
    "bruno.png": "needs a session with figures",
    "satchel stats bruno": "needs a session with figures",
    "models.fast": "names a model of the hub",
}
BEGIN_ANEW = {"satchel sessions rm", "satchel sync setup"}  # whose examples do not go on from one another


def examples() -> list[tuple[str, tuple[str, ...]]]:
    """Each command with its examples."""

    def walk(command, path):
        if command.epilog:
            yield " ".join(path), tuple(line.strip() for line in command.epilog.splitlines() if line.strip())
        for name, each in getattr(command, "commands", {}).items():
            yield from walk(each, (*path, name))

    return list(walk(typer.main.get_command(app), ("satchel",)))


def why_not_run(line: str) -> str:
    padded = f"{line}  "
    return next((reason for part, reason in NOT_RUN.items() if part in padded), "")


@pytest.fixture
def machine(tmp_path, moto):
    """Runs a line in a shell; `bruno` and `dog` are stored, sync is set up, and the files are there."""
    work, home = tmp_path / "project", tmp_path / "home"
    (work / "docs").mkdir(parents=True)
    (work / "src").mkdir()
    (work / "README.md").write_text(f"# Satchel\n\n{TEXT}\n")
    (work / "docs" / "use.md").write_text(TEXT)
    (work / "src" / "main.py").write_text("print('hello')\n")
    (work / "notes.txt").write_text(TEXT)
    (work / "messages.json").write_text(json.dumps(TALK))
    (work / "nas" / "satchel").mkdir(parents=True)
    bucket = moto.make_bucket("my-bucket")
    with SearXNGServer() as search:
        page = search.page("/satchel", article("Satchel", TEXT, TEXT))
        search.results = [{"url": page, "title": "Satchel", "content": TEXT}]
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("SATCHEL_", "NO_COLOR"))
        }
        if cache := os.environ.get("SATCHEL_CACHE"):
            kept["SATCHEL_CACHE"] = cache
        environment = kept | {
            "HOME": str(tmp_path),
            "SATCHEL_HOME": str(home),
            "SATCHEL_CONFIG": str(tmp_path / "config.toml"),
            "SATCHEL_MAX_TOKENS": "16",
            "SATCHEL_TEMPERATURE": "0",
            "SATCHEL_S3_ENDPOINT": moto.endpoint,
            "SATCHEL_S3_REGION": "us-east-1",
            "SATCHEL_S3_ACCESS_KEY_ID": moto.credentials.access_key,
            "SATCHEL_S3_SECRET_ACCESS_KEY": moto.credentials.secret_key,
            "SATCHEL_PASSPHRASE": "five words that nobody else knows",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONUTF8": "1",
        }

        def run(line):
            line = line.replace("s3://my-bucket/satchel", f"s3://{bucket}/{tmp_path.name.replace('_', '-')}")
            line = line.replace("file:///Volumes/nas/satchel", f"file://{work}/nas/satchel")
            return subprocess.run(
                ["bash", "-c", f"set -o pipefail; {line}"],
                cwd=work,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                timeout=RUN_S,
            )

        yield run


def prepare(run, command):
    """Have the machine hold what the examples of `command` go on from."""
    lines = [
        "git init -q && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m begun",
        "git add README.md && echo more >> README.md",
        "satchel sessions import messages.json --name bruno",
    ]
    if command == "satchel sessions rm":
        lines += ["satchel sessions fork bruno dog"]
    if command == "satchel sessions import":
        lines += ["satchel sessions export bruno --output bruno.md"]
    if command == "satchel config path":
        lines += ["satchel config set max_tokens 16"]
    if ("sync" in command or "share" in command) and command != "satchel sync setup":
        lines += ["satchel sync setup s3://my-bucket/satchel"]
    for line in lines:
        done = run(line)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize(("command", "lines"), [pytest.param(*each, id=each[0]) for each in examples()])
def test_examples_run_as_printed(command, lines, machine):
    if not (lines := [line for line in lines if not why_not_run(line)]):
        pytest.skip(f"{command}: {why_not_run(examples_of(command)[0])}")
    if any("| jq" in line for line in lines) and shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    for number, line in enumerate(lines):
        if number == 0 or command in BEGIN_ANEW:
            assert machine('rm -rf "$SATCHEL_HOME" .git bruno.md').returncode == 0
            prepare(machine, command)
        done = machine(line)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


def examples_of(command: str) -> tuple[str, ...]:
    return dict(examples())[command]


def test_every_reason_for_not_running_is_needed():
    lines = [f"{line}  " for _, lines in examples() for line in lines]
    assert [part for part in NOT_RUN if not any(part in line for line in lines)] == []


def test_most_examples_are_run():
    lines = [line for _, lines in examples() for line in lines]
    assert sum(not why_not_run(line) for line in lines) > 45
