"""Words and shapes that tell what a request is after, by kind. Knows nothing of weights.

A kind is not a label: words of machines are in requests of the shell and in questions about it. How much each
kind, and each pair of kinds, speaks for a label is learnt from the examples. The words are in data/cues.toml.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

WORDS = Path(__file__).parents[1] / "data" / "cues.toml"


@dataclass(frozen=True, slots=True)
class Cues:
    """Whole words of letters, and phrases that are found anywhere in lower-cased text between two spaces."""

    words: frozenset[str]
    phrases: tuple[str, ...]


def _loaded() -> dict[str, Cues]:
    table = tomllib.loads(WORDS.read_text(encoding="utf-8"))
    return {
        kind: Cues(
            frozenset(held["words"].split()),
            (*held.get("phrases", ()), *held.get("chinese", "").split()),
        )
        for kind, held in table.items()
    }


CUES = _loaded()

SHAPES: dict[str, re.Pattern[str]] = {
    "path": re.compile(r"[\s'\"(]~?/?[\w.-]+/[\w./*-]*|\s~\s|\s\.{1,2}/"),
    "file name": re.compile(r"[\w*-]\.(?:[a-z][a-z0-9]{0,4}|7z)\b(?!\.?\w*\()"),
    "link": re.compile(r"https?://|www\.|\.(?:com|org|net|io|dev|cn)\b"),
    "year": re.compile(r"\b20[2-9]\d\b"),
    "version": re.compile(r"\b\d+\.\d+"),
    "flag": re.compile(r"\s--?[a-z][\w-]*"),
    "pipe": re.compile(r"\s[|>&]{1,2}\s"),
    "code": re.compile(r"[;{}]|\w\(|==|=>|\bdef\s|\bselect\s.+\sfrom\s|`|\breturn\b|\bimport\s"),
    "sum": re.compile(r"\d\s*[-+*/x×^=]\s*\d|\d+%"),
    "size": re.compile(r"\b\d+\s?(?:[kmgt]b?|个?兆)\b"),
    "number": re.compile(r"\b\d+\b"),
    "quoted": re.compile(r"[“”\"「」]|\s'[^']+'|: \S"),
    "colon": re.compile(r"[:：]\s*\S"),
    "question mark": re.compile(r"[?？]"),
    "chinese": re.compile(r"[㐀-鿿]"),
    "one word": re.compile(r"^ \S+ $"),
    "two words": re.compile(r"^ \S+ \S+ $"),
    "few words": re.compile(r"^ (?:\S+ ){3,5}$"),
    "many words": re.compile(r"^ (?:\S+ ){16,}$"),
    "few signs": re.compile(r"^ [㐀-鿿\W]{1,5} $"),
    "some signs": re.compile(r"^ [㐀-鿿\W]{6,10} $"),
    "many signs": re.compile(r"[㐀-鿿，。？]{24,}"),
    "name": re.compile(r"\b(?:in|of|for|from|to) [a-z]+ \W*$"),
}
