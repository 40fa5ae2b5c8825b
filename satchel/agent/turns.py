"""How a session's context, its bytes and the model's speed developed, turn by turn: as text.

Knows nothing of where the figures are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from satchel.agent.charts import (
    ASCII_BEHIND,
    ASCII_WHOLE,
    BEHIND,
    BLOCKS,
    column_chart,
    merged,
    sparkline,
)
from satchel.config.units import size_text

if TYPE_CHECKING:
    from satchel.cache_store.figures import TurnFigures

LABEL_WIDTH = 9  # of a chart's scale
LEAST_COLUMNS = 10
CHART_ROWS = 4
SPARK_WIDTH = 24  # the newest turns that `/stats` shows


@dataclass(frozen=True, slots=True)
class Sums:
    """Of several turns: tokens and milliseconds."""

    turns: int
    read_tokens: int
    read_ms: int
    written_tokens: int
    write_ms: int
    prefill_tps: float
    decode_tps: float


def sums(figures: Sequence[TurnFigures]) -> Sums:
    """What the turns took together. A speed that no turn is known of is 0."""
    read, read_ms = sum(each.read_tokens for each in figures), sum(each.read_ms for each in figures)
    written, write_ms = sum(each.written_tokens for each in figures), sum(each.write_ms for each in figures)
    timed = [each for each in figures if each.write_ms]
    decoded = sum(each.written_tokens - 1 for each in timed)  # the first token comes with the prompt
    return Sums(
        turns=len(figures),
        read_tokens=read,
        read_ms=read_ms,
        written_tokens=written,
        write_ms=write_ms,
        prefill_tps=1000 * read / read_ms if read_ms else 0.0,
        decode_tps=1000 * decoded / write_ms if write_ms else 0.0,
    )


def charts(figures: Sequence[TurnFigures], width: int, blocks: bool = True) -> str:
    """Four charts below each other in `width` columns, a bar for each of `figures`, of which there is one."""
    total, last = sums(figures), figures[-1]
    front, back = (BLOCKS[-1], BEHIND) if blocks else (ASCII_WHOLE, ASCII_BEHIND)
    held, exact = size_text(last.held_bytes), size_text(last.exact_bytes)
    drawn = [
        *_chart(
            f"context: {last.tokens:,} tokens",
            [each.tokens for each in figures],
            lambda value: f"{value:,.0f}",
            width,
            blocks,
        ),
        *_chart(
            f"KV: {held} {front}, in 16 bits {exact} {back}",
            [each.held_bytes for each in figures],
            size_text,
            width,
            blocks,
            [each.exact_bytes for each in figures],
        ),
        *_chart(
            f"reading: {total.prefill_tps:,.0f} tokens/s over {total.read_tokens:,} tokens",
            [each.prefill_tps for each in figures],
            lambda value: f"{value:,.0f}/s",
            width,
            blocks,
        ),
        *_chart(
            f"writing: {total.decode_tps:,.1f} tokens/s over {total.written_tokens:,} tokens",
            [each.decode_tps for each in figures],
            lambda value: f"{value:,.1f}/s",
            width,
            blocks,
        ),
    ]
    first, newest = figures[0].turn, last.turn
    turns = f"turn {first}" if first == newest else f"turns {first} to {newest}"
    return "\n".join([*drawn, f"{'':{LABEL_WIDTH}}  {turns}"])


def sparklines(figures: Sequence[TurnFigures], blocks: bool = True) -> dict[str, str]:
    """Label to a small chart of the newest turns with the values of the first and the last of them."""
    shown = figures[-SPARK_WIDTH:]

    def row(values: Sequence[float], digits: int, unit: str) -> str:
        ends = f"{values[0]:,.{digits}f} to {values[-1]:,.{digits}f} {unit}"
        return f"{sparkline(values, SPARK_WIDTH, blocks)}  {ends}"

    return {
        "context, by turn": row([each.tokens for each in shown], 0, "tokens"),
        "KV state, by turn": row([each.held_bytes / 1e6 for each in shown], 1, "MB"),
        "reading, by turn": row([each.prefill_tps for each in shown], 0, "tokens/s"),
        "writing, by turn": row([each.decode_tps for each in shown], 1, "tokens/s"),
    }


def _chart(
    title: str,
    values: Sequence[float],
    text: Callable[[float], str],
    width: int,
    blocks: bool,
    behind: Sequence[float] = (),
) -> list[str]:
    """A title and a chart with its scale, the least 0."""
    columns = max(LEAST_COLUMNS, width - LABEL_WIDTH - 2)
    values, behind = merged(values, columns), merged(behind, columns)
    lines = column_chart(values, columns, CHART_ROWS, behind=behind, blocks=blocks)
    scale = [text(max([*values, *behind])), *[""] * (CHART_ROWS - 2), "0"]
    edge = "│" if blocks else "|"
    return [
        title,
        *(f"{label:>{LABEL_WIDTH}} {edge}{line}" for label, line in zip(scale, lines, strict=True)),
    ]
