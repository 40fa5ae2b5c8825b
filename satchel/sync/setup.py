"""Makes a remote's key, or gets it from the remote, and has this machine sync there from now on.

Knows nothing of terminals: whoever calls asks for the passphrase, or the words, and shows what comes of it.
The configuration is written last, after the words of a new key were shown. A setup that was killed before
that leaves nothing configured, finds its own key again if it is run once more, and shows the words again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from satchel.errors import DamagedError, NotFoundError, RefusedError, SatchelError, UsageError
from satchel.remotes.probe import Probe, probe
from satchel.remotes.remote import Remote
from satchel.remotes.s3 import Credentials
from satchel.sync.configuration import SyncConfig, keep_key_object, load_config, save_config
from satchel.sync.entries import HEADS
from satchel.sync.keys import (
    KEY_OBJECT,
    MAX_KEY_OBJECT_BYTES,
    KeyObject,
    Keys,
    RootKey,
    check_key_object,
    make_key_object,
    normalised,
    open_key_object,
    parse_key_object,
)
from satchel.sync.secrets import forget_root, load_root, save_credentials, save_root

MIN_PASSPHRASE_LENGTH = 8  # characters


_PUT_BACK = "`satchel sync` on a machine that syncs with it puts it back"


@dataclass(frozen=True, slots=True)
class Destination:
    """A remote as the user names it.

    Attributes:
        credentials: to keep in the keychain; None where they are found without.
    """

    url: str
    endpoint: str | None = None
    region: str | None = None
    credentials: Credentials | None = None

    def __str__(self) -> str:
        return f"{self.url} at {self.endpoint}" if self.endpoint else self.url


@dataclass(frozen=True, slots=True)
class SetUp:
    """What was done.

    Attributes:
        config: how this machine syncs now.
        root: the remote's root key, for its words.
        probe: what the remote can do.
        key_file: where the root key is on this machine; None: in the keychain.
        credentials_kept: whether the keychain took them; None if there were none to keep.
    """

    config: SyncConfig
    root: RootKey
    probe: Probe
    key_file: Path | None
    credentials_kept: bool | None


def check_passphrase(passphrase: str) -> None:
    """
    A remote's owner can try passphrases without end (`satchel.sync.keys` says at what cost). Whoever finds a
    weak one reads all sessions, also those that were synced before and those still to come: a passphrase
    cannot be changed later for what has been copied.

    Raises:
        UsageError: it has fewer than 8 characters, or is not text.
    """
    if len(normalised(passphrase)) < MIN_PASSPHRASE_LENGTH:
        raise UsageError(
            f"a passphrase has at least {MIN_PASSPHRASE_LENGTH} characters",
            "five random words make a good one",
        )


def replaced_by(destination: Destination) -> SyncConfig | None:
    """The remote that this machine would no longer sync with; None if it is this one, or if there is none.

    Raises:
        VersionError: a later version configured one.
        SatchelError: the configuration cannot be read.
    """
    config = _configured()
    if config is None or (config.url, config.endpoint) == (destination.url, destination.endpoint):
        return None
    return config


def has_passphrase(remote: Remote, destination: Destination) -> bool:
    """Whether a passphrase opens the remote's key, or only the recovery words.

    Raises:
        NotFoundError: the remote was never set up.
        DamagedError, VersionError: its key object cannot be understood.
        NetworkError: it cannot be reached.
    """
    return parse_key_object(_key_object(remote, destination)).passphrase is not None


def check_free(remote: Remote) -> None:
    """Find out, before a passphrase is known, whether `set_up` can do something.

    Raises:
        RefusedError: the remote was set up before, and not by a setup of this machine that was killed.
        DamagedError, VersionError: its key object cannot be understood.
        NetworkError: it cannot be reached.
        SatchelError: the configuration cannot be read.
    """
    there = _find_key_object(remote)
    if there is not None and _unfinished(parse_key_object(there)) is None:
        raise _taken()


def set_up(
    remote: Remote, destination: Destination, passphrase: str | None, show: Callable[[RootKey], None]
) -> SetUp:
    """Make a new remote of what is empty as far as Satchel is concerned.

    Args:
        remote: at `destination`; not one that encrypts.
        passphrase: what opens the remote's key elsewhere, beside the recovery words; None: they alone.
        show: shows the key's words, once it is in the remote. What it raises, or being killed meanwhile,
            leaves nothing configured.

    Raises:
        UsageError: the passphrase is too short.
        RefusedError: the remote was set up before, or by another machine just now.
        DamagedError, VersionError: it was, and its key object cannot be understood.
        NetworkError: the remote cannot be reached, or cannot do what sync needs.
        SatchelError: the keychain is locked, or the disk refused.
    """
    if passphrase is not None:
        check_passphrase(passphrase)
    root: RootKey | None = None
    if (there := _find_key_object(remote)) is not None:
        root = _own_root(there, passphrase)
        if root is None:
            raise _taken()
    elif _holds_sessions(remote):
        raise RefusedError("this remote holds sessions, and has lost their key", _PUT_BACK)
    found = probe(remote)
    if root is None:
        root = RootKey.generate()
        _create(remote, found.exclusive, root, passphrase)
    keep_key_object(Keys.of(root).id, _key_object(remote, destination))
    return _finish(destination, root, found, show)


def join(
    remote: Remote, destination: Destination, *, passphrase: str | None = None, words: str | None = None
) -> SetUp:
    """Have this machine sync with a remote that was set up before, with its passphrase or its recovery words.

    Raises:
        UsageError: the passphrase or the words are wrong.
        NotFoundError: the remote was never set up.
        DamagedError, VersionError: its key object cannot be understood.
        NetworkError, SatchelError: as of `set_up`.
    """
    if (passphrase is None) == (words is None):
        raise ValueError("either the passphrase or the words")
    there = _key_object(remote, destination)
    if words is not None:
        root = RootKey.from_words(words)
        check_key_object(there, root)
    else:
        assert passphrase is not None
        root = open_key_object(there, passphrase)
    keep_key_object(Keys.of(root).id, there)
    return _finish(destination, root, probe(remote))


def _create(remote: Remote, exclusive: bool, root: RootKey, passphrase: str | None) -> None:
    """Put the key object into the remote, with this machine keeping the key already: were it killed in
    between, nobody could ever open what only words open, which were not shown yet.

    Where the remote lets several create it, two machines may do so at once, and the later one wins. The other
    notices if that has happened by the time it reads again.
    """
    data, key_id = make_key_object(root, passphrase), Keys.of(root).id
    save_root(root, key_id)
    if exclusive:
        created = remote.put_if_absent(KEY_OBJECT, data)
    else:
        created = _find_key_object(remote) is None
        if created:
            remote.put(KEY_OBJECT, data)
    if not created or _find_key_object(remote) != data:
        forget_root(key_id)
        raise _taken()


def _finish(
    destination: Destination,
    root: RootKey,
    found: Probe,
    show: Callable[[RootKey], None] = lambda root: None,
) -> SetUp:
    key_id = Keys.of(root).id
    key_file = save_root(root, key_id)
    kept = None
    if destination.credentials is not None:
        kept = save_credentials(destination.url, destination.credentials)
    config = SyncConfig(
        url=destination.url,
        endpoint=destination.endpoint,
        region=destination.region,
        key_id=key_id,
        exclusive=found.exclusive,
    )
    show(root)
    save_config(config)
    return SetUp(config, root, found, key_file, kept)


def _own_root(there: bytes, passphrase: str | None) -> RootKey | None:
    """The key of a setup with this passphrase that was killed on this machine, if it made the key object."""
    key_object = parse_key_object(there)
    root = _unfinished(key_object)
    if root is None or (key_object.passphrase is None) != (passphrase is None):
        return None
    with contextlib.suppress(SatchelError):  # opened by another passphrase
        if passphrase is None or open_key_object(there, passphrase) == root:
            return root
    return None


def _unfinished(key_object: KeyObject) -> RootKey | None:
    """The key of a remote that this machine has and is not configured for."""
    configured = _configured()
    if configured is None or configured.key_id != key_object.id:
        with contextlib.suppress(SatchelError):  # it is not here
            return load_root(key_object.id)
    return None


def _configured() -> SyncConfig | None:
    """A damaged configuration counts as none: to replace it is the way out."""
    with contextlib.suppress(DamagedError):
        return load_config()
    return None


def _key_object(remote: Remote, destination: Destination) -> bytes:
    if (data := _find_key_object(remote)) is None:
        if _holds_sessions(remote):
            raise NotFoundError("this remote has lost its key", _PUT_BACK)
        raise NotFoundError(
            f"{destination} was never set up: there is no key in it", "set it up with `satchel sync setup`"
        )
    return data


def _holds_sessions(remote: Remote) -> bool:
    return next(iter(remote.list(HEADS)), None) is not None


def _find_key_object(remote: Remote) -> bytes | None:
    try:
        return remote.get(KEY_OBJECT, MAX_KEY_OBJECT_BYTES)
    except NotFoundError:
        return None
    except DamagedError as err:
        raise DamagedError(f"the key object {KEY_OBJECT} is damaged: {err}") from err


def _taken() -> RefusedError:
    return RefusedError("this remote is set up already", "join it with `satchel sync join`")
