"""The entries of a remote: reading those that this machine does not know, and making the next one.

Knows nothing of what is done about them, or of this machine's store.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from satchel.cache_store.manifest import MAX_GENERATION, Head
from satchel.errors import DamagedError, NetworkError, NotFoundError, SatchelError, VersionError
from satchel.remotes.remote import Remote
from satchel.sync.entries import (
    HEADS,
    MAX_ENTRY_BYTES,
    Entry,
    Named,
    Tips,
    by_session,
    decode_entry,
    encode_entry,
    entry_name,
    number_of,
    superseding,
    tips,
    unread,
)
from satchel.sync.keys import Keys
from satchel.sync.parallel import in_parallel
from satchel.sync.records import SyncRecord

# What is wrong with one session, and no reason to leave the others.
FAULTS = (NotFoundError, DamagedError, VersionError)


class LostRaceError(Exception):
    """Another machine has made an entry meanwhile."""


class Ledger:
    """What an encrypted `remote` said of its sessions when it was listed.

    Args:
        known: what this machine saw last, by the sessions' ids; what is in there is not read again.
        exclusive: of several machines that create an object of one name in the remote, one succeeds.

    Raises:
        NetworkError: the remote cannot be reached.
    """

    def __init__(self, remote: Remote, keys: Keys, known: Mapping[str, SyncRecord], exclusive: bool) -> None:
        self._remote, self._keys, self._exclusive = remote, keys, exclusive
        self._known = known
        self._names = by_session(remote.list(HEADS))
        seen = {self._key(session_id): self._seen(session_id) for session_id in known}
        self._entries: dict[str, Entry | SatchelError] = {}
        self._read_unread(self._names, seen)
        gone = {name for name, entry in self._entries.items() if isinstance(entry, NotFoundError)}
        if gone:  # superseded and deleted while we were looking
            keys_again = {name.split("/")[-2] for name in gone}
            self._names |= {key: self._list(key) for key in keys_again}
            self._read_unread(keys_again, seen)

    @property
    def is_empty(self) -> bool:
        """Whether the remote has no entries at all."""
        return not self._names

    def look_again(self, session_id: str) -> None:
        """Read what the remote says of a session now."""
        key = self._key(session_id)
        self._names[key] = self._list(key)
        self._read_unread([key], {key: self._seen(session_id)})

    def names(self, session_id: str) -> list[str]:
        """The entries that the remote has of a session, in order."""
        return list(self._tags(session_id))

    def tag(self, session_id: str, name: str) -> str:
        """As of `Listed`, of an entry's object."""
        return self._tags(session_id).get(name, "")

    def tips(self, session_id: str) -> Tips | None:
        """The session's newest entries; None if the remote has none.

        Raises:
            DamagedError, VersionError: one that may be the newest cannot be read.
        """
        record, seen = self._known.get(session_id), self._seen(session_id)
        found = {record.name: record.entry} if record and record.name in seen else {}
        wrong: dict[str, SatchelError] = {}
        for name in unread(self.names(session_id), seen):
            entry = self._entries[self.folder(session_id) + name]
            if isinstance(entry, Entry):
                found[name] = entry
            elif not isinstance(entry, NotFoundError):
                wrong[name] = entry
        newest = max(map(number_of, found), default=0)
        for name, err in wrong.items():
            if number_of(name) >= newest:
                raise err
        return replace(tips(found), unreadable=tuple(wrong.values())) if found else None

    def heads(self) -> dict[str, Head | None]:
        """The newest that is known of each session; None of one that was removed."""
        return {entry.session_id: entry.head for entry in self._by_number()}

    def names_of_sessions(self) -> dict[str, str]:
        """The newest name that is known of each session, of one that was removed, too."""
        return {entry.session_id: entry.head.name for entry in self._by_number() if entry.head}

    def _by_number(self) -> list[Entry]:
        known = [record.entry for record in self._known.values()]
        read = [entry for entry in self._entries.values() if isinstance(entry, Entry)]
        return sorted((*known, *read), key=lambda entry: entry.number)

    def unreadable(self, told: Iterable[str] = ()) -> dict[str, SatchelError]:
        """What is wrong with entries of sessions of which nothing else is known, by the entries' names.

        Args:
            told: ids of further sessions, of which `tips` says what is wrong.
        """
        known = {self.folder(session_id) for session_id in (*self.heads(), *told)}
        return {
            name: err
            for name, err in self._entries.items()
            if isinstance(err, DamagedError | VersionError) and f"{name.rpartition('/')[0]}/" not in known
        }

    def put_next(
        self,
        session_id: str,
        head: Head | None,
        there: Named | None,
        handled: Collection[str],
        removed: str | None,
        made: Callable[[Named], None],
    ) -> None:
        """Make the session's next entry, which is the moment in which other machines see what was sent.

        Args:
            head: what the session is now; None if it is removed.
            there: the newest entry, which it supersedes.
            handled: ids of other entries that it supersedes: what they say is kept elsewhere.
            removed: as of `Entry`.
            made: called when it is there and counts.

        Raises:
            LostRaceError: another machine was faster, or went on meanwhile.
            DamagedError: there is no further number.
        """
        names, record = self.names(session_id), self._known.get(session_id)
        before = max([0, *map(number_of, names), record.entry.number if record else 0])
        if before >= MAX_GENERATION:
            raise DamagedError(f"the remote claims {before} entries of it, and it takes no more")
        entry = Entry(
            session_id=session_id,
            number=before + 1,
            head=head,
            removed=removed,
            supersedes=superseding(
                [*handled, *([there.id] if there else [])], there.entry if there else None
            ),
        )
        name, folder = entry_name(entry.number, self._exclusive), self.folder(session_id)
        if not self._exclusive:
            self._remote.put(folder + name, encode_entry(entry))
        elif not self._remote.put_if_absent(folder + name, encode_entry(entry)):
            raise LostRaceError
        # Who was slow may have created an entry again that others had superseded and deleted.
        self._names[self._key(session_id)] = now = self._list(self._key(session_id))
        if name not in now:
            raise NetworkError("the remote does not list what it was given", "it is no storage to rely on")
        if any(number_of(each) >= entry.number and each != name for each in now):
            if self._exclusive:
                with contextlib.suppress(SatchelError):
                    self._remote.delete(folder + name)
            raise LostRaceError
        self._entries[folder + name] = entry
        made(Named(name, entry))
        # Readers that have just listed them may still want the one before.
        superseded = {each.partition(".")[0] for each in entry.supersedes} - {there.name if there else ""}
        for each in superseded.intersection(now):
            with contextlib.suppress(SatchelError):
                self._remote.delete(folder + each)

    def delete_damaged(self, session_id: str) -> None:
        """Delete the session's entries that are damaged, so that they are not told of for ever."""
        for each in self.names(session_id):
            name = self.folder(session_id) + each
            if isinstance(self._entries.get(name), DamagedError):
                with contextlib.suppress(SatchelError):
                    self._remote.delete(name)

    def _read(self, name: str) -> Entry | SatchelError:
        try:
            last = name.rpartition("/")[2]
            entry = decode_entry(self._remote.get(name, MAX_ENTRY_BYTES), last)
            if name != self.folder(entry.session_id) + last:
                raise DamagedError(f"object {name} is the entry of another session")
        except FAULTS as err:
            return err
        return entry

    def _read_unread(self, keys: Iterable[str], seen: Mapping[str, Collection[str]]) -> None:
        """Read the entries of sessions, by their keyed names, but those that are `seen`; many at a time."""
        wanted = [
            f"{HEADS}{key}/{name}" for key in keys for name in unread(self._names[key], seen.get(key, ()))
        ]
        self._entries |= zip(wanted, in_parallel(self._read, wanted), strict=True)

    def _list(self, key: str) -> dict[str, str]:
        return by_session(self._remote.list(f"{HEADS}{key}/")).get(key, {})

    def _tags(self, session_id: str) -> dict[str, str]:
        return self._names.get(self._key(session_id), {})

    def _seen(self, session_id: str) -> frozenset[str]:
        """Names of entries that need not be read.

        None where the newest of them is gone or was put again: the remote went back, and perhaps on.
        """
        record = self._known.get(session_id)
        tag = self._tags(session_id).get(record.name) if record else None
        if record is None or tag is None:
            return frozenset()
        return record.seen if "" in (tag, record.tag) or tag == record.tag else frozenset()

    def _key(self, session_id: str) -> str:
        return self._keys.name("session", session_id)

    def folder(self, session_id: str) -> str:
        """What the names of a session's entries begin with."""
        return f"{HEADS}{self._key(session_id)}/"
