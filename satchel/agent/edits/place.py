"""Where a hunk fits in a file's lines. Knows nothing of files or of other hunks."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from satchel.agent.edits.edit import Hunk, Kind
from satchel.sanitize import sanitize_line

_SPACE = " \t\r"  # which models change without meaning to
_SHOWN_CHARS = 60  # of a line, in a fault
_SHOWN_PLACES = 5
_COMPARED_LINES = 50  # of a hunk, to find what is nearest to it
_COMPARED_CHARS = 200


class MisfitError(ValueError):
    """Why a hunk fits nowhere, or not in one place only."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a hunk's old lines begin, counted from 0, and how its indentation differs from the file's.

    Attributes:
        deeper: whitespace that the file's lines have before the hunk's.
        shallower: whitespace that the hunk's lines have before the file's.
    """

    start: int
    deeper: str = ""
    shallower: str = ""

    def removed(self, hunk: Hunk) -> set[int]:
        kinds = [line.kind for line in hunk.lines if line.kind is not Kind.ADDED]
        return {self.start + index for index, kind in enumerate(kinds) if kind is Kind.REMOVED}

    def inserted(self, hunk: Hunk) -> dict[int, list[str]]:
        """By the line that they come before, the lines to insert, indented as the file is."""
        found: dict[int, list[str]] = {}
        at = self.start
        for line in hunk.lines:
            if line.kind is Kind.ADDED:
                found.setdefault(at, []).append(self._indented(line.text))
            else:
                at += 1
        return found

    def _indented(self, text: str) -> str:
        return (self.deeper + text if text.strip() else text).removeprefix(self.shallower)


def find_place(lines: Sequence[str], hunk: Hunk) -> Place:
    """Where `hunk` fits in `lines`.

    At the line that it names, if it is exactly there; else at the only place where it is exactly; else at the
    only place where it is but for whitespace at the ends of lines; else likewise for indentation, if that
    differs by the same for all lines.

    Raises:
        MisfitError: there is no such place, or more than one.
    """
    old = hunk.old
    if not old:
        return _insertion(lines, hunk)
    places = [Place(start) for start in _matches(lines, old)]
    stated = [place for place in places if hunk.line is not None and place.start == hunk.line - 1]
    if stated:
        return stated[0]
    is_blank = not any(line.strip(_SPACE) for line in old)
    for looser in (_but_for_line_ends, _but_for_indentation):
        if places or is_blank:
            break
        places = list(looser(lines, old))
    if len(places) == 1:
        return places[0]
    if places:
        shown = ", ".join(str(place.start + 1) for place in places[:_SHOWN_PLACES])
        more = ", …" if len(places) > _SHOWN_PLACES else ""
        raise MisfitError(f"its lines are in {len(places)} places: at lines {shown}{more}")
    raise MisfitError(_why(lines, hunk))


def excerpt(line: str) -> str:
    """A line of somebody's, short and safe to show."""
    line = sanitize_line(line)
    return f"`{line[: _SHOWN_CHARS - 1]}…`" if len(line) > _SHOWN_CHARS else f"`{line}`"


def _insertion(lines: Sequence[str], hunk: Hunk) -> Place:
    """Where a hunk goes that has no line of the file."""
    if not lines:
        return Place(0)
    if hunk.inserts and hunk.line and hunk.line <= len(lines):
        return Place(hunk.line)
    raise MisfitError("it has no line of the file, which is not empty: nothing says where it goes")


def _matches(lines: Sequence[str], old: Sequence[str]) -> Iterator[int]:
    first, count = old[0], len(old)
    whole = list(old)
    for start in range(len(lines) - count + 1):
        if lines[start] == first and lines[start : start + count] == whole:
            yield start


def _but_for_line_ends(lines: Sequence[str], old: Sequence[str]) -> Iterator[Place]:
    return map(
        Place, _matches([line.rstrip(_SPACE) for line in lines], [line.rstrip(_SPACE) for line in old])
    )


def _but_for_indentation(lines: Sequence[str], old: Sequence[str]) -> Iterator[Place]:
    for start in _matches([line.strip(_SPACE) for line in lines], [line.strip(_SPACE) for line in old]):
        pairs = [
            (_indentation(ours), _indentation(line))
            for ours, line in zip(lines[start : start + len(old)], old, strict=True)
            if line.strip(_SPACE)
        ]
        ours, theirs = pairs[0]
        deeper = ours.removesuffix(theirs) if ours.endswith(theirs) else ""
        shallower = theirs.removesuffix(ours) if theirs.endswith(ours) else ""
        if all(deeper + theirs == shallower + ours for ours, theirs in pairs):
            yield Place(start, deeper, shallower)


def _indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip(_SPACE))]


def _why(lines: Sequence[str], hunk: Hunk) -> str:
    added = [line.text for line in hunk.lines if line.kind is Kind.ADDED and line.text.strip()]
    if added and next(_matches(lines, hunk.new), None) is not None:
        return "its lines are not there, and what it makes of them is: it seems to be done already"
    return f"its lines are not there; {_nearest([line.strip() for line in lines], hunk.old)}"


def _nearest(lines: Sequence[str], old: Sequence[str]) -> str:
    """What is most like `old`; `lines` are without whitespace around them."""
    wanted = [line.strip() for line in old[:_COMPARED_LINES]]
    best, most = 0, 0
    for start in range(len(lines)):
        window = lines[start : start + len(wanted)]
        same = sum(1 for ours, line in zip(window, wanted, strict=False) if line and ours == line)
        if same > most:
            best, most = start, same
    if most:
        window = lines[best : best + len(wanted)]
        differing = [index for index, line in enumerate(wanted) if window[index : index + 1] != [line]]
        if not differing:
            return f"nearest is line {best + 1}, where only the indentation differs, in more than one way"
        at = differing[0]
        there = f"{excerpt(window[at])} stands" if at < len(window) else "the file ends"
        return f"nearest is line {best + at + 1}, where {there} in place of {excerpt(wanted[at])}"
    first = next((line for line in wanted if line), "")
    short = [line for line in dict.fromkeys(lines) if line and len(line) <= _COMPARED_CHARS]
    close = difflib.get_close_matches(first[:_COMPARED_CHARS], short, 1)
    if close:
        return f"nearest is line {lines.index(close[0]) + 1}, {excerpt(close[0])}"
    return "nothing in the file is like them"
