"""The chat's two loops: with a person at a terminal, and with a script on a pipe.

Knows nothing of models, of the store or of how things are drawn.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from satchel.agent.agent import run_turn
from satchel.agent.commands import is_command
from satchel.agent.commands.leaving import LEAVING
from satchel.agent.desk import Desk
from satchel.agent.events import Event, Quit, Switched
from satchel.agent.user import agrees
from satchel.config.waits import PATIENCE_S
from satchel.errors import SatchelError
from satchel.terminal.interrupts import interrupt_sets
from satchel.terminal.render import Renderer

if TYPE_CHECKING:
    from satchel.terminal.prompt import MessagePrompt

SCRIPT_PATIENCE_S = 60.0  # with the last sync, where nobody is there to press Ctrl-C


class Chat:
    """A conversation at `desk`, drawn by `renderer`."""

    def __init__(self, desk: Desk, renderer: Renderer) -> None:
        self._desk = desk
        self._renderer = renderer
        self._session = desk.session  # the one that was sat down at
        self._quitting = False
        self._is_full = False  # and the user was told
        self._overtaken: str | None = None  # the manifest of a newer save that was told of
        self._synced = ""  # the manifest that a sync was asked for last, or that was there before

    def with_person(self, prompt: MessagePrompt) -> None:
        """Talk until /quit, Ctrl-D, or Ctrl-C twice at an empty prompt. Errors are shown, and it goes on."""
        self._desk.routing = self._desk.settings.agent.routing
        self._sit_down()
        self._talk(prompt)
        self._finish_sync()

    def with_script(self, lines: Iterable[str]) -> None:
        """Take a message or command a line until /quit or the end. A failing command does not end it.

        Messages are messages to the model, and nothing that would have to be agreed to runs. At the end what
        is being sent is waited for, for `SCRIPT_PATIENCE_S` at most.

        Raises:
            SatchelError: a message could not be answered or its turn not be saved.
        """
        self._sit_down()
        try:
            self._follow(lines)
        except SatchelError:
            self._finish_sync(SCRIPT_PATIENCE_S)  # of the turns before
            raise
        self._finish_sync(SCRIPT_PATIENCE_S)

    def _talk(self, prompt: MessagePrompt) -> None:
        leaving = False
        while True:
            with interrupt_sets(threading.Event()):
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
            self._attempt(text)
            if not self._quitting and self._has_become_full() and self._wants_to_compact():
                self._attempt("/compact")
                self._has_become_full()
            if self._quitting:
                return

    def _attempt(self, text: str) -> None:
        """Take what a person typed; what goes wrong is shown."""
        try:
            with interrupt_sets(cancel := threading.Event()):
                self._take(text, cancel)
        except KeyboardInterrupt:  # in answer to a question: nothing more is to be done
            self._renderer.notice("stopped")
        except SatchelError as err:
            self._renderer.error(err.one_line())
        except OSError as err:  # a full disk: the talk is still in memory
            self._renderer.error(str(err))

    def _follow(self, lines: Iterable[str]) -> None:
        for line in map(str.strip, lines):
            try:
                self._take(line, threading.Event())
            except SatchelError as err:
                if not (is_command(line) or line.startswith(("!", "?"))):
                    raise
                self._renderer.error(err.one_line())
            if self._quitting:
                return
            if self._has_become_full():
                self._renderer.notice(f"{self._fill()}: /compact goes on from a summary")
            self._look_at_sync()
        if self._desk.settings.auto_save and self._desk.session.unsaved:
            self._desk.session.save()

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
        self._session = session = self._desk.session
        self._is_full = False
        if self._desk.sync is not None:
            self._synced = session.saved_manifest
        self._show_notices()
        if session.name:
            self._renderer.notice(f"going on in {session.name}: reused {session.reused_tokens} tokens")

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
