"""A progress bar for what goes to and comes from a remote. Knows nothing of remotes, or of what is sent."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Column

from satchel.terminal.sanitize import sanitize_line

if TYPE_CHECKING:
    from satchel.sync.syncer import Progress as Transferred

# What is smaller and over sooner than this is not worth a bar that appears and goes.
LARGE_BYTES = 4_000_000
LONG_S = 0.5

LABEL_WIDTH = 32  # of the verb and the session's name, on the screen


class TransferBar:
    """A bar with bytes, rate and time left on a terminal at standard error, and nothing anywhere else.

    As a context manager it gives what a `Syncer` takes as its `progress`, which may be called from several
    threads. The bar comes with the first long transfer and is gone when the block ends, so that lines that
    are printed after it stand where it stood.
    """

    def __init__(self, err: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = Console(file=err or sys.stderr, highlight=False)
        # rich takes a pipe for a terminal where FORCE_COLOR is set.
        self._shown = self._console.is_interactive and self._console.file.isatty()
        self._clock = clock
        self._lock = threading.Lock()
        self._bar: Progress | None = None
        self._label = ""

    def __enter__(self) -> Callable[[Transferred], None]:
        self._started_s = self._clock()
        return self._show

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if self._bar is not None:
                self._bar.stop()
                self._bar = None

    def _show(self, now: Transferred) -> None:
        with self._lock:
            label = sanitize_line(f"{now.verb} {now.name}")
            if self._bar is None:
                if not self._is_worth_it(now):
                    return
                self._bar = _make_bar(self._console)
                self._task = self._bar.add_task(label, total=now.total_bytes)
                self._bar.start()
            elif label != self._label:
                # Another session starts from nothing: so do the rate and the time left.
                self._bar.reset(self._task, total=now.total_bytes, description=label)
            self._label = label
            self._bar.update(self._task, completed=now.done_bytes, total=now.total_bytes)

    def _is_worth_it(self, now: Transferred) -> bool:
        if not self._shown or now.done_bytes >= now.total_bytes:
            return False
        return now.total_bytes > LARGE_BYTES or self._clock() - self._started_s > LONG_S


def _make_bar(console: Console) -> Progress:
    label = Column(no_wrap=True, overflow="ellipsis", max_width=LABEL_WIDTH)
    return Progress(
        TextColumn("{task.description}", markup=False, table_column=label),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        expand=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
