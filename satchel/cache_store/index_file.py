"""A SQLite file whose loss costs time alone: damaged it is made anew, and where it cannot be there is memory.

Knows nothing of what its tables hold.
"""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

_BUSY_S = 2.0
_BUSY_AGAIN_S = 60.0  # from one wait for another process to the next

# What these say is no fault of the file.
_REFUSALS = {
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOLFS,
    sqlite3.SQLITE_AUTH,
}

# SQLite's connections do not survive a fork, nor do its locks: a child that closed or opened the file might
# harm what its parent does. So it keeps what it inherits, and goes on in memory.
_inherited: list[sqlite3.Connection] = []

_T = TypeVar("_T")


class UnreadableError(Exception):
    """The database does not hold what was written into it."""


# Python decodes what SQLite says, and that quotes the file.
_FAILURES = (sqlite3.Error, UnicodeDecodeError, UnreadableError)


class IndexFile:
    """A database for several threads, and for several processes, each with its own of these.

    In memory as long as the directory of `path` is missing, for a minute where another process keeps the file
    busy, and for good where it cannot be used. A damaged file is deleted and made anew, once. Files are for
    their owner alone (mode 0600).

    Args:
        schema: the statements that make its tables.
        version: of these; a file of another one counts as damaged.
    """

    def __init__(self, path: Path, schema: Sequence[str], version: int) -> None:
        self._path = path
        self._schema = schema
        self._version = version
        self._guard = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._process = 0  # that opened `_db`
        self._inode = 0  # of the file then; 0 in memory
        self._unused_until = 0.0  # the file; by `time.monotonic`
        self._replaced = False

    def run(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """`work`'s result, one thread at a time; where it fails, it is done again on what comes next."""
        with self._guard:
            while True:
                try:
                    return work(self._connection())
                except _FAILURES as err:
                    if not self._inode:
                        raise
                    self._give_up(err)

    def try_again(self) -> None:
        """Use the file though it failed before."""
        with self._guard:
            if not self._inode:
                self.close()
            self._unused_until, self._replaced = 0.0, False

    def close(self) -> None:
        """Close the file; whatever is run next opens it again."""
        with self._guard:
            if self._db is not None and self._process != os.getpid():
                _inherited.append(self._db)
            elif self._db is not None:
                with contextlib.suppress(sqlite3.Error):
                    self._db.close()
            self._db, self._inode = None, 0

    def _connection(self) -> sqlite3.Connection:
        if self._db is not None and self._process != os.getpid():
            self.close()
            self._unused_until = math.inf
        is_gone = self._inode and self._inode != _inode(self._path)
        has_come = self._db is not None and not self._inode and self._may_use_file()
        if is_gone or has_come:
            self.close()
        while self._db is None:
            self._process = os.getpid()
            if not self._may_use_file():
                self._db = self._opened(":memory:")
                break
            try:
                self._inode = _make_private(self._path)
                self._db = self._opened(str(self._path))
            except (*_FAILURES, OSError) as err:
                self._give_up(err)
        return self._db

    def _may_use_file(self) -> bool:
        try:
            return time.monotonic() >= self._unused_until and self._path.parent.is_dir()
        except OSError:  # what the directory is in may not be looked into
            return False

    def _give_up(self, err: Exception) -> None:
        """Next comes a new file if this one is damaged, and memory if it was new or the system refused."""
        self.close()
        if _code(err) == sqlite3.SQLITE_BUSY:
            self._unused_until = time.monotonic() + _BUSY_AGAIN_S
            return
        if isinstance(err, OSError) or _code(err) in _REFUSALS or self._replaced:
            self._unused_until = math.inf
            return
        self._replaced = True
        try:
            for suffix in ("", "-wal", "-shm", "-journal"):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        except OSError:
            self._unused_until = math.inf

    def _opened(self, path: str) -> sqlite3.Connection:
        """
        Raises:
            UnreadableError: the file holds other tables.
        """
        db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            for setting in ("trusted_schema = OFF", "cell_size_check = ON", "synchronous = NORMAL"):
                db.execute(f"PRAGMA {setting}")
            with contextlib.suppress(sqlite3.OperationalError):  # the file system has no shared memory
                db.execute("PRAGMA journal_mode = WAL")
            if not self._has_tables(db):
                self._make_tables(db)
        except BaseException:
            db.close()
            raise
        return db

    def _has_tables(self, db: sqlite3.Connection) -> bool:
        return bool(db.execute("PRAGMA user_version").fetchone() == (self._version,))

    def _make_tables(self, db: sqlite3.Connection) -> None:
        with transaction(db):
            if self._has_tables(db):  # another process was faster
                return
            if db.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
                raise UnreadableError
            for statement in (*self._schema, f"PRAGMA user_version = {self._version}"):
                db.execute(statement)


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All that is written in the `with` block, or nothing. No other process writes meanwhile."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # SQLite has rolled back already after some errors
            db.execute("ROLLBACK")
        raise


def check_integrity(db: sqlite3.Connection, table: str | None = None) -> None:
    """
    Raises:
        UnreadableError: the database, or a table of it, is not whole.
    """
    check = f"PRAGMA integrity_check({table})" if table else "PRAGMA integrity_check"
    if db.execute(check).fetchone() != ("ok",):
        raise UnreadableError


def is_busy(err: sqlite3.Error) -> bool:
    """Whether another process kept the database from being written for too long."""
    return _code(err) == sqlite3.SQLITE_BUSY


def _code(err: Exception) -> int:
    return getattr(err, "sqlite_errorcode", 0) & 0xFF  # the primary code of an extended one


def _make_private(path: Path) -> int:
    """Make the file if it is missing, for its owner alone; SQLite gives those beside it the same mode.

    Never opens one that is there: closing it would drop the locks that this process has on it.

    Returns:
        Its inode.

    Raises:
        OSError: refused, or something else than a file is in the way.
    """
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(f"{path} is not a file")
    if stat.S_IMODE(status.st_mode) != 0o600:
        path.chmod(0o600)
    return status.st_ino


def _inode(path: Path) -> int:
    try:
        return path.lstat().st_ino
    except OSError:
        return 0
