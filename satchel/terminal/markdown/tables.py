"""Tables: rows of cells, laid out to fit the window. Knows nothing of how the lines of a table come.

The widths of the columns are settled when the first rows are drawn, and hold for those that come later.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from satchel.terminal.flow import longest_word, wrapped
from satchel.terminal.markdown.inline import Marks, read_line
from satchel.terminal.pen import Span, text_columns

Align = Literal["left", "right", "center"]
Cell = list[list[Span]]  # the lines of a cell, as they were written

MIN_COLUMN = 6  # a table whose columns would be narrower is shown as a list
HEAD, LINE = "bold", "dim"
MAX_WORD_COLUMNS = 20  # that a column is kept wide enough for
MAX_COLUMNS = 100

_PIECE = re.compile(r"`+|[|\\]|[^`|\\]+")
_DIVIDER = re.compile(r"\s*:?-+:?\s*")
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)


def is_divider(line: str) -> bool:
    """Whether `line` is what stands between the head and the rows."""
    return "|" in line and all(map(_DIVIDER.fullmatch, _parts(line)))


class Table:
    """A table with its head, of which rows are drawn as they are known."""

    def __init__(self, head: str, divider: str, marks: Marks) -> None:
        self._marks = marks
        self._head = [_cell(part, marks, HEAD) for part in _parts(head)]
        self._aligns = [_align(part) for part in _parts(divider)]
        self._widths: list[int] = []
        self._is_list = False
        self._was_wrapped = False
        self._drawn_rows = 0

    def draw(self, lines: Sequence[str], columns: int, unicode: bool) -> Iterator[list[Span]]:
        """The lines to write for these rows, in a window of so many columns; first with the head."""
        rows = [[_cell(part, self._marks) for part in _parts(line)] for line in lines]
        bar, dash, cross = ("│", "─", "┼") if unicode else ("|", "-", "+")
        is_first = not self._widths
        if is_first:
            self._settle(rows, columns)
        if self._is_list:
            yield from self._as_list(rows, columns)
            return
        rule = [Span(f"{dash}{cross}{dash}".join(dash * width for width in self._widths), LINE)]
        if is_first:
            yield from self._row(self._head, bar)
            yield rule
        for row in rows:
            drawn = list(self._row(row, bar))
            # Where a row has several lines, it would not be seen where it ends.
            if self._drawn_rows and (len(drawn) > 1 or self._was_wrapped):
                yield rule
            self._was_wrapped = len(drawn) > 1
            self._drawn_rows += 1
            yield from drawn

    def _settle(self, rows: Sequence[Sequence[Cell]], columns: int) -> None:
        every: list[Sequence[Cell]] = [self._head, *rows]
        count = min(max(map(len, every)), MAX_COLUMNS)
        self._head += [[[]]] * (count - len(self._head))
        self._aligns += ["left"] * (count - len(self._aligns))
        wished, needed = [1] * count, [1] * count
        for row in every:
            for number, cell in enumerate(row[:count]):
                for line in cell:
                    wished[number] = max(wished[number], _columns(line))
                    needed[number] = max(needed[number], longest_word(line))
        needed = [min(need, MAX_WORD_COLUMNS) for need in needed]
        room = columns - 3 * (count - 1)
        self._widths = _shared(room, wished, needed)
        self._is_list = sum(self._widths) > room

    def _row(self, row: Sequence[Cell], bar: str) -> Iterator[list[Span]]:
        cells: list[list[list[Span]]] = [[[]] for _ in self._widths]
        for number, (cell, width) in enumerate(zip(row, self._widths, strict=False)):
            cells[number] = [part for line in cell for part in wrapped(line, width)]
        # More cells than the table has columns: what is in them is not to be lost.
        cells[-1] += [
            part
            for cell in row[len(self._widths) :]
            for line in cell
            for part in wrapped(line, self._widths[-1])
        ]
        for number in range(max(map(len, cells))):
            line: list[Span] = []
            for column, cell in enumerate(cells):
                if column:
                    line.append(Span(f" {bar} ", LINE))
                line += self._aligned(cell[number] if number < len(cell) else [], column)
            yield _without_end(line)

    def _aligned(self, spans: list[Span], column: int) -> list[Span]:
        room = max(self._widths[column] - _columns(spans), 0)
        before = {"left": 0, "right": room, "center": room // 2}[self._aligns[column]]
        return [Span(" " * before), *spans, Span(" " * (room - before))]

    def _as_list(self, rows: Sequence[Sequence[Cell]], columns: int) -> Iterator[list[Span]]:
        """Each cell below the other, with the head of its column before it."""
        for row in rows:
            if self._drawn_rows:
                yield []
            self._drawn_rows += 1
            for number, cell in enumerate(row):
                head = [
                    span for line in (self._head[number] if number < len(self._head) else []) for span in line
                ]
                label = [*head, Span(": ")] if head else []
                value = [span for line in cell for span in (*line, Span(" "))]
                for index, part in enumerate(wrapped([*label, *value], columns - 2)):
                    yield [Span("  "), *part] if index else part
        if not rows:
            yield [span for cell in self._head for line in cell for span in (*line, Span(" "))]


def _parts(line: str) -> list[str]:
    """The cells of a row. A bar in code, or behind a backslash, is none between cells."""
    pieces = _PIECE.findall(line.strip().removeprefix("|"))
    closing = _closing_code(pieces)
    parts, begin, position = [], 0, 0
    while position < len(pieces):
        if pieces[position] == "\\":
            position += 2  # it hides what follows
            continue
        if pieces[position] == "|":
            parts.append(pieces[begin:position])
            begin = position + 1
        position = closing.get(position, position) + 1
    if begin < len(pieces) or not parts:
        parts.append(pieces[begin:])
    return ["".join(part).strip().replace("\\|", "|") for part in parts]


def _closing_code(pieces: Sequence[str]) -> dict[int, int]:
    """Which of `pieces` ends the code that another one begins: the next as many backticks."""
    closing: dict[int, int] = {}
    later: dict[str, int] = {}
    for number in range(len(pieces) - 1, -1, -1):
        if (mark := pieces[number])[0] == "`":
            if mark in later:
                closing[number] = later[mark]
            later[mark] = number
    return closing


def _cell(text: str, marks: Marks, style: str = "") -> Cell:
    return [read_line(part.strip(), marks, style) for part in _BREAK.split(text)]


def _align(divider: str) -> Align:
    if divider.endswith(":"):
        return "center" if divider.startswith(":") else "right"
    return "left"


def _shared(room: int, wished: Sequence[int], needed: Sequence[int]) -> list[int]:
    """Widths that add up to `room` at most where that can be: the widest columns give first."""
    widths = [min(wish, max(room, 1)) for wish in wished]
    for least in (list(needed), [min(MIN_COLUMN, wish) for wish in wished]):
        for _ in range(sum(widths) - room):
            ample = [number for number, width in enumerate(widths) if width > least[number]]
            if not ample:
                break
            widths[max(ample, key=lambda number: widths[number])] -= 1
    return widths


def _columns(spans: Sequence[Span]) -> int:
    return sum(text_columns(span.text) for span in spans)


def _without_end(line: list[Span]) -> list[Span]:
    """`line` without blanks at its end."""
    while line and not line[-1].text.strip():
        line.pop()
    if line:
        last = line.pop()
        line.append(Span(last.text.rstrip(), last.style, last.url))
    return line
