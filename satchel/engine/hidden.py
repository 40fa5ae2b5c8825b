"""What a model makes of tokens on its way: the outputs of its layers. Knows nothing of caches or labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import numpy as np

from satchel.engine.model import LoadedModel
from satchel.errors import SatchelError


def layer_count(model: LoadedModel) -> int:
    """How many layers `hidden_states` can look at."""
    return len(_layers(model))


def hidden_states(model: LoadedModel, token_ids: Sequence[int], layers: Sequence[int]) -> np.ndarray:
    """The outputs of `layers` for `token_ids`, read in one pass without a cache.

    MLX computes nothing above the last of `layers`, as nobody looks at it. The model is left as it was.

    mlx-lm's classes have no common way to ask for these; what they share is that the layers are in
    `model.layers` and are called one after the other. So these note their outputs, by a class that is put
    over their own during the pass.

    Args:
        token_ids: (T,), at least one.
        layers: their numbers from 0, below `layer_count`; negative ones count from the end.

    Returns:
        (len(layers), T, hidden_size) float32.

    Raises:
        SatchelError: a kind of model whose layers give no hidden states that could be noted.
    """
    assert len(token_ids) > 0
    every = _layers(model)
    wanted = [every[number] for number in layers]
    inputs = mx.array([list(token_ids)])  # (1, T)
    network: Any = model.model
    with _noting(wanted) as noted:
        network(inputs)
        outputs = [noted.get(id(layer)) for layer in wanted]
    found = [output for output in outputs if output is not None and output.ndim == 3]
    if len(found) < len(wanted):
        raise SatchelError(f"the layers of {model.name} do not show their hidden states")
    stacked = mx.concatenate([output.astype(mx.float32) for output in found])  # (layers, T, hidden_size)
    mx.eval(stacked)
    return np.array(stacked)


def _layers(model: LoadedModel) -> list[Any]:
    """The layers in the order in which they run."""
    layers = getattr(model.model, "layers", None)
    if not layers:
        raise SatchelError(f"the layers of {model.name} are not known")
    return list(layers)


@contextmanager
def _noting(layers: Sequence[Any]) -> Iterator[dict[int, mx.array]]:
    """The last outputs of `layers` by their `id`, as they are called inside the block."""
    noted: dict[int, mx.array] = {}
    own = [type(layer) for layer in layers]

    def noting(kind: type) -> type:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            output = kind.__call__(self, *args, **kwargs)
            noted[id(self)] = output[0] if isinstance(output, tuple) else output
            return output

        return type(kind.__name__, (kind,), {"__call__": call})

    classes = {kind: noting(kind) for kind in set(own)}
    try:
        for layer, kind in zip(layers, own, strict=True):
            layer.__class__ = classes[kind]
        yield noted
    finally:
        for layer, kind in zip(layers, own, strict=True):
            layer.__class__ = kind
