"""TurboQuant as its paper has it (arXiv 2504.19874, algorithms 1 and 2). Knows nothing of caches."""

from __future__ import annotations

import math
from collections.abc import Mapping

import mlx.core as mx
import numpy as np

from satchel.engine.codebook import codebook
from satchel.engine.codecs.base import Rows
from satchel.engine.codecs.bits import Lookup, pack, packed_bytes
from satchel.engine.codecs.rotated import RotatedCodec, little_endian, norm_and_direction
from satchel.engine.codecs.sketch import SignSketch


class TQMseCodec(RotatedCodec):
    """Algorithm 1: rotate the direction and take the nearest Lloyd-Max level for each coordinate.

    The decoded direction is shorter than 1: its square falls short by the codebook's squared error D (0.36 at
    one bit, 0.0095 at four), and inner products by the same share. With `norm_correction` the row's scale
    makes up for that, so that the decoded vector has the vector's own norm, and products fall short by about
    D / 2. The squared error rises at one and two bits (at 64 coordinates by 11 and 2 %) and falls by 2 to 3 %
    at three and four, less in longer vectors.
    """

    def __init__(self, head_dim: int, bits: int, dtype: mx.Dtype, norm_correction: bool = True) -> None:
        """`dtype` is that of the scales.

        Raises:
            ValueError: bits not in 1 to 8, or fewer than 3 coordinates.
        """
        self._levels = _Levels(head_dim, bits)
        super().__init__(head_dim, dtype)
        self.bits = bits
        self.norm_correction = norm_correction

    def encode(self, x: mx.array) -> dict[str, mx.array]:
        norm, direction = norm_and_direction(x)
        numbers = self._levels.nearest(self.rotate(direction))
        if self.norm_correction:  # no level is 0, so neither is the length
            norm = norm / mx.linalg.norm(self._levels.values(numbers), axis=-1, keepdims=True)
        return {"codes": pack(numbers, self.bits), "scale": norm.astype(self.dtype)}

    def decode_rotated(self, rows: Rows) -> mx.array:
        return self._levels.unpack(rows["codes"]) * rows["scale"].astype(mx.float32)

    def layout(self) -> dict[str, tuple[mx.Dtype, int]]:
        return {"codes": (mx.uint8, packed_bytes(self.head_dim, self.bits)), "scale": (self.dtype, 1)}

    def constants(self) -> Mapping[str, bytes]:
        return {**super().constants(), "levels": little_endian(self._levels.table)}


class TQProdCodec(RotatedCodec):
    """Algorithm 2: b - 1 bits as algorithm 1, and a sign sketch of what they leave, with its norm.

    Inner products with the decoded vector are unbiased, with a mean squared error of at most
    sqrt(3) pi^2 ||q||^2 / d * 4^-b for a unit vector (theorem 2). No norm correction: it would bias them.
    The residual is sketched in the rotated frame, which spares a rotation: S R is as Gaussian as S.
    """

    def __init__(self, head_dim: int, bits: int, dtype: mx.Dtype) -> None:
        """`dtype` is that of both norms.

        Raises:
            ValueError: bits not in 2 to 8 (one bit would be the sketch alone), or fewer than 3 coordinates.
        """
        if not 2 <= bits <= 8:
            raise ValueError(f"bits is {bits}: tq-prod has 2 to 8 bits")
        self._levels = _Levels(head_dim, bits - 1)
        super().__init__(head_dim, dtype)
        self.bits = bits
        self._sketch = SignSketch(head_dim, head_dim)

    def encode(self, x: mx.array) -> dict[str, mx.array]:
        norm, direction = norm_and_direction(x)
        rotated = self.rotate(direction)
        numbers = self._levels.nearest(rotated)
        residual = rotated - self._levels.values(numbers)
        residual_norm = norm * mx.linalg.norm(residual, axis=-1, keepdims=True)
        return {
            "codes": pack(numbers, self.bits - 1),
            "signs": self._sketch.encode(residual),
            "norm": norm.astype(self.dtype),
            "residual": residual_norm.astype(self.dtype),
        }

    def decode_rotated(self, rows: Rows) -> mx.array:
        return self._coarse(rows) + self._sketch.spread(self._scaled_signs(rows))

    def layout(self) -> dict[str, tuple[mx.Dtype, int]]:
        return {
            "codes": (mx.uint8, packed_bytes(self.head_dim, self.bits - 1)),
            "signs": (mx.uint8, self._sketch.width),
            "norm": (self.dtype, 1),
            "residual": (self.dtype, 1),
        }

    def constants(self) -> Mapping[str, bytes]:
        return {
            **super().constants(),
            "levels": little_endian(self._levels.table),
            "projections": little_endian(self._sketch.matrix),
        }

    def scores(self, queries: mx.array, rows: Rows) -> mx.array:
        rotated = self.rotate(queries)
        coarse = self._coarse(rows).astype(queries.dtype)
        signs = self._scaled_signs(rows).astype(queries.dtype)
        return rotated @ coarse.swapaxes(-1, -2) + self._sketch.project(rotated) @ signs.swapaxes(-1, -2)

    def mix(self, weights: mx.array, rows: Rows) -> mx.array:
        coarse = weights @ self._coarse(rows).astype(weights.dtype)
        signs = weights @ self._scaled_signs(rows).astype(weights.dtype)
        return self.unrotate(coarse + self._sketch.spread(signs))

    def _coarse(self, rows: Rows) -> mx.array:
        """What the codebook alone says of R x, (..., head_dim) float32."""
        return self._levels.unpack(rows["codes"]) * rows["norm"].astype(mx.float32)

    def _scaled_signs(self, rows: Rows) -> mx.array:
        """What `spread` turns to the rest of R x, (..., head_dim) float32."""
        lengths = rows["residual"].astype(mx.float32) * self._sketch.factor
        return self._sketch.signs(rows["signs"]) * lengths


class _Levels:
    """The levels of a coordinate of a random unit vector."""

    def __init__(self, dim: int, bits: int) -> None:
        positive = codebook(dim, bits) / math.sqrt(dim)
        self._borders = ((positive[1:] + positive[:-1]) / 2).tolist()
        self._half = len(positive)
        self.table = np.concatenate([-positive[::-1], positive]).astype(np.float32)  # (2**bits,), ascending
        self._table = mx.array(self.table)
        self.unpack = Lookup(self.table, bits, dim)

    def nearest(self, x: mx.array) -> mx.array:
        """The number of the level next to each coordinate, uint8."""
        size, beyond = mx.abs(x), mx.zeros(x.shape, mx.uint8)
        for border in self._borders:
            beyond = beyond + (size > border)
        return mx.where(x >= 0, beyond + self._half, self._half - 1 - beyond)

    def values(self, numbers: mx.array) -> mx.array:
        return self._table[numbers]
