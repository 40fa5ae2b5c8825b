"""Makes an answer cite what its sources say, and nothing else, while it comes. Knows nothing of models.

Sentence by sentence: a citation stays if its source exists and has the sentence's words; a sentence that has
nearly all its words from a source gets that source's number. A citation is written [1], several [1, 2].
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from satchel.agent.search.markup import Citation, Fixed, Markup, Prose, Token
from satchel.agent.search.sources import Source
from satchel.agent.search.support import Support
from satchel.agent.search.words import is_unspaced, terms

_STOPS, _FULL_STOPS = ".!?…", "。！？｡"  # a sentence ends with one of the first where a space follows
_CLOSERS = "\"'”’)]}»」』）*_"
_SPACES = " \t\u00a0\u3000"
_QUESTION_OR_INTRODUCTION = "?？:："
_OPENERS = "([{`*_“‘"
_UNCITED_LINES = "#|"  # headings and tables
_ITEM = re.compile(r"\s*(?:[-*+•>]\s+|\d{1,3}[.)、]\s*)*")
_NO_END = re.compile(
    r"(?:^\s*\d{1,3}|(?:^|[\s(\"'“.])(?:[A-Za-z]|dr|mr|mrs|ms|st|vs|no|approx|ca|fig|prof|jan|feb|aug|sept?|oct|nov|dec))$",
    re.IGNORECASE,
)

_BRACKET = re.compile(r"[\[【［][\d\s^,，、;；–-]*$")
_LONGEST = 12  # characters of an abbreviation, and what stands before it

Piece = str | Fixed | Citation  # of a sentence; str is a character of prose


class CitationFilter:
    """A stream of an answer's text in; the same out, with citations that are right.

    What `feed` and `finish` return joins to `whole` of the joined pieces, whatever the pieces. Text is held
    back where a citation or the end of a sentence may change it. Code and links stay as they are.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self._support = Support(sources)
        self._markup = Markup()
        self._pieces: list[Piece] = []  # of the sentence
        self._given = 0  # how many of them are out
        self._stop: int | None = None  # the place of the mark that may have ended the sentence
        self._has_gap = False  # after that mark
        self._has_citation = False
        self._line_first = ""  # the line's first character
        self._before = ""  # the last sentence that had words
        self._has_words = False  # of the sentence whose citations are being checked
        self._taken_from: int | None = None  # the source of that sentence

    def feed(self, text: str) -> str:
        """What is certain of the answer with `text`."""
        return "".join(self._take(token) for char in text for token in self._markup.feed(char))

    def finish(self) -> str:
        """The rest. The filter is done then."""
        return "".join([*map(self._take, self._markup.finish()), self._ended()])

    def whole(self, text: str) -> str:
        """All of an answer at once."""
        return checked(text, self._sources)

    # Where sentences end

    def _take(self, token: Token) -> str:
        match token:
            case Fixed(text, is_block=True) | Prose("\n" as text):
                out, self._line_first = self._ended() + text, ""
                return out
            case Citation():
                self._has_citation = True
                self._has_gap |= self._stop is not None
                self._pieces.append(token)
                return ""
            case Prose(char):
                return self._add(char)
        return self._add(token)

    def _add(self, piece: str | Fixed) -> str:
        out = self._ended() if self._stop is not None and self._begins_next(piece) else ""
        self._line_first = self._line_first or _shown(piece).strip()[:1]
        if isinstance(piece, Fixed):
            self._stop = None
        elif self._stop is None and piece in _STOPS + _FULL_STOPS and not self._is_abbreviated(piece):
            self._stop, self._has_gap = len(self._pieces), False
        self._pieces.append(piece)
        if self._has_citation or self._stop is not None or _is_space(piece):
            return out
        # Nothing will change what there is; there are no citations in it.
        given, self._given = self._given, len(self._pieces)
        return out + "".join(map(_shown, self._pieces[given:]))

    def _begins_next(self, piece: str | Fixed) -> bool:
        """Whether the sentence that seems to have ended has, since `piece` belongs to another one."""
        if _is_space(piece):
            self._has_gap = True
            return False
        if self._has_gap:
            return True
        if isinstance(piece, str) and piece in _STOPS + _FULL_STOPS + _CLOSERS:
            return False
        assert self._stop is not None
        if _shown(self._pieces[self._stop]) in _FULL_STOPS:
            return True
        self._stop = None  # as in 3.14 or example.com
        return False

    def _is_abbreviated(self, stop: str) -> bool:
        return stop == "." and _NO_END.search("".join(map(_shown, self._pieces[-_LONGEST:]))) is not None

    def _ended(self) -> str:
        """The rest of the sentence, its citations checked. What follows is another one."""
        sentence = _prose(self._pieces)
        citations = self._checked(sentence)
        if not any(citations.values()):
            citations |= self._added(sentence)
        out = self._written(citations)
        if terms(sentence):
            self._before = sentence
        self._pieces, self._given, self._stop = [], 0, None
        self._has_gap = self._has_citation = False
        return out

    def _written(self, citations: Mapping[int, str]) -> str:
        """The pieces that are not out yet, with `citations` in place; a dropped one takes its space along."""
        out: list[str] = []
        skips_space = False
        for place, piece in enumerate(self._pieces[self._given :], self._given):
            if isinstance(piece, Citation):
                if not citations[place] and self._needs_no_space(place + 1):
                    while out and out[-1] in _SPACES:
                        out.pop()
                    skips_space |= not out and not self._given
                out += filter(None, [citations[place] or ("…" if self._is_within_bracket(place) else "")])
            elif not (skips_space and _is_space(piece)):
                skips_space = False
                out += filter(None, [citations.get(place), _shown(piece)])
        text = "".join(out)
        body = text.rstrip(_SPACES)
        return body + citations.get(len(self._pieces), "") + text[len(body) :]

    def _needs_no_space(self, place: int) -> bool:
        """Whether the piece at `place` may follow a word directly."""
        piece = self._pieces[place] if place < len(self._pieces) else " "
        first = _shown(piece)[:1]
        return isinstance(piece, Citation) or not (first.isalnum() or first in _OPENERS)

    def _is_within_bracket(self, place: int) -> bool:
        """Whether what is around the piece at `place` would become a citation without it."""
        before = "".join(map(_shown, self._pieces[max(place - _LONGEST, 0) : place]))
        return _BRACKET.search(before) is not None

    # Which citations are right

    def _checked(self, sentence: str) -> dict[int, str]:
        """What stands for each citation of the sentence, by its place; "" for one that is dropped."""
        checked_ones: dict[int, str] = {}
        start = 0
        if self._has_citation:
            self._has_words, self._taken_from = bool(terms(sentence)), self._support.taken_from(sentence)
        for place, piece in enumerate(self._pieces):
            if isinstance(piece, Citation):
                clause = _prose(self._pieces[start:place])
                numbers = [number for number in piece.numbers if self._is_right(number, clause, sentence)]
                checked_ones[place] = f"[{', '.join(map(str, numbers))}]" if numbers else ""
                start = place
        return checked_ones

    def _is_right(self, number: int, clause: str, sentence: str) -> bool:
        """Whether source `number` says what stands before its citation, or all the sentence.

        A citation that stands for itself belongs to the sentence before. Where words cannot tell, as with a
        source in another language, it is right unless the sentence clearly is of another source.
        """
        if not self._support.exists(number):
            return False
        verdicts = [self._support.says(number, text) for text in (clause, sentence)]
        if verdicts != [None, None]:
            return True in verdicts
        if not self._has_words:
            return self._support.says(number, self._before) is not False
        return self._taken_from in (None, number)

    def _added(self, sentence: str) -> dict[int, str]:
        """A citation where the sentence is a source's and says so nowhere, by the place it stands before."""
        body = sentence.rstrip().rstrip(_CLOSERS)
        if not body or body[-1] in _QUESTION_OR_INTRODUCTION or self._line_first in _UNCITED_LINES:
            return {}
        number = self._support.taken_from(sentence)
        if number is None:
            return {}
        place = len(self._pieces) if self._stop is None else self._stop
        before = "".join(piece for piece in self._pieces[:place] if isinstance(piece, str)).rstrip()
        return {place: f"[{number}]" if is_unspaced(before[-1:]) else f" [{number}]"}


def _prose(pieces: Sequence[Piece]) -> str:
    """What `pieces` say, without the mark of a list's item: neither citations nor code."""
    return _ITEM.sub("", "".join(piece for piece in pieces if isinstance(piece, str)), count=1)


def _shown(piece: Piece) -> str:
    return piece if isinstance(piece, str) else piece.text


def _is_space(piece: Piece) -> bool:
    return isinstance(piece, str) and piece in _SPACES


def checked(answer: str, sources: Sequence[Source]) -> str:
    """`answer` with citations of `sources` that are right."""
    filtering = CitationFilter(sources)
    return filtering.feed(answer) + filtering.finish()
