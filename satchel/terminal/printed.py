"""Fits lines that were laid out for a wide window into a narrower one. Knows nothing of what they say."""

from __future__ import annotations

import re
from collections.abc import Iterator

from satchel.terminal.flow import wrapped
from satchel.terminal.pen import Span, text_columns

_COLUMNS = re.compile(r"(\s*\S.*?\s{2,})\S")
_URL = re.compile(r"https?://[^\s<>\"]+[^\s<>\".,;:!?)\]]")


def fitted(text: str, columns: int) -> str:
    """`text` with its lines of two columns wrapped within the second one. Other lines are not touched.

    Where the second column would get less than half of the window, it goes below the first: in all lines of
    the same layout, or in none.
    """
    lines = text.split("\n")
    parts = [_COLUMNS.match(line) for line in lines]
    below = {
        text_columns(part.group(1))
        for line, part in zip(lines, parts, strict=True)
        if part and text_columns(line) > columns and text_columns(part.group(1)) > columns // 2
    }
    return "\n".join(
        piece
        for line, part in zip(lines, parts, strict=True)
        for piece in (_fitted_line(line, part.group(1), below, columns) if part else [line])
    )


def linked(text: str, style: str = "") -> Iterator[Span]:
    """`text`, with the addresses in it as links."""
    position = 0
    for found in _URL.finditer(text):
        yield Span(text[position : found.start()], style)
        yield Span(found.group(), style, found.group())
        position = found.end()
    yield Span(text[position:], style)


def _fitted_line(line: str, label: str, below: set[int], columns: int) -> Iterator[str]:
    """`line`, which begins with `label`, as several. Labels as wide as those in `below` stand alone."""
    indent = text_columns(label)
    first = label
    if indent in below:
        yield label.rstrip(" ")
        indent = len(label) - len(label.lstrip(" ")) + 2
        first = " " * indent
    elif text_columns(line) <= columns:
        yield line
        return
    for part in wrapped([Span(line[len(label) :])], columns - indent):
        yield first + "".join(span.text for span in part)
        first = " " * indent
