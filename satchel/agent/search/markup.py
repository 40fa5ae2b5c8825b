"""An answer's text as a reader of citations has to see it: citations, and what is no prose. Knows no source.

Takes one character at a time, so that the pieces a text comes in make no difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

MAX_BRACKET_CHARS = 200  # of a citation, or the text of a link
MAX_TARGET_CHARS = 2000  # of a link
MAX_MARKS = 1000  # at the start of a line, or around inline code
MAX_NESTED = 3  # links that seem to begin within what seemed one, and was none
MAX_RANGE = 20  # sources in [1-20]
_OPENING, _CLOSING = "[【［", "]】］"
_CITATION = re.compile(r"\s*\^?\d{1,6}(?:\s*[,，、;；–-]\s*\^?\d{1,6})*\s*(?:†[^\n\]】］]*)?")
_NUMBER = re.compile(r"(\d+)(?:\s*[–-]\s*(\d+))?")
# Where a link leads, with a title perhaps: not what somebody says in brackets.
_LINK = re.compile(r"\s*<?(?:[a-z][a-z0-9+.-]*:|[^\s]*[/.#])\S*(?:\s+[\"'].*)?\s*", re.IGNORECASE)
_LIST_ITEM = re.compile(r"[-*+]|\d")


@dataclass(frozen=True, slots=True)
class Prose:
    """One character of text."""

    char: str


@dataclass(frozen=True, slots=True)
class Fixed:
    """What is to stay as it is: code, links."""

    text: str
    is_block: bool = False  # of a block of code, which no sentence goes through


@dataclass(frozen=True, slots=True)
class Citation:
    """The sources that a citation names, as it was written."""

    numbers: tuple[int, ...]
    text: str


Token = Prose | Fixed | Citation


class _State(Enum):
    LINE_START = auto()  # spaces or the marks of a fence, which are held until it is clear what they begin
    FENCE_LINE = auto()  # the rest of the line that opens a fence
    FENCED = auto()
    INDENTED = auto()  # a line of indented code
    PROSE = auto()
    TICKS = auto()  # of inline code, being counted
    CODE = auto()
    BRACKET = auto()  # what may become a citation, or a link
    BRACKETED = auto()  # after it
    TARGET = auto()  # where the link leads, if it is one


class Markup:
    """Parts a text in tokens; their texts join to it."""

    def __init__(self) -> None:
        self._state = _State.LINE_START
        self._held = ""  # not given out yet
        self._fence = ""  # the marks that opened the block or code
        self._line = ""  # of a block so far
        self._closing = ""  # marks that may close inline code
        self._target = ""
        self._nested = 0
        self._in_list = False
        self._after_blank, self._line_is_blank = True, True
        self._citation: Citation | None = None

    def feed(self, char: str) -> Iterator[Token]:
        """The tokens that are clear with `char`."""
        yield from _STEPS[self._state](self, char)

    def finish(self) -> Iterator[Token]:
        """What is left at the text's end."""
        match self._state:
            case _State.CODE:
                yield from [Fixed(self._closing)] if self._closing else []
            case _State.TICKS:
                yield Fixed(self._take())
            case _State.TARGET:
                yield from self._no_link()
                yield from self.finish()
            case _:
                yield from self._given_up()

    # Blocks of lines

    def _line_start(self, char: str) -> Iterator[Token]:
        marks = self._held.lstrip(" \t")
        goes_on = (char in " \t" and not marks) or (char in "`~" and (not marks or char == marks[0]))
        if goes_on and len(self._held) < MAX_MARKS:
            self._held += char
        elif len(marks) >= 3:
            self._fence, self._state = marks, _State.FENCE_LINE
            yield Fixed(self._take(), is_block=True)
            yield from self.feed(char)
        elif marks.startswith("`"):
            indent = self._held.removesuffix(marks)
            yield from self._begin_line(indent, marks)
            if self._state is _State.INDENTED:
                self._held = ""
                yield Fixed(marks, is_block=True)
            else:
                self._held, self._state = marks, _State.TICKS
            yield from self.feed(char)
        else:
            held = self._take()
            indent = held.removesuffix(marks)
            yield from self._begin_line(indent, marks or char)
            if self._state is _State.INDENTED and marks:
                yield Fixed(marks, is_block=True)
            else:
                yield from map(Prose, marks)
            yield from self.feed(char)

    def _begin_line(self, indent: str, first: str) -> Iterator[Token]:
        """Decide what the line is that has `first` behind `indent`."""
        blank = first == "\n"
        deep = len(indent.expandtabs(4)) >= 4
        if deep and not blank and self._after_blank and not self._in_list:
            self._state = _State.INDENTED
            yield Fixed(indent, is_block=True)
            return
        self._state = _State.PROSE
        if not blank:
            is_item = _LIST_ITEM.match(first) is not None
            self._in_list = is_item or (self._in_list and bool(indent))
        self._line_is_blank = blank
        yield from map(Prose, indent)

    def _indented(self, char: str) -> Iterator[Token]:
        yield Fixed(char, is_block=True)
        if char == "\n":
            self._state, self._after_blank = _State.LINE_START, True

    def _fence_line(self, char: str) -> Iterator[Token]:
        yield Fixed(char, is_block=True)
        if char == "\n":
            self._state, self._line = _State.FENCED, ""

    def _fenced(self, char: str) -> Iterator[Token]:
        yield Fixed(char, is_block=True)
        if char != "\n":
            self._line = (self._line + char)[:1000]
            return
        closing = self._line.strip()
        if len(closing) >= len(self._fence) and set(closing) == {self._fence[0]}:
            self._state, self._after_blank = _State.LINE_START, False
        self._line = ""

    # Within a line

    def _prose(self, char: str) -> Iterator[Token]:
        if char == "`":
            self._held, self._state = char, _State.TICKS
        elif char in _OPENING:
            self._held, self._state = char, _State.BRACKET
        else:
            yield Prose(char)
            if char == "\n":
                self._state, self._after_blank = _State.LINE_START, self._line_is_blank
                self._line_is_blank = True

    def _ticks(self, char: str) -> Iterator[Token]:
        if char == "`" and len(self._held) < MAX_MARKS:
            self._held += char
            return
        self._fence, self._closing, self._state = self._held, "", _State.CODE
        yield Fixed(self._take())
        yield from self.feed(char)

    def _code(self, char: str) -> Iterator[Token]:
        """Code that is not closed ends with its line."""
        if char == "`" and len(self._closing) < MAX_MARKS:
            self._closing += char
        elif char == "\n" and len(self._fence) >= 3 and self._closing != self._fence:
            # A block that was begun in the middle of a line.
            yield Fixed(self._closing + char, is_block=True)
            self._closing, self._line, self._state = "", "", _State.FENCED
        elif self._closing == self._fence or char == "\n":
            self._state = _State.PROSE
            yield from [Fixed(self._closing)] if self._closing else []
            self._closing = ""
            yield from self.feed(char)
        else:
            yield Fixed(self._closing + char)
            self._closing = ""

    def _bracket(self, char: str) -> Iterator[Token]:
        if char in _CLOSING:
            inside = self._held[1:]
            self._held += char
            if _CITATION.fullmatch(inside):
                self._citation = Citation(_numbers(inside), self._held)
            self._state = _State.BRACKETED
        elif char in f"`{_OPENING}\n" or len(self._held) > MAX_BRACKET_CHARS:
            yield from self._given_up()
            yield from self.feed(char)
        else:
            self._held += char

    def _bracketed(self, char: str) -> Iterator[Token]:
        if char == "(" and self._held.endswith("]") and self._nested < MAX_NESTED:
            self._target, self._state = char, _State.TARGET
            return
        yield from self._given_up()
        yield from self.feed(char)

    def _targeted(self, char: str) -> Iterator[Token]:
        if char == ")" and _LINK.fullmatch(self._target[1:]):
            self._citation, self._state, self._nested = None, _State.PROSE, 0
            yield Fixed(self._take() + self._target + char)
        elif char in ")\n" or len(self._target) > MAX_TARGET_CHARS:
            yield from self._no_link()
            yield from self.feed(char)
        else:
            self._target += char

    def _no_link(self) -> Iterator[Token]:
        target, self._target = self._target, ""
        yield from self._given_up()
        self._nested += 1
        for char in target:
            yield from self.feed(char)
        if self._state is not _State.TARGET:
            self._nested = 0

    def _given_up(self) -> Iterator[Token]:
        """What is held is a citation, or else just text."""
        held, citation = self._take(), self._citation
        self._citation, self._state = None, _State.PROSE
        yield from [citation] if citation else map(Prose, held)

    def _take(self) -> str:
        held, self._held = self._held, ""
        return held


_STEPS = {
    _State.LINE_START: Markup._line_start,
    _State.FENCE_LINE: Markup._fence_line,
    _State.FENCED: Markup._fenced,
    _State.INDENTED: Markup._indented,
    _State.PROSE: Markup._prose,
    _State.TICKS: Markup._ticks,
    _State.CODE: Markup._code,
    _State.BRACKET: Markup._bracket,
    _State.BRACKETED: Markup._bracketed,
    _State.TARGET: Markup._targeted,
}


def _numbers(inside: str) -> tuple[int, ...]:
    numbers: list[int] = []
    for first, last in _NUMBER.findall(inside.partition("†")[0]):
        start, stop = int(first), int(last or first)
        numbers += range(start, stop + 1) if stop - start < MAX_RANGE else [start, stop]
    return tuple(dict.fromkeys(numbers))
