"""Text that is broken into lines of the window's width while it comes. Knows nothing of markup.

Only what is complete is written: a word once it is known where it ends. So nothing that was written has to be
taken back, and how the text was cut into pieces on its way changes nothing.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from satchel.terminal.pen import Pen, Span, graphemes, text_columns

MAX_WORD_CHARS = 1000  # of a word that is waited for to end
TAB = "    "
_BLANKS = frozenset(" \t")

# What stays with the character before it, or behind it, in scripts that break anywhere.
_STAYS_BEHIND = frozenset(
    "!%),.:;?]}…”’»¢°′″‰℃、。〉》」』】〕〗〞︶﹐﹑﹒﹔﹕﹖﹗！％），．：；？］｝～ーぁぃぅぇぉっゃゅょゎァィゥェォッャュョヮヵヶ々・"
)
_STAYS_BEFORE = frozenset("#$(@[{£¥“‘«〈《「『【〔〖〝︵＃＄（＠［｛￡￥")


class Cell(NamedTuple):
    """A character as a person sees it, and the columns it takes."""

    text: str
    columns: int
    style: str
    url: str


@dataclass(slots=True)
class Word:
    """What is not to be broken, with the spaces before it."""

    gap: list[Cell] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)

    @property
    def columns(self) -> int:
        return sum(cell.columns for cell in self.cells)

    @property
    def gap_columns(self) -> int:
        return sum(cell.columns for cell in self.gap)


class Words:
    """Takes text in pieces and gives the words in it."""

    def __init__(self) -> None:
        self._word = Word()
        self._rest = Span("")  # its last character may go on

    def feed(self, span: Span) -> Iterator[Word]:
        if (span.style, span.url) == (self._rest.style, self._rest.url):
            span = Span(self._rest.text + span.text, span.style, span.url)
        else:
            yield from self._all(self._rest)
        *whole, last = list(_parted(span.text)) or [("", 0)]
        if last[0] in _BLANKS:
            whole, last = [*whole, last], ("", 0)
        self._rest = Span(last[0], span.style, span.url)
        for text, columns in whole:
            yield from self._take(Cell(text, columns, span.style, span.url))

    def end(self) -> Iterator[Word]:
        """The last word, as far as it is known. Spaces behind it go on before what follows."""
        yield from self._all(self._rest)
        self._rest = Span("")
        if self._word.cells:
            yield self._word
            self._word = Word()

    def _all(self, span: Span) -> Iterator[Word]:
        for text, columns in _parted(span.text):
            yield from self._take(Cell(text, columns, span.style, span.url))

    def _take(self, cell: Cell) -> Iterator[Word]:
        word = self._word
        if cell.text in _BLANKS:
            if word.cells:
                yield word
                self._word = word = Word()
            text = TAB if cell.text == "\t" else " "
            word.gap.append(Cell(text, len(text), cell.style, cell.url))
            return
        is_too_long = len(word.cells) >= MAX_WORD_CHARS and not cell.url
        if word.cells and (is_too_long or _parts(word.cells[-1], cell)):
            yield word
            self._word = word = Word()
        word.cells.append(cell)


class Flow:
    """A paragraph on its way to the window, which may change its width meanwhile."""

    def __init__(self, pen: Pen, first: Sequence[Span] = (), rest: Sequence[Span] = ()) -> None:
        """`first` stands before the first line, `rest` before all others."""
        self._pen = pen
        self._before, self._rest = list(first), list(rest)
        self._words = Words()
        self._column = 0  # of the window; 0 if nothing stands in the line
        self._is_empty = True  # nothing stands in the line but what is before it

    def feed(self, spans: Iterable[Span]) -> None:
        ready = [word for span in spans for word in self._words.feed(span)]
        self._write(ready)

    def end(self, spans: Iterable[Span] = ()) -> None:
        """Write the last `spans` and what is left, and end the line; also one with nothing in it."""
        ready = [word for span in spans for word in self._words.feed(span)]
        self._write([*ready, *self._words.end()])
        if self._column == 0:
            self._pen.write(_without_end(self._before))
        self._new_line()

    def settle(self) -> None:
        """Write what is known and end the line, so that somebody else can write; it goes on in a new one."""
        self._write(list(self._words.end()))
        if self._column:
            self._new_line()

    def _write(self, words: Sequence[Word]) -> None:
        """All of them at once."""
        out: list[Span] = []
        limit = self._pen.columns
        for word in words:
            self._place(word, limit, out)
        self._pen.write(out)

    def _place(self, word: Word, limit: int, out: list[Span]) -> None:
        columns = word.columns
        if not self._is_empty and self._column + word.gap_columns + columns > limit:
            out.append(Span("\n"))
            self._column, self._is_empty, self._before = 0, True, self._rest
        if self._column == 0:
            before = narrowed(self._before, limit)
            out += before
            self._column = sum(text_columns(span.text) for span in before)
        if not self._is_empty:
            out += _spans(word.gap)
            self._column += word.gap_columns
        self._is_empty = False
        if self._column + columns <= limit:
            out += _spans(word.cells)
            self._column += columns
        elif any(cell.url for cell in word.cells):
            out += _spans(word.cells)  # the terminal breaks it, and takes it for one line when it is copied
            self._column = (self._column + columns) % limit or limit
        else:
            self._place_broken(word.cells, limit, out)

    def _place_broken(self, cells: Sequence[Cell], limit: int, out: list[Span]) -> None:
        before = narrowed(self._rest, limit)
        for cell in cells:
            if self._column + cell.columns > limit:
                out.append(Span("\n"))
                out += before
                self._column = sum(text_columns(span.text) for span in before)
            out.append(Span(cell.text, cell.style, cell.url))
            self._column += cell.columns

    def _new_line(self) -> None:
        self._pen.write((), "\n")
        self._column, self._is_empty, self._before = 0, True, self._rest


def wrapped(spans: Iterable[Span], columns: int) -> list[list[Span]]:
    """The lines of `spans`, none wider than `columns` unless a single character is."""
    words = Words()
    lines: list[list[Cell]] = [[]]
    used = 0
    for word in [*(word for span in spans for word in words.feed(span)), *words.end()]:
        if lines[-1] and used + word.gap_columns + word.columns > columns:
            lines.append([])
            used = 0
        elif lines[-1]:
            lines[-1] += word.gap
            used += word.gap_columns
        for cell in word.cells:
            if lines[-1] and used + cell.columns > columns:
                lines.append([])
                used = 0
            lines[-1].append(cell)
            used += cell.columns
    return [_spans(line) for line in lines]


def longest_word(spans: Iterable[Span]) -> int:
    """The columns of the widest word."""
    words = Words()
    every = [*(word for span in spans for word in words.feed(span)), *words.end()]
    return max((word.columns for word in every), default=0)


def _parted(text: str) -> Iterator[tuple[str, int]]:
    """The characters of `text` and their columns. A blank is one by itself, whatever combines with it."""
    for cluster, columns in graphemes(text):
        if len(cluster) > 1 and cluster[0] in _BLANKS:
            yield cluster[0], 1
            yield cluster[1:], text_columns(cluster[1:])
        else:
            yield cluster, columns


def _parts(before: Cell, after: Cell) -> bool:
    """Whether a line may break between the two: beside a wide character that nothing holds."""
    if before.columns < 2 and after.columns < 2:
        return False
    if before.url and after.url:
        return False
    if after.text[0] in _STAYS_BEHIND or before.text[0] in _STAYS_BEFORE:
        return False
    return not (_is_hangul(before.text[0]) and not after.text[0].isspace()) and not _is_hangul(after.text[0])


def _is_hangul(char: str) -> bool:
    """Whether it is of a script of wide characters that puts spaces between its words."""
    return char >= "\u1100" and unicodedata.name(char, "").startswith("HANGUL")


def _spans(cells: Iterable[Cell]) -> list[Span]:
    """`cells` as spans, neighbours of one kind joined."""
    spans: list[Span] = []
    run: list[str] = []
    kind = ("", "")
    for cell in cells:
        if (cell.style, cell.url) != kind:
            if run:
                spans.append(Span("".join(run), *kind))
            run, kind = [], (cell.style, cell.url)
        run.append(cell.text)
    if run:
        spans.append(Span("".join(run), *kind))
    return spans


def narrowed(spans: Sequence[Span], limit: int) -> list[Span]:
    """What stands before a line, made to leave at least half of the window: spaces at its left go first."""
    too_much = sum(text_columns(span.text) for span in spans) - limit // 2
    left: list[Span] = []
    for span in spans:
        blank = len(span.text) - len(span.text.lstrip(" ")) if too_much > 0 else 0
        cut = min(blank, max(too_much, 0))
        too_much -= cut
        left.append(Span(span.text[cut:], span.style, span.url))
    return left


def _without_end(spans: Sequence[Span]) -> list[Span]:
    """`spans` without the spaces at their end."""
    *others, last = list(spans) or [Span("")]
    stripped = last.text.rstrip(" ")
    if not stripped and others:
        return _without_end(others)
    return [*others, Span(stripped, last.style, last.url)]
