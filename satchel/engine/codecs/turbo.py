"""Our own codec: a fixed rotation, then a uniform grid for each vector. Knows nothing of tokens or caches."""

from __future__ import annotations

from collections.abc import Mapping

import mlx.core as mx
import numpy as np

from satchel.engine.codecs.base import Codec, Rows
from satchel.engine.device import PackedMatrix
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
        return self.rotation.invert(
            dequantize(rows["codes"], rows["grid"], self.bits, self.rotation.group_size)
        )

    def layout(self) -> dict[str, tuple[mx.Dtype, int]]:
        groups = self.rotation.padded_dim // self.rotation.group_size
        words = self.rotation.padded_dim * self.bits // 32
        return {"codes": (mx.uint32, words), "grid": (mx.float16, groups)}

    def constants(self) -> Mapping[str, bytes]:
        return {"signs": np.packbits(np.array(self.rotation.signs) < 0).tobytes()}

    def scores(self, queries: mx.array, rows: Rows) -> mx.array:
        return self._packed(rows).matmul(self.rotation.apply(queries), transpose=True)

    def mix(self, weights: mx.array, rows: Rows) -> mx.array:
        return self.rotation.invert(self._packed(rows).matmul(weights, transpose=False))

    def _packed(self, rows: Rows) -> PackedMatrix:
        """The rotated vectors."""
        scale, bias = scale_and_bias(rows["grid"], self.bits)
        return PackedMatrix(rows["codes"], scale, bias, self.bits, self.rotation.group_size)
