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

GROUP_SIZES = (128, 64, 32)  # what mx.quantized_matmul takes

# How much of a vector's range the first grid spans. Coordinates of a rotated vector are nearly Gaussian:
# with 4 and 8 levels the best uniform grid leaves the tails out (Max 1960, table II: steps of 0.996 and
# 0.586 standard deviations, against a range of about +-2.4 in 64 samples).
CLIP = {2: 0.65, 3: 0.86, 4: 0.95, 8: 1.0}
REFITS = {2: 3, 3: 3, 4: 3, 8: 1}  # least-squares rounds; a fourth gains under 1 % of the squared error


def group_size_for(head_dim: int, bits: int) -> int:
    """The group size that stores a vector of `head_dim` in the fewest bits, padding included.

    A group costs 16 bits of scale and 16 of bias; sizes that do not divide `head_dim` pad it.
    """

    def stored_bits(group_size: int) -> int:
        groups = -(-head_dim // group_size)
        return groups * (group_size * bits + 32)

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


def quantize(x: mx.array, bits: int, group_size: int, scale_dtype: mx.Dtype) -> tuple[mx.array, ...]:
    """Codes, scale and bias of a uniform grid fitted to each group: x is about codes * scale + bias.

    The grid starts on the (clipped) range; least squares then refits scale and bias to the codes, and the
    codes are taken again on the refitted grid, after its scale and bias were rounded to `scale_dtype`.

    Args:
        x: (..., dim) float32, dim a multiple of `group_size`.

    Returns:
        codes (..., dim * bits / 32) uint32 in the layout of `mx.quantize`; scale and bias
        (..., dim / group_size) in `scale_dtype`.
    """
    groups = x.reshape(*x.shape[:-1], -1, group_size)  # (..., groups, group_size)
    top = 2**bits - 1
    low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    half = (high - low) * (0.5 * CLIP[bits])
    scale, bias = 2 * half / top, (high + low) / 2 - half
    for _ in range(REFITS[bits]):
        scale, bias = _refit(groups, _levels(groups, scale, bias, top), scale)
    scale, bias = scale.astype(scale_dtype), bias.astype(scale_dtype)
    levels = _levels(groups, scale.astype(x.dtype), bias.astype(x.dtype), top)
    return pack(levels.reshape(x.shape).astype(mx.uint32), bits), scale.squeeze(-1), bias.squeeze(-1)


def dequantize(codes: mx.array, scale: mx.array, bias: mx.array, bits: int, group_size: int) -> mx.array:
    """The inverse of `quantize` up to the grid, (..., dim) float32."""
    return mx.dequantize(
        codes, scale.astype(mx.float32), bias.astype(mx.float32), group_size=group_size, bits=bits
    )


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


def _levels(groups: mx.array, scale: mx.array, bias: mx.array, top: int) -> mx.array:
    safe = mx.where(scale > 0, scale, 1)  # a constant group: every level is 0 and bias carries it
    return mx.clip(mx.round((groups - bias) / safe), 0, top)


def _refit(groups: mx.array, levels: mx.array, scale: mx.array) -> tuple[mx.array, mx.array]:
    mean_x, mean_q = groups.mean(-1, keepdims=True), levels.mean(-1, keepdims=True)
    spread = levels - mean_q
    variance = (spread * spread).sum(-1, keepdims=True)
    covariance = (spread * (groups - mean_x)).sum(-1, keepdims=True)
    fitted = mx.where(variance > 0, covariance / mx.maximum(variance, 1e-12), scale)
    return fitted, mean_x - fitted * mean_q
