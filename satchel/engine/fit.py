"""What memory a model takes at a length of context. Knows nothing of MLX, and loads nothing: all is reckoned
from a model's shape, so that models can be compared that are not on this machine.

Sizes are those of `KVState` (a test compares them): the exact sink and window, codes with their scales,
sliding windows, recurrent states. What attention takes while it runs depends on the device's kernels and is
part of `reserve_bytes`, but for the layer that reading de-quantises.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from satchel.config.profiles import Profile
from satchel.engine.kv_sizes import FLOAT_BYTES, fixed_bytes, row_bytes

if TYPE_CHECKING:
    from satchel.engine.device import Device

KV_STEP = 256  # tokens that mlx-lm's caches grow by
TABLE_STEP = 1024  # positions that a `RopeTable` grows by
RESERVE_SHARE = 0.25  # macOS lets the GPU wire about three quarters of the memory
LEAST_RESERVE_BYTES = 1_500_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    """What decides a model's memory.

    Attributes:
        architecture: the configuration's `model_type`.
        layers: all of them; full attention, sliding windows and recurrent states may be fewer together.
        full_layers: those with full attention, whose keys have `n_kv_heads` heads of `head_dim`, and values
            heads of `value_dim`.
        window_layers: those that keep the newest `window` tokens exactly.
        recurrent_values: float32 numbers of all recurrent states.
        conv_values: numbers in the activations' dtype of all convolutions' last inputs.
        rope_dims: coordinates of a head that the rotary embedding turns.
        weights_bytes: of the weights in memory.
        parameters: 0 where they are not known.
        context_length: tokens that the model was made for.
        compresses: whether full attention can use compressed KV.
        is_guess: the architecture is not known here; its layers count as full attention.
        float_bytes: of an activation, and of what mlx-lm's own caches hold.
    """

    architecture: str
    layers: int
    full_layers: int
    n_kv_heads: int
    head_dim: int
    value_dim: int
    context_length: int
    weights_bytes: int
    parameters: int = 0
    window_layers: int = 0
    window: int = 0
    window_kv_heads: int = 0
    window_head_dim: int = 0
    recurrent_values: int = 0
    conv_values: int = 0
    rope_dims: int = 0
    compresses: bool = True
    is_guess: bool = False
    float_bytes: int = 2

    @property
    def recurrent_bytes(self) -> int:
        return self.recurrent_values * 4 + self.conv_values * self.float_bytes

    @property
    def window_bytes_per_token(self) -> int:
        """Of all sliding-window layers, for each token they hold."""
        return self.window_layers * self.window_kv_heads * 2 * self.window_head_dim * self.float_bytes


def shape_of(path: Path) -> Shape:
    """The shape of the MLX model folder or GGUF file at `path`, by its configuration and its files' headers.

    A GGUF file's weights count as they will be once converted.

    Raises:
        NotFoundError: there is no model at `path`.
        DamagedError: a configuration that contradicts itself.
        UsageError: a GGUF file of a kind that is not supported.
    """
    from satchel.engine.model_files import read_model_files
    from satchel.engine.shapes import shape_from_config

    files = read_model_files(path)
    return shape_from_config(files.config, files.weights_bytes, files.parameters)


def on_device(shape: Shape, device: Device) -> Shape:
    """The shape as `device` holds it: on a CPU activations are float32, and weights that fit are dense."""
    if device.kind != "cpu":
        return shape
    dense_bytes = shape.parameters * 4
    is_dense = 0 < dense_bytes <= device.memory_bytes // 2  # as `device.should_dequantise`
    return replace(shape, float_bytes=4, weights_bytes=dense_bytes if is_dense else shape.weights_bytes)


def kv_bytes_per_token(shape: Shape, profile: Profile) -> float:
    """Bytes that each further token of a long context takes, with scales and the rotary table's row.

    Raises:
        ValueError: one of the profile's codecs cannot hold vectors of this model's size.
    """
    if not _is_compressed(shape, profile):
        return float(_exact_token_bytes(shape) * shape.full_layers)
    rows = sum(_row_bytes(shape, layer) for layer in _layer_profiles(shape, profile))
    return float(rows + (shape.rope_dims * 4 if _has_table(profile) else 0))


def kv_bytes(shape: Shape, profile: Profile, tokens: int) -> int:
    """Bytes of the KV state of `tokens` tokens, and of states and windows that do not grow.

    The rotary table counts in full; a model none of whose key means turns with the position keeps only its
    first rows.

    Raises:
        ValueError: as `kv_bytes_per_token`.
    """
    total = shape.recurrent_bytes
    total += min(_up(tokens, KV_STEP), shape.window) * shape.window_bytes_per_token
    if not _is_compressed(shape, profile):
        return total + _up(tokens, KV_STEP) * _exact_token_bytes(shape) * shape.full_layers
    # As `TurboQuantKVCache.move_to_body`: so many tokens have left the window.
    body = max(0, (tokens - profile.sink - profile.window) // profile.move * profile.move)
    exact = (tokens - body) * shape.n_kv_heads * (shape.head_dim + shape.value_dim) * FLOAT_BYTES
    for layer in _layer_profiles(shape, profile):
        total += exact + body * _row_bytes(shape, layer)
        if body:
            fixed = fixed_bytes(layer.keys, shape.head_dim, is_keys=True)
            fixed += fixed_bytes(layer.values, shape.value_dim, is_keys=False)
            total += shape.n_kv_heads * fixed
    if body and _has_table(profile):
        total += _up(min(profile.sink, tokens) + body, TABLE_STEP) * shape.rope_dims * 4
    return total


def needed_bytes(shape: Shape, profile: Profile, tokens: int) -> int:
    """Weights, KV, and the one layer at a time that reading de-quantises, once more as it is joined.

    Raises:
        ValueError: as `kv_bytes_per_token`.
    """
    working = 0
    if _is_compressed(shape, profile):
        values = shape.n_kv_heads * (shape.head_dim + shape.value_dim)
        working = 2 * tokens * values * shape.float_bytes
    return shape.weights_bytes + kv_bytes(shape, profile, tokens) + working


def reserve_bytes(memory_bytes: int) -> int:
    """What stays for the system, other programs and the arrays of a step: a quarter, at least 1.5 GB."""
    return max(LEAST_RESERVE_BYTES, int(memory_bytes * RESERVE_SHARE))


def longest_context(shape: Shape, profile: Profile, memory_bytes: int) -> int:
    """Tokens of the longest context that fits in the memory less its reserve; at most `context_length`.

    0 where not even the weights fit.

    Raises:
        ValueError: as `kv_bytes_per_token`.
    """
    room = memory_bytes - reserve_bytes(memory_bytes)
    if needed_bytes(shape, profile, 1) > room:
        return 0
    fits, too_many = 1, shape.context_length + 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if needed_bytes(shape, profile, middle) <= room:
            fits = middle
        else:
            too_many = middle
    return fits


def _is_compressed(shape: Shape, profile: Profile) -> bool:
    return shape.compresses and shape.full_layers > 0 and not profile.is_exact


def _layer_profiles(shape: Shape, profile: Profile) -> list[Profile]:
    """One for each full-attention layer. Which layers get more bits does not matter here, only how many."""
    chosen = profile.for_model(range(shape.full_layers)) if profile.share else profile
    return [chosen.for_layer(index, shape.full_layers) for index in range(shape.full_layers)]


def _row_bytes(shape: Shape, layer: Profile) -> int:
    """Of a token of the body in one layer."""
    rows = row_bytes(layer.keys, shape.head_dim) + row_bytes(layer.values, shape.value_dim)
    return shape.n_kv_heads * rows


def _exact_token_bytes(shape: Shape) -> int:
    """Of a token in one layer of mlx-lm's own cache."""
    return shape.n_kv_heads * (shape.head_dim + shape.value_dim) * shape.float_bytes


def _has_table(profile: Profile) -> bool:
    return profile.keys.codec == "turbo"


def _up(number: int, step: int) -> int:
    return -(-number // step) * step
