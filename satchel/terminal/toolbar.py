"""The line below the prompt: what is talked with, how full the context is, how fast it goes.

Knows nothing of sessions: whoever does gives the figures. Costs nothing at a key press.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prompt_toolkit.application import get_app
from prompt_toolkit.utils import get_cwidth

from satchel.config.units import size_text
from satchel.terminal.sanitize import sanitize_line

SEPARATOR = " · "


@dataclass(frozen=True, slots=True)
class Figures:
    """How a talk stands.

    Attributes:
        tokens: in the context, or those that will be; 0 where that is not known.
        is_read: whether the model has read what was said.
        held_bytes: of the KV state; `fp16_bytes` is what it would take in 16 bits. 0 where it is not known.
        decode_tps: of the last answer; 0 where it is not known.
    """

    model: str
    kv_profile: str
    tokens: int
    context_length: int
    held_bytes: int = 0
    fp16_bytes: int = 0
    decode_tps: float = 0.0
    is_read: bool = True


class Toolbar:
    """What prompt_toolkit draws below the prompt; the figures are those of the last `refresh`.

    Args:
        loading: what is said while nothing is there that has figures.
    """

    def __init__(self, loading: Callable[[], str]) -> None:
        self._loading = loading
        self._figures: Callable[[], Figures] | None = None
        self._sync: Callable[[], str] = str
        self._parts: list[str] = []

    def watch(self, figures: Callable[[], Figures], sync: Callable[[], str]) -> None:
        """Show these figures from now on. `sync` is asked each time that the line is drawn."""
        self._figures, self._sync = figures, sync
        self.refresh()

    def refresh(self) -> None:
        """Take the figures as they are now."""
        if self._figures:
            self._parts = parts_of(self._figures())

    def __call__(self) -> str:
        """One line that fits the terminal."""
        parts = [*self._parts, self._sync()] if self._figures else [f"{self._loading()}…"]
        return fitted(parts, get_app().output.get_size().columns)


def parts_of(figures: Figures) -> list[str]:
    """What the line says, from the most to the least important."""
    share = 100 * figures.tokens / figures.context_length
    context = f"{figures.tokens:,}/{figures.context_length:,} ({share:.0f} %)"
    parts = [figures.model, figures.kv_profile]
    if figures.is_read:
        parts.append(context)
    else:
        parts.append(f"{context}, not read yet" if figures.tokens else "not read yet")
    if figures.held_bytes:
        parts.append(f"{size_text(figures.held_bytes)} (fp16 {size_text(figures.fp16_bytes)})")
    if figures.decode_tps:
        parts.append(f"{figures.decode_tps:.1f} tokens/s")
    return parts


def fitted(parts: list[str], columns: int) -> str:
    """As many of `parts`, from the left, as fit into the columns, the first one cut if need be."""
    line = ""
    for part in filter(None, map(sanitize_line, parts)):
        longer = f"{line}{SEPARATOR}{part}" if line else part
        if line and get_cwidth(longer) >= columns:
            break
        line = longer
    while get_cwidth(line) >= max(columns, 2):
        line = f"{line[:-2]}…"
    return line
