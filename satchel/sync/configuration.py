"""Which remote this machine syncs with. Holds no secrets, and knows nothing of what is in the remote."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

from pydantic import Field

from satchel.cache_store.record import Record
from satchel.cache_store.snapshot import canonical_json
from satchel.config.paths import data_dir
from satchel.errors import DamagedError, SatchelError, VersionError
from satchel.files import atomic_write, read_file

MAX_CONFIG_BYTES = 16 << 10

KeyId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
_Text = Annotated[str, Field(min_length=1, max_length=2048)]


class SyncConfig(Record):
    """The remote of this machine.

    Attributes:
        url: `s3://bucket/prefix` or `file:///path`.
        endpoint: of an S3 service that is not AWS.
        region: None for the one that boto3 finds.
        key_id: the `Keys.id` of the remote's root key.
        exclusive: whether the remote lets one alone create an object of a name, as found at setup.
    """

    url: _Text
    endpoint: _Text | None = None
    region: _Text | None = None
    key_id: KeyId
    exclusive: bool


def sync_dir() -> Path:
    return data_dir() / "sync"


def config_path() -> Path:
    return sync_dir() / "remote.json"


def is_configured() -> bool:
    """Whether `load_config` finds something, be it damaged."""
    return config_path().is_file()


def load_config() -> SyncConfig | None:
    """None where sync was never set up.

    Raises:
        DamagedError, VersionError: it cannot be understood; names the file and what to do.
        SatchelError: it cannot be read.
    """
    path = config_path()
    data = read_file(path, MAX_CONFIG_BYTES)
    if data is None:
        return None
    try:
        return SyncConfig.parse(data)
    except DamagedError as err:
        raise DamagedError(
            f"{path} is damaged: {err}", "join the remote again with `satchel sync join`"
        ) from err
    except VersionError as err:
        raise VersionError(f"{path} cannot be read: {err}") from err


def keep_key_object(key_id: str, data: bytes) -> None:
    """Keep what the remote has of its key, which is public, so that it can get it back.

    Raises:
        SatchelError: the disk refused.
    """
    atomic_write(_kept_path(key_id), data)


def kept_key_object(key_id: str) -> bytes | None:
    """What was kept; None if nothing was, or if it cannot be read."""
    with contextlib.suppress(SatchelError):
        return read_file(_kept_path(key_id), MAX_CONFIG_BYTES)
    return None


def _kept_path(key_id: str) -> Path:
    return sync_dir() / key_id / "key-object.json"


def save_config(config: SyncConfig) -> None:
    """
    Raises:
        SatchelError: the disk refused; the former configuration is intact.
    """
    atomic_write(config_path(), canonical_json(config.stored()) + b"\n")
