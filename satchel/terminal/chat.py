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
from satchel.config.waits import PATIENCE_S
from satchel.errors import SatchelError
from satchel.terminal.render import Renderer

if TYPE_CHECKING:
    from satchel.session import Session
    from satchel.terminal.prompt import MessagePrompt

SCRIPT_PATIENCE_S = 60.0  # with the last sync, where nobody is there to press Ctrl-C


class Chat:
    """A conversation at `desk`, drawn by `renderer`."""

    def __init__(self, desk: Desk, settings: Settings, renderer: Renderer) -> None:
        self._desk = desk
        self._settings = settings
        self._renderer = renderer
        self._warned = False  # that leaving now loses words
        self._overtaken: str | None = None  # the manifest of a newer save that was told of
        self._synced = ""  # the manifest that a sync was asked for last, or that was there before

    def with_person(self, prompt: MessagePrompt) -> None:
        """Talk until /quit, Ctrl-D, or Ctrl-C twice at an empty prompt. Errors are shown, and it goes on."""
        self._sit_down(self._desk.session)
        self._talk(prompt)
        self._finish_sync()

    def with_script(self, lines: Iterable[str]) -> None:
        """Take a message or command a line until /quit or the end. A failing command does not end it.

        At the end what is being sent is waited for, for `SCRIPT_PATIENCE_S` at most.

        Raises:
            SatchelError: a message could not be answered or its turn not be saved.
        """
        self._sit_down(self._desk.session)
        try:
            self._follow(lines)
        except SatchelError:
            self._finish_sync(SCRIPT_PATIENCE_S)  # of the turns before
            raise
        self._finish_sync(SCRIPT_PATIENCE_S)

    def _talk(self, prompt: MessagePrompt) -> None:
        leaving = False
        while True:
            with _interrupt_sets(threading.Event()):
                self._look_at_sync()
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

    def _follow(self, lines: Iterable[str]) -> None:
        for line in map(str.strip, lines):
            try:
                if not self._take(line, threading.Event()):
                    return
            except SatchelError as err:
                if not is_command(line):
                    raise
                self._renderer.error(err.one_line())
            self._look_at_sync()
        if self._settings.auto_save and self._desk.session.unsaved:
            self._desk.session.save()

    def _take(self, text: str, cancel: threading.Event) -> bool:
        """Handle one message or command. Returns whether the chat goes on."""
        self._desk.cancel = cancel
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
                    self._ask_for_sync()
                    self._sit_down(session)
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

    def _sit_down(self, session: Session) -> None:
        """Go on in `session`, and say what was opened and how."""
        self._desk.session = session
        if self._desk.sync is not None:
            self._synced = session.saved_manifest
        self._show_notices()
        if session.name:
            self._renderer.notice(f"going on in {session.name}: reused {session.reused_tokens} tokens")

    def _show_notices(self) -> None:
        for notice in self._desk.session.take_notices():
            self._renderer.notice(notice)

    # -- sync beside the talk ------------------------------------------------------------------------

    def _ask_for_sync(self) -> None:
        """Have what was saved since be sent, where the settings say so."""
        sync, session = self._desk.sync, self._desk.session
        if sync and self._settings.sync.auto and session.saved_manifest != self._synced:
            self._synced = session.saved_manifest
            sync.request(session.id)

    def _look_at_sync(self) -> None:
        """Between two turns: ask for the next sync, and show what has become of those before."""
        sync, session = self._desk.sync, self._desk.session
        if sync is None:
            return
        self._ask_for_sync()
        for line in sync.take_lines():
            self._renderer.notice(line)
        for fork in sync.take_forks():
            if fork.session_id == session.id:
                session.follow(fork.fork_id)
        self._show_notices()
        newest = session.overtaken_by()
        if newest and newest != self._overtaken:
            self._renderer.notice(
                f"{session.name!r} has gone on elsewhere: /load {session.name} goes on from there; what is "
                "said here becomes a session of its own"
            )
        self._overtaken = newest

    def _finish_sync(self, patience_s: float | None = None) -> None:
        """Before leaving: let what was said last be sent, unless the user does not want to wait for it.

        Args:
            patience_s: nobody waits for longer; None where a person decides.
        """
        sync = self._desk.sync
        if sync is None:
            return
        self._ask_for_sync()
        try:
            sent = sync.finish(PATIENCE_S)
            if not sent:
                self._renderer.notice("sending what was said last; Ctrl-C leaves now")
                sent = sync.finish(patience_s)
        except KeyboardInterrupt:
            sent = False
        if not sent:
            self._renderer.notice("what was not sent is sent by the next sync")
        for line in sync.take_lines():
            self._renderer.notice(line)


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
