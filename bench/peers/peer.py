"""What a peer is on the bench, and attention that is a peer's for a while. Knows no peer by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from mlx_lm.models.cache import KVCache, make_prompt_cache

from satchel.engine.attention import NAME, dispatch_attention, mlx_lm_attention
from satchel.engine.model import LoadedModel


@dataclass(frozen=True)
class Peer:
    """One setting of one peer.

    `make` gives a new list of caches, one a layer, for `model.model(tokens, cache=caches)`. Every call of the
    model with them belongs inside `with peer.attention():`, and no call with other caches does. Entering
    costs a look at all imported modules, so it stays outside of what a clock measures.
    """

    name: str
    make: Callable[[], list[Any]]
    attention: Callable[[], AbstractContextManager[None]] = nullcontext


def replace_exact(model: LoadedModel, replacement: Callable[[int], Any]) -> list[Any]:
    """mlx-lm's caches for `model`, with `replacement(layer)` for every plain `KVCache`."""
    return [
        replacement(layer) if type(cache) is KVCache else cache
        for layer, cache in enumerate(make_prompt_cache(model.model))
    ]


@contextmanager
def patched_attention(install: Callable[[], None]) -> Iterator[None]:
    """`scaled_dot_product_attention` as `install` leaves it in mlx-lm's modules; put back at the end.

    Satchel's dispatcher gives way first: peers look for mlx-lm's own function to replace, and would miss a
    module that holds ours.
    """
    before = [
        (module, getattr(module, NAME))
        for name, module in list(sys.modules.items())
        if name.startswith("mlx_lm.models.") and hasattr(module, NAME)
    ]
    try:
        for module, function in before:
            if function is dispatch_attention:
                setattr(module, NAME, mlx_lm_attention)
        install()
        yield
    finally:
        for module, function in before:
            setattr(module, NAME, function)
