"""One generation of a session, whole, to the remote and from it. Knows nothing of entries."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from satchel.cache_store.local import HeadMovedError, LocalStore
from satchel.cache_store.maintenance import words_with_branches
from satchel.cache_store.manifest import Head, Manifest, TailRef, encode_manifest
from satchel.cache_store.uses import readable_manifest
from satchel.errors import DamagedError, NotFoundError, VersionError
from satchel.sync.ledger import FAULTS
from satchel.sync.transfer import TRUSTED_AGE_S, Transfer
from satchel.sync.words import FindManifest, Words

Fault = Callable[[str], None]  # takes a line that says what is wrong


@dataclass(frozen=True, slots=True)
class Sent:
    """What the remote's entry is to name, and objects that may be gone until it does: those that were there
    before, or were sent long ago."""

    head: Head
    doubtful: tuple[TailRef, ...] = ()


@dataclass(frozen=True, slots=True)
class Fetched:
    """A manifest, its stored bytes, and likewise those abandoned that could be fetched."""

    manifest: Manifest
    stored: bytes
    branches: Mapping[str, tuple[Manifest, bytes]]

    @property
    def find(self) -> FindManifest:
        """An abandoned manifest by its id."""
        return {each: branch for each, (branch, _) in self.branches.items()}.get

    @property
    def words(self) -> Words:
        return Words.of(self.manifest, self.find)

    @property
    def has_state(self) -> bool:
        """Whether there is any, of what was left behind, too."""
        return any(each.refs for each in (self.manifest, *(branch for branch, _ in self.branches.values())))


_MEND = "`satchel sync push NAME --again` on a machine that has it mends it"


class Versions:
    """Moves generations of sessions between `store` and the remote of `transfer`."""

    def __init__(self, store: LocalStore, transfer: Transfer) -> None:
        self._store, self._transfer = store, transfer

    def words(self, manifest: Manifest) -> Words:
        """Of a manifest that is here, as are those that it abandoned."""
        return Words.of(manifest, self.readable)

    def readable(self, manifest_id: str) -> Manifest | None:
        """A manifest that is here, or None if it is of no use."""
        try:
            return readable_manifest(self._store, manifest_id)
        except VersionError:
            return None

    # -- to the remote ---------------------------------------------------------------------------------

    def send(
        self, local: Head, base: Manifest | None, is_needed: Callable[[str], bool], fault: Fault
    ) -> Sent:
        """Send the session's newest generation; words alone where some of the state is missing here.

        Args:
            base: what the remote has of it, whose objects it need not be asked for.
            is_needed: as for `Transfer.send_blocks`.

        Raises:
            HeadMovedError: the session is not at `local` any more, and some of it has gone.
            NotFoundError, DamagedError: its manifest is missing or damaged.
        """
        manifest, stored = (
            self._store.get_manifest(local.manifest),
            self._store.stored_manifest(local.manifest),
        )
        try:
            return self.send_as(manifest, stored, base, is_needed)
        except (NotFoundError, DamagedError) as err:
            current = self._store.head(local.session_id)
            if current != local:
                raise HeadMovedError(local.name, current) from err
            lost = str(err)
        words, _ = words_with_branches(self._store, manifest, self.readable)
        with contextlib.suppress(NotFoundError, DamagedError):
            kept = manifest.model_copy(update={"abandoned": words.abandoned})
            sent = self.send_as(kept, encode_manifest(kept), base, is_needed)
            fault(f"{lost}: of what was left behind only the words are sent")
            return sent
        fault(f"{lost}: only its words are sent")
        return self.send_as(words, encode_manifest(words), base, is_needed)

    def send_as(
        self, manifest: Manifest, stored: bytes, base: Manifest | None, is_needed: Callable[[str], bool]
    ) -> Sent:
        """Send `manifest` with all that it refers to: blocks first, so that whatever is there is whole.

        Raises:
            NotFoundError, DamagedError: an object is missing or damaged here, and not in the remote.
        """
        in_base = {ref.sha256 for ref in base.refs} if base else set()
        abandoned = [each for each in manifest.abandoned if not (base and each in base.abandoned)]
        branches = {each: found for each in abandoned if (found := self.readable(each))}
        # One goes on from a branch's words and blocks: its tail is of no use.
        refs = [*manifest.refs, *(ref for each in branches.values() for ref in each.blocks)]
        refs = [ref for ref in refs if ref.sha256 not in in_base]
        began_s = time.time()  # which goes on while a machine sleeps
        had = self._transfer.send_blocks(manifest.name, refs, is_needed)
        for each in branches:
            self._transfer.send_manifest(each, self._store.stored_manifest(each))
        head = Head.of(manifest, stored)
        self._transfer.send_manifest(head.manifest, stored)
        slow = abs(time.time() - began_s) > TRUSTED_AGE_S
        return Sent(head, tuple(ref for ref in refs if slow or ref.sha256 in had))

    def send_again(self, sent: Sent) -> None:
        """Send what the remote has no more: it may have been collected before the entry came."""
        if sent.doubtful:
            self._transfer.send_blocks(sent.head.name, sent.doubtful, lambda _: True)

    # -- from the remote -------------------------------------------------------------------------------

    def manifest(self, manifest_id: str) -> Manifest | None:
        """A manifest that is here or in the remote; None if it is missing or damaged."""
        with contextlib.suppress(*FAULTS):
            return self.readable(manifest_id) or self._transfer.fetch_manifest(manifest_id)[0]
        return None

    def fetch(self, head: Head, fault: Fault) -> Fetched:
        """The manifest that an entry's head names, with those abandoned, which may be missing.

        Raises:
            NotFoundError, DamagedError, VersionError: it cannot be had.
        """
        manifest, stored = self._transfer.fetch_manifest(head.manifest)
        # Not all of the head: a title depends on which characters are known where it was made.
        if (manifest.session_id, manifest.generation, manifest.name) != (
            head.session_id,
            head.generation,
            head.name,
        ):
            raise DamagedError("its entry says otherwise than its manifest")
        branches = {}
        for each in manifest.abandoned:
            try:
                branches[each] = self._stored(each) or self._transfer.fetch_manifest(each)
            except FAULTS as err:
                fault(f"what was left behind of it is not whole: {err}")
        return Fetched(manifest, stored, branches)

    def _stored(self, manifest_id: str) -> tuple[Manifest, bytes] | None:
        """A manifest that is here, and its bytes."""
        with contextlib.suppress(*FAULTS):
            return self._store.get_manifest(manifest_id), self._store.stored_manifest(manifest_id)
        return None

    def fetch_state(self, fetched: Fetched, fault: Fault) -> bool:
        """Fetch the objects of a generation into the store; whether its state is here now.

        What was left behind of it may be missing.
        """
        manifest = fetched.manifest
        try:
            self._transfer.fetch_blocks(manifest.name, manifest.refs)
        except FAULTS as err:
            fault(f"{err}: its words are here, and its context is read again; {_MEND}")
            return False
        for branch, _ in fetched.branches.values():
            try:
                self._transfer.fetch_blocks(manifest.name, branch.blocks)
            except FAULTS as err:
                fault(f"what was left behind of it is not whole: {err}")
        return True

    def put_branches(self, fetched: Fetched) -> None:
        """Store the manifests that were abandoned."""
        for branch, stored in fetched.branches.values():
            self._store.put_manifest(branch, stored)

    def is_whole(self, manifest: Manifest) -> bool:
        """Whether its state is here."""
        return all(map(self._store.has_block, manifest.refs))
