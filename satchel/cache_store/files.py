"""Private directories, atomic writes, bounded reads, a lock between processes. Knows nothing of content."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType

from satchel.errors import DamagedError, SatchelError

TEMPORARY_PREFIX = ".tmp-"
_POLL_S = 0.02


def atomic_write(path: Path, data: bytes) -> None:
    """Put `data` at `path` (mode 0600), durably: at any moment there is the old file or the whole new one.

    Raises:
        SatchelError: the disk is full, read-only, not ours, …; nothing has changed and nothing is left over.
    """
    try:
        private_dir(path.parent)
        descriptor, name = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=path.parent)
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_dir(path.parent)
    except OSError as err:
        raise _cannot_write(path, err) from err


def private_dir(path: Path) -> None:
    """Make `path` and what is missing above it, each for its owner alone (mode 0700), durably."""
    if path.is_dir():
        return
    private_dir(path.parent)
    with contextlib.suppress(FileExistsError):  # another process was faster
        path.mkdir(mode=0o700)
    sync_dir(path.parent)


def sync_dir(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_file(path: Path, max_bytes: int) -> bytes | None:
    """The content of a file, or None if there is no such file.

    Raises:
        DamagedError: larger than `max_bytes`; nothing has been read.
        SatchelError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > max_bytes:
                raise DamagedError(f"{path} has {size} bytes where at most {max_bytes} are right")
            return file.read(size)
    except FileNotFoundError:
        return None
    except OSError as err:
        raise SatchelError(f"cannot read {path}: {err.strerror or err}") from err


def list_dir(path: Path) -> list[Path]:
    """What is in a directory; nothing if there is no such directory.

    Raises:
        SatchelError: it cannot be read.
    """
    try:
        return list(path.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as err:
        raise SatchelError(f"cannot read {path}: {err.strerror or err}") from err


def delete_file(path: Path, durable: bool = False) -> int:
    """Delete a file, if it is there; the bytes freed.

    Raises:
        SatchelError: it cannot be deleted.
    """
    try:
        freed = path.stat().st_size
        path.unlink()
        if durable:
            sync_dir(path.parent)
    except FileNotFoundError:
        return 0
    except OSError as err:
        raise SatchelError(f"cannot delete {path}: {err.strerror or err}") from err
    return freed


class FileLock:
    """Excludes other processes and other threads; the thread that holds it may enter it again.

    Raises on entering:
        SatchelError: others held the lock for `timeout_s`, or the lock file cannot be made.
    """

    def __init__(self, path: Path, timeout_s: float) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._threads = threading.RLock()
        self._depth = 0
        self._descriptor = -1

    def __enter__(self) -> None:
        deadline = time.monotonic() + self._timeout_s
        if not self._threads.acquire(timeout=self._timeout_s):
            raise self._busy()
        try:
            if self._depth == 0:
                self._descriptor = self._acquire(deadline)
            self._depth += 1
        except BaseException:
            self._threads.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth == 0:
            os.close(self._descriptor)  # which unlocks
        self._threads.release()

    def _acquire(self, deadline: float) -> int:
        try:
            private_dir(self._path.parent)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                while not _try_lock(descriptor):
                    if time.monotonic() >= deadline:
                        raise self._busy()
                    time.sleep(_POLL_S)
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as err:
            raise _cannot_write(self._path, err) from err
        return descriptor

    def _busy(self) -> SatchelError:
        return SatchelError(
            f"another Satchel has been writing to {self._path.parent} for {self._timeout_s:g} s",
            "try again when it is done",
        )


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _cannot_write(path: Path, err: OSError) -> SatchelError:
    return SatchelError(f"cannot write {path}: {err.strerror or err}", "what was saved before is intact")
