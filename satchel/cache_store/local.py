"""Sessions on this machine's disk. Knows nothing of what blocks hold, of models or of remotes.

Layout under the root, directories 0700 and files 0600:

    v1/blocks/ab/abcd…      blocks and tails, named by the SHA-256 of their bytes
    v1/manifests/abcd…      manifests, likewise
    v1/heads/<session>.json the newest manifest of each session
    v1/lock                 held by whoever writes a session or deletes
    v1/index.db             what heads and manifests say, to be found fast; made again where it is lost

A session is written blocks first, head last, each atomically and under the lock: being killed at any point
leaves the old session or the new one, and at worst files that nothing refers to, which `maintenance.collect`
deletes. Reading takes no lock.

Nothing is written or deleted through a link in place of one of the directories below `v1`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import chain, count
from pathlib import Path

from satchel.cache_store.head_list import HeadList, find_session_id
from satchel.cache_store.index import Chain, StoreIndex
from satchel.cache_store.lock import FileLock
from satchel.cache_store.manifest import (
    MAX_GENERATION,
    MAX_HEAD_BYTES,
    MAX_MANIFEST_BYTES,
    Head,
    Manifest,
    TailRef,
    decode_head,
    decode_manifest,
    encode_head,
    encode_manifest,
)
from satchel.cache_store.names import MAX_LENGTH, name_key, validate_name
from satchel.cache_store.objects import Put, get_object, put_object, putting_objects, sharded_path
from satchel.errors import DamagedError, NotFoundError, SatchelError, UsageError, VersionError
from satchel.files import (
    atomic_write,
    delete_file,
    is_file_or_link,
    is_link,
    is_real_dir,
    list_dir,
    read_file,
    set_aside,
)


class HeadMovedError(SatchelError):
    """Another process saved, renamed or removed the session since it was read. `current` is its head now."""

    def __init__(self, name: str, current: Head | None) -> None:
        change = f"saved {current.name!r}" if current else f"removed {name!r}"
        super().__init__(f"another process has {change}")
        self.current = current


class LocalStore:
    """A store in the directory `root`, which is made at the first write.

    Every method raises SatchelError when the disk refuses. Ids are SHA-256 in hex.

    Attributes:
        place: the directory that everything is in.
        heads_dir, manifests_dir, blocks_dir: in it. Blocks and tails are one directory deeper.
        index: what heads and manifests say, to be found fast.
    """

    def __init__(self, root: Path, lock_timeout_s: float = 10.0) -> None:
        self.place = root / "v1"
        self.blocks_dir = self.place / "blocks"
        self.manifests_dir = self.place / "manifests"
        self.heads_dir = self.place / "heads"
        self._lock = FileLock(self.place / "lock", lock_timeout_s)
        self.index = StoreIndex(self.place / "index.db", self.heads_dir, self.head, self._chains_of)

    def locked(self) -> FileLock:
        """To be held from a save's first block to its `commit`, lest others delete what no head names yet."""
        return self._lock

    def block_path(self, block_id: str) -> Path:
        """Where a block or a tail is."""
        return sharded_path(self.blocks_dir, block_id)

    def manifest_path(self, manifest_id: str) -> Path:
        return self.manifests_dir / manifest_id

    def head_path(self, session_id: str) -> Path:
        return self.heads_dir / f"{session_id}.json"

    # Objects

    def putting_blocks(self) -> AbstractContextManager[Put]:
        """What stores a block or a tail unless it is there, whole, and returns its id; from any thread.

        Their names are durable when the `with` block has ended. Each is then one fsync, and so is each
        directory, however many of them it got.
        """
        self.refuse_links(self.blocks_dir)
        return putting_objects(self.blocks_dir)

    def put_block(self, data: bytes) -> str:
        """Store a block or a tail unless it is there, whole; its id."""
        with self.putting_blocks() as put:
            return put(data)

    def get_block(self, block_id: str, stored_bytes: int) -> bytes:
        """The bytes of a block or a tail, which are the right ones.

        Raises:
            NotFoundError: there is no such block.
            DamagedError: its length or its SHA-256 is wrong.
        """
        data = get_object(self.block_path(block_id), "block", stored_bytes)
        if len(data) != stored_bytes:
            raise DamagedError(f"block {block_id[:12]} has {len(data)} bytes instead of {stored_bytes}")
        return data

    def has_block(self, ref: TailRef) -> bool:
        """Whether a block or a tail is there, by its length alone."""
        try:
            return self.block_path(ref.sha256).lstat().st_size == ref.stored_bytes
        except OSError:
            return False

    def put_manifest(self, manifest: Manifest, stored: bytes | None = None) -> Head:
        """Store a manifest that does not become current yet, if ever; the head that would name it.

        Args:
            stored: its bytes where another machine has encoded it already, so that it keeps its id.
        """
        self.refuse_links(self.manifests_dir)
        data = encode_manifest(manifest) if stored is None else stored
        head = Head.of(manifest, data)
        put_object(self.manifest_path(head.manifest), data)
        return head

    def get_manifest(self, manifest_id: str) -> Manifest:
        """
        Raises:
            NotFoundError: there is no such manifest.
            DamagedError: its SHA-256 or its content is wrong.
        """
        return decode_manifest(self.stored_manifest(manifest_id))

    def stored_manifest(self, manifest_id: str) -> bytes:
        """A manifest's bytes as they are stored, which are the right ones. Raises as `get_manifest`."""
        return get_object(self.manifest_path(manifest_id), "manifest", MAX_MANIFEST_BYTES)

    def earlier_manifest(self, head: Head) -> tuple[str, Manifest] | None:
        """The newest whole manifest of `head`'s session from before `head`, and its id first.

        A head does not name its manifest's parent: all are looked at, until it is the one.
        """
        found, newest = None, 0
        for path in sorted(list_dir(self.manifests_dir), key=_modified_s, reverse=True):
            if newest == head.generation - 1:
                break
            with contextlib.suppress(SatchelError):
                manifest = self.get_manifest(path.name)
                if manifest.session_id == head.session_id and newest < manifest.generation < head.generation:
                    found, newest = (path.name, manifest), manifest.generation
        return found

    # Heads

    def heads(self, limit: int | None = None, offset: int = 0) -> HeadList:
        """The sessions, `limit` of them from the newest but `offset` on. Damaged heads are all named."""
        self.index.refresh(thorough=True)
        return HeadList(tuple(self.index.heads(limit, offset)), self.index.faults(), self.index.count())

    def head(self, session_id: str) -> Head | None:
        """
        Raises:
            DamagedError: the head is there and cannot be read.
        """
        try:
            data = read_file(self.head_path(session_id), MAX_HEAD_BYTES)
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
        """As `find_session_id`: also of a session whose head is damaged, so that it can be removed."""
        self.index.refresh(thorough=True)
        return find_session_id(self.index, wanted)

    def free_name(self, wanted: str) -> str:
        """`wanted` if no session has it, else the first of `wanted-2`, `wanted-3`, … that is free."""
        wanted = validate_name(wanted)
        self.index.refresh()
        numbered = (f"{wanted[: MAX_LENGTH - len(suffix)]}{suffix}" for suffix in (f"-{n}" for n in count(2)))
        return next(name for name in chain([wanted], numbered) if not self.index.has_name(name_key(name)))

    def longest_prefix(self, keys: Sequence[str], resumable_only: bool) -> tuple[Manifest, int] | None:
        """A manifest whose blocks begin with the longest known part of the chain `keys`, and how many blocks.

        Args:
            resumable_only: the last of them must hold a checkpoint.
        """
        self.index.refresh()
        found = self.index.longest_chain(keys, resumable_only)
        if found is None:
            return None
        manifest_id, blocks = found
        manifest = self._ancestor(manifest_id)
        if manifest is None:
            return None
        known = [ref.chain_key for ref in manifest.blocks[:blocks]] == list(keys[:blocks])
        return (manifest, blocks) if known and manifest.is_for_others else None

    def touch(self, session_id: str, used_s: float | None = None) -> None:
        """Note that a session is used, for those that are least recently used lose their state first.

        Args:
            used_s: when it was, in seconds of `time.time`; now, if that is not given.
        """
        with contextlib.suppress(OSError):
            if is_real_dir(self.heads_dir):
                times = None if used_s is None else (used_s, used_s)
                os.utime(self.head_path(session_id), times, follow_symlinks=False)

    def used_ns(self, session_id: str) -> int:
        """When a session was saved or opened last, by its head's file; 0 if there is none."""
        try:
            return self.head_path(session_id).lstat().st_mtime_ns
        except OSError:
            return 0

    def commit(self, manifest: Manifest, expected: str | None, stored: bytes | None = None) -> Head:
        """Store `manifest` and make it its session's current one, if that is `expected` (an id) now.

        Hold the lock from the first block on. With None there must be no such session. `stored` is as for
        `put_manifest`.

        Raises:
            HeadMovedError: another one is; nothing has changed.
            UsageError: another session has the name.
        """
        self.refuse_links(self.heads_dir)
        with self.locked():
            current = self.head(manifest.session_id)
            if (current.manifest if current else None) != expected:
                raise HeadMovedError(manifest.name, current)
            if current is None or current.name != manifest.name:
                self._check_unused(manifest)
            head = self.put_manifest(manifest, stored)
            mark = self.index.mark()
            atomic_write(self.head_path(head.session_id), encode_head(head), flush_drive=True)
            # The session is saved. A branch that cannot be read must not look like a failure to save it: the
            # next refresh of the index reads what was not noted.
            with contextlib.suppress(SatchelError):
                self.index.note(head, self._chains(head.manifest, manifest), mark)
        return head

    def rename(self, session_id: str, new_name: str) -> Head:
        """Give a session another name, as a new generation of it.

        Raises:
            NotFoundError: there is no such session.
            UsageError: the name breaks the rule or another session has it.
        """
        name = validate_name(new_name)
        with self.locked():
            old = self.head(session_id)
            if old is None:
                raise _no_session(session_id)
            manifest = self.get_manifest(old.manifest)
            renamed = manifest.model_copy(
                update={"name": name, "generation": next_generation(manifest), "parent": old.manifest}
            )
            head = self.commit(renamed, expected=old.manifest)
            self.drop_superseded(renamed)
        return head

    # Deleting

    def delete_head(self, session_id: str, expected: str | None = None) -> None:
        """Delete a session's head, be it damaged or not; what only the session used is left.

        What is no file in its place is set aside.

        Args:
            expected: the id of its current manifest; None deletes whatever there is.

        Raises:
            NotFoundError: there is no such session.
            HeadMovedError: another manifest is current; nothing has changed.
        """
        self.refuse_links(self.heads_dir)
        with self.locked():
            path, mark = self.head_path(session_id), self.index.mark()
            if not os.path.lexists(path):
                raise _no_session(session_id)
            current = self.head(session_id) if expected else None
            if current and current.manifest != expected:
                raise HeadMovedError(current.name, current)
            if is_file_or_link(path):
                delete_file(path, durable=True)
            else:
                set_aside(path)
            self.index.forget(session_id, mark)

    def delete_block(self, block_id: str) -> int:
        """Delete a block or a tail, if it is there; the bytes freed. Needs the lock.

        Raises:
            SatchelError: it is no file, or what should be its directory is a link.
        """
        path = self.block_path(block_id)
        self.refuse_links(path.parent)
        return delete_file(path)

    def delete_manifest(self, manifest_id: str) -> int:
        """As `delete_block`."""
        self.refuse_links(self.manifests_dir)
        return delete_file(self.manifest_path(manifest_id))

    def drop_superseded(self, manifest: Manifest) -> None:
        """Delete the manifest before `manifest`'s parent, and its tail. `manifest` has just become current.

        The parent stays, for readers that opened it a moment ago; of an abandoned one only the tail goes.
        Tails name their session, so no other one can refer to them; replaced blocks may be shared and are
        left to `maintenance.collect`. So is what the disk refuses to delete: the session is saved, and that
        must not look like a failure to save it.
        """
        with self.locked(), contextlib.suppress(SatchelError):
            parent = self._ancestor(manifest.parent)
            superseded = self._ancestor(parent.parent) if parent else None
            if not (parent and parent.parent and superseded):
                return
            if superseded.session_id != manifest.session_id:
                return  # what a fork was made from
            if parent.parent not in (*manifest.abandoned, *parent.abandoned):
                self.delete_manifest(parent.parent)
            in_use = {ref.sha256 for ref in (manifest.tail, parent.tail) if ref}
            if superseded.tail and superseded.tail.sha256 not in in_use:
                self.delete_block(superseded.tail.sha256)

    def _ancestor(self, manifest_id: str | None) -> Manifest | None:
        """An earlier manifest, if it is still there; one that cannot be read is of no use here."""
        try:
            return self.get_manifest(manifest_id) if manifest_id else None
        except (NotFoundError, DamagedError, VersionError):
            return None

    def _chains_of(self, head: Head) -> list[Chain]:
        return self._chains(head.manifest, self.get_manifest(head.manifest))

    def _chains(self, manifest_id: str, manifest: Manifest) -> list[Chain]:
        """What other sessions may take from one: the blocks of its manifest and of those abandoned."""
        earlier = [(each, self._ancestor(each)) for each in reversed(manifest.abandoned)]
        of_session = [(manifest_id, manifest), *((id_, found) for id_, found in earlier if found)]
        return [Chain(id_, found.blocks) for id_, found in of_session if found.is_for_others]

    def _check_unused(self, manifest: Manifest) -> None:
        self.index.refresh()
        for other in self.index.named(name_key(manifest.name)):
            if other.session_id != manifest.session_id:
                raise UsageError(f"there is a session called {other.name!r} already", "choose another name")

    def refuse_links(self, folder: Path) -> None:
        """
        Raises:
            SatchelError: `folder`, or one between it and `place`, is a link, which leads who knows where.
        """
        for each in (folder, *folder.parents):
            if each == self.place:
                return
            if is_link(each):
                raise SatchelError(
                    f"{each} is a link, and nothing is written or deleted through it",
                    "put a directory in its place; SATCHEL_HOME says where the store is",
                )


def next_generation(of: Manifest | Head) -> int:
    """
    Raises:
        SatchelError: there is none.
    """
    if of.generation >= MAX_GENERATION:
        raise SatchelError(
            f"session {of.name!r} claims {of.generation} saves, and takes no more",
            "fork it: a copy begins to count anew",
        )
    return of.generation + 1


def _modified_s(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def _no_session(session_id: str) -> NotFoundError:
    return NotFoundError(f"there is no session {session_id[:12]}")
