"""State out of a store: a tail, blocks, or the longest known beginning of a context, each checked.

Knows nothing of models, of the words of a session, or of how anything is written.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import numpy as np

from satchel.cache_store import frame
from satchel.cache_store.block import TOKENS, Kind, decode_object
from satchel.cache_store.local import LocalStore
from satchel.cache_store.manifest import BlockRef, Manifest, TailRef
from satchel.cache_store.snapshot import BLOCK_TOKENS, ROOT, Block, Snapshot, chain_key, identity_digest
from satchel.errors import DamagedError
from satchel.files import will_read

LOADED_AT_ONCE = 2
MAX_BLOCK_TOKENS = 1 << 14  # in a block that is read; `BLOCK_TOKENS` are written


def load_tail(
    store: LocalStore, identity: Mapping[str, Any], refs: Sequence[BlockRef], tail: TailRef
) -> Block:
    """The tail that follows the blocks `refs`.

    Raises:
        NotFoundError: it is missing.
        DamagedError: it is damaged, or belongs elsewhere; names it.
    """
    for ref in refs[:LOADED_AT_ONCE]:
        will_read(store.block_path(ref.sha256))  # they are wanted next
    return load_object(store, tail, refs[-1].chain_key if refs else ROOT, identity_digest(identity))


def load_blocks(
    store: LocalStore, identity: Mapping[str, Any], refs: Sequence[BlockRef], take: Callable[[Block], None]
) -> None:
    """Read the blocks `refs`, the first of a chain, and hand each to `take` as soon as it is there.

    `take` is called from several threads, in any order. Every object's length and SHA-256 are checked before
    it is opened, and its chain key is computed again from its token ids. Whether the identity is the running
    model's is for the caller to know.

    Memory is bounded by what is on the disk. At most `LOADED_AT_ONCE` blocks are in memory beside what `take`
    keeps, each of at most `frame.MAX_RATIO` times its file, or `frame.FREE_BYTES` if that is more, and the
    same again while planes are joined. All that `take` is handed has the same bound, with the bytes of all
    files read so far; no file counts twice. So a few bytes that claim to be a long context end in an error.

    Raises:
        NotFoundError: a block is missing.
        DamagedError: one is damaged, belongs elsewhere, or is beyond these bounds; names it.
    """
    _check_refs(refs)
    digest, expansion = identity_digest(identity), _Expansion()
    parents = [ROOT, *(ref.chain_key for ref in refs)]

    def load(ref: BlockRef, parent: str, later: BlockRef | None) -> None:
        if later:
            will_read(store.block_path(later.sha256))
        block = load_object(store, ref, parent, digest)
        expansion.add(ref, block)
        take(block)

    # zstd, SHA-256 and large copies run without Python's lock.
    with ThreadPoolExecutor(LOADED_AT_ONCE) as pool:
        try:
            later = chain(refs[LOADED_AT_ONCE:], repeat(None, LOADED_AT_ONCE))
            deque(pool.map(load, refs, parents, later), maxlen=0)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _check_refs(refs: Sequence[BlockRef]) -> None:
    seen: set[str] = set()
    for ref in refs:
        if not 0 < ref.stop - ref.start <= MAX_BLOCK_TOKENS:
            raise DamagedError(f"block {ref.sha256[:12]} is said to hold {ref.stop - ref.start} tokens")
        if ref.sha256 in seen:
            raise DamagedError(f"block {ref.sha256[:12]} is said to be two of one context")
        seen.add(ref.sha256)


class _Expansion:
    """How many bytes of arrays have come from how many bytes of files."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._stored_bytes = self._array_bytes = 0

    def add(self, ref: TailRef, block: Block) -> None:
        with self._guard:
            self._stored_bytes += ref.stored_bytes
            self._array_bytes += sum(array.nbytes for array in block.arrays.values())
            if self._array_bytes > max(frame.FREE_BYTES, frame.MAX_RATIO * self._stored_bytes):
                sizes = f"{self._stored_bytes} bytes of blocks, which would take {self._array_bytes}"
                raise DamagedError(f"block {ref.sha256[:12]} is the last of {sizes} in memory")


def load_snapshot(store: LocalStore, manifest: Manifest) -> Snapshot | None:
    """The whole state that `manifest` lists, or None if it lists none.

    Raises:
        NotFoundError, DamagedError: as `load_tail` and `load_blocks`.
    """
    if manifest.tail is None:
        return None
    tail = load_tail(store, manifest.identity, manifest.blocks, manifest.tail)
    blocks: list[Block] = []
    load_blocks(store, manifest.identity, manifest.blocks, blocks.append)
    return Snapshot(manifest.identity, tuple(sorted(blocks, key=lambda block: block.start)), tail)


def load_object(store: LocalStore, ref: TailRef, parent: str, digest: str) -> Block:
    """A block or a tail that follows what the chain key `parent` stands for, under the identity `digest`.

    Raises:
        NotFoundError: it is missing.
        DamagedError: it is damaged, or belongs elsewhere; names it.
    """
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
    key = chain_key(parent, digest, token_ids)
    if key != meta.get("chain_key") or (isinstance(ref, BlockRef) and key != ref.chain_key):
        raise DamagedError(f"{kind} {ref.sha256[:12]} belongs to another context")
    checkpoint = isinstance(ref, BlockRef) and ref.checkpoint
    return Block(ref.start, ref.stop, token_ids, arrays, engine_meta, checkpoint)


@dataclass(frozen=True, slots=True)
class Prefix:
    """Blocks of another session that begin a context, and that session's name."""

    refs: tuple[BlockRef, ...]
    name: str

    @property
    def stop(self) -> int:
        return self.refs[-1].stop


def find_prefix(
    store: LocalStore, identity: Mapping[str, Any], token_ids: Sequence[int], resumable_only: bool
) -> Prefix | None:
    """The longest beginning of `token_ids` whose state the store holds under `identity`, in whole blocks.

    Blocks of one manifest alone are taken: what they take for granted was fixed by its first tokens.

    Args:
        resumable_only: the last block must hold a checkpoint, without which the model cannot go on from it.
    """
    digest, keys = identity_digest(identity), [ROOT]
    ids = np.asarray(token_ids, dtype=np.uint32)
    for start in range(0, len(ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        keys.append(chain_key(keys[-1], digest, ids[start : start + BLOCK_TOKENS]))
    found = store.longest_prefix(keys[1:], resumable_only) if keys[1:] else None
    if found is None:
        return None
    manifest, count = found
    return Prefix(manifest.blocks[:count], manifest.name)
