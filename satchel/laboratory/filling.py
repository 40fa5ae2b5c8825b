"""Real keys and values of a model, and caches filled with them without reading. Knows nothing of measures.

They are in the model's 16-bit dtype: where a CPU computes in float32, mlx-lm's caches would keep their scales
in it, which says nothing about them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache

from satchel.engine.kv_cache import TurboQuantKVCache
from satchel.errors import SatchelError
from satchel.laboratory.caches import exact, held_arrays, read

if TYPE_CHECKING:
    from satchel.engine.model import LoadedModel

STEP = 2048  # tokens handed over at a time


@dataclass(frozen=True, slots=True)
class KeysAndValues:
    """What full-attention layers hold after `token_ids`: layer to (1, n_kv_heads, T, head_dim) in 16 bits."""

    token_ids: list[int]
    layers: dict[int, tuple[mx.array, mx.array]]

    @property
    def elements(self) -> int:
        """Key and value coordinates."""
        return sum(x.size for pair in self.layers.values() for x in pair)

    def repeated(self, tokens: int, dtype: mx.Dtype) -> KeysAndValues:
        """The same over and over up to `tokens`, in `dtype`: for measures that no value changes."""
        rounds = -(-tokens // len(self.token_ids))
        layers = {
            index: tuple(mx.tile(x, (1, 1, rounds, 1))[:, :, :tokens].astype(dtype) for x in pair)
            for index, pair in self.layers.items()
        }
        mx.eval(list(layers.values()))
        return KeysAndValues(np.resize(self.token_ids, tokens).tolist(), layers)  # type: ignore[arg-type]


def keys_and_values(model: LoadedModel, token_ids: list[int]) -> KeysAndValues:
    """Read `token_ids` through the exact cache.

    Raises:
        SatchelError: the model has no layer of this kind.
    """
    dtype = model.cache_dtype
    caches = exact(model).make()
    read(model, caches, token_ids)
    layers = {
        index: (_narrow(cache.keys, cache.offset, dtype), _narrow(cache.values, cache.offset, dtype))
        for index, cache in enumerate(caches)
        if type(cache) is KVCache
    }
    if not layers:
        raise SatchelError("this model has no full-attention layer, so there is nothing to compress")
    mx.eval(list(layers.values()))
    return KeysAndValues(token_ids, layers)


def fill(caches: Sequence[Any], source: KeysAndValues) -> dict[int, Any]:
    """Hand keys and values over to the caches of their layers, which are returned."""
    filled = {}
    for index, (keys, values) in source.layers.items():
        cache = caches[index]
        for start in range(0, keys.shape[2], STEP):
            cache.update_and_fetch(keys[:, :, start : start + STEP], values[:, :, start : start + STEP])
            if isinstance(cache, TurboQuantKVCache):
                cache.attended = cache.offset
                cache.move_to_body()
            mx.eval(list(held_arrays(cache)))
        filled[index] = cache
    return filled


def _narrow(x: mx.array, tokens: int, dtype: mx.Dtype) -> mx.array:
    return mx.contiguous(x[:, :, :tokens].astype(dtype))
