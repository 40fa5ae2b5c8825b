"""Where this machine keeps the keys of its remotes: the system's keychain, or, where none works, a file.

Knows nothing of remotes. Credentials are never put into a file. What goes wrong is told without any secret:
errors of a keychain are quoted only where it was asked for something, not where it was given something.
"""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from satchel.cache_store.record import Record
from satchel.cache_store.snapshot import canonical_json
from satchel.errors import DamagedError, NotFoundError, SatchelError, VersionError
from satchel.files import atomic_write, delete_file, read_file
from satchel.sync.configuration import sync_dir
from satchel.sync.keys import KEY_BYTES, Keys, RootKey

if TYPE_CHECKING:
    from types import ModuleType

    from satchel.remotes.s3 import Credentials

SERVICE = "satchel"
MAX_SHOWN = 200  # characters of what a keychain says

_JOIN = "join the remote again with `satchel sync join`"


class _NoKeychain(SatchelError):
    """None works here."""


class _MissingKeychain(_NoKeychain):
    """There is none that could hold anything, as opposed to one that fails."""


class _LockedError(SatchelError):
    """There is one, and its owner has to open it, or has just refused to."""


class _StoredCredentials(Record):
    access_key: Annotated[str, Field(repr=False)]
    secret_key: Annotated[str, Field(repr=False)]
    session_token: Annotated[str | None, Field(repr=False)] = None


def save_root(root: RootKey, key_id: str) -> Path | None:
    """Keep a remote's root key on this machine.

    Returns:
        The file (mode 0600) that it is in, or None: it is in the keychain.

    Raises:
        SatchelError: the keychain is locked, or the disk refused.
    """
    secret = root.secret.hex()
    if _put(key_id, secret):
        delete_file(_key_path(key_id))
        return None
    atomic_write(_key_path(key_id), secret.encode() + b"\n")
    return _key_path(key_id)


def load_root(key_id: str) -> RootKey:
    """The root key that was saved under its id.

    Raises:
        NotFoundError: it is not on this machine.
        DamagedError: what is there is another.
        SatchelError: the keychain, where it must be if it is here, is locked or does not work.
    """
    path = _key_path(key_id)
    # The file first, so that a machine with no keychain does not wait for one at each sync.
    if (data := read_file(path, 2 * KEY_BYTES + 1)) is not None:
        return _root(data.decode("ascii", "replace").strip(), key_id, str(path))
    secret: str | None = None
    with contextlib.suppress(_MissingKeychain):
        secret = _get(key_id)
    if secret is None:
        raise NotFoundError("the key of the remote is not on this machine", _JOIN)
    return _root(secret, key_id, "the system keychain")


def forget_root(key_id: str) -> None:
    """Keep a root key no longer, if it is here.

    Raises:
        SatchelError: the keychain is locked, or the file cannot be deleted.
    """
    delete_file(_key_path(key_id))
    _delete(key_id)


def save_credentials(url: str, credentials: Credentials) -> bool:
    """Keep what opens the bucket at `url` in the keychain; whether that worked.

    Raises:
        SatchelError: the keychain is locked.
    """
    stored = _StoredCredentials(
        access_key=credentials.access_key,
        secret_key=credentials.secret_key,
        session_token=credentials.session_token,
    )
    return _put(url, canonical_json(stored.stored()).decode())


def load_credentials(url: str) -> Credentials | None:
    """What was saved for `url`; None if nothing was, or if no keychain works.

    Raises:
        DamagedError: what is there is something else.
        SatchelError: the keychain is locked.
    """
    from satchel.remotes.s3 import Credentials

    found: str | None = None
    with contextlib.suppress(_NoKeychain):
        found = _get(url)
    if found is None:
        return None
    stored: _StoredCredentials | None = None
    # Not raised from the error, which quotes what it did not understand.
    with contextlib.suppress(DamagedError, VersionError):
        stored = _StoredCredentials.parse(found.encode())
    if stored is None:
        raise DamagedError(f"the credentials for {url} in the system keychain are damaged", _JOIN)
    return Credentials(stored.access_key, stored.secret_key, stored.session_token)


def _root(text: str, key_id: str, where: str) -> RootKey:
    root: RootKey | None = None
    with contextlib.suppress(ValueError):
        root = RootKey(bytes.fromhex(text))
    if root is None or Keys.of(root).id != key_id:
        raise DamagedError(f"the key of the remote in {where} is damaged", _JOIN)
    return root


def _key_path(key_id: str) -> Path:
    return sync_dir() / key_id / "key"


def _put(user: str, secret: str) -> bool:
    """Whether the keychain holds it now. It is asked: `keyring`'s null backend takes all and keeps none."""
    try:
        with _keychain() as keyring:
            keyring.set_password(SERVICE, user, secret)
            return keyring.get_password(SERVICE, user) == secret
    except _NoKeychain:
        return False


def _get(user: str) -> str | None:
    with _keychain() as keyring:
        return keyring.get_password(SERVICE, user)


def _delete(user: str) -> None:
    with contextlib.suppress(_NoKeychain), _keychain() as keyring:
        if keyring.get_password(SERVICE, user) is not None:
            keyring.delete_password(SERVICE, user)


@contextmanager
def _keychain() -> Iterator[ModuleType]:
    """
    Raises:
        _LockedError, _NoKeychain: as their names say.
    """
    try:
        import keyring
        from keyring.errors import KeyringLocked, NoKeyringError
    except ImportError as err:  # as on systems that lack what its backends need
        raise _MissingKeychain("there is no system keychain") from err
    try:
        yield keyring
    except KeyringLocked as err:
        raise _LockedError(
            "the system keychain is locked, or does not let Satchel in", "unlock it and try again"
        ) from err
    except NoKeyringError as err:
        raise _MissingKeychain("there is no system keychain") from err
    except Exception as err:  # backends are plugins, each with errors of its own
        said = textwrap.shorten(str(err), MAX_SHOWN, placeholder=" …")
        raise _NoKeychain(f"the system keychain cannot be used: {said}") from err
