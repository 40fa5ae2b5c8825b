"""The objects of a session to a remote and from it, several at a time. Knows nothing of entries.

Objects keep the names that the store gives them, the SHA-256 of their bytes, behind a keyed digest: whoever
has the remote cannot tell whether a known text is in it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from satchel.cache_store import frame
from satchel.cache_store.local import LocalStore
from satchel.cache_store.manifest import MAX_MANIFEST_BYTES, Manifest, TailRef, decode_manifest
from satchel.errors import DamagedError
from satchel.remotes.encrypted import stored_bytes
from satchel.remotes.remote import Remote
from satchel.sync.entries import BLOCKS, MANIFESTS
from satchel.sync.keys import Keys
from satchel.sync.parallel import in_parallel
from satchel.sync.report import SyncReport

# An object that no session needs is deleted after a while: what is older may be gone before it is named. This
# is half of the least grace period of a collection, which leaves as much for naming it.
TRUSTED_AGE_S = 12 * 3600.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a session's transfer is. `verb` is `sending` or `fetching`, `name` the session's."""

    verb: str
    name: str
    done_bytes: int
    total_bytes: int


class RemoteObjects:
    """The blocks and manifests in an encrypted remote, by the ids that stores give them."""

    def __init__(self, remote: Remote, keys: Keys) -> None:
        self.remote, self._keys = remote, keys

    def block_name(self, block_id: str) -> str:
        return BLOCKS + self._keys.name("block", block_id)

    def manifest_name(self, manifest_id: str) -> str:
        return MANIFESTS + self._keys.name("manifest", manifest_id)

    def manifest(self, manifest_id: str) -> tuple[Manifest, bytes]:
        """A manifest and its stored bytes.

        Raises:
            NotFoundError: it is not in the remote.
            DamagedError, VersionError: not what was stored, or of another version; names the object.
        """
        stored = self._get(self.manifest_name(manifest_id), MAX_MANIFEST_BYTES, manifest_id)
        return decode_manifest(stored), stored

    def block(self, ref: TailRef) -> bytes:
        """A block or a tail, stored. Raises as `manifest`."""
        return self._get(self.block_name(ref.sha256), ref.stored_bytes, ref.sha256)

    def _get(self, name: str, max_bytes: int, object_id: str) -> bytes:
        data = self.remote.get(name, max_bytes)
        if frame.object_id(data) != object_id:  # authentic, so that only a faulty writer made it
            raise DamagedError(f"object {name} holds something else")
        return data


class Transfer:
    """Moves objects between `store` and a remote, and counts them in `report`.

    Args:
        again: send what is in the remote as well: it may be damaged.
    """

    def __init__(
        self,
        store: LocalStore,
        objects: RemoteObjects,
        report: SyncReport,
        again: bool = False,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self._store, self._objects = store, objects
        self._report, self._again, self._progress = report, again, progress
        self._guard = threading.Lock()

    # -- to the remote ---------------------------------------------------------------------------------

    def send_manifest(self, manifest_id: str, stored: bytes) -> None:
        """Always anew: it is small, and a collection in the remote spares what is young."""
        self._objects.remote.put(self._objects.manifest_name(manifest_id), stored)
        self._count(sent=len(stored))

    def send_blocks(
        self, name: str, refs: Iterable[TailRef], is_needed: Callable[[str], bool]
    ) -> tuple[str, ...]:
        """Send blocks and tails that the remote has not; ids of those that it had.

        Args:
            name: the session's.
            is_needed: whether a session in the remote needs the object of this id, so that it stays there.

        Raises:
            NotFoundError, DamagedError: one is missing or damaged here, and not in the remote.
        """
        unique = {ref.sha256: ref for ref in refs}.values()
        step = self._steps("sending", name, sum(ref.stored_bytes for ref in unique))

        def send(ref: TailRef) -> str | None:
            remote_name = self._objects.block_name(ref.sha256)
            there = None if self._again else self._objects.remote.stat(remote_name)
            if there and there.size == stored_bytes(ref.stored_bytes):
                young = there.age_s is not None and there.age_s < TRUSTED_AGE_S
                if young or is_needed(ref.sha256):
                    step(ref.stored_bytes)
                    return ref.sha256
            self._objects.remote.put(remote_name, self._store.get_block(ref.sha256, ref.stored_bytes))
            self._count(sent=ref.stored_bytes)
            step(ref.stored_bytes)
            return None

        return tuple(had for had in in_parallel(send, unique) if had)

    # -- from the remote -------------------------------------------------------------------------------

    def fetch_manifest(self, manifest_id: str) -> tuple[Manifest, bytes]:
        """As `RemoteObjects.manifest`."""
        manifest, stored = self._objects.manifest(manifest_id)
        self._count(received=len(stored))
        return manifest, stored

    def fetch_blocks(self, name: str, refs: Iterable[TailRef]) -> None:
        """Fetch blocks and tails into the store that it has not. `name` is the session's.

        Raises:
            NotFoundError: one is not in the remote.
            DamagedError, VersionError: one is not what was stored; names the object.
            SatchelError: the disk refused.
        """
        missing = {ref.sha256: ref for ref in refs if not self._store.has_block(ref)}.values()
        step = self._steps("fetching", name, sum(ref.stored_bytes for ref in missing))
        with self._store.putting_blocks() as put:

            def fetch(ref: TailRef) -> None:
                put(self._objects.block(ref))
                self._count(received=ref.stored_bytes)
                step(ref.stored_bytes)

            in_parallel(fetch, missing)

    # -- counting --------------------------------------------------------------------------------------

    def _count(self, sent: int = 0, received: int = 0) -> None:
        with self._guard:
            self._report.sent_bytes += sent
            self._report.received_bytes += received

    def tell_done(self, verb: str, manifest: Manifest) -> None:
        """Tell that all of a session has come or gone; what listens may raise, to stop it from being used."""
        if self._progress:
            size = sum(ref.stored_bytes for ref in manifest.refs) or 1  # none is no progress
            self._progress(Progress(verb, manifest.name, size, size))

    def _steps(self, verb: str, name: str, total: int) -> Callable[[int], None]:
        """What is told of a transfer of `total` bytes: to be called with each object's, from any thread."""
        done, guard = 0, threading.Lock()

        def step(size: int) -> None:
            nonlocal done
            with guard:
                done += size
                if self._progress and total:
                    self._progress(Progress(verb, name, done, total))

        step(0)
        return step
