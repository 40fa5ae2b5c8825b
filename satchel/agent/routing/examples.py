"""Requests with the label that is right for each, from a table. Knows nothing of features."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from satchel.agent.routing.intents import Intent
from satchel.errors import DamagedError

BUILDING = Path(__file__).parents[1] / "data" / "intents.tsv"
HELD_OUT = BUILDING.with_name("intents_held_out.tsv")
COLUMNS = ["label", "language", "history", "message", "split"]


@dataclass(frozen=True, slots=True)
class Example:
    """A request; `history` has the requests before it, the oldest first, each with its label."""

    label: Intent
    language: str
    history: tuple[tuple[Intent, str], ...]
    message: str

    @property
    def goes_on(self) -> bool:
        """Whether it asks for more of what the request before it asked for."""
        return bool(self.history) and self.history[-1][0] is self.label


def load_examples(path: Path) -> list[Example]:
    r"""The examples in the file at `path`; `\n` in it stands for a line's end, ` | ` parts a history.

    Raises:
        DamagedError: a line that is not an example.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    if not lines or lines[0].split("\t") != COLUMNS:
        raise DamagedError(f"{path} does not begin with the columns {', '.join(COLUMNS)}")
    return [_example(path, number, line) for number, line in enumerate(lines[1:], 2) if line.strip()]


def _example(path: Path, number: int, line: str) -> Example:
    try:
        label, language, history, message, _ = line.split("\t")
        turns = [turn.split(": ", 1) for turn in history.split(" | ")] if history else []
        asked = tuple((Intent(intent), text.replace("\\n", "\n")) for intent, text in turns)
        return Example(Intent(label), language, asked, message.replace("\\n", "\n"))
    except ValueError as err:
        raise DamagedError(f"{path}, line {number}: {err}") from err
