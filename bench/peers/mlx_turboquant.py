"""mlx-turboquant: rotated keys, values as they are, both in mlx-lm's affine format and on its matmul.

It patches attention for the whole process, without a way back; here that ends with the `with` block. Its
1-bit sketch of the residual needs a Metal kernel and is not used.
"""

from __future__ import annotations

from functools import partial

from satchel.engine.model import LoadedModel

from .peer import Peer, patched_attention, replace_exact

PACKAGE = "mlx-turboquant"
BITS = (4, 3, 2)


def peers(model: LoadedModel) -> list[Peer]:
    """Raises ImportError without the package."""
    from mlx_turboquant.attention import patch_attention
    from mlx_turboquant.kv_cache import TurboQuantKVCache

    def peer(bits: int) -> Peer:
        return Peer(
            f"{PACKAGE} {bits}",
            lambda: replace_exact(model, lambda layer: TurboQuantKVCache(group_size=64, bits=bits)),
            partial(patched_attention, patch_attention),
        )

    return [peer(bits) for bits in BITS]
