"""A model's KV state as plain numpy arrays and JSON values, and back, bit for bit. Knows nothing of files.

Layers whose arrays look alike form a group and are stacked, so that a file holds a few large arrays and not
hundreds of small ones. A *part* is the state of tokens [start, stop): a block holds what never changes again,
the tail everything after the blocks. bfloat16 travels as its bits in uint16, which the part's meta says.

Per group and side, with n layers: `g0.k.codes` (n, n_kv_heads, T, words) and `g0.k.grid` (n, n_kv_heads, T,
groups), or what else the side's codec has, or `g0.k.x` (n, n_kv_heads, T, head_dim) where a side is exact.
The part that starts at token 0 also has the sink `g0.k.sink` (n, n_kv_heads, sink, head_dim); it and the tail
have the mean `g0.k.mean` (n, n_kv_heads, 1, head_dim), whether it turns, `g0.k.turns` (n,), and the codes'
error `g0.k.noise` (n, n_kv_heads, 1, 1). The tail has the window `g0.k.window`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import ArraysCache, CacheList, ChunkedKVCache, KVCache, RotatingKVCache

from satchel.engine.body import Body
from satchel.engine.kv_cache import TurboQuantKVCache
from satchel.engine.kv_state import KVState
from satchel.engine.recurrent import from_bytes, is_matrix, to_bytes
from satchel.errors import SatchelError

Meta = dict[str, Any]
FIXED = {"mean", "gain", "noise"}  # a body's arrays that hold one row
# What a state's arrays are made of. MLX narrows or refuses others.
DTYPES = tuple(
    np.dtype(name) for name in ("uint8", "uint16", "uint32", "int32", "int64", "float16", "float32")
)


@dataclass(frozen=True, slots=True)
class Part:
    """The state of tokens [start, stop); `meta` holds JSON values that the arrays cannot say."""

    start: int
    stop: int
    arrays: Mapping[str, np.ndarray]
    meta: Mapping[str, Any]


class NonFiniteError(SatchelError):
    """The model wrote values that are not numbers, or too large for the 16-bit dtype of its cache."""

    def __init__(self) -> None:
        super().__init__("the model's KV state holds values that are infinite or not numbers")


def settled_tokens(state: KVState) -> int:
    """How many of the first tokens have a state that later tokens do not change."""
    kv = [_settled(cache) for cache in state.caches if isinstance(cache, TurboQuantKVCache | KVCache)]
    return min(kv, default=0)


def export_block(state: KVState, start: int, stop: int) -> Part:
    """The state of settled tokens [start, stop), copied out of the device.

    Raises:
        NonFiniteError: not to be saved.
    """
    return _export(state, start, stop, tail=False)


def export_tail(state: KVState, start: int, stop: int) -> Part:
    """The state of everything from token `start` to the last one, `stop`; layers without tokens whole.

    Raises:
        NonFiniteError: not to be saved.
    """
    return _export(state, start, stop, tail=True)


def restore(state: KVState, parts: Sequence[Part]) -> None:
    """Fill an empty state with parts that follow one another from token 0, the tail last.

    Raises:
        ValueError: a part is not of this kind of state; `state` is then not usable.
    """
    tail = parts[-1]
    if [part.start for part in parts] != [0, *(part.stop for part in parts[:-1])]:
        raise ValueError("the saved parts do not follow one another")
    try:
        restored = _restore_groups(state, parts)
        for index, tree in tail.meta["layers"].items():
            restored.append(int(index))
            _restore_whole(state.caches[int(index)], tree, tail, state.seen[int(index)])
    except (KeyError, IndexError, TypeError, AttributeError) as err:
        raise ValueError(f"the saved state does not fit this model: {err!r}") from err
    if sorted(restored) != list(range(len(state.caches))):
        raise ValueError("the saved state does not cover this model's layers")
    mx.eval([cache.state for cache in state.caches if not cache.empty()])


# -- out ---------------------------------------------------------------------------------------------


def _export(state: KVState, start: int, stop: int, *, tail: bool) -> Part:
    pieces = {
        index: _pieces(cache, start, stop, tail)
        for index, cache in enumerate(state.caches)
        if isinstance(cache, TurboQuantKVCache | KVCache)
    }
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, layer in pieces.items():
        cache = state.caches[index]
        # With head sizes and codecs: a block has no window to tell by, the tail may have no codes, and groups
        # must be the same in every part.
        sizes = [(x.shape[1], x.shape[3]) for x in (cache.keys, cache.values)] if layer else []
        codecs = (cache.profile.keys, cache.profile.values) if isinstance(cache, TurboQuantKVCache) else ()
        signature = (*sizes, *codecs, *((name, array.shape, array.dtype) for name, array in layer.items()))
        groups.setdefault(signature, []).append(index)
    stacked = {
        f"g{number}.{name}": mx.stack([pieces[index][name] for index in layers])
        for number, layers in enumerate(groups.values())
        for name in pieces[layers[0]]
    }
    meta: Meta = {"groups": list(groups.values()), "layers": {}}
    if tail:
        for index, cache in enumerate(state.caches):
            if index not in pieces:
                compact = isinstance(cache, ArraysCache) and state.profile.recurrent == 8
                meta["layers"][str(index)] = _encode_tree(cache.state, f"L{index:03d}", stacked, compact)
    floats = [array for array in stacked.values() if mx.issubdtype(array.dtype, mx.floating)]
    finite = [mx.isfinite(array).all() for array in floats]
    mx.eval(list(stacked.values()), finite)
    if not all(flag.item() for flag in finite):
        raise NonFiniteError
    meta["dtypes"] = {name: "bfloat16" for name, array in stacked.items() if array.dtype == mx.bfloat16}
    return Part(start, stop, {name: _to_numpy(array) for name, array in stacked.items()}, meta)


def _pieces(cache: Any, start: int, stop: int, tail: bool) -> dict[str, mx.array]:
    """A layer's arrays for tokens [start, stop), without the batch axis."""
    if cache.empty():
        return {}
    if isinstance(cache, KVCache):
        return {f"{side}.x": x[0, :, start:stop] for side, x in (("k", cache.keys), ("v", cache.values))}
    sink, body_stop = cache.sink_tokens, cache.body_stop
    pieces: dict[str, mx.array] = {}
    for side, exact, body in (
        ("k", cache.keys, cache.key_body),
        ("v", cache.values, cache.value_body),
    ):
        if start == 0:
            pieces[f"{side}.sink"] = exact[0, :, :sink]
        if tail:
            pieces[f"{side}.window"] = exact[0, :, sink:]
        held = body.arrays()
        fixed = [name for name in held if name in FIXED]
        if fixed and (tail or start == 0):
            pieces |= {f"{side}.{name}": held[name][0] for name in fixed}
            pieces[f"{side}.turns"] = mx.array(int(body.mean_turns), dtype=mx.uint8)
        first, last = max(start, sink) - sink, min(stop, body_stop) - sink
        if last > first:
            pieces |= {f"{side}.{name}": held[name][0, :, first:last] for name in held if name not in FIXED}
    return pieces


def _settled(cache: Any) -> int:
    if isinstance(cache, TurboQuantKVCache):
        return int(cache.body_stop) if cache.body_tokens else 0
    return int(cache.offset)


def _to_numpy(array: mx.array) -> np.ndarray:
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)


def _encode_tree(tree: Any, prefix: str, arrays: dict[str, mx.array], compact: bool) -> Any:
    """A cache's `state` (nested tuples, arrays, numbers, None) as JSON; its arrays go to `arrays`."""
    if isinstance(tree, mx.array):
        if compact and is_matrix(tree):
            arrays[f"{prefix}.levels"], arrays[f"{prefix}.steps"] = to_bytes(tree)
        else:
            arrays[prefix] = tree
        return {"array": prefix}
    if isinstance(tree, list | tuple):
        return [_encode_tree(item, f"{prefix}.{number}", arrays, compact) for number, item in enumerate(tree)]
    if tree is None or isinstance(tree, int | float | str | bool):
        return tree
    raise ValueError(f"cannot save a cache state of type {type(tree).__name__}")


# -- in ----------------------------------------------------------------------------------------------


def _restore_whole(cache: Any, tree: Any, tail: Part, seen: Any) -> None:
    """Fill one empty cache that is carried as it is: a sliding window, or a recurrent state."""
    cache.state = _decode_tree(tree, seen.state, tail, growing=not isinstance(cache, ArraysCache))
    _check_whole(cache, tail, seen)


def _check_whole(cache: Any, tail: Part, seen: Any) -> None:
    """That the numbers of a cache's state fit its arrays, the tokens that were read, and this model."""
    if isinstance(cache, CacheList):
        for inner, seen_inner in zip(cache.caches, seen.caches, strict=True):
            _check_whole(inner, tail, seen_inner)
        return
    if isinstance(cache, KVCache | ChunkedKVCache) and not cache.empty():
        first, chunk = getattr(cache, "start_position", 0), getattr(cache, "chunk_size", None)
        rows = min(cache.keys.shape[2], cache.values.shape[2])
        if (
            cache.offset != tail.stop
            or not 0 <= tail.stop - first <= rows
            or chunk != getattr(seen, "chunk_size", None)
        ):
            raise ValueError("a layer's saved keys are not as many as the tokens")
    if isinstance(cache, RotatingKVCache) and not cache.empty():
        rows = cache.keys.shape[2]
        fixed = (cache.offset, cache.keep, cache.max_size, cache.values.shape[2])
        if fixed != (tail.stop, seen.keep, seen.max_size, rows) or not 0 <= cache._idx <= rows:
            raise ValueError("a layer's saved window is not one of this model")


def _decode_tree(tree: Any, seen: Any, tail: Part, *, growing: bool) -> Any:
    """The cache state that `tree` stands for. It must be built like `seen`, one that the model made itself.

    Args:
        growing: the arrays grow with the tokens along axis 2.
    """
    if isinstance(seen, list | tuple):
        if not isinstance(tree, list) or len(tree) != len(seen):
            raise ValueError("a layer's saved state has another structure")
        pairs = zip(tree, seen, strict=True)
        return [_decode_tree(item, seen_item, tail, growing=growing) for item, seen_item in pairs]
    if isinstance(seen, mx.array) and isinstance(tree, dict):
        name = tree["array"]
        if f"{name}.levels" in tail.arrays:
            levels, steps = _to_mlx(tail, f"{name}.levels"), _to_mlx(tail, f"{name}.steps")
            _check_array(levels, mx.uint8, seen.shape, seen.shape[2])
            _check_array(steps, mx.float32, (*seen.shape[:-1], 1), seen.shape[2])
            array = from_bytes(levels, steps, seen.dtype)
        else:
            array = _to_mlx(tail, name)
        _check_array(array, seen.dtype, seen.shape, None if growing or seen.ndim < 3 else seen.shape[2])
        return array
    if isinstance(seen, str):
        if tree != seen:
            raise ValueError(f"a layer's saved state is of {tree!r}; this model's is of {seen!r}")
        return tree
    if type(tree) is type(seen) or (tree is None and not tail.stop):
        return tree
    found, expected = type(tree).__name__, type(seen).__name__
    raise ValueError(f"a layer's saved state has a {found} in place of a {expected}")


def _to_mlx(part: Part, name: str, array: np.ndarray | None = None) -> mx.array:
    array = part.arrays[name] if array is None else array
    if array.dtype not in DTYPES:
        raise ValueError(f"a saved array is of {array.dtype}")
    held = mx.array(array)
    return held.view(mx.bfloat16) if part.meta["dtypes"].get(name) == "bfloat16" else held


def _restore_groups(state: KVState, parts: Sequence[Part]) -> list[int]:
    tail = parts[-1]
    groups = tail.meta["groups"]
    if any(part.meta["groups"] != groups for part in parts):
        raise ValueError("the saved parts group their layers differently")
    for number, layers in enumerate(groups):
        prefix = f"g{number}."
        names = {name for part in parts for name in part.arrays if name.startswith(prefix)}
        joined = {name.removeprefix(prefix): _join(parts, name) for name in sorted(names)}
        if any(array.shape[0] != len(layers) for array in joined.values()):
            raise ValueError("a saved array has not one row a layer")  # MLX would read on past its end
        for row, index in enumerate(layers):
            layer = {name: array[row][None] for name, array in joined.items()}
            if layer:
                _restore_layer(state.caches[index], layer, tail.stop, state.seen[index])
            elif tail.stop and not state.seen[index].empty():
                raise ValueError("the saved state lacks a layer's arrays")
    return [index for layers in groups for index in layers]


def _join(parts: Sequence[Part], name: str) -> mx.array:
    """The parts' arrays called `name`, joined along the tokens; from the last part what is not per token."""
    having = [part for part in parts if name in part.arrays]
    if name.rsplit(".", 1)[-1] in (*FIXED, "turns", "sink", "window"):
        return _to_mlx(having[-1], name)
    arrays = [part.arrays[name] for part in having]
    if len({array.dtype for array in arrays}) > 1:
        raise ValueError(f"the saved parts hold {name} in different dtypes")
    return _to_mlx(having[-1], name, np.concatenate(arrays, axis=2))


def _restore_layer(cache: Any, layer: Mapping[str, mx.array], stop: int, seen: Any) -> None:
    """Fill one empty cache with arrays (1, n_kv_heads, T, ...)."""
    if isinstance(cache, TurboQuantKVCache):
        cache.keys = _restore_side(layer, "k", cache, cache.key_body, stop, seen.keys.shape)
        cache.values = _restore_side(layer, "v", cache, cache.value_body, stop, seen.values.shape)
        cache.offset = cache.attended = stop
        if cache.key_body.tokens != cache.value_body.tokens:
            raise ValueError("keys and values of a layer hold different numbers of tokens")
    elif isinstance(cache, KVCache):
        for name, like in (("k.x", seen.keys), ("v.x", seen.values)):
            _check_array(layer[name], like.dtype, like.shape, stop)
        cache.keys, cache.values, cache.offset = layer["k.x"], layer["v.x"], stop
    else:
        raise ValueError(f"a {type(cache).__name__} was saved as keys and values")


def _restore_side(
    layer: Mapping[str, mx.array],
    side: str,
    cache: TurboQuantKVCache,
    body: Body,
    stop: int,
    like: tuple[int, ...],
) -> mx.array:
    """Fill the body of keys or values; returns the exact tokens. `like` is (B, n_kv_heads, T, head_dim)."""
    sink, window = layer[f"{side}.sink"], layer[f"{side}.window"]
    _check_array(sink, cache.dtype, like, min(cache.profile.sink, stop))
    _check_array(window, cache.dtype, like)
    exact = mx.concatenate([sink, window], axis=2)
    layout = body.layout(like[3])
    if any(f"{side}.{name}" in layer for name in layout):
        held = {name: layer[f"{side}.{name}"] for name in layout}
        for name, array in held.items():
            row_dtype, width = layout[name]
            _check_array(array, row_dtype, (*like[:3], width), stop - exact.shape[2])
        fixed = body.fixed_layout(like[3])
        for name, (dtype, width) in fixed.items():
            held[name] = layer[f"{side}.{name}"]
            _check_array(held[name], dtype, (*like[:3], width), 1)
        if fixed:
            _check_array(layer[f"{side}.turns"], mx.uint8, (1,))
            body.mean_turns = bool(layer[f"{side}.turns"].item())
            if body.mean_turns and body.rope is None:
                raise ValueError("a layer's saved mean turns with the position, and this model's does not")
        body.load(held)
    if body.tokens + exact.shape[2] != stop:
        raise ValueError(f"a layer holds {body.tokens + exact.shape[2]} tokens where {stop} were saved")
    return exact


def _check_array(array: mx.array, dtype: mx.Dtype, like: tuple[int, ...], tokens: int | None = None) -> None:
    """That an array has `dtype` and the shape `like`, but for axis 2, which holds `tokens` if given."""
    shape, expected = list(array.shape), list(like)
    if len(shape) > 2 and len(shape) == len(expected):
        expected[2] = shape[2] if tokens is None else tokens
    if shape != expected or array.dtype != dtype:
        raise ValueError(f"a saved array is {array.dtype} {shape}; this model's is {dtype} {expected}")
