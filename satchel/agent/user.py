"""The person that the agent asks. Knows nothing of terminals: the terminal layer asks, tests answer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from satchel.agent.loop import wait


@dataclass(frozen=True, slots=True)
class Choice:
    """An answer that can be given, by the letter `key`, which stands in `label`."""

    key: str
    label: str


YES, NO = Choice("y", "yes"), Choice("n", "no")


class User(Protocol):
    """Answers questions. Whoever cannot be asked takes the safe answer."""

    def choose(self, question: str, choices: Sequence[Choice], default: Choice) -> Choice:
        """One of `choices`; `default` for an empty answer.

        Raises:
            KeyboardInterrupt: the user wants to be asked nothing more, and nothing to be done.
        """

    def edit(self, text: str) -> str | None:
        """`text` as the user changed it; None if they gave up."""

    def copy(self, text: str) -> bool:
        """Put `text` on the clipboard; whether it could be."""

    def hear(self, seconds: float, cancel: threading.Event) -> str:
        """Wait that long, or until `cancel` is set, or a line is typed, which is returned; else ""."""


def agrees(user: User, question: str) -> bool:
    """Whether `user` says yes; no is what an empty answer and Ctrl-C mean."""
    try:
        return user.choose(question, (YES, NO), NO) == YES
    except KeyboardInterrupt:
        return False


class Nobody:
    """Nobody can be asked, as on a pipe: nothing is agreed to."""

    def choose(self, question: str, choices: Sequence[Choice], default: Choice) -> Choice:
        return next(choice for choice in choices if choice.key == NO.key)

    def edit(self, text: str) -> str | None:
        return None

    def copy(self, text: str) -> bool:
        return False

    def hear(self, seconds: float, cancel: threading.Event) -> str:
        wait(seconds, cancel)
        return ""
