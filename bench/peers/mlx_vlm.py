"""mlx-vlm's TurboQuant: rotation and codebooks, with attention of its own that mlx-lm's models do not call.

As in mlx-vlm itself, the last layer stays exact. The fused kernels are for Metal; elsewhere it goes through
de-quantised keys and values.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from mlx_lm.models.cache import KVCache

from satchel.engine.attention import NAME, mlx_lm_attention
from satchel.engine.model import LoadedModel

from .peer import Peer, patched_attention, replace_exact

PACKAGE = "mlx-vlm"
# Its number of bits, then those of keys and values.
BITS = ((4, 4, 4), (3.5, 4, 3), (2, 2, 2))


def peers(model: LoadedModel) -> list[Peer]:
    """Raises ImportError without the package."""
    from mlx_vlm.models.base import scaled_dot_product_attention
    from mlx_vlm.turboquant import TurboQuantKVCache

    def attend(queries: Any, keys: Any, values: Any, cache: Any, **options: Any) -> Any:
        own = isinstance(cache, TurboQuantKVCache)
        return (scaled_dot_product_attention if own else mlx_lm_attention)(
            queries, keys, values, cache=cache, **options
        )

    def install() -> None:
        for name, module in list(sys.modules.items()):
            if name.startswith("mlx_lm.models.") and getattr(module, NAME, None) is mlx_lm_attention:
                setattr(module, NAME, attend)

    last = len(model.model.layers) - 1

    def peer(bits: float, key_bits: int, value_bits: int) -> Peer:
        def cache(layer: int) -> Any:
            if layer == last:
                return KVCache()
            return TurboQuantKVCache(bits=bits, key_bits=key_bits, value_bits=value_bits)

        return Peer(
            f"{PACKAGE} {bits:g}", lambda: replace_exact(model, cache), partial(patched_attention, install)
        )

    return [peer(*bits) for bits in BITS]
