"""Sessions in a store: opening, saving and forking them. Knows nothing of models, or of how state is read."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

from satchel.cache_store.block import TOKENS, Kind, decode_object, encode_object
from satchel.cache_store.figures import TurnFigures
from satchel.cache_store.local import LocalStore, next_generation
from satchel.cache_store.manifest import MAX_ABANDONED, BlockRef, Head, Manifest, Message, TailRef
from satchel.cache_store.names import validate_name
from satchel.cache_store.objects import Put
from satchel.cache_store.snapshot import ROOT, Block, PendingBlock, Snapshot, chain_key, identity_digest
from satchel.errors import DamagedError, NotFoundError, VersionError

_WORKERS = min(8, 1 + (os.cpu_count() or 1))  # one of them waits for the disk


@dataclass(frozen=True, slots=True)
class Saved:
    """A session as it is in the store: the base of the next save.

    Attributes:
        head: the session's head.
        manifest: the one that `head` names; where that is damaged or missing, the newest before it.
        earlier: the id of `manifest`, if it is one before.
        notice: a line for the user that says so.
    """

    head: Head
    manifest: Manifest
    earlier: str | None = None
    notice: str | None = None


def open_session(store: LocalStore, wanted: str | None) -> Saved:
    """The session that `store.find(wanted)` finds, without its arrays; as last saved whole, if damaged.

    Raises:
        NotFoundError, UsageError, DamagedError: as `find`; also when the manifest is missing or damaged,
            and so is every one before it.
    """
    head = store.find(wanted)
    try:
        return Saved(head, store.get_manifest(head.manifest))
    except (NotFoundError, DamagedError) as err:
        found = store.earlier_manifest(head)
        if found is None:
            raise
        earlier, manifest = found
        notice = f"{err}: {head.name!r} goes on from the save before, with {len(manifest.messages)} messages"
        return Saved(head, manifest, earlier, notice)


def save_snapshot(
    store: LocalStore,
    snapshot: Snapshot,
    messages: Sequence[Message],
    *,
    name: str,
    model_name: str,
    profile_name: str,
    base: Saved | None = None,
    kept: Sequence[BlockRef] | None = None,
    fork: bool = False,
    archived_from: str | None = None,
    foreign: bool = False,
    figures: Sequence[TurnFigures] = (),
    drop_base_state: bool = False,
) -> Saved:
    """Save the next generation of a session: new blocks, then the tail, the manifest, and the head.

    Args:
        snapshot: what the store has not: it starts where the last block of `kept` ends.
        messages: the whole transcript.
        name: the session's name; one that differs from `base`'s renames it.
        base: the generation that this one continues; None begins a session.
        kept: blocks of the same identity that the store holds, from token 0 on; `base`'s if not given.
        fork: begin another session with `base`'s history, and leave `base`'s own as it is.
        archived_from: the KV profile that the state had before it was encoded to fewer bits, if it was.
        foreign: the state came with a file from elsewhere, and is not for other sessions.
        figures: of the turns of `messages`.
        drop_base_state: keep `base`'s words alone as the generation before, so that nothing of this session
            refers to `base`'s state any more. What that was is left to `maintenance.delete_unused`.

    Raises:
        HeadMovedError: the session is not at `base` any more; save again with `fork` to keep both.
        UsageError: the name breaks the rule, or another session has it.
        SatchelError: the disk refused; the earlier save is intact.
        ValueError: the snapshot does not continue `kept` (a fault of the caller).
    """
    name = validate_name(name)
    continued = base if base and not fork else None
    session_id = continued.head.session_id if continued else secrets.token_hex(16)
    kept = _kept_blocks(snapshot, base) if kept is None else tuple(kept)
    if snapshot.start != (kept[-1].stop if kept else 0):
        raise ValueError(
            f"the snapshot starts at token {snapshot.start}, and the blocks kept do not end there"
        )
    with store.locked():
        with store.putting_blocks() as put:
            blocks, tail = _put_state(put, snapshot, kept[-1].chain_key if kept else ROOT, session_id)
        manifest = Manifest(
            session_id=session_id,
            name=name,
            generation=next_generation(continued.head) if continued else 1,
            parent=_parent(store, base, drop_base_state),
            created_at=datetime.now(UTC),
            model_name=model_name,
            profile_name=profile_name,
            archived_from=archived_from,
            foreign=foreign,
            identity=dict(snapshot.identity),
            messages=tuple(messages),
            blocks=(*kept, *blocks),
            tail=tail,
            token_count=snapshot.stop,
            abandoned=_abandoned(store, continued, messages, drop_base_state) if continued else (),
            figures=tuple(figures),
        )
        head = store.commit(manifest, expected=continued.head.manifest if continued else None)
        if not drop_base_state:
            store.drop_superseded(manifest)
    return Saved(head, manifest)


def fork_session(
    store: LocalStore,
    saved: Saved,
    name: str,
    session_id: str | None = None,
    abandoned: Sequence[str] = (),
) -> Saved:
    """Another session with the words and the state of `saved`, whose blocks both use from now on.

    Where a block is missing, or the tail is missing or damaged, only the words are taken along.

    Args:
        session_id: its id, where that is not to be a random one.
        abandoned: of `saved`'s abandoned manifests, those that it keeps, too.

    Raises:
        UsageError: the name breaks the rule, or another session has it.
        SatchelError: the disk refused.
    """
    origin, session_id = saved.manifest, session_id or secrets.token_hex(16)
    with store.locked():
        tail = None
        # What `saved` was when it was opened may have been pruned since.
        if origin.tail and all(map(store.has_block, origin.blocks)):
            with contextlib.suppress(NotFoundError, DamagedError):
                tail = _copy_tail(store, origin.tail, session_id)
        fork = (origin if tail else origin.words_alone()).model_copy(
            update={
                "session_id": session_id,
                "name": validate_name(name),
                "generation": 1,
                "parent": saved.earlier or saved.head.manifest,
                "created_at": datetime.now(UTC),
                "tail": tail,
                "abandoned": tuple(abandoned),
            }
        )
        head = store.commit(fork, expected=None)
    return Saved(head, fork)


def fork_id(manifest_id: str) -> str:
    """The id of the session that a manifest becomes where its own has gone another way.

    Whichever machine makes it, and however often, it is one and the same session.
    """
    return hashlib.sha256(f"satchel.fork/1 {manifest_id}".encode()).hexdigest()[:32]


def _parent(store: LocalStore, base: Saved | None, drop_state: bool) -> str | None:
    """The id of the manifest that is saved from: `base`'s, or with `drop_state` one of its words alone."""
    if base is None:
        return None
    if drop_state:
        return store.put_manifest(base.manifest.words_alone()).manifest
    return base.earlier or base.head.manifest


def _kept_blocks(snapshot: Snapshot, base: Saved | None) -> tuple[BlockRef, ...]:
    """Those of `base`'s blocks that the snapshot continues."""
    kept = tuple(ref for ref in base.manifest.blocks if ref.stop <= snapshot.start) if base else ()
    if kept and base and identity_digest(base.manifest.identity) != identity_digest(snapshot.identity):
        raise ValueError("the snapshot continues blocks of another identity")
    return kept


def _abandoned(
    store: LocalStore, base: Saved, messages: Sequence[Message], drop_state: bool
) -> tuple[str, ...]:
    """Earlier manifests to keep for good: those with words that `messages` do not begin with."""
    ids = base.manifest.abandoned
    if not _begins(messages, base.manifest.messages):
        ids = (*ids, base.earlier or base.head.manifest)
    elif not drop_state:
        return ids
    kept: list[str] = []
    for manifest_id in ids[-MAX_ABANDONED:]:
        try:
            manifest = store.get_manifest(manifest_id)
        except (NotFoundError, DamagedError):
            continue
        except VersionError:
            kept.append(manifest_id)
            continue
        if not _begins(messages, manifest.messages):
            words = manifest.words_alone()
            kept.append(store.put_manifest(words).manifest if drop_state else manifest_id)
    return tuple(kept)


def _begins(messages: Sequence[Message], beginning: Sequence[Message]) -> bool:
    return list(messages[: len(beginning)]) == list(beginning)


def _put_state(
    put: Put, snapshot: Snapshot, parent: str, session_id: str
) -> tuple[tuple[BlockRef, ...], TailRef]:
    """References to the snapshot's blocks and to its tail, once they are stored. `parent`: a chain key."""
    digest, keys = identity_digest(snapshot.identity), [parent]
    for part in (*snapshot.blocks, snapshot.tail):
        keys.append(chain_key(keys[-1], digest, part.token_ids))

    def put_block(block: Block | PendingBlock, key: str) -> BlockRef:
        whole = block.whole()
        data = _encode("block", whole, {"chain_key": key})
        return BlockRef(
            chain_key=key,
            sha256=put(data),
            stored_bytes=len(data),
            start=block.start,
            stop=block.stop,
            checkpoint=whole.checkpoint,
        )

    def put_tail(tail: Block, key: str) -> TailRef:
        data = _encode("tail", tail, {"chain_key": key, "session_id": session_id})
        return TailRef(sha256=put(data), stored_bytes=len(data), start=tail.start, stop=tail.stop)

    with ThreadPoolExecutor(_WORKERS) as pool:
        tail = pool.submit(put_tail, snapshot.tail, keys[-1])  # first, for it is the largest
        return tuple(pool.map(put_block, snapshot.blocks, keys[1:-1])), tail.result()


def _encode(kind: Kind, block: Block, meta: dict[str, str]) -> bytes:
    if TOKENS in block.arrays:
        raise ValueError(f"the array name {TOKENS!r} is taken")
    return encode_object(
        kind, {**meta, "engine": dict(block.meta)}, {TOKENS: block.token_ids, **block.arrays}
    )


def _copy_tail(store: LocalStore, ref: TailRef, session_id: str) -> TailRef:
    """A tail as it is, under the name of another session: tails are never shared."""
    meta, arrays = decode_object(store.get_block(ref.sha256, ref.stored_bytes), "tail")
    data = encode_object("tail", {**meta, "session_id": session_id}, arrays)
    return ref.model_copy(update={"sha256": store.put_block(data), "stored_bytes": len(data)})
