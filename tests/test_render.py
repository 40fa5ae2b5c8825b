"""What the renderer writes to a terminal, a pipe and a file."""

import fcntl
import io
import os
import pty
import re
import struct
import termios
import threading
from types import SimpleNamespace

import pyte
import pytest

from satchel.agent.commands import run_command, session_table
from satchel.agent.events import (
    CommandProposed,
    Diff,
    Failed,
    Notice,
    Output,
    Searching,
    SourcesFound,
    TextDelta,
    TurnDone,
)
from satchel.terminal.render import Renderer

STATS = SimpleNamespace(prompt_tokens=5, reused_tokens=398, generated_tokens=12, decode_tps=8.25)
FIGURES = "12 tokens at 8.2/s · 5 read, 398 reused"
ESCAPES = re.compile(r"\x1b\[[\d;]*m|\x1b\]8;;[!-~]*\x1b\\")


class Window:
    """A terminal of its own, with an emulator behind it."""

    def __init__(self, columns=80):
        self._ours, theirs = pty.openpty()
        self.stream = os.fdopen(theirs, "w", encoding="utf-8")
        self.screen = pyte.HistoryScreen(columns, 24, history=10_000)
        self.raw = b""
        self.resize(columns)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def resize(self, columns):
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def close(self):
        if not self.stream.closed:
            self.stream.close()
            self._reader.join()
            os.close(self._ours)

    def text(self):
        """All that was written, without attributes and links."""
        self.close()
        return ESCAPES.sub("", self.raw.decode())

    def lines(self):
        """All lines as they are seen."""
        self.close()
        self.screen.reset()
        pyte.ByteStream(self.screen).feed(self.raw)
        columns = range(self.screen.columns)
        gone = ["".join(row[x].data for x in columns).rstrip() for row in self.screen.history.top]
        return "\n".join([*gone, *(line.rstrip() for line in self.screen.display)]).rstrip("\n").split("\n")

    def _read(self):
        try:
            while data := os.read(self._ours, 65536):
                self.raw += data
        except OSError:  # nobody writes any more
            pass


@pytest.fixture(autouse=True)
def known_terminal(monkeypatch):
    for name in ("NO_COLOR", "SATCHEL_QUIET", "COLORTERM", "TERM_PROGRAM", "VTE_VERSION", "KONSOLE_VERSION"):
        monkeypatch.delenv(name, raising=False)
    for name in ("TMUX", "STY", "WT_SESSION", "FORCE_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture
def window():
    opened = []

    def open_window(columns=80):
        opened.append(Window(columns))
        return opened[-1]

    yield open_window
    for each in opened:
        each.close()


def turn(window, *events, **settings):
    Renderer(window.stream, window.stream, **settings).turn(events)
    return window


def said(text, size=3):
    """The events of an answer in pieces."""
    return [TextDelta(text[start : start + size]) for start in range(0, len(text), size)]


MARKDOWN = "# Top\n\n- **one** `two`\n\n```python\nx = 1\n```\n\n|a|b|\n|-|-|\n|1|2|\n"


def test_an_answer_on_a_terminal_is_drawn(window):
    drawn = turn(window(), *said(MARKDOWN), TurnDone("stop", STATS))
    assert drawn.lines() == [
        "Top",
        "",
        "• one two",
        "",
        "─── python " + "─" * 29,
        "x = 1",
        "─" * 40,
        "",
        "a │ b",
        "──┼──",
        "1 │ 2",
        FIGURES,
    ]
    assert b"\x1b[1mone\x1b[0m" in drawn.raw


def test_a_file_gets_the_words_as_they_are():
    out, err = io.StringIO(), io.StringIO()
    Renderer(out, err).turn([*said(MARKDOWN), TurnDone("stop", STATS)])
    assert (out.getvalue(), err.getvalue()) == (MARKDOWN, "")


def test_a_dumb_terminal_gets_the_words_as_they_are(window, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    drawn = turn(window(), *said(MARKDOWN), Notice("notice"), TurnDone("stop", STATS))
    assert drawn.text() == f"{MARKDOWN}notice\n{FIGURES}\n".replace("\n", "\r\n")


def test_so_does_who_wants_no_markdown(window):
    assert turn(window(), *said("a **b**\n"), markdown=False).text() == "a **b**\r\n"


def test_without_colours_the_layout_stays(window, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    drawn = turn(window(), *said(MARKDOWN), Notice("notice"), TurnDone("stop", STATS))
    assert drawn.lines()[:3] == ["# Top", "", "• **one** `two`"]
    assert drawn.lines()[-5:] == ["a │ b", "──┼──", "1 │ 2", "notice", FIGURES]
    assert b"\x1b" not in drawn.raw


def test_the_theme_of_code_can_be_chosen(window):
    drawn = turn(window(), *said("```python\nif x: 1\n```"), code_theme="monokai")
    assert drawn.lines()[1] == "if x: 1"
    assert b"\x1b[38;5;" in drawn.raw


def test_words_are_seen_while_the_answer_goes_on(window):
    drawn, writes = window(20), []
    noted = SimpleNamespace(
        write=writes.append,
        flush=lambda: None,
        isatty=lambda: True,
        fileno=drawn.stream.fileno,
        encoding="utf-8",
    )
    pieces = ("Hello ", "there, ", "**all", " of", "** you ", "people")
    Renderer(noted, io.StringIO()).turn(map(TextDelta, pieces))
    assert [ESCAPES.sub("", text) for text in writes] == ["Hello", " there,", " all of\nyou", " people", "\n"]


def test_no_word_is_lost_or_drawn_twice_while_the_window_is_resized(window):
    drawn = window(80)
    words = [f"w{number}" if number % 7 else f"字{number}。" for number in range(2000)]

    def events():
        for number, word in enumerate(words):
            if number % 400 == 399:
                drawn.resize((40, 120, 20, 100, 60)[number // 400])
            yield TextDelta(word + ("\n" if number % 50 == 49 else " "))

    Renderer(drawn.stream, drawn.stream).turn(events())
    drawn_text = drawn.text()
    assert "".join(drawn_text.split()) == "".join(words)
    assert max(map(len, drawn_text.split("\r\n"))) <= 120
    narrow = drawn_text[drawn_text.index("w1250") : drawn_text.index("w1550")].split("\r\n")
    assert max(map(len, narrow)) <= 20


def test_a_notice_ends_the_line_and_not_the_emphasis(window):
    drawn = turn(window(), TextDelta("it is **very"), Notice("a block was damaged"), TextDelta(" bad** news"))
    assert drawn.lines() == ["it is", "a block was damaged", "very bad news"]


def test_what_was_held_back_is_drawn_when_the_answer_is_stopped(window):
    def events():
        yield TextDelta("it is **very b")
        raise KeyboardInterrupt

    drawn = window()
    with pytest.raises(KeyboardInterrupt):
        Renderer(drawn.stream, drawn.stream).turn(events())
    assert drawn.lines() == ["it is **very b"]


def test_each_answer_begins_anew(window):
    drawn = turn(
        window(), *said("```\ncode"), TurnDone("length", STATS), *said("**b**"), TurnDone("stop", STATS)
    )
    assert drawn.lines() == [
        "─" * 40,
        "code",
        f"cut at --max-tokens · {FIGURES}",
        "b",
        FIGURES,
    ]


HOSTILE = "\x1b]0;owned\x07\x1b[2J\x1b]52;c;aGk=\x07\x9b1m\r\b\x85"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (f"a{HOSTILE} **b{HOSTILE}**", ["a b"]),
        (f"```python\nx{HOSTILE} = 1\n```", ["─── python " + "─" * 29, "x = 1", "─" * 40]),
        (f"|a{HOSTILE}|b|\n|-|-|\n|{HOSTILE}1|2|", ["a │ b", "──┼──", "1 │ 2"]),
        (f"[a](https://b.c/{HOSTILE}d)", ["a (https://b.c/d)"]),
        ("&#27;[2J \\033[2J", ["&#27;[2J \\033[2J"]),
    ],
)
def test_no_answer_drives_the_terminal(window, text, lines):
    drawn = turn(window(), *said(text, 2))
    assert drawn.lines() == lines
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", drawn.text())


def test_links_are_for_terminals_that_take_them(window, monkeypatch):
    monkeypatch.setenv("TERM_PROGRAM", "iTerm.app")
    drawn = turn(window(), *said("[docs](https://a.b/c)"))
    assert drawn.lines() == ["docs"]
    assert b"\x1b]8;;https://a.b/c\x1b\\" in drawn.raw
    monkeypatch.setenv("TMUX", "/tmp/tmux")
    assert turn(window(), *said("[docs](https://a.b/c)")).lines() == ["docs (https://a.b/c)"]


# -- what is told beside answers ---------------------------------------------------------------------

SOURCES = (
    SimpleNamespace(
        number=1, title="A title of some length, with 中文 in it", url="https://a.example/" + "x" * 30
    ),
    SimpleNamespace(number=2, title="Short", url="https://b.example/"),
)


def test_sources_are_wrapped_and_addresses_whole(window):
    drawn = turn(window(40), SourcesFound(SOURCES), *said("So it is [2]."), TurnDone("stop", STATS))
    assert drawn.lines() == [
        "So it is [2].",
        "sources, * cited:",
        "  [1] A title of some length, with 中文",
        "      in it —",
        "      https://a.example/" + "x" * 16,
        "x" * 14,
        "* [2] Short — https://b.example/",
        FIGURES,
    ]


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_notices_are_wrapped_between_words(window, columns):
    words = [f"word{number}" for number in range(60)]
    lines = turn(window(columns), Notice(" ".join(words))).lines()
    assert " ".join(lines).split() == words
    assert all(line.startswith("  word") for line in lines[1:])


def test_commands_and_diffs_are_whole(window):
    command = "echo " + "long " * 20 + "end"
    judgement = SimpleNamespace(
        destructive=False, reasons=["it reads " + "much " * 12], summary=lambda: "reads"
    )
    drawn = turn(window(40), CommandProposed(command, judgement), Diff("+" + "x" * 50 + "\n-y"))
    text = drawn.text().split("\r\n")
    assert text == [
        f"$ {command}",
        "touches: reads",
        "  it reads much much much much much much",
        "    much much much much much much",
        "+" + "x" * 50,
        "-y",
        "",
    ]


def test_who_wants_quiet_gets_answers_and_errors(window, monkeypatch):
    monkeypatch.setenv("SATCHEL_QUIET", "1")
    told = [Notice("notice"), Searching("query", "provider"), SourcesFound(SOURCES)]
    drawn = turn(
        window(), *told, TextDelta("answer"), TurnDone("stop", STATS), Failed("failed"), Output("output")
    )
    assert drawn.lines() == ["answer", "satchel: failed", "output"]


def test_output_in_two_columns_fits_the_window(window):
    text = "/one       does something that takes some words to say\n/two       less\n" + "x" * 50
    assert turn(window(40), Output(text)).lines() == [
        "/one       does something that takes",
        "           some words to say",
        "/two       less",
        "x" * 40,
        "x" * 10,
    ]


def test_where_there_is_no_room_beside_a_label_all_values_go_below(window):
    text = "/one <something>        words that do not fit\n/two                    fit\nsmall  " + "x " * 20
    assert turn(window(40), Output(text)).lines() == [
        "/one <something>",
        "  words that do not fit",
        "/two",
        "  fit",
        "small  " + "x " * 16 + "x",
        "       x x x",
    ]


def test_the_help_of_a_command_is_wrapped_between_words(window):
    (shown,) = run_command(None, "/help rename")
    assert turn(window(20), shown).lines() == [
        "/rename <name>",
        "  give this session",
        "  another name",
        "examples:",
        "  /rename trip to",
        "  Norway",
    ]


def test_a_file_gets_output_as_it_is():
    out = io.StringIO()
    Renderer(out, io.StringIO()).turn([Output("a  " + "b " * 90, lambda columns: "narrow")])
    assert out.getvalue() == "a  " + "b " * 90 + "\n"


def test_the_table_of_sessions_fits_the_window(window):
    from datetime import UTC, datetime

    head = SimpleNamespace(
        name="Oslo", title="这是一个很长的标题 about mountains", archive_note="", stored_bytes=1.2e6, turns=3,
        token_count=1234, updated_at=datetime(2026, 1, 2, 12, tzinfo=UTC),
    )  # fmt: skip
    other = SimpleNamespace(**vars(head) | {"name": "trip to the North-1/-2", "title": "short"})
    shown = Output(session_table([head, other]), lambda columns: session_table([head, other], columns))
    assert [re.sub(r"\d\d:\d\d", "12:00", line) for line in turn(window(80), shown).lines()] == [
        "SAVED             TURNS   TOKENS       SIZE  NAME                  TITLE",
        "2026-01-02 12:00      3    1,234     1.2 MB  Oslo                  这是一个很长…",
        "2026-01-02 12:00      3    1,234     1.2 MB  trip to the North-1/-2  short",
    ]
    assert turn(window(40), shown).lines() == [
        "SAVED       NAME        TITLE",
        "2026-01-02  Oslo        这是一个很长的…",
        "2026-01-02  trip to the North-1/-2  sho…",
    ]
