"""Min-max quantisation of groups of coordinates, by `mx.quantize`. Knows nothing of tokens or caches."""

from __future__ import annotations

import mlx.core as mx

from satchel.engine.codecs.base import Codec, Rows
from satchel.engine.device import dense_matmul_rows

BITS = (2, 3, 4, 8)
GROUP_SIZES = (32, 64, 128)


class AffineCodec(Codec):
    """What mlx-lm's quantised cache does: the baseline. MLX's own quantised matmul reads the codes.

    A head_dim that groups do not divide is padded. Of the groups up to the size asked for, the one that pads
    least is taken, and the largest of those: 80 with groups of 64 becomes 3 groups of 32, not 2 of 64. The
    padding repeats the last coordinate, so that it never widens a group's range.
    """

    def __init__(self, head_dim: int, bits: int, dtype: mx.Dtype, group_size: int = 64) -> None:
        """`dtype` is that of scales and biases.

        Raises:
            ValueError: bits not 2, 3, 4 or 8, or group_size not 32, 64 or 128.
        """
        if bits not in BITS:
            raise ValueError(f"bits is {bits}: affine has 2, 3, 4 or 8")
        if group_size not in GROUP_SIZES:
            raise ValueError(f"group_size is {group_size}: affine has 32, 64 or 128")
        self.head_dim = head_dim
        self.bits = bits
        self.dtype = dtype
        sizes = [size for size in GROUP_SIZES if size <= group_size]
        self.group_size = min(sizes, key=lambda size: (-head_dim % size, -size))
        self.padded_dim = head_dim + -head_dim % self.group_size

    def encode(self, x: mx.array) -> dict[str, mx.array]:
        x = x.astype(self.dtype)  # as mlx-lm does; MLX then fits the codes to the rounded scale and bias
        if self.padded_dim > self.head_dim:
            x = mx.pad(x, self._padding(x), mode="edge")
        codes, scale, bias = mx.quantize(x, group_size=self.group_size, bits=self.bits)
        finite = mx.isfinite(x.reshape(*scale.shape, self.group_size)).all(-1)  # min and max pass over NaN
        return {"codes": codes, "scale": mx.where(finite, scale, mx.nan), "bias": bias}

    def decode(self, rows: Rows) -> mx.array:
        scale, bias = (rows[name].astype(mx.float32) for name in ("scale", "bias"))
        x = mx.dequantize(rows["codes"], scale, bias, group_size=self.group_size, bits=self.bits)
        return x[..., : self.head_dim]

    def layout(self) -> dict[str, tuple[mx.Dtype, int]]:
        groups = self.padded_dim // self.group_size
        return {
            "codes": (mx.uint32, self.padded_dim * self.bits // 32),
            "scale": (self.dtype, groups),
            "bias": (self.dtype, groups),
        }

    def scores(self, queries: mx.array, rows: Rows) -> mx.array:
        if queries.shape[2] >= dense_matmul_rows(transposed=True):
            return super().scores(queries, rows)
        return self._matmul(mx.pad(queries, self._padding(queries)), rows, transpose=True)

    def mix(self, weights: mx.array, rows: Rows) -> mx.array:
        if weights.shape[2] >= dense_matmul_rows(transposed=False):
            return super().mix(weights, rows)
        return self._matmul(weights, rows, transpose=False)[..., : self.head_dim]

    def _matmul(self, x: mx.array, rows: Rows, transpose: bool) -> mx.array:
        product = mx.quantized_matmul(
            x,
            rows["codes"],
            rows["scale"],
            rows["bias"],
            transpose=transpose,
            group_size=self.group_size,
            bits=self.bits,
        )
        return product.astype(x.dtype)  # two kinds of 16-bit floats make float32

    def _padding(self, x: mx.array) -> list[tuple[int, int]]:
        return [(0, 0)] * (x.ndim - 1) + [(0, self.padded_dim - self.head_dim)]
