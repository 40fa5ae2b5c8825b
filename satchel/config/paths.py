"""The directories Satchel uses. Knows nothing of what is in them."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

APP = "satchel"


def data_dir() -> Path:
    """Sessions and their KV state: `SATCHEL_HOME`, else the platform's user data directory."""
    return _from_env("SATCHEL_HOME") or Path(platformdirs.user_data_dir(APP, appauthor=False))


def cache_dir() -> Path:
    """What can be made again (converted models): `SATCHEL_CACHE`, else the platform's cache directory."""
    return _from_env("SATCHEL_CACHE") or Path(platformdirs.user_cache_dir(APP, appauthor=False))


def config_file() -> Path:
    """The settings file: `SATCHEL_CONFIG`, else `config.toml` in `SATCHEL_HOME` or the platform's place."""
    if explicit := _from_env("SATCHEL_CONFIG"):
        return explicit
    home = _from_env("SATCHEL_HOME")
    return (home or Path(platformdirs.user_config_dir(APP, appauthor=False))) / "config.toml"


def _from_env(name: str) -> Path | None:
    value = os.environ.get(name)
    return Path(value).expanduser() if value else None
