"""Reads a message from the keyboard. Knows nothing of sessions or of what a message leads to."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from satchel.agent.commands import COMMANDS

PROMPT = "> "


class MessagePrompt:
    """The prompt of the chat: Enter sends, Alt-Enter starts a new line, a paste is one message."""

    def __init__(self, history_file: Path | None) -> None:
        """`history_file` of None keeps the history in memory only."""
        self._session: PromptSession[str] = PromptSession(
            history=_history(history_file),
            completer=_CommandCompleter(),
            key_bindings=_key_bindings(),
            multiline=True,
            prompt_continuation=" " * len(PROMPT),
            enable_open_in_editor=True,
        )

    def read(self) -> str:
        """The next message.

        Raises:
            KeyboardInterrupt: Ctrl-C with nothing typed (with something typed it clears that).
            EOFError: Ctrl-D with nothing typed.
        """
        return self._session.prompt(PROMPT)


def _history(path: Path | None) -> History:
    """The history in the file at `path`; in memory where there is none, or it cannot be made or read."""
    if path is None:
        return InMemoryHistory()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND, 0o600))
    except OSError:
        return InMemoryHistory()
    return _FileHistory(path)


class _FileHistory(FileHistory):
    """Goes on in memory where the disk refuses a message: a talk never ends for its history."""

    def store_string(self, string: str) -> None:
        with contextlib.suppress(OSError):
            super().store_string(string)


def _key_bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @bindings.add("c-c")
    def _clear_or_leave(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return bindings


class _CommandCompleter(Completer):
    """The names of the slash commands, at the start of a message."""

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        typed = document.text
        if not typed.startswith("/"):
            return
        for command in COMMANDS:
            if f"/{command.name}".startswith(typed):
                yield Completion(f"/{command.name}", start_position=-len(typed), display_meta=command.help)
