"""QJL (arXiv 2406.03482): a sign sketch of each vector, with its norm. Knows nothing of tokens or caches."""

from __future__ import annotations

from collections.abc import Mapping

import mlx.core as mx

from satchel.engine.codecs.base import Codec, Rows
from satchel.engine.codecs.rotated import little_endian, norm_and_direction
from satchel.engine.codecs.sketch import SignSketch


class QJLCodec(Codec):
    """The signs of m = bits * head_dim Gaussian projections S, and the norm.

    <q, x> is estimated without bias as sqrt(pi / 2) / m * ||x|| * <S q, sign(S x)>. `decode` gives the vector
    with just these inner products, sqrt(pi / 2) / m * ||x|| * S^T sign(S x): right on average and far off
    each time (its squared error at one bit is about pi / 2 * ||x||^2), so it suits keys, not values.
    """

    def __init__(self, head_dim: int, bits: int, dtype: mx.Dtype) -> None:
        """`dtype` is that of the norms.

        Raises:
            ValueError: bits not in 1 to 8.
        """
        if not 1 <= bits <= 8:
            raise ValueError(f"bits is {bits}: qjl has 1 to 8 signs a coordinate")
        self.head_dim = head_dim
        self.bits = bits
        self.dtype = dtype
        self._sketch = SignSketch(bits * head_dim, head_dim)

    def encode(self, x: mx.array) -> dict[str, mx.array]:
        norm, direction = norm_and_direction(x)
        return {"signs": self._sketch.encode(direction), "norm": norm.astype(self.dtype)}

    def decode(self, rows: Rows) -> mx.array:
        return self._sketch.spread(self._sketch.signs(rows["signs"])) * self._lengths(rows)

    def layout(self) -> dict[str, tuple[mx.Dtype, int]]:
        return {"signs": (mx.uint8, self._sketch.width), "norm": (self.dtype, 1)}

    def constants(self) -> Mapping[str, bytes]:
        return {"projections": little_endian(self._sketch.matrix)}

    def scores(self, queries: mx.array, rows: Rows) -> mx.array:
        signs = self._sketch.signs(rows["signs"]).astype(queries.dtype)  # (B, n_kv_heads, T, projections)
        products = self._sketch.project(queries) @ signs.swapaxes(-1, -2)
        return products * self._lengths(rows).astype(queries.dtype).swapaxes(-1, -2)

    def mix(self, weights: mx.array, rows: Rows) -> mx.array:
        signs = self._sketch.signs(rows["signs"]).astype(weights.dtype)
        scaled = weights * self._lengths(rows).astype(weights.dtype).swapaxes(-1, -2)
        return self._sketch.spread(scaled @ signs)

    def _lengths(self, rows: Rows) -> mx.array:
        return rows["norm"].astype(mx.float32) * self._sketch.factor
