"""What a turn yields while it runs. The terminal layer renders these; nothing here knows how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the engine brings MLX
    from satchel.engine.generate import Stats


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """Prompt tokens read so far in this turn, of `total`."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the model's answer, as the model wrote it (untrusted text)."""

    text: str


@dataclass(frozen=True, slots=True)
class Notice:
    """One line for the user about how the turn runs."""

    text: str


@dataclass(frozen=True, slots=True)
class TurnDone:
    """The turn is over; `stop_reason` is "stop", "length" or "cancelled"."""

    stop_reason: str
    stats: Stats


Event = PrefillProgress | TextDelta | Notice | TurnDone
