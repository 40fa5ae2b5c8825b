"""How sources, commands and changes are worded, as lines with a style each. Knows nothing of streams."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from satchel.terminal.sanitize import sanitize_line
from satchel.terminal.visible import visible

if TYPE_CHECKING:
    from satchel.agent.router import Decision
    from satchel.agent.search.sources import Source
    from satchel.agent.shell.judgement import Judgement

Line = tuple[str, str]  # the text, and a style as rich names it

DIM, ALARM = "dim", "bold red"
_OF_DIFFS = {"+++": "bold", "---": "bold", "@@": "cyan", "+": "green", "-": "red"}
_CITATION = re.compile(r"\[(\d+)\]")


def routed_line(decision: Decision, first: bool) -> str:
    """What a message is taken for, and why; "" for a message to the model.

    Args:
        first: whether the user is told for the first time, and so how to turn it off.
    """
    if decision.intent == "chat":
        return ""
    taken = "a search" if decision.intent == "search" else "a shell request"
    return f"taken for {taken}, {decision.why}" + ("; /raw turns this off" if first else "")


def source_lines(sources: Sequence[Source], answer: str) -> Iterator[Line]:
    """A line for each source; those that `answer` cites have a star."""
    cited = cited_numbers(answer)
    some = any(source.number in cited for source in sources)
    if sources:
        yield ("sources, * cited:" if some else "sources:"), DIM
    for source in sources:
        mark = "* " if source.number in cited else "  " if some else ""
        yield mark + source_text(source), "" if source.number in cited else DIM


def source_text(source: Source) -> str:
    return sanitize_line(f"[{source.number}] {source.title} — {source.url}")


def cited_numbers(answer: str) -> set[int]:
    return {int(number) for number in _CITATION.findall(answer)}


def command_lines(command: str) -> Iterator[Line]:
    """All of `command` as it will run."""
    for number, line in enumerate(visible(command).split("\n")):
        yield ("  " if number else "$ ") + line, "bold"


def judgement_lines(judgement: Judgement) -> Iterator[Line]:
    """What a command touches."""
    style = ALARM if judgement.destructive else ""
    touches = visible(judgement.summary())
    if judgement.destructive and "destructive" not in touches:
        touches = f"destructive · {touches}"
    yield f"touches: {touches}", style
    for reason in judgement.reasons:
        if visible(reason) in touches:
            continue  # said already
        yield f"  {visible(reason)}", style or DIM


def diff_lines(diff: str) -> Iterator[Line]:
    for line in visible(diff).rstrip("\n").split("\n"):
        yield line, next((style for start, style in _OF_DIFFS.items() if line.startswith(start)), "")
