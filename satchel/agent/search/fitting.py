"""What of the pages that were read is worth its tokens. Knows nothing of how they were found or read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from satchel.agent.search.passages import relevance
from satchel.agent.search.prompts import quoted, source_heading
from satchel.agent.search.sources import Source
from satchel.agent.search.words import terms

ALIKE = 0.8  # share of terms above which a passage says what another one does
# A source's second passage has to fit 1.5 times as well as the first of another, its third twice as well.
CROWDING = 0.5
PATIENCE = 8  # passages that do not fit into what is left, one after the other, before no more are tried
_SPACING_TOKENS = 2  # between two sources, and for each line


@dataclass(frozen=True, slots=True)
class Draft:
    """A page before its passages are chosen; `passages` are all it has."""

    title: str
    url: str
    snippet: str
    passages: Sequence[str]


@dataclass(slots=True)
class _Candidate:
    page: int
    place: int
    text: str
    score: float


def fitted(
    query: str, drafts: Sequence[Draft], *, budget_tokens: int, count_tokens: Callable[[str], int]
) -> tuple[Source, ...]:
    """The sources of `drafts`, with those passages that fit `query` best, within `budget_tokens`.

    Each source has its snippet or passages. Where not even the snippets fit, the last sources are left out;
    the first is never, and has its snippet cut. What the prompt says around the sources is not counted.
    """
    cost = cache(lambda text: count_tokens(quoted(text)) + _SPACING_TOKENS)
    kept: list[Draft] = []
    left = budget_tokens
    for draft in drafts:
        heading = cost(source_heading(len(kept) + 1, draft.title, draft.url))
        if not kept and heading + cost(draft.snippet) > left:
            room = max(left - heading, 0)
            snippet = draft.snippet[: len(draft.snippet) * room // max(cost(draft.snippet), 1)]
            draft = Draft(draft.title, draft.url, snippet, draft.passages)
        elif heading + cost(draft.snippet) > left:
            break
        kept.append(draft)
        left -= heading + cost(draft.snippet)

    chosen = _chosen(query, kept, left, cost)
    return tuple(
        Source(
            number, draft.title, draft.url, draft.snippet, tuple(draft.passages[i] for i in sorted(places))
        )
        for number, (draft, places) in enumerate(zip(kept, chosen, strict=True), 1)
    )


def _chosen(query: str, drafts: Sequence[Draft], left: int, cost: Callable[[str], int]) -> list[list[int]]:
    """For each draft, which passages are taken, by their places."""
    candidates = _candidates(query, drafts)
    chosen: list[list[int]] = [[] for _ in drafts]
    said: list[set[str]] = []
    misses = 0
    while candidates and misses < PATIENCE:
        best = max(candidates, key=lambda one: one.score / (1 + CROWDING * len(chosen[one.page])))
        candidates.remove(best)
        words = set(terms(best.text))
        if not best.score and chosen[best.page]:
            continue  # a page's beginning stands for a page in which nothing fits the query
        if any(len(words & other) > ALIKE * len(words | other) for other in said):
            continue
        # The first passage of a source takes the place of its snippet.
        room = left + (0 if chosen[best.page] else cost(drafts[best.page].snippet))
        if cost(best.text) > room:
            misses += 1
            continue
        misses = 0
        left = room - cost(best.text)
        chosen[best.page].append(best.place)
        said.append(words)
    return chosen


def _candidates(query: str, drafts: Sequence[Draft]) -> list[_Candidate]:
    """All passages that share a term with `query`, and the first of each page, in the order of the pages."""
    places = [(page, place) for page, draft in enumerate(drafts) for place in range(len(draft.passages))]
    texts = [drafts[page].passages[place] for page, place in places]
    scored = zip(places, texts, relevance(query, texts), strict=True)
    return [
        _Candidate(page, place, text, score)
        for (page, place), text, score in scored
        if score > 0 or place == 0
    ]
