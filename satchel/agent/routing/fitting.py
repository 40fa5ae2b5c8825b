"""Fits read-outs to examples: ridge regression, how strongly and how sharply found by cross-validation.

Knows nothing of files. Examples that nearly say the same stay in one fold, so that none is told by its twin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from satchel.agent.routing.examples import Example
from satchel.agent.routing.intents import Intent
from satchel.agent.routing.read_out import OUTCOMES, ReadOut, resolved, softmax
from satchel.agent.routing.reading import model_features, reading_layers
from satchel.agent.routing.words import word_features
from satchel.engine.model import LoadedModel

FOLDS = 5
SHARES = (0.3, 0.5, 0.7)  # of the model's features in all variance; the rest are the words'
RIDGES = (1e-4, 3e-4, 1e-3)  # of the variance of an example
SHARPNESS = tuple(2.0 + 0.5 * step for step in range(25))
ALIKE = 0.5  # the share of three-letter runs that two examples have in common
_FLOOR = 1e-3  # of the typical channel: one that hardly moves must not be blown up


@dataclass(frozen=True, slots=True)
class Fit:
    """A read-out, and the probabilities that cross-validation gave examples which it had not seen."""

    read_out: ReadOut
    share: float
    ridge: float
    sharpness: float
    probabilities: np.ndarray  # (examples, 3)

    def accuracy(self, examples: Sequence[Example]) -> float:
        labels = np.array([list(Intent).index(example.label) for example in examples])
        return float((self.probabilities.argmax(1) == labels).mean())


def fit(
    examples: Sequence[Example],
    words: np.ndarray,
    hidden: np.ndarray | None = None,
    layers: tuple[int, int] = (0, 0),
) -> Fit:
    """Fit a read-out to `examples`.

    Args:
        words: the words' features, (examples, words.WIDTH).
        hidden: the model's features, (examples, 2 * hidden_size), from `layers`; None for none.
    """
    targets = np.array([_outcome(example) for example in examples])
    folds = _folds(examples)
    word_scale = _scale(words)
    blocks = [(words, word_scale)]
    if hidden is not None:
        deviation = hidden.std(0)
        channels = 1 / (deviation + _FLOOR * np.median(deviation))  # (2 * hidden_size,)
        blocks.append((hidden * channels, _scale(hidden * channels)))
    kernels = [scale**2 * _product(block) for block, scale in blocks]
    best: tuple[float, float, float, float, np.ndarray] | None = None
    for share in SHARES if hidden is not None else (0.0,):
        kernel = (1 - share) * kernels[0] + (share * kernels[1] if hidden is not None else 0.0)
        for ridge in RIDGES:
            unseen = _unseen_scores(kernel, targets, folds, ridge)
            for sharpness in SHARPNESS:
                probabilities = _resolved(softmax(sharpness * unseen), examples)
                loss = _loss(probabilities, examples)
                if best is None or loss < best[0]:
                    best = loss, share, ridge, sharpness, probabilities
    assert best is not None
    _, share, ridge, sharpness, probabilities = best
    kernel = (1 - share) * kernels[0] + (share * kernels[1] if hidden is not None else 0.0)
    dual, level = _solve(kernel, targets, ridge)  # (examples, 4), (4,)
    word_weights = (1 - share) * word_scale**2 * _centred(words).T @ dual
    level = level - words.mean(0) @ word_weights
    hidden_weights = np.zeros((0, len(OUTCOMES)))
    if hidden is not None:
        hidden_weights = share * blocks[1][1] ** 2 * _centred(blocks[1][0]).T @ dual * channels[:, None]
        level = level - hidden.mean(0) @ hidden_weights
    read_out = ReadOut(sharpness * hidden_weights, sharpness * word_weights, sharpness * level, layers)
    return Fit(read_out, share, ridge, sharpness, probabilities)


def fit_model(model: LoadedModel, examples: Sequence[Example], progress: Callable[[int], None]) -> Fit:
    """Read `examples` with `model`, and fit a read-out of it; `progress` is told how many are read.

    Raises:
        SatchelError: a kind of model that does not show its hidden states.
    """
    layers = reading_layers(model)
    hidden = []
    for example in examples:
        hidden.append(model_features(model, example.message, layers))
        progress(len(hidden))
    return fit(examples, word_matrix(examples), np.array(hidden), layers)


def word_matrix(examples: Sequence[Example]) -> np.ndarray:
    """(examples, words.WIDTH)."""
    return np.array([word_features(example.message) for example in examples])


def _outcome(example: Example) -> int:
    return len(Intent) if example.goes_on else list(Intent).index(example.label)


def _centred(features: np.ndarray) -> np.ndarray:
    return features - features.mean(0)


def _scale(features: np.ndarray) -> float:
    """What gives examples a variance of 1 in all."""
    return float(np.square(_centred(features)).sum(1).mean()) ** -0.5


def _product(features: np.ndarray) -> np.ndarray:
    """Of every pair of examples, (examples, examples) float64."""
    centred = _centred(features).astype(np.float32)
    return (centred @ centred.T).astype(np.float64)


def _solve(kernel: np.ndarray, targets: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """The weights of examples, (examples, 4), for a centred kernel, and the outcomes' means, (4,)."""
    wanted = np.eye(len(OUTCOMES))[targets]
    mean = wanted.mean(0)
    damped = kernel + ridge * len(targets) * np.eye(len(targets))
    return np.linalg.solve(damped, wanted - mean), mean


def _unseen_scores(kernel: np.ndarray, targets: np.ndarray, folds: np.ndarray, ridge: float) -> np.ndarray:
    """The scores of each example by the fit to the other folds, (examples, 4)."""
    scores = np.zeros((len(targets), len(OUTCOMES)))
    for fold in range(FOLDS):
        seen, unseen = folds != fold, folds == fold
        inner = kernel[np.ix_(seen, seen)]
        means, mean = inner.mean(0), inner.mean()
        dual, level = _solve(inner - means - means[:, None] + mean, targets[seen], ridge)
        across = kernel[np.ix_(unseen, seen)]
        scores[unseen] = (across - across.mean(1, keepdims=True) - means + mean) @ dual + level
    return scores


def _resolved(outcomes: np.ndarray, examples: Sequence[Example]) -> np.ndarray:
    """(examples, 3), with the label of the request before as it is known."""
    one_hot = dict(zip(Intent, np.eye(len(Intent)), strict=True))
    pairs = zip(outcomes, examples, strict=True)
    return np.array([resolved(row, one_hot[e.history[-1][0]] if e.history else None) for row, e in pairs])


def _loss(probabilities: np.ndarray, examples: Sequence[Example]) -> float:
    """The mean surprise at the right labels, in nats."""
    labels = [list(Intent).index(example.label) for example in examples]
    right = probabilities[np.arange(len(labels)), labels]
    return float(-np.log(np.maximum(right, 1e-6)).mean())


def _folds(examples: Sequence[Example]) -> np.ndarray:
    """The fold of each example, (examples,)."""
    groups = _groups([example.message for example in examples])
    order = np.random.default_rng(0).permutation(np.unique(groups))
    fold_of = {group: place % FOLDS for place, group in enumerate(order)}
    return np.array([fold_of[group] for group in groups])


def _groups(texts: Sequence[str]) -> list[int]:
    """A number for each text; texts that are alike, or are so by way of others, have the same."""
    runs = [set(_runs(f" {text.lower()} ")) for text in texts]
    parents = list(range(len(texts)))

    def root(place: int) -> int:
        while parents[place] != place:
            place = parents[place]
        return place

    for place, held in enumerate(runs):
        for earlier in range(place):
            common = len(held & runs[earlier])
            if common > ALIKE * (len(held) + len(runs[earlier]) - common):
                parents[root(place)] = root(earlier)
    return [root(place) for place in range(len(texts))]


def _runs(text: str) -> Iterator[str]:
    return (text[start : start + 3] for start in range(max(1, len(text) - 2)))
