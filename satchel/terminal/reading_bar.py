"""A progress bar for the tokens that a model reads. Knows nothing of models."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

# Reading fewer tokens than this takes about a second at most, and gets no bar.
LONG_PREFILL_TOKENS = 256


class ReadingBar:
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
                _RateColumn(),
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


class _RateColumn(ProgressColumn):
    """Tokens a second, once that is known."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.0f}/s" if task.speed else "")
