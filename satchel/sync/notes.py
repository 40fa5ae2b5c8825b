"""What one sync has to tell, and what this machine remembers of it. Knows nothing of how sessions move."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from satchel.cache_store.local import LocalStore
from satchel.cache_store.manifest import Head
from satchel.errors import SatchelError, UsageError
from satchel.sync.entries import Named
from satchel.sync.ledger import FAULTS, Ledger
from satchel.sync.records import State, SyncRecord, SyncRecords
from satchel.sync.report import SyncReport


class Notes:
    """Writes `report`, and the `records` of what is in the remote.

    Attributes:
        known: the records, by the sessions' ids; `ledger` looks at them, too.
        to_send: ids of sessions made or renamed on the way.
    """

    def __init__(
        self,
        store: LocalStore,
        records: SyncRecords,
        ledger: Ledger,
        known: dict[str, SyncRecord],
        report: SyncReport,
    ) -> None:
        self._store, self._records, self._ledger = store, records, ledger
        self.known, self.report = known, report
        self.to_send: list[str] = []

    def say_the_same(self, there: Named, local: Head | None, state: State = "here") -> None:
        """Remember that `local` and `there` say the same."""
        session_id = there.entry.session_id
        record = SyncRecord(
            name=there.name,
            entry=there.entry,
            tag=self._ledger.tag(session_id, there.name),
            manifest=local.manifest if local else None,
            state=state,
        )
        self._records.put(record)
        self.known[session_id] = record
        if local is None:
            self._records.forget_removal(session_id)

    def nothing_new(self, session_id: str, local: Head | None, there: Named | None) -> None:
        """Nothing has changed but, perhaps, that the entry was put again, or that a removal is done."""
        record = self.known.get(session_id)
        if record and there and record.tag != self._ledger.tag(session_id, there.name):
            self.say_the_same(there, local, record.state)
        elif local is None:
            self._records.forget_removal(session_id)

    def forget_old_removal(self, session_id: str, local: Head | None) -> None:
        """Where removing the session failed, and it was used since."""
        noted_ns = self._records.removed_ns(session_id)
        if noted_ns and local and self._store.used_ns(session_id) > noted_ns:
            self._records.forget_removal(session_id)

    @contextlib.contextmanager
    def noting_faults(self, session_id: str) -> Iterator[None]:
        try:
            yield
        except (*FAULTS, UsageError) as err:  # a name that was taken at the same time
            self.fault(session_id, err.one_line())

    def fault(self, session_id: str, line: str) -> None:
        fault = f"{self.name(session_id)}: {line}"
        if fault not in self.report.faults:  # of one that is looked at several times
            self.report.faults.append(fault)

    def name(self, session_id: str) -> str:
        with contextlib.suppress(SatchelError):
            if head := self._store.head(session_id):
                return head.name
        return self._ledger.names_of_sessions().get(session_id, session_id[:12])
