"""Folders and files that appear whole or not at all. Knows nothing of what is in them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """A temporary folder beside `target` that takes its place when the block ends without an error.

    Where another process made `target` meanwhile, theirs stays and ours is dropped.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield work
        for file in work.iterdir():
            _fsync(file)
        _fsync(work)
        try:
            work.rename(target)
        except OSError:
            if not target.is_dir():
                raise
        _fsync(target.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def atomic_file(target: Path) -> Iterator[Path]:
    """The path of a temporary file beside `target` that replaces it when the block ends without an error."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    os.close(handle)
    work = Path(name)
    try:
        yield work
        _fsync(work)
        work.replace(target)
        _fsync(target.parent)
    finally:
        work.unlink(missing_ok=True)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
