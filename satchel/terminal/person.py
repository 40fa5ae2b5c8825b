"""The person at the terminal, as the agent asks them. Knows nothing of what the questions are for."""

from __future__ import annotations

import base64
import contextlib
import os
import select
import shutil
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Sequence

from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import DummyHistory
from prompt_toolkit.input.typeahead import clear_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys

from satchel.agent.user import NO, Choice
from satchel.config.waits import POLL_S
from satchel.terminal.echo import echo
from satchel.terminal.manner import is_dumb
from satchel.terminal.prompt import quiet_about_cursor, sending_keys
from satchel.terminal.visible import visible

MAX_OSC_52_BYTES = 74_000  # of text: terminals take up to 100,000 characters of base64
MAX_LINE_BYTES = 4096  # of what is typed while something else goes on
CLIPBOARD_S = 3.0  # that a program may take to put a text on the clipboard

# Programs that take a text on standard input, and what has to be in the environment for them to work.
_CLIPBOARDS = (
    (("pbcopy",), ""),
    (("wl-copy",), "WAYLAND_DISPLAY"),
    (("xclip", "-selection", "clipboard"), "DISPLAY"),
    (("xsel", "--clipboard", "--input"), "DISPLAY"),
)


class Person:
    """Asks at the terminal that standard input and output are."""

    def __init__(self, settle: Callable[[], None] = lambda: None) -> None:
        """`settle` is called before anything is asked: whoever writes to the terminal ends their line."""
        self._settle = settle

    def choose(self, question: str, choices: Sequence[Choice], default: Choice) -> Choice:
        """One of `choices`, by its letter or its word and Enter; Ctrl-D is no.

        What was typed before the question was there to be read is no answer to it, nor is a paste of
        several lines.

        Raises:
            KeyboardInterrupt: Ctrl-C.
        """
        self._settle()
        labels = " ".join(map(_label, choices))
        shown = visible(f"{question} {labels} (default {default.key.upper()}): ")
        prompt = quiet_about_cursor(PromptSession(history=DummyHistory(), key_bindings=_answer_keys()))
        _forget_typed(prompt)
        while True:
            try:
                answer = prompt.prompt(FormattedText([("", shown)])).strip().lower()
            except EOFError:
                return next((choice for choice in choices if choice.key == NO.key), default)
            if not answer:
                return default
            for choice in choices:
                if answer in (choice.key, _word(choice)):
                    return choice
            print(f"type one of {', '.join(choice.key for choice in choices)}, and Enter; Ctrl-C gives up")

    def edit(self, text: str) -> str | None:
        """`text` as it was changed; None after Ctrl-C, Ctrl-D, or if nothing is left of it."""
        self._settle()
        prompt = quiet_about_cursor(
            PromptSession(
                history=DummyHistory(), key_bindings=sending_keys(), multiline=True, prompt_continuation="  "
            )
        )
        _forget_typed(prompt)
        print("Enter takes it, Alt-Enter starts a new line, Ctrl-C gives up")
        try:
            edited = prompt.prompt("$ ", default=text)
        except (KeyboardInterrupt, EOFError):
            return None
        return edited if edited.strip() else None

    def copy(self, text: str) -> bool:
        """Put `text` on the clipboard, by a program of the system or else by asking the terminal.

        Returns:
            False if there is neither. A terminal does not tell whether it did.
        """
        data = text.encode("utf-8", "replace")
        return any(_piped(command, needs, data) for command, needs in _CLIPBOARDS) or self._sent(data)

    def hear(self, seconds: float, cancel: threading.Event) -> str:
        """Wait that long, or until `cancel` is set, or a line is typed, which is returned; else ""."""
        deadline = time.monotonic() + seconds
        with echo():
            while not cancel.is_set():
                left = deadline - time.monotonic()
                if select.select([sys.stdin], [], [], min(max(left, 0.0), POLL_S))[0]:
                    return os.read(sys.stdin.fileno(), MAX_LINE_BYTES).decode("utf-8", "replace").strip()
                if left <= 0:
                    break
        return ""

    def _sent(self, data: bytes) -> bool:
        if not sys.stdout.isatty() or is_dumb() or len(data) > MAX_OSC_52_BYTES:
            return False
        self._settle()
        sys.stdout.write(f"\x1b]52;c;{base64.b64encode(data).decode()}\x07")
        sys.stdout.flush()
        return True


def _label(choice: Choice) -> str:
    """As `[r]un`, also of a label without its letter in brackets."""
    return choice.label if "[" in choice.label else choice.label.replace(choice.key, f"[{choice.key}]", 1)


def _word(choice: Choice) -> str:
    return choice.label.replace("[", "").replace("]", "").lower()


def _forget_typed(prompt: PromptSession[str]) -> None:
    """Drop what was typed so far: keys that were read already, and those that wait at the terminal."""
    clear_typeahead(prompt.input)
    with contextlib.suppress(termios.error, OSError, ValueError):
        termios.tcflush(prompt.input.fileno(), termios.TCIFLUSH)


def _answer_keys() -> KeyBindings:
    """Enter answers, unless more keys came with it: then it is a line of a paste."""
    bindings = KeyBindings()

    @bindings.add("enter")
    def _answer(event: KeyPressEvent) -> None:
        # Terminals answer by themselves, too: where the cursor is.
        if any(press.key is not Keys.CPRResponse for press in event.key_processor.input_queue):
            event.current_buffer.insert_text("\n")
        else:
            event.current_buffer.validate_and_handle()

    return bindings


def _piped(command: tuple[str, ...], needs: str, data: bytes) -> bool:
    """Whether `command` is there and took `data`."""
    if (needs and not os.environ.get(needs)) or not shutil.which(command[0]):
        return False
    try:
        # What stays behind to serve the clipboard must not hold our streams open.
        done = subprocess.run(
            command,
            input=data,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | {"LC_CTYPE": "UTF-8"},  # pbcopy takes the text for MacRoman without it
            timeout=CLIPBOARD_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
