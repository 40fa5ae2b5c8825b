"""What a turn yields while it runs. The terminal layer renders these; nothing here knows how.

Texts of models, pages, commands and files are untrusted: whoever shows them sanitizes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the engine brings MLX
    from satchel.agent.router import Decision
    from satchel.agent.search.sources import Source
    from satchel.agent.shell.judgement import Judgement
    from satchel.agent.shell.runner import CommandResult
    from satchel.engine.generate import Stats
    from satchel.session import Session


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """Prompt tokens read so far in this turn, of `total`."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Working:
    """What the model does now that has nothing to show yet, in a few words; until the next event."""

    text: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the model's answer, as the model wrote it."""

    text: str


@dataclass(frozen=True, slots=True)
class Notice:
    """One line for the user about how the turn runs."""

    text: str


@dataclass(frozen=True, slots=True)
class Output:
    """What the user asked to see: lines of text.

    Attributes:
        fit: the same for a window of so many columns, where that can be laid out better than by wrapping it.
    """

    text: str
    fit: Callable[[int], str] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Diff:
    """A unified diff that the user is to agree to, or that was made."""

    text: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A part of the turn that could not be done, in one line; the talk goes on."""

    text: str


@dataclass(frozen=True, slots=True)
class TurnDone:
    """An answer is over; `stop_reason` is "stop", "length" or "cancelled"."""

    stop_reason: str
    stats: Stats


@dataclass(frozen=True, slots=True)
class Routed:
    """What the message is taken for."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class Searching:
    """The query that is sent to the search provider called `provider`."""

    query: str
    provider: str


@dataclass(frozen=True, slots=True)
class SourcesFound:
    """What the answer that follows may cite, numbered from 1."""

    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class CommandProposed:
    """A shell command, to be shown whole, and what it touches. Nothing has run yet."""

    command: str
    judgement: Judgement


@dataclass(frozen=True, slots=True)
class CommandStarted:
    """The user has agreed to `command`, and it runs."""

    command: str


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """A piece of a running command's output, without control sequences."""

    text: str


@dataclass(frozen=True, slots=True)
class CommandEnded:
    """The command is over, by itself or not."""

    result: CommandResult


@dataclass(frozen=True, slots=True)
class Switched:
    """The talk goes on in another session, which the desk has already."""

    session: Session


@dataclass(frozen=True, slots=True)
class Quit:
    """The user wants to leave."""


Event = (
    PrefillProgress
    | Working
    | TextDelta
    | Notice
    | Output
    | Diff
    | Failed
    | TurnDone
    | Routed
    | Searching
    | SourcesFound
    | CommandProposed
    | CommandStarted
    | CommandOutput
    | CommandEnded
    | Switched
    | Quit
)
