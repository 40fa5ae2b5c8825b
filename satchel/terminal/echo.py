"""What the terminal does with what is typed while no prompt reads it. Knows nothing of what goes on then."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from satchel.terminal.manner import is_dumb

_LOCAL = 3  # where `termios.tcgetattr` has the local modes


@contextmanager
def no_echo() -> Iterator[None]:
    """What is typed is not written into what is being drawn; it waits to be read.

    The modes are put back at the end, and while the process is stopped (Ctrl-Z).
    """
    with _local_modes(off=termios.ECHO, on=0):
        yield


def take_echo_back() -> None:
    """Clear the line, on standard output, into which the terminal has written what was typed so far.

    That waits to be read, and will be drawn then.
    """
    if _is_ours() and _keys_wait():
        sys.stdout.write("\n" if is_dumb() else "\r\x1b[K")
        sys.stdout.flush()


@contextmanager
def echo() -> Iterator[None]:
    """What is typed is shown, whatever is so around this."""
    with _local_modes(off=0, on=termios.ECHO):
        yield


@contextmanager
def lines_unfinished() -> Iterator[None]:
    """What is typed can be read before Enter ends its line."""
    with _local_modes(off=termios.ICANON, on=0):
        yield


def _keys_wait() -> bool:
    with contextlib.suppress(termios.error), lines_unfinished():
        return bool(select.select([sys.stdin], [], [], 0)[0])
    return False


@contextmanager
def _local_modes(off: int, on: int) -> Iterator[None]:
    """The terminal at standard input with these local modes; where there is none, nothing happens."""
    if not _is_ours():
        yield
        return
    before = termios.tcgetattr(sys.stdin)

    def change() -> None:
        with contextlib.suppress(termios.error):  # a terminal that has gone wakes the process, too
            modes = termios.tcgetattr(sys.stdin)
            modes[_LOCAL] = modes[_LOCAL] & ~off | on
            _set(modes)

    def stop(number: int, frame: FrameType | None) -> None:
        _set(before)
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)  # returns when the process goes on
        signal.signal(signal.SIGTSTP, stop)

    def go_on(number: int, frame: FrameType | None) -> None:
        change()

    wanted = {signal.SIGTSTP: stop, signal.SIGCONT: go_on}
    handlers = {each: wanted[each] for each in wanted if signal.getsignal(each) is not signal.SIG_IGN}
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        change()
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        _set(before)


def _set(modes: list[int | list[bytes | int]]) -> None:
    """Nothing is set where another job has the terminal: the system would stop this one for it."""
    if _is_ours():
        with contextlib.suppress(termios.error):  # it has gone
            termios.tcsetattr(sys.stdin, termios.TCSANOW, modes)


def _is_ours() -> bool:
    """Whether standard input is a terminal, and this process in its foreground."""
    try:
        return sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False
