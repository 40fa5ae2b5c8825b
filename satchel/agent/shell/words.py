"""The words and simple commands that a shell script is made of. Knows nothing of what commands do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")


def names(listed: str) -> frozenset[str]:
    """The names of a list with blanks between."""
    return frozenset(listed.split())


@dataclass(frozen=True, slots=True)
class Word:
    """One word. `value` is what the command gets, or None where only the running shell knows it.

    Then `prefix` is what it certainly begins with, and `splits` says that it may become several words or
    none. Of `a*` and `a{b,c}` all begin with the prefix; `loose` says that they need not, as with `a$x`.
    """

    source: str
    value: str | None
    prefix: str = ""
    splits: bool = False
    loose: bool = False

    @property
    def may_be_option(self) -> bool:
        """Whether a command could take it for an option, or for something else that begins as options do."""
        if self.value is not None:
            return self.value.startswith("-") and self.value != "-"
        return self.loose or not self.prefix or self.prefix.startswith("-")

    def may_begin_with(self, path: str) -> bool:
        """Whether it could turn out to begin with `path`, which is one from the root."""
        if self.value is not None:
            return self.value.startswith(path)
        if not self.prefix and self.splits and not self.loose and not re.search(r"[$`{<]", self.source):
            return False  # a pattern alone, which only matches names of the directory
        return self.loose or path.startswith(self.prefix) or self.prefix.startswith(path)


@dataclass(frozen=True, slots=True)
class Redirect:
    """`operator` as written, without the descriptor; of a here document or string the target is left out."""

    operator: str
    target: Word | None


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command: `A=1 name argument… >file`. Any of its three parts may be empty, not all of them.

    `line` counts from 1. `source` is the text from its first word to its last.
    """

    line: int
    source: str
    assignments: tuple[Word, ...] = ()
    words: tuple[Word, ...] = ()
    redirects: tuple[Redirect, ...] = ()


def literal(value: str) -> Word:
    """The word that is `value`, whatever the shell."""
    return Word(value, value, value)


UNKNOWN_WORDS = Word(
    "…", None, "", True, True
)  # what only the running command knows, as the words xargs adds


def text_of(words: Sequence[Word]) -> str:
    """The words as they were written, for reasons."""
    return " ".join(word.source for word in words)


def assigned_name(word: Word) -> str:
    """The variable that the assignment `word` sets, empty if it is none."""
    found = ASSIGNMENT.match(word.source)
    return found[1] if found else ""


def assigned_value(word: Word) -> str | None:
    """What it is set to, None where that is not known."""
    found = ASSIGNMENT.match(word.source)
    return None if not found or word.value is None else word.value[found.end() :]
