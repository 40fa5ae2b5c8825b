"""What is asked of a model that turns a message into a search query, and what it answers. Knows no model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from satchel.agent.attached import split_files
from satchel.agent.search.guard import goes_on, keeps_what_matters
from satchel.agent.search.prompts import OPENED
from satchel.agent.search.words import is_unspaced, terms
from satchel.agent.shell.report import RAN, is_own_command
from satchel.cache_store.manifest import Message
from satchel.sanitize import sanitize, sanitize_line

MAX_QUERY_CHARS = 200
EARLIER_TURNS = 2
MAX_EARLIER_CHARS = 160  # of what was asked earlier
MAX_MESSAGE_CHARS = 1000  # that the query is made of
_MAX_ANSWER_CHARS = 2000  # of a model, that are looked at

_SYSTEM = (
    "You write search queries. Each time you get a message, and what was asked earlier. Answer with one "
    "short query, in the language of the message, that finds what it asks for, and nothing else. Words like "
    "“it”, “there” or “and tomorrow?” become what they stand for. If there is a date, the newest is meant: "
    "add the year."
)


@dataclass(frozen=True, slots=True)
class _Example:
    message: str
    query: str
    earlier: str = ""
    day: date = date(2025, 4, 17)


# What was answered earlier is not told: small models copy it.
_SHOWN = (
    _Example("我想知道从上海到东京的机票大概多少钱", "上海到东京 机票 价格"),
    _Example("and tomorrow?", "Turku weather tomorrow", earlier="what's the weather in Turku today?"),
    _Example(
        "hey, could you check who won the women's final at the Australian Open this year?",
        "Australian Open 2025 women's final winner",
    ),
    _Example("导演是谁？", "哪吒2 电影 导演", earlier="《哪吒2》票房多少？"),
    _Example("how old is he", "prime minister of Japan age", earlier="who is the prime minister of Japan?"),
    _Example("那后天呢", "兰州 后天 天气", earlier="兰州明天天气怎么样？"),
    _Example("can you look up what's new in python 3.13?", "Python 3.13 new features"),
    _Example("is there any news about the strike at Deutsche Bahn", "Deutsche Bahn strike news April 2025"),
    _Example("and in Rome", "best pizza in Rome", earlier="can you find the best pizza in Naples?"),
)
_ANSWERS = frozenset(example.query for example in _SHOWN)

_MONTHS = (  # not as the system's language has them
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
# Messages that ask for what is so at the time.
_NEWEST = re.compile(
    r"\b(?:(?:this|last|next) (?:year|month|season|week)|latest|newest|news|recent(?:ly)?|current(?:ly)?|now"
    r"|nowadays|upcoming|so far)\b|今年|去年|明年|本月|这个月|上个月|下个月|最新|最近|新闻|现在|目前"
    r"|当前|近期",
    re.IGNORECASE,
)

_LABEL = re.compile(
    r"^\s*(?:[-*•>]\s+|\d+[.)]\s+)?(?:\**\s*(?:(?:web\s+|google\s+)?(?:search(?:\s+query)?|query)|answer"
    r"|搜索查询|搜索词|搜索|查询)\s*\**\s*[:：])?\**\s*",
    re.IGNORECASE,
)
_ASKED = re.compile(r"\s*(?:date|earlier|message|日期)\s*[:：]", re.IGNORECASE)
_QUOTES = "\"'`“”‘’«»「」『』 \t*"
_REFUSAL = re.compile(
    r"(?:i['’]?m|i am) sorry|sorry|as an ai|i can(?:not|['’]t)|对不起|抱歉|作为", re.IGNORECASE
)
_CHARS_PER_SHOWN = 10  # of a text, spaces and control characters included, for each that is shown
_NUMBERS_IN_A_ROW = re.compile(r"(?<!\S)(\d[\d.]*)(?:\s+\d[\d.]*){2,}$")  # a model that counts
_LEAST_TERMS = 3  # of a message, for its query to have to share one; of a query that is one


def _asked(today: date, earlier: Sequence[str], message: str) -> str:
    """The date stands in it only where it helps: small models put it into each query otherwise."""
    when = [f"Date: {_MONTHS[today.month - 1]} {today.year}"] if _NEWEST.search(message) else []
    return "\n".join([*when, *(f"Earlier: {turn}" for turn in earlier), f"Message: {message}"])


def _examples() -> tuple[Message, ...]:
    messages = [Message(role="system", content=_SYSTEM)]
    for shown in _SHOWN:
        asked = _asked(shown.day, [shown.earlier] if shown.earlier else [], shown.message)
        messages += [
            Message(role="user", content=asked),
            Message(role="assistant", content=shown.query),
        ]
    return tuple(messages)


EXAMPLES: tuple[Message, ...] = _examples()


def rewriting_question(message: str, history: Sequence[Message], today: date) -> str:
    """What a model that has read `EXAMPLES` is asked, to make a query of `message` after `history`."""
    return _asked(today, _earlier(history), _line(message, MAX_MESSAGE_CHARS))


def _earlier(history: Sequence[Message]) -> list[str]:
    """What was asked last, as it is told to the model."""
    requests = [request for said in history if said.role == "user" and (request := _requested(said.content))]
    return [_line(request, MAX_EARLIER_CHARS) for request in requests[-EARLIER_TURNS:]]


def _requested(content: str) -> str:
    """What the user asked for in a message that may hold files, pages or output behind it; "" for nothing."""
    request = split_files(content)[0].partition(f"\n\n{OPENED}")[0]
    request, ran, _ = request.partition(f"\n\n{RAN}")
    return "" if ran and is_own_command(request) else request.strip()


def query_from(answer: str, message: str, history: Sequence[Message], today: date) -> str:
    """The query in a model's `answer`: one line of at most `MAX_QUERY_CHARS`, never empty.

    It is `message` itself, behind what was asked last if it goes on from that, where the answer is none, a
    refusal, one of the examples, of other things, or without what matters of the message.
    """
    asked, earlier = _line(message, MAX_QUERY_CHARS) or "?", _earlier(history)
    whole = _cut(f"{earlier[-1]} {asked}", MAX_QUERY_CHARS) if earlier and goes_on(asked) else asked
    for line in sanitize(answer[:_MAX_ANSWER_CHARS]).splitlines():
        if _ASKED.match(line):
            continue
        query = " ".join(_LABEL.sub("", line, count=1).strip(_QUOTES).split())
        if query:
            query = _cut(_NUMBERS_IN_A_ROW.sub(r"\1", _in_the_script_of(asked, query)), MAX_QUERY_CHARS)
            # What does not fit into a query cannot all be in it.
            is_long = len(message) > MAX_QUERY_CHARS
            kept = is_long or keeps_what_matters(query, asked, earlier, today)
            return query if _can_be_of(query, asked) and kept else whole
    return whole


def _in_the_script_of(asked: str, query: str) -> str:
    """`query` up to where it goes on in a script that nothing was asked in, as those of small models do."""
    if any(map(is_unspaced, asked)):
        return query
    place = next((place for place, char in enumerate(query) if is_unspaced(char)), len(query))
    return query[:place].rstrip() if len(terms(query[:place])) >= _LEAST_TERMS else query


def _can_be_of(query: str, asked: str) -> bool:
    wanted = set(terms(asked))
    if _REFUSAL.match(query) or query in _ANSWERS:
        return False
    return len(wanted) < _LEAST_TERMS or not wanted.isdisjoint(terms(query))


def _line(text: str, most: int) -> str:
    """The beginning of `text` on one line of at most `most` characters."""
    return _cut(sanitize_line(text[: most * _CHARS_PER_SHOWN]), most)


def _cut(line: str, most: int) -> str:
    line = " ".join(line.split())
    if len(line) <= most:
        return line
    words = line[:most].rpartition(" ")[0]
    return words if len(words) > most // 2 else line[:most]
