"""Pages' texts in passages, and how well each fits a query. Knows nothing of tokens, pages or models."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from satchel.agent.search.words import terms, weight

# Of a passage, in tokens as `words.weight` estimates them: paragraphs are joined up to the first, and those
# above the second are parted at the ends of sentences.
ENOUGH, MOST = 80, 200
MAX_PASSAGES = 600  # of a page

# Robertson & Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009), section 3.4.
K1, B = 1.2, 0.75

_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？])[”’」』）]*")


def passages_of(text: str) -> list[str]:
    """`text` in passages of some sentences each, in order; each is one line."""
    passages: list[str] = []
    held: list[str] = []
    heft = 0.0
    for part in _parts(text):
        size = weight(part)
        if held and heft + size > MOST:
            passages.append(" ".join(held))
            held, heft = [], 0.0
        held.append(part)
        heft += size
        if heft >= ENOUGH:
            passages.append(" ".join(held))
            held, heft = [], 0.0
        if len(passages) == MAX_PASSAGES:
            return passages
    return [*passages, " ".join(held)] if held else passages


def _parts(text: str) -> Iterator[str]:
    """Paragraphs, those that are too long in sentences, those that are still too long anywhere."""
    for line in text.splitlines():
        paragraph = " ".join(line.split())
        if weight(paragraph) <= MOST:
            yield from [paragraph] if paragraph else []
            continue
        for sentence in sentences(paragraph):
            for at in range(0, len(sentence), MOST):
                yield from filter(None, [sentence[at : at + MOST].strip()])


def sentences(paragraph: str) -> Iterator[str]:
    """The sentences of `paragraph`, which is one line."""
    start = 0
    for match in _SENTENCE_END.finditer(paragraph):
        yield paragraph[start : match.end()].strip()
        start = match.end()
    yield paragraph[start:].strip()


def relevance(query: str, passages: Sequence[str]) -> list[float]:
    """How well each of `passages` fits `query` (BM25 over all of them); 0 where they share no term."""
    wanted = set(terms(query))
    counts = [Counter(terms(passage)) for passage in passages]
    lengths = [sum(count.values()) for count in counts]
    mean = sum(lengths) / len(lengths) if any(lengths) else 1.0
    having = {term: sum(term in count for count in counts) for term in wanted}
    rarity = {term: math.log1p((len(counts) - n + 0.5) / (n + 0.5)) for term, n in having.items()}
    return [
        sum(
            rarity[term] * count[term] * (K1 + 1) / (count[term] + K1 * (1 - B + B * length / mean))
            for term in wanted & count.keys()
        )
        for count, length in zip(counts, lengths, strict=True)
    ]
