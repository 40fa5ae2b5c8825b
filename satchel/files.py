"""Files and folders that appear whole or not at all; bounded reads. Knows nothing of their content."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from satchel.errors import DamagedError, SatchelError

TEMPORARY_PREFIX = ".tmp-"

# What `open` says of a directory, a link to itself, something below a file, and a socket (Linux, macOS).
_NO_FILE = (errno.EISDIR, errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EOPNOTSUPP)

# What `fsync` says of a directory on file systems that have no such thing (SMB, some of FUSE).
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP)


# On macOS `fsync` leaves the data in the drive's cache; this writes that out, too (`man 2 fcntl` there).
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


def atomic_write(path: Path, data: bytes, *, durable_name: bool = True, flush_drive: bool = False) -> None:
    """Put `data` at `path` (mode 0600), durably: at any moment there is the old file or the whole new one.

    Args:
        durable_name: else its name is so only after a `sync` of its directory.
        flush_drive: have the drive, too, write out what it holds, where `fsync` alone does not. Whatever was
            synced before the file, it, and its name then outlast a loss of power.

    Raises:
        SatchelError: the disk is full, read-only, not ours, …; nothing has changed and nothing is left over.
    """
    try:
        private_dir(path.parent)
        descriptor, name = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=path.parent)
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                rest = memoryview(data)
                while rest:
                    rest = rest[file.write(rest) :]
                _sync(file.fileno(), flush_drive)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if durable_name:
            sync(path.parent, flush_drive)
    except OSError as err:
        raise cannot_write(path, err) from err


@contextmanager
def atomic_file(target: Path) -> Iterator[Path]:
    """The path of a temporary file beside `target` that replaces it when the block ends without an error.

    Raises:
        OSError: the disk refused; `target` is as it was.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=target.parent)
    os.close(descriptor)
    work = Path(name)
    try:
        yield work
        sync(work)
        work.replace(target)
        sync(target.parent)
    finally:
        work.unlink(missing_ok=True)


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """A temporary folder beside `target` that takes its place when the block ends without an error.

    Where another process made `target` meanwhile, theirs stays and ours is dropped.

    Raises:
        OSError: the disk refused; there is no `target`.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=target.parent))
    try:
        yield work
        for path in (*work.iterdir(), work):
            sync(path)
        try:
            work.rename(target)
        except OSError:
            if not target.is_dir():
                raise
        sync(target.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def private_dir(path: Path) -> None:
    """Make `path` and what is missing above it, each for its owner alone (mode 0700), durably."""
    if path.is_dir():
        return
    private_dir(path.parent)
    with contextlib.suppress(FileExistsError):  # another process was faster
        path.mkdir(mode=0o700)
    sync(path.parent)


def sync(path: Path, flush_drive: bool = False) -> None:
    """Make a file's content, or the names in a directory, durable; the latter where the system can.

    Args:
        flush_drive: as for `atomic_write`.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _sync(descriptor, flush_drive)
    except OSError as err:
        if err.errno not in _NO_SYNC or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def _sync(descriptor: int, flush_drive: bool) -> None:
    if flush_drive and _FULL_SYNC is not None:
        with contextlib.suppress(OSError):  # network volumes have no such thing
            fcntl.fcntl(descriptor, _FULL_SYNC)
            return
    os.fsync(descriptor)


def is_real_dir(path: Path) -> bool:
    """Whether it is a directory, and not a link to one."""
    return stat.S_ISDIR(_mode(path))


def is_link(path: Path) -> bool:
    return stat.S_ISLNK(_mode(path))


def is_file_or_link(path: Path) -> bool:
    """Whether it is what can be deleted as a file."""
    mode = _mode(path)
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode)


def _mode(path: Path) -> int:
    try:
        return path.lstat().st_mode
    except OSError:
        return 0


def read_file(path: Path, max_bytes: int) -> bytes | None:
    """The content of a file, or None if there is no such file.

    Raises:
        DamagedError: larger than `max_bytes`, or no file (a directory, a pipe, a dangling link, …).
        SatchelError: it cannot be read.
    """
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise DamagedError(f"{path} is not a file")
            if status.st_size > max_bytes:
                raise DamagedError(f"{path} has {status.st_size} bytes where at most {max_bytes} are right")
            return file.read(status.st_size)
    except FileNotFoundError as err:
        if path.is_symlink():
            raise DamagedError(f"{path} is a link to nothing") from err
        return None
    except OSError as err:
        kind = DamagedError if err.errno in _NO_FILE else SatchelError
        raise kind(f"cannot read {path}: {err.strerror or err}") from err


def will_read(path: Path) -> None:
    """Have the system fetch a file from the disk already, where it can; says nothing of what is wrong."""
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(descriptor)


def _open_at_once(path: str, flags: int) -> int:
    """An opener that does not wait until somebody writes to a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def list_dir(path: Path) -> list[Path]:
    """As `scan_dir`, as paths."""
    return [path / entry.name for entry in scan_dir(path)]


def scan_dir(path: Path) -> list[os.DirEntry[str]]:
    """What is in a directory; nothing if there is no such directory.

    Raises:
        SatchelError: it cannot be read, or it or what it should be in is a file.
    """
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except FileNotFoundError:
        return []
    except NotADirectoryError as err:
        file = next(place for place in (path, *path.parents) if os.path.lexists(place))
        raise SatchelError(f"{file} is not a directory") from err
    except OSError as err:
        raise SatchelError(f"cannot read {path}: {err.strerror or err}") from err


def delete_file(path: Path, durable: bool = False) -> int:
    """Delete a file or a link, if it is there; the bytes freed.

    Raises:
        SatchelError: it cannot be deleted, or is something else: a directory, a pipe, …
    """
    try:
        freed = path.lstat().st_size
        if not is_file_or_link(path):
            raise SatchelError(f"cannot delete {path}: it is not a file")
        path.unlink()
        if durable:
            sync(path.parent)
    except FileNotFoundError:
        return 0
    except OSError as err:
        raise SatchelError(f"cannot delete {path}: {err.strerror or err}") from err
    return freed


def set_aside(path: Path) -> None:
    """Free the name `path` of what is wrong there, which stays beside it under a name of its own.

    Raises:
        SatchelError: it cannot be renamed.
    """
    try:
        path.rename(path.with_name(f"{path.name}.aside-{secrets.token_hex(4)}"))
        sync(path.parent)
    except OSError as err:
        raise cannot_write(path, err) from err


def cannot_write(path: Path, err: OSError) -> SatchelError:
    """The error for a write that the system refused."""
    return SatchelError(f"cannot write {path}: {err.strerror or err}", "what was saved before is intact")
