"""What was said last in a talk that goes on, in two lines. Knows nothing of where they are shown."""

from __future__ import annotations

from collections.abc import Sequence

from wcwidth import clip, width

from satchel.agent.context import split_files
from satchel.cache_store.manifest import Message
from satchel.terminal.sanitize import sanitize_line

CHARS_A_COLUMN = 4  # that are looked at, of whatever length the text is


def recap(messages: Sequence[Message], columns: int) -> list[str]:
    """The last question and the beginning of its answer, each in less than so many columns."""
    said = [message for message in messages if message.role != "system"]
    asked = next((i for i in range(len(said) - 1, -1, -1) if said[i].role == "user"), None)
    if asked is None:
        return []
    question = split_files(said[asked].content)[0]
    return [_cut(f"> {question}", columns), *(_cut(each.content, columns) for each in said[asked + 1 :][:1])]


def _cut(text: str, columns: int) -> str:
    text = text.lstrip()
    seen = text[: CHARS_A_COLUMN * columns]
    line = sanitize_line(" ".join(seen.split()))
    if seen == text and width(line) < columns:
        return line
    return f"{clip(line, 0, max(columns - 2, 0)).rstrip()}…"
