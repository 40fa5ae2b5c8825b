"""Leads a model's attention to our cache, and proves that it arrives there.

mlx-lm's models call `scaled_dot_product_attention` by name from their own module. `route_attention` replaces
that name, once a module, by a dispatcher that serves `TurboQuantKVCache` and hands every other cache on.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.base import scaled_dot_product_attention as mlx_lm_attention

from satchel.engine.kv_cache import Pending, TurboQuantKVCache

NAME = "scaled_dot_product_attention"


def dispatch_attention(
    queries: mx.array,
    keys: Any,
    values: Any,
    cache: Any,
    scale: float,
    mask: mx.array | str | None,
    sinks: mx.array | None = None,
) -> mx.array:
    """`mlx_lm.models.base.scaled_dot_product_attention` that knows our cache.

    Raises:
        TypeError: `keys` and `values` are not what that cache stands for. A model that takes its keys as
            values too (latent attention), or attends to another layer's, must not get this cache's own.
    """
    if isinstance(cache, TurboQuantKVCache):
        ours = all(isinstance(x, Pending) and x.cache is cache for x in (keys, values))
        if not ours or keys is values:
            raise TypeError("attention to other arrays than the keys and values of its compressed cache")
        return cache.attend(queries, scale, mask, sinks)
    return mlx_lm_attention(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)


def route_attention(model: nn.Module) -> list[str]:
    """Install the dispatcher in every module that `model` is made of; returns the modules' names."""
    routed = []
    for name in sorted({type(module).__module__ for module in model.modules()}):
        module: ModuleType = sys.modules[name]
        current = getattr(module, NAME, None)
        if current is mlx_lm_attention:
            setattr(module, NAME, dispatch_attention)
        if current in (mlx_lm_attention, dispatch_attention):
            routed.append(name)
    return routed
