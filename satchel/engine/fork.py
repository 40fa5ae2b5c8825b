"""A second copy of a KV state that goes its own way. Knows nothing of models or of what is read."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import mlx.core as mx
from mlx_lm.models import cache as mlx_lm_caches

from satchel.engine.body import CodedBody, ExactBody
from satchel.engine.kv_cache import TurboQuantKVCache
from satchel.engine.kv_state import KVState

# What holds arrays and changes. Codecs, profiles and tables of rotary embeddings stay shared.
_HOLDERS = (TurboQuantKVCache, CodedBody, ExactBody, mlx_lm_caches._BaseCache)


def fork(state: KVState) -> KVState:
    """A state that has read the same. What either reads from now on, the other knows nothing of.

    The arrays are shared until one of the two writes to them: a fork takes no memory of its own at first.
    """
    return replace(state, caches=[_forked(cache) for cache in state.caches])


def _forked(value: Any) -> Any:
    if isinstance(value, mx.array):
        # MLX writes in place only where nothing else holds an array; this is a handle of its own.
        return value[...]
    if isinstance(value, dict):
        return {key: _forked(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_forked(item) for item in value)
    if isinstance(value, _HOLDERS):
        twin = copy.copy(value)
        twin.__dict__.update({name: _forked(item) for name, item in vars(value).items()})
        return twin
    return value
