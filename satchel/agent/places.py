"""Where a path leads that somebody wrote; nothing here raises, whatever it is. Knows nothing of contents."""

# The functions of `os.path` take what `Path` refuses, and see that a path ends with a slash.
# ruff: noqa: PTH110, PTH111, PTH112, PTH113, PTH118

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def full_path(written: str, base: Path) -> str:
    """`written` as an absolute path; relative to `base`, or to the home directory where it says `~`."""
    with contextlib.suppress(ValueError):  # a NUL in a user's name
        written = os.path.expanduser(written)
    return os.path.join(base, written)


def real_path(path: str | Path) -> Path:
    """The path without links, as far as it exists."""
    try:
        return Path(os.path.realpath(path))
    except ValueError:  # a NUL
        return Path(path)


def is_there(path: str | Path) -> bool:
    """Whether something is at `path`, a link to nothing included."""
    return os.path.lexists(path)


def leads_somewhere(path: str | Path) -> bool:
    return os.path.exists(path)


def is_file(path: str | Path) -> bool:
    """Whether it is a regular file, or a link to one."""
    return os.path.isfile(path)


def is_dir(path: str | Path) -> bool:
    """Whether it is a directory, or a link to one."""
    return os.path.isdir(path)
