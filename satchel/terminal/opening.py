"""The beginning of a talk: the prompt is there at once, and what is talked with is loaded behind it.

Knows nothing of models, or of a talk but that it begins.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from rich.cells import cell_len, set_cell_size

from satchel.agent.commands import find_command, is_command
from satchel.config.waits import PATIENCE_S, POLL_S
from satchel.errors import UsageError
from satchel.terminal.interrupts import message_or_leave
from satchel.terminal.loading import Loading
from satchel.terminal.manner import is_dumb, is_quiet
from satchel.terminal.sanitize import sanitize_line

if TYPE_CHECKING:
    from satchel.terminal.prompt import MessagePrompt
    from satchel.terminal.render import Renderer


T = TypeVar("T")


def first_message(
    prompt: MessagePrompt,
    loading: Loading[T],
    renderer: Renderer,
    begin: Callable[[T], None],
    said: str = "",
) -> str | None:
    """The first message for what was loaded; None where the person has left before.

    Args:
        said: the message, if it is known already. After Ctrl-C it stands at the prompt.
        begin: called once with what was loaded, when it is there and lines can be written.

    Raises:
        SatchelError: it could not be loaded; likewise whatever else the loading raised.
    """
    try:
        return _first_message(prompt, loading, renderer, _Arrival(loading, begin), said)
    except Exception:
        if prompt.typed.strip():
            kept = "; the history has it" if prompt.keeps_history else ""
            renderer.notice(f"what was typed was not sent{kept}")
        raise


def _first_message(
    prompt: MessagePrompt, loading: Loading[T], renderer: Renderer, arrival: _Arrival[T], said: str
) -> str | None:
    draft = said
    if said and _waited_for(loading):
        arrival.happens()
        return said
    while True:
        text = message_or_leave(_reading(prompt, draft, arrival), lambda: True, renderer.notice)
        if text is None or (_leaves(text) and not loading.is_over):
            return None
        draft = ""
        if text.strip():
            if _waited_for(loading):
                arrival.happens()
                return text
            draft = text


class _Arrival(Generic[T]):
    """Happens once, whoever finds first that the loading is over."""

    def __init__(self, loading: Loading[T], begin: Callable[[T], None]) -> None:
        self._loading, self._begin = loading, begin
        self._has_happened = False

    def is_due(self) -> bool:
        """
        Raises:
            SatchelError: it will not happen.
        """
        if not self._loading.is_over or self._has_happened:
            return False
        self._loading.result()
        return True

    def happens(self) -> None:
        if not self._has_happened:
            self._begin(self._loading.result())
            self._has_happened = True


def _reading(prompt: MessagePrompt, draft: str, arrival: _Arrival[T]) -> Callable[[], str]:
    return lambda: prompt.read(draft, until=arrival.is_due, then=arrival.happens)


def _leaves(text: str) -> bool:
    """Whether `text` is the command that ends a talk."""
    if not is_command(text):
        return False
    try:
        return find_command(text.strip()[1:]).name == "quit"
    except UsageError:
        return False


def _waited_for(loading: Loading[T]) -> bool:
    """Wait for it, with a sign while that takes; False after Ctrl-C."""
    sign = _Sign()
    try:
        if loading.wait(PATIENCE_S):
            return True
        while not loading.wait(POLL_S):
            sign.show(f"{loading.label}… {loading.seconds:.0f} s")
    except KeyboardInterrupt:
        return False
    finally:
        sign.remove()
    return True


class _Sign:
    """A line at standard error, drawn again in its place, and gone at the end. Only for a terminal."""

    def __init__(self) -> None:
        self._is_wanted = sys.stderr.isatty() and not is_quiet()
        self._is_fixed = is_dumb()
        self._shown = ""

    def show(self, line: str) -> None:
        line = sanitize_line(line)
        if not self._is_wanted or line == self._shown or (self._is_fixed and self._shown):
            return
        self._shown = line
        if self._is_fixed:
            print(line, file=sys.stderr, flush=True)
            return
        line = set_cell_size(line, min(cell_len(line), shutil.get_terminal_size().columns - 1))
        print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)

    def remove(self) -> None:
        if self._shown and not self._is_fixed:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
