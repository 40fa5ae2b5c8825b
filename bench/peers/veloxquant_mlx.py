"""veloxquant-mlx: two of its 43 methods, its default and KIVI.

The default packs the keys (two stages of so many bits) and keeps the values exact. Most of the others evict
tokens, do not serve mlx-lm's models, or, as KIVI here, hold what they quantised as full-precision arrays.
"""

from __future__ import annotations

from typing import Any

from mlx_lm.models.cache import KVCache, make_prompt_cache

from satchel.engine.model import LoadedModel

from .peer import Peer

PACKAGE = "veloxquant-mlx"
METHODS_AND_BITS = (("turboquant_rvq", 2), ("kivi", 4))


def peers(model: LoadedModel) -> list[Peer]:
    """Raises ImportError without the package."""
    from veloxquant_mlx.cache.base import KVCacheBuilder, KVCacheConfig

    def make(method: str, bits: int) -> list[Any]:
        # It would replace sliding-window layers too, and finds each layer's head size by itself.
        made = KVCacheBuilder.for_model(model.model, KVCacheConfig(method=method, bit_width_inlier=bits))
        plain = make_prompt_cache(model.model)
        return [new if type(old) is KVCache else old for new, old in zip(made, plain, strict=True)]

    def peer(method: str, bits: int) -> Peer:
        return Peer(f"{PACKAGE} {method} {bits}", lambda: make(method, bits))

    return [peer(*setting) for setting in METHODS_AND_BITS]
