"""Rotate and quantise vectors to packed codes. Pure functions on arrays; knows nothing of caches or models.

The recipe is TurboQuant's (arXiv 2504.19874, Alg. 1: random rotation, then one scalar quantiser for all
coordinates) with a uniform grid fitted to each vector in place of the Lloyd-Max codebook: equal in quality
at equal bits, and the codes are then those of `mx.quantize`, so MLX's own quantised matmul reads them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from satchel.engine.device import fused

# What mx.quantized_matmul takes, but for 128: an eighth of a bit a coordinate is well spent on finer grids.
GROUP_SIZES = (64, 32)

# How much of a vector's range the first grid spans. Coordinates of a rotated vector are nearly Gaussian:
# with 4 and 8 levels the best uniform grid leaves the tails out (Max 1960, table II: steps of 0.996 and
# 0.586 standard deviations, against a range of about +-2.4 in 64 samples).
CLIP = {2: 0.65, 3: 0.86, 4: 0.95, 8: 1.0}
OFFSETS = 63  # steps across a grid's width that its middle can lie at: 6 bits
REFITS = {2: 3, 3: 2, 4: 1, 8: 0}  # least-squares rounds; one more gains 1 to 2 % of the squared error
INFINITY = 0x7C00  # the bits of an infinite float16; those of NaN are above
VARIANCE = 1e-3  # less than two different levels in a group of 128 can have


def group_size_for(head_dim: int, bits: int) -> int:
    """The group size that stores a vector of `head_dim` in the fewest bits, padding included.

    A group costs 16 bits of scale and offset; sizes that do not divide `head_dim` pad it.
    """

    def stored_bits(group_size: int) -> int:
        groups = -(-head_dim // group_size)
        return groups * (group_size * bits + 16)

    return min(GROUP_SIZES, key=stored_bits)


def rotation_signs(padded_dim: int) -> np.ndarray:
    """A fixed vector of +-1 for `padded_dim` coordinates, float32, from SHA-256 in counter mode."""
    stream = b"".join(
        hashlib.sha256(b"satchel rotation signs %d" % counter).digest()
        for counter in range(-(-padded_dim // 256))
    )
    bits = np.unpackbits(np.frombuffer(stream, np.uint8))[:padded_dim]
    return (1 - 2 * bits.astype(np.float32)).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Rotation:
    """x -> H S x: pad to `padded_dim`, a fixed sign per coordinate, a normalised Walsh-Hadamard transform.

    Orthogonal on the padded space, so dot products are kept. The transform runs over the largest power of
    two that divides `padded_dim`: sizes with an odd factor (96 = 3 x 32) turn in blocks, because
    `mx.hadamard_transform` is not symmetric for those and wrong for some.
    """

    head_dim: int
    group_size: int
    signs: mx.array = field(repr=False)  # (padded_dim,) float32, +-1

    @classmethod
    def fixed(cls, head_dim: int, bits: int) -> Rotation:
        """The rotation for `head_dim` at `bits`, with the signs that every session starts with."""
        group_size = group_size_for(head_dim, bits)
        padded_dim = -(-head_dim // group_size) * group_size
        return cls(head_dim, group_size, mx.array(rotation_signs(padded_dim)))

    @property
    def padded_dim(self) -> int:
        return self.signs.size

    @property
    def transform_size(self) -> int:
        return self.padded_dim & -self.padded_dim

    def apply(self, x: mx.array) -> mx.array:
        """(..., head_dim) to (..., padded_dim)."""
        if self.padded_dim > self.head_dim:
            x = mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, self.padded_dim - self.head_dim)])
        return self._transform(x * self.signs.astype(x.dtype))

    def invert(self, y: mx.array) -> mx.array:
        """(..., padded_dim) to (..., head_dim): the transpose of `apply`, which undoes it."""
        return (self._transform(y) * self.signs.astype(y.dtype))[..., : self.head_dim]

    def _transform(self, x: mx.array) -> mx.array:
        if self.transform_size == self.padded_dim:
            return mx.hadamard_transform(x)
        blocks = x.reshape(*x.shape[:-1], -1, self.transform_size)
        return mx.hadamard_transform(blocks).reshape(x.shape)


def quantize(x: mx.array, bits: int, group_size: int) -> tuple[mx.array, mx.array]:
    """Codes of a uniform grid fitted to each group, and the grids: x is about codes * scale + bias.

    The grid starts on the (clipped) range; least squares then refits scale and bias to the codes. Both are
    rounded to 16 bits together, as `scale_and_bias` reads them, and the codes are taken again on the rounded
    grid. That makes up for most of the rounding: it costs 0.2, 2 and 4 % in squared error at 2, 3 and 4 bits,
    and saves a quarter bit a coordinate in groups of 64 against two float16.

    Args:
        x: (..., dim) float32, dim a multiple of `group_size`.

    Returns:
        codes (..., dim * bits / 32) uint32 in the layout of `mx.quantize`; grids (..., dim / group_size)
        float16. A group that is not finite, or too large, has a grid that is not.
    """
    groups = x.reshape(*x.shape[:-1], -1, group_size)  # (..., groups, group_size)
    half_top = (2**bits - 1) / 2
    low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    scale, middle = (high - low) * (0.5 * CLIP[bits] / half_top), (high + low) / 2
    mean = groups.mean(-1, keepdims=True)
    for _ in range(REFITS[bits]):
        levels = (
            _levels(groups, scale, middle - scale * half_top, bits) - half_top
        )  # around 0: sums stay exact
        mean_level = levels.mean(-1, keepdims=True)
        variance = mx.square(levels).mean(-1, keepdims=True) - mx.square(mean_level)
        covariance = (levels * groups).mean(-1, keepdims=True) - mean_level * mean
        # A constant group has one level, and keeps its scale.
        scale = mx.where(variance > VARIANCE, covariance / mx.maximum(variance, VARIANCE), scale)
        middle = mean - scale * mean_level
    grids = _grids(scale, middle, bits)
    levels = _levels(groups, *scale_and_bias(grids, bits), bits)
    return pack(levels.reshape(x.shape).astype(mx.uint32), bits), grids.squeeze(-1)


def scale_and_bias(grids: mx.array, bits: int) -> tuple[mx.array, mx.array]:
    """Scale and bias, float32, of grids.

    A grid is its scale, a float16. The 6 last bits of that also say where the grid's middle lies, in 63rds of
    its width: bias = scale * (2**bits - 1) * (offset / 63 - 1).
    """
    return _scale_and_bias(grids, grids.view(mx.uint16), 2**bits - 1)


@fused
def _scale_and_bias(grids: mx.array, grid_bits: mx.array, top: int) -> tuple[mx.array, mx.array]:
    scale, offset = grids.astype(mx.float32), (grid_bits & OFFSETS).astype(mx.float32)
    return scale, scale * (offset * (top / OFFSETS) - top)


def dequantize(codes: mx.array, grids: mx.array, bits: int, group_size: int) -> mx.array:
    """The inverse of `quantize` up to the grid, (..., dim) float32."""
    return mx.dequantize(codes, *scale_and_bias(grids, bits), group_size=group_size, bits=bits)


def pack(levels: mx.array, bits: int) -> mx.array:
    """(..., dim) uint32 below 2**bits to (..., dim * bits / 32) uint32, the bit stream of `mx.quantize`.

    Value i takes bits [i * bits, (i + 1) * bits) of the little-endian stream, so at 3 bits two values of
    every 32 lie across a word boundary.
    """
    if 32 % bits == 0:
        words = levels.reshape(*levels.shape[:-1], -1, 32 // bits)
        return (words << mx.arange(0, 32, bits, dtype=mx.uint32)).sum(-1)
    words = levels.reshape(*levels.shape[:-1], -1, 32)  # 32 values fill `bits` words
    packed = []
    for word in range(bits):
        first_bit, end_bit = 32 * word, 32 * (word + 1)
        first, end = -(-first_bit // bits), -(-end_bit // bits)
        shifts = mx.arange(first * bits - first_bit, end * bits - first_bit, bits, dtype=mx.uint32)
        total = (words[..., first:end] << shifts).sum(-1)
        if first * bits > first_bit:  # the value that began in the word before
            total = total + (words[..., first - 1] >> (first_bit - (first - 1) * bits))
        packed.append(total)
    return mx.stack(packed, -1).reshape(*levels.shape[:-1], -1)


def _grids(scale: mx.array, middle: mx.array, bits: int) -> mx.array:
    """The grid nearest to one around `middle`, widened to span zero: those of rotated vectors mostly do."""
    top = 2**bits - 1
    low, high = mx.minimum(middle - scale * (top / 2), 0), mx.maximum(middle + scale * (top / 2), 0)
    width = mx.where(high > low, high - low, 1)
    offset = mx.clip(mx.round(((high + low) / (2 * width) + 0.5) * OFFSETS), 0, OFFSETS).astype(mx.uint16)
    # Of the numbers that end in the offset's bits, the nearest scale; for 256 levels the next above, since
    # those lose more at the grid's ends than between its levels.
    exact = ((high - low) / top).astype(mx.float16).view(mx.uint16)
    above = mx.maximum(exact + (OFFSETS if bits == 8 else (OFFSETS + 1) // 2), offset)
    nearest = ((above - offset) & (0xFFFF - OFFSETS)) | offset
    # A group of zeros comes back as zeros, and what is not finite stays so.
    return mx.where((exact == 0) | (exact >= INFINITY), exact, nearest).view(mx.float16)


def _levels(groups: mx.array, scale: mx.array, bias: mx.array, bits: int) -> mx.array:
    # A scale of 0: every level is 0 and bias carries the group. Passes over all coordinates are what encoding
    # takes its time for, so the division is one over the groups.
    inverse = 1 / mx.where(scale > 0, scale, 1)
    return mx.clip(mx.round(groups * inverse - bias * inverse), 0, 2**bits - 1)
