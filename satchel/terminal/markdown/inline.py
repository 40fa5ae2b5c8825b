"""The marks within a line: emphasis, code, links, mathematics. Knows nothing of lines and of drawing.

A line is read while it comes. What may still become something else is held back: from a mark that opens to
the one that closes it, to the end of the line, or for `MAX_HELD_CHARS`. A mark that nothing closes is text.
Parsers that are to be had want a whole paragraph; this one decides once, and so needs no text again.

The marks are those of CommonMark, with three differences that suit answers of models. A mark between two
letters or digits opens nothing (2*3*4). In scripts without spaces it does (这是**重点**内容). Between the
marks of mathematics (`$x$`, `\\(x\\)`) all stays as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

from satchel.terminal.pen import MAX_URL_CHARS, Span, is_linkable

MAX_HELD_CHARS = 300

CODE, LINK, ADDRESS = "cyan", "underline", "dim"
_STYLES = {"*": {1: "italic", 2: "bold", 3: "bold italic"}, "~": {2: "strike"}}
_STYLES["_"] = _STYLES["*"]

_TEXT = re.compile(r"[^\\`*_~\[!<$h]+")
_CLOSERS = {sign: re.compile(rf"[\\`{sign}]") for sign in "*_~"}  # and what hides one
_RUN = re.compile(r"(.)\1*", re.DOTALL)
_PUNCTUATION = frozenset("!\"#$%&'*+,-./:;<=>?@\\^_`{|}~")
_MATHEMATICS = {"\\(": "\\)", "\\[": "\\]", "$$": "$$"}
_URL = re.compile(r"https?://(?:(?![<>\"'`\\^{|}])[!-~])+", re.IGNORECASE)
_SCHEMES = ("http://", "https://", "mailto:")
_SEEMS_AN_ADDRESS = re.compile(r"://|^\s*www\.|\w\.[a-z]{2,}(?:[/:?#\s]|$)", re.IGNORECASE)
_FIRST_WIDE = "\u2e80"  # from here on scripts are mostly written without spaces


class _Not(Enum):
    YET = auto()  # more text decides
    THERE = auto()


@dataclass(frozen=True, slots=True)
class Marks:
    """How marks are shown.

    Attributes:
        kept: they stay in the text, for where emphasis cannot be seen otherwise.
        links: an address is behind the text that leads to it, and need not be shown.
    """

    kept: bool = False
    links: bool = False


class Inline:
    """Reads one line."""

    def __init__(self, marks: Marks, style: str = "") -> None:
        """`style` is that of all of the line."""
        self._marks, self._style = marks, style
        self._text, self._before = "", ""

    def feed(self, text: str) -> list[Span]:
        """What is certain by now."""
        self._text += text
        return self._read(is_whole=False)

    def end(self) -> list[Span]:
        """The rest."""
        return self._read(is_whole=True)

    def _read(self, is_whole: bool) -> list[Span]:
        reader = _Reader(self._text, self._before, self._marks, is_whole)
        spans = reader.read(self._style)
        if reader.position:
            self._before = self._text[reader.position - 1]
            self._text = self._text[reader.position :]
        return spans


def read_line(text: str, marks: Marks, style: str = "") -> list[Span]:
    """The whole of a line at once."""
    return _Reader(text, "", marks, is_whole=True).read(style)


class _Reader:
    """Goes through `text` until something is not certain."""

    def __init__(self, text: str, before: str, marks: Marks, is_whole: bool) -> None:
        """`before` is the character before `text`."""
        self._text, self._first, self._marks, self._is_whole = text, before, marks, is_whole
        self.position = 0

    def read(self, style: str) -> list[Span]:
        spans: list[Span] = []
        while self.position < len(self._text):
            if plain := _TEXT.match(self._text, self.position):
                spans.append(Span(plain.group(), style))
                self.position = plain.end()
                continue
            found = self._mark(style)
            if isinstance(found, _Not):
                break  # more text decides
            more, self.position = found
            spans += more
        return spans

    # Each of these looks at the mark at `position` and gives its spans and where it ends.

    def _mark(self, style: str) -> tuple[list[Span], int] | _Not:
        """Never that it is not there: then it is text."""
        at = self._text[self.position]
        match at:
            case "\\":
                found = self._escape(style)
            case "`":
                found = self._code(style)
            case "[":
                found = self._link(self.position, style)
            case "!":
                found = self._image(style)
            case "<":
                found = self._address_in_brackets(style)
            case "$":
                found = self._dollar(style)
            case "h":
                found = self._address(style)
            case _:
                return self._emphasis(style)
        if found is _Not.THERE:
            return [Span(at, style)], self.position + 1
        return found

    def _escape(self, style: str) -> tuple[list[Span], int] | _Not:
        start = self.position
        following = self._text[start + 1 : start + 2]
        if not following:
            return self._not()
        pair = "\\" + following
        if closing := _MATHEMATICS.get(pair):
            return self._verbatim(closing, style)
        if following in "()[]":
            return [Span(pair, style)], start + 2
        return ([Span(following, style)], start + 2) if following in _PUNCTUATION else _Not.THERE

    def _dollar(self, style: str) -> tuple[list[Span], int] | _Not:
        """Mathematics, and not a price: nothing blank within the marks, and no digit behind them."""
        text, start = self._text, self.position
        following = text[start + 1 : start + 2]
        if not following:
            return self._not()
        if following == "$":
            return self._verbatim("$$", style)
        if following.isspace() or following.isdigit():
            return _Not.THERE
        end = text.find("$", start + 2, start + MAX_HELD_CHARS)
        if end < 0:
            return self._not(start)
        if end + 1 == len(text) and not self._is_whole:
            return _Not.YET
        if text[end - 1].isspace() or text[end + 1 : end + 2].isdigit():
            return _Not.THERE
        return [Span(text[start : end + 1], style)], end + 1

    def _verbatim(self, closing: str, style: str) -> tuple[list[Span], int] | _Not:
        start = self.position
        end = self._text.find(closing, start + 2, start + MAX_HELD_CHARS)
        if end < 0:
            found = self._not(start)
            return found if found is _Not.YET else ([Span(self._text[start : start + 2], style)], start + 2)
        return [Span(self._text[start : end + 2], style)], end + 2

    def _code(self, style: str) -> tuple[list[Span], int] | _Not:
        start = self.position
        end = self._run_end(start)
        if end is None:
            return _Not.YET
        closing = self._closing_code(start, end, start)
        if isinstance(closing, _Not):
            return closing if closing is _Not.YET else ([Span(self._text[start:end], style)], end)
        content = self._text[end : closing - (end - start)]
        if len(content) > 2 and content[0] == content[-1] == " " and content.strip():
            content = content[1:-1]
        shown = self._text[start:closing] if self._marks.kept else content
        return [Span(shown, _both(style, CODE))], closing

    def _closing_code(self, start: int, end: int, since: int) -> int | _Not:
        """Where the code ends whose opening mark is from `start` to `end`, within what is held `since`."""
        position = end
        limit = since + MAX_HELD_CHARS
        while (position := self._text.find("`", position, limit)) >= 0:
            run_end = self._run_end(position)
            if run_end is None:
                return _Not.YET
            if run_end - position == end - start:
                return run_end
            position = run_end
        return self._not(since)

    def _emphasis(self, style: str) -> tuple[list[Span], int] | _Not:
        text, start = self._text, self.position
        sign = text[start]
        end = self._run_end(start)
        if end is None:
            return _Not.YET
        length = end - start
        following = text[end : end + 1]
        if not following and not self._is_whole:
            return _Not.YET
        as_text = [Span(text[start:end], style)], end
        means = _STYLES[sign].get(length)
        if means is None or not following or following.isspace():
            return as_text
        if self._is_within_word(start, end) or (sign == "_" and self._char_before(start).isalnum()):
            return as_text
        closing = self._closing_emphasis(start, end)
        if isinstance(closing, _Not):
            return closing if closing is _Not.YET else as_text
        inner = text[end : closing - length]
        if text[start:end] == "__" and inner.isidentifier():
            return as_text  # __init__ and its like
        inner_style = _both(style, means)
        spans = _Reader(inner, sign, self._marks, is_whole=True).read(inner_style)
        if self._marks.kept:
            mark = text[start:end]
            spans = [Span(mark, inner_style), *spans, Span(mark, inner_style)]
        return spans, closing

    def _closing_emphasis(self, start: int, end: int) -> int | _Not:
        """Where the emphasis ends that opens from `start` to `end`."""
        text, sign, length = self._text, self._text[start], end - start
        position = end
        while found := _CLOSERS[sign].search(text, position, start + MAX_HELD_CHARS):
            position = found.start()
            if found.group() == "\\":
                position += 2
                continue
            run_end = self._run_end(position)
            if run_end is None:
                return _Not.YET
            if found.group() == "`":
                code_end = self._closing_code(position, run_end, start)
                if code_end is _Not.YET:
                    return _Not.YET
                position = code_end if isinstance(code_end, int) else run_end
                continue
            if run_end == len(text) and not self._is_whole:
                return _Not.YET
            if run_end - start < MAX_HELD_CHARS and self._closes(sign, length, position, run_end):
                return run_end
            position = run_end
        return self._not(start)

    def _closes(self, sign: str, length: int, start: int, end: int) -> bool:
        """Whether the run from `start` to `end` closes an emphasis of `length` signs."""
        run = end - start
        if self._text[start - 1].isspace() or self._is_within_word(start, end):
            return False
        if sign == "_" and self._text[end : end + 1].isalnum():
            return False
        # One sign is not closed by two, which are another emphasis within it.
        return run in (1, 3) if length == 1 else run >= length

    def _image(self, style: str) -> tuple[list[Span], int] | _Not:
        following = self._text[self.position + 1 : self.position + 2]
        if not following:
            return self._not()
        return self._link(self.position + 1, style) if following == "[" else _Not.THERE

    def _link(self, start: int, style: str) -> tuple[list[Span], int] | _Not:
        """`[text](address)`, with the bracket at `start`."""
        text = self._text
        end = self._closing_bracket(start)
        if isinstance(end, _Not):
            return end
        if end == len(text):
            return self._not()
        if text[end] != "(":
            return _Not.THERE
        closing = self._closing_parenthesis(end)
        if isinstance(closing, _Not):
            return closing
        address = text[end + 1 : closing - 1]
        if not address:
            return _Not.THERE
        words = text[start + 1 : end - 1]
        return self._leading_to(address, words, style), closing

    def _leading_to(self, address: str, words: str, style: str) -> list[Span]:
        """`words` as a link. Its address is shown, too, unless the terminal does, and they are no other."""
        url = address if is_linkable(address) else ""
        link_style = _both(style, LINK)
        if words.strip() in ("", address):
            return [Span(address, link_style, url or address)]
        inner = _Reader(words, "", self._marks, is_whole=True).read(link_style)
        spans = [Span(span.text, span.style, url) for span in inner]
        if url and self._marks.links and not _SEEMS_AN_ADDRESS.search(words):
            return spans
        quiet = _both(style, ADDRESS)
        return [*spans, Span(" (", quiet), Span(address, quiet, url or address), Span(")", quiet)]

    def _closing_bracket(self, start: int) -> int | _Not:
        """Behind the bracket that closes the one at `start`."""
        text, depth, position = self._text, 0, start
        while position < min(len(text), start + MAX_HELD_CHARS):
            match text[position]:
                case "\\":
                    position += 1
                case "[":
                    depth += 1
                case "]":
                    depth -= 1
                    if depth == 0:
                        return position + 1
            position += 1
        return self._not(start)

    def _closing_parenthesis(self, start: int) -> int | _Not:
        """Behind the parenthesis that closes the one at `start`, if nothing blank is between."""
        text, depth = self._text, 0
        for position in range(start, min(len(text), start + MAX_URL_CHARS)):
            char = text[position]
            if char.isspace() or char in "<>":
                return _Not.THERE
            depth += (char == "(") - (char == ")")
            if depth == 0:
                return position + 1
        return self._not(start, MAX_URL_CHARS)

    def _address_in_brackets(self, style: str) -> tuple[list[Span], int] | _Not:
        text, start = self._text, self.position + 1
        known = self._scheme(start)
        if known is not True:
            return known
        end = start
        while end < min(len(text), start + MAX_URL_CHARS):
            if text[end] == ">":
                address = text[start:end]
                return [Span(address, _both(style, LINK), address)], end + 1
            if text[end].isspace() or text[end] == "<":
                return _Not.THERE
            end += 1
        return self._not(start, MAX_URL_CHARS)

    def _address(self, style: str) -> tuple[list[Span], int] | _Not:
        """An address as it is, without what ends a sentence behind it."""
        text, start = self._text, self.position
        if self._char_before(start).isalnum():
            return _Not.THERE
        known = self._scheme(start)
        if known is not True:
            return known
        found = _URL.match(text, start, start + MAX_URL_CHARS)
        if found is None:
            return self._not() if text.endswith("://") else _Not.THERE
        if found.end() == len(text) and not self._is_whole and found.end() < start + MAX_URL_CHARS:
            return _Not.YET
        address = _without_punctuation(found.group())
        return [Span(address, _both(style, LINK), address)], start + len(address)

    def _scheme(self, start: int) -> Literal[True] | _Not:
        """True if an address begins at `start`."""
        beginning = self._text[start : start + 8].lower()
        if beginning.startswith(_SCHEMES):
            return True
        if any(scheme.startswith(beginning) for scheme in _SCHEMES):
            return self._not()
        return _Not.THERE

    def _not(self, since: int | None = None, limit: int = MAX_HELD_CHARS) -> _Not:
        """What it means that something is not found in what is held `since`."""
        is_over = self._is_whole or (since is not None and len(self._text) - since >= limit)
        return _Not.THERE if is_over else _Not.YET

    def _run_end(self, start: int) -> int | None:
        """Behind the signs like the one at `start`, `MAX_HELD_CHARS` at most; None if more may come."""
        limit = start + MAX_HELD_CHARS
        found = _RUN.match(self._text, start, limit)
        assert found is not None  # there is one sign
        is_open = found.end() == len(self._text) < limit and not self._is_whole
        return None if is_open else found.end()

    def _char_before(self, position: int) -> str:
        return self._text[position - 1] if position else self._first

    def _is_within_word(self, start: int, end: int) -> bool:
        return _is_of_word(self._char_before(start)) and _is_of_word(self._text[end : end + 1])


def _is_of_word(char: str) -> bool:
    return char.isalnum() and char < _FIRST_WIDE


def _both(style: str, other: str) -> str:
    return f"{style} {other}".strip()


def _without_punctuation(address: str) -> str:
    while address:
        last = address[-1]
        if last in ".,;:!?*_~$" or (last in ")]" and address.count(last) > address.count(_OPENING[last])):
            address = address[:-1]
        else:
            break
    return address


_OPENING = {")": "(", "]": "["}
