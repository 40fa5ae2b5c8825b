"""A session's snapshot to and from a store: which blocks are new, and whether what comes back is right.

Knows nothing of models. It joins the shared type, the container and the manifest.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from satchel.cache_store.block import Kind, decode_object, encode_object
from satchel.cache_store.local import LocalStore
from satchel.cache_store.manifest import BlockRef, Head, Manifest, Message, TailRef
from satchel.cache_store.names import validate_name
from satchel.cache_store.snapshot import ROOT, Block, PendingBlock, Snapshot, chain_key, identity_digest
from satchel.errors import DamagedError, NotFoundError, SatchelError

TOKENS = "tokens"  # the array that holds an object's token ids, next to the engine's own

_WORKERS = min(8, os.cpu_count() or 1)


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
    fork: bool = False,
    archived_from: str | None = None,
    drop_base_state: bool = False,
) -> Saved:
    """Save the next generation of a session: new blocks, then the tail, the manifest, and the head.

    Args:
        snapshot: what `base` has not: it starts where a block of `base` ends, and replaces what follows.
        messages: the whole transcript.
        name: the session's name; one that differs from `base`'s renames it.
        base: the generation that this one continues; None begins a session.
        fork: begin another session with `base`'s history, and leave `base`'s own as it is. Where others
            may have removed `base`, its blocks may be gone too: hand over a whole snapshot.
        archived_from: the KV profile that the state had before it was encoded to fewer bits, if it was.
        drop_base_state: delete `base`'s state, and keep its words alone as the generation before. A later
            `sweep` deletes what the disk refuses now, and all where any session's head or current manifest
            cannot be read, since nothing is swept then.

    Raises:
        HeadMovedError: the session is not at `base` any more; save again with `fork` to keep both.
        UsageError: the name breaks the rule, or another session has it.
        SatchelError: the disk refused; the earlier save is intact.
        ValueError: the snapshot does not continue `base` (a fault of the caller).
    """
    name = validate_name(name)
    continued = base if base and not fork else None
    session_id = continued.head.session_id if continued else secrets.token_hex(16)
    kept = _kept_blocks(snapshot, base)
    with store.locked():
        blocks, key = _put_blocks(store, snapshot, parent=kept[-1].chain_key if kept else ROOT)
        tail = _put_tail(store, snapshot, key, session_id)
        manifest = Manifest(
            session_id=session_id,
            name=name,
            generation=continued.head.generation + 1 if continued else 1,
            parent=_parent(store, base, drop_base_state),
            created_at=datetime.now(UTC),
            model_name=model_name,
            profile_name=profile_name,
            archived_from=archived_from,
            identity=dict(snapshot.identity),
            messages=tuple(messages),
            blocks=(*kept, *blocks),
            tail=tail,
            token_count=snapshot.stop,
        )
        head = store.put_manifest(manifest)
        store.commit_head(head, expected=continued.head.manifest if continued else None)
        store.drop_superseded(manifest)
        if drop_base_state:
            with contextlib.suppress(SatchelError):
                store.sweep()
    return Saved(head, manifest)


def load_snapshot(store: LocalStore, manifest: Manifest) -> Snapshot | None:
    """The whole state that `manifest` lists, or None if it lists none.

    Every object's length and SHA-256 are checked before it is opened, and the chain keys are computed again
    from the token ids. Whether the identity is the running model's is for the caller to compare.

    Raises:
        NotFoundError: an object is missing.
        DamagedError: an object is damaged, or belongs elsewhere; names it.
    """
    if manifest.tail is None:
        return None
    refs = (*manifest.blocks, manifest.tail)
    # zstd and SHA-256 run without Python's lock, so threads read as many blocks at once as there are cores.
    with ThreadPoolExecutor(_WORKERS) as pool:
        objects = list(pool.map(lambda ref: _load_object(store, ref), refs))
    digest, key = identity_digest(manifest.identity), ROOT
    for ref, (block, stored_key) in zip(refs, objects, strict=True):
        key = chain_key(key, digest, block.token_ids)
        if key != stored_key or (isinstance(ref, BlockRef) and key != ref.chain_key):
            raise DamagedError(f"object {ref.sha256[:12]} belongs to another context")
    *blocks, tail = (block for block, _ in objects)
    return Snapshot(manifest.identity, tuple(blocks), tail)


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
    end = kept[-1].stop if kept else 0
    if end != snapshot.start:
        raise ValueError(f"the snapshot starts at token {snapshot.start} and the blocks kept end at {end}")
    if kept and base and identity_digest(base.manifest.identity) != identity_digest(snapshot.identity):
        raise ValueError("the snapshot continues blocks of another identity")
    return kept


def _put_blocks(store: LocalStore, snapshot: Snapshot, parent: str) -> tuple[list[BlockRef], str]:
    """References to the snapshot's blocks, once they are stored, and the chain key after the last."""
    digest, keys = identity_digest(snapshot.identity), [parent]
    for block in snapshot.blocks:
        keys.append(chain_key(keys[-1], digest, block.token_ids))

    def put(block: Block | PendingBlock, key: str) -> BlockRef:
        whole = block.whole()
        data = _encode("block", whole, {"chain_key": key})
        return BlockRef(
            chain_key=key,
            sha256=store.put_block(data),
            stored_bytes=len(data),
            start=block.start,
            stop=block.stop,
            checkpoint=whole.checkpoint,
        )

    with ThreadPoolExecutor(_WORKERS) as pool:
        return list(pool.map(put, snapshot.blocks, keys[1:])), keys[-1]


def _put_tail(store: LocalStore, snapshot: Snapshot, parent: str, session_id: str) -> TailRef:
    tail = snapshot.tail
    key = chain_key(parent, identity_digest(snapshot.identity), tail.token_ids)
    data = _encode("tail", tail, {"chain_key": key, "session_id": session_id})
    return TailRef(sha256=store.put_block(data), stored_bytes=len(data), start=tail.start, stop=tail.stop)


def _encode(kind: Kind, block: Block, meta: dict[str, str]) -> bytes:
    if TOKENS in block.arrays:
        raise ValueError(f"the array name {TOKENS!r} is taken")
    return encode_object(
        kind, {**meta, "engine": dict(block.meta)}, {TOKENS: block.token_ids, **block.arrays}
    )


def _load_object(store: LocalStore, ref: TailRef) -> tuple[Block, str]:
    """A block or tail, and the chain key written in it."""
    kind: Kind = "block" if isinstance(ref, BlockRef) else "tail"
    meta, arrays = decode_object(store.get_block(ref.sha256, ref.stored_bytes), kind)
    token_ids, engine_meta = arrays.pop(TOKENS, None), meta.get("engine")
    if (
        token_ids is None
        or token_ids.dtype != np.uint32
        or token_ids.shape != (ref.stop - ref.start,)
        or not isinstance(engine_meta, dict)
    ):
        raise DamagedError(f"{kind} {ref.sha256[:12]} does not hold tokens {ref.start} to {ref.stop}")
    return Block(ref.start, ref.stop, token_ids, arrays, engine_meta), str(meta.get("chain_key"))
