"""A bar for the tokens that a model reads, and for its silent work, which nobody says the end of.

Knows nothing of models.
"""

from __future__ import annotations

from rich.console import Console

from satchel.terminal.progress import Bar, progress_bar


class ReadingBar:
    """A bar for a long prefill, or the seconds of other work, on a terminal, until `stop`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Bar | None = None
        self._reads = False

    def update(self, done: int, total: int) -> None:
        """So many tokens of `total` are read."""
        if not self._reads:
            if done >= total:
                return
            self.stop()
            self._bar = progress_bar("reading", total, "tokens", self._console).__enter__()
            self._reads = True
        if self._bar is not None:
            self._bar.update(done, total)

    def work(self, text: str) -> None:
        """What `text` says has begun."""
        self.stop()
        self._bar = progress_bar(text, console=self._console).__enter__()

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
            self._bar = None
        self._reads = False
