"""Texts as the terms by which they are compared. Knows nothing of what is compared, or why."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

# Scripts that put no spaces between words: Han, kana, Thai, Lao, Myanmar, Khmer. Hangul does, but not between
# a word and what is bound to it.
_UNSPACED = (
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
    "\u3041-\u30ff\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\uac00-\ud7a3"
)
_TOKEN = re.compile(
    rf"(?P<run>[{_UNSPACED}]+)"
    rf"|(?P<number>\d+(?:[.,]\d+)*)"
    rf"|(?P<word>(?:(?![{_UNSPACED}])[^\W\d_])+(?:['’](?:(?![{_UNSPACED}])[^\W\d_])+)*)"
)
_IS_UNSPACED = re.compile(f"[{_UNSPACED}]")
_THOUSANDS = re.compile(r",(?=\d{3}(?:\D|$))")
# Characters that mostly stand for grammar; what they separate is compared.
_PARTICLES = re.compile("[的了是在和与及吗呢吧啊这那也就都而被把]")
_GRAMMAR = """
    a about above after again all also am an and any are as at be because been before being below
    between both but by can could did do does doing down during each few for from further had has have
    having he her here hers him his how i if in into is it its just me more most my no nor not of off on
    once only or other our out over own same she should so some such than that the their them then there
    these they this those through to too under until up very was we were what when where which while who
    whom why will with would yes you your according however source sources says said
"""
_STOP_WORDS = frozenset(_GRAMMAR.split())


def terms(text: str) -> list[str]:
    """What `text` speaks of, in order: words without their endings, numbers, and pairs of Han characters."""
    found: list[str] = []
    for match in _TOKEN.finditer(unicodedata.normalize("NFKC", text).casefold()):
        if run := match["run"]:
            for part in _PARTICLES.split(run):
                found += [part[i : i + 2] for i in range(max(len(part) - 1, min(len(part), 1)))]
        elif number := match["number"]:
            found.append(_plain(number))
        elif (word := match["word"]) not in _STOP_WORDS:
            found.append(_stem(word))
    return found


def is_number(term: str) -> bool:
    return term[0].isdigit()


def is_unspaced(term: str) -> bool:
    """Whether `term` is of a script that puts no spaces between words."""
    return _IS_UNSPACED.match(term) is not None


def weight(text: str) -> float:
    """About how many tokens `text` is, without asking a tokenizer."""
    unspaced = len(_IS_UNSPACED.findall(text))
    return unspaced + (len(text) - unspaced) / 4


def _plain(number: str) -> str:
    """Without separators and zeros that do not change its value: 1,200 and 1200, 05 and 5, 2.50 and 2.5."""
    number = _THOUSANDS.sub("", number)
    if "." in number:
        number = number.rstrip("0").rstrip(".")
    return number.lstrip("0") or "0"


@lru_cache(maxsize=1 << 14)
def _stem(word: str) -> str:
    """Without the ending of an English plural, possessive, past tense or gerund, roughly."""
    word = re.sub(r"['’]s?$", "", word)
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    for ending, least in (("ing", 6), ("ed", 5), ("es", 5), ("s", 4)):
        if len(word) >= least and word.endswith(ending) and not word.endswith(("ss", "us", "is")):
            word = word[: -len(ending)]
            break
    return word[:-1] if len(word) > 4 and word.endswith("e") else word
