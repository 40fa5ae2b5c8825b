"""A lock between processes and threads. Knows nothing of what it protects."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
import time
from pathlib import Path
from types import TracebackType

from satchel.errors import SatchelError
from satchel.files import cannot_write, private_dir

_POLL_S = 0.02

# What `open` says of a directory, a link (`O_NOFOLLOW`; FreeBSD has EMLINK), and a socket.
_NO_FILE = (errno.EISDIR, errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EOPNOTSUPP)


class FileLock:
    """Excludes other processes and other threads; the thread that holds it may enter it again.

    Raises on entering:
        SatchelError: others held the lock for `timeout_s`, or the lock file cannot be made or is no file.
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
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(self._path, flags, 0o600)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise self._no_file()
                while not _try_lock(descriptor):
                    if time.monotonic() >= deadline:
                        raise self._busy()
                    time.sleep(_POLL_S)
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as err:
            if err.errno in _NO_FILE:
                raise self._no_file() from err
            raise cannot_write(self._path, err) from err
        return descriptor

    def _no_file(self) -> SatchelError:
        return SatchelError(f"{self._path} is not a file, which the lock has to be", "delete it")

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
