"""Sessions on this machine's disk. Knows nothing of what blocks hold, of models or of remotes.

Layout under the root, directories 0700 and files 0600:

    v1/blocks/ab/abcd…      blocks and tails, named by the SHA-256 of their bytes
    v1/manifests/abcd…      manifests, likewise
    v1/heads/<session>.json the newest manifest of each session
    v1/lock                 held by whoever writes a session or deletes

A session is written blocks first, head last, each atomically and under the lock: being killed at any point
leaves the old session or the new one, and at worst files that nothing refers to, which `sweep` deletes.
Reading takes no lock.
"""

from __future__ import annotations

import contextlib
import heapq
import os
from itertools import count
from pathlib import Path

from satchel.cache_store.frame import object_id
from satchel.cache_store.head_list import HeadList
from satchel.cache_store.lock import FileLock
from satchel.cache_store.manifest import (
    MAX_HEAD_BYTES,
    MAX_MANIFEST_BYTES,
    Head,
    Manifest,
    decode_head,
    decode_manifest,
    encode_head,
    encode_manifest,
)
from satchel.cache_store.names import MAX_LENGTH, name_key, validate_name
from satchel.errors import DamagedError, NotFoundError, SatchelError, UsageError
from satchel.files import TEMPORARY_PREFIX, atomic_write, delete_file, list_dir, read_file, set_aside

MAX_SEARCHED = 1000  # manifests, for an earlier one of a session


class HeadMovedError(SatchelError):
    """Another process saved, renamed or removed the session since it was read. `current` is its head now."""

    def __init__(self, name: str, current: Head | None) -> None:
        change = "changed" if current else "removed"
        super().__init__(f"session {name!r} was {change} by another Satchel in the meantime")
        self.current = current


class LocalStore:
    """A store in the directory `root`, which is made at the first write.

    Every method raises SatchelError when the disk refuses. Ids are SHA-256 in hex.
    """

    def __init__(self, root: Path, lock_timeout_s: float = 10.0) -> None:
        self._blocks = root / "v1" / "blocks"
        self._manifests = root / "v1" / "manifests"
        self._heads = root / "v1" / "heads"
        self._lock = FileLock(root / "v1" / "lock", lock_timeout_s)

    def locked(self) -> FileLock:
        """To be held from a save's first `put_block` to its `commit_head`, lest `sweep` takes the blocks."""
        return self._lock

    # Objects

    def put_block(self, data: bytes) -> str:
        """Store a block or a tail unless it is there, whole; its id."""
        block_id = object_id(data)
        _put(self._block_path(block_id), data)
        return block_id

    def get_block(self, block_id: str, stored_bytes: int) -> bytes:
        """The bytes of a block or a tail, which are the right ones.

        Raises:
            NotFoundError: there is no such block.
            DamagedError: its length or its SHA-256 is wrong.
        """
        data = _get(self._block_path(block_id), block_id, "block", stored_bytes)
        if len(data) != stored_bytes:
            raise DamagedError(f"block {block_id[:12]} has {len(data)} bytes instead of {stored_bytes}")
        return data

    def put_manifest(self, manifest: Manifest) -> Head:
        """Store a manifest; the head that names it, which is for `commit_head`."""
        data = encode_manifest(manifest)
        head = Head.of(manifest, data)
        _put(self._manifests / head.manifest, data)
        return head

    def get_manifest(self, manifest_id: str) -> Manifest:
        """
        Raises:
            NotFoundError: there is no such manifest.
            DamagedError: its SHA-256 or its content is wrong.
        """
        path = self._manifests / manifest_id
        return decode_manifest(_get(path, manifest_id, "manifest", MAX_MANIFEST_BYTES))

    def earlier_manifest(self, head: Head) -> tuple[str, Manifest] | None:
        """The newest whole manifest of `head`'s session from before `head`, and its id first.

        Looks through the `MAX_SEARCHED` manifests written last: a head does not name its manifest's parent.
        """
        found, newest = None, 0
        for path in heapq.nlargest(MAX_SEARCHED, list_dir(self._manifests), key=_modified_s):
            with contextlib.suppress(SatchelError):
                manifest = self.get_manifest(path.name)
                if manifest.session_id == head.session_id and newest < manifest.generation < head.generation:
                    found, newest = (path.name, manifest), manifest.generation
        return found

    # Heads

    def heads(self) -> HeadList:
        """All sessions. Reads the heads only."""
        heads: list[Head] = []
        faults: dict[str, str] = {}
        for path in list_dir(self._heads):
            if path.suffix != ".json":
                continue
            try:
                head = self.head(path.stem)
            except SatchelError as err:
                faults[path.stem] = err.one_line()
            else:
                heads += [head] if head else []  # removed while we were reading
        heads.sort(key=lambda head: (head.updated_at, head.session_id), reverse=True)
        return HeadList(tuple(heads), faults)

    def head(self, session_id: str) -> Head | None:
        """
        Raises:
            DamagedError: the head is there and cannot be read.
        """
        try:
            data = read_file(self._head_path(session_id), MAX_HEAD_BYTES)
            return None if data is None else decode_head(data, session_id)
        except DamagedError as err:
            hint = f"restore the file, or give the session up with `satchel sessions rm {session_id}`"
            raise DamagedError(str(err), hint) from err

    def find(self, wanted: str | None) -> Head:
        """The session that `session_id` finds.

        Raises:
            NotFoundError, UsageError: as `session_id`.
            DamagedError: as `session_id`; also when the head found is damaged.
        """
        session_id = self.session_id(wanted)
        head = self.head(session_id)
        if head is None:
            raise _no_session(session_id)
        return head

    def session_id(self, wanted: str | None) -> str:
        """As `HeadList.session_id`: also of a session whose head is damaged, so that it can be removed."""
        return self.heads().session_id(wanted)

    def free_name(self, wanted: str) -> str:
        """`wanted` if no session has it, else the first of `wanted-2`, `wanted-3`, … that is free."""
        wanted = validate_name(wanted)
        taken = {name_key(head.name) for head in self.heads().heads}
        if name_key(wanted) not in taken:
            return wanted
        numbered = (f"{wanted[: MAX_LENGTH - len(suffix)]}{suffix}" for suffix in (f"-{n}" for n in count(2)))
        return next(name for name in numbered if name_key(name) not in taken)

    def commit_head(self, head: Head, expected: str | None) -> None:
        """Make `head` the session's head, if the head now names the manifest `expected` (None: no head).

        Raises:
            HeadMovedError: it does not; nothing has changed.
            UsageError: another session has the name.
        """
        with self._lock:
            current = self.head(head.session_id)
            if (current.manifest if current else None) != expected:
                raise HeadMovedError(head.name, current)
            if current is None or current.name != head.name:
                self._check_unused(head)
            atomic_write(self._head_path(head.session_id), encode_head(head))

    def rename(self, session_id: str, new_name: str) -> Head:
        """Give a session another name, as a new generation of it.

        Raises:
            NotFoundError: there is no such session.
            UsageError: the name breaks the rule or another session has it.
        """
        name = validate_name(new_name)
        with self._lock:
            old = self.head(session_id)
            if old is None:
                raise _no_session(session_id)
            manifest = self.get_manifest(old.manifest)
            renamed = manifest.model_copy(
                update={"name": name, "generation": manifest.generation + 1, "parent": old.manifest}
            )
            head = self.put_manifest(renamed)
            self.commit_head(head, expected=old.manifest)
            self.drop_superseded(renamed)
        return head

    # Deleting

    def remove(self, session_id: str) -> int:
        """Delete a session, be its head damaged or not, and what only it used; the bytes freed.

        Raises:
            NotFoundError: there is no such session.
        """
        with self._lock:
            path = self._head_path(session_id)
            if not os.path.lexists(path):
                raise _no_session(session_id)
            if _is_real_dir(path):
                set_aside(path)
            else:
                delete_file(path, durable=True)
            return self.sweep()

    def drop_superseded(self, manifest: Manifest) -> None:
        """Delete the manifest before `manifest`'s parent, and its tail. `manifest` has just become current.

        The parent stays, for readers that opened it a moment ago. Tails name their session, so no other one
        can refer to them; replaced blocks may be shared and are left to `sweep`. So is what the disk refuses
        to delete: the session is saved, and that must not look like a failure to save it.
        """
        with self._lock, contextlib.suppress(SatchelError):
            parent = self._ancestor(manifest.parent)
            superseded = self._ancestor(parent.parent) if parent else None
            if not (parent and parent.parent and superseded):
                return
            if superseded.session_id != manifest.session_id:
                return  # what a fork was made from
            delete_file(self._manifests / parent.parent)
            in_use = {ref.sha256 for ref in (manifest.tail, parent.tail) if ref}
            if superseded.tail and superseded.tail.sha256 not in in_use:
                delete_file(self._block_path(superseded.tail.sha256))

    def sweep(self) -> int:
        """Delete every file that no session refers to, such as a killed save leaves; the bytes freed.

        Deletes nothing while a head or a current manifest cannot be read: what it refers to is not known.
        What is no file, or what the disk refuses to delete, stays: a session that was removed is removed.
        """
        with self._lock:
            listed = self.heads()
            if listed.faults:
                return 0
            live: set[str] = set()
            for head in listed.heads:
                try:
                    live |= self._references(head.manifest)
                except SatchelError:
                    return 0
            stored = [path for path in list_dir(self._heads) if path.name.startswith(TEMPORARY_PREFIX)]
            freed = 0
            for path in (*stored, *self._object_paths()):
                with contextlib.suppress(SatchelError):
                    freed += 0 if path.name in live else delete_file(path)
            return freed

    def disk_bytes(self) -> int:
        """Bytes of all blocks, tails and manifests, those included that nothing refers to."""
        total = 0
        for path in self._object_paths():
            with contextlib.suppress(FileNotFoundError):  # deleted while we were looking
                total += path.lstat().st_size
        return total

    def _object_paths(self) -> list[Path]:
        """Blocks, tails and manifests, and whatever else lies among them."""
        found: list[Path] = []
        for folder in (*list_dir(self._blocks), self._manifests):
            with contextlib.suppress(SatchelError):
                found += list_dir(folder)
        return found

    def _references(self, manifest_id: str) -> set[str]:
        """Ids that a session's current manifest keeps alive: itself, its parent's, and their objects."""
        manifest = self.get_manifest(manifest_id)
        ids = {manifest_id} | _objects(manifest)
        if manifest.parent and (parent := self._ancestor(manifest.parent)):
            ids |= {manifest.parent} | _objects(parent)
        return ids

    def _ancestor(self, manifest_id: str | None) -> Manifest | None:
        """An earlier manifest, if it is still there; a damaged one is of no use to anyone."""
        try:
            return self.get_manifest(manifest_id) if manifest_id else None
        except (NotFoundError, DamagedError):
            return None

    def _check_unused(self, head: Head) -> None:
        for other in self.heads().heads:
            if name_key(other.name) == name_key(head.name) and other.session_id != head.session_id:
                raise UsageError(f"there is a session called {other.name!r} already", "choose another name")

    def _block_path(self, block_id: str) -> Path:
        return self._blocks / block_id[:2] / block_id

    def _head_path(self, session_id: str) -> Path:
        return self._heads / f"{session_id}.json"


def _modified_s(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except FileNotFoundError:
        return 0.0


def _is_real_dir(path: Path) -> bool:
    """Not a link to one: a link is replaced and deleted like a file."""
    return path.is_dir() and not path.is_symlink()


def _no_session(session_id: str) -> NotFoundError:
    return NotFoundError(f"there is no session {session_id[:12]}")


def _objects(manifest: Manifest) -> set[str]:
    tail = {manifest.tail.sha256} if manifest.tail else set()
    return {ref.sha256 for ref in manifest.blocks} | tail


def _put(path: Path, data: bytes) -> None:
    """Write `data` unless it is there. A damaged file of the same name is not: it is replaced.

    A directory in its place, or anything else in place of its directory, is set aside.
    """
    try:
        present = read_file(path, max_bytes=len(data))
    except DamagedError:
        present = None
        if _is_real_dir(path):
            set_aside(path)
        elif os.path.lexists(path.parent) and not path.parent.is_dir():
            set_aside(path.parent)
    if present != data:
        atomic_write(path, data)


def _get(path: Path, expected_id: str, noun: str, max_bytes: int) -> bytes:
    data = read_file(path, max_bytes)
    if data is None:
        raise NotFoundError(f"{noun} {expected_id[:12]} is missing")
    if object_id(data) != expected_id:
        raise DamagedError(f"{noun} {expected_id[:12]} is damaged: its SHA-256 is another")
    return data
