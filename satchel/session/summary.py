"""Where a transcript is read from: a summary in it stands for all that was said before.

A summary is a system message that is not the first and begins with `HEADING`. It is one entry of the
transcript like any other, so what was said before it stays stored, is exported, and can be gone back to.
Knows nothing of tokens or models.
"""

from __future__ import annotations

from collections.abc import Sequence

from satchel.cache_store.manifest import Message

HEADING = "Summary of the talk so far:\n\n"
QUOTED_CHARS = 1200  # of each message that a summary repeats word for word

REQUEST = """\
Summarise our talk so far, so that it can go on from the summary alone. Keep names, numbers, file names, \
decisions, and what is still open. Write short sentences, and nothing else."""


def is_summary(message: Message) -> bool:
    """Whether `message`, which is not the first of its transcript, is one."""
    return message.role == "system" and message.content.startswith(HEADING)


def summary_message(summary: str, messages: Sequence[Message], end: int) -> Message:
    """What is put after `messages`: `summary`, which is of the first `end` of them, and what was said last.

    That is the last exchange, and all that the summary does not know of.
    """
    said = [message for message in messages if message.role != "system"]
    unknown = [message for message in messages[end:] if message.role != "system"]
    last = said[-max(2, len(unknown)) :]
    quoted = "\n\n".join(f"{each.role.capitalize()}: {_shortened(each.content)}" for each in last)
    return Message(role="system", content=f"{HEADING}{summary}\n\nSaid last:\n\n{quoted}")


def _shortened(text: str) -> str:
    return text if len(text) <= QUOTED_CHARS else f"{text[:QUOTED_CHARS].rstrip()} …"


def as_read(messages: Sequence[Message]) -> list[Message]:
    """What the model reads of a transcript: its system prompt, the last summary with it, and what follows."""
    start = next((i for i in range(len(messages) - 1, 0, -1) if is_summary(messages[i])), 0)
    if not start:
        return list(messages)
    system = [each.content for each in messages[:1] if each.role == "system"]
    together = "\n\n".join([*system, messages[start].content])
    return [Message(role="system", content=together), *messages[start + 1 :]]
