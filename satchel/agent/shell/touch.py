"""What a command can touch, and the rules that find it out. Knows no command."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from satchel.agent.shell.words import Word


class Touch(StrEnum):
    """A kind of effect; `UNKNOWN` is for what cannot be judged and may therefore be anything."""

    READS = "reads"
    WRITES = "writes"
    NETWORK = "network"
    PRIVILEGE = "privilege"
    DESTRUCTIVE = "destructive"
    UNKNOWN = "cannot judge"


@dataclass(frozen=True, slots=True)
class Finding:
    """An effect of a command; `why` goes on with a sentence that begins with the command: "deletes files"."""

    touches: frozenset[Touch]
    why: str


class Inner(Protocol):
    """Judges what a command runs in its turn."""

    @property
    def moved(self) -> bool:
        """Whether the script changes its directory, so that a command finds what the user does not see."""

    def command(self, words: Sequence[Word]) -> list[Finding]:
        """Of a program with its arguments."""

    def script(self, text: str, shell: str) -> list[Finding]:
        """Of a script for `shell`."""


Rule = Callable[[Sequence[Word], Inner], Iterable[Finding]]  # from a command's arguments


def finding(why: str, *touches: Touch) -> Finding:
    """A finding of these touches."""
    return Finding(frozenset(touches), why)


READS = finding("reads", Touch.READS)


def unknown(why: str) -> Finding:
    """That something cannot be judged."""
    return finding(why, Touch.UNKNOWN)


def does(why: str, *touches: Touch) -> Rule:
    """The rule of a command that does the same whatever its arguments are."""
    return lambda arguments, inner: [finding(why, *touches)]


def reads(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    """The rule of a command that only reads whatever its arguments are."""
    return [READS]
