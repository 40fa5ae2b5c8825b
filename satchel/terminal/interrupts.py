"""What Ctrl-C does while something runs. Knows nothing of what runs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupt_sets(cancel: threading.Event) -> Iterator[None]:
    """Ctrl-C sets `cancel` instead of raising: an answer ends at a token, never in the middle of a save."""

    def on_interrupt(signum: int, frame: FrameType | None) -> None:
        cancel.set()

    previous = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
