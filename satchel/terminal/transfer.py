"""A progress bar for what goes to and comes from a remote. Knows nothing of remotes, or of what is sent."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from rich.console import Console

from satchel.terminal.manner import is_plain
from satchel.terminal.progress import progress_bar

if TYPE_CHECKING:
    from satchel.sync.syncer import Progress as Transferred


class TransferBar:
    """A bar with bytes, rate and time left on a terminal at standard error, and nothing anywhere else.

    As a context manager it gives what a `Syncer` takes as its `progress`, which may be called from several
    threads.
    """

    def __init__(self, err: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        console = Console(
            file=err or sys.stderr, color_system=None if is_plain() else "auto", highlight=False
        )
        self._bar = progress_bar("", None, "bytes", console, clock)

    def __enter__(self) -> Callable[[Transferred], None]:
        self._bar.__enter__()
        return self._show

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.__exit__(kind, error, trace)

    def _show(self, now: Transferred) -> None:
        self._bar.update(now.done_bytes, now.total_bytes, f"{now.verb} {now.name}")
