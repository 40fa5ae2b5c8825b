"""Sessions that go from one person to another: sealed, in a file or behind a link that ends by itself.

A link is a signed web address, and after `#`, which is never sent to a server, the key. Beside a file the key
is given as `FILE#key`. Knows nothing of terminals. A link or a key stands in no error.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable
from urllib.parse import parse_qs, urlsplit

from satchel.cache_store.loading import load_snapshot
from satchel.cache_store.local import LocalStore
from satchel.cache_store.manifest import Manifest
from satchel.cache_store.snapshot import Snapshot
from satchel.config.units import parse_duration_s
from satchel.errors import DamagedError, NotFoundError, SatchelError, UsageError, VersionError
from satchel.exchange.bundle import MAX_BYTES, check_room, read_bundle, write_bundle
from satchel.exchange.download import Progress, download
from satchel.exchange.saving import Imported, Wanted, check_labels, save_copy
from satchel.exchange.sealed import SealKey, Unsealer, sealing
from satchel.exchange.words import check_file
from satchel.remotes.encrypted import padded_bytes
from satchel.remotes.remote import Remote
from satchel.remotes.retry import RetryingRemote
from satchel.remotes.s3 import MAX_LINK_S
from satchel.sync.collect import SHARES

MIN_EXPIRY_S = 60
# A bundle's objects, the manifest, headers and padding, all sealed.
MAX_SEALED_BYTES = MAX_BYTES + MAX_BYTES // 16

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_ZEROS = bytes(1 << 20)


@runtime_checkable
class LinkRemote(Remote, Protocol):
    """A remote that can make signed addresses."""

    def put_file(self, name: str, path: Path) -> None:
        """As `put`, of a file's content."""

    def presigned_url(self, name: str, seconds: int) -> str:
        """An address that gives the object to whoever asks, for so long."""


class RetryingLinkRemote(RetryingRemote):
    """A `LinkRemote` that does as a `RetryingRemote` does."""

    def __init__(self, inner: LinkRemote) -> None:
        super().__init__(inner)
        self._signer = inner

    def put_file(self, name: str, path: Path) -> None:
        self._try(lambda: self._signer.put_file(name, path))

    def presigned_url(self, name: str, seconds: int) -> str:
        return self._signer.presigned_url(name, seconds)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a sealed session is: a web address or a file's path, and the key if it came with that."""

    place: str
    is_link: bool
    key: SealKey | None


# Giving


def parse_expiry_s(text: str) -> int:
    """
    Raises:
        UsageError: it is no time, or not one that a link can have.
    """
    expiry_s = parse_duration_s(text)
    if not MIN_EXPIRY_S <= expiry_s <= MAX_LINK_S:
        raise UsageError(f"a link cannot last for {text.strip()}", "1m to 7d are possible")
    return int(expiry_s)


def open_link_remote(session: str | None) -> LinkRemote:
    """The configured remote, without its encryption: a bundle is sealed with a key of its own.

    Args:
        session: what is to be shared, by its name or id, for the hint at what works without a bucket.

    Raises:
        NotFoundError: none is set up.
        UsageError: it makes no links.
        SatchelError: it cannot be opened.
    """
    from satchel.sync.configuration import load_config
    from satchel.sync.opening import open_remote

    file = shlex.quote(f"{session}.satchel") if session else "FILE"
    seals = f"`satchel share {shlex.quote(session or 'NAME')} --output {file}` seals the talk into a file"
    config = load_config()
    if config is None:
        raise NotFoundError("a link needs a bucket", f"`satchel sync setup` sets one up, or {seals}")
    remote = open_remote(config)
    if not isinstance(remote, LinkRemote):
        raise UsageError("only a bucket makes links", seals)
    return RetryingLinkRemote(remote)


def seal_session(path: Path, store: LocalStore, manifest: Manifest) -> SealKey:
    """Write the session of `manifest` to a file, sealed with a new key.

    Its size says little of the session's: see `padded_bytes`.

    Raises:
        DamagedError: some of its state is missing or damaged.
        OSError: the disk refused.
    """
    key = SealKey.generate()
    with path.open("wb") as file, sealing(file, key) as sealed:
        write_bundle(sealed, store, manifest)
        padding = padded_bytes(sealed.size) - sealed.size
        while padding:
            padding -= sealed.write(_ZEROS[:padding])
    return key


def share_session(remote: LinkRemote, store: LocalStore, manifest: Manifest, expiry_s: int) -> str:
    """A link to a copy of the session, which works for `expiry_s` seconds. The copy stays in the bucket.

    Raises:
        DamagedError: as `seal_session`.
        NetworkError: the remote refused.
        SatchelError: the disk refused.
    """
    name = SHARES + secrets.token_hex(16)
    with _workspace() as folder:
        path = folder / "sealed"
        key = seal_session(path, store, manifest)
        remote.put_file(name, path)
    # Only now: the time that sending takes is not taken from the link.
    return f"{remote.presigned_url(name, expiry_s)}#{key.text()}"


def ends_early(link: str) -> bool:
    """Whether the link may end before its time: credentials that end by themselves take it with them."""
    return "X-Amz-Security-Token" in parse_qs(urlsplit(link).query)


# Taking


def parse_origin(text: str) -> Origin:
    """What `satchel receive` is given: a link or a file's path, either alone or with `#key`.

    Raises:
        UsageError: another kind of address, or what is no key.
    """
    text = text.strip()
    scheme = _SCHEME.match(text)
    if not scheme and text and (os.path.lexists(text) or "#" not in text):
        return Origin(text, is_link=False, key=None)
    place, _, key = text.partition("#") if scheme else text.rpartition("#")
    if not place:
        raise UsageError("neither a link nor a file is named", "give it as LINK#key or FILE#key")
    if scheme and scheme.group().lower() not in ("https://", "http://"):
        raise UsageError("links begin with https:// or http://", "a file is given by its path")
    if scheme and not key:
        return Origin(place, is_link=True, key=None)
    return Origin(place, bool(scheme), SealKey.from_text(key))


def receive_session(
    store: LocalStore,
    origin: Origin,
    key: SealKey,
    *,
    name: str | None = None,
    model: str | None = None,
    progress: Progress | None = None,
) -> Imported:
    """The session that was sealed, as a new one in the store: the same words, state and chain keys.

    All of it is there, whole, and checked before anything gets into the store.

    Args:
        name: the session's; one like its present one if not given.
        model: the name to load its model by here; the one that comes with it if not given.

    Raises:
        NotFoundError: there is no such file, or nothing behind the link.
        NetworkError: the link has expired, or its server did not answer.
        DamagedError: the key is another, it is damaged, or it is none; as `check_labels`.
        VersionError: it was made by another version.
        UsageError: it is a folder or the like; the name breaks the rule, or another session has it.
        SatchelError: the disk refused.
    """
    check_origin(origin)
    with _workspace() as folder:
        if origin.is_link:
            path, label = folder / "sealed", "the shared session"
            with path.open("w+b") as file:
                download(origin.place, file, MAX_SEALED_BYTES, partial(check_room, folder), progress)
        else:
            path = Path(origin.place)
            label = path.name
        try:
            manifest, snapshot = _unseal(path, key, folder)
            check_labels(model_name="" if model else manifest.model_name, profile_name=manifest.profile_name)
        except (DamagedError, VersionError) as err:
            raise type(err)(f"{label} cannot be received: {err}", err.hint) from err
    return save_copy(
        store,
        Wanted(name, (manifest.name,)),
        manifest,
        snapshot,
        model=model,
        refused=f"{label} cannot be received",
    )


def check_origin(origin: Origin) -> None:
    """See that there is a file, if it is one that is named: before somebody looks for its key.

    Raises:
        NotFoundError: there is no such file.
        UsageError: it is something else.
        SatchelError: it is not known, as where a folder above it may not be entered.
    """
    if origin.is_link:
        return
    path, hint = Path(origin.place), "name the file that was shared, or give the whole link"
    try:
        check_file(path)
    except NotFoundError as err:
        raise NotFoundError(str(err), hint) from err
    except DamagedError as err:
        raise UsageError(str(err), hint) from err
    except OSError as err:
        raise SatchelError(f"cannot read {path}: {err.strerror or err}") from err


def _unseal(path: Path, key: SealKey, folder: Path) -> tuple[Manifest, Snapshot | None]:
    try:
        with path.open("rb") as file:
            manifest, held = read_bundle(Unsealer(file, key), folder)
    except OSError as err:
        raise SatchelError(f"cannot read {path}: {err.strerror or err}") from err
    try:
        return manifest, load_snapshot(held, manifest)
    except NotFoundError as err:  # somebody clears up the place for temporary files
        raise SatchelError(f"what was received is lost: {err}", "try again") from err


@contextlib.contextmanager
def _workspace() -> Iterator[Path]:
    """A folder that nobody else reads, and that is gone afterwards with all that is in it.

    Raises:
        SatchelError: the disk refused; also what the block does there.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="satchel-") as folder:
            yield Path(folder)
    except OSError as err:
        raise SatchelError(f"cannot write below {tempfile.gettempdir()}: {err.strerror or err}") from err
