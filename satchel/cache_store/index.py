"""Heads and chain keys in SQLite, so that no list, name or shared prefix needs every file of a store.

Derived from the files, and only ever a pointer to them: they are checked when they are read, and losing the
index costs time. Knows nothing of locks, of how heads and manifests are stored, or of what blocks hold.

The time of change of their directory says whether heads came or went, if no later change can leave the same
time. Some file systems count in ticks of two seconds: it must lie `_SETTLED_NS` back when heads are listed,
or be one that `note` has set.
"""

from __future__ import annotations

import difflib
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

from satchel.cache_store import index_rows as rows
from satchel.cache_store.index_file import IndexFile, check_integrity, is_busy, transaction
from satchel.cache_store.index_rows import UNCHAINED, UNREAD, UNSETTLED, Chain, Row
from satchel.cache_store.manifest import Head
from satchel.cache_store.names import name_key
from satchel.errors import DamagedError, SatchelError, VersionError
from satchel.files import TEMPORARY_PREFIX, scan_dir

_BATCH = 200  # heads in a transaction: others wait for it, and a kill loses no more
_SETTLED_NS = 3_000_000_000

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Totals:
    """How many readable sessions there are, and how many blocks they list, shared ones counted once."""

    sessions: int
    blocks: int


class StoreIndex:
    """What a store's heads and manifests say, as of the last `refresh`, `note` and `forget`.

    Where the file at `path` cannot be used, all goes on in memory; a damaged file is deleted and made anew.
    May be used from several threads, and from several processes, each with its own.

    Args:
        path: the database, in a directory that whoever first writes to the store makes.
        heads_dir: where head files are, each named by its session's id with `.json` after it.
        read_head: the head of a session id; None where there is none; raises SatchelError.
        read_chains: of a head's current manifest and then of those abandoned, as far as other sessions may
            take their blocks; raises SatchelError.

    Raises, from every method but `note`, `forget` and `close`:
        SatchelError: the directory of heads cannot be listed.
    """

    def __init__(
        self,
        path: Path,
        heads_dir: Path,
        read_head: Callable[[str], Head | None],
        read_chains: Callable[[Head], Sequence[Chain]],
    ) -> None:
        self._file = IndexFile(path, rows.SCHEMA, rows.VERSION)
        self._filled: sqlite3.Connection | None = None  # the last one that was
        self._heads_dir = heads_dir
        self._read_head = read_head
        self._read_chains = read_chains

    # Keeping up with the files

    def refresh(self, thorough: bool = False) -> None:
        """Read what has changed: nothing, by one look at the directory, where no head came or went.

        Args:
            thorough: look at each head's file, which finds those that were written in place, and at each
                session here, which finds what is not as it was written. To be done before saying that there
                is no such session.
        """

        def refresh(db: sqlite3.Connection) -> None:
            if thorough:
                rows.check_sessions(db)
            self._fill(db, thorough)

        self._file.run(refresh)

    def rebuild(self) -> None:
        """Forget everything, and read every head and manifest."""

        def rebuild(db: sqlite3.Connection) -> None:
            with transaction(db):
                rows.delete_all(db)
            check_integrity(db)
            self._fill(db, thorough=True)

        self._file.try_again()
        self._file.run(rebuild)

    def mark(self) -> bytes | None:
        """Refresh before a head is written or deleted; for the `note` or `forget` after it.

        To be called under the store's lock, which is to be held until then. None where others change heads
        without the lock.
        """
        return self._file.run(
            lambda db: rows.recorded(db) if self._fill(db, thorough=False) == self._directory() else None
        )

    def note(self, head: Head, chains: Sequence[Chain], mark: bytes | None = None) -> None:
        """Take in a head that was written, by who wrote it and still holds the store's lock.

        Without the `mark` from before, the next `refresh` looks at all heads. Where the index cannot be
        written, nothing is noted, which the next `refresh` finds.
        """
        self._write(lambda db: rows.put_session(db, head.session_id, UNSETTLED, head, chains), mark)

    def forget(self, session_id: str, mark: bytes | None = None) -> None:
        """Drop a session whose head was deleted. As `note`."""
        self._write(lambda db: rows.delete_session(db, session_id), mark)

    def close(self) -> None:
        """Close the file; whatever is called next opens it again."""
        self._file.close()

    # Answers

    def heads(self, limit: int | None = None, offset: int = 0) -> list[Head]:
        """The sessions, newest first, by (updated_at, session_id)."""
        return self._ask(lambda db: rows.newest_heads(db, limit, offset))

    def count(self) -> int:
        """How many sessions have a readable head."""
        return self._ask(rows.count_heads)

    def faults(self) -> dict[str, str]:
        """Of each head that cannot be read, by its file's name without `.json`, what is wrong in one line."""
        return self._ask(lambda db: {row.session_id: row.fault or "" for row in rows.faulty_rows(db)})

    def named(self, key: str) -> list[Head]:
        """The sessions with a name of this `names.name_key`, newest first; there should be one at most."""
        return self._ask(lambda db: rows.named_heads(db, key))

    def has_name(self, key: str) -> bool:
        """Whether a session has a name of this `names.name_key`."""
        return self._ask(lambda db: rows.has_name(db, key))

    def names_near(self, key: str, n: int = 3) -> list[str]:
        """Up to `n` names that look like `key`, a `names.name_key`, best first. Slow; for errors."""
        by_key = {name_key(head.name): head.name for head in reversed(self.heads())}
        return [by_key[each] for each in difflib.get_close_matches(key, by_key, n=n)]

    def with_id_prefix(self, prefix: str) -> list[tuple[str, str]]:
        """(id, name) of sessions whose id begins so, by id; a head that cannot be read has its id as name."""

        def fitting(db: sqlite3.Connection) -> list[tuple[str, str]]:
            found = takewhile(lambda row: row.session_id.startswith(prefix), rows.rows_from(db, prefix))
            return [(row.session_id, row.name) for row in found]

        return self._ask(fitting)

    def longest_chain(self, keys: Sequence[str], resumable_only: bool = False) -> tuple[str, int] | None:
        """Where most of a prefix's blocks are listed.

        Args:
            keys: the chain keys (hex) of the prefix's blocks, in order.
            resumable_only: the last block must hold a checkpoint.

        Returns:
            The id of a manifest and how many of its first blocks they are, at least one; of several such
            manifests the one of the session that was updated last.
        """
        return self._ask(lambda db: rows.longest_chain(db, keys, resumable_only))

    def totals(self) -> Totals:
        """Reads all that is listed."""
        return self._ask(lambda db: Totals(rows.count_heads(db), rows.count_blocks(db)))

    # The database

    def _ask(self, question: Callable[[sqlite3.Connection], _T]) -> _T:
        def ask(db: sqlite3.Connection) -> _T:
            if db is not self._filled:
                self._fill(db, thorough=False)
            return question(db)

        return self._file.run(ask)

    def _write(self, change: Callable[[sqlite3.Connection], None], mark: bytes | None) -> None:
        def write(db: sqlite3.Connection) -> None:
            try:
                with transaction(db):
                    change(db)
                    # Another process may have put in what it read before the mark.
                    complete = mark is not None and mark == rows.recorded(db)
                    rows.record(db, self._moved_on() if complete else None)
            except sqlite3.Error as err:
                if not is_busy(err):
                    raise

        self._file.run(write)

    def _fill(self, db: sqlite3.Connection, thorough: bool) -> bytes | None:
        """Make the index say what the files say, reading those that are not as they were.

        Returns:
            The directory's status before; None if not all that is in it is known, as `_read` says.
        """
        directory, began_ns = self._directory(), time.time_ns()
        undisturbed = True
        if thorough or directory != rows.recorded(db):
            known, listed = rows.statuses(db), self._statuses(began_ns)
            changed = [each for each, now in listed.items() if now == UNSETTLED or known.get(each) != now]
            for start in range(0, len(changed), _BATCH):
                batch = {each: listed[each] for each in changed[start : start + _BATCH]}
                undisturbed = self._read(db, batch) and undisturbed
            with transaction(db):
                for each in known.keys() - listed.keys():
                    rows.delete_session(db, each)
                rows.record(db, directory if undisturbed and _is_settled(directory, began_ns) else None)
        self._filled = db
        return directory if undisturbed else None

    def _read(self, db: sqlite3.Connection, listed: dict[str, bytes]) -> bool:
        """Take in sessions. `listed`: the status of each head's file, from before.

        Returns:
            Whether all are known now: the disk refused none, and no other process put in any meanwhile; what
            it did stays, since either may be older.
        """
        stored = {each: rows.find_row(db, each) for each in listed}
        found = {each: self._found(each, status, stored[each]) for each, status in listed.items()}
        # A fault that may pass leaves the directory as it is.
        undisturbed = not any(status == UNREAD for status, *_ in found.values())
        with transaction(db):
            for each, (status, head, chains) in found.items():
                if rows.find_row(db, each) != stored[each]:
                    undisturbed = False
                elif head is None:
                    rows.delete_session(db, each)
                else:
                    rows.put_session(db, each, status, head, chains)
        return undisturbed

    # The files

    def _found(
        self, session_id: str, status: bytes, stored: Row | None
    ) -> tuple[bytes, Head | str | None, Sequence[Chain] | None]:
        """For `rows.put_session`: status, head or fault, and chains unless they are as stored."""
        try:
            head = self._read_head(session_id)
        except (DamagedError, VersionError) as err:
            # Another version may read what this one cannot.
            return UNSETTLED, err.one_line(), ()
        except SatchelError as err:
            return UNREAD, err.one_line(), ()
        if head is None or (stored and stored.has_chains_of(head)):
            return status, head, None
        try:
            return status, head, self._read_chains(head)
        except SatchelError:
            return UNCHAINED, head, ()

    def _statuses(self, began_ns: int) -> dict[str, bytes]:
        """What each head's file is now, by its name without `.json`."""
        found = {}
        for entry in scan_dir(self._heads_dir):
            stem = entry.name.removesuffix(".json")
            if stem and stem != entry.name and not stem.startswith(TEMPORARY_PREFIX):
                found[stem] = _file_status(entry, began_ns)
        return found

    def _directory(self) -> bytes:
        try:
            return _directory_status(self._heads_dir.stat())
        except OSError:
            return b""

    def _moved_on(self) -> bytes | None:
        """The directory's status with a time that no change to come will leave; None where that fails.

        The time is moved by whole microseconds, which all but coarse file systems keep, to one between two
        ticks, which are a millisecond or longer; a finer clock would have to hit it.
        """
        try:
            status = self._heads_dir.stat()
            ahead_ns = status.st_mtime_ns // 1000 * 1000 + 1000 * (1 + secrets.randbelow(998))
            os.utime(self._heads_dir, ns=(status.st_atime_ns, ahead_ns))
            moved = self._heads_dir.stat()
        except OSError:
            return None
        return _directory_status(moved) if moved.st_mtime_ns == ahead_ns else None


def _file_status(entry: os.DirEntry[str], began_ns: int) -> bytes:
    """Which file it is now; what cannot be told or may change unnoticed is read every time."""
    try:
        status = entry.stat()
    except OSError:
        return UNSETTLED
    if began_ns - status.st_mtime_ns < _SETTLED_NS:
        return UNSETTLED
    return b"%d %d %d" % (status.st_mtime_ns, status.st_size, status.st_ino)


def _directory_status(status: os.stat_result) -> bytes:
    return b"%d %d" % (status.st_mtime_ns, status.st_ino)


def _is_settled(directory: bytes, began_ns: int) -> bool:
    return bool(directory) and began_ns - int(directory.split()[0]) >= _SETTLED_NS
