"""Needles in a haystack: facts at even depths of a long text, all asked for at its end.

A fact is a line such as "Remember: cellar = 4917." The questions are the same lines again, teacher-forced, so
that one reading of the haystack serves all depths: a fact counts as retrieved where every token of its number
is the likeliest one. Two facts more, asked first, show a small model what is wanted and do not count. Digits
say less than they seem to: one wrong digit of four is not retrieved. Knows nothing of how a cache works.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from satchel.laboratory.caches import Candidate, log_softmax, logits, read
from satchel.laboratory.texts import token_ids

if TYPE_CHECKING:
    from satchel.engine.model import LoadedModel

FILLER = "pydoc"
FACTS = {
    "cellar": "4917",
    "garden": "2086",
    "kitchen": "7351",
    "attic": "6240",
    "garage": "8573",
    "stable": "1398",
    "library": "5624",
    "chapel": "9035",
    "tower": "3762",
    "harbour": "7184",
}  # in the order of their depths
WARM_UP = {"cottage": "8306", "museum": "2659"}
WARM_UP_DEPTHS = (0.3, 0.7)
ASKED = ("attic", "tower", "cellar", "library", "kitchen", "harbour", "stable", "garden", "chapel", "garage")


@dataclass(frozen=True, slots=True)
class Haystack:
    """Tokens to read, the questions, and where in the questions each answer stands: (start, stop)."""

    token_ids: list[int]
    questions: list[int]
    answers: dict[str, tuple[int, int]]

    @property
    def tokens(self) -> int:
        return len(self.token_ids) + len(self.questions)


@dataclass(frozen=True, slots=True)
class Retrieval:
    """By fact, the shallowest first: whether it was retrieved, its number's log-probability in nats."""

    retrieved: dict[str, bool]
    log_probs: dict[str, float]


@dataclass(frozen=True, slots=True)
class NeedleRow:
    """Shares of the facts retrieved by a cache and by the exact one from `tokens` tokens, questions included.

    `depths` has a mark for each depth, the shallowest first: "+" retrieved, "-" not. `log_prob` is the mean
    over the numbers, in nats.
    """

    cache: str
    tokens: int
    retrieved: float
    exact_retrieved: float
    depths: str
    log_prob: float


def haystack(model: LoadedModel, tokens: int) -> Haystack:
    """A haystack that takes at most `tokens` tokens with its questions; shorter where the filler is."""
    facts = {name: _fact(model, name) for name in (*FACTS, *WARM_UP)}
    questions = _encode(model, "\n\n")
    answers = {}
    for name in (*WARM_UP, *ASKED):
        start, answer, rest = _pieces(model, name)
        first = len(questions) + len(start)
        if name in FACTS:
            answers[name] = (first, first + len(answer))
        questions += [*start, *answer, *rest]
    room = tokens - len(questions) - sum(map(len, facts.values()))
    filler = token_ids(model, FILLER, max(room, 0))
    depths = {name: (number + 0.5) / len(FACTS) for number, name in enumerate(FACTS)}
    depths |= dict(zip(WARM_UP, WARM_UP_DEPTHS, strict=True))
    hidden: list[int] = []
    done = 0
    for name in sorted(depths, key=depths.__getitem__):
        upto = round(depths[name] * len(filler))
        hidden += [*filler[done:upto], *facts[name]]
        done = upto
    return Haystack([*hidden, *filler[done:]], questions, {name: answers[name] for name in FACTS})


def retrieve(model: LoadedModel, candidate: Candidate, hay: Haystack, chunk: int) -> Retrieval:
    """Read the haystack through `candidate`, then the questions `chunk` tokens at a time."""
    caches = candidate.make()
    likeliest, chosen = [], []
    with candidate.attention():
        read(model, caches, hay.token_ids)
        for start in range(0, len(hay.questions), chunk):
            found = log_softmax(logits(model, caches, hay.questions[start : start + chunk]))
            following = mx.array(hay.questions[start + 1 : start + chunk + 1], mx.int32)  # may be empty
            likeliest.append(np.array(found.argmax(-1)))
            known = mx.take_along_axis(found[: following.size], following[:, None], axis=-1)
            chosen.append(np.array(known)[:, 0])
    guesses, log_probs = np.concatenate(likeliest), np.concatenate(chosen)
    retrieved, likelihood = {}, {}
    for name, (start, stop) in hay.answers.items():
        asked = slice(start - 1, stop - 1)  # what is said after a token stands at that token
        retrieved[name] = bool((guesses[asked] == np.array(hay.questions[start:stop])).all())
        likelihood[name] = float(log_probs[asked].sum())
    return Retrieval(retrieved, likelihood)


def needle_row(cache: str, hay: Haystack, found: Retrieval, exact: Retrieval) -> NeedleRow:
    """The row of a cache's retrieval beside the exact cache's."""
    hits = list(found.retrieved.values())
    return NeedleRow(
        cache,
        hay.tokens,
        sum(hits) / len(hits),
        sum(exact.retrieved.values()) / len(exact.retrieved),
        "".join("+" if hit else "-" for hit in hits),
        sum(found.log_probs.values()) / len(found.log_probs),
    )


def _fact(model: LoadedModel, name: str) -> list[int]:
    return [*_encode(model, "\n\n"), *(token for piece in _pieces(model, name) for token in piece)]


def _pieces(model: LoadedModel, name: str) -> Sequence[list[int]]:
    """A fact's line in three: what stands before its number, the number, the rest."""
    number = (FACTS | WARM_UP)[name]
    return [_encode(model, text) for text in (f"Remember: {name} =", f" {number}", ".\n\n")]


def _encode(model: LoadedModel, text: str) -> list[int]:
    return list(model.tokenizer.encode(text, add_special_tokens=False))
