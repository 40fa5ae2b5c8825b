"""Codecs of randomly rotated vectors. Knows nothing of how the rotated coordinates are quantised."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import mlx.core as mx
import numpy as np

from satchel.engine.codecs.base import Codec, Rows
from satchel.engine.codecs.random_matrices import dense_rotation


class RotatedCodec(Codec):
    """Quantises R x, R a fixed dense random rotation.

    Attention turns the queries and the result instead of every decoded vector: q . x = (R q) . (R x).
    A row's numbers hang on a matrix product, whose last bits may differ with how many vectors are encoded at
    once; a coordinate on the border of two codes may then get the other one, which is as near.
    """

    def __init__(self, head_dim: int, dtype: mx.Dtype) -> None:
        self.head_dim = head_dim
        self.dtype = dtype  # of the norms
        self._rotation = mx.array(dense_rotation(head_dim))

    @abstractmethod
    def decode_rotated(self, rows: Rows) -> mx.array:
        """R x for the vectors x that `rows` stand for, (..., head_dim) float32."""

    def rotate(self, x: mx.array) -> mx.array:
        """R x, (..., head_dim) in the dtype of x."""
        return x @ self._rotation.T.astype(x.dtype)

    def unrotate(self, y: mx.array) -> mx.array:
        """The opposite of `rotate`."""
        return y @ self._rotation.astype(y.dtype)

    def decode(self, rows: Rows) -> mx.array:
        return self.unrotate(self.decode_rotated(rows))

    def constants(self) -> Mapping[str, bytes]:
        return {"rotation": little_endian(dense_rotation(self.head_dim))}

    def scores(self, queries: mx.array, rows: Rows) -> mx.array:
        rotated = self.decode_rotated(rows).astype(queries.dtype)
        return self.rotate(queries) @ rotated.swapaxes(-1, -2)

    def mix(self, weights: mx.array, rows: Rows) -> mx.array:
        return self.unrotate(weights @ self.decode_rotated(rows).astype(weights.dtype))


def norm_and_direction(x: mx.array) -> tuple[mx.array, mx.array]:
    """||x|| (..., 1), and x / ||x|| or zeros for a zero vector."""
    norm = mx.linalg.norm(x, axis=-1, keepdims=True)
    return norm, x / mx.where(norm > 0, norm, 1)


def little_endian(values: np.ndarray) -> bytes:
    """float32 values as bytes that are the same on every machine."""
    return values.astype("<f4").tobytes()
