"""The caches that are compared, by name, and how a model reads through them. Knows nothing of measures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache, QuantizedKVCache, make_prompt_cache

from satchel.config.profiles import get_profile
from satchel.engine.calibration import Calibration
from satchel.engine.kv_state import KVFactory, KVState
from satchel.errors import UsageError

if TYPE_CHECKING:
    from satchel.engine.model import LoadedModel

EXACT = "exact"
MLX_LM = "mlx-lm "  # and the bits
MLX_LM_BITS = (2, 3, 4, 6, 8)
MLX_LM_GROUP = 64
PREFILL_STEP = 512  # tokens


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to hold the KV of a model.

    `make` gives empty caches, one a layer, and `attention` what the model must run inside to use them.
    `state` is set for our own: an empty state, which the store can take.
    """

    name: str
    make: Callable[[], list[Any]]
    attention: Callable[[], AbstractContextManager[None]] = nullcontext
    state: Callable[[], KVState] | None = None


def check_cache_names(names: Sequence[str]) -> None:
    """Raises UsageError for a name that `caches_by_name` does not know."""
    for name in names:
        if name.startswith(MLX_LM):
            _mlx_lm_bits(name)
        else:
            get_profile(name)


def caches_by_name(model: LoadedModel, names: Sequence[str]) -> dict[str, Candidate]:
    """`mlx-lm N` is mlx-lm's cache of N bits in groups of 64, anything else a KV profile of ours.

    Raises:
        UsageError: a name is neither, or a profile that this model cannot use.
    """
    check_cache_names(names)
    factory = Calibration(model).factory
    return {name: _mlx_lm(model, name) if name.startswith(MLX_LM) else _ours(factory, name) for name in names}


def exact(model: LoadedModel) -> Candidate:
    """mlx-lm's own cache, in the dtype of the activations: what all others are measured against."""
    return Candidate(EXACT, lambda: make_prompt_cache(model.model))


def read(model: LoadedModel, caches: list[Any], token_ids: Sequence[int], step: int = PREFILL_STEP) -> None:
    """Read tokens in chunks of `step` for the caches alone."""
    for start in range(0, len(token_ids), step):
        model.model(mx.array([list(token_ids[start : start + step])]), cache=caches)
        mx.eval(list(held_arrays(caches)))


def logits(model: LoadedModel, caches: list[Any], token_ids: Sequence[int]) -> mx.array:
    """Read tokens in one go; the logits after each, (tokens, vocabulary) float32."""
    found = model.model(mx.array([list(token_ids)]), cache=caches)[0].astype(mx.float32)
    mx.eval(found, list(held_arrays(caches)))
    return found


def log_softmax(logits: mx.array) -> mx.array:
    """Log-probabilities, nats, of logits whose last axis is the vocabulary."""
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def held_arrays(caches: object) -> Iterator[mx.array]:
    """The arrays of caches of any kind, found by walking their attributes; each once.

    Modules belong to the model, functions and classes to nobody.
    """
    seen: set[int] = set()
    stack = [caches]
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(item, nn.Module) or callable(item):
            continue
        seen.add(id(item))
        if isinstance(item, mx.array):
            yield item
        elif isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, list | tuple):
            stack.extend(item)
        else:
            stack.extend(getattr(item, "__dict__", {}).values())
            slots = (name for kind in type(item).__mro__ for name in getattr(kind, "__slots__", ()))
            stack.extend(getattr(item, name, None) for name in slots)


def _mlx_lm(model: LoadedModel, name: str) -> Candidate:
    bits = _mlx_lm_bits(name)
    return Candidate(
        name,
        lambda: [
            QuantizedKVCache(MLX_LM_GROUP, bits) if type(cache) is KVCache else cache
            for cache in make_prompt_cache(model.model)
        ],
    )


def _ours(factory: KVFactory, name: str) -> Candidate:
    profile = get_profile(name)
    if notice := factory.new(profile).notice:
        raise UsageError(f"{name} cannot be measured: {notice}")
    return Candidate(name, lambda: factory.new(profile).caches, state=lambda: factory.new(profile))


def _mlx_lm_bits(name: str) -> int:
    text = name.removeprefix(MLX_LM).strip()
    if text not in map(str, MLX_LM_BITS):
        allowed = ", ".join(map(str, MLX_LM_BITS))
        raise UsageError(f"mlx-lm has no cache of {text!r} bits", f"`mlx-lm N` takes {allowed}")
    return int(text)
