"""What a message can be after, and what was decided about one. Knows nothing of how that is found out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MIN_CONFIDENCE = 0.5  # below it a decision is unsure, and the message is taken for one to the model


class Intent(StrEnum):
    SEARCH = "search"
    SHELL = "shell"
    CHAT = "chat"


@dataclass(frozen=True, slots=True)
class Decision:
    """What a message is taken for.

    Attributes:
        intent: CHAT where the decision is unsure.
        confidence: the probability of the likeliest intent, from 1/3 to 1.
        why: for the user, behind what it is taken for.
        likeliest: the likeliest intent; another one than `intent` only where that is unsure.
        runner_up: the one after it.
    """

    intent: Intent
    confidence: float
    why: str
    likeliest: Intent
    runner_up: Intent

    @property
    def unsure(self) -> bool:
        return self.confidence < MIN_CONFIDENCE
