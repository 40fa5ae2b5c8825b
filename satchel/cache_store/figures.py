"""What each turn of a session took: a record that is kept with its words.

Knows nothing of how it is measured or shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Annotated

from pydantic import Field

from satchel.cache_store.record import Record

MAX_FIGURES = 512  # turns of one session, the newest

Count = Annotated[int, Field(ge=0, lt=1 << 53)]


class TurnFigures(Record):
    """One answer of the model.

    Attributes:
        turn: the number of the question that it answers, from 1.
        tokens: in the context after it.
        held_bytes: of the KV state then, in memory.
        exact_bytes: of the same keys and values with 16 bits each.
        read_tokens: of the prompt, without those that were kept from before.
        read_ms: from the turn's beginning to the answer's first token.
        written_tokens: of the answer.
        write_ms: from its first token to its last.
    """

    turn: Annotated[int, Field(ge=1, lt=1 << 53)]
    tokens: Count
    held_bytes: Count
    exact_bytes: Count
    read_tokens: Count
    read_ms: Count
    written_tokens: Count
    write_ms: Count

    @property
    def prefill_tps(self) -> float:
        """Tokens read in a second; 0 where that is not known."""
        return 1000 * self.read_tokens / self.read_ms if self.read_ms else 0.0

    @property
    def decode_tps(self) -> float:
        """Tokens written in a second; 0 where that is not known. The first one came with the prompt."""
        return 1000 * max(0, self.written_tokens - 1) / self.write_ms if self.write_ms else 0.0


def figures_until(figures: Iterable[TurnFigures], turns: int) -> tuple[TurnFigures, ...]:
    """Those of the first `turns` turns, and of these the newest that are kept."""
    return tuple(each for each in figures if each.turn <= turns)[-MAX_FIGURES:]


def check_figures(figures: Sequence[TurnFigures], turns: int) -> None:
    """
    Raises:
        ValueError: they are not those of a transcript with `turns` questions, in their order.
    """
    if any(after.turn <= before.turn for before, after in pairwise(figures)):
        raise ValueError("figures that are not in the order of the turns")
    if figures and figures[-1].turn > turns:
        raise ValueError(f"figures of turn {figures[-1].turn}, and there are {turns}")
