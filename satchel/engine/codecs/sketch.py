"""The sign sketch of QJL (arXiv 2406.03482): one bit a random projection. Knows nothing of norms or rows."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np

from satchel.engine.codecs.bits import Lookup, pack, packed_bytes
from satchel.engine.codecs.random_matrices import sketch_projections


class SignSketch:
    """sign(S x) for a fixed Gaussian matrix S (projections, dim).

    For a unit vector x, sqrt(pi / 2) / m * <S q, sign(S x)> is an unbiased estimate of <q, x> (QJL, lemma
    3.2), with variance (pi / 2 * ||q||^2 - <q, x>^2) / m over random S of m rows. `factor` is the number in
    front.
    """

    def __init__(self, projections: int, dim: int) -> None:
        self.width = packed_bytes(projections, 1)
        self.factor = math.sqrt(math.pi / 2) / projections
        self.matrix = sketch_projections(projections, dim)
        self._matrix = mx.array(self.matrix)
        self._signs = Lookup(np.array([-1.0, 1.0]), 1, projections)

    def encode(self, x: mx.array) -> mx.array:
        """(..., dim) to (..., width) uint8, a set bit where a projection is not negative."""
        return pack(self.project(x) >= 0, 1)

    def signs(self, packed: mx.array) -> mx.array:
        """(..., width) uint8 to (..., projections) float32, +-1."""
        return self._signs(packed)

    def project(self, x: mx.array) -> mx.array:
        """S x: (..., dim) to (..., projections), in the dtype of x."""
        return x @ self._matrix.T.astype(x.dtype)

    def spread(self, y: mx.array) -> mx.array:
        """The transpose of `project`: (..., projections) to (..., dim)."""
        return y @ self._matrix.astype(y.dtype)
