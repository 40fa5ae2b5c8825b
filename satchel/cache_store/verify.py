"""Whether everything that sessions need is in the store and right. Changes nothing and takes no lock."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat

from satchel.cache_store.loading import load_object
from satchel.cache_store.local import LocalStore
from satchel.cache_store.manifest import BlockRef, Head, Manifest, TailRef, decode_manifest
from satchel.cache_store.snapshot import ROOT, identity_digest
from satchel.cache_store.uses import head_marks
from satchel.errors import DamagedError, NotFoundError, SatchelError, VersionError

_WORKERS = min(4, os.cpu_count() or 1)  # each holds one object in memory

# What a fault means, by where the object is needed.
_CURRENT = "its words are safe; the context will be read again"
_BEFORE = "the save before last cannot stand in for the last one, which is whole"
_BRANCH = "its words are safe; the context will be read again if you go back there"
_SHOWN_WRONG = "its words and its context are safe; lists show it wrongly until its next save"
_OTHER_VERSION = "its words need the version of Satchel that saved them"
_NOT_READ = "nothing more is known of it until it can be read"
_BRANCH_WORDS = "what was said there cannot be gone back to; the present words are safe"

_Problem = tuple[str, str, str]  # the object's id, what is wrong, what it means


@dataclass(frozen=True, slots=True)
class Fault:
    """Something missing or damaged.

    Attributes:
        session: the session's name, or its id where the head cannot be read.
        session_id: its id.
        object_id: SHA-256 of the manifest, block or tail; "" for the head.
        problem: what is wrong, with the start of the object's id.
        meaning: what that means for the user.
    """

    session: str
    session_id: str
    object_id: str
    problem: str
    meaning: str

    def line(self) -> str:
        return f"{self.session}: {self.problem}: {self.meaning}"


@dataclass(frozen=True, slots=True)
class Verified:
    """How much was looked at, each object once, and what is wrong with it."""

    sessions: int
    manifests: int
    objects: int
    faults: tuple[Fault, ...]


def verify(
    store: LocalStore, read_data: bool = False, progress: Callable[[int, int], None] | None = None
) -> Verified:
    """Check every head, the manifests that it leads to, and that their objects are there in the right length.

    A parent that is missing is no fault: it is deleted two saves later.

    Args:
        read_data: read every object, too: its SHA-256, its content, and its place in the chain.
        progress: is told of how many sessions, and of how many there are, after each.

    Raises:
        SatchelError: the heads cannot be listed.
    """
    sessions, faults = sorted(head_marks(store)), []
    with ThreadPoolExecutor(_WORKERS) as pool:
        run = _Run(store, read_data, pool)
        for number, session_id in enumerate(sessions, 1):
            faults += run.session(session_id)
            if progress:
                progress(number, len(sessions))
    return Verified(len(sessions), len(run.manifests), len(run.objects), tuple(faults))


class _Run:
    """One pass over a store.

    Attributes:
        manifests: ids of those looked at.
        objects: likewise.
    """

    def __init__(self, store: LocalStore, read_data: bool, pool: ThreadPoolExecutor) -> None:
        self._store = store
        self._read_data = read_data
        self._map = pool.map if read_data else map  # a thread costs more than a look at a file's length
        self._right: set[tuple[TailRef, str, str]] = set()  # what sessions share is read once
        self.manifests: set[str] = set()
        self.objects: set[str] = set()

    def session(self, session_id: str) -> list[Fault]:
        """What is wrong with a session. If it changed while we were looking, it is looked at again."""
        while True:
            head = None
            try:
                head = self._store.head(session_id)
                faults = self._faults(head) if head else []
            except SatchelError as err:
                faults = [Fault(session_id, session_id, "", str(err), err.hint or _unread(err))]
            if not faults or self._unchanged(session_id, head):
                return faults

    def _unchanged(self, session_id: str, head: Head | None) -> bool:
        try:
            return self._store.head(session_id) == head
        except SatchelError:
            return head is None

    def _faults(self, head: Head) -> list[Fault]:
        """One for each object, of where it matters most."""
        found: dict[str, Fault] = {}
        for object_id, problem, meaning in self._problems(head):
            fault = Fault(head.name, head.session_id, object_id, problem, meaning)
            found.setdefault(object_id, fault)
        return list(found.values())

    def _problems(self, head: Head) -> Iterator[_Problem]:
        try:
            self.manifests.add(head.manifest)
            stored = self._store.stored_manifest(head.manifest)
            manifest = decode_manifest(stored)
            if (manifest.session_id, manifest.generation) != (head.session_id, head.generation):
                raise DamagedError(f"manifest {head.manifest[:12]} is of another session or generation")
        except (NotFoundError, DamagedError) as err:
            yield head.manifest, str(err), self._stand_in(head)
            return
        except SatchelError as err:
            yield head.manifest, str(err), _unread(err)
            return
        if wrong := _differences(head, Head.of(manifest, stored)):
            yield "", f"its head says otherwise than its manifest of: {', '.join(wrong)}", _SHOWN_WRONG
        yield from self._state(manifest, manifest.refs, _CURRENT)
        if manifest.parent:
            try:
                self._manifest(manifest.parent)  # its state may be gone: it stands in with its words
            except NotFoundError:
                pass  # it goes two saves later, or with the session that a fork was made from
            except SatchelError as err:
                yield manifest.parent, str(err), _BEFORE
        for each in manifest.abandoned:
            try:
                abandoned = self._manifest(each)
            except SatchelError as err:
                yield each, str(err), _BRANCH_WORDS
            else:
                yield from self._state(abandoned, abandoned.blocks, _BRANCH)

    def _manifest(self, manifest_id: str) -> Manifest:
        self.manifests.add(manifest_id)
        return self._store.get_manifest(manifest_id)

    def _stand_in(self, head: Head) -> str:
        """What a session is without its current manifest."""
        if found := self._store.earlier_manifest(head):
            return f"it goes on from the save before, with {len(found[1].messages)} messages"
        return "its words cannot be read"

    def _state(self, manifest: Manifest, refs: Sequence[TailRef], meaning: str) -> Iterator[_Problem]:
        digest = identity_digest(manifest.identity)
        parents = [ROOT, *(ref.chain_key for ref in manifest.blocks)]
        problems = self._map(self._object, refs, parents, repeat(digest))
        for ref, problem in zip(refs, problems, strict=True):
            if problem:
                yield ref.sha256, problem, meaning

    def _object(self, ref: TailRef, parent: str, digest: str) -> str | None:
        """What is wrong with a block or a tail that follows what the chain key `parent` stands for."""
        self.objects.add(ref.sha256)
        place = (ref, parent, digest)
        if place in self._right:
            return None
        try:
            self._check(ref, parent, digest)
        except SatchelError as err:
            return str(err)
        self._right.add(place)
        return None

    def _check(self, ref: TailRef, parent: str, digest: str) -> None:
        if self._read_data:
            load_object(self._store, ref, parent, digest)
            return
        path = self._store.block_path(ref.sha256)
        noun = "block" if isinstance(ref, BlockRef) else "tail"
        try:
            status = path.stat()
        except FileNotFoundError as err:
            raise NotFoundError(f"{noun} {ref.sha256[:12]} is missing") from err
        except OSError as err:
            raise SatchelError(f"cannot read {path}: {err.strerror or err}") from err
        if not stat.S_ISREG(status.st_mode):
            raise DamagedError(f"{path} is not a file")
        if status.st_size != ref.stored_bytes:
            raise DamagedError(
                f"{noun} {ref.sha256[:12]} has {status.st_size} bytes instead of {ref.stored_bytes}"
            )


def _unread(err: SatchelError) -> str:
    """What it means that a head or its manifest cannot be read, though nothing says that it is damaged."""
    return _OTHER_VERSION if isinstance(err, VersionError) else _NOT_READ


def _differences(head: Head, right: Head) -> list[str]:
    """The fields in which two heads differ."""
    return [name for name in Head.model_fields if getattr(head, name) != getattr(right, name)]
