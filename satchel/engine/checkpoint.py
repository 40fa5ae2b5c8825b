"""The state of layers that are not kept token by token, after one token, out of reach of later writes.

A sliding window or a recurrent state changes as a whole with every token, and has no way back: what it was
has to be put aside. Knows nothing of models, files or full attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import RotatingKVCache

from satchel.engine.recurrent import from_bytes, is_matrix, to_bytes


@dataclass(frozen=True, slots=True)
class KeptArray:
    """One array of `dtype` as plain numpy arrays: "" its elements, or "levels" and "steps" of 8 bits."""

    dtype: mx.Dtype
    arrays: Mapping[str, np.ndarray]

    def on_device(self) -> mx.array:
        """A copy."""
        held = {name: mx.array(array) for name, array in self.arrays.items()}
        if "levels" in held:
            return from_bytes(held["levels"], held["steps"], self.dtype)
        return held[""].view(self.dtype)


# A cache's `state`, as mlx-lm's caches have it, with `KeptArray` in place of every array.
Tree = list["Tree"] | KeptArray | int | float | str | bool | None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What layers held after `offset` tokens, by layer; layers that hold a row a token are not among them."""

    offset: int
    layers: Mapping[int, Tree]


def host_view(x: mx.array) -> np.ndarray:
    """The memory of `x` itself, not to be written to; bfloat16 as its bits in uint16.

    MLX writes in place only where nothing else holds an array. The view holds a handle of its own, so
    whatever is assigned to `x` or a part of it later, the view keeps the values of now.
    """
    handle = x.view(mx.uint16) if x.dtype == mx.bfloat16 else x[...]
    mx.eval(handle)
    return np.array(handle, copy=False)


def current_state(cache: Any) -> Any:
    """A cache's `state`, of a sliding window without what no later token attends to.

    After several tokens at once, a window of mlx-lm holds what the first of them attended to as well.
    """
    if not isinstance(cache, RotatingKVCache) or cache.empty():
        return cache.state
    keys, values, offset, keep, max_size, index = cache.state
    excess = keys.shape[2] - max_size
    if excess <= 0 or index != keys.shape[2]:
        return cache.state
    kept = [mx.concatenate([x[:, :, :keep], x[:, :, keep + excess :]], axis=2) for x in (keys, values)]
    return *kept, offset, keep, max_size, max_size


def freeze(state: Any, *, compact: bool) -> Tree:
    """A cache's `state` (nested tuples, arrays, numbers, None), put aside.

    Args:
        compact: matrices are rounded to 8 bits (`recurrent.py`).

    Raises:
        ValueError: the state holds something else.
    """
    if isinstance(state, mx.array):
        if compact and is_matrix(state):
            levels, steps = to_bytes(state)
            return KeptArray(state.dtype, {"levels": host_view(levels), "steps": host_view(steps)})
        return KeptArray(state.dtype, {"": host_view(state)})
    if isinstance(state, list | tuple):
        return [freeze(item, compact=compact) for item in state]
    if state is None or isinstance(state, int | float | str | bool):
        return state
    raise ValueError(f"cannot save a cache state of type {type(state).__name__}")


def thaw(tree: Tree) -> Any:
    """What to set a cache's `state` to. Its arrays are copies, so one checkpoint serves many times."""
    if isinstance(tree, KeptArray):
        return tree.on_device()
    return [thaw(item) for item in tree] if isinstance(tree, list) else tree
