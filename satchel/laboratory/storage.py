"""How many bits a cache takes, in memory and on disk. Sizes come from the arrays and the files themselves.

Only full-attention layers count, since all caches leave the others as they are. Knows nothing of quality or
time.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlx_lm.models.cache import KVCache, QuantizedKVCache, save_prompt_cache

from satchel.cache_store.local import LocalStore
from satchel.cache_store.sessions import save_snapshot
from satchel.engine.kv_state import KVState
from satchel.laboratory.caches import Candidate, held_arrays
from satchel.laboratory.filling import KeysAndValues, fill
from satchel.session.context import Context


@dataclass(frozen=True, slots=True)
class StorageRow:
    """Bits a key or value coordinate, everything counted; `bits_stored` None where nobody stores the cache.

    In memory that is codes, scales, exact tokens, tables and spare room, as all arrays within reach of the
    caches say (not MLX's allocator, which rounds), on disk the session's blocks, tail and manifest.
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
            saved = save_snapshot(
                LocalStore(Path(folder)),
                Context(kept, source.token_ids).snapshot(kept.identity(), 0),
                [],
                name="bench",
                model_name="",
                profile_name=state.profile.name,
            )
            return saved.head.stored_bytes
        if {type(cache) for cache in filled.values()} <= {KVCache, QuantizedKVCache}:
            # Not subclasses: mlx-lm would write them and could not read them again.
            save_prompt_cache(str(Path(folder) / "cache.safetensors"), list(filled.values()))
            return sum(path.stat().st_size for path in Path(folder).iterdir())
    return None
