"""The files of a store that sessions may refer to or not, and what is left over of killed writes and damage.

Knows nothing of who refers to them. Heads, the lock, the index, and what is not the store's are passed over.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from satchel.cache_store.local import LocalStore
from satchel.files import TEMPORARY_PREFIX, scan_dir

Kind = Literal["block", "manifest", "leftover"]

_OBJECT_NAME = re.compile("[0-9a-f]{64}")
_SHARD_NAME = re.compile("[0-9a-f]{2}")
_ASIDE_NAME = re.compile(r".*\.aside-[0-9a-f]+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of the store: a block or a tail, a manifest, or what a killed write or damage left over.

    `since_ns`: when it was written or set aside.
    """

    path: Path
    kind: Kind
    size: int
    since_ns: int

    def is_unchanged_since(self, until_ns: int) -> bool:
        """Whether the file is there, and neither written nor set aside later than that."""
        try:
            return _since_ns(self.path.name, self.path.lstat()) <= until_ns
        except OSError:
            return False


def stored_files(store: LocalStore) -> Iterator[StoredFile]:
    """Every one that is in the store.

    Raises:
        SatchelError: a directory of the store cannot be listed, or is a link.
    """
    for folder in (store.place, store.heads_dir, store.blocks_dir):
        yield from _files_in(store, folder, None)
    yield from _files_in(store, store.manifests_dir, "manifest")
    for entry in scan_dir(store.blocks_dir):
        if _SHARD_NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            yield from _files_in(store, Path(entry.path), "block")


def _files_in(store: LocalStore, folder: Path, objects: Kind | None) -> Iterator[StoredFile]:
    """The store's files in one directory, where those named by a SHA-256 are `objects`."""
    store.refuse_links(folder)
    for entry in scan_dir(folder):
        aside = _ASIDE_NAME.fullmatch(entry.name)
        leftover = aside or entry.name.startswith(TEMPORARY_PREFIX)
        kind: Kind | None = (
            "leftover" if leftover else objects if _OBJECT_NAME.fullmatch(entry.name) else None
        )
        if kind:
            with contextlib.suppress(OSError):  # deleted while we were looking
                status = entry.stat(follow_symlinks=False)
                if entry.is_symlink() or entry.is_file():
                    yield StoredFile(Path(entry.path), kind, status.st_size, _since_ns(entry.name, status))


def _since_ns(name: str, status: os.stat_result) -> int:
    # A rename, such as setting aside, changes the inode's time alone.
    return status.st_ctime_ns if _ASIDE_NAME.fullmatch(name) else status.st_mtime_ns
