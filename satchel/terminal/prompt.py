"""Reads a message from the keyboard. Knows nothing of sessions or of what a message leads to."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import select
import stat
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app, run_in_terminal
from prompt_toolkit.completion import Completer
from prompt_toolkit.enums import DEFAULT_BUFFER, EditingMode
from prompt_toolkit.filters import Condition, has_focus, to_filter
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyBindingsBase, KeyPressEvent, merge_key_bindings
from prompt_toolkit.layout import Dimension, Window
from prompt_toolkit.styles import Style

from satchel.config.waits import POLL_S
from satchel.terminal.echo import lines_unfinished
from satchel.terminal.graphemes import EvenWidths, grapheme_keys
from satchel.terminal.manner import is_plain
from satchel.terminal.sanitize import sanitize
from satchel.terminal.toolbar import Toolbar

PROMPT = "> "
QUOTES = '"""'
MAX_TYPED_BYTES = 64 << 10
MAX_HISTORY_BYTES = 1 << 20  # that are read
REDRAW_S = 1.0  # for what changes by itself in the toolbar
MENU_ROWS = 8  # that are made free for completions

# To where Enter was typed: a bracketed paste goes on over it, and so does what Alt-Enter (ESC) begins.
_LINE = re.compile(r"(?:\x1b\[200~(?s:.*?)(?:\x1b\[201~|\Z)|\x1b\n|[^\n])*")


class MessagePrompt:
    """The prompt of the chat: Enter sends, Alt-Enter starts a new line, a paste is one message.

    A message that begins with three quotation marks goes on over Enter until three more; neither are part
    of it.

    Nothing is sent unseen: each message that was typed while no prompt was there is the draft of a prompt.
    """

    def __init__(
        self,
        history_file: Path | None,
        completer: Completer | None = None,
        *,
        editing: Literal["emacs", "vi"] = "emacs",
        toolbar: Toolbar | None = None,
        notice: Callable[[str], None] = print,
    ) -> None:
        """`history_file` of None keeps the history in memory only; `notice` shows a line."""
        self._toolbar, self._notice = toolbar, notice
        self._ahead = ""  # what was typed before a prompt was there, and stood in none yet
        self.keeps_history = history_file is not None
        self._session: PromptSession[str] = PromptSession(
            history=_history(history_file),
            completer=completer,
            complete_in_thread=True,
            complete_while_typing=Condition(self._may_complete),
            key_bindings=_message_keys(self._drop_ahead),
            multiline=True,
            prompt_continuation=" " * len(PROMPT),
            enable_open_in_editor=True,
            enable_suspend=True,
            editing_mode=EditingMode.VI if editing == "vi" else EditingMode.EMACS,
            input_processors=[EvenWidths()],
            bottom_toolbar=toolbar,
            refresh_interval=REDRAW_S if toolbar else 0,
            style=Style.from_dict({"bottom-toolbar": "noreverse"}) if is_plain() else None,
        )
        quiet_about_cursor(self._session)
        self._stay_small(self._session.layout.current_window)

    @property
    def typed(self) -> str:
        """What stood in the prompt last, whether it was sent or not."""
        return self._session.default_buffer.text

    def read(
        self,
        draft: str = "",
        until: Callable[[], bool] | None = None,
        then: Callable[[], None] | None = None,
    ) -> str:
        """The next message. What was typed before the prompt was there stands in it, to be sent or not.

        Of several messages that is the first; the others stand in the prompts that follow.

        Args:
            draft: stands in it, too.
            until: as soon as this is true, `then` is called once, and may write lines above the prompt. Both
                end the prompt by raising.

        Raises:
            KeyboardInterrupt: Ctrl-C with nothing typed (with something typed it clears that).
            EOFError: Ctrl-D with nothing typed.
            SatchelError: what `until` or `then` raises, or anything else; what is typed is in the history.
        """
        if self._toolbar:
            self._toolbar.refresh()

        def watch() -> None:
            if until and then:
                self._session.app.create_background_task(self._call_when(until, then))

        typed, self._ahead = _first_typed(self._ahead + _typed_before())
        return unquoted(self._session.prompt(PROMPT, default=draft + typed, pre_run=watch))

    def _drop_ahead(self) -> None:
        """Forget what was typed for the prompts that follow, and say so."""
        dropped = 0
        while self._ahead:
            typed, self._ahead = _first_typed(self._ahead)
            dropped += bool(typed)
        if dropped:
            told = f"{dropped} more that {'was' if dropped == 1 else 'were'} typed ahead: dropped, too"
            run_in_terminal(lambda: self._notice(told))

    def _may_complete(self) -> bool:
        """Whether what is typed is of a kind that has completions: prose has none."""
        typed = self._session.default_buffer.document
        return typed.text.startswith("/") or typed.get_word_before_cursor(WORD=True).startswith("@")

    def _stay_small(self, window: Window) -> None:
        """Have the toolbar right below what is typed, with room between only while completions need it.

        prompt_toolkit keeps eight rows free at all times, and the toolbar at the bottom of the screen.
        """

        def height() -> Dimension:
            needs_room = self._may_complete() or self._session.default_buffer.complete_state
            if self._session.completer is None or self._session.app.is_done or not needs_room:
                return Dimension()
            rows = self._session.output.get_size().rows
            return Dimension(min=max(1, min(MENU_ROWS, rows - 1)))

        window.height = height
        window.dont_extend_height = to_filter(True)

    async def _call_when(self, until: Callable[[], bool], then: Callable[[], None]) -> None:
        try:
            while not until():
                await asyncio.sleep(POLL_S)
            await run_in_terminal(then)
        except Exception as err:  # noqa: BLE001  raised where the prompt was read
            self._session.default_buffer.append_to_history()
            self._session.app.exit(exception=err)
            return
        if self._toolbar:
            self._toolbar.refresh()
            self._session.app.invalidate()


def unquoted(text: str) -> str:
    """`text` without the three quotation marks on either side, if it has those."""
    if not text.lstrip().startswith(QUOTES) or _is_open(text):
        return text
    return text.strip()[len(QUOTES) : -len(QUOTES)].strip("\n")


def _is_open(text: str) -> bool:
    """Whether `text` begins with three quotation marks and does not end with three others."""
    text = text.strip()
    return text.startswith(QUOTES) and not (len(text) >= 2 * len(QUOTES) and text.endswith(QUOTES))


def _first_typed(text: str) -> tuple[str, str]:
    """The first message in `text`, which waited at the terminal, and what follows it."""
    text = text.lstrip("\n")
    end = _end_of_line(text, 0)
    while end < len(text) and _is_open(text[:end]):
        end = _end_of_line(text, end + 1)
    return sanitize(text[:end].replace("\x1b\n", "\n")).strip("\n"), text[end:].lstrip("\n")


def _end_of_line(text: str, start: int) -> int:
    found = _LINE.match(text, start)
    return found.end() if found else len(text)


def _typed_before() -> str:
    """What waits at the terminal: typed, or pasted, while something else was going on."""
    if not sys.stdin.isatty():
        return ""
    typed = b""
    with contextlib.suppress(termios.error), lines_unfinished():
        while len(typed) < MAX_TYPED_BYTES and select.select([sys.stdin], [], [], 0)[0]:
            if not (data := os.read(sys.stdin.fileno(), MAX_TYPED_BYTES)):
                break
            typed += data
    return typed.decode("utf-8", "replace")


def _history(path: Path | None) -> History:
    """The history in the file at `path`; in memory where there is none, or it cannot be made or read."""
    if path is None:
        return InMemoryHistory()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o600)  # a pipe would be waited for
        is_file = stat.S_ISREG(os.fstat(file).st_mode)
        os.close(file)
    except OSError:
        return InMemoryHistory()
    return _FileHistory(path) if is_file else InMemoryHistory()


class _FileHistory(FileHistory):
    """Goes on in memory where the disk refuses a message: a talk never ends for its history.

    Of a long file the end is read, which is quick however many years are in it.
    """

    def load_history_strings(self) -> Iterator[str]:
        """The messages, the newest first."""
        with contextlib.suppress(OSError), Path(os.fsdecode(self.filename)).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_HISTORY_BYTES))
            return reversed(_messages(file.read().decode("utf-8", "replace")))
        return iter(())

    def store_string(self, string: str) -> None:
        with contextlib.suppress(OSError):
            super().store_string(string)


def _messages(text: str) -> list[str]:
    """What prompt_toolkit has written to the end of a file: a line of time, and each line behind a plus."""
    _, *entries = f"\n{text}".split("\n#")  # what is cut off at the beginning is left out
    messages = []
    for entry in entries:
        _, *lines = entry.split("\n")
        if kept := [line[1:] for line in lines if line.startswith("+")]:
            messages.append("\n".join(kept))
    return messages


def quiet_about_cursor(session: PromptSession[str]) -> PromptSession[str]:
    """`session`, which does not complain of a terminal that does not tell where its cursor is."""
    session.app.renderer.cpr_not_supported_callback = None
    return session


def sending_keys() -> KeyBindings:
    """Enter sends, Alt-Enter starts a new line."""
    bindings = KeyBindings()
    typing = has_focus(DEFAULT_BUFFER)  # and not what is searched for in the history

    @bindings.add("enter", filter=typing)
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @bindings.add("escape", "enter", filter=typing)
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings


def _message_keys(clear: Callable[[], None]) -> KeyBindingsBase:
    """Enter goes on where quotation marks are open; Ctrl-C clears what is typed, and raises without.

    Args:
        clear: called where something was cleared.
    """
    bindings = KeyBindings()
    typing = has_focus(DEFAULT_BUFFER)

    @bindings.add("enter", filter=typing & Condition(lambda: _is_open(get_app().current_buffer.text)))
    def _go_on(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @bindings.add("c-c", filter=typing)
    def _clear_or_leave(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
            clear()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return merge_key_bindings([sending_keys(), grapheme_keys(), bindings])
