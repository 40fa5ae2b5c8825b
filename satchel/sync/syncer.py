"""Sessions of a store and of a remote made the same.

Being killed at any point leaves every session, here and there, as it was or as it is to be: objects go first,
then the manifest, then the entry or the head that names it. Running it again goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from satchel.cache_store.local import LocalStore
from satchel.remotes.remote import Remote
from satchel.sync.keys import Keys
from satchel.sync.one_pass import Direction, Pass
from satchel.sync.records import SyncRecords
from satchel.sync.report import Fork, SessionStatus, SyncReport
from satchel.sync.transfer import Progress

__all__ = ["Direction", "Fork", "Progress", "SessionStatus", "SyncReport", "Syncer"]


class Syncer:
    """Brings the sessions of `store` and of an encrypted `remote` to the same state.

    Args:
        keys: of the remote.
        records: what this machine remembers of the remote.
        exclusive: of several machines that create an object of one name in the remote, one succeeds.
        progress: told of each session's transfer, from any thread; what it raises ends the sync.
        check_place: raises if the remote is another place than it was, or has another key. Called with
            whether there are entries in it.
    """

    def __init__(
        self,
        store: LocalStore,
        remote: Remote,
        keys: Keys,
        records: SyncRecords,
        exclusive: bool,
        progress: Callable[[Progress], None] | None = None,
        check_place: Callable[[bool], None] = lambda is_used: None,
    ) -> None:
        self.store, self.remote, self.keys, self.records = store, remote, keys, records
        self.exclusive = exclusive
        self.progress = progress
        self.check_place = check_place

    def sync(
        self,
        direction: Direction = Direction.BOTH,
        only: Collection[str] | None = None,
        first: str | None = None,
        *,
        fetch_state: bool = True,
        accept_older: bool = False,
        again: bool = False,
        report: SyncReport | None = None,
    ) -> SyncReport:
        """Sync all sessions, the newest first; a session that cannot be is named in the report.

        Args:
            only: ids of sessions; None means all. Their state is fetched even if it was dropped here.
            first: the id of the session to begin with.
            fetch_state: else sessions that come get their words alone, and their state when they are resumed.
            accept_older: take an older state than was seen before from the remote, where nothing is here.
            again: send sessions that are in the remote anew, to mend what is damaged there.
            report: what is filled and returned, so that it also tells of a sync that fails half-way.

        Raises:
            NetworkError: the remote cannot be reached; what was done until then stands.
            SatchelError: the disk refused, or another process syncs.
        """
        with self.records.lock:
            one = Pass(
                self,
                direction,
                fetch_state=fetch_state,
                fetch_dropped=only is not None,
                accept_older=accept_older,
                again=again,
                report=report,
            )
            one.run(only, first)
        return one.report

    def fetch(self, wanted: str | None, report: SyncReport | None = None) -> SyncReport:
        """Bring one session up to date, with its state, to be resumed here.

        Args:
            wanted: its name or id, here or in the remote; None means the latest of all.
            report: as for `sync`.

        Raises:
            NetworkError, SatchelError: as `sync`.
            UsageError: several fit.
        """
        with self.records.lock:
            one = Pass(self, Direction.PULL, fetch_dropped=True, report=report)
            session_id = one.find(wanted)
            one.run([session_id] if session_id else [])
        return one.report

    def find(self, wanted: str) -> str | None:
        """The id of a session that is here or in the remote, by its name or id; None if neither has it.

        Raises:
            NetworkError: the remote cannot be reached.
            UsageError: several fit.
        """
        return Pass(self, Direction.BOTH).find(wanted)

    def status(self) -> list[SessionStatus]:
        """How each session stands, newest first. Changes nothing.

        Raises:
            NetworkError: the remote cannot be reached.
        """
        return Pass(self, Direction.BOTH).status()
