"""The body of a layer's cache: the tokens between sink and window, of keys or of values.

`QuantisedBody` holds codes, with the mean of each (layer, head) taken out first; `ExactBody` holds 16-bit
floats. Both answer the same three questions: scores of queries, a weighted sum, and the dense vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import mlx.core as mx

from satchel.engine.device import dense_matmul_rows
from satchel.engine.rope_table import RopeTable
from satchel.engine.turboquant import Rotation, dequantize, quantize

# A de-rotated mean costs a matmul per step, so it must leave clearly less key energy than the plain mean.
DEROTATED_GAIN = 0.9
PACKED = ("codes", "scale", "bias")


class Body(Protocol):
    """Vectors of the body's tokens; positions start at `start`, the first token after the sink."""

    @property
    def tokens(self) -> int: ...

    def append(self, exact: mx.array, start: int, count: int) -> None:
        """Take over tokens [start, start + count) of `exact` (B, n_kv_heads, T, head_dim)."""

    def trim(self, n: int) -> None: ...

    def clear(self) -> None: ...

    def scores(self, queries: mx.array, start: int) -> mx.array:
        """q . x for queries (B, n_kv_heads, N, head_dim): (B, n_kv_heads, N, tokens)."""

    def mix(self, weights: mx.array) -> mx.array:
        """The sum of x by weights (B, n_kv_heads, N, tokens): (B, n_kv_heads, N, head_dim)."""

    def dense(self, start: int, dtype: mx.Dtype) -> mx.array:
        """x, (B, n_kv_heads, tokens, head_dim)."""

    def arrays(self) -> dict[str, mx.array]:
        """What is held, by name."""

    def load(self, arrays: Mapping[str, mx.array]) -> None:
        """The opposite of `arrays`."""

    def layout(self, head_dim: int, dtype: mx.Dtype) -> dict[str, tuple[mx.Dtype, int]]:
        """Name to dtype and width of the arrays that hold a row a token, (B, n_kv_heads, tokens, width)."""


class ExactBody:
    """16-bit floats, as they came."""

    def __init__(self) -> None:
        self.x: mx.array | None = None

    @property
    def tokens(self) -> int:
        return 0 if self.x is None else self.x.shape[2]

    def append(self, exact: mx.array, start: int, count: int) -> None:
        new = exact[:, :, start : start + count]
        self.x = mx.contiguous(new) if self.x is None else mx.concatenate([self.x, new], axis=2)

    def trim(self, n: int) -> None:
        if n and self.x is not None:
            self.x = mx.contiguous(self.x[:, :, : self.tokens - n])

    def clear(self) -> None:
        self.x = None

    def scores(self, queries: mx.array, start: int) -> mx.array:
        return queries @ self._held().astype(queries.dtype).swapaxes(-1, -2)

    def mix(self, weights: mx.array) -> mx.array:
        return weights @ self._held().astype(weights.dtype)

    def dense(self, start: int, dtype: mx.Dtype) -> mx.array:
        return self._held().astype(dtype)

    def arrays(self) -> dict[str, mx.array]:
        return {} if self.x is None else {"x": self.x}

    def load(self, arrays: Mapping[str, mx.array]) -> None:
        self.x = arrays["x"]

    def layout(self, head_dim: int, dtype: mx.Dtype) -> dict[str, tuple[mx.Dtype, int]]:
        return {"x": (dtype, head_dim)}

    def _held(self) -> mx.array:
        assert self.x is not None
        return self.x


class QuantisedBody:
    """Codes of the rotated, mean-free vectors.

    The mean is fixed by the first tokens that come and kept. With `rope` (keys) it is the mean of the keys as
    they were before their rotary embedding, turned to each position, where that leaves less energy: a bias of
    the key projection turns with the position, and a plain mean catches its slow channels only.
    """

    def __init__(self, bits: int, scale_dtype: mx.Dtype, rope: RopeTable | None) -> None:
        self.bits = bits
        self.scale_dtype = scale_dtype
        self.rope = rope
        self.mean_turns = False
        self._rotation: Rotation | None = None
        self._mean: mx.array | None = None  # (B, n_kv_heads, 1, head_dim) float32
        # codes (B, n_kv_heads, tokens, padded_dim * bits / 32) uint32; scale, bias (..., tokens, groups)
        self._packed: tuple[mx.array, ...] | None = None

    @property
    def tokens(self) -> int:
        return 0 if self._packed is None else self._packed[0].shape[2]

    @property
    def mean(self) -> mx.array:
        assert self._mean is not None
        return self._mean

    @property
    def rotation(self) -> Rotation:
        if self._rotation is None:
            self._rotation = Rotation.fixed(self.mean.shape[-1], self.bits)
        return self._rotation

    def append(self, exact: mx.array, start: int, count: int) -> None:
        position = start + self.tokens
        if self._mean is None:
            self._fix_mean(exact[:, :, start:].astype(mx.float32), position)
        x = exact[:, :, start : start + count].astype(mx.float32)
        rotated = self.rotation.apply(x - self._means(position, position + count))
        new = quantize(rotated, self.bits, self.rotation.group_size, self.scale_dtype)
        if self._packed is None:
            self._packed = new
        else:
            pairs = zip(self._packed, new, strict=True)
            self._packed = tuple(mx.concatenate([held, added], axis=2) for held, added in pairs)

    def trim(self, n: int) -> None:
        if n and self._packed is not None:
            kept = self.tokens - n
            self._packed = tuple(mx.contiguous(array[:, :, :kept]) for array in self._packed)

    def clear(self) -> None:
        self._mean = self._packed = None
        self.mean_turns = False

    def scores(self, queries: mx.array, start: int) -> mx.array:
        scores = self._matmul(self.rotation.apply(queries), transpose=True)
        if self.mean_turns and self.rope is not None:
            return scores + self.rope.dot(queries, self.mean, start, start + self.tokens).astype(scores.dtype)
        return scores + (queries * self.mean.astype(queries.dtype)).sum(-1, keepdims=True)

    def mix(self, weights: mx.array) -> mx.array:
        mixed = self.rotation.invert(self._matmul(weights, transpose=False))
        return mixed + weights.sum(-1, keepdims=True) * self.mean.astype(weights.dtype)

    def dense(self, start: int, dtype: mx.Dtype) -> mx.array:
        x = self.rotation.invert(self._rotated()) + self._means(start, start + self.tokens)
        return x.astype(dtype)

    def arrays(self) -> dict[str, mx.array]:
        if self._packed is None:
            return {}
        return {"mean": self.mean, **dict(zip(PACKED, self._packed, strict=True))}

    def load(self, arrays: Mapping[str, mx.array]) -> None:
        self._mean = arrays["mean"]
        self._packed = tuple(arrays[name] for name in PACKED)

    def layout(self, head_dim: int, dtype: mx.Dtype) -> dict[str, tuple[mx.Dtype, int]]:
        rotation = Rotation.fixed(head_dim, self.bits)
        groups = rotation.padded_dim // rotation.group_size
        return {
            "codes": (mx.uint32, rotation.padded_dim * self.bits // 32),
            "scale": (dtype, groups),
            "bias": (dtype, groups),
        }

    def _rotated(self) -> mx.array:
        """The de-quantised vectors as they are held: mean-free and rotated, float32."""
        assert self._packed is not None
        codes, scale, bias = self._packed
        return dequantize(codes, scale, bias, self.bits, self.rotation.group_size)

    def _matmul(self, x: mx.array, transpose: bool) -> mx.array:
        """`x @ rotated`, or `x @ rotated.T` with `transpose`, x (B, n_kv_heads, N, tokens or padded_dim)."""
        if x.shape[2] >= dense_matmul_rows(transpose):
            rotated = self._rotated().astype(x.dtype)
            return x @ (rotated.swapaxes(-1, -2) if transpose else rotated)
        assert self._packed is not None
        codes, scale, bias = self._packed
        return mx.quantized_matmul(
            x,
            codes,
            scale,
            bias,
            transpose=transpose,
            group_size=self.rotation.group_size,
            bits=self.bits,
        )

    def _means(self, start: int, stop: int) -> mx.array:
        if self.mean_turns and self.rope is not None:
            return self.rope.turn(self.mean, start, stop)
        return self.mean

    def _fix_mean(self, x: mx.array, position: int) -> None:
        plain = x.mean(2, keepdims=True)
        self._mean, self.mean_turns = plain, False
        if self.rope is None:
            return
        derotated = self.rope.unturn(x, position).mean(2, keepdims=True)
        left_plain = mx.square(x - plain).sum()
        left_turned = mx.square(x - self.rope.turn(derotated, position, position + x.shape[2])).sum()
        if (left_turned < DEROTATED_GAIN * left_plain).item():
            self._mean, self.mean_turns = derotated, True
