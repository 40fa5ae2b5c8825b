"""What the sessions of a store keep alive, kept up to date. Knows nothing of what becomes of the rest.

Read from heads and manifests alone, never from the index: what is deleted rests on it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from satchel.cache_store.manifest import Head, Manifest
from satchel.errors import DamagedError, NotFoundError, SatchelError
from satchel.files import scan_dir

if TYPE_CHECKING:
    from satchel.cache_store.local import LocalStore

Mark = tuple[int, int, int, int]  # of a head's file: changes whenever the file is written or touched


@dataclass(frozen=True, slots=True)
class SessionUses:
    """What one session keeps alive: ids, which are the names of files.

    Attributes:
        head: the session's head.
        used_ns: when it was last saved or opened, by the time of its head's file.
        manifests: its current manifest, that one's parent if it can be read, and those abandoned.
        blocks: their blocks.
        tails: those of the current manifest and of its parent; one that is abandoned needs its own no more.
    """

    head: Head
    used_ns: int
    manifests: frozenset[str]
    blocks: frozenset[str]
    tails: frozenset[str]

    @property
    def state(self) -> frozenset[str]:
        """What is not words."""
        return self.blocks | self.tails

    @property
    def ids(self) -> frozenset[str]:
        return self.manifests | self.state


class StoreUses:
    """What every session of `store` keeps alive, as of the last `refresh`.

    Attributes:
        sessions: by id.
        faults: one line for each session whose head or current manifest cannot be read, by id. While there
            is one, it is not known what is unused.
    """

    def __init__(self, store: LocalStore) -> None:
        self._store = store
        self._marks: dict[str, Mark] = {}
        self._counts: Counter[str] = Counter()
        self.sessions: dict[str, SessionUses] = {}
        self.faults: dict[str, str] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read again what changed. Under the store's lock the result is exact.

        Raises:
            SatchelError: the heads cannot be listed.
        """
        # Marks come first: a head that changes after its mark was taken is read again by the next refresh.
        marks = head_marks(self._store)
        for session_id in self._marks.keys() - marks.keys():
            self.forget(session_id)
        for session_id, mark in marks.items():
            if self._marks.get(session_id) != mark:
                self.forget(session_id)
                self._marks[session_id] = mark
                self._read(session_id, used_ns=mark[0])

    def forget(self, session_id: str) -> None:
        """Go on as if there were no such session, until its head changes."""
        self._marks.pop(session_id, None)
        self.faults.pop(session_id, None)
        if uses := self.sessions.pop(session_id, None):
            self._counts.subtract(uses.ids)

    def count(self, name: str) -> int:
        """How many sessions use the object or manifest of this id."""
        return self._counts[name]

    def _read(self, session_id: str, used_ns: int) -> None:
        try:
            uses = session_uses(self._store, session_id, used_ns)
        except SatchelError as err:
            self.faults[session_id] = f"session {session_id[:12]}: {err.one_line()}"
        else:
            if uses:  # else removed in the meantime
                self.sessions[session_id] = uses
                self._counts.update(uses.ids)


def head_marks(store: LocalStore) -> dict[str, Mark]:
    """The sessions' ids, of damaged ones too, each with the mark of its head's file.

    Raises:
        SatchelError: the heads cannot be listed.
    """
    marks: dict[str, Mark] = {}
    for entry in scan_dir(store.heads_dir):
        if entry.name.endswith(".json"):
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # removed while we were looking
                continue
            except OSError as err:
                raise SatchelError(f"cannot read {entry.path}: {err.strerror or err}") from err
            marks[entry.name.removesuffix(".json")] = (
                status.st_mtime_ns,
                status.st_ctime_ns,
                status.st_size,
                status.st_ino,
            )
    return marks


def readable_manifest(store: LocalStore, manifest_id: str) -> Manifest | None:
    """A manifest, or None if it is missing or damaged and so of no use to anyone.

    Raises:
        SatchelError: the disk refuses to read it.
    """
    try:
        return store.get_manifest(manifest_id)
    except (NotFoundError, DamagedError):
        return None


def session_uses(store: LocalStore, session_id: str, used_ns: int = 0) -> SessionUses | None:
    """What a session keeps alive, or None if there is no such session.

    Raises:
        SatchelError: its head or its current manifest cannot be read.
    """
    head = store.head(session_id)
    while head:
        try:
            manifest = store.get_manifest(head.manifest)
        except NotFoundError:
            newer = store.head(session_id)
            if newer == head:
                raise
            head = newer  # saved so often since it was read that its manifest is gone
            continue
        return _manifest_uses(store, head, manifest, used_ns)
    return None


def _manifest_uses(store: LocalStore, head: Head, manifest: Manifest, used_ns: int) -> SessionUses:
    manifests, current = {head.manifest, *manifest.abandoned}, [manifest]
    parent = readable_manifest(store, manifest.parent) if manifest.parent else None
    if manifest.parent and parent and parent.session_id == manifest.session_id:  # else what a fork is of
        manifests.add(manifest.parent)
        current.append(parent)
    abandoned = [found for each in manifest.abandoned if (found := readable_manifest(store, each))]
    return SessionUses(
        head,
        used_ns,
        manifests=frozenset(manifests),
        blocks=frozenset(ref.sha256 for each in (*current, *abandoned) for ref in each.blocks),
        tails=frozenset(each.tail.sha256 for each in current if each.tail),
    )
