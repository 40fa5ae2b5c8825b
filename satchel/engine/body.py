"""The body of a layer's cache: the tokens between sink and window, of keys or of values.

`CodedBody` holds a codec's rows, `ExactBody` 16-bit floats. Both answer the same questions: scores of
queries, a weighted sum, the dense vectors, and how much the error of coded keys lowers a score's exponential.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import mlx.core as mx

from satchel.config.profiles import EXACT, CodecSpec
from satchel.engine.codecs.base import Codec
from satchel.engine.codecs.registry import codec_for
from satchel.engine.device import fused
from satchel.engine.rope_table import RopeTable

CENTRED = ("turbo",)  # codecs whose vectors lose their mean first
# A de-rotated mean costs a matmul per step, so it must leave clearly less key energy than the plain mean.
DEROTATED_GAIN = 0.9
# A score whose error has a variance above 4 says little, and the average that the lift makes up for would be
# that of rare tokens. In the models measured, lifts are up to 1.7 on average in a head (Gemma 3 at 2 bits).
MAX_LIFT = 2.0

LEAST_SIGMA = 1e-3  # of the strongest channel's: a channel that never moves must not get all the precision

Layout = dict[str, tuple[mx.Dtype, int]]  # name to dtype and width of arrays (B, n_kv_heads, T, width)


class Body(Protocol):
    """Vectors of the body's tokens; positions start at `start`, the first token after the sink."""

    mean_turns: bool

    rope: RopeTable | None

    @property
    def tokens(self) -> int: ...

    def append(self, exact: mx.array, start: int, count: int) -> None:
        """Take over tokens [start, start + count) of `exact` (B, n_kv_heads, T, head_dim)."""

    def trim(self, n: int) -> None: ...

    def clear(self) -> None: ...

    def scores(self, queries: mx.array, start: int) -> mx.array:
        """q . x for queries (B, n_kv_heads, N, head_dim): (B, n_kv_heads, N, tokens)."""

    def lift(self, queries: mx.array) -> mx.array | None:
        """What to add to all scores of the body, (B, n_kv_heads, N, 1), for a softmax right on average.

        A grid fitted by least squares gives the vector that is expected, x = E[k | codes], with an error e of
        known size v a coordinate in every direction. A token's weight is then E[exp(q . k)] =
        exp(q . x) * E[exp(q . e)] = exp(q . x + v |q|^2 / 2) for a Gaussian error: without the second term,
        compressed tokens lose weight against exact ones. None where there is nothing to add.
        """

    def mix(self, weights: mx.array) -> mx.array:
        """The sum of x by weights (B, n_kv_heads, N, tokens): (B, n_kv_heads, N, head_dim)."""

    def dense(self, start: int, dtype: mx.Dtype) -> mx.array:
        """x, (B, n_kv_heads, tokens, head_dim)."""

    def arrays(self) -> dict[str, mx.array]:
        """What is held, by name."""

    def load(self, arrays: Mapping[str, mx.array]) -> None:
        """The opposite of `arrays`."""

    def layout(self, head_dim: int) -> Layout:
        """The arrays that hold a row a token."""

    def fixed_layout(self, head_dim: int) -> Layout:
        """The arrays that hold one row, fixed when the first tokens came."""


class ExactBody:
    """16-bit floats of `dtype`, as they came."""

    def __init__(self, dtype: mx.Dtype) -> None:
        self.dtype = dtype
        self.mean_turns = False
        self.rope: RopeTable | None = None
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

    def lift(self, queries: mx.array) -> mx.array | None:
        return None

    def mix(self, weights: mx.array) -> mx.array:
        return weights @ self._held().astype(weights.dtype)

    def dense(self, start: int, dtype: mx.Dtype) -> mx.array:
        return self._held().astype(dtype)

    def arrays(self) -> dict[str, mx.array]:
        return {} if self.x is None else {"x": self.x}

    def load(self, arrays: Mapping[str, mx.array]) -> None:
        self.x = arrays["x"]

    def layout(self, head_dim: int) -> Layout:
        return {"x": (self.dtype, head_dim)}

    def fixed_layout(self, head_dim: int) -> Layout:
        return {}

    def _held(self) -> mx.array:
        assert self.x is not None
        return self.x


class CodedBody:
    """Rows of a codec: of vectors less their mean for the codecs of `CENTRED`, else of vectors as they are.

    The mean is fixed by the first tokens that come and kept. With `rope` (keys) it is the mean of the keys as
    they were before their rotary embedding, turned to each position, where that leaves less energy: a bias of
    the key projection turns with the position, and a plain mean catches its slow channels only.

    Each channel of keys is then multiplied by its gain, sigma^-1/2, and queries are divided by it. A rotation
    spreads the error evenly, so weak channels get less of it back: the squared error falls to
    E[sigma]^2 / E[sigma^2], the least that gains can make of it.
    """

    def __init__(self, spec: CodecSpec, dtype: mx.Dtype, rope: RopeTable | None, is_keys: bool) -> None:
        self.spec = spec
        self.dtype = dtype
        self.rope = rope
        self.is_keys = is_keys
        self.mean_turns = False
        self._mean: mx.array | None = None  # (B, n_kv_heads, 1, head_dim) float32
        self._gain: mx.array | None = None  # (B, n_kv_heads, 1, head_dim) float32; of keys, as is the noise
        self._noise: mx.array | None = None  # (B, n_kv_heads, 1, 1) float32
        self._rows: dict[str, mx.array] = {}  # (B, n_kv_heads, tokens, width) each
        self._codec: Codec | None = None

    @property
    def tokens(self) -> int:
        return next((rows.shape[2] for rows in self._rows.values()), 0)

    def codec(self, head_dim: int) -> Codec:
        if self._codec is None:
            self._codec = codec_for(self.spec, head_dim, self.dtype)
        return self._codec

    def append(self, exact: mx.array, start: int, count: int) -> None:
        position = start + self.tokens
        codec = self.codec(exact.shape[3])
        first = not self._rows
        if first and self.spec.codec in CENTRED:
            known = exact[:, :, start:].astype(mx.float32)
            self._mean, self.mean_turns = self._choose_mean(known, position)
            if self.is_keys:
                self._gain = _gain(known - self._means(position, position + known.shape[2]))
        x = exact[:, :, start : start + count].astype(mx.float32) - self._means(position, position + count)
        if self._gain is not None:
            x = x * self._gain
        new = codec.encode(x)
        if first:
            self._rows = new
            if self._gain is not None:
                self._noise = mx.square(x - codec.decode(new)).mean((2, 3), keepdims=True)
        else:
            self._rows = {name: mx.concatenate([self._rows[name], new[name]], axis=2) for name in new}

    def sensitivity(self, queries: mx.array, x: mx.array, position: int) -> mx.array:
        """The variance of scores if the codes' relative error were 1, the mean over all heads, ().

        A rotated code's error points anywhere, so a score's is |q / gain|^2 |gain (k - mean)|^2 / head_dim
        times the codec's relative error.

        Args:
            queries: (B, n_kv_heads, N, head_dim), as attention has them.
            x: (B, n_kv_heads, T, head_dim), what an empty body would fix mean and gain by.
        """
        mean, turns = self._choose_mean(x, position)
        deviation = x - self._turned(mean, turns, position, position + x.shape[2])
        gain = _gain(deviation)
        query_energy = mx.square(queries / gain).sum(-1).mean(-1)  # (B, n_kv_heads)
        return (query_energy * mx.square(deviation * gain).mean((2, 3))).mean()

    def trim(self, n: int) -> None:
        if n:
            kept = self.tokens - n
            self._rows = {name: mx.contiguous(rows[:, :, :kept]) for name, rows in self._rows.items()}

    def clear(self) -> None:
        self._mean = self._gain = self._noise = None
        self._rows = {}
        self.mean_turns = False

    def scores(self, queries: mx.array, start: int) -> mx.array:
        scores = self._held().scores(self._against_gain(queries), self._rows)
        if self._mean is None:
            return scores
        if self.mean_turns and self.rope is not None:
            return scores + self.rope.dot(queries, self._mean, start, start + self.tokens).astype(
                scores.dtype
            )
        return scores + (queries * self._mean.astype(queries.dtype)).sum(-1, keepdims=True)

    def lift(self, queries: mx.array) -> mx.array | None:
        if self._noise is None:
            return None
        return _lift(mx.square(self._against_gain(queries)).sum(-1, keepdims=True), self._noise)

    def mix(self, weights: mx.array) -> mx.array:
        mixed = self._held().mix(weights, self._rows)
        if self._mean is None:
            return mixed
        return _plus_mean(mixed, weights.sum(-1, keepdims=True), self._mean.astype(weights.dtype))

    def dense(self, start: int, dtype: mx.Dtype) -> mx.array:
        x = self._against_gain(self._held().decode(self._rows))
        return (x + self._means(start, start + self.tokens)).astype(dtype)

    def arrays(self) -> dict[str, mx.array]:
        fixed = {"mean": self._mean, "gain": self._gain, "noise": self._noise} if self._rows else {}
        return {name: array for name, array in fixed.items() if array is not None} | self._rows

    def load(self, arrays: Mapping[str, mx.array]) -> None:
        rows = dict(arrays)
        self._mean, self._gain, self._noise = (rows.pop(name, None) for name in ("mean", "gain", "noise"))
        self._rows = rows

    def layout(self, head_dim: int) -> Layout:
        return self.codec(head_dim).layout()

    def fixed_layout(self, head_dim: int) -> Layout:
        if self.spec.codec not in CENTRED:
            return {}
        mean: Layout = {"mean": (mx.float32, head_dim)}
        return mean | {"gain": (mx.float32, head_dim), "noise": (mx.float32, 1)} if self.is_keys else mean

    def _held(self) -> Codec:
        assert self._codec is not None
        return self._codec

    def _against_gain(self, x: mx.array) -> mx.array:
        return x if self._gain is None else x / self._gain.astype(x.dtype)

    def _means(self, start: int, stop: int) -> mx.array:
        return mx.array(0.0) if self._mean is None else self._turned(self._mean, self.mean_turns, start, stop)

    def _turned(self, mean: mx.array, turns: bool, start: int, stop: int) -> mx.array:
        return self.rope.turn(mean, start, stop) if turns and self.rope is not None else mean

    def _choose_mean(self, x: mx.array, position: int) -> tuple[mx.array, bool]:
        """The mean of x (B, n_kv_heads, T, head_dim) from `position` on, and whether it is to be turned."""
        plain = x.mean(2, keepdims=True)
        if self.rope is None:
            return plain, False
        derotated = self.rope.unturn(x, position).mean(2, keepdims=True)
        left_plain = mx.square(x - plain).sum()
        left_turned = mx.square(x - self.rope.turn(derotated, position, position + x.shape[2])).sum()
        if (left_turned < DEROTATED_GAIN * left_plain).item():
            return derotated, True
        return plain, False


def _gain(deviation: mx.array) -> mx.array:
    """A factor for each channel, by the energy of vectors less their mean: (B, n_kv_heads, 1, head_dim)."""
    sigma = mx.sqrt(mx.square(deviation).mean(2, keepdims=True))
    largest = sigma.max(-1, keepdims=True)
    sigma = mx.where(largest > 0, mx.maximum(sigma, LEAST_SIGMA * largest), 1)
    log_gain = -0.5 * mx.log(sigma)
    return mx.exp(log_gain - log_gain.mean(-1, keepdims=True))


@fused
def _lift(query_energy: mx.array, noise: mx.array) -> mx.array:
    return mx.minimum(query_energy * (0.5 * noise), MAX_LIFT)


@fused
def _plus_mean(mixed: mx.array, total_weight: mx.array, mean: mx.array) -> mx.array:
    return mixed + total_weight * mean


def new_key_body(spec: CodecSpec, dtype: mx.Dtype, rope: RopeTable | None = None) -> Body:
    """An empty body of keys, which `rope` has turned; `dtype` is the 16-bit one of what is held as floats."""
    return ExactBody(dtype) if spec == EXACT else CodedBody(spec, dtype, rope, is_keys=True)


def new_value_body(spec: CodecSpec, dtype: mx.Dtype) -> Body:
    """An empty body of values."""
    return ExactBody(dtype) if spec == EXACT else CodedBody(spec, dtype, None, is_keys=False)
