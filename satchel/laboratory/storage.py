"""How many bits a cache takes, in memory and on disk. Sizes come from the arrays and the files themselves.

Only full-attention layers count, since all caches leave the others as they are. Knows nothing of quality or
time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from mlx_lm.models.cache import KVCache, QuantizedKVCache, save_prompt_cache

from satchel.cache_store.local import LocalStore
from satchel.cache_store.sessions import save_snapshot
from satchel.cache_store.snapshot import BLOCK_TOKENS, Block, Snapshot
from satchel.engine.kv_state import KVState
from satchel.engine.snapshot_io import Part, export_block, export_tail, settled_tokens
from satchel.laboratory.caches import Candidate, held_arrays
from satchel.laboratory.filling import KeysAndValues, fill


@dataclass(frozen=True, slots=True)
class StorageRow:
    """Bits a key or value coordinate, everything counted; `bits_stored` None where nobody stores the cache.

    In memory that is codes, scales, exact tokens, tables and spare room, as all arrays within reach of the
    caches say (not MLX's allocator, which rounds), on disk all files of a session.
    """

    cache: str
    tokens: int
    bits_held: float
    bits_stored: float | None
    held_bytes: int
    stored_bytes: int | None


def storage(candidate: Candidate, source: KeysAndValues) -> StorageRow:
    """Fill `candidate` with `source`; bytes held and stored."""
    state = candidate.state() if candidate.state else None
    filled = fill(state.caches if state else candidate.make(), source)
    held = sum(array.nbytes for array in held_arrays(filled))
    stored = _stored_bytes(state, filled, source)
    bits = 8 / source.elements
    stored_bits = None if stored is None else stored * bits
    return StorageRow(candidate.name, len(source.token_ids), held * bits, stored_bits, held, stored)


def _stored_bytes(state: KVState | None, filled: dict[int, Any], source: KeysAndValues) -> int | None:
    """Bytes of the files that a save makes, by Satchel's store or by mlx-lm; None for other caches."""
    with tempfile.TemporaryDirectory() as folder:
        if state is not None:
            kept = replace(state, caches=list(filled.values()), seen=[state.seen[index] for index in filled])
            save_snapshot(
                LocalStore(Path(folder)),
                _snapshot(kept, source.token_ids),
                [],
                name="bench",
                model_name="",
                profile_name=state.profile.name,
            )
        elif {type(cache) for cache in filled.values()} <= {KVCache, QuantizedKVCache}:
            # Not subclasses: mlx-lm would write them and could not read them again.
            save_prompt_cache(str(Path(folder) / "cache.safetensors"), list(filled.values()))
        else:
            return None
        return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


def _snapshot(state: KVState, token_ids: Sequence[int]) -> Snapshot:
    settled = settled_tokens(state) // BLOCK_TOKENS * BLOCK_TOKENS

    def block(part: Part) -> Block:
        ids = np.array(token_ids[part.start : part.stop], dtype=np.uint32)
        return Block(part.start, part.stop, ids, part.arrays, part.meta)

    blocks = [
        block(export_block(state, start, start + BLOCK_TOKENS)) for start in range(0, settled, BLOCK_TOKENS)
    ]
    return Snapshot(state.identity(), tuple(blocks), block(export_tail(state, settled, len(token_ids))))
