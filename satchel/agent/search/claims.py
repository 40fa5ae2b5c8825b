"""What a sentence denies, and of what its numbers are. Knows nothing of sources or citations."""

from __future__ import annotations

import re
import unicodedata

from satchel.agent.search.words import is_unspaced, terms

_SCOPE_WORDS, _SCOPE_PAIRS = 2, 3  # terms behind a negation that it is taken to deny
_NO_NEGATION = re.compile(
    r"\bnot only\b|\bno(?:\.|\b)\s*\d+|\bwhether or not\b"
    r"|不(?:同|仅|但|过|少|断|久|锈|论|管|得不)|无(?:线|锡|论|数|人机|疑)|未(?:来|知|婚)|别(?:墅|人|名|称|的)"
    r"|(?<=[特区分级类性个差识告辨派])别|没(?:收|落)"
)
_NEGATION = re.compile(
    r"\b(?:not|never|no|none|nor|neither|without|cannot)\b|n['’]t\b|没有?|不|未|无|别", re.IGNORECASE
)
_MAX_CLAUSE_CHARS = 100
_CLAUSE_END = re.compile(r"[,;:.!?()，；：。！？（）—]|\b(?:but|because|although|since)\b|但|而是")

_UNITS = """
    hundred: hundred, hundreds
    thousand: thousand, thousands, k, 千
    10^4: 万, 萬
    million: million, millions, mn, mio, m, 百万, 百萬
    10^7: 千万, 千萬
    10^8: 亿, 億
    billion: billion, billions, bn, b, 十亿, 十億
    trillion: trillion, trillions, tn, 万亿, 萬億, 兆
    %: %, percent, pct, per cent, percentage, 个百分点
    mm: mm, millimetre, millimetres, millimeter, millimeters, 毫米
    cm: cm, centimetre, centimetres, centimeter, centimeters, 厘米, 公分
    metre: m, metre, metres, meter, meters, 米
    km: km, kilometre, kilometres, kilometer, kilometers, 公里, 千米
    inch: inch, inches, 英寸
    foot: ft, foot, feet, 英尺
    mile: mi, mile, miles, 英里
    km/h: km/h, kph, kmh
    mph: mph
    gram: g, gram, grams, 克
    kg: kg, kilo, kilos, kilogram, kilograms, 公斤, 千克
    tonne: t, ton, tons, tonne, tonnes, 吨
    pound: lb, lbs, pound, pounds, 磅, 英镑
    °C: °c, celsius, degrees celsius, degrees c, 摄氏度
    °F: °f, fahrenheit, degrees fahrenheit, degrees f, 华氏度
    second: s, sec, second, seconds, 秒
    minute: min, minute, minutes, 分钟
    hour: h, hour, hours, 小时
    day: day, days, 天
    week: week, weeks, 周, 星期
    month: month, months, 个月
    year: year, years, 年
    euro: euro, euros, €, 欧元
    dollar: dollar, dollars, 美元
"""
_MEANINGS: dict[str, set[str]] = {}  # a few words have two
for _line in _UNITS.strip().splitlines():
    _unit, _, _words = _line.strip().partition(": ")
    for _word in _words.split(", "):
        _MEANINGS.setdefault(_word, set()).add(_unit)
_UNIT = "|".join(
    re.escape(word) + (r"(?![a-z])" if word[-1].isascii() and word[-1].isalpha() else "")
    for word in sorted(_MEANINGS, key=len, reverse=True)
)
_MEASURE = re.compile(rf"(\d+(?:[.,]\d+)*)(?:[\s-]{{0,2}}({_UNIT}))?")

_SPELLED = {
    word: str(number)
    for spelling in ("one two three four five six seven eight nine ten eleven twelve", "一二三四五六七八九十")
    for number, word in enumerate(spelling.split() if " " in spelling else spelling, 1)
} | {"两": "2"}
_SPELLED_WORD = re.compile("|".join(rf"\b{word}\b" if word.isascii() else word for word in _SPELLED))


def spelled_numbers(text: str) -> set[str]:
    """The small numbers that `text` spells out, in digits."""
    return {_SPELLED[word] for word in _SPELLED_WORD.findall(text.casefold())}


def denied(text: str) -> frozenset[str]:
    """The terms that `text` speaks of right behind a negation, and in the same clause."""
    found: list[str] = []
    plain = _NO_NEGATION.sub(" ", text)
    for match in _NEGATION.finditer(plain):
        clause = _CLAUSE_END.split(plain[match.end() : match.end() + _MAX_CLAUSE_CHARS], maxsplit=1)[0]
        behind = terms(clause)
        found += behind[: _SCOPE_PAIRS if behind and is_unspaced(behind[0]) else _SCOPE_WORDS]
    return frozenset(found)


def denies(text: str) -> bool:
    return _NEGATION.search(_NO_NEGATION.sub(" ", text)) is not None


def measures(text: str) -> dict[str, set[str]]:
    """What each number of `text` counts, as far as that is a unit that is known; "" where it is none.

    The numbers are as `words.terms` gives them; a word that may be two units gives both.
    """
    plain = unicodedata.normalize("NFKC", text).casefold()
    plain = _SPELLED_WORD.sub(lambda word: _SPELLED[word[0]], plain)
    found: dict[str, set[str]] = {}
    for match in _MEASURE.finditer(plain):
        found.setdefault(terms(match[1])[0], set()).update(_MEANINGS.get(match[2] or "", {""}))
    return found
