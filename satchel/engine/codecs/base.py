"""What a codec is: a quantiser of single vectors. Knows nothing of tokens, caches, means or models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import mlx.core as mx

Rows = Mapping[str, mx.array]  # name to (..., vectors, width): one row a vector


class Codec(ABC):
    """Maps vectors of one head_dim to rows of packed numbers and back. Immutable.

    A row depends on its own vector alone, so rows can be appended and cut. Whatever is not finite in a vector
    makes a floating value of its row not finite, so that saving can refuse it: nothing here waits for the
    device to look.
    """

    @abstractmethod
    def encode(self, x: mx.array) -> dict[str, mx.array]:
        """Rows of x, (..., head_dim) float32: name to (..., width) as `layout` says."""

    @abstractmethod
    def decode(self, rows: Rows) -> mx.array:
        """The vectors that `rows` stand for, (..., head_dim) float32."""

    @abstractmethod
    def layout(self) -> dict[str, tuple[mx.Dtype, int]]:
        """Name to dtype and width of the arrays that `encode` returns."""

    def constants(self) -> Mapping[str, bytes]:
        """What rows can only be read with, and no parameter says: random signs, matrices, codebooks."""
        return {}

    def scores(self, queries: mx.array, rows: Rows) -> mx.array:
        """q . x for queries (B, n_kv_heads, N, head_dim) and rows of T vectors: (B, n_kv_heads, N, T)."""
        return queries @ self.decode(rows).astype(queries.dtype).swapaxes(-1, -2)

    def mix(self, weights: mx.array, rows: Rows) -> mx.array:
        """The sum of x by weights (B, n_kv_heads, N, T): (B, n_kv_heads, N, head_dim)."""
        return weights @ self.decode(rows).astype(weights.dtype)
