"""A file's text as lines whose ends are kept, and what hunks make of it. Knows nothing of where hunks fit."""

from __future__ import annotations

from dataclasses import dataclass, field

BOM = "\ufeff"


@dataclass(slots=True)
class Text:
    """Lines without their ends, and those ends.

    Attributes:
        bodies: the lines.
        ends: of each line, "\\n" or "\\r\\n"; the last one's is as the others' even where the file has none.
        has_bom: a byte order mark stands before the first.
        final_newline: the last line has an end.
    """

    bodies: list[str]
    ends: list[str]
    has_bom: bool
    final_newline: bool

    @classmethod
    def of(cls, text: str) -> Text:
        has_bom, text = text.startswith(BOM), text.removeprefix(BOM)
        final_newline = text.endswith("\n") or not text
        lines = text.split("\n")
        if final_newline:
            lines.pop()
        ends = ["\r\n" if line.endswith("\r") else "\n" for line in lines]
        if lines and not final_newline:
            ends[-1] = ends[-2] if len(ends) > 1 else "\n"
        bodies = [line.removesuffix("\r") for line in lines]
        if lines and not final_newline:
            bodies[-1] = lines[-1]
        return cls(bodies, ends, has_bom, final_newline)

    def __str__(self) -> str:
        text = "".join(body + end for body, end in zip(self.bodies, self.ends, strict=True))
        if not self.final_newline and self.ends:
            text = text[: -len(self.ends[-1])]
        return (BOM if self.has_bom else "") + text


class OverlapError(ValueError):
    """Two changes of the same lines."""


@dataclass(slots=True)
class Changes:
    """Lines to remove and to insert, by their places in the text as it is before all of them."""

    _removed: set[int] = field(default_factory=set)
    _inserted: dict[int, list[str]] = field(default_factory=dict)

    def add(self, removed: set[int], inserted: dict[int, list[str]]) -> None:
        """
        Args:
            inserted: the lines to put before the line at each place.

        Raises:
            OverlapError: these lines are changed already; nothing was added.
        """
        if removed & self._removed or inserted.keys() & self._inserted.keys():
            raise OverlapError
        self._removed |= removed
        self._inserted |= inserted

    def apply(self, text: Text) -> None:
        bodies: list[str] = []
        ends: list[str] = []
        for place in range(len(text.bodies) + 1):
            if new := self._inserted.get(place):
                bodies += new
                ends += [text.ends[max(place - 1, 0)] if text.ends else "\n"] * len(new)
            if place < len(text.bodies) and place not in self._removed:
                bodies.append(text.bodies[place])
                ends.append(text.ends[place])
        text.bodies, text.ends = bodies, ends
