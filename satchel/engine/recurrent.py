"""The state of recurrent layers in 8 bits. Knows nothing of caches, files or models.

Each row along the last axis gets a step that is a power of two, and its values become multiples of it. Such
values are exact in any 16-bit float, and rounding them again changes nothing: what is in memory can be what
is stored, as everywhere else.
"""

from __future__ import annotations

import mlx.core as mx

LIMIT = 127  # steps to either side of zero


def is_matrix(x: object) -> bool:
    """Whether a recurrent layer's array is its state (B, heads, rows, width), and not its last few inputs."""
    return isinstance(x, mx.array) and x.ndim == 4 and mx.issubdtype(x.dtype, mx.floating)


def to_bytes(x: mx.array) -> tuple[mx.array, mx.array]:
    """x (..., width) as bytes of the same shape, offset by 128, and steps (..., 1) float32.

    A row that is not finite has a step that is not.
    """
    x = x.astype(mx.float32)
    largest = mx.abs(x).max(-1, keepdims=True)
    # The next power of two, by its bits: no device rounds a logarithm quite like another.
    steps = (((largest / LIMIT).view(mx.uint32) + 0x7FFFFF) & 0x7F800000).view(mx.float32)
    levels = mx.clip(mx.round(x / mx.where(steps > 0, steps, 1)), -LIMIT, LIMIT)
    return (levels + 128).astype(mx.uint8), mx.where(mx.isfinite(largest), steps, largest)


def from_bytes(levels: mx.array, steps: mx.array, dtype: mx.Dtype) -> mx.array:
    """The values that `to_bytes` rounded to."""
    return ((levels.astype(mx.float32) - 128) * steps).astype(dtype)


def rounded(x: mx.array) -> mx.array:
    """`x` as it will be after it was stored."""
    return from_bytes(*to_bytes(x), x.dtype)
