"""Reads a message from the keyboard. Knows nothing of sessions or of what a message leads to."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import Completer
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from satchel.terminal.sanitize import sanitize

PROMPT = "> "
MAX_TYPED_BYTES = 64 << 10


class MessagePrompt:
    """The prompt of the chat: Enter sends, Alt-Enter starts a new line, a paste is one message."""

    def __init__(self, history_file: Path | None, completer: Completer | None = None) -> None:
        """`history_file` of None keeps the history in memory only."""
        self._session: PromptSession[str] = PromptSession(
            history=_history(history_file),
            completer=completer,
            key_bindings=_message_keys(),
            multiline=True,
            prompt_continuation=" " * len(PROMPT),
            enable_open_in_editor=True,
        )

    def read(self) -> str:
        """The next message. What was typed before the prompt was there stands in it, to be sent or not.

        Raises:
            KeyboardInterrupt: Ctrl-C with nothing typed (with something typed it clears that).
            EOFError: Ctrl-D with nothing typed.
        """
        return self._session.prompt(PROMPT, default=sanitize(_typed_before()).strip("\n"))


def _typed_before() -> str:
    """The lines that wait at the terminal: typed, or pasted, while something else was going on."""
    typed = b""
    if sys.stdin.isatty():
        while len(typed) < MAX_TYPED_BYTES and select.select([sys.stdin], [], [], 0)[0]:
            if not (data := os.read(sys.stdin.fileno(), MAX_TYPED_BYTES)):
                break  # Ctrl-D, which was meant for what went on then
            typed += data
    return typed.decode("utf-8", "replace")


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


def sending_keys() -> KeyBindings:
    """Enter sends, Alt-Enter starts a new line."""
    bindings = KeyBindings()

    @bindings.add("enter")
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings


def _message_keys() -> KeyBindings:
    """Ctrl-C clears what is typed, and raises where nothing is."""
    bindings = sending_keys()

    @bindings.add("c-c")
    def _clear_or_leave(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return bindings
