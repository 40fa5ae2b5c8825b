"""The chat's two loops: with a person at a terminal, and with a script on a pipe.

Knows nothing of models, of the store or of how things are drawn.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from satchel.agent.agent import run_turn
from satchel.agent.commands import is_command
from satchel.agent.commands.leaving import LEAVING
from satchel.agent.desk import Desk
from satchel.agent.events import Event, Quit, Switched
from satchel.agent.user import agrees
from satchel.config.waits import PATIENCE_S
from satchel.errors import SatchelError
from satchel.terminal.interrupts import interrupt_sets, message_or_leave
from satchel.terminal.recap import recap
from satchel.terminal.render import Renderer

if TYPE_CHECKING:
    from satchel.terminal.prompt import MessagePrompt

ONLY_WORDS = "only its words are stored"  # the beginning of a session's notice
SCRIPT_PATIENCE_S = 60.0  # with the last sync, where nobody is there to press Ctrl-C


class Chat:
    """A conversation at `desk`, drawn by `renderer`."""

    def __init__(self, desk: Desk, renderer: Renderer) -> None:
        self._desk = desk
        self._renderer = renderer
        self._session = desk.session  # the one that was sat down at
        self._begun_at = desk.session.saved_manifest  # what was saved of it before
        self._recap: list[str] = []  # that was shown last
        self._is_person = True
        self._has_begun = self._quitting = False
        self._is_full = False  # and the user was told
        self._overtaken: str | None = None  # the manifest of a newer save that was told of
        self._synced = ""  # the manifest that a sync was asked for last, or that was there before

    def begin(self) -> None:
        """Say what was opened and how, unless that was said."""
        if not self._has_begun:
            self._has_begun = True
            self._sit_down()

    def with_person(self, prompt: MessagePrompt, first: str = "") -> None:
        """Talk until /quit, Ctrl-D, or Ctrl-C twice at an empty prompt. Errors are shown, and it goes on.

        Args:
            first: the message to begin with, if it was typed already.
        """
        self._desk.routing = self._desk.settings.agent.routing
        self.begin()
        self._talk(prompt, first)
        self._finish_sync()
        session = self._session
        if session.name and session.saved_manifest != self._begun_at and not session.unsaved:
            self._renderer.notice(f"saved as {session.name}; `satchel resume` goes on")

    def with_script(self, lines: Iterable[str]) -> int:
        """Take a message or command a line until /quit or the end. A failing command does not end it.

        Returns the exit code of the last command that failed; 0 if none did.

        Messages are messages to the model, and nothing that would have to be agreed to runs. At the end what
        is being sent is waited for, for `SCRIPT_PATIENCE_S` at most.

        Raises:
            SatchelError: a message could not be answered or its turn not be saved.
        """
        self._is_person = False
        self.begin()
        try:
            exit_code = self._follow(lines)
        except Exception:
            self._finish_sync(SCRIPT_PATIENCE_S)  # of the turns before
            raise
        self._finish_sync(SCRIPT_PATIENCE_S)
        return exit_code

    def _talk(self, prompt: MessagePrompt, first: str) -> None:
        typed = [first] if first else []

        def read() -> str:
            with self._going_on(), interrupt_sets(threading.Event()):
                self._look_at_sync()
            return typed.pop() if typed else prompt.read()

        while True:
            text = message_or_leave(read, self._may_leave, self._renderer.notice)
            if text is None:
                return
            self._attempt(text)
            if not self._quitting and self._has_become_full() and self._wants_to_compact():
                self._attempt("/compact")
                self._has_become_full()
            if self._quitting:
                return

    def _attempt(self, text: str) -> None:
        """Take what a person typed."""
        with self._going_on(), interrupt_sets(cancel := threading.Event()):
            self._take(text, cancel)

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """Whatever goes wrong is shown, and the talk goes on."""
        try:
            yield
        except KeyboardInterrupt:  # in answer to a question: nothing more is to be done
            self._renderer.notice("stopped")
        except SatchelError as err:
            self._renderer.error(err.one_line())
        except OSError as err:  # a full disk: the talk is still in memory
            self._renderer.error(str(err))
        except Exception as err:  # noqa: BLE001  a fault of ours: it is told, and the talk is not its price
            self._renderer.fault(err)

    def _follow(self, lines: Iterable[str]) -> int:
        exit_code = 0
        for line in map(str.strip, lines):
            try:
                self._take(line, threading.Event())
            except SatchelError as err:
                if not (is_command(line) or line.startswith(("!", "?"))):
                    raise
                self._renderer.error(err.one_line())
                exit_code = err.exit_code
            if self._quitting:
                return exit_code
            if self._has_become_full():
                self._renderer.notice(f"{self._fill()}: /compact goes on from a summary")
            self._look_at_sync()
        if self._desk.settings.auto_save and self._desk.session.unsaved:
            self._desk.session.save()
        return exit_code

    def _take(self, text: str, cancel: threading.Event) -> None:
        """Handle one message or command."""
        self._renderer.turn(self._followed(run_turn(self._desk, text, cancel)))
        self._show_notices()

    def _followed(self, events: Iterator[Event]) -> Iterator[Event]:
        """`events`, and what is to be done about them here."""
        for event in events:
            match event:
                case Switched():
                    self._ask_for_sync()  # of what leaving has saved
                    self._sit_down()
                case Quit():
                    self._quitting = True
            yield event

    def _may_leave(self) -> bool:
        """Save what an earlier save could not. If that fails again, say so and stay, but only once."""
        complaint = LEAVING.may_leave(self._desk)
        self._show_notices()
        if complaint:
            self._renderer.error(complaint)
        return complaint is None

    def _sit_down(self) -> None:
        """Go on in the session at the desk, and say what was opened and how."""
        if self._desk.session is not self._session:
            self._session, self._begun_at = self._desk.session, self._desk.session.saved_manifest
        session = self._session
        self._is_full = False
        if self._desk.sync is not None:
            self._synced = session.saved_manifest
        notices = session.take_notices()
        only_words = next((each for each in notices if each.startswith(ONLY_WORDS)), "")
        for notice in notices:
            if notice != only_words or not session.name:
                self._renderer.notice(notice)
        if not session.name:
            return
        how = only_words
        if session.reused_tokens:
            how = f"reused {session.reused_tokens} tokens"
        elif unread := session.unread_tokens:
            how = f"its {unread:,} tokens are read again with the next message"
        self._renderer.notice(f"going on in {session.name}{how and ': '}{how}")
        self._remind()

    def _remind(self) -> None:
        """Show what was said last, unless it was shown already."""
        if not self._is_person:
            return
        lines = recap(self._session.messages, shutil.get_terminal_size().columns)
        if lines != self._recap:
            self._recap = lines
            for line in lines:
                self._renderer.notice(line)

    def _show_notices(self) -> None:
        for notice in self._desk.session.take_notices():
            self._renderer.notice(notice)

    # -- a context that fills up ---------------------------------------------------------------------

    def _has_become_full(self) -> bool:
        """Whether the context has become so full that compacting is offered, since this was asked last."""
        before = self._is_full
        self._is_full = self._desk.session.fill >= self._desk.settings.agent.compact_at
        return self._is_full and not before

    def _wants_to_compact(self) -> bool:
        return agrees(self._desk.user, f"{self._fill()}: go on from a summary?")

    def _fill(self) -> str:
        return f"the context is {self._desk.session.fill:.0%} full"

    # -- sync beside the talk ------------------------------------------------------------------------

    def _ask_for_sync(self) -> None:
        """Have what was saved since be sent, where the settings say so."""
        sync, session = self._desk.sync, self._session
        if sync and self._desk.settings.sync.auto and session.saved_manifest != self._synced:
            self._synced = session.saved_manifest
            sync.request(session.id)

    def _look_at_sync(self) -> None:
        """Between two turns: ask for the next sync, and show what has become of those before."""
        sync, session = self._desk.sync, self._session
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
