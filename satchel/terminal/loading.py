"""Work in a thread beside a person who types: the model is loaded while the prompt is there already.

Knows nothing of what is loaded, or of the terminal.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

THREAD_END_S = 0.02

T = TypeVar("T")
Report = Callable[[str], None]


class Loading(Generic[T]):
    """What `work` makes, in a thread of its own. Leaving its `with` block never waits for the thread.

    Args:
        name: what is loaded, for the user.
        work: is given a function that takes a line about each slow step.
    """

    def __init__(self, name: str, work: Callable[[Report], T]) -> None:
        self.name, self._line = name, ""
        self._work = work
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        self._made: list[T] = []
        self._error: BaseException | None = None
        self._began_s = time.monotonic()

    def start(self) -> None:
        # Leaving must not wait for it: what it writes to disk is whole, or not there.
        thread = threading.Thread(target=self._run, name="loading", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system refuses a thread
            self._run()
        else:
            self._thread = thread

    @property
    def is_over(self) -> bool:
        """Whether there is a result, or an error."""
        return self._over.is_set()

    @property
    def label(self) -> str:
        """What goes on, in a few words."""
        return self._line or f"loading {self.name}"

    @property
    def seconds(self) -> float:
        """How long ago it was made."""
        return time.monotonic() - self._began_s

    def wait(self, seconds: float) -> bool:
        """Wait that long at most; whether it is over."""
        return self._over.wait(seconds)

    def result(self) -> T:
        """What was made; to be asked for once it is over.

        Raises:
            SatchelError: the work could not be done; likewise whatever else it raised.
        """
        if self._error:
            raise self._error
        return self._made[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process where the thread still runs: Python's own shutdown would pull MLX from under it."""
        if isinstance(error, OSError) and error.errno == errno.EIO:  # the terminal has gone
            _end_process(128 + signal.SIGHUP)  # nobody reads what would be said
        if not self.is_over:
            match error:
                case None | SystemExit(code=None):
                    _end_process(0)
                case SystemExit(code=int(code)):
                    _end_process(code)
                case KeyboardInterrupt():
                    _end_process(128 + signal.SIGINT)
        if self._thread:
            _wait_for_end(self._thread)

    def _run(self) -> None:
        try:
            self._made.append(self._work(self._note))
        except BaseException as err:  # noqa: BLE001  raised where the result is asked for
            self._error = err
        finally:
            self._over.set()

    def _note(self, line: str) -> None:
        self._line = line


def _wait_for_end(thread: threading.Thread) -> None:
    """Wait until the system's thread is over, too: MLX frees what is its own behind the end of Python's.

    For that it needs Python's lock, and a thread that asks for it during the shutdown is killed in a place
    where C++ aborts the process.
    """
    thread.join()
    time.sleep(THREAD_END_S)
    while Path(f"/proc/self/task/{thread.native_id}").exists():  # Linux says it
        time.sleep(THREAD_END_S)


def _end_process(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
