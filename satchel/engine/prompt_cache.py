"""Files of mlx-lm's `save_prompt_cache`: opened, checked, read into a KV state, and written from one.

A file is safetensors: arrays named by their place in the list of the caches' states, and as metadata a nested
list with names joined by dots. Two layouts are read. That of mlx-lm 0.32 has the user's metadata, the classes
and which arrays stand for scalars; the one before had each cache's own strings, the user's metadata and the
classes. Knows nothing of sessions, words, or which tokens the keys and values belong to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import mlx.core as mx
from mlx_lm.models.cache import KVCache, save_prompt_cache
from safetensors import SafetensorError, safe_open

from satchel.config.profiles import EXACT, get_profile
from satchel.engine.kv_cache import TurboQuantKVCache
from satchel.engine.kv_state import KVState
from satchel.errors import DamagedError, UsageError

FLOATS = ("F16", "BF16", "F32")
DENSE, QUANTISED = "KVCache", "QuantizedKVCache"
GROUP_SIZES, BITS = (32, 64, 128), (2, 3, 4, 5, 6, 8)
MAX_LAYERS = 4096
PROFILE_KEY = "kv_profile"  # of our files' metadata
POLAR_BITS = 4  # about; its codec has no choice


@dataclass(frozen=True, slots=True)
class Grid:
    """How `mx.quantize` was called."""

    group_size: int
    bits: int


@dataclass(frozen=True, slots=True)
class _Side:
    """Keys or values of a layer: the array's name, or with a grid those of codes, scales and biases."""

    names: tuple[str, ...]
    heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class _Layer:
    keys: _Side
    values: _Side
    grid: Grid | None


@dataclass(frozen=True, slots=True)
class PromptCacheFile:
    """A file whose header is checked. Arrays are read a layer at a time, when they are asked for.

    `metadata` is what the file's maker wrote beside the caches, `tokens` how many each layer holds.
    """

    path: Path
    metadata: Mapping[str, str]
    tokens: int
    layers: tuple[_Layer, ...]

    def dense(self, index: int) -> tuple[mx.array, mx.array]:
        """Keys and values of a layer, (1, n_kv_heads, tokens, head_dim) each, not read yet.

        Raises:
            DamagedError: MLX cannot read the file after all.
        """
        layer = self.layers[index]
        try:
            arrays = mx.load(str(self.path), format="safetensors")
        except (RuntimeError, ValueError) as err:
            raise DamagedError(f"{self.path.name} cannot be read ({err})") from err
        assert isinstance(arrays, dict)
        return self._dense(arrays, layer.keys, layer.grid), self._dense(arrays, layer.values, layer.grid)

    def rounding(self, index: int) -> float:
        """About the step, relative to their spread, of the grid that a layer's numbers were rounded to; 0 for
        16-bit floats. Files of ours name the profile that they were decoded from."""
        grid = self.layers[index].grid
        if grid:
            return 2.0**-grid.bits
        try:
            profile = get_profile(self.metadata.get(PROFILE_KEY, "exact"))
        except UsageError:
            return 0.0
        coded = [spec for spec in (profile.keys, profile.values) if spec != EXACT]
        return max((2.0 ** -(spec.bits or POLAR_BITS) for spec in coded), default=0.0)

    def as_held(self, index: int, values: mx.array) -> mx.array:
        """`values` (..., head_dim) as the file would give them back, had they been put into that layer."""
        grid = self.layers[index].grid
        if grid is None:
            return values
        codes, scales, biases = mx.quantize(values, grid.group_size, grid.bits)
        return mx.dequantize(codes, scales, biases, grid.group_size, grid.bits)

    def _dense(self, arrays: Mapping[str, mx.array], side: _Side, grid: Grid | None) -> mx.array:
        held = [arrays[name][:, :, : self.tokens] for name in side.names]
        if grid is None:
            return held[0]
        codes, scales, biases = held
        return mx.dequantize(codes, scales, biases, grid.group_size, grid.bits)


def open_prompt_cache(path: Path) -> PromptCacheFile:
    """The prompt cache in a safetensors file, which may come from anywhere.

    Raises:
        DamagedError: not such a file, cut short, at odds with itself, or with caches that hold other things
            than the keys and values of all tokens.
    """
    try:
        with safe_open(path, framework="np") as file:
            return _Header(path, file).parse()
    except (SafetensorError, OSError) as err:
        raise DamagedError(f"{path.name} is not a whole safetensors file ({err})") from err


class _Header:
    """What the header of an open file says, without reading any array but scalars."""

    def __init__(self, path: Path, file: Any) -> None:
        self._path, self._file = path, file
        self._metadata: dict[str, str] = file.metadata() or {}
        self._names = frozenset(file.keys())
        # The list of scalars begins with an empty string; the layout before has a class in its place.
        self._has_scalars = self._metadata.get("2.0") == ""

    def parse(self) -> PromptCacheFile:
        classes = list(self._numbered("1" if self._has_scalars else "2"))
        if not classes or not all(name.endswith("Cache") for name in classes):
            raise self._wrong("it names no caches")
        for name in classes:
            if name not in (DENSE, QUANTISED):
                raise self._wrong(f"it holds a {name}, and only {DENSE} and {QUANTISED} can be imported")
        found = [self._layer(index, name) for index, name in enumerate(classes)]
        counts = {tokens for _, tokens in found}
        if len(counts) != 1 or 0 in counts:
            raise self._wrong("its layers hold no tokens, or not all as many")
        prefix = "0." if self._has_scalars else "1."
        user = {key[2:]: value for key, value in self._metadata.items() if key.startswith(prefix)}
        return PromptCacheFile(self._path, user, counts.pop(), tuple(layer for layer, _ in found))

    def _layer(self, index: int, cache_class: str) -> tuple[_Layer, int]:
        if cache_class == DENSE:
            (keys, rows), (values, value_rows) = (self._array(f"{index}.{side}") for side in (0, 1))
            tokens = self._scalar(f"{index}.2") if self._has_scalars else rows
            layer = _Layer(keys, values, None)
        else:
            tokens, group_size, bits = self._quantisation(index)
            grid = Grid(group_size, bits)
            if group_size not in GROUP_SIZES or bits not in BITS:
                raise self._wrong(f"layer {index} is said to have {bits} bits in groups of {group_size}")
            (keys, rows), (values, value_rows) = (self._codes(f"{index}.{side}", grid) for side in (0, 1))
            layer = _Layer(keys, values, grid)
        if keys.heads != values.heads or not 0 <= tokens <= min(rows, value_rows):
            raise self._wrong(f"layer {index} has {rows} and {value_rows} rows for {tokens} tokens")
        return layer, tokens

    def _quantisation(self, index: int) -> tuple[int, int, int]:
        """Tokens, group size and bits of a quantised cache."""
        if self._has_scalars:
            tokens, group_size, bits = (self._scalar(f"{index}.{place}") for place in (2, 3, 4))
            return tokens, group_size, bits
        numbers = list(self._numbered(f"0.{index}"))[-3:]  # ahead of them some versions have a step
        if len(numbers) != 3 or not all(number.isdecimal() and len(number) < 12 for number in numbers):
            raise self._wrong(f"layer {index} has no numbers of its quantisation")
        tokens, group_size, bits = map(int, numbers)
        return tokens, group_size, bits

    def _array(self, name: str) -> tuple[_Side, int]:
        shape = self._shape(name, FLOATS)
        return _Side((name,), shape[1], shape[3]), shape[2]

    def _codes(self, name: str, grid: Grid) -> tuple[_Side, int]:
        names = tuple(f"{name}.{place}" for place in range(3))
        codes, scales, biases = (
            self._shape(part, ("U32",) if part == names[0] else FLOATS) for part in names
        )
        head_dim = scales[3] * grid.group_size
        if codes[:3] != scales[:3] or scales != biases or codes[3] * 32 != head_dim * grid.bits:
            raise self._wrong(f"the codes of {name} are {codes} and their scales {scales}")
        return _Side(names, codes[1], head_dim), codes[2]

    def _shape(self, name: str, dtypes: Sequence[str]) -> tuple[int, ...]:
        """(1, n_kv_heads, rows, width) of an array that must have one of `dtypes`."""
        if name not in self._names:
            raise self._wrong(f"it has no array {name}")
        held = self._file.get_slice(name)
        shape, dtype = tuple(held.get_shape()), held.get_dtype()
        if len(shape) != 4 or shape[0] != 1 or 0 in shape or dtype not in dtypes:
            raise self._wrong(f"array {name} is {dtype} {list(shape)}, which no cache of one talk is")
        return shape

    def _scalar(self, name: str) -> int:
        held = self._file.get_slice(name) if name in self._names else None
        if held is None or held.get_shape() != [] or held.get_dtype() not in ("I32", "I64", "U32"):
            raise self._wrong(f"it has no number {name}")
        return int(self._file.get_tensor(name))

    def _numbered(self, prefix: str) -> Iterator[str]:
        """The strings of a list in the metadata."""
        for index in range(MAX_LAYERS):
            if (value := self._metadata.get(f"{prefix}.{index}")) is None:
                return
            yield value

    def _wrong(self, reason: str) -> DamagedError:
        return DamagedError(f"{self._path.name} is no prompt cache to import: {reason}")


def check_plain(state: KVState) -> None:
    """
    Raises:
        UsageError: some layers keep other things than the keys and values of all tokens.
    """
    for seen in state.seen:
        if not isinstance(seen, TurboQuantKVCache | KVCache) or seen.empty():
            raise UsageError(
                f"this model's layers keep a {type(seen).__name__}: only models with full attention in all "
                "layers exchange prompt caches"
            )


def check_shapes(state: KVState, source: PromptCacheFile) -> None:
    """
    Raises:
        DamagedError: the file's layers are not as many, or not of the shapes, of this model's.
    """
    shapes = [(side.heads, side.head_dim) for layer in source.layers for side in (layer.keys, layer.values)]
    if shapes != [_heads(array) for seen in state.seen for array in (seen.keys, seen.values)]:
        raise DamagedError(f"the layers in {source.path.name} are not those of this model")


def fill(state: KVState, source: PromptCacheFile, step: int) -> None:
    """Put a file's keys and values into an empty state, `step` tokens at a time, as reading them would.

    `check_plain` and `check_shapes` have passed. One layer is in memory densely at a time.

    Raises:
        DamagedError: some are not numbers.
    """
    for index, cache in enumerate(state.caches):
        seen = state.seen[index]
        keys, values = source.dense(index)
        keys, values = keys.astype(seen.keys.dtype), values.astype(seen.values.dtype)
        if not (mx.isfinite(keys).all() & mx.isfinite(values).all()).item():
            raise DamagedError(f"{source.path.name} holds values that are infinite or not numbers")
        for start in range(0, source.tokens, step):
            cache.update_and_fetch(keys[:, :, start : start + step], values[:, :, start : start + step])
            if isinstance(cache, TurboQuantKVCache):
                cache.attended = cache.offset
                cache.move_to_body()
            mx.eval(cache.state)


def write_prompt_cache(file: BinaryIO, state: KVState, dtype: mx.Dtype, metadata: dict[str, str]) -> None:
    """Write a state's keys and values, decoded to `dtype`, as mlx-lm's `load_prompt_cache` reads them.

    Raises:
        UsageError: as `check_plain`.
    """
    check_plain(state)
    plain = []
    for cache in state.caches:
        keys, values = _decoded(cache)
        plain.append(KVCache.from_state((keys.astype(dtype), values.astype(dtype), cache.offset)))
        mx.eval(plain[-1].keys, plain[-1].values)
    save_prompt_cache(file, plain, {**metadata, PROFILE_KEY: state.profile.name})


def _decoded(cache: KVCache | TurboQuantKVCache) -> tuple[mx.array, mx.array]:
    """All keys and values in order, (1, n_kv_heads, T, head_dim)."""
    keys, values = cache.keys, cache.values
    assert keys is not None
    assert values is not None
    if isinstance(cache, KVCache):
        return keys[:, :, : cache.offset], values[:, :, : cache.offset]
    if not cache.body_tokens:
        return keys, values
    sink = cache.sink_tokens
    whole = [
        mx.concatenate([exact[:, :, :sink], body.dense(sink, mx.float32), exact[:, :, sink:]], axis=2)
        for exact, body in ((keys, cache.key_body), (values, cache.value_body))
    ]
    return whole[0], whole[1]


def _heads(array: mx.array) -> tuple[int, int]:
    """(n_kv_heads, head_dim)."""
    return array.shape[1], array.shape[3]
