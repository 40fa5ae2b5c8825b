"""What a line of markdown is: a heading, an item, a quote, a fence, text. Knows nothing of drawing.

A line can be asked about before it is whole. Then the answer may be that more of it has to come.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

MAX_QUOTES, MAX_DEPTH = 5, 50  # in each other: nobody means more, and there has to be room for words

_MARKER = re.compile(r"([-*+•]|\d{1,3}[.)])( +|$)")
_MAYBE_MARKER = re.compile(r"[-*+•]|\d{1,3}[.)]?")
_TASK = re.compile(r"\[([ xX])\] +")
_MAYBE_TASK = re.compile(r"\[(?:[ xX](?:\] *)?)?")
_RULE = re.compile(r"([-*_])(?: *\1){2,} *")
_MAYBE_RULE = re.compile(r"([-*_])(?: *\1)* *")
_HEADING = re.compile(r"(#{1,6}) +(?=\S)")
_MAYBE_HEADING = re.compile(r"#{1,6} *")
_FENCE = re.compile(r"(`{3,}|~{3,})([^`]*)")
_MAYBE_FENCE = re.compile(r"`+|~+|`{3,}[^`]*|~{3,}.*")

Kind = Literal["blank", "text", "heading", "rule", "fence", "row", "code", "mathematics"]


@dataclass(frozen=True, slots=True)
class Quote:
    """Text behind `>`."""


@dataclass(frozen=True, slots=True)
class Item:
    """An item of a list.

    Attributes:
        marker: as it was written, such as `-` or `12.`
        indent: the spaces before it.
        columns: of the marker and the spaces behind it: what is indented so far belongs to the item.
        is_done: of a task; None if it is none.
    """

    marker: str
    indent: int
    columns: int
    is_done: bool | None = None


Container = Quote | Item


@dataclass(frozen=True, slots=True)
class Line:
    """A line, or the beginning of one.

    Attributes:
        containers: that it stands in, the outermost first.
        kept: how many of these it goes on in; the others begin with it.
        text: what is left of it, without its marks.
        level: of a heading, from 1.
        mark: of a fence, as it opens: what closes it is no shorter.
    """

    kind: Kind
    text: str
    containers: tuple[Container, ...] = ()
    kept: int = 0
    level: int = 0
    mark: str = ""


def read_start(
    line: str, open_: Sequence[Container], is_whole: bool, after_text: bool = False
) -> Line | None:
    """What `line` is, which comes while the containers `open_` are open; None if more has to come to tell.

    Args:
        after_text: the line before was text, so that this one cannot begin a block of indented code.
    """
    rest = _without_tabs(line)
    if not is_whole and not rest.strip(" "):
        return None
    containers, rest = _kept(rest, open_)
    kept = len(containers)
    while len(containers) < MAX_DEPTH:
        stripped = rest.lstrip(" ")
        indent = len(rest) - len(stripped)
        if indent >= 4 and not any(isinstance(each, Item) for each in containers):
            break
        if stripped.startswith(">") and containers.count(Quote()) < MAX_QUOTES:
            if stripped == ">" and not is_whole:
                return None
            containers.append(Quote())
            rest = stripped[1:].removeprefix(" ")
        elif not is_whole and _may_become_another(stripped):
            return None
        elif (found := _MARKER.match(stripped)) and not _RULE.fullmatch(stripped):
            item, rest = _item(found, stripped, indent)
            if not is_whole and _MAYBE_TASK.fullmatch(rest):
                return None
            containers.append(item)
        else:
            break
    stripped = rest.lstrip(" ")
    if not stripped and not is_whole:
        return None
    has_items = any(isinstance(each, Item) for each in containers)
    if len(rest) - len(stripped) >= 4 and not has_items and not after_text:
        return Line("code", rest, tuple(containers), kept) if is_whole else None
    return _block(stripped, tuple(containers), kept, is_whole)


def closes_fence(line: str, mark: str) -> bool:
    """Whether `line` ends the block of code that began with `mark`."""
    line = line.strip().lstrip("> ")
    return len(line) >= len(mark) and not line.strip(mark[0])


def _kept(rest: str, open_: Sequence[Container]) -> tuple[list[Container], str]:
    """Those containers that the line goes on in, and the line without what says so."""
    kept: list[Container] = []
    for container in open_:
        stripped = rest.lstrip(" ")
        indent = len(rest) - len(stripped)
        if isinstance(container, Quote):
            if not stripped.startswith(">"):
                break
            rest = stripped[1:].removeprefix(" ")
        elif stripped:
            # Two spaces are enough, also behind a number: models don't count.
            if indent < container.indent + 2:
                break
            rest = rest[min(indent, container.indent + container.columns) :]
        kept.append(container)
    return kept, rest


def _item(found: re.Match[str], stripped: str, indent: int) -> tuple[Item, str]:
    """The item whose marker was found, and what is behind it."""
    marker, spaces = found.group(1), found.group(2)
    columns = len(marker) + (len(spaces) if 1 <= len(spaces) <= 4 else 1)
    rest = stripped[columns:]
    if task := _TASK.match(rest):
        return Item(marker, indent, columns, task.group(1) != " "), rest[task.end() :]
    return Item(marker, indent, columns), rest


def _may_become_another(stripped: str) -> bool:
    """Whether it is open if this begins an item, a rule, or neither."""
    return bool(_MAYBE_MARKER.fullmatch(stripped) or _MAYBE_RULE.fullmatch(stripped))


def _block(text: str, containers: tuple[Container, ...], kept: int, is_whole: bool) -> Line | None:
    if not text:
        return Line("blank", "", containers, kept)
    if not is_whole and (
        _MAYBE_FENCE.fullmatch(text)
        or _MAYBE_HEADING.fullmatch(text)
        or _may_become_another(text)
        or text in ("\\", "$")
        or text.startswith(("|", "\\[", "$$"))
    ):
        return None
    if found := _FENCE.fullmatch(text):
        return Line("fence", found.group(2).strip(), containers, kept, mark=found.group(1))
    if found := _HEADING.match(text):
        return Line("heading", text[found.end() :], containers, kept, level=len(found.group(1)))
    if _RULE.fullmatch(text):
        return Line("rule", text, containers, kept)
    if text.startswith("|"):
        return Line("row", text, containers, kept)
    closing = {"\\[": "\\]", "$$": "$$"}.get(text[:2])
    if closing and closing not in text[2:]:
        return Line("mathematics", text, containers, kept, mark=closing)
    return Line("text", text, containers, kept)


def _without_tabs(line: str) -> str:
    """`line` with spaces for the tabs at its left."""
    text = line.lstrip(" \t")
    return line[: len(line) - len(text)].expandtabs(4) + text
