"""Making a store smaller: deleting what nothing refers to, and the state of unused sessions.

Knows nothing of what blocks hold. All of it is safe beside other processes that read and save. Being killed
at any point leaves each session as it was or with its words alone; words are never lost.

What is to be deleted is found without the lock, and deleted under it after a look at the heads that changed
since. A save holds the lock from its first block to its head: so whoever has the lock sees a block named by a
head, or no save relies on it.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from satchel.cache_store.local import LocalStore, next_generation
from satchel.cache_store.manifest import Head, Manifest
from satchel.cache_store.stored_files import StoredFile, stored_files
from satchel.cache_store.uses import SessionUses, StoreUses, readable_manifest, session_uses
from satchel.errors import SatchelError
from satchel.files import delete_file

GRACE_S = 24 * 3600.0
PRUNE_GRACE_S = 60.0  # what was asked to become smaller does not wait for a day
BATCH = 500  # files deleted under one hold of the lock

# Between two holds of the lock: longer than others sleep between two tries to take it.
_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class Collected:
    """Files deleted, or that would be, and their bytes.

    Attributes:
        refused: files that the disk refused to delete.
        younger_bytes: of what nothing refers to and is too young to be deleted.
        faults: a line for each session that cannot be read, which is why no more was deleted.
    """

    blocks: int = 0
    manifests: int = 0
    leftovers: int = 0
    freed_bytes: int = 0
    refused: int = 0
    younger_bytes: int = 0
    faults: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether no file was to be deleted."""
        return not (self.blocks or self.manifests or self.leftovers or self.refused)


@dataclass(frozen=True, slots=True)
class PrunedSession:
    """A session that lost its state and kept its words."""

    session_id: str
    name: str
    freed_bytes: int


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was done, or would be, to come below a size.

    Attributes:
        before_bytes: of the store's files, as `Stats.bytes`.
        after_bytes: likewise; above the limit if words, what is young, or the session to keep take more.
        collected: what nothing referred to.
        sessions: in the order in which they lost their state.
        faults: a line for each session that cannot be read, which is why no more was done.
    """

    before_bytes: int
    after_bytes: int
    collected: Collected = field(default_factory=Collected)
    sessions: tuple[PrunedSession, ...] = ()
    faults: tuple[str, ...] = ()


def collect(
    store: LocalStore,
    grace_s: float = GRACE_S,
    dry_run: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Collected:
    """Delete what no session refers to, temporaries and what was set aside, if older than `grace_s` seconds.

    Nothing is deleted while a head or a current manifest cannot be read, for what it needs is not known; nor
    are directories and files that are not the store's.

    Args:
        progress: is told of how many files, and of how many there are to delete, now and then.

    Raises:
        SatchelError: a directory of the store cannot be listed, or others hold the lock.
    """
    until_ns = time.time_ns() - round(grace_s * 1e9)
    files = list(stored_files(store))
    uses = StoreUses(store)
    unused = [file for file in files if not uses.count(file.path.name)]
    younger = sum(file.size for file in unused if file.since_ns > until_ns)
    unused = [file for file in unused if file.since_ns <= until_ns]
    if uses.faults:
        return Collected(faults=tuple(uses.faults.values()))
    if dry_run:
        return replace(_collected(unused), younger_bytes=younger)
    deleted: list[StoredFile] = []
    refused = 0
    for start in range(0, len(unused), BATCH):
        time.sleep(_PAUSE_S if start else 0)
        with store.locked():
            uses.refresh()
            if uses.faults:
                break
            for file in unused[start : start + BATCH]:
                if uses.count(file.path.name) or not file.is_unchanged_since(until_ns):
                    continue
                try:
                    delete_file(file.path)
                except SatchelError:
                    refused += 1
                else:
                    deleted.append(file)
        if progress:
            progress(min(start + BATCH, len(unused)), len(unused))
    done = _collected(deleted, refused, tuple(uses.faults.values()))
    return replace(done, younger_bytes=younger)


def prune(store: LocalStore, max_bytes: int, keep: str | None = None, dry_run: bool = False) -> Pruned:
    """Delete the state of sessions, the least recently used first, until the store's files fit `max_bytes`.

    Before that goes what nothing refers to, as by `collect`. Each session becomes a new generation with its
    words alone, and then what only it used is deleted; what it shares with others stays for them.

    Args:
        keep: id of a session that keeps its state, such as the one that runs.
        dry_run: say what would be done; the sizes are then estimates.

    Raises:
        SatchelError: a directory of the store cannot be listed, others hold the lock, or the disk refused to
            write.
    """
    sizes = {file.path.name: file.size for file in stored_files(store)}
    before = sum(sizes.values())
    if before <= max_bytes:
        return Pruned(before, before)
    collected = collect(store, PRUNE_GRACE_S, dry_run)
    if collected.faults:
        return Pruned(before, before - collected.freed_bytes, collected, faults=collected.faults)
    left, uses = before - collected.freed_bytes, StoreUses(store)
    pruned: list[PrunedSession] = []
    # Also those that had their turn: one that is in use may have state again.
    spared = {keep} if keep else set()
    while left > max_bytes:
        with contextlib.nullcontext() if dry_run else store.locked():
            if not dry_run:
                uses.refresh()
            victim = _least_recent(uses, spared)
            if uses.faults or victim is None:
                break
            freed = _forget_state(uses, victim, sizes) if dry_run else _drop_state(store, uses, victim)
        spared.add(victim.head.session_id)
        pruned.append(PrunedSession(victim.head.session_id, victim.head.name, freed))
        left -= freed
        time.sleep(0 if dry_run else _PAUSE_S)
    if not dry_run:
        left = sum(file.size for file in stored_files(store))
    return Pruned(before, left, collected, tuple(pruned), tuple(uses.faults.values()))


def remove(store: LocalStore, *session_ids: str) -> int:
    """Delete sessions, be their heads damaged or not, and what only they used; the bytes freed of that.

    What a session used whose head or manifest cannot be read is not known, and is left to `collect`; so is
    all while another session cannot be read, and what the disk refuses to delete.

    Raises:
        NotFoundError: there is no such session; those named before it are deleted, with what they used.
        SatchelError: others hold the lock, or the disk refused to delete a head; likewise.
    """
    used: list[SessionUses] = []
    try:
        for session_id in session_ids:
            with store.locked():
                with contextlib.suppress(SatchelError):
                    if uses := session_uses(store, session_id):
                        used.append(uses)
                store.delete_head(session_id)
    finally:
        freed = delete_unused(store, *used)
    return freed


def delete_unused(store: LocalStore, *of: SessionUses) -> int:
    """Delete what those sessions used and no session uses now; the bytes freed.

    Nothing while a session cannot be read. Raises nothing: whatever keeps a file from being deleted now, what
    was done before stands, and the file is left to `collect`.
    """
    freed = 0
    with contextlib.suppress(SatchelError):
        uses = StoreUses(store)
        unused = [each for each in _deletions(store, *of) if not uses.count(each[0])]
        for start in range(0, len(unused), BATCH):
            time.sleep(_PAUSE_S if start else 0)
            with store.locked():
                uses.refresh()
                freed += _delete_unused(uses, unused[start : start + BATCH])
    return freed


_Deletion = tuple[str, Callable[[str], int]]  # an id, and what deletes the file


def _deletions(store: LocalStore, *of: SessionUses) -> list[_Deletion]:
    manifests = sorted({each for uses in of for each in uses.manifests})
    state = sorted({each for uses in of for each in uses.state})
    return [
        *((each, store.delete_manifest) for each in manifests),
        *((each, store.delete_block) for each in state),
    ]


def _delete_unused(uses: StoreUses, deletions: Iterable[_Deletion]) -> int:
    """Needs the lock, and `uses` as they are now."""
    freed = 0
    for each, delete in deletions:
        if not uses.faults and not uses.count(each):
            with contextlib.suppress(SatchelError):
                freed += delete(each)
    return freed


def _collected(files: Iterable[StoredFile], refused: int = 0, faults: tuple[str, ...] = ()) -> Collected:
    files = list(files)
    kinds = Counter(file.kind for file in files)
    return Collected(
        blocks=kinds["block"],
        manifests=kinds["manifest"],
        leftovers=kinds["leftover"],
        freed_bytes=sum(file.size for file in files),
        refused=refused,
        faults=faults,
    )


def _least_recent(uses: StoreUses, spared: Container[str]) -> SessionUses | None:
    """Of the sessions that have state, the one that was not used for the longest time."""
    # A tail without tokens is no state worth the words' new generation.
    with_state = [
        each
        for each in uses.sessions.values()
        if (each.blocks or each.head.token_count) and each.head.session_id not in spared
    ]
    return min(with_state, key=lambda each: (each.used_ns, each.head.session_id), default=None)


def _forget_state(uses: StoreUses, victim: SessionUses, sizes: Mapping[str, int]) -> int:
    """What `_drop_state` would free; `uses` goes on as if it had."""
    uses.forget(victim.head.session_id)
    return sum(sizes.get(each, 0) for each in victim.state if not uses.count(each))


def _drop_state(store: LocalStore, uses: StoreUses, victim: SessionUses) -> int:
    """Leave a session its words alone and delete what only it used; the bytes freed. Needs the lock."""
    manifest = store.get_manifest(victim.head.manifest)
    words, written = words_with_branches(store, manifest, partial(readable_manifest, store))
    # The same words twice, as after any save: were the newest manifest damaged, the one before stood in.
    parent = store.put_manifest(words)
    head = store.commit(
        words.model_copy(update={"generation": next_generation(words), "parent": parent.manifest}),
        expected=victim.head.manifest,
    )
    uses.refresh()
    freed = _delete_unused(uses, _deletions(store, victim))
    return freed - sum(each.stored_bytes for each in (*written, parent, head))


def words_with_branches(
    store: LocalStore, manifest: Manifest, find: Callable[[str], Manifest | None]
) -> tuple[Manifest, list[Head]]:
    """`manifest` with its words alone, which names its abandoned ones likewise; and what was stored of those.

    Args:
        find: an abandoned manifest by its id; one that it does not find stays named as it is.

    Raises:
        SatchelError: the disk refused.
    """
    branches = {
        each: store.put_manifest(found.words_alone()) for each in manifest.abandoned if (found := find(each))
    }
    abandoned = [branches[each].manifest if each in branches else each for each in manifest.abandoned]
    words = manifest.words_alone().model_copy(update={"abandoned": tuple(dict.fromkeys(abandoned))})
    return words, list(branches.values())
