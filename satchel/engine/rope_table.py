"""What a layer's rotary embedding does at each position, as one small table for all layers that share it.

Subtracting the mean of the *de-rotated* keys needs R_p mu at every position p, and attention needs q . R_p mu
for the keys of the body. Both come from cos and sin per position and coordinate pair, so the table costs
2 * pairs numbers a position for the whole model instead of head_dim per head and layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import mlx.core as mx

from satchel.engine.device import fused

GROW = 1024  # positions added at a time
PROBED = (1, 7, 300)  # positions


@dataclass(slots=True)
class RopeTable:
    """cos and sin of each position for a rotary embedding that turns the first `dims` coordinates.

    Coordinate pairs are (i, i + dims / 2), or (2i, 2i + 1) where `traditional`. A pair may also be scaled,
    cos and sin together, as long-context embeddings do.
    """

    rope: Callable[..., mx.array]
    dims: int
    traditional: bool
    rows: mx.array | None = field(default=None, repr=False)  # (positions, dims) float32: cos | sin

    @classmethod
    def of(cls, rope: object) -> RopeTable | None:
        """The table of a layer's `rope` module, or None where it does not turn pairs of coordinates.

        What the module does to basis vectors decides, not what its attributes say of it.
        """
        dims = getattr(rope, "dims", getattr(rope, "dim", None))
        if not callable(rope) or not isinstance(dims, int) or dims <= 0 or dims % 2:
            return None
        basis = mx.eye(dims)[None, :, None]  # (1, dims, 1, dims): a head for each
        try:
            turned = [
                rope(mx.array(basis), offset=position) for position in PROBED
            ]  # some write to their input
        except (TypeError, ValueError):  # it wants other arguments than the usual ones, or other shapes
            return None
        if any(array.shape != basis.shape for array in turned):
            return None
        for traditional in (False, True):
            table = cls(rope, dims, traditional)
            ours = [table.turn(basis, position, position + 1) for position in PROBED]
            if all(mx.allclose(a, b, atol=1e-4) for a, b in zip(turned, ours, strict=True)):
                return cls(rope, dims, traditional)
        return None

    @property
    def nbytes(self) -> int:
        return 0 if self.rows is None else self.rows.nbytes

    def between(self, start: int, stop: int) -> mx.array:
        """Rows [start, stop), (stop - start, dims) float32."""
        have = 0 if self.rows is None else self.rows.shape[0]
        if have < stop:
            # In chunks that start at fixed positions: a resumed session gets the very same rows.
            chunks = [] if self.rows is None else [self.rows]
            chunks += [self._compute(position) for position in range(have, stop, GROW)]
            self.rows = mx.concatenate(chunks)
            mx.eval(self.rows)
        assert self.rows is not None
        return self.rows[start:stop]

    def turn(self, mean: mx.array, start: int, stop: int) -> mx.array:
        """R_p mean for p in [start, stop): (B, heads, 1, head_dim) to (B, heads, positions, head_dim)."""
        cos, sin = mx.split(self.between(start, stop), 2, -1)  # (T, pairs) each
        first, second, rest = self._pairs(mean)
        turned = self._join(first * cos - second * sin, first * sin + second * cos)
        unturned = mx.broadcast_to(rest, (*turned.shape[:-1], rest.shape[-1]))
        return mx.concatenate([turned, unturned], -1)

    def unturn(self, keys: mx.array, start: int) -> mx.array:
        """R_p^-1 k for keys (B, heads, T, head_dim) at positions start, start + 1, ..."""
        cos, sin = mx.split(self.between(start, start + keys.shape[2]), 2, -1)
        scale = 1 / mx.maximum(cos * cos + sin * sin, 1e-12)  # long-context ropes also scale
        first, second, rest = self._pairs(keys)
        turned = self._join((first * cos + second * sin) * scale, (second * cos - first * sin) * scale)
        return mx.concatenate([turned, rest], -1)

    def dot(self, queries: mx.array, mean: mx.array, start: int, stop: int) -> mx.array:
        """q . R_p mean for p in [start, stop): (B, heads, N, head_dim) to (B, heads, N, positions)."""
        q_first, q_second, q_rest = self._pairs(queries)
        m_first, m_second, m_rest = self._pairs(mean)
        products = _products(q_first, q_second, m_first, m_second)
        weights = mx.concatenate(list(products), -1).reshape(-1, self.dims)
        product = weights @ self.between(start, stop).T
        product = product.reshape(*queries.shape[:-1], stop - start)
        if self.dims < queries.shape[-1]:
            product = product + (q_rest * m_rest).sum(-1, keepdims=True)
        return product

    def _compute(self, start: int) -> mx.array:
        ones, zeros = mx.ones((1, 1, GROW, self.dims // 2)), mx.zeros((1, 1, GROW, self.dims // 2))
        first, second, _ = self._pairs(self.rope(self._join(ones, zeros), offset=start))
        return mx.concatenate([first, second], -1)[0, 0]

    def _pairs(self, x: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        turned, rest = x[..., : self.dims], x[..., self.dims :]
        if self.traditional:
            return turned[..., 0::2], turned[..., 1::2], rest
        return turned[..., : self.dims // 2], turned[..., self.dims // 2 :], rest

    def _join(self, first: mx.array, second: mx.array) -> mx.array:
        if self.traditional:
            return mx.stack([first, second], -1).reshape(*first.shape[:-1], -1)
        return mx.concatenate([first, second], -1)


@fused
def _products(
    q_first: mx.array, q_second: mx.array, m_first: mx.array, m_second: mx.array
) -> tuple[mx.array, mx.array]:
    """What cos and what sin of a pair's angle are multiplied with in q . R_p m."""
    return q_first * m_first + q_second * m_second, q_second * m_first - q_first * m_second
