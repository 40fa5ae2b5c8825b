"""Files that are named by the SHA-256 (hex) of their bytes: written once, durably, and read whole or not.

Knows nothing of what they hold, who refers to them, or of locks. Where there are many, each is in a directory
by the first two digits of its name.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from satchel.cache_store.frame import object_id
from satchel.errors import DamagedError, NotFoundError
from satchel.files import (
    atomic_write,
    cannot_write,
    is_real_dir,
    private_dir,
    read_file,
    set_aside,
    sync,
)

Put = Callable[[bytes], str]  # stores an object; its id


def sharded_path(folder: Path, object_name: str) -> Path:
    """Where an object is, of many."""
    return folder / object_name[:2] / object_name


@contextlib.contextmanager
def putting_objects(folder: Path) -> Iterator[Put]:
    """What stores an object at its `sharded_path`, unless it is there, whole; from any thread.

    Their names are durable when the `with` block has ended. Each is then one fsync, and so is each
    directory, however many of them it got.

    Raises, and so does what is yielded:
        SatchelError: the disk refused.
    """
    touched: set[Path] = set()
    one_at_a_time = threading.Lock()

    def put(data: bytes) -> str:
        name = object_id(data)
        path = sharded_path(folder, name)
        # A thread that had looked before another one made the directory would set that aside.
        with one_at_a_time:
            if path.parent not in touched:
                _make_shard(path.parent)
                touched.add(path.parent)
        if not _holds(path, data):
            atomic_write(path, data, durable_name=False)
        return name

    yield put
    # Also of objects that were there: who wrote them may have been killed before this.
    for each in (*sorted(touched), folder) if touched else ():
        _sync_names(each)


def put_object(path: Path, data: bytes) -> None:
    """Store an object, unless it is there, whole. It and what was synced before then outlast a loss of power.

    Raises:
        SatchelError: the disk refused.
    """
    if _holds(path, data):
        _sync_names(path.parent, flush_drive=True)  # who wrote it may have been killed before this
    else:
        atomic_write(path, data, flush_drive=True)


def get_object(path: Path, noun: str, max_bytes: int) -> bytes:
    """The bytes of an object, which are the right ones. `noun` is what errors call it.

    Raises:
        NotFoundError: there is no such file.
        DamagedError: it is larger, no file, or its SHA-256 is another.
        SatchelError: it cannot be read.
    """
    data = read_file(path, max_bytes)
    if data is None:
        raise NotFoundError(f"{noun} {path.name[:12]} is missing")
    if object_id(data) != path.name:
        raise DamagedError(f"{noun} {path.name[:12]} is damaged: its SHA-256 is another")
    return data


def _make_shard(folder: Path) -> None:
    """Make a directory of objects if it is missing. Anything in its place, a link too, is set aside."""
    if is_real_dir(folder):
        return
    if os.path.lexists(folder):
        set_aside(folder)
    try:
        private_dir(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as err:
        raise cannot_write(folder, err) from err


def _holds(path: Path, data: bytes) -> bool:
    """Whether the file holds `data`: one that is damaged does not. A directory in its place is set aside."""
    try:
        return read_file(path, max_bytes=len(data)) == data
    except DamagedError:
        if is_real_dir(path):
            set_aside(path)
        return False


def _sync_names(folder: Path, flush_drive: bool = False) -> None:
    try:
        sync(folder, flush_drive)
    except OSError as err:
        raise cannot_write(folder, err) from err
