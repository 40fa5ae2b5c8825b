"""Paths with wildcards, as shells write them: `*`, `?`, `[a-z]`, `**` for any directories. Knows no disk."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence

_ANY_DIRS = "**"


def has_wildcards(path: str) -> bool:
    return any(char in path for char in "*?[")


class Wildcards:
    """A pattern of path parts. As in a shell, names that begin with a dot have to be named with it."""

    def __init__(self, parts: Sequence[str]) -> None:
        # One `**` after the other says no more than the first, and would cost as much again.
        parts = [part for i, part in enumerate(parts) if not (i and part == parts[i - 1] == _ANY_DIRS)]
        self._parts = [None if part == _ANY_DIRS else part for part in parts]
        self._names = [re.compile(fnmatch.translate(part)) for part in parts]

    def match(self, parts: Sequence[str]) -> bool:
        """Whether it names the file at `parts`."""
        return len(self._parts) in self._after(parts)

    def may_hold(self, parts: Sequence[str]) -> bool:
        """Whether what it names could be in the directory at `parts`."""
        return any(place < len(self._parts) for place in self._after(parts))

    def _after(self, parts: Sequence[str]) -> set[int]:
        """Up to where the pattern may have been used up by `parts`."""
        places = self._opened({0})
        for name in parts:
            places = self._opened({after for place in places for after in self._step(place, name)})
        return places

    def _opened(self, places: set[int]) -> set[int]:
        """`places`, and those behind a `**` there, which may stand for no directory."""
        opened = set()
        for place in places:
            opened.add(place)
            while place < len(self._parts) and self._parts[place] is None:
                place += 1
                opened.add(place)
        return opened

    def _step(self, place: int, name: str) -> list[int]:
        if place == len(self._parts):
            return []
        part = self._parts[place]
        if part is None:
            return [] if name.startswith(".") else [place]
        hidden = name.startswith(".") and not part.startswith(".")
        return [place + 1] if self._names[place].match(name) and not hidden else []
