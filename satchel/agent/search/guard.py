"""Whether a search query keeps what matters of a request: its names, numbers and quoted words.

Small models swap a city for its country, and make up years. Knows no model, and nothing of how queries are
written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import date

from satchel.agent.search.words import is_number, is_unspaced, terms

_QUOTED = re.compile(
    r"\"([^\"\n]+)\"|“([^”\n]+)”|«([^»\n]+)»|「([^」\n]+)」|『([^』\n]+)』|《([^》\n]+)》|(?<!\w)['‘]([^'’\n]+)['’](?!\w)"
)
_WORD = re.compile(r"[^\W\d_][\w'’.-]*")
_SENTENCE_START = re.compile(r"(?:^|[.!?:;]\s)[\s\"'“‘(]*$")
_LOWER_CASE_PLACE = re.compile(r"\b(?:in|near)\s+([a-z]+)\b")
# What begins a request in English, and is no name though it has a capital letter.
_OPENERS = re.compile(
    "ask|best|check|find|get|give|google|hello|hey|hi|is|latest|let|list|look|need|newest|news|ok|okay|please"
    "|search|show|sorry|tell|thanks|want"
)
# What a request in Chinese has beside what it is about.
_FILLERS = re.compile(
    "我想知道|我想问|我想|我要|我们|请问|请|帮我|麻烦|你能|能不能|可以|告诉|查一下|查一查|查查|查询|查|搜索|搜一下|搜"
    "|一下|看看|找|大概|多少钱|多少|怎么样|怎么办|怎么|怎样|如何|什么时候|什么|哪一个|哪个|哪些|哪里|哪儿|哪|几点|几号|几"
    "|为什么|谁|有没有|是不是|目前|现在|当前|最新|最近|今天|明天|后天|昨天|今年|去年|明年|本月|天气|预报|新闻|消息|价格"
    "|从|到|去|会|有|还|那|它|个|的|了|是|在|和|与|及|吗|呢|吧|啊|这"
)
_HAN_WORD = re.compile(r"[㐀-鿿豈-﫿]{2,}")
_LAST_YEAR, _NEXT_YEAR = re.compile(r"\blast\b|去年"), re.compile(r"\bnext\b|明年")
_GOES_ON = re.compile(
    r"^\s*(?:and|or|but|then|so|also|what about|how about)\b|^\s*(?:那|再|还有|然后)", re.IGNORECASE
)
_PRONOUN = re.compile(
    r"\b(?:it|its|they|them|their|he|him|his|she|her|this|that|these|those|same)\b|\bthere\W*$|[他她它这]",
    re.IGNORECASE,
)


def keeps_what_matters(query: str, request: str, earlier: Sequence[str], today: date) -> bool:
    """Whether all names, numbers and quoted words of `request` are in `query`, and no number is made up.

    Of a request that goes on from the last of `earlier` and names nothing, one of the names there has to be
    in it.

    Args:
        earlier: what was asked before, the oldest first.
    """
    said = set(terms(query))
    if not all(said.issuperset(words) for words in _needed(request)) or not _keeps_han(query, request):
        return False
    known = {term for text in (request, *earlier) for term in terms(text)} | _dates(request, today)
    if any(is_number(term) and term not in known for term in said):
        return False
    return not goes_on(request) or _names_something(request) or _is_about(query, earlier[-1:])


def goes_on(request: str) -> bool:
    """Whether `request` cannot be understood without what was asked before."""
    return bool(_GOES_ON.search(request) or (_PRONOUN.search(request) and not _names_something(request)))


def _names_something(request: str) -> bool:
    return any(_needed(request)) or bool(_han_words(request))


def _is_about(query: str, earlier: Sequence[str]) -> bool:
    """Whether a name in `earlier` is in `query`, if there is one."""
    said = set(terms(query))
    found = [said.issuperset(words) for text in earlier for words in _needed(text) if words]
    found += [_is_in(query, word) for text in earlier for word in _han_words(text)]
    return not found or any(found)


def _needed(request: str) -> Iterator[list[str]]:
    """The terms of each name, number and quoted text in `request`."""
    yield from ([term] for term in terms(request) if is_number(term))
    yield from (terms("".join(filter(None, quoted.groups()))) for quoted in _QUOTED.finditer(request))
    yield from (terms(place[1]) for place in _LOWER_CASE_PLACE.finditer(request))
    for word in _WORD.finditer(request):
        name = word[0].rstrip(".-'’")
        starts = _SENTENCE_START.search(request[: word.start()]) is not None
        if any(map(is_unspaced, name)) or re.match(r"[Ii]['’]", name):
            continue
        if not name.isascii() or (name != name.lower() and not (starts and _opens(name))):
            yield [term for term in terms(name) if not is_number(term)]


def _opens(word: str) -> bool:
    plain = re.split("['’]", word.lower())[0]
    return not terms(plain) or _OPENERS.fullmatch(plain) is not None


def _han_words(text: str) -> list[str]:
    return _HAN_WORD.findall(_FILLERS.sub(" ", text))


def _keeps_han(query: str, request: str) -> bool:
    """Whether half of the characters of each Chinese word that says something are in `query`."""
    return all(_is_in(query, word) for word in _han_words(request))


def _is_in(query: str, han_word: str) -> bool:
    return 2 * sum(char in query for char in han_word) >= len(han_word)


def _dates(request: str, today: date) -> set[str]:
    """The numbers of today, and of the years that `request` counts from it."""
    years = {today.year}
    years |= {today.year - 1} if _LAST_YEAR.search(request) else set()
    years |= {today.year + 1} if _NEXT_YEAR.search(request) else set()
    return {str(number) for number in (*years, today.month, today.day)}
