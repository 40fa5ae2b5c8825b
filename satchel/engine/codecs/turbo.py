"""Our own codec: a fixed rotation, then a uniform grid for each vector. Knows nothing of tokens or caches."""

from __future__ import annotations

from collections.abc import Mapping

import mlx.core as mx
import numpy as np

from satchel.engine.codecs.base import Codec, Rows
from satchel.engine.device import dense_matmul_rows
from satchel.engine.turboquant import Rotation, dequantize, quantize, scale_and_bias


class TurboCodec(Codec):
    """`turboquant.quantize` of the rotated vector. MLX's own quantised matmul reads the codes."""

    def __init__(self, head_dim: int, bits: int) -> None:
        self.head_dim = head_dim
        self.bits = bits
        self.rotation = Rotation.fixed(head_dim, bits)

    def encode(self, x: mx.array) -> dict[str, mx.array]:
        codes, grids = quantize(self.rotation.apply(x), self.bits, self.rotation.group_size)
        return {"codes": codes, "grid": grids}

    def decode(self, rows: Rows) -> mx.array:
        return self.rotation.invert(self._rotated(rows))

    def layout(self) -> dict[str, tuple[mx.Dtype, int]]:
        groups = self.rotation.padded_dim // self.rotation.group_size
        words = self.rotation.padded_dim * self.bits // 32
        return {"codes": (mx.uint32, words), "grid": (mx.float16, groups)}

    def constants(self) -> Mapping[str, bytes]:
        return {"signs": np.packbits(np.array(self.rotation.signs) < 0).tobytes()}

    def scores(self, queries: mx.array, rows: Rows) -> mx.array:
        return self._matmul(self.rotation.apply(queries), rows, transpose=True)

    def mix(self, weights: mx.array, rows: Rows) -> mx.array:
        return self.rotation.invert(self._matmul(weights, rows, transpose=False))

    def _rotated(self, rows: Rows) -> mx.array:
        return dequantize(rows["codes"], rows["grid"], self.bits, self.rotation.group_size)

    def _matmul(self, x: mx.array, rows: Rows, transpose: bool) -> mx.array:
        """`x @ rotated`, or `x @ rotated.T` with `transpose`, x (B, n_kv_heads, N, tokens or padded_dim)."""
        if x.shape[2] >= dense_matmul_rows(transpose):
            rotated = self._rotated(rows).astype(x.dtype)
            return x @ (rotated.swapaxes(-1, -2) if transpose else rotated)
        return mx.quantized_matmul(
            x,
            rows["codes"],
            *scale_and_bias(rows["grid"], self.bits),
            transpose=transpose,
            group_size=self.rotation.group_size,
            bits=self.bits,
        )
