"""What a model makes of a request, as features: two vectors of one pass. Knows nothing of labels or weights.

The words around the request turn the model's guess of the next word into one about what has to be done. In
the middle layers, the mean over the request says what it is about; above, the last token what comes next.
"""

from __future__ import annotations

import numpy as np

from satchel.engine.hidden import hidden_states, layer_count
from satchel.engine.model import LoadedModel

BEFORE, AFTER = 'A user asks their computer assistant: "', '"\nTo answer this, the assistant has to'
HEAD, TAIL = 96, 32  # tokens of a request that are read
MEAN_DEPTH, LAST_DEPTH = 0.52, 0.72  # of the layers


def reading_layers(model: LoadedModel) -> tuple[int, int]:
    """The layer of the mean, and that of the last token."""
    layers = layer_count(model)
    return int(MEAN_DEPTH * layers), int(LAST_DEPTH * layers)


def model_features(model: LoadedModel, text: str, layers: tuple[int, int]) -> np.ndarray:
    """The features of `text`, (2 * hidden_size,) float32.

    Raises:
        SatchelError: a kind of model that does not show its hidden states.
    """
    tokenizer = model.tokenizer
    before, request, after = (
        tokenizer.encode(part, add_special_tokens=False) for part in (BEFORE, text, AFTER)
    )
    if len(request) > HEAD + TAIL:
        request = request[:HEAD] + request[-TAIL:]
    first = tokenizer.encode("", add_special_tokens=True)[:1]  # what all texts begin with for some models
    if first != [tokenizer.bos_token_id]:
        first = []
    start = len(first) + len(before)
    states = hidden_states(model, [*first, *before, *request, *after], layers)
    mean = states[0, start : start + max(1, len(request))].mean(0)
    return np.concatenate([mean, states[1, -1]])
