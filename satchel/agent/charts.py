"""Charts of block characters, or of ASCII where these cannot be shown. Knows nothing of what they show."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import TextIO

BLOCKS = " ▁▂▃▄▅▆▇█"
EIGHTHS = len(BLOCKS) - 1  # of a character's height
BEHIND = "░"
ASCII_PART, ASCII_WHOLE, ASCII_BEHIND = ".", "#", ":"
MAX_BAR = 5  # columns of one bar


def takes_blocks(out: TextIO) -> bool:
    """Whether `out` can show block characters."""
    encoding = (getattr(out, "encoding", None) or "").lower().replace("-", "")
    return encoding.startswith("utf") and os.environ.get("TERM") not in ("dumb", "unknown")


def sparkline(values: Sequence[float], width: int, blocks: bool = True) -> str:
    """One line, a character for each value, or for the mean of several where there are more than `width`."""
    return column_chart(values, width, 1, blocks=blocks, bar=1)[0]


def column_chart(
    values: Sequence[float],
    width: int,
    height: int,
    *,
    behind: Sequence[float] = (),
    blocks: bool = True,
    bar: int = MAX_BAR,
) -> list[str]:
    """`height` lines with a bar for each value: from 0 at the bottom to the largest of all at the top.

    Of more values than columns, neighbours share a bar of their mean. What is above 0 has something to see.

    Args:
        behind: as many larger values, whose bars are drawn fainter behind the others.
        bar: columns of one bar, at most.
    """
    front, back = merged(values, width), merged(behind, width)
    top = max([*front, *back], default=0.0)
    each = min(bar, width // max(1, len(front)))
    # A bar that is wide enough stands apart from the next one.
    cells, gap = (each - 1, 1) if each > 2 else (max(1, each), 0)
    lines = []
    for row in reversed(range(height)):
        line = ""
        for place, value in enumerate(front):
            char = _cell(value, top, height, row, blocks)
            if char == " " and back and _eighths(back[place], top, height, row) >= EIGHTHS // 2:
                char = BEHIND if blocks else ASCII_BEHIND
            line += char * cells + " " * gap
        lines.append(line.rstrip())
    return lines


def merged(values: Sequence[float], width: int) -> list[float]:
    """At most `width` values, each the mean of as many neighbours, give or take one."""
    count = min(len(values), max(1, width))
    bounds = [len(values) * place // count for place in range(count + 1)] if count else [0]
    parts = [values[start:stop] for start, stop in pairwise(bounds)]
    return [sum(part) / len(part) for part in parts]


def _eighths(value: float, top: float, height: int, row: int) -> int:
    """How much of row `row`, from 0 at the bottom, the bar of `value` fills."""
    if value <= 0 or top <= 0:
        return 0
    whole = max(1, round(value / top * height * EIGHTHS))
    return min(max(whole - row * EIGHTHS, 0), EIGHTHS)


def _cell(value: float, top: float, height: int, row: int, blocks: bool) -> str:
    filled = _eighths(value, top, height, row)
    if blocks:
        return BLOCKS[filled]
    if filled >= EIGHTHS // 2:
        return ASCII_WHOLE
    return ASCII_PART if filled and row == 0 else " "
