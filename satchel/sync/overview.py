"""Which sessions there are, here and in a remote, and which of them a name means. Changes nothing."""

from __future__ import annotations

import contextlib

from satchel.cache_store.local import LocalStore
from satchel.cache_store.names import name_key
from satchel.errors import DamagedError, NotFoundError, UsageError
from satchel.sync.ledger import Ledger
from satchel.sync.records import SyncRecords

MIN_ID_START = 4  # digits


def newest_first(store: LocalStore, records: SyncRecords, ledger: Ledger) -> list[str]:
    """The ids of all sessions that are known here or there, the newest first."""
    listed, there = store.heads(), ledger.heads()
    here = {head.session_id: head for head in listed.heads}

    def saved(session_id: str) -> float:
        found = (here.get(session_id), there.get(session_id))
        return max((head.updated_at.timestamp() for head in found if head), default=0.0)

    ids = {*here, *there, *records.removals(), *listed.faults}
    return sorted(ids, key=lambda each: (-saved(each), each))


def find_session(store: LocalStore, ledger: Ledger, wanted: str | None) -> str | None:
    """The id of a session that is here or in the remote; None if neither has it.

    Raises:
        UsageError: several fit.
    """
    there = [head for head in ledger.heads().values() if head]
    if wanted is None:
        heads = [*there, *store.heads(1).heads]
        return max(heads, key=lambda head: head.updated_at).session_id if heads else None
    with contextlib.suppress(NotFoundError, DamagedError):
        return store.session_id(wanted)
    fitting = [head for head in there if name_key(head.name) == name_key(wanted)]
    if not fitting and len(wanted) >= MIN_ID_START:
        fitting = [head for head in there if head.session_id.startswith(wanted)]
    if len(fitting) > 1:
        ids = ", ".join(head.session_id for head in fitting)
        raise UsageError(f"several sessions in the remote are called {wanted!r}", f"give an id: {ids}")
    return fitting[0].session_id if fitting else None
