"""The KV state of a whole model: one cache a layer, compressed where the model's attention allows it.

Knows nothing of texts, sessions or disk. `snapshot_io.py` turns it into plain arrays and back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import (
    ArraysCache,
    ChunkedKVCache,
    KVCache,
    can_trim_prompt_cache,
    make_prompt_cache,
    trim_prompt_cache,
)

from satchel.config.profiles import EXACT, PROFILES, CodecSpec, Profile
from satchel.engine.attention import route_attention
from satchel.engine.body import new_value_body
from satchel.engine.checkpoint import Checkpoint, Tree, current_state, freeze, thaw
from satchel.engine.codecs.registry import codec_for
from satchel.engine.kv_cache import TurboQuantKVCache
from satchel.engine.recurrent import is_matrix, rounded
from satchel.engine.rope_table import RopeTable
from satchel.errors import UsageError

# Raise it when stored codes come to mean something else and no constant of a codec says so: the reading of a
# grid, padding, the order of numbers in a row.
CODEC = "turbo/2"
TOKEN_BY_TOKEN = (TurboQuantKVCache, KVCache)  # caches that hold a row a token, which nothing later changes
PROBE = mx.array([[0, 0]])  # (1, 2) token ids that every vocabulary has


@dataclass(slots=True)
class KVState:
    """`caches[i]` belongs to `model.layers[i]`; `notice` says so where a profile could not be used.

    `seen` are such caches after two tokens: a saved state must have their shapes and dtypes.
    """

    profile: Profile
    caches: list[Any]
    seen: list[Any]
    notice: str | None = None

    @property
    def rope_tables(self) -> list[RopeTable]:
        """The tables that the layers share, each once."""
        ropes = [cache.key_body.rope for cache in self.caches if isinstance(cache, TurboQuantKVCache)]
        return list({id(rope): rope for rope in ropes if rope is not None}.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays held."""
        held = sum(cache.nbytes for cache in self.caches if not cache.empty())
        return held + sum(table.nbytes for table in self.rope_tables)

    def elements(self) -> int:
        """Key and value coordinates of all tokens in the full-attention layers."""
        elements = 0
        for cache in self.caches:
            if isinstance(cache, TurboQuantKVCache | KVCache):
                held = (x for x in (cache.keys, cache.values) if x is not None)
                elements += sum(x.shape[1] * x.shape[3] for x in held) * cache.offset
        return elements

    def trim(self, n: int) -> bool:
        """Forget the newest `n` tokens; False, with nothing changed, where a layer's state cannot go back."""
        if n == 0:
            return True
        if not can_trim_prompt_cache(self.caches) or not all(_holds_chunk(c, n) for c in self.caches):
            return False
        trim_prompt_cache(self.caches, n)
        return True

    @property
    def needs_checkpoints(self) -> bool:
        """Whether layers that are not kept token by token decide what the state can go back to."""
        return not all(isinstance(cache, TOKEN_BY_TOKEN) for cache in self.caches)

    def checkpoint(self, offset: int) -> Checkpoint:
        """What those layers hold now, which have read `offset` tokens.

        Raises:
            ValueError: as `whole_layers`.
        """
        return Checkpoint(offset, self.whole_layers())

    def whole_layers(self) -> dict[int, Tree]:
        """By number, what the layers that are not kept token by token hold now, whatever is read later.

        Recurrent matrices are rounded to what an 8-bit profile stores. A layer that is a list of caches
        counts as a whole, with a row a token in it as there may be: its checkpoints grow with the tokens.

        Raises:
            ValueError: a layer's state is of a kind that cannot be kept.
        """
        eight = self.profile.recurrent == 8
        return {
            index: freeze(current_state(cache), compact=eight and isinstance(cache, ArraysCache))
            for index, cache in enumerate(self.caches)
            if not isinstance(cache, TOKEN_BY_TOKEN)
        }

    def rewind(self, checkpoint: Checkpoint) -> None:
        """Go back to a checkpoint of this state's own past.

        Tokens that have left the window since stay codes, as after `trim`.

        Raises:
            ValueError: the checkpoint is of other layers, or of more tokens than the state holds (a fault of
                the caller); the state is as it was.
        """
        kept = {i: cache for i, cache in enumerate(self.caches) if isinstance(cache, TOKEN_BY_TOKEN)}
        if sorted([*kept, *checkpoint.layers]) != list(range(len(self.caches))):
            raise ValueError("the checkpoint is of other layers than this state's")
        if any(cache.offset < checkpoint.offset for cache in kept.values() if not cache.empty()):
            raise ValueError(f"the state holds fewer than the checkpoint's {checkpoint.offset} tokens")
        for cache in kept.values():
            cache.trim(max(cache.offset - checkpoint.offset, 0))
        for index, tree in checkpoint.layers.items():
            self.caches[index].state = thaw(tree)

    def round_recurrent(self) -> None:
        """Round the recurrent layers' state to what an 8-bit profile stores; otherwise change nothing."""
        if self.profile.recurrent == 8:
            for cache in self.caches:
                if isinstance(cache, ArraysCache):
                    cache.cache = [rounded(array) if is_matrix(array) else array for array in cache.cache]

    def identity(self) -> dict[str, Any]:
        """What decides how keys and values are held: equal for states that can stand for one another."""
        compressed = [cache for cache in self.caches if isinstance(cache, TurboQuantKVCache)]
        return {
            "layers": [type(cache).__name__ for cache in self.caches],
            "codec": CODEC,
            "profile": self.profile.as_dict(),
            "exact dtypes": sorted({str(cache.dtype) for cache in compressed}),
            "codec constants": self._constants(),
        }

    def _constants(self) -> dict[str, str]:
        """SHA-256 of what codes can only be read with, by codec and head_dim."""
        digests: dict[str, str] = {}
        for cache, seen in zip(self.caches, self.seen, strict=True):
            if isinstance(cache, TurboQuantKVCache):
                sides = ((cache.profile.keys, seen.keys), (cache.profile.values, seen.values))
                for spec, array in (side for side in sides if side[0] != EXACT):
                    head_dim = array.shape[3]
                    digests[f"{spec}@{head_dim}"] = _constants_digest(spec, head_dim, cache.dtype)
        return digests


class KVFactory:
    """Makes empty states for one model. A forward pass of two tokens shows first what its layers keep.

    Args:
        dtype: the 16-bit dtype of what is held exactly, and of scales and biases.
        sensitivity: measures how much an error in its keys matters, for each full-attention layer
            (`calibration.py`). Without it, later layers count as more sensitive.
    """

    def __init__(
        self,
        model: nn.Module,
        dtype: mx.Dtype,
        sensitivity: Callable[[KVFactory], Sequence[float]] | None = None,
    ) -> None:
        self.model = model
        self.dtype = dtype
        self._measure = sensitivity or (lambda factory: list(range(factory.full_layers)))
        self._probed: dict[tuple[object, ...], RopeTable | None] = {}
        route_attention(model)

    def for_model(self, profile: Profile) -> Profile:
        """`profile` as this model uses it: with the layers named that have more bits."""
        return profile.for_model(self._sensitivity) if profile.share and self.compresses else profile

    @property
    def compresses(self) -> bool:
        """Whether any of the model's layers can use a compressed cache."""
        return self.full_layers > 0 and self._seen_compressed is not None

    def new(self, profile: Profile) -> KVState:
        """An empty state: `TurboQuantKVCache` in place of every full-attention layer's plain `KVCache`.

        Sliding-window and recurrent layers keep mlx-lm's own caches. Where the model's attention does not
        pass through `attention.dispatch_attention`, every layer does, and the state's `notice` says so.

        Raises:
            UsageError: one of the profile's codecs cannot hold vectors of this model's size.
        """
        if profile.is_exact:
            return self._exact(profile, None)
        if not self.full_layers:
            return self._exact(
                profile, "this model has no full-attention layer to compress; its state is kept exactly"
            )
        if self._seen_compressed is None:
            return self._exact(
                profile, "this model's attention cannot use a compressed cache; its KV is kept exactly"
            )
        profile = self.for_model(profile)
        self._check_sizes(profile)
        caches = self.compressed(profile)
        return KVState(profile, caches, self._seen_compressed)

    def _exact(self, profile: Profile, notice: str | None) -> KVState:
        return KVState(profile, make_prompt_cache(self.model), self._seen_exact, notice=notice)

    def _check_sizes(self, profile: Profile) -> None:
        for cache in self._seen_compressed or ():
            if isinstance(cache, TurboQuantKVCache):
                for spec, seen in ((profile.keys, cache.keys), (profile.values, cache.values)):
                    assert seen is not None
                    try:
                        new_value_body(spec, self.dtype).layout(seen.shape[3])
                    except ValueError as err:
                        raise UsageError(f"{profile.asked} does not fit this model: {err}") from err

    def compressed(self, profile: Profile, kind: type[TurboQuantKVCache] = TurboQuantKVCache) -> list[Any]:
        """Empty caches, those of `kind` in place of every full-attention layer's plain `KVCache`."""
        caches = make_prompt_cache(self.model)
        tables: dict[tuple[object, ...], RopeTable | None] = {}
        # Layers that share another's keys, or have none, have no cache: the counts may differ.
        layers = list(zip(self.model.layers, caches, strict=False))
        full = [index for index, (_, cache) in enumerate(layers) if type(cache) is KVCache]
        for number, index in enumerate(full):
            rope = _rope_of(layers[index][0])
            settings = _rope_settings(rope)
            if settings not in tables:
                tables[settings] = self._rope_table(settings, rope)
            table = tables[settings]
            caches[index] = kind(profile.for_layer(number, len(full)), self.dtype, table)
        return caches

    def _rope_table(self, settings: tuple[object, ...], rope: object) -> RopeTable | None:
        """An empty table for `rope`, which is probed once."""
        if settings not in self._probed:
            self._probed[settings] = RopeTable.of(rope)
        probed = self._probed[settings]
        return replace(probed) if probed else None

    @cached_property
    def full_layers(self) -> int:
        return sum(type(cache) is KVCache for cache in make_prompt_cache(self.model))

    @cached_property
    def _sensitivity(self) -> Sequence[float]:
        return self._measure(self)

    @cached_property
    def _seen_exact(self) -> list[Any]:
        caches = make_prompt_cache(self.model)
        self.model(PROBE, cache=caches)  # never evaluated: shapes and dtypes are all that is asked of them
        return caches

    @cached_property
    def _seen_compressed(self) -> list[Any] | None:
        """Compressed caches after three tokens, or None where the model's attention did not run in them.

        Nothing is evaluated: which way attention takes shows when the graph is built.
        """
        caches = self.compressed(PROFILES["turbo4"])
        try:
            self.model(PROBE, cache=caches)
            self.model(PROBE[:, :1], cache=caches)  # some attend otherwise to a single token
        except (TypeError, AttributeError, ValueError):  # it used the cache's answer as arrays
            return None
        ours = [cache for cache in caches if isinstance(cache, TurboQuantKVCache)]
        return caches if all(cache.attended == cache.offset == PROBE.size + 1 for cache in ours) else None


def _holds_chunk(cache: Any, n: int) -> bool:
    """Whether a cache of chunked attention, less `n` tokens, still has the chunk that it would end in."""
    if not isinstance(cache, ChunkedKVCache):
        return True
    chunk_start = (cache.offset - n) // cache.chunk_size * cache.chunk_size
    return bool(chunk_start >= cache.start_position)


@lru_cache
def _constants_digest(spec: CodecSpec, head_dim: int, dtype: mx.Dtype) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(codec_for(spec, head_dim, dtype).constants().items()):
        digest.update(f"{name} {len(value)}\n".encode() + value)
    return digest.hexdigest()


def _rope_of(layer: nn.Module) -> object | None:
    for _, module in layer.named_modules():
        rope = getattr(module, "rope", None)
        if callable(rope):
            return rope
    return None


def _rope_settings(rope: object | None) -> tuple[object, ...]:
    """Equal for layers whose rotary embeddings are equal: class, plain attributes, frequencies."""
    if rope is None:
        return (None,)
    plain = {k: v for k, v in vars(rope).items() if isinstance(v, int | float | bool | str)}
    frequencies = getattr(rope, "_freqs", None)
    listed = tuple(np.array(frequencies).tolist()) if isinstance(frequencies, mx.array) else None
    return (type(rope).__name__, tuple(sorted(plain.items())), listed)
