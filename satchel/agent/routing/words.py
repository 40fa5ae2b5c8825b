"""What the words of a request say by themselves, as features. Knows nothing of models, labels or weights.

Two kinds, hashed into one vector: words and runs of characters as they come, and which kinds of cue there are
and meet (`cues.py`). The latter carry over to words that no example has.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from itertools import combinations

import numpy as np

from satchel.agent.routing.cues import CUES, SHAPES

WIDTH = 8192  # features, a power of two
HEAD, TAIL = 300, 100  # characters: a request stands before or behind what is pasted, which may be long
CUE_WEIGHT, PAIR_WEIGHT = 0.5, 0.35  # the n-grams of a text together have 1

_TOKEN = re.compile(r"[a-z]+(?:'[a-z]+)?|[0-9]+|[㐀-鿿]|[^\sa-z0-9㐀-鿿]")
_HAN_RUN = re.compile(r"[㐀-鿿]+")
_LATIN_WORD = re.compile(r"[a-z][a-z'-]*")


def word_features(text: str) -> np.ndarray:
    """The features of `text`, (WIDTH,) float32. Their length hardly grows with that of the text."""
    features = np.zeros(WIDTH, np.float32)
    for name, value in named_features(text).items():
        place, sign = place_of(name)
        features[place] += sign * value
    return features


def named_features(text: str) -> dict[str, float]:
    """The features of `text` by name, before they are hashed.

    A word, a pair of words or a Chinese run is its own name. Those of kinds begin with an equals sign,
    those of runs of letters with a tilde, and those of beginnings with a caret.
    """
    text = _plain(text)
    ngrams = dict.fromkeys(_ngrams(text))
    named = dict.fromkeys(ngrams, len(ngrams) ** -0.5) if ngrams else {}
    kinds = sorted(cue_kinds(text))
    named |= {f"={kind}": CUE_WEIGHT for kind in kinds}
    named |= {f"={one} {other}": PAIR_WEIGHT * len(kinds) ** -0.5 for one, other in combinations(kinds, 2)}
    return named


def place_of(name: str) -> tuple[int, int]:
    """The place of a feature by its name's hash, and its sign: names that meet cancel on average."""
    digest = zlib.crc32(name.encode("utf-8", "replace"))
    return digest % WIDTH, 1 if digest >> 31 else -1


def cue_kinds(text: str) -> set[str]:
    """The kinds of cue and of shape that `text` holds."""
    padded = f" {_plain(text)} "
    words = _LATIN_WORD.findall(padded)
    first = words[0] if words else ""
    kinds = set()
    for kind, cues in CUES.items():
        if not cues.words.isdisjoint(words) or any(phrase in padded for phrase in cues.phrases):
            kinds.add(kind)
        if first in cues.words:
            kinds.add(f"first {kind}")
    return kinds | {shape for shape, pattern in SHAPES.items() if pattern.search(padded)}


def _plain(text: str) -> str:
    """In lower case, with single spaces, and with the middle of a long text left out."""
    text = " ".join(text.lower().replace("’", "'").split())
    return text if len(text) <= HEAD + TAIL else f"{text[:HEAD]} {text[-TAIL:]}"


def _ngrams(text: str) -> Iterator[str]:
    """Words, pairs of them, runs of Chinese characters, and of letters, which outlive typing errors."""
    tokens = ["0" if token.isdigit() else token for token in _TOKEN.findall(text)]
    yield from tokens
    for one, other in zip(["^", *tokens], [*tokens, "$"], strict=True):
        yield f"{one} {other}"
    yield "^ " + " ".join(tokens[:3])
    for run in _HAN_RUN.findall(text):
        for length in (2, 3):
            yield from (run[start : start + length] for start in range(len(run) - length + 1))
    for word in _LATIN_WORD.findall(text):
        if len(word) > 3:
            edged = f"<{word}>"
            yield from (f"~{edged[start : start + 4]}" for start in range(len(edged) - 3))
