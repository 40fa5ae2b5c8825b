"""What a cache costs in quality: next-token distributions and greedy answers, against the exact cache.

The first three quarters of a text are read through the cache in chunks of `PREFILL_STEP`; the rest is
teacher-forced, and the distributions after each of its tokens are compared. Knows nothing of names and files.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from satchel.laboratory.caches import Candidate, exact, log_softmax, logits, read

if TYPE_CHECKING:
    from satchel.engine.model import LoadedModel

GREEDY_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Comparison:
    """KL(exact || cache) in nats, the share of equal likeliest tokens, perplexity over the exact one."""

    kl_mean: float
    kl_p99: float
    top_1: float
    perplexity_ratio: float


@dataclass(frozen=True, slots=True)
class QualityRow:
    """Of one cache on one text of `tokens` tokens: a `Comparison`'s figures."""

    cache: str
    text: str
    tokens: int
    kl_mean: float
    kl_p99: float
    top_1: float
    perplexity_ratio: float


@dataclass(frozen=True, slots=True)
class GreedyRow:
    """How many of `of` greedy tokens after `tokens` of a text come before one unlike the exact cache's."""

    cache: str
    text: str
    tokens: int
    agreed: int
    of: int


@dataclass(frozen=True, slots=True)
class Reference:
    """The exact cache's log-probabilities on a text, (len(token_ids) - prefill, vocabulary) float32.

    The only copy of that size that is held: a large vocabulary makes it half a gigabyte.
    """

    text: str
    token_ids: list[int]
    prefill: int
    chunk: int
    log_probs: np.ndarray

    @classmethod
    def of(cls, model: LoadedModel, text: str, token_ids: list[int], chunk: int) -> Reference:
        """Read `token_ids`, the last quarter of them `chunk` at a time."""
        prefill = len(token_ids) * 3 // 4
        held: np.ndarray | None = None
        done = 0
        for piece in log_probs(model, exact(model).make(), token_ids, prefill, chunk):
            if held is None:
                held = np.empty((len(token_ids) - prefill, piece.shape[1]), np.float32)
            held[done : done + len(piece)] = piece
            done += len(piece)
        assert held is not None
        return cls(text, token_ids, prefill, chunk, held)


def quality(model: LoadedModel, candidate: Candidate, reference: Reference) -> QualityRow:
    """Read the reference's text in the same way through `candidate`, and compare."""
    token_ids, prefill = reference.token_ids, reference.prefill
    with candidate.attention():
        pieces = log_probs(model, candidate.make(), token_ids, prefill, reference.chunk)
        found = compare(reference.log_probs, pieces, token_ids[prefill + 1 :])
    return QualityRow(candidate.name, reference.text, len(token_ids), **asdict(found))


def log_probs(
    model: LoadedModel, caches: list[Any], token_ids: Sequence[int], prefill: int, chunk: int
) -> Iterator[np.ndarray]:
    """Log-probabilities after each token from `prefill` on, in pieces of (`chunk`, vocabulary) float32."""
    read(model, caches, token_ids[:prefill])
    for start in range(prefill, len(token_ids), chunk):
        yield np.array(log_softmax(logits(model, caches, token_ids[start : start + chunk])))


def compare(exact: np.ndarray, pieces: Iterable[np.ndarray], targets: Sequence[int]) -> Comparison:
    """Compare log-probabilities, of which the second come in pieces that follow one another.

    Args:
        exact: (tokens, vocabulary).
        targets: the tokens that really came after the first of these.
    """
    divergences, agreements, likelihoods = [], [], []
    done = 0
    for piece in pieces:
        rows = exact[done : done + len(piece)]
        divergences.append((np.exp(rows) * (rows - piece)).sum(-1))
        agreements.append(rows.argmax(-1) == piece.argmax(-1))
        following = np.array(targets[done : done + len(piece)], dtype=np.int64)
        known = np.arange(len(following))
        likelihoods.append(rows[known, following] - piece[known, following])
        done += len(piece)
    kl = np.concatenate(divergences)
    return Comparison(
        kl_mean=float(kl.mean()),
        kl_p99=float(np.quantile(kl, 0.99)),
        top_1=float(np.concatenate(agreements).mean()),
        perplexity_ratio=float(np.exp(np.concatenate(likelihoods).mean())),
    )


def greedy(model: LoadedModel, candidate: Candidate, prompt: Sequence[int], count: int) -> Generator[int]:
    """The `count` likeliest tokens after `prompt`, one after the other."""
    with candidate.attention():
        caches = candidate.make()
        read(model, caches, prompt[:-1])
        token = prompt[-1]
        for _ in range(count):
            token = int(np.array(logits(model, caches, [token])[0].argmax()))
            yield token


def agreement(
    model: LoadedModel,
    candidate: Candidate,
    text: str,
    prompt: Sequence[int],
    expected: Sequence[int],
) -> GreedyRow:
    """How long `candidate` goes on from `prompt` as `expected`, the exact cache's answer."""
    agreed = 0
    with closing(greedy(model, candidate, prompt, len(expected))) as answer:  # it holds the attention
        for token, wanted in zip(answer, expected, strict=True):
            if token != wanted:
                break
            agreed += 1
    return GreedyRow(candidate.name, text, len(prompt), agreed, len(expected))
