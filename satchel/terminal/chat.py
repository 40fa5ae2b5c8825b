"""The chat's two loops: with a person at a terminal, and with a script on a pipe.

Knows nothing of models, of the store or of how things are drawn.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from satchel.agent.agent import run_turn
from satchel.agent.commands import Desk, Quit, SwitchTo, is_command, run_command
from satchel.agent.events import Notice
from satchel.config.settings import Settings
from satchel.errors import SatchelError
from satchel.terminal.render import Renderer

if TYPE_CHECKING:
    from satchel.terminal.prompt import MessagePrompt


class Chat:
    """A conversation at `desk`, drawn by `renderer`."""

    def __init__(self, desk: Desk, settings: Settings, renderer: Renderer) -> None:
        self._desk = desk
        self._settings = settings
        self._renderer = renderer
        self._warned = False  # that leaving now loses words

    def with_person(self, prompt: MessagePrompt) -> None:
        """Talk until /quit, Ctrl-D, or Ctrl-C twice at an empty prompt. Errors are shown, and it goes on."""
        self._announce()
        leaving = False
        while True:
            try:
                text = prompt.read()
            except EOFError:
                if self._may_leave():
                    return
                continue
            except KeyboardInterrupt:
                if leaving and self._may_leave():
                    return
                leaving = True
                self._renderer.notice("Ctrl-C again or Ctrl-D leaves")
                continue
            leaving = False
            try:
                with _interrupt_sets(cancel := threading.Event()):
                    if not self._take(text, cancel):
                        return
            except SatchelError as err:
                self._renderer.error(err.one_line())
            except OSError as err:  # a full disk: the talk is still in memory
                self._renderer.error(str(err))

    def with_script(self, lines: Iterable[str]) -> None:
        """Take a message or command a line until /quit or the end. A failing command does not end it.

        Raises:
            SatchelError: a message could not be answered or its turn not be saved.
        """
        self._announce()
        for line in map(str.strip, lines):
            try:
                if not self._take(line, threading.Event()):
                    return
            except SatchelError as err:
                if not is_command(line):
                    raise
                self._renderer.error(err.one_line())
        if self._settings.auto_save and self._desk.session.unsaved:
            self._desk.session.save()

    def _take(self, text: str, cancel: threading.Event) -> bool:
        """Handle one message or command. Returns whether the chat goes on."""
        if is_command(text):
            return self._command(text)
        if text.strip():
            self._renderer.turn(run_turn(self._desk.session, text, self._settings, cancel))
        return True

    def _command(self, line: str) -> bool:
        for outcome in run_command(self._desk, line):
            match outcome:
                case Quit():
                    return not self._may_leave()
                case SwitchTo(session):
                    if not self._may_leave():
                        return True
                    self._desk.session = session
                    self._announce()
                case Notice(text):
                    self._renderer.notice(text)
                case str(text):
                    self._renderer.output(text)
        self._show_notices()
        return True

    def _may_leave(self) -> bool:
        """Save what an earlier save could not. If that fails again, say so and stay, but only once."""
        session = self._desk.session
        if self._settings.auto_save and session.unsaved and not self._warned:
            try:
                session.save()
            except SatchelError as err:
                self._warned = True
                self._renderer.error(
                    f"{err.one_line()}; what was said last is not saved: leave again to lose it"
                )
                return False
        self._warned = False
        return True

    def _announce(self) -> None:
        """What was opened, and how."""
        session = self._desk.session
        self._show_notices()
        if session.name:
            self._renderer.notice(f"going on in {session.name}: reused {session.reused_tokens} tokens")

    def _show_notices(self) -> None:
        for notice in self._desk.session.take_notices():
            self._renderer.notice(notice)


@contextmanager
def _interrupt_sets(cancel: threading.Event) -> Iterator[None]:
    """Ctrl-C sets `cancel` instead of raising: an answer ends at a token, never in the middle of a save."""

    def on_interrupt(signum: int, frame: FrameType | None) -> None:
        cancel.set()

    previous = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
