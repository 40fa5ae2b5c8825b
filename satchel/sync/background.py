"""Syncs beside a chat: asked for after a turn, and told of before the next.

Knows nothing of how a sync is done, of the talk that goes on meanwhile, or of the terminal.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import TYPE_CHECKING

from satchel.config.waits import POLL_S
from satchel.errors import NetworkError, SatchelError, fault_of
from satchel.remotes.remote import TransientError
from satchel.sync.report import Fork, SyncReport

if TYPE_CHECKING:  # it brings cryptography, which a chat need not wait for
    from satchel.sync.syncer import Syncer

_OBJECT = re.compile("[0-9a-f]{8,}")


class BackgroundSync:
    """One thread that syncs when it is asked to. Nothing that goes wrong there is raised here.

    What is asked for while a sync runs is one further sync.
    """

    def __init__(self, open_syncer: Callable[[], Syncer], now: Callable[[], datetime] = datetime.now) -> None:
        """`open_syncer` is called in the thread, when the first sync is due and after most failures."""
        self._open_syncer = open_syncer
        self._now = now
        self._syncer: Syncer | None = None  # the thread's alone
        self._changed = threading.Condition()  # guards all below
        self._thread: threading.Thread | None = None
        self._first = ""  # the id of the session to begin with
        self._wanted = self._running = False
        self._waiting: list[Future[SyncReport]] = []
        self._lines: list[str] = []
        self._forks: list[Fork] = []
        self._failing: str | None = None  # what lasts, and was told
        self._faults: Sequence[str] = ()  # likewise
        self._state = "not synced yet"

    def request(self, session_id: str) -> None:
        """Have all be synced, beginning with this session; returns at once.

        Sessions from elsewhere get their words, and their state when they are resumed.
        """
        self._want(session_id)

    def start(self, session_id: str) -> Future[SyncReport]:
        """As `request`, with the state of all, and with an outcome to wait for in place of lines to take.

        Cancelling it does not end the sync, but the interest in it. What it raises is a SatchelError.
        """
        outcome: Future[SyncReport] = Future()
        self._want(session_id, outcome)
        return outcome

    def take_lines(self) -> list[str]:
        """The lines for the user that nobody has taken yet.

        A failure is one line when it begins, and one when it is over.
        """
        with self._changed:
            taken, self._lines = self._lines, []
        return taken

    def take_forks(self) -> list[Fork]:
        """The sessions that went another way elsewhere, which nobody has taken yet."""
        with self._changed:
            taken, self._forks = self._forks, []
        return taken

    @property
    def state(self) -> str:
        """How it stands: `syncing`, `synced 12:03`, `not reachable`, …"""
        with self._changed:
            return "syncing" if self._running or self._wanted else self._state

    def finish(self, timeout_s: float | None) -> bool:
        """Wait for what runs and what was asked for, for `timeout_s` at most; whether that is over.

        Raises:
            KeyboardInterrupt: Ctrl-C; what was not sent is sent by the next sync.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while self._running or self._wanted:
                left_s = POLL_S if deadline_s is None else deadline_s - time.monotonic()
                if left_s <= 0:
                    return False
                self._changed.wait(min(left_s, POLL_S))
        return True

    def _want(self, first: str, *waiting: Future[SyncReport]) -> None:
        with self._changed:
            self._first, self._wanted = first, True
            self._waiting += waiting
            if self._thread is None:
                # Leaving must not wait for it: what a kill leaves undone the next sync does.
                thread = threading.Thread(target=self._serve, name="sync", daemon=True)
                try:
                    thread.start()
                except RuntimeError as err:
                    refused = SatchelError(f"the system refuses a thread: {err}")
                    self._end(SyncReport(), refused, self._take_wish()[1])
                    return
                self._thread = thread
            self._changed.notify_all()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted)
                first, waiting = self._take_wish()
                self._running = True
            report = SyncReport()
            error = self._sync(report, first, fetch_state=bool(waiting))
            with self._changed:
                self._running = False
                self._end(report, error, waiting)
                self._changed.notify_all()

    def _take_wish(self) -> tuple[str, list[Future[SyncReport]]]:
        waiting, self._waiting = self._waiting, []
        self._wanted = False
        return self._first, waiting

    def _sync(self, report: SyncReport, first: str, fetch_state: bool) -> SatchelError | None:
        """Fill the report; what went wrong, if anything did."""
        try:
            if self._syncer is None:
                self._syncer = self._open_syncer()
            self._syncer.sync(first=first or None, fetch_state=fetch_state, report=report)
        except Exception as err:  # noqa: BLE001  a fault of any kind must not end the talk; it is told
            if not isinstance(err, TransientError):
                self._syncer = None  # with other credentials, say, the next one may do better
            return as_error(err)
        return None

    def _end(
        self, report: SyncReport, error: SatchelError | None, waiting: Sequence[Future[SyncReport]]
    ) -> None:
        """Note how a sync went, and tell whoever waits for it; else it is told in lines.

        One that failed has done what its report says all the same, and nothing tells of it again.
        """
        told = False
        for each in waiting:
            if each.set_running_or_notify_cancel():
                told = True
                if error:
                    each.set_exception(error)
                else:
                    each.set_result(report)
        self._forks += report.forks
        lines: list[str] = []
        if error:
            self._lines += report.notices  # also where somebody waits: an error has no room for them
            failing = _kind(error)
            lines += [f"not synced: {error.one_line()}"] if failing != self._failing else []
            self._failing = failing
            self._state = "not reachable" if isinstance(error, NetworkError) else "not synced"
        else:
            lines += ["synced again"] if self._failing else []
            lines += [*report.notices, *(fault for fault in report.faults if fault not in self._faults)]
            self._failing, self._faults = None, tuple(report.faults)
            self._state = f"synced {self._now():%H:%M}"
        self._lines += [] if told else lines


def as_error(err: Exception) -> SatchelError:
    """What was raised as one line for the user. What we did not foresee says where, and not what it met."""
    if isinstance(err, SatchelError):
        return err
    if isinstance(err, OSError):
        return SatchelError(f"{type(err).__name__}: {err}")
    return fault_of(err)


def _kind(error: SatchelError) -> str:
    """Equal for failures that are one to the user, whichever object they met first."""
    text = "" if isinstance(error, TransientError) else _OBJECT.sub("", str(error))
    return f"{type(error).__name__} {text}"
