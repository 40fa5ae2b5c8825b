"""Runs the measurements that were asked for and hands out their rows. Knows nothing of how they are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from satchel.errors import UsageError
from satchel.laboratory import needle
from satchel.laboratory.caches import Candidate, caches_by_name, exact
from satchel.laboratory.filling import keys_and_values
from satchel.laboratory.needle import NeedleRow
from satchel.laboratory.quality import (
    GREEDY_TOKENS,
    GreedyRow,
    QualityRow,
    Reference,
    agreement,
    greedy,
    quality,
)
from satchel.laboratory.speed import BASELINES, SpeedRow, speed
from satchel.laboratory.storage import StorageRow, storage
from satchel.laboratory.texts import token_ids

if TYPE_CHECKING:
    from satchel.engine.model import LoadedModel

PARTS = ("quality", "needle", "greedy", "speed", "storage")
DEFAULT_CACHES = ("mlx-lm 4", "mlx-lm 8", "k8v4", "turbo4", "turbo3", "turbo2")
LONG_TEXT = "pydoc"  # for what depends on the count of tokens alone
PREFILL_TOKENS = 2048  # at most, where prefill is timed: it takes all candidates in turn
BLOCK_SOURCE = 512  # tokens: a block, and what stands before it
MIN_TOKENS = 256  # fewer leave nothing between the exact window and the sink
MIN_NEEDLE_TOKENS = 512  # facts and questions take more than half of these

Row = QualityRow | NeedleRow | GreedyRow | SpeedRow | StorageRow


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure: `PARTS`, on texts cut to `tokens`, whose last quarter is read `chunk` at a time.

    Raises:
        UsageError: no such part, or too few tokens.
    """

    texts: Sequence[str]
    tokens: int = 2048
    chunk: int = 1
    parts: Sequence[str] = PARTS

    def __post_init__(self) -> None:
        for part in self.parts:
            if part not in PARTS:
                raise UsageError(f"nothing called {part!r} is measured", f"there are {', '.join(PARTS)}")
        least = MIN_NEEDLE_TOKENS if "needle" in self.parts else MIN_TOKENS
        if self.tokens < least:
            raise UsageError(f"{self.tokens} tokens are too few", f"it takes {least} at least")
        if self.chunk < 1:
            raise UsageError(f"chunks of {self.chunk} tokens cannot be", "it takes 1 at least")


@dataclass(frozen=True, slots=True)
class Step:
    """Begins the piece of work number `number`, from 1, of `total`."""

    number: int
    total: int
    label: str


def run(model: LoadedModel, candidates: Mapping[str, Candidate], plan: Plan) -> Iterator[Step | Row]:
    """Measure each candidate, part by part; a row follows the step that it took.

    Raises:
        SatchelError: the model has no layer that could be compressed.
    """
    every_text = len(plan.texts) * (len(candidates) + 1)  # the exact cache comes first
    every_cache = len(candidates) + 1
    steps = dict(zip(PARTS, (every_text, every_cache, every_text, 1, every_cache), strict=True))
    parts = [part for part in PARTS if part in plan.parts]
    total, number = sum(steps[part] for part in parts), 0
    for part in parts:
        for event in _MEASURES[part](model, candidates, plan):
            if isinstance(event, str):
                number += 1
                yield Step(number, total, f"{part}: {event}")
            else:
                yield event


def _quality(
    model: LoadedModel, candidates: Mapping[str, Candidate], plan: Plan
) -> Iterator[str | QualityRow]:
    for text in plan.texts:
        yield f"exact on {text}"
        reference = Reference.of(model, text, token_ids(model, text, plan.tokens), plan.chunk)
        for candidate in candidates.values():
            yield f"{candidate.name} on {text}"
            yield quality(model, candidate, reference)
        del reference  # before the next is made: with a large vocabulary each takes half a gigabyte


def _greedy(model: LoadedModel, candidates: Mapping[str, Candidate], plan: Plan) -> Iterator[str | GreedyRow]:
    for text in plan.texts:
        yield f"exact on {text}"
        ids = token_ids(model, text, plan.tokens)
        prompt = ids[: len(ids) * 3 // 4]
        expected = list(greedy(model, exact(model), prompt, GREEDY_TOKENS))
        for candidate in candidates.values():
            yield f"{candidate.name} on {text}"
            yield agreement(model, candidate, text, prompt, expected)


def _needle(model: LoadedModel, candidates: Mapping[str, Candidate], plan: Plan) -> Iterator[str | NeedleRow]:
    yield "exact"
    hay = needle.haystack(model, plan.tokens)
    found = needle.retrieve(model, exact(model), hay, plan.chunk)
    for candidate in candidates.values():
        yield candidate.name
        yield needle.needle_row(
            candidate.name, hay, needle.retrieve(model, candidate, hay, plan.chunk), found
        )


def _storage(
    model: LoadedModel, candidates: Mapping[str, Candidate], plan: Plan
) -> Iterator[str | StorageRow]:
    yield "keys and values"
    source = keys_and_values(model, token_ids(model, LONG_TEXT, plan.tokens))
    for candidate in candidates.values():
        yield candidate.name
        yield storage(candidate, source)


def _speed(model: LoadedModel, candidates: Mapping[str, Candidate], plan: Plan) -> Iterator[str | SpeedRow]:
    yield "all caches by turns"
    text = token_ids(model, LONG_TEXT, min(plan.tokens, PREFILL_TOKENS))
    source = keys_and_values(model, text[:BLOCK_SOURCE])
    contestants = caches_by_name(model, BASELINES) | dict(candidates)
    yield from speed(model, list(contestants.values()), text, source, plan.tokens)


Measure = Callable[["LoadedModel", Mapping[str, Candidate], Plan], Iterator[str | Row]]
_MEASURES: dict[str, Measure] = {
    "quality": _quality,
    "needle": _needle,
    "greedy": _greedy,
    "speed": _speed,
    "storage": _storage,
}
