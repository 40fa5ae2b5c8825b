"""turboquant-mlx-full: rotation and Lloyd-Max codebooks, de-quantised whole at every step.

Its fused kernel is for Metal and off by default, so it is not used here.
"""

from __future__ import annotations

from mlx_lm.models.cache import make_prompt_cache

from satchel.engine.model import LoadedModel

from .peer import Peer

PACKAGE = "turboquant-mlx-full"
K_AND_V_BITS = ((8, 3), (4, 4), (3, 3), (2, 2))  # the first is what its author recommends


def peers(model: LoadedModel) -> list[Peer]:
    """Raises ImportError without the package."""
    # Of the two ways it offers, the one that leaves sliding-window and recurrent layers alone.
    from turboquant_mlx.layers.polar_kv_cache import convert_cache_to_turboquant

    def peer(k_bits: int, v_bits: int) -> Peer:
        return Peer(
            f"{PACKAGE} K{k_bits}V{v_bits}",
            lambda: convert_cache_to_turboquant(make_prompt_cache(model.model), k_bits=k_bits, v_bits=v_bits),
        )

    return [peer(*bits) for bits in K_AND_V_BITS]
