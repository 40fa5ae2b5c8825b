"""Whether a source says what a sentence says, judged by their words. Knows nothing of how citations look.

Words cannot tell "rose" from "fell": what is found is a citation of a source that speaks of something else,
of other numbers, or that denies what the sentence says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from satchel.agent.search.claims import denied, denies, measures, spelled_numbers
from satchel.agent.search.passages import sentences
from satchel.agent.search.sources import Source
from satchel.agent.search.words import is_number, is_unspaced, terms

# Shares of a sentence's terms that a source has. Pairs of characters change more when a sentence is put in
# other words than words do.
ENOUGH_WORDS, ENOUGH_PAIRS = 0.5, 0.4
# For a sentence to be taken from a source: nearly all its terms, and so many that this is no chance.
TAKEN_SHARE, TAKEN_TERMS = 0.8, 5
_REMEMBERED = 64  # verdicts
_LEAST_OF_A_SCRIPT = 10  # terms of a source, for it to count as written in a script


@dataclass(frozen=True, slots=True)
class _Sentence:
    """One of a source: its words, its terms, and which of them it denies."""

    text: str
    terms: frozenset[str]
    denied: frozenset[str]


class Support:
    """What the sources of one answer say."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._said = {source.number: _said(source) for source in sources}
        self._scripts = {number: _scripts(said) for number, said in self._said.items()}
        self._measures = {source.number: measures(_text(source)) for source in sources}
        self._sentences = {source.number: _sentences_of(source) for source in sources}
        self._judged: dict[tuple[int, str], bool | None] = {}  # a sentence with many citations is judged once

    def exists(self, number: int) -> bool:
        return number in self._said

    def says(self, number: int, sentence: str) -> bool | None:
        """Whether source `number` can be cited for `sentence`; None where that has no words to judge by."""
        key = (number, sentence)
        if key not in self._judged:
            if len(self._judged) >= _REMEMBERED:
                self._judged.clear()
            self._judged[key] = self._judge(number, sentence)
        return self._judged[key]

    def _judge(self, number: int, sentence: str) -> bool | None:
        wanted = self._comparable(number, sentence)
        if not wanted:
            return None
        said = self._said[number]
        if not all(term in said for term in wanted if is_number(term)) or self._measures_other(
            number, sentence
        ):
            return False
        words = [term for term in wanted if not is_number(term)]
        if not words:
            return True
        return _is_enough(words, said) and not self._is_denied(number, sentence, wanted)

    def taken_from(self, sentence: str) -> int | None:
        """The source that has nearly all terms of `sentence`, and more of them than the others.

        What one of both denies, or counts in another unit, is not taken from it.
        """
        wanted = frozenset(terms(sentence))
        if len(wanted) < TAKEN_TERMS:
            return None
        shares = {number: _share(wanted, said) for number, said in self._said.items()}
        best = max(shares, key=lambda number: shares[number], default=None)
        if best is None or shares[best] < TAKEN_SHARE:
            return None
        counted = self._measures[best]
        if any(not units <= counted.get(number, {""}) for number, units in measures(sentence).items()):
            return None
        return best if denies(sentence) == denies(self._likest(best, sentence)) else None

    def _measures_other(self, number: int, sentence: str) -> bool:
        """Whether source `number` gives a number of `sentence` in other units only."""
        counted = self._measures[number]
        return any(
            "" not in units and (others := counted.get(value)) and "" not in others and not units & others
            for value, units in measures(sentence).items()
        )

    def _is_denied(self, number: int, sentence: str, wanted: Sequence[str]) -> bool:
        """Whether each sentence of the source that says `sentence` denies it, or is denied by it."""
        words = [term for term in wanted if not is_number(term)]
        supporting = [said for said in self._sentences[number] if _is_enough(words, said.terms)]
        if not supporting:  # it is put together from several
            return False
        ours, having = denied(sentence), frozenset(wanted)
        return all(bool(said.denied & having) != bool(ours & said.terms) for said in supporting)

    def _likest(self, number: int, sentence: str) -> str:
        """The sentence of source `number` that shares most terms with `sentence`."""
        wanted = set(terms(sentence))
        return max(self._sentences[number], key=lambda said: len(wanted & said.terms)).text

    def _comparable(self, number: int, sentence: str) -> list[str]:
        """The different terms of `sentence` that are of a script which source `number` is written in.

        An answer in one language may cite a source in another: then names and numbers are compared alone.
        """
        scripts = self._scripts[number]
        wanted = dict.fromkeys(terms(sentence))
        return [term for term in wanted if is_number(term) or is_unspaced(term) in scripts]


def _share(wanted: frozenset[str], said: frozenset[str]) -> float:
    if not all(term in said for term in wanted if is_number(term)):
        return 0.0
    return len(wanted & said) / len(wanted)


def _is_enough(words: Sequence[str], said: frozenset[str]) -> bool:
    least = sum(ENOUGH_PAIRS if is_unspaced(term) else ENOUGH_WORDS for term in words)
    return sum(term in said for term in words) >= least


def _text(source: Source) -> str:
    return "\n".join([source.title, source.url, source.snippet, *source.passages])


def _said(source: Source) -> frozenset[str]:
    """All its terms; small numbers that it spells out count as written in digits, too."""
    text = _text(source)
    return frozenset(terms(text)) | spelled_numbers(text)


def _sentences_of(source: Source) -> list[_Sentence]:
    parts = [source.title, source.snippet, *source.passages]
    texts = [sentence for part in parts for sentence in sentences(part) if sentence]
    return [_Sentence(text, frozenset(terms(text)), denied(text)) for text in texts or [""]]


def _scripts(said: Iterable[str]) -> set[bool]:
    """Of the words of a source, whether there are some without and some with spaces between them."""
    counts = Counter(is_unspaced(term) for term in said if not is_number(term))
    return {unspaced for unspaced, count in counts.items() if count >= _LEAST_OF_A_SCRIPT} or {False, True}
