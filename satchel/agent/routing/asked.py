"""The requests in what was said so far. Knows nothing of how they are judged.

A search and a command leave more in a talk than what was asked for: pages and output are in the same message.
"""

from __future__ import annotations

from collections.abc import Sequence

from satchel.agent.routing.intents import Intent
from satchel.agent.search.prompts import OPENED
from satchel.agent.shell.report import RAN
from satchel.cache_store.manifest import Message

LOOKED_BACK = 3  # requests


def requests_in(history: Sequence[Message]) -> list[tuple[str, Intent | None]]:
    """The last requests of the user, the oldest first; an intent for those that carry sources or output."""
    spoken = [message.content for message in history if message.role == "user"]
    return [_request(content) for content in spoken[-LOOKED_BACK:]]


def _request(content: str) -> tuple[str, Intent | None]:
    for mark, intent in ((OPENED, Intent.SEARCH), (RAN, Intent.SHELL)):
        request, found, _ = content.partition(f"\n\n{mark}")
        if found:
            return request, intent
    return content, None
