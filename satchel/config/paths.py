"""The directories Satchel uses. Knows nothing of what is in them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from satchel.errors import SatchelError, UsageError

APP = "satchel"
MAX_SHOWN = 200  # characters of a path in an error line


def data_dir() -> Path:
    """Sessions and their KV state: `SATCHEL_HOME`, else the platform's user data directory."""
    return _from_env("SATCHEL_HOME") or Path(platformdirs.user_data_dir(APP, appauthor=False))


def cache_dir() -> Path:
    """What can be made again (converted models): `SATCHEL_CACHE`, else the platform's cache directory."""
    return _from_env("SATCHEL_CACHE") or Path(platformdirs.user_cache_dir(APP, appauthor=False))


@contextmanager
def cache_access() -> Iterator[None]:
    """Around work in the cache directory: what the system refuses there becomes one line that names it.

    Raises:
        SatchelError: the directory is none, is full, read-only, not ours, …
    """
    try:
        yield
    except OSError as err:
        raise SatchelError(
            f"the cache directory {str(cache_dir())[:MAX_SHOWN]} cannot be used: {err.strerror or err}",
            "set SATCHEL_CACHE to another one",
        ) from err


def config_file() -> Path:
    """The settings file: `SATCHEL_CONFIG`, else `config.toml` in `SATCHEL_HOME` or the platform's place."""
    if explicit := _from_env("SATCHEL_CONFIG"):
        return explicit
    home = _from_env("SATCHEL_HOME")
    return (home or Path(platformdirs.user_config_dir(APP, appauthor=False))) / "config.toml"


def expand(path: str) -> Path:
    """`path` with the home directory in place of a leading `~` or `~user`.

    Raises:
        UsageError: there is no such user, or no home directory is known.
    """
    try:
        return Path(path).expanduser()
    except (RuntimeError, ValueError) as err:  # ValueError: a NUL in the user's name
        raise UsageError(f"{path[:MAX_SHOWN]!r} names no home directory", "write the path from / on") from err


def _from_env(name: str) -> Path | None:
    value = os.environ.get(name)
    return expand(value) if value else None
