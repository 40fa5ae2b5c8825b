"""Writes events, output and notices: answers to standard output, everything else to standard error.

The only module that imports rich. What is written is sanitized and only ever appended, so that a
finished line is never drawn again. Knows nothing of sessions or models.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from satchel.agent.events import Event, Notice, PrefillProgress, TextDelta, TurnDone
from satchel.terminal.sanitize import Sanitizer, sanitize, sanitize_line

if TYPE_CHECKING:
    from satchel.engine.generate import Stats

# Reading fewer tokens than this takes about a second at most, and gets no progress bar.
LONG_PREFILL_TOKENS = 256


class Renderer:
    """Draws one conversation on two streams; on a terminal, with a line of figures after each answer."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") in ("dumb", "unknown")
        self._console = Console(
            file=err or sys.stderr, color_system=None if plain else "auto", highlight=False
        )
        self._interactive = self._out.isatty() and self._console.is_terminal
        self._line_open = False

    def turn(self, events: Iterable[Event]) -> None:
        """Draw a turn as it runs."""
        sanitizer = Sanitizer()
        bar = _PrefillBar(self._console)
        try:
            for event in events:
                if not isinstance(event, PrefillProgress):
                    bar.stop()
                match event:
                    case PrefillProgress(done, total):
                        bar.update(done, total)
                    case TextDelta(text):
                        self._write(sanitizer.feed(text))
                    case Notice(text):
                        self.notice(text)
                    case TurnDone(stop_reason, stats):
                        self._end_line()
                        if self._interactive:
                            self.notice(_figures(stop_reason, stats))
        finally:
            bar.stop()
            self._end_line()

    def output(self, text: str) -> None:
        """What the user asked to see, on standard output."""
        self._write(sanitize(text).rstrip("\n") + "\n")

    def notice(self, text: str) -> None:
        """A line about what happened, on standard error."""
        self._say(text, style="dim")

    def error(self, text: str) -> None:
        """A line about what went wrong, on standard error."""
        self._say(f"satchel: {text}", style="")

    def _say(self, text: str, style: str) -> None:
        self._end_line()
        self._console.print(sanitize_line(text), style=style, markup=False, emoji=False, soft_wrap=True)

    def _end_line(self) -> None:
        if self._line_open:
            self._write("\n")

    def _write(self, text: str) -> None:
        if text:
            self._out.write(text)
            self._out.flush()
            self._line_open = not text.endswith("\n")


class _PrefillBar:
    """A bar for a long prefill on a terminal, gone when it is over."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None

    def update(self, done: int, total: int) -> None:
        if self._progress is None:
            if total <= LONG_PREFILL_TOKENS or done >= total or not self._console.is_terminal:
                return
            self._progress = Progress(
                TextColumn("reading"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("tokens"),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._task = self._progress.add_task("", total=total)
            self._progress.start()
        self._progress.update(self._task, completed=done)

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def _figures(stop_reason: str, stats: Stats) -> str:
    ending = {"cancelled": "stopped · ", "length": "cut at --max-tokens · "}.get(stop_reason, "")
    return (
        f"{ending}{stats.generated_tokens} tokens at {stats.decode_tps:.1f}/s"
        f" · {stats.prompt_tokens} read, {stats.reused_tokens} kept"
    )
