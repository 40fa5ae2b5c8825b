"""What the parts of a state must be like to fill an empty one. Copies nothing, and trusts nothing in them.

Sizes and dtypes come from the model: from its empty caches, and from such that have read two tokens.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import CacheList, ChunkedKVCache, KVCache, RotatingKVCache

from satchel.engine.checkpoint import KeptArray, Tree
from satchel.engine.kv_cache import TurboQuantKVCache
from satchel.engine.kv_state import TOKEN_BY_TOKEN, KVState
from satchel.engine.part_layout import Layout, Part, basis_of, is_fixed

Kind = tuple[mx.Dtype, tuple[int, ...]]  # dtype and shape of an array on the device
# What a state's arrays are made of, as numpy has them.
PLAIN: dict[mx.Dtype, np.dtype] = {
    mx.bfloat16: np.dtype("uint16"),
    **{
        getattr(mx, name): np.dtype(name)
        for name in ("uint8", "uint16", "uint32", "int32", "int64", "float16", "float32")
    },
}


class Shape:
    """What a state of `stop` tokens is made of, on the device and in its parts."""

    def __init__(self, state: KVState, stop: int, tail: Part | None) -> None:
        self.stop = stop
        self.layouts: dict[int, Layout] = {}
        self.arrays: dict[int, dict[str, Kind]] = {}
        self._state = state
        self._lock = threading.Lock()
        self.groups: list[list[int]] = []  # of layers, in all parts, once one was looked at
        self._basis: str | None = None
        windows: dict[int, int] = {}
        for number, layers in enumerate(tail.meta["groups"] if tail else ()):
            held = tail.arrays.get(f"g{number}.k.window") if tail else None
            windows |= dict.fromkeys(layers, 0 if held is None else held.shape[2])
        for index, cache in enumerate(state.caches):
            if isinstance(cache, TOKEN_BY_TOKEN):
                window = windows.get(index, 0)
                sink = min(cache.profile.sink, stop) if isinstance(cache, TurboQuantKVCache) else 0
                if tail is None and isinstance(cache, TurboQuantKVCache) and sink == stop:
                    raise ValueError(f"the {stop} tokens of the saved blocks have no codes to go on from")
                self.arrays[index] = self._arrays_of(index, sink, window)
                self.layouts[index] = Layout(tuple(self.arrays[index]), sink, stop - window, stop)

    def check(self, part: Part, *, tail: bool) -> None:
        """That a part's arrays are those of its tokens, before any byte of them is copied.

        Raises:
            ValueError: they are not, or the part goes with others than those that came before.
            KeyError, IndexError, TypeError, AttributeError: its meta says something else altogether.
        """
        fixed: dict[str, np.ndarray] = {}
        for number, layers in enumerate(self._groups_of(part)):
            kinds = self.arrays[layers[0]]
            for name, slot in self.layouts[layers[0]].slots(part.start, part.stop, tail=tail).items():
                dtype, shape = kinds[slot.held]
                row = (shape[1], slot.last - slot.first, *shape[3:]) if shape else ()
                array = checked(part, f"g{number}.{name}", dtype, (len(layers), *row))
                if is_fixed(name):
                    fixed[f"g{number}.{name}"] = array
            turns = fixed.get(f"g{number}.k.turns", np.zeros(1)).any()
            if turns and any(self._state.caches[index].key_body.rope is None for index in layers):
                raise ValueError("a layer's saved mean turns with the position, and this model's does not")
        if (tail or part.start == 0) and basis_of(fixed) != part.meta["basis"]:
            raise ValueError("a saved part holds other means than its codes were made with")

    def _groups_of(self, part: Part) -> list[list[int]]:
        """The groups of a part, which must be those of all parts, and like layers of this model."""
        groups, basis = part.meta["groups"], part.meta["basis"]
        with self._lock:
            if self._basis is None:
                layers = [index for group in groups for index in group]
                if not all(type(index) is int for index in layers) or sorted(layers) != list(self.arrays):
                    raise ValueError("the saved state does not cover this model's layers")
                if any(self.arrays[index] != self.arrays[group[0]] for group in groups for index in group):
                    raise ValueError("the saved state has layers in one group that are not alike")
                self.groups, self._basis = groups, basis
        if groups != self.groups:
            raise ValueError("the saved parts group their layers differently")
        if basis != self._basis:
            raise ValueError("the saved parts are of states with different means")
        return self.groups

    def _arrays_of(self, index: int, sink: int, window: int) -> dict[str, Kind]:
        """Names in the order of a part's arrays, with dtype and (1, n_kv_heads, T, width)."""
        cache, seen = self._state.caches[index], self._state.seen[index]
        if not self.stop or seen.empty():
            return {}
        keys, values = seen.keys, seen.values
        if not isinstance(cache, TurboQuantKVCache):
            sides = (("k.x", keys), ("v.x", values))
            return {name: (like.dtype, (*like.shape[:2], self.stop, like.shape[3])) for name, like in sides}
        body_tokens = self.stop - sink - window
        if body_tokens < 0:
            raise ValueError(f"a layer holds {sink + window} tokens where {self.stop} were saved")
        arrays: dict[str, Kind] = {}
        for side, like, body in (("k", keys, cache.key_body), ("v", values, cache.value_body)):
            heads, head_dim = like.shape[:2], like.shape[3]
            arrays[f"{side}.exact"] = (cache.dtype, (*heads, sink + window, head_dim))
            if not body_tokens:
                continue
            fixed, rows = body.fixed_layout(head_dim), body.layout(head_dim)
            arrays |= {
                f"{side}.{name}": (dtype, (*heads, 1, width)) for name, (dtype, width) in fixed.items()
            }
            if fixed:
                arrays[f"{side}.turns"] = (mx.uint8, ())
            arrays |= {
                f"{side}.{name}": (dtype, (*heads, body_tokens, width))
                for name, (dtype, width) in rows.items()
            }
        return arrays


class TreeDecoder:
    """The states of whole layers that a part's JSON values stand for, after `tokens` tokens."""

    def __init__(self, part: Part, tokens: int) -> None:
        self._part, self._tokens = part, tokens

    def __call__(self, tree: Any, seen: Any, *, growing: bool) -> Tree:
        """The state that `tree` names. It must be built like `seen`, one that the model made itself.

        Args:
            growing: the arrays grow with the tokens along axis 2.
        """
        if isinstance(seen, list | tuple):
            if not isinstance(tree, list) or len(tree) != len(seen):
                raise ValueError("a layer's saved state has another structure")
            return [self(item, like, growing=growing) for item, like in zip(tree, seen, strict=True)]
        if isinstance(seen, mx.array) and isinstance(tree, dict):
            return self._array(tree["array"], seen, growing=growing)
        if isinstance(seen, str):
            if tree != seen:
                raise ValueError(f"a layer's saved state is of {tree!r}; this model's is of {seen!r}")
            return seen
        if type(tree) is type(seen) or (tree is None and not self._tokens):
            kept: int | float | bool | None = tree
            return kept
        found, expected = type(tree).__name__, type(seen).__name__
        raise ValueError(f"a layer's saved state has a {found} in place of a {expected}")

    def _array(self, name: str, seen: mx.array, *, growing: bool) -> KeptArray:
        part = self._part
        if f"{name}.levels" in part.arrays:
            steps_shape = (*seen.shape[:-1], 1)
            levels = checked(part, f"{name}.levels", mx.uint8, seen.shape)
            steps = checked(part, f"{name}.steps", mx.float32, steps_shape)
            return KeptArray(seen.dtype, {"levels": levels, "steps": steps})
        shape = list(seen.shape)
        if growing and seen.ndim > 2:
            shape[2] = part.arrays[name].shape[2]
        return KeptArray(seen.dtype, {"": checked(part, name, seen.dtype, tuple(shape))})


def checked(part: Part, name: str, dtype: mx.Dtype, shape: tuple[int, ...]) -> np.ndarray:
    """The part's array `name`, which must stand for one of `dtype` and `shape` on the device."""
    array, label = part.arrays[name], part.meta["dtypes"].get(name)
    expected_label = "bfloat16" if dtype == mx.bfloat16 else None
    if (array.dtype, array.shape, label) != (PLAIN[dtype], shape, expected_label):
        found = f"{label or array.dtype} {list(array.shape)}"
        raise ValueError(f"a saved array is {found}; this model's is {dtype} {list(shape)}")
    return array


def check_whole(cache: Any, tokens: int, seen: Any) -> None:
    """That the numbers of a cache's state fit its arrays, the tokens that were read, and this model."""
    if isinstance(cache, CacheList):
        for inner, seen_inner in zip(cache.caches, seen.caches, strict=True):
            check_whole(inner, tokens, seen_inner)
        return
    if isinstance(cache, KVCache | ChunkedKVCache) and not cache.empty():
        first, chunk = getattr(cache, "start_position", 0), getattr(cache, "chunk_size", None)
        rows = min(cache.keys.shape[2], cache.values.shape[2])
        if (
            cache.offset != tokens
            or not 0 <= tokens - first <= rows
            or chunk != getattr(seen, "chunk_size", None)
        ):
            raise ValueError("a layer's saved keys are not as many as the tokens")
    if isinstance(cache, RotatingKVCache) and not cache.empty():
        rows = cache.keys.shape[2]
        fixed = (cache.offset, cache.keep, cache.max_size, cache.values.shape[2])
        if fixed != (tokens, seen.keep, seen.max_size, rows) or not 0 <= cache._idx <= rows:
            raise ValueError("a layer's saved window is not one of this model")


@contextmanager
def fitting() -> Iterator[None]:
    """Errors of other kinds, which meta from anywhere leads to, as the ValueError that they stand for."""
    try:
        yield
    except (KeyError, IndexError, TypeError, AttributeError) as err:
        raise ValueError(f"the saved state does not fit this model: {err!r}") from err
