"""What this machine remembers of a remote: for each session, the entry that it saw or made last.

    sync/<key id>/<place>/sessions/<session id>.json    what it saw
    sync/<key id>/<place>/removals/<session id>         that the user removed it here, until the remote knows

Losing all of it loses no words: sessions are then compared by what they say. What it gives is noticing that a
remote went back to an older state, and that a session was removed rather than never here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from satchel.cache_store.head_list import ID_LENGTH
from satchel.cache_store.lock import FileLock
from satchel.cache_store.manifest import Sha256
from satchel.cache_store.record import Record
from satchel.cache_store.snapshot import canonical_json
from satchel.errors import DamagedError, SatchelError, VersionError
from satchel.files import atomic_write, delete_file, list_dir, read_file
from satchel.sync.entries import Entry, EntryName, Named

MAX_RECORD_BYTES = 64 << 10
LOCK_TIMEOUT_S = 60.0  # another process' sync may take long; what it does, this one need not

State = Literal["here", "missing", "dropped"]


class SyncRecord(Record):
    """What this machine knows of a session in the remote.

    Attributes:
        name: that of `entry`, its object's last part.
        entry: the newest one seen or made.
        tag: of its object when it was listed.
        manifest: this machine's manifest that says the same; None where the session is removed.
        state: whether what the remote has of its state is here; it may not have come, or was dropped since.
    """

    name: EntryName
    entry: Entry
    tag: str = ""
    manifest: Sha256 | None
    state: State = "here"

    @property
    def session_id(self) -> str:
        return self.entry.session_id

    @property
    def named(self) -> Named:
        return Named(self.name, self.entry)

    @property
    def seen(self) -> frozenset[str]:
        """Names of entries that need not be read."""
        return frozenset((self.name, *(each.partition(".")[0] for each in self.entry.supersedes)))


class SyncRecords:
    """The records of one remote, in `place`."""

    def __init__(self, place: Path) -> None:
        self._sessions = place / "sessions"
        self._removals = place / "removals"
        self.lock = FileLock(place / "lock", LOCK_TIMEOUT_S)

    def get(self, session_id: str) -> SyncRecord | None:
        """None if there is none; one that cannot be read is as good as none."""
        with contextlib.suppress(DamagedError, VersionError):
            data = read_file(self._path(session_id), MAX_RECORD_BYTES)
            if data is not None and (record := SyncRecord.parse(data)).session_id == session_id:
                return record
        return None

    def put(self, record: SyncRecord) -> None:
        """
        Raises:
            SatchelError: the disk refused.
        """
        atomic_write(self._path(record.session_id), canonical_json(record.stored()) + b"\n")

    def session_ids(self) -> list[str]:
        """Of all that were seen."""
        return [path.stem for path in list_dir(self._sessions) if path.suffix == ".json"]

    def note_removals(self, session_ids: Iterable[str]) -> None:
        """Remember that the user removes these sessions here, so that the remote's are removed, too.

        Raises:
            SatchelError: the disk refused.
        """
        for session_id in session_ids:
            atomic_write(self._removals / session_id, b"")

    def removals(self) -> set[str]:
        """Sessions that were removed here, and may be in the remote still."""
        return {path.name for path in list_dir(self._removals) if len(path.name) == ID_LENGTH}

    def removed_ns(self, session_id: str) -> int | None:
        """When the user removed the session here, by the time of the file that says so; None if not."""
        try:
            return (self._removals / session_id).lstat().st_mtime_ns
        except OSError:
            return None

    def forget_removal(self, session_id: str) -> None:
        with contextlib.suppress(SatchelError):
            delete_file(self._removals / session_id)

    def _path(self, session_id: str) -> Path:
        return self._sessions / f"{session_id}.json"
