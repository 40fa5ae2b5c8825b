"""The tables of a store's index: sessions, their chains, and the blocks of these.

Knows nothing of files: neither of the database's own, nor whether what it holds is still what they say.
"""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import NamedTuple

from satchel.cache_store.index_file import UnreadableError, check_integrity
from satchel.cache_store.manifest import BlockRef, Head
from satchel.cache_store.names import name_key
from satchel.cache_store.snapshot import canonical_json
from satchel.errors import DamagedError, VersionError

VERSION = 2  # of the tables and of what they hold
# All text is BLOB: a file's name need not be Unicode, and a damaged one must not fail to decode.
SCHEMA = (
    "CREATE TABLE state (only INTEGER PRIMARY KEY CHECK (only = 0), directory BLOB)",
    # `content`: a head, or the fault of one that cannot be read, which has neither time nor name.
    """CREATE TABLE sessions (
        stem BLOB PRIMARY KEY, status BLOB NOT NULL, updated_us INTEGER, name_key BLOB, content BLOB NOT NULL,
        digest BLOB NOT NULL)""",
    "CREATE INDEX sessions_by_age ON sessions (updated_us, stem)",
    "CREATE INDEX sessions_by_name ON sessions (name_key, updated_us)",
    """CREATE TABLE chains (
        id INTEGER PRIMARY KEY, stem BLOB NOT NULL, manifest BLOB NOT NULL, place INTEGER NOT NULL,
        updated_us INTEGER, UNIQUE (stem, manifest))""",
    """CREATE TABLE blocks (
        chain INTEGER NOT NULL, position INTEGER NOT NULL, chain_key BLOB NOT NULL,
        checkpoint INTEGER NOT NULL, PRIMARY KEY (chain, position)) WITHOUT ROWID""",
    "CREATE INDEX blocks_by_key ON blocks (chain_key, position, checkpoint)",
)

UNSETTLED = b""  # in place of a head's status that a later change might not alter
UNREAD = b"?"  # in place of the status of a head that the disk refused to read
UNCHAINED = b"-"  # in place of the status of a head whose manifests could not be read

_NEWEST = "ORDER BY updated_us DESC, stem DESC"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Chain:
    """The blocks that one manifest (its id) of a session lists."""

    manifest: str
    refs: tuple[BlockRef, ...]


class Row(NamedTuple):
    """A session. `stem` is its id, or what else its head's file is called."""

    stem: bytes
    status: bytes
    updated_us: int | None
    name_key: bytes | None
    content: bytes
    digest: bytes

    @property
    def session_id(self) -> str:
        return _text(self.stem)

    @property
    def fault(self) -> str | None:
        """What is wrong with its head, if that cannot be read."""
        return _text(self.content) if self.updated_us is None else None

    @property
    def name(self) -> str:
        """Its id, if its head cannot be read."""
        return self.head.name if self.fault is None else self.session_id

    @property
    def head(self) -> Head:
        """Of a session without fault."""
        try:
            return Head.parse(self.content)
        except (DamagedError, VersionError) as err:  # another version may have written the index
            raise UnreadableError from err

    def has_chains_of(self, head: Head) -> bool:
        """Whether the session's chains are those of `head`'s manifest."""
        return self.fault is None and self.status != UNCHAINED and self.head.manifest == head.manifest


# Sessions


def find_row(db: sqlite3.Connection, session_id: str) -> Row | None:
    return next(_select(db, "WHERE stem = ?", _blob(session_id)), None)


def rows_from(db: sqlite3.Connection, start: str) -> Iterator[Row]:
    """Those from this id on, by id."""
    return _select(db, "WHERE stem >= ? ORDER BY stem", _blob(start))


def faulty_rows(db: sqlite3.Connection) -> Iterator[Row]:
    return _select(db, "WHERE updated_us IS NULL ORDER BY stem")


def newest_heads(db: sqlite3.Connection, limit: int | None, offset: int) -> list[Head]:
    where = f"WHERE updated_us IS NOT NULL {_NEWEST} LIMIT ? OFFSET ?"
    return [row.head for row in _select(db, where, -1 if limit is None else limit, offset)]


def named_heads(db: sqlite3.Connection, key: str) -> list[Head]:
    """Those of a `name_key`, newest first."""
    return [row.head for row in _select(db, f"WHERE name_key = ? {_NEWEST}", _blob(key))]


def has_name(db: sqlite3.Connection, key: str) -> bool:
    """Whether there are any of a `name_key`."""
    query = "SELECT EXISTS (SELECT 1 FROM sessions WHERE name_key = ?)"
    return bool(db.execute(query, (_blob(key),)).fetchone()[0])


def count_heads(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT count(updated_us) FROM sessions").fetchone()[0])


def statuses(db: sqlite3.Connection) -> dict[str, bytes]:
    """Of each session, what its head's file was when it was read."""
    return {_text(stem): status for stem, status in db.execute("SELECT stem, status FROM sessions")}


def check_sessions(db: sqlite3.Connection) -> None:
    """
    Raises:
        UnreadableError: a session is not as it was written, or not found by its id, name or time.
    """
    check_integrity(db, "sessions")
    for _ in _select(db, "NOT INDEXED"):
        pass


def put_session(
    db: sqlite3.Connection, session_id: str, status: bytes, head: Head | str, chains: Sequence[Chain] | None
) -> None:
    """Add or replace a session.

    Args:
        head: or what is wrong with it.
        chains: of its manifests, the current one first; None leaves those that are there.
    """
    stem, updated_us, key = _blob(session_id), None, None
    if isinstance(head, Head):
        updated_us = (head.updated_at - _EPOCH) // timedelta(microseconds=1)
        key, content = _blob(name_key(head.name)), canonical_json(head.stored())
    else:
        content = _blob(head)
    values = (stem, status, updated_us, key, content)
    db.execute("REPLACE INTO sessions VALUES (?, ?, ?, ?, ?, ?)", (*values, _digest(values)))
    if chains is not None:
        _put_chains(db, stem, chains)
    db.execute("UPDATE chains SET updated_us = ? WHERE stem = ?", (updated_us, stem))


def delete_session(db: sqlite3.Connection, session_id: str) -> None:
    stem = _blob(session_id)
    _put_chains(db, stem, ())
    db.execute("DELETE FROM sessions WHERE stem = ?", (stem,))


def delete_all(db: sqlite3.Connection) -> None:
    for table in ("blocks", "chains", "sessions", "state"):
        db.execute(f"DELETE FROM {table}")  # noqa: S608, a name from the line above


def _select(db: sqlite3.Connection, where: str, *values: object) -> Iterator[Row]:
    for found in db.execute(f"SELECT {', '.join(Row._fields)} FROM sessions {where}", values):  # noqa: S608
        row = Row(*found)
        if _digest(row[:-1]) != row.digest:
            raise UnreadableError
        yield row


def _digest(values: tuple[object, ...]) -> bytes:
    return hashlib.blake2b(repr(values).encode(), digest_size=16).digest()


# Chains and blocks


def longest_chain(
    db: sqlite3.Connection, keys: Sequence[str], resumable_only: bool
) -> tuple[str, int] | None:
    """See `StoreIndex.longest_chain`."""
    query = """SELECT manifest FROM blocks JOIN chains ON chains.id = blocks.chain
        WHERE chain_key = ? AND position = ? AND checkpoint >= ?
        ORDER BY updated_us DESC, stem DESC, place LIMIT 1"""
    for position in reversed(range(len(keys))):
        key = bytes.fromhex(keys[position])
        if found := db.execute(query, (key, position, int(resumable_only))).fetchone():
            if not isinstance(found[0], bytes) or len(found[0]) != 32:
                raise UnreadableError
            return found[0].hex(), position + 1
    return None


def count_blocks(db: sqlite3.Connection) -> int:
    """Those that chains share once."""
    return int(db.execute("SELECT count(DISTINCT chain_key) FROM blocks").fetchone()[0])


def _put_chains(db: sqlite3.Connection, stem: bytes, chains: Sequence[Chain]) -> None:
    """Replace a session's chains: one that a manifest goes on from is altered from where it differs."""
    wanted = [bytes.fromhex(chain.manifest) for chain in chains]
    stored = dict(db.execute("SELECT manifest, id FROM chains WHERE stem = ?", (stem,)))
    superseded = [stored[manifest] for manifest in stored if manifest not in wanted]
    for place, manifest in enumerate(wanted):
        chain = stored.get(manifest) or (superseded.pop() if superseded else None)
        values = (chain, stem, manifest, place)
        chain = db.execute("REPLACE INTO chains VALUES (?, ?, ?, ?, NULL)", values).lastrowid
        _put_blocks(db, chain, chains[place].refs)
    for chain in superseded:
        db.execute("DELETE FROM blocks WHERE chain = ?", (chain,))
        db.execute("DELETE FROM chains WHERE id = ?", (chain,))


def _put_blocks(db: sqlite3.Connection, chain: int | None, refs: Sequence[BlockRef]) -> None:
    query = "SELECT chain_key, checkpoint FROM blocks WHERE chain = ? ORDER BY position"
    wanted = [(bytes.fromhex(ref.chain_key), int(ref.checkpoint)) for ref in refs]
    stored = db.execute(query, (chain,)).fetchall()
    equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(wanted, stored, strict=False)))
    if equal < len(stored):
        db.execute("DELETE FROM blocks WHERE chain = ? AND position >= ?", (chain, equal))
    db.executemany(
        "INSERT INTO blocks VALUES (?, ?, ?, ?)",
        [(chain, position, *wanted[position]) for position in range(equal, len(wanted))],
    )


# The directory of heads


def recorded(db: sqlite3.Connection) -> bytes | None:
    """What `record` put there last."""
    row = db.execute("SELECT directory FROM state").fetchone()
    return row[0] if row else None


def record(db: sqlite3.Connection, directory: bytes | None) -> None:
    """Record the directory as it was when all in it became known; None if that proves nothing later.

    No two are the same: in place of None stands what no directory is.
    """
    db.execute("REPLACE INTO state VALUES (0, ?)", (directory or secrets.token_bytes(16),))


def _blob(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(blob: bytes) -> str:
    if not isinstance(blob, bytes):
        raise UnreadableError
    return blob.decode("utf-8", "surrogatepass")
