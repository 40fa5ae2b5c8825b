"""The KV state of a whole model: one cache a layer, compressed where the model's attention allows it.

Knows nothing of texts, sessions or disk. `snapshot_io.py` turns it into plain arrays and back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import KVCache, can_trim_prompt_cache, make_prompt_cache, trim_prompt_cache

from satchel.config.profiles import EXACT, PROFILES, Profile
from satchel.engine.attention import route_attention
from satchel.engine.kv_cache import TurboQuantKVCache
from satchel.engine.rope_table import RopeTable
from satchel.engine.turboquant import Rotation

CODEC = "turbo/1"
PROBE = mx.array([[0, 0]])  # (1, 2) token ids that every vocabulary has


@dataclass(slots=True)
class KVState:
    """`caches[i]` belongs to `model.layers[i]`; `notice` says so where a profile could not be used.

    `seen` are such caches after two tokens: a saved state must have their shapes and dtypes.
    """

    profile: Profile
    caches: list[Any]
    seen: list[Any]
    rope_tables: list[RopeTable] = field(default_factory=list)
    notice: str | None = None

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
        if not can_trim_prompt_cache(self.caches):
            return False
        trim_prompt_cache(self.caches, n)
        return True

    def identity(self) -> dict[str, Any]:
        """What decides how keys and values are held: equal for states that can stand for one another."""
        profile = {k: v for k, v in self.profile.as_dict().items() if k != "name"}
        compressed = [cache for cache in self.seen if isinstance(cache, TurboQuantKVCache)]
        return {
            "layers": [type(cache).__name__ for cache in self.caches],
            "codec": CODEC,
            "profile": profile,
            "exact dtypes": sorted({str(cache.dtype) for cache in compressed}),
            "rotation signs": {
                dims: signs for cache in compressed for dims, signs in _rotation_signs(cache, self.profile)
            },
        }


class KVFactory:
    """Makes empty states for one model. A forward pass of two tokens shows first what its layers keep.

    Args:
        dtype: the 16-bit dtype of what is held exactly, and of scales and biases.
    """

    def __init__(self, model: nn.Module, dtype: mx.Dtype) -> None:
        self.model = model
        self.dtype = dtype
        route_attention(model)

    def new(self, profile: Profile) -> KVState:
        """An empty state: `TurboQuantKVCache` in place of every full-attention layer's plain `KVCache`.

        Sliding-window and recurrent layers keep mlx-lm's own caches. Where the model's attention does not
        pass through `attention.dispatch_attention`, every layer does, and the state's `notice` says so.
        """
        if profile.is_exact:
            return self._exact(profile, None)
        if not any(type(cache) is KVCache for cache in make_prompt_cache(self.model)):
            return self._exact(
                profile, "this model has no full-attention layer to compress; its state is kept exactly"
            )
        if self._seen_compressed is None:
            return self._exact(
                profile, "this model's attention cannot use a compressed cache; its KV is kept exactly"
            )
        caches, tables = self._compressed(profile)
        return KVState(profile, caches, self._seen_compressed, tables)

    def _exact(self, profile: Profile, notice: str | None) -> KVState:
        return KVState(profile, make_prompt_cache(self.model), self._seen_exact, notice=notice)

    def _compressed(self, profile: Profile) -> tuple[list[Any], list[RopeTable]]:
        caches = make_prompt_cache(self.model)
        tables: dict[tuple[object, ...], RopeTable | None] = {}
        # Layers that share another's keys, or have none, have no cache: the counts may differ.
        for index, (layer, cache) in enumerate(zip(self.model.layers, caches, strict=False)):
            if type(cache) is KVCache:
                rope = _rope_of(layer)
                table = tables.setdefault(_rope_settings(rope), RopeTable.of(rope))
                caches[index] = TurboQuantKVCache(profile, self.dtype, table)
        return caches, [table for table in tables.values() if table is not None]

    @cached_property
    def _seen_exact(self) -> list[Any]:
        caches = make_prompt_cache(self.model)
        mx.eval(self.model(PROBE, cache=caches))
        return caches

    @cached_property
    def _seen_compressed(self) -> list[Any] | None:
        """Compressed caches after two tokens, or None where the model's attention did not run in them."""
        caches, _ = self._compressed(PROFILES["turbo4"])
        try:
            mx.eval(self.model(PROBE, cache=caches))
        except (TypeError, AttributeError, ValueError):  # it used the cache's answer as arrays
            return None
        ours = [cache for cache in caches if isinstance(cache, TurboQuantKVCache)]
        return caches if all(cache.attended == PROBE.size for cache in ours) else None


def _rotation_signs(cache: TurboQuantKVCache, profile: Profile) -> Iterator[tuple[str, str]]:
    """The sign vectors of a layer's rotations: head_dim and padded size to bits in hex, 1 for -1."""
    for array, bits in ((cache.keys, profile.k_bits), (cache.values, profile.v_bits)):
        if array is not None and bits != EXACT:
            rotation = Rotation.fixed(array.shape[3], bits)
            yield (
                f"{rotation.head_dim}/{rotation.padded_dim}",
                np.packbits(np.array(rotation.signs) < 0).tobytes().hex(),
            )


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
