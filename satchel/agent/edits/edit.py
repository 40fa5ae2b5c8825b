"""What an answer wants changed: an edit of a file, made of hunks. Knows neither syntax nor disk."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """A line of a hunk."""

    KEPT = " "
    REMOVED = "-"
    ADDED = "+"


@dataclass(frozen=True, slots=True)
class Line:
    kind: Kind
    text: str  # without its end


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines to be found in a file, and what is to become of them.

    Attributes:
        line: where they are said to begin, counted from 1; None if nothing is said.
        final_newline: whether the file ends with a newline afterwards; None if as before.
        inserts: it is said to replace nothing, so that `line` is the one before it.
    """

    lines: tuple[Line, ...]
    line: int | None = None
    final_newline: bool | None = None
    inserts: bool = False

    @property
    def old(self) -> list[str]:
        return [line.text for line in self.lines if line.kind is not Kind.ADDED]

    @property
    def new(self) -> list[str]:
        return [line.text for line in self.lines if line.kind is not Kind.REMOVED]


@dataclass(frozen=True, slots=True)
class FileEdit:
    """Changes to one file.

    Attributes:
        path: as the answer names it; "" if it names none.
        hunks: where they go is found in the file as it is before the first of them.
        creates, deletes: the answer says so.
        fault: why this is no edit that can be made, if it is none.
    """

    path: str
    hunks: tuple[Hunk, ...] = ()
    creates: bool = False
    deletes: bool = False
    fault: str = ""


def replacing(old: list[str], new: list[str]) -> Hunk:
    """The hunk that puts `new` in the place of `old`; what both begin and end with stays as it is."""
    start, most = 0, min(len(old), len(new))
    while start < most and old[start] == new[start]:
        start += 1
    end = 0
    while end < most - start and old[-1 - end] == new[-1 - end]:
        end += 1
    parts = [
        (Kind.KEPT, old[:start]),
        (Kind.REMOVED, old[start : len(old) - end]),
        (Kind.ADDED, new[start : len(new) - end]),
        (Kind.KEPT, old[len(old) - end :]),
    ]
    return Hunk(tuple(Line(kind, text) for kind, texts in parts for text in texts))
