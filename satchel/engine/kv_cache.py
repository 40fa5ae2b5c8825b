"""The TurboQuant KV cache of one attention layer: exact sink, compressed body, exact window.

Keys and values of `offset` tokens, oldest first: `sink` tokens held exactly, the body as codes, and the
newest `window` to `window + move - 1` exactly. Attention over all three is here, since only the cache knows
how each is held. Knows nothing of models, sessions or disk; `attention.py` leads a model's attention here.

mlx-lm tells caches apart by attributes. This one has neither `bits` (whose attention would be mlx-lm's
quantised one) nor `to_quantized` (which generation would call).
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
from mlx_lm.models.cache import create_attention_mask

from satchel.config.profiles import Profile
from satchel.engine.body import new_key_body, new_value_body
from satchel.engine.rope_table import RopeTable

# Up to this many new tokens attend to the packed codes; more de-quantise the body and use fused attention.
PACKED_QUERY_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Pending:
    """What `update_and_fetch` returns in place of arrays: an attention that does not know us fails on it."""

    cache: TurboQuantKVCache


class TurboQuantKVCache:
    """One layer's cache, with mlx-lm's cache contract. Arrays are (B, n_kv_heads, T, ...).

    Args:
        profile: the layer's own (`Profile.for_layer`).
        dtype: of what is kept exactly.
        rope: what the layer's rotary embedding does to keys.
    """

    def __init__(self, profile: Profile, dtype: mx.Dtype, rope: RopeTable | None = None) -> None:
        self.profile = profile
        self.dtype = dtype
        self.offset = 0
        self.attended = 0  # `offset` when attention last ran; equal to it unless the model went another way
        self.keys: mx.array | None = None  # (B, n_kv_heads, sink + window, head_dim) in `dtype`
        self.values: mx.array | None = None
        self.key_body = new_key_body(profile.keys, dtype, rope)
        self.value_body = new_value_body(profile.values, dtype)

    # -- what mlx-lm calls ---------------------------------------------------------------------------

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Pending, Pending]:
        """Append the keys (after RoPE) and values of new tokens, (B, n_kv_heads, L, head_dim)."""
        keys, values = keys.astype(self.dtype), values.astype(self.dtype)
        if self.keys is not None and self.values is not None:
            keys = mx.concatenate([self.keys, keys], axis=2)
            values = mx.concatenate([self.values, values], axis=2)
        new_tokens = keys.shape[2] - self.exact_tokens
        self.keys, self.values = keys, values
        self.offset += new_tokens
        return Pending(self), Pending(self)

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> object:
        return create_attention_mask(N, self.offset, return_array, window_size)

    @property
    def state(self) -> list[mx.array]:
        """Every array held, for `mx.eval`."""
        return list(self.arrays().values())

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays held. The table of a shared `RopeTable` is not this layer's alone."""
        return sum(array.nbytes for array in self.arrays().values())

    def size(self) -> int:
        return self.offset

    def empty(self) -> bool:
        return self.keys is None

    def is_trimmable(self) -> bool:
        return True

    def trim(self, n: int) -> int:
        """Drop the newest `n` tokens; returns how many were dropped."""
        n = min(n, self.offset)
        kept = self.offset - n
        if n and kept <= self.profile.sink:
            # Without a body token left, the means are fixed anew by the next ones.
            self.key_body.clear()
            self.value_body.clear()
        elif n >= (window := self.offset - self.body_stop):
            self.key_body.trim(n - window)
            self.value_body.trim(n - window)
        self.offset = kept
        exact = min(self.exact_tokens, kept - self.body_tokens)
        if self.keys is not None and self.values is not None:
            self.keys = mx.contiguous(self.keys[:, :, :exact]) if kept else None
            self.values = mx.contiguous(self.values[:, :, :exact]) if kept else None
        return n

    # -- where the tokens are ------------------------------------------------------------------------

    @property
    def exact_tokens(self) -> int:
        return 0 if self.keys is None else self.keys.shape[2]

    @property
    def body_tokens(self) -> int:
        return self.key_body.tokens

    @property
    def sink_tokens(self) -> int:
        return min(self.profile.sink, self.offset)

    @property
    def body_stop(self) -> int:
        """The position of the first token after the body."""
        return self.sink_tokens + self.body_tokens

    def arrays(self) -> dict[str, mx.array]:
        """What is held, by name: `k.exact`, `v.exact` and the bodies' own arrays behind `k.` and `v.`."""
        held = {"k.exact": self.keys, "v.exact": self.values}
        named = {name: array for name, array in held.items() if array is not None}
        for side, body in (("k", self.key_body), ("v", self.value_body)):
            named |= {f"{side}.{name}": array for name, array in body.arrays().items()}
        return named

    # -- attention -----------------------------------------------------------------------------------

    def attend(
        self, queries: mx.array, scale: float, mask: mx.array | str | None, sinks: mx.array | None = None
    ) -> mx.array:
        """Attention of the last L tokens' queries over all tokens held, (B, n_heads, L, head_dim).

        Args:
            mask: None, "causal", or an array whose last axis is the tokens in order (mlx-lm's kinds).
            sinks: per-head logits that take part in the softmax, as in MLX's fused attention.
        """
        if self.body_tokens and queries.shape[2] <= PACKED_QUERY_TOKENS and sinks is None:
            out = self._attend_packed(queries, scale, mask)
        else:
            out = mx.fast.scaled_dot_product_attention(
                queries, *self._dense(queries.dtype), scale=scale, mask=mask, sinks=sinks
            )
        self.attended = self.offset
        self.move_to_body()
        return out

    def _attend_packed(self, queries: mx.array, scale: float, mask: mx.array | str | None) -> mx.array:
        assert self.keys is not None
        assert self.values is not None
        B, n_heads, L, head_dim = queries.shape
        n_kv_heads, T = self.keys.shape[1], self.body_tokens
        # In float32, as inside MLX's fused attention: where keys have a large mean, so have the scores, and
        # 8 bits of mantissa would lose what tells them apart.
        q = queries.astype(mx.float32) * scale
        q = q.reshape(B, n_kv_heads, -1, head_dim)  # the heads of a group, L rows each
        exact_keys, exact_values = self.keys.astype(q.dtype), self.values.astype(q.dtype)
        body_scores, exact_scores = self.key_body.scores(q, self.sink_tokens), q @ exact_keys.swapaxes(-1, -2)
        if (lift := self.key_body.lift(q)) is not None:
            # The softmax is the same as with a lifted body, which is longer.
            exact_scores = exact_scores - lift
        scores = mx.concatenate([body_scores, exact_scores], axis=-1)
        # (B, n_kv_heads, group * L, body | sink, window)
        if mask is not None:
            scores = self._masked(scores, mask, L)
        weights = mx.softmax(scores, axis=-1, precise=True)
        out = self.value_body.mix(weights[..., :T]) + weights[..., T:] @ exact_values
        return out.reshape(B, n_heads, L, -1).astype(queries.dtype)

    def _masked(self, scores: mx.array, mask: mx.array | str, L: int) -> mx.array:
        if isinstance(mask, str):
            positions = mx.arange(self.offset)
            mask = positions[-L:, None] >= positions[None]
        sink, body_stop = self.sink_tokens, self.body_stop
        mask = mx.concatenate(
            [mask[..., sink:body_stop], mask[..., :sink], mask[..., body_stop:]], axis=-1
        )  # the tokens in the order of the scores
        rows = scores.reshape(*scores.shape[:2], -1, L, scores.shape[-1])
        if mask.ndim == 4:  # (B or 1, 1 or n_heads, L, T)
            mask = mask[:, :, None] if mask.shape[1] == 1 else mask.reshape(mask.shape[0], *rows.shape[1:])
        lowest = mx.finfo(rows.dtype).min
        rows = mx.where(mask, rows, lowest) if mask.dtype == mx.bool_ else rows + mask
        return rows.reshape(scores.shape)

    def _dense(self, dtype: mx.Dtype) -> tuple[mx.array, mx.array]:
        """All keys and values in order, de-quantised for this one use."""
        assert self.keys is not None
        assert self.values is not None
        keys, values = self.keys.astype(dtype), self.values.astype(dtype)
        if not self.body_tokens:
            return keys, values
        sink = self.sink_tokens
        return tuple(
            mx.concatenate([exact[:, :, :sink], body.dense(sink, dtype), exact[:, :, sink:]], axis=2)
            for exact, body in ((keys, self.key_body), (values, self.value_body))
        )  # type: ignore[return-value]

    def move_to_body(self) -> None:
        """Move the window's oldest tokens into the body, `move` at a time, when it holds `window + move`."""
        sink, window, move = self.profile.sink, self.profile.window, self.profile.move
        surplus = (self.exact_tokens - self.sink_tokens - window) // move * move
        if surplus <= 0:
            return
        assert self.keys is not None
        assert self.values is not None
        self.key_body.append(self.keys, sink, surplus)
        self.value_body.append(self.values, sink, surplus)
        self.keys = _without(self.keys, sink, surplus)
        self.values = _without(self.values, sink, surplus)


def _without(exact: mx.array, start: int, count: int) -> mx.array:
    return mx.concatenate([exact[:, :, :start], exact[:, :, start + count :]], axis=2)
