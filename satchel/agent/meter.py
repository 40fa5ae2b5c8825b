"""What a talk has cost: tokens, time, energy. Knows nothing of what was said."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from satchel.agent.energy import joules

if TYPE_CHECKING:  # the engine brings MLX
    from satchel.engine.generate import Stats

_JOULES_PER_WH = 3600


class Meter:
    """Adds up what the model's answers have cost since the meter was made.

    Args:
        energy: the joules used so far by this process, or None where nobody counts them.
    """

    def __init__(self, energy: Callable[[], float | None] = joules) -> None:
        self.answers = 0
        self.read_tokens = self.kept_tokens = self.written_tokens = 0
        self.prefill_s = self.decode_s = 0.0
        self._energy = energy
        self._joules_before = energy()

    def add(self, stats: Stats) -> None:
        """Count one answer, whatever it was for."""
        self.answers += 1
        self.read_tokens += stats.prompt_tokens
        self.kept_tokens += stats.reused_tokens
        self.written_tokens += stats.generated_tokens
        self.prefill_s += stats.first_token_s
        if stats.decode_tps > 0:  # over all tokens but the first, which comes with the prompt
            self.decode_s += (stats.generated_tokens - 1) / stats.decode_tps

    @property
    def joules(self) -> float | None:
        """What this process has used since the meter was made, pauses and all; None where it is not known."""
        now = self._energy()
        if now is None or self._joules_before is None:
            return None
        return max(0.0, now - self._joules_before)

    def lines(self) -> dict[str, str]:
        """Label to value, in the order to show them."""
        shown = {
            "answers": f"{self.answers:,}",
            "read": f"{_tokens(self.read_tokens)} in {_seconds(self.prefill_s)}",
            "kept": f"{_tokens(self.kept_tokens)} that were not read again",
            "written": f"{_tokens(self.written_tokens)} in {_seconds(self.decode_s)}",
        }
        used = self.joules
        if used is not None:
            shown["energy"] = f"{used:,.1f} J ({used / _JOULES_PER_WH:.4f} Wh), without the GPU's"
        return shown


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count:,} tokens"


def _seconds(seconds: float) -> str:
    """`4.2 s`, `3 min 5 s`, `2 h 10 min`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return "{} h {} min".format(*divmod(minutes, 60))
