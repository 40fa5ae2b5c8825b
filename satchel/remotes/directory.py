"""Objects as files below a directory: a network drive, a synced folder. Knows nothing of who syncs it."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISREG

from satchel import files
from satchel.errors import DamagedError, NetworkError, NotFoundError, SatchelError
from satchel.remotes.remote import OURS, Listed, Stat, check_name, check_prefix

# What `link` says on file systems that have no such thing (exFAT, SMB, some of FUSE).
_NO_LINKS = (
    errno.EPERM,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
    errno.EMLINK,
    errno.EACCES,
    errno.EXDEV,
)


def make_last_folder(path: Path) -> bool:
    """Make the folder of a new remote, if the one above it is there; whether it was made.

    Those further above never are: where a drive should be mounted, an empty folder would stand in for it.

    Raises:
        NetworkError: the disk refused.
    """
    try:
        path.mkdir(mode=0o700)
        files.sync(path.parent)
    except (FileExistsError, FileNotFoundError):
        return False
    except OSError as err:
        raise NetworkError(f"cannot make {path.name} in {path.parent}: {err.strerror or err}") from err
    return True


class DirectoryRemote:
    """A `Remote` below a directory that is there.

    `put_if_absent` excludes whoever uses the same file system, but nobody who has a synced copy of it.
    Ages are by the clock of the file system; a file that was synced from elsewhere may have been dated there.
    Links below the directory are not followed, and nothing is done to what they stand for.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._clock_ahead_s: float | None = None  # of the file system's clock before this process's own

    def put(self, name: str, data: bytes) -> None:
        path = self._place(name, make=True)
        with self._translated(f"write {name}"):
            files.atomic_write(path, data)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        path = self._place(name, make=True)
        with self._translated(f"write {name}"):
            descriptor, temporary = tempfile.mkstemp(prefix=files.TEMPORARY_PREFIX, dir=path.parent)
            work = Path(temporary)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                files.sync(work)
                created = _create_from(work, path)
            finally:
                work.unlink(missing_ok=True)
            if created:
                files.sync(path.parent)
            return created

    def get(self, name: str, max_bytes: int) -> bytes:
        with self._translated(f"read {name}"):
            data = files.read_file(self._place(name), max_bytes)
        if data is None:
            raise NotFoundError(f"there is no object {name} in {self._root}")
        return data

    def stat(self, name: str) -> Stat | None:
        path = self._place(name)
        with self._translated(f"read {name}"):
            try:
                status = path.stat(follow_symlinks=False)
            except FileNotFoundError:
                return None
        return Stat(status.st_size, self._age_s(status)) if S_ISREG(status.st_mode) else None

    def list(self, prefix: str) -> Iterator[Listed]:
        """As of `Remote`; links, temporary files and what else cannot be an object's are passed over."""
        check_prefix(prefix)
        place = self._place(prefix.removesuffix("/")) if prefix else self._existing_root()
        with self._translated(f"list {prefix or self._root}"):
            yield from self._below(place, prefix)

    def delete(self, name: str) -> None:
        path = self._place(name)
        with self._translated(f"delete {name}"):
            files.delete_file(path)

    def drop_empty_folder(self, prefix: str) -> None:
        """Delete the folder of the objects below `prefix`, if it is there and there are none."""
        with self._translated(f"clear {prefix}"), contextlib.suppress(OSError):  # not empty; never made
            self._place(prefix.removesuffix("/")).rmdir()

    def abort_old_uploads(self, age_s: float) -> int:
        """Delete what was written of objects by whoever was killed and began so long ago; how many.

        What lies beside our objects is left alone.
        """
        deleted = 0
        ours = self._place(OURS.removesuffix("/"))
        with self._translated(f"clear {self._root}"):
            for folder, names in _real_folders(ours):
                for path in (folder / name for name in names if name.startswith(files.TEMPORARY_PREFIX)):
                    with contextlib.suppress(FileNotFoundError):  # finished meanwhile
                        age = self._age_s(path.stat(follow_symlinks=False))
                        if age is not None and age >= age_s:
                            path.unlink()
                            deleted += 1
        return deleted

    def _existing_root(self) -> Path:
        """
        Raises:
            NetworkError: the directory is not there. It is not made here: see `make_last_folder`.
        """
        with self._translated("look for a folder"):
            if not self._root.is_dir():
                if os.path.lexists(self._root):
                    raise NetworkError(f"{self._root} is not a folder", "name another one")
                raise NetworkError(f"{self._root} is not there", "mount it, or make the folder")
        return self._root

    def _place(self, name: str, make: bool = False) -> Path:
        """Where an object is, or a folder of them.

        Args:
            make: the folders above it, where they are missing.

        Raises:
            NetworkError: a part of the way is a link or no folder, or the root is not there.
        """
        path = self._existing_root()
        *folders, last = check_name(name).split("/")
        for part in folders:
            path /= part
            if files.is_link(path):
                raise _is_link(path)
            if make and not files.is_real_dir(path):
                with self._translated(f"make {path}"), contextlib.suppress(FileExistsError):
                    path.mkdir(mode=0o700)
                    files.sync(path.parent)
        path /= last
        if files.is_link(path):
            raise _is_link(path)
        return path

    def _below(self, folder: Path, prefix: str) -> Iterator[Listed]:
        for entry in files.scan_dir(folder):
            name = prefix + entry.name
            with contextlib.suppress(ValueError, FileNotFoundError):  # no object's name; gone by now
                check_name(name)
                if entry.is_dir(follow_symlinks=False):
                    yield from self._below(folder / entry.name, f"{name}/")
                elif entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    tag = f"{status.st_mtime_ns}-{status.st_ino}"
                    yield Listed(name, status.st_size, self._age_s(status), tag)

    def _age_s(self, status: os.stat_result) -> float | None:
        """By the clock that the file system stamps files with, which is found once: it may be a server's."""
        if self._clock_ahead_s is None:
            try:
                with tempfile.TemporaryFile(prefix=files.TEMPORARY_PREFIX, dir=self._root) as fresh:
                    fresh.write(b"\0")
                    fresh.flush()
                    self._clock_ahead_s = os.fstat(fresh.fileno()).st_mtime - time.monotonic()
            except OSError:  # not to be written to
                return None
        return max(0.0, time.monotonic() + self._clock_ahead_s - status.st_mtime)

    @contextlib.contextmanager
    def _translated(self, action: str) -> Iterator[None]:
        """The system's refusals as errors of a remote."""
        try:
            yield
        except (NetworkError, NotFoundError, DamagedError):
            raise
        except SatchelError as err:
            raise NetworkError(str(err)) from err
        except OSError as err:
            raise NetworkError(f"cannot {action} in {self._root}: {err.strerror or err}") from err


def _create_from(work: Path, path: Path) -> bool:
    """Give the finished file `work` the name `path`, unless that is taken; whether it was free."""
    try:
        os.link(work, path, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError as err:
        if err.errno not in _NO_LINKS:
            raise
    else:
        return True
    # Whoever makes the empty file has the name, and at once puts the whole one in its place.
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    try:
        work.replace(path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return True


def _real_folders(root: Path) -> Iterator[tuple[Path, list[str]]]:
    """The folder and those below it that no link leads to, each with the names of its files."""
    for folder, _, names in os.walk(root, followlinks=False):
        yield Path(folder), names


def _is_link(path: Path) -> NetworkError:
    return NetworkError(f"{path} is a link, which no object is reached by", "remove it")
