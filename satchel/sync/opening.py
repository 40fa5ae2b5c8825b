"""The syncer and the remote that this machine is configured for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from satchel.errors import DamagedError, NetworkError, NotFoundError
from satchel.sync.configuration import SyncConfig, kept_key_object, load_config, sync_dir
from satchel.sync.records import SyncRecords

if TYPE_CHECKING:
    from satchel.cache_store.local import LocalStore
    from satchel.remotes.directory import DirectoryRemote
    from satchel.remotes.remote import Remote
    from satchel.remotes.s3 import S3Remote
    from satchel.sync.syncer import Syncer
    from satchel.sync.transfer import Progress


def open_syncer(store: LocalStore, progress: Callable[[Progress], None] | None = None) -> Syncer:
    """What syncs `store` with this machine's remote, which shows at its first use whether it can be reached.

    Raises:
        NotFoundError: sync is not set up, or the key is not on this machine.
        SatchelError: the configuration or the key is damaged, the keychain locked, credentials half given.
    """
    from satchel.remotes.encrypted import EncryptedRemote
    from satchel.remotes.retry import RetryingRemote
    from satchel.sync.keys import Keys
    from satchel.sync.secrets import load_root
    from satchel.sync.syncer import Syncer

    config = needed_config()
    keys = Keys.of(load_root(config.key_id))
    place = RetryingRemote(open_remote(config))
    remote = EncryptedRemote(place, keys.objects)
    check = partial(_check_place, place, config)
    return Syncer(store, remote, keys, records_of(config), config.exclusive, progress, check)


def _check_place(place: Remote, config: SyncConfig, is_used: bool) -> None:
    """See that the remote is the one that was joined. If it has lost its key object alone, it gets it back.

    Raises:
        NetworkError: there is nothing of ours, and there was at least a key: it is another place.
        DamagedError: it has another key.
    """
    from satchel.sync.keys import KEY_OBJECT, MAX_KEY_OBJECT_BYTES, parse_key_object

    try:
        key_id = parse_key_object(place.get(KEY_OBJECT, MAX_KEY_OBJECT_BYTES)).id
    except NotFoundError as err:
        if not is_used:
            raise NetworkError(
                f"{config.url} is empty, without even the key that was in it",
                "is the volume mounted, or the bucket another one?",
            ) from err
        if kept := kept_key_object(config.key_id):
            place.put(KEY_OBJECT, kept)
        return
    if key_id != config.key_id:
        raise DamagedError(
            f"{config.url} has another key now: it was set up anew",
            "`satchel sync join --replace` joins it with its own passphrase or recovery words",
        )


def open_remote(config: SyncConfig) -> S3Remote | DirectoryRemote:
    """The place itself, which tries nothing twice and encrypts nothing.

    Raises:
        SatchelError: credentials are half given, or the keychain is locked.
    """
    from satchel.remotes.address import RemoteAddress
    from satchel.sync.credentials import s3_credentials

    address = RemoteAddress.parse(config.url)
    credentials = s3_credentials(config.url, config.endpoint) if address.bucket else None
    return address.open(config.endpoint, config.region, credentials)


def needed_config() -> SyncConfig:
    """
    Raises:
        NotFoundError: sync is not set up.
        DamagedError, VersionError: as `load_config`.
    """
    config = load_config()
    if config is None:
        raise NotFoundError(
            "sync is not set up", "`satchel sync setup` begins it, `satchel sync join` on a further machine"
        )
    return config


def note_removals(session_ids: Iterable[str]) -> None:
    """Remember that the user removes these sessions, so that the next sync removes them in the remote, too.

    Raises:
        SatchelError: the disk refused, or the configuration is damaged.
    """
    if config := load_config():
        records_of(config).note_removals(session_ids)


def records_of(config: SyncConfig) -> SyncRecords:
    """What is remembered of one place: a copy of it elsewhere has gone another way."""
    place = hashlib.sha256(f"{config.endpoint or ''} {config.url}".encode()).hexdigest()[:16]
    return SyncRecords(sync_dir() / config.key_id / place)
