"""What Ctrl-C and Ctrl-D do: while something runs, and at a prompt. Knows nothing of what runs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
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


def message_or_leave(
    read: Callable[[], str], may_leave: Callable[[], bool], notice: Callable[[str], None]
) -> str | None:
    """What `read` returns; None where Ctrl-D, or Ctrl-C twice, leaves, and `may_leave` agrees."""
    leaving = False
    while True:
        try:
            return read()
        except EOFError:
            if may_leave():
                return None
        except KeyboardInterrupt:
            if leaving and may_leave():
                return None
            leaving = True
            notice("Ctrl-C again or Ctrl-D leaves")
