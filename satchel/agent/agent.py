"""One turn of the talk: what was typed is a command, a search, a shell request, or a message.

Yields events. Knows nothing of how they are shown.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from satchel.agent.answers import (
    NOT_SENT,
    answer,
    answer_at,
    aside_turn,
    compact_turn,
    reading,
    retry_turn,
)
from satchel.agent.commands import is_command, run_command
from satchel.agent.desk import Desk
from satchel.agent.events import Event, Notice, Routed
from satchel.agent.search_turn import search_turn
from satchel.agent.shell_turn import command_turn, shell_turn
from satchel.agent.user import NO, Choice
from satchel.sanitize import encodable

if TYPE_CHECKING:
    from satchel.agent.attached import ContextFile
    from satchel.agent.router import Intent

_MESSAGE = Choice(NO.key, "a message: [n]o tool")
_INTENTS = {Choice("s", "a [s]earch"): "search", Choice("c", "a [c]ommand"): "shell", _MESSAGE: "chat"}

__all__ = [
    "answer",
    "aside_turn",
    "command_turn",
    "compact_turn",
    "retry_turn",
    "run_turn",
    "search_turn",
    "shell_turn",
]


def run_turn(desk: Desk, text: str, cancel: threading.Event) -> Iterator[Event]:
    """Handle what the user typed: `/name` is a command, `!command` runs, `?query` searches.

    Anything else is a message, which may become a search or a shell request where `desk.routing` is on.
    Setting `cancel` ends whatever runs; the part of an answer that was said stays in the history.

    Raises:
        SatchelError: the turn could not be run or saved; the talk can go on.
    """
    desk.cancel = cancel
    text = encodable(text).strip()  # no tokenizer takes lone surrogates
    if is_command(text):
        yield from run_command(desk, text)
    elif text.startswith("!"):
        yield from command_turn(desk, text[1:].strip())
    elif text.startswith("?") and (text == "?" or text.strip("?？")):
        yield from search_turn(desk, text[1:].strip(), rewrite=False, must_find=True)
    elif text:
        yield from _message_turn(desk, text)


def _message_turn(desk: Desk, text: str) -> Iterator[Event]:
    from satchel.agent.context import mentioned
    from satchel.agent.router import Intent

    # What mentions a file is about the file.
    routed = desk.routing and not mentioned(text, desk.tools.cwd)
    intent = (yield from _routed(desk, text)) if routed else Intent.CHAT
    if desk.cancel.is_set():
        yield Notice(NOT_SENT)
        return
    if intent is Intent.SEARCH:
        yield from search_turn(desk, text)
    elif intent is Intent.SHELL:
        yield from shell_turn(desk, text, must_propose=False)
    else:
        yield from answer_at(desk, (yield from with_mentioned(desk, text)))


def _routed(desk: Desk, text: str) -> Generator[Event, None, Intent]:
    """Returns what `text` is taken for; where that is unsure, the user says it, if they want to be asked."""
    from satchel.agent.context import known_files
    from satchel.agent.router import Intent
    from satchel.agent.routing.plain import is_plain

    session = desk.session
    files = [file.path for file in known_files(session.messages)]
    if is_plain(text, files, session.last_answer() is not None):
        return Intent.CHAT
    router = desk.tools.router
    yield from reading(router.prepare(desk.cancel))
    if desk.cancel.is_set():
        return Intent.CHAT
    decision = router.route(text, session.messages)
    while router.notices:
        yield Notice(router.notices.pop(0))
    yield Routed(decision)
    if not decision.unsure or desk.settings.agent.when_unsure != "ask":
        return decision.intent
    try:
        choice = desk.user.choose("what is this?", tuple(_INTENTS), _MESSAGE)
    except KeyboardInterrupt:
        desk.cancel.set()
        choice = _MESSAGE
    return Intent(_INTENTS[choice])


def with_mentioned(desk: Desk, text: str) -> Generator[Event, None, str]:
    """Returns the message for `text`, with the files that it mentions as @path and the talk has not got yet.

    Before the first message they come into the context as with /add, where other talks can share what is read
    of them; later they stand in the message, since what was said would have to be read again behind them.
    """
    from satchel.agent.context import collect, known_files, mentioned, split_files, with_files

    session, tools = desk.session, desk.tools
    files: list[ContextFile] = []
    if paths := mentioned(text, tools.cwd):
        collected = collect(paths, tools.cwd)
        tools.places |= collected.places
        yield from map(Notice, collected.skipped)
        known = known_files(session.messages)
        files = [file for file in collected.files if file not in known]
    if files and not session.turns():
        prompt, before = split_files(session.system)
        session.set_system(with_files(prompt, [*before, *files]))
        files = []
    # With none attached but these, whatever a text that was pasted looks like.
    return with_files(text, files)
