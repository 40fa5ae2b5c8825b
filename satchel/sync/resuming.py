"""Brings a session up to date before it is resumed. Knows nothing of how that is done, or of the terminal."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from satchel.config.waits import POLL_S
from satchel.errors import DamagedError, NotFoundError, SatchelError
from satchel.remotes.remote import TransientError
from satchel.sync.background import as_error
from satchel.sync.report import SyncReport

if TYPE_CHECKING:
    from satchel.cache_store.local import LocalStore
    from satchel.cache_store.manifest import Head
    from satchel.sync.syncer import Syncer
    from satchel.sync.transfer import Progress

Show = Callable[["Progress"], None]

PATIENCE_S = 5.0


def bring_up_to_date(
    store: LocalStore,
    wanted: str | None,
    open_syncer: Callable[[Show], Syncer],
    progress: Show,
    say: Callable[[str], None],
    patience_s: float = PATIENCE_S,
) -> Head:
    """The session that is to be resumed, once what it needs is here.

    Args:
        wanted: as for `LocalStore.find`; None is the latest of all machines.
        open_syncer: called in another thread than this one, with what shows progress.
        say: takes lines for the user.
        patience_s: how long a remote may keep silent before a session that is here is taken as it is.

    Raises:
        NotFoundError, UsageError, DamagedError: as `LocalStore.find`, when all is here.
        NetworkError: it is not here, and the remote cannot be reached.
        SatchelError: it is not here, and could not be fetched.
    """
    here, report = _find(store, wanted), SyncReport()
    try:
        _fetch(open_syncer, wanted, report, progress, patience_s if here else math.inf)
    except SatchelError as err:
        if here is None:
            raise
        say(f"not brought up to date: {err.one_line()}")
    finally:  # what was done before a failure was done
        for line in (*report.notices, *report.faults):
            say(line)
    # It may have another name by now.
    return store.find(here.session_id if here and wanted else wanted)


def _find(store: LocalStore, wanted: str | None) -> Head | None:
    """A session that is here, and can be read."""
    try:
        return store.find(wanted)
    except (NotFoundError, DamagedError):
        return None


def _fetch(
    open_syncer: Callable[[Show], Syncer],
    wanted: str | None,
    report: SyncReport,
    progress: Show,
    patience_s: float,
) -> None:
    """Fill the report.

    Raises:
        TransientError: the remote has not answered for `patience_s`. Progress made from then on ends it.
        SatchelError: it failed.
    """
    outcome: Future[None] = Future()
    # Opening is waited for: the keychain may ask the user. And so is a remote that has answered once.
    silent_since_s = math.inf
    given_up = False
    deciding = threading.Lock()  # so that a fetch is not given up and goes on all the same

    def show(now: Progress) -> None:
        nonlocal silent_since_s
        with deciding:
            if given_up:
                raise SatchelError("nobody waits for it any more")
            silent_since_s = math.inf
        progress(now)

    def run() -> None:
        nonlocal silent_since_s
        try:
            syncer = open_syncer(show)
            silent_since_s = time.monotonic()
            syncer.fetch(wanted, report=report)
            outcome.set_result(None)
        except Exception as err:  # noqa: BLE001  it is raised where it is waited for
            outcome.set_exception(as_error(err))

    threading.Thread(target=run, name="fetch", daemon=True).start()
    try:
        while True:
            try:
                return outcome.result(timeout=POLL_S)
            except TimeoutError:
                with deciding:
                    given_up = time.monotonic() - silent_since_s > patience_s
                if given_up:
                    raise TransientError(f"the remote has not answered for {patience_s:g} s") from None
    finally:
        given_up = True  # by Ctrl-C, too
