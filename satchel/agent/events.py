"""What a turn yields while it runs. The terminal layer renders these; nothing here knows how."""

from __future__ import annotations

from dataclasses import dataclass


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
class TurnStats:
    """Counts in tokens, speeds in tokens a second, memory in bytes."""

    prompt_tokens: int
    reused_tokens: int
    generated_tokens: int
    prefill_tps: float
    decode_tps: float
    first_token_s: float
    peak_memory_bytes: int


@dataclass(frozen=True, slots=True)
class TurnDone:
    """The turn is over; `stop_reason` is "stop", "length" or "cancelled"."""

    stop_reason: str
    stats: TurnStats


Event = PrefillProgress | TextDelta | Notice | TurnDone
