"""The main job by the command line on the real model: talk, leave, resume in another process."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from satchel.cache_store.local import LocalStore
from satchel.cache_store.manifest import Manifest
from satchel.config.profiles import get_profile
from satchel.config.settings import Settings
from satchel.engine.generate import Delta
from satchel.engine.model import LoadedModel
from satchel.session import Session, SessionManager

FIRST = " ".join(topics["assignment"][:2000].split()) + " What is this text about?"  # a line; over a block
SECOND = "Say that in fewer words."
MAX_TOKENS = 24
OPTIONS = ("--temperature", "0", "--max-tokens", str(MAX_TOKENS))
SATCHEL = (sys.executable, "-m", "satchel")


@dataclass(frozen=True, slots=True)
class Home:
    """A user's directory, and the commands run in it."""

    path: Path

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"SATCHEL_HOME": str(self.path)}

    def run(self, *args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*SATCHEL, *args],
            input=stdin,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def manifest(self, name: str) -> Manifest:
        store = LocalStore(self.path)
        return store.get_manifest(store.find(name).manifest)

    def open(self, smollm: LoadedModel, name: str) -> Session:
        return manager(smollm, self.path).open(name)


def manager(smollm: LoadedModel, home: Path) -> SessionManager:
    return SessionManager(LocalStore(home), smollm, get_profile("turbo4"), Settings(temperature=0.0))


def answer(session: Session, question: str) -> str:
    events = session.reply(question, max_tokens=MAX_TOKENS, cancel=threading.Event())
    return "".join(event.text for event in events if isinstance(event, Delta))


@pytest.fixture(scope="module")
def chatted(smollm: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, str]:
    """A home in which a process has talked one turn and saved it, and what was printed. Not to be changed."""
    home = Home(tmp_path_factory.mktemp("chatted"))
    chat = home.run("chat", *OPTIONS, stdin=f"{FIRST}\n/save talk\n/stats\n/quit\n")
    assert chat.returncode == 0, chat.stderr
    return home, chat.stdout


@pytest.fixture
def home(chatted: tuple[Home, str], tmp_path: Path) -> Home:
    """A copy of the home that holds the session `talk`."""
    return Home(Path(shutil.copytree(chatted[0].path, tmp_path / "copy")))


def test_a_resumed_talk_goes_on_as_if_it_had_never_stopped(
    smollm: LoadedModel, chatted: tuple[Home, str], home: Home, tmp_path: Path
) -> None:
    uninterrupted = manager(smollm, tmp_path / "other").new()
    first, second = answer(uninterrupted, FIRST), answer(uninterrupted, SECOND)
    assert chatted[1].startswith(f"{first}\n")
    assert "reused 0 tokens" in chatted[1]

    stored = home.manifest("talk").token_count
    assert stored > 400
    (listed,) = json.loads(home.run("sessions", "list", "--json").stdout)
    assert (listed["name"], listed["turns"], listed["token_count"]) == ("talk", 1, stored)

    resumed = home.run("resume", "talk", *OPTIONS, stdin=f"/stats\n{SECOND}\n/stats\n")
    assert resumed.returncode == 0
    assert f"going on in talk: reused {stored} tokens" in resumed.stderr
    before, printed, after = re.split(rf"({re.escape(second)}\n)", resumed.stdout)
    assert f"reused {stored} tokens\n" in before
    assert printed == f"{second}\n"
    assert f"reused {stored}, wrote" in after
    assert [message.content for message in home.manifest("talk").messages] == [FIRST, first, SECOND, second]
    assert home.open(smollm, "talk").token_ids == uninterrupted.token_ids


def test_a_damaged_block_is_one_line_and_the_talk_goes_on(smollm: LoadedModel, home: Home) -> None:
    (block, *_) = home.manifest("talk").blocks
    path = home.path / "v1" / "blocks" / block.sha256[:2] / block.sha256
    path.write_bytes(path.read_bytes()[:-1])
    tokens = home.manifest("talk").token_count
    resumed = home.run("resume", "talk", *OPTIONS, stdin=f"{SECOND}\n")
    assert resumed.returncode == 0
    assert resumed.stdout.strip()
    assert resumed.stderr.splitlines() == [
        f"block {block.sha256[:12]} is damaged: its SHA-256 is another: "
        "the context is read again with the next message",
        f"going on in talk: its {tokens:,} tokens are read again with the next message",
    ]
    again = home.open(smollm, "talk")
    assert (again.notices, again.reused_tokens) == ([], home.manifest("talk").token_count)
    assert len(again.messages) == 4


def test_damaged_manifests_are_exit_code_4(home: Home) -> None:
    manifest_id = LocalStore(home.path).find("talk").manifest
    for path in (home.path / "v1" / "manifests").iterdir():
        path.write_bytes(b"")
    resumed = home.run("resume", "talk")
    assert (resumed.returncode, resumed.stdout) == (4, "")
    assert resumed.stderr == f"satchel: manifest {manifest_id[:12]} is damaged: its SHA-256 is another\n"


@pytest.mark.parametrize(("kill", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)])
def test_killed_within_an_answer_all_completed_turns_are_saved(
    smollm: LoadedModel, home: Home, kill: signal.Signals, exit_code: int
) -> None:
    before = home.manifest("talk")
    command = [*SATCHEL, "resume", "talk", "--temperature", "0", "--max-tokens", "2000"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=home.environment, text=True, **pipes) as resumed:
        resumed.stdin.write("Write a very long story about a fox.\n")
        resumed.stdin.flush()
        assert resumed.stdout.read(1)
        resumed.send_signal(kill)
        assert resumed.wait(timeout=30) == exit_code
        assert "Traceback" not in resumed.stderr.read()
    assert home.manifest("talk") == before
    opened = home.open(smollm, "talk")
    assert (opened.notices, opened.reused_tokens) == ([], before.token_count)


def test_a_reader_that_leaves_early_gets_no_traceback(home: Home) -> None:
    command = f"'{sys.executable}' -m satchel ask 'Count to one hundred.' --max-tokens 200 | head -c 1"
    asked = subprocess.run(
        ["bash", "-c", command],
        env=home.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (asked.returncode, len(asked.stdout), asked.stderr) == (0, 1, "")
