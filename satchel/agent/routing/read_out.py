"""A linear read-out: from features to scores of what is asked for, and its file. Knows nothing of models.

Beside the three intents there is a fourth outcome, that the request goes on from the one before it ("and
tomorrow?"): it is then after the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from satchel.agent.routing import cues, reading, words
from satchel.agent.routing.intents import Intent
from satchel.config.paths import cache_dir
from satchel.engine.digests import text_sha256
from satchel.engine.model import Fingerprint
from satchel.errors import DamagedError, VersionError
from satchel.files import atomic_write, read_file

OUTCOMES = (*Intent, "goes on")
FORMAT = "satchel-read-out/1"
MAX_BYTES = 4 << 20
SHIPPED = Path(__file__).parents[1] / "data" / "read_outs"
WORDS_ONLY = "words"  # the name of the read-out that needs no model


@dataclass(frozen=True, slots=True)
class ReadOut:
    """Weights of features; a score is their sum, and softmax makes probabilities of scores.

    Attributes:
        hidden: (2 * hidden_size, 4) of the model's features; (0, 4) where no model is read.
        words: (words.WIDTH, 4) of the words' features.
        bias: (4,).
        layers: those of `reading.model_features`.
    """

    hidden: np.ndarray
    words: np.ndarray
    bias: np.ndarray
    layers: tuple[int, int]

    @property
    def reads_model(self) -> bool:
        return len(self.hidden) > 0

    def scores(self, word_features: np.ndarray, model_features: np.ndarray | None = None) -> np.ndarray:
        """(4,), in the order of `OUTCOMES`.

        Raises:
            DamagedError: the model has features of another size.
        """
        scores = word_features @ self.words + self.bias
        if model_features is None:
            return scores
        if len(model_features) != len(self.hidden):
            raise DamagedError(
                f"the read-out takes {len(self.hidden)} features, and the model has {len(model_features)}"
            )
        return scores + model_features @ self.hidden


def file_name(fingerprint: Fingerprint) -> str:
    """The name of a model's read-out: of its weights and its tokens, not of how it is asked to chat."""
    return text_sha256(fingerprint.weights + fingerprint.tokenizer)[:32]


def find_read_out(name: str) -> Path | None:
    """The file of the read-out called `name`: one that came with Satchel, else one that was fitted here."""
    for folder in (SHIPPED, fitted_dir()):
        if (path := folder / f"{name}.safetensors").is_file():
            return path
    return None


def fitted_dir() -> Path:
    return cache_dir() / "routing"


def features_digest() -> str:
    """Of all that decides what the features mean: weights fit no others."""
    shapes = {name: pattern.pattern for name, pattern in cues.SHAPES.items()}
    kinds = {kind: [sorted(held.words), held.phrases] for kind, held in cues.CUES.items()}
    sizes = [words.WIDTH, words.HEAD, words.TAIL, words.CUE_WEIGHT, words.PAIR_WEIGHT]
    texts = [reading.BEFORE, reading.AFTER, reading.HEAD, reading.TAIL]
    return text_sha256(json.dumps([kinds, shapes, sizes, texts], sort_keys=True))[:16]


def save_read_out(read_out: ReadOut, path: Path) -> int:
    """Write `read_out` to `path`; the number of its bytes.

    Raises:
        SatchelError: the disk refused.
    """
    from safetensors.numpy import save

    arrays: dict[str, np.ndarray] = {
        "hidden": read_out.hidden.astype(np.float32),
        "words": read_out.words.astype(np.float16),
        "bias": read_out.bias.astype(np.float32),
    }
    layers = json.dumps(list(read_out.layers))
    data = save(arrays, {"format": FORMAT, "features": features_digest(), "layers": layers})
    atomic_write(path, data)
    return len(data)


def load_read_out(path: Path, layers: int) -> ReadOut:
    """The read-out in the file at `path`, checked.

    Args:
        layers: how many layers the model has that is read; 0 where none is to be read.

    Raises:
        DamagedError: it is no read-out, or not for such a model.
        VersionError: it was made for other features.
    """
    try:
        data = read_file(path, MAX_BYTES)
        if data is None:
            raise ValueError("it is missing or too large")
        meta, arrays = _parsed(data)
        if meta.get("format") != FORMAT or meta.get("features") != features_digest():
            raise VersionError(f"the read-out {path.name} was made by another version of Satchel")
        places = json.loads(meta["layers"])
        _check(arrays, places, layers)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as err:
        raise DamagedError(f"the read-out {path.name} cannot be used ({err})") from err
    hidden, weights, bias = (arrays[name].astype(np.float32) for name in ("hidden", "words", "bias"))
    return ReadOut(hidden, weights, bias, (places[0], places[1]))


def _parsed(data: bytes) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = load(data)
    except SafetensorError as err:
        raise ValueError(str(err)) from err
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return header.get("__metadata__", {}), arrays


def _check(arrays: dict[str, np.ndarray], places: Any, layers: int) -> None:
    outcomes = len(OUTCOMES)
    rows = arrays["hidden"].shape[0] if arrays["hidden"].ndim else -1
    if rows % 2 or (rows > 0) != (layers > 0):
        raise ValueError(f"it has weights for {rows} features of the model")
    wanted = {"hidden": (rows, outcomes), "words": (words.WIDTH, outcomes), "bias": (outcomes,)}
    shapes = {name: array.shape for name, array in arrays.items()}
    if shapes != wanted:
        raise ValueError(f"its arrays are {shapes}, not {wanted}")
    for name, array in arrays.items():
        if array.dtype not in (np.float16, np.float32) or not np.isfinite(array).all():
            raise ValueError(f"{name} holds what are no finite floats")
    if not (isinstance(places, list) and len(places) == 2 and all(type(place) is int for place in places)):
        raise ValueError("it names no two layers")
    if layers and not all(0 <= place < layers for place in places):
        raise ValueError(f"it names layers {places} of {layers}")


def softmax(scores: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def resolved(outcomes: np.ndarray, before: Sequence[float] | np.ndarray | None) -> np.ndarray:
    """The probabilities of the three intents, (3,).

    Args:
        outcomes: those of the four outcomes, (4,).
        before: those of the request before this one, (3,); None where this is the first.
    """
    intents, goes_on = outcomes[:3], outcomes[3]
    if before is None:
        return intents / max(intents.sum(), 1e-9)
    return intents + goes_on * np.asarray(before)
