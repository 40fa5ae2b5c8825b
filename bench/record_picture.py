"""Records the picture of the README: a short talk with the embedded model on a terminal, as an SVG.

Types the lines below into a real shell on a pseudo-terminal, and draws what its emulator (pyte) shows at the
end. Nothing is mended: the answers are the embedded model's, the speeds this machine's. Knows nothing of how
the chat works: it sees the screen and presses keys.
"""

from __future__ import annotations

import argparse
import bisect
import io
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pexpect
import pyte
from pyte.screens import Char
from rich.console import Console
from rich.style import Style
from rich.text import Text

from satchel.config.paths import cache_dir

OUT = Path(__file__).parents[1] / "docs" / "satchel.svg"
COLUMNS, ROWS = 92, 60
SHELL_PROMPT, CHAT_PROMPT = "$", ">"
TURN_S, POLL_S, SETTLE_S = 180.0, 0.05, 0.6
DIM, GREY = b"\x1b[2m", b"\x1b[90m"  # pyte knows no dim letters
NAMES = {"brown": "yellow", "brightbrown": "bright_yellow"}


@dataclass(frozen=True, slots=True)
class Step:
    line: str
    prompt: str = CHAT_PROMPT  # that is there afterwards


STEPS = (
    Step("satchel"),
    Step("Write a Python function that reverses a string."),
    Step("/rename reversing"),
    Step("/quit", SHELL_PROMPT),
    Step("satchel sessions list", SHELL_PROMPT),
    Step("satchel resume reversing"),
    Step('What does it return for "abc"?'),
    Step("What does @bisect.py do?"),
    Step("/stats"),
)


class Shell:
    """A shell on an emulated terminal that has room for all of it."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        command = ["bash", "--norc", "--noprofile", "--noediting"]
        self._child = pexpect.spawn(
            command[0], command[1:], dimensions=(ROWS, COLUMNS), cwd=str(folder), env=environment
        )
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._screen.write_process_input = self._child.send  # answers to what a program asks the terminal
        self._stream = pyte.ByteStream(self._screen)

    def close(self) -> None:
        self._child.close(force=True)

    def is_at(self, prompt: str) -> bool:
        """Whether `prompt` waits for its first key."""
        cursor = self._screen.cursor
        return (self._row(cursor.y).rstrip(), cursor.x) == (prompt, len(prompt) + 1)

    def wait(self, seen: Callable[[], bool], what: str) -> None:
        """Read until `seen`.

        Raises:
            TimeoutError: that does not come.
        """
        deadline = time.monotonic() + TURN_S
        while not seen():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} was not seen:\n" + "\n".join(map(self._row, range(ROWS))))
            self.read()

    def read(self) -> None:
        try:
            data = self._child.read_nonblocking(65536, timeout=POLL_S)
        except pexpect.TIMEOUT:
            return
        self._stream.feed(data.replace(DIM, GREY))

    def type(self, step: Step) -> None:
        """Type a line and Enter, and wait for the prompt that comes then."""
        self._child.send(step.line)
        self.wait(lambda: step.line in self._row(self._screen.cursor.y), step.line)
        row = self._screen.cursor.y
        self._child.send("\r")
        self.wait(
            lambda: self._screen.cursor.y > row and self.is_at(step.prompt), f"what follows {step.line!r}"
        )

    def settle(self) -> None:
        """Let what is drawn beside the prompt be drawn."""
        until = time.monotonic() + SETTLE_S
        while time.monotonic() < until:
            self.read()

    def text(self) -> Text:
        """What is shown. Of the blank lines between the prompt and the line at the bottom one is left."""
        rows = [y for y in range(ROWS) if self._row(y).strip()]
        gap = next((y for y in reversed(rows) if y - 1 not in rows and y > self._screen.cursor.y), None)
        shown = [y for y in range(rows[-1] + 1) if gap is None or not self._screen.cursor.y + 1 < y < gap]
        return Text("\n").join(Text.assemble(*self._cells(y)) for y in shown)

    def _row(self, y: int) -> str:
        return self._screen.display[y]

    def _cells(self, y: int) -> list[tuple[str, Style]]:
        line = self._screen.buffer[y]
        cells = [(line[x].data, _style(line[x])) for x in range(COLUMNS)]
        if y == self._screen.cursor.y:
            x = self._screen.cursor.x
            cells[x] = (cells[x][0], Style(reverse=True))
        return cells


def _style(cell: Char) -> Style:
    return Style(
        color=_colour(cell.fg),
        bgcolor=_colour(cell.bg),
        bold=cell.bold or None,
        italic=cell.italics or None,
        underline=cell.underscore or None,
        strike=cell.strikethrough or None,
        reverse=cell.reverse or None,
    )


def _colour(name: str) -> str:
    """A colour of pyte's as rich names it."""
    if name == "default" or name in NAMES:
        return NAMES.get(name, name)
    if name.startswith("bright"):
        return name.replace("bright", "bright_")
    return name if name.isalpha() and not _is_hex(name) else f"#{name}"


def _is_hex(name: str) -> bool:
    return len(name) == 6 and all(letter in "0123456789abcdef" for letter in name)


def record(folder: Path) -> Text:
    home = folder / "home"
    home.mkdir()
    shutil.copy(bisect.__file__, home)  # a file to talk about
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("SATCHEL_", "NO_COLOR", "XDG_", "COLUMNS", "LINES"))
    }
    environment = kept | {
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PS1": f"{SHELL_PROMPT} ",
        "TERM": "xterm-256color",
        "LC_ALL": "C.UTF-8",
        "SATCHEL_HOME": str(home / ".satchel"),
        "SATCHEL_CACHE": str(cache_dir()),
        "SATCHEL_TEMPERATURE": "0",
        "SATCHEL_MAX_TOKENS": "60",
        "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring",
    }
    shell = Shell(home, environment)
    try:
        shell.wait(lambda: shell.is_at(SHELL_PROMPT), "the shell")
        for step in STEPS:
            shell.type(step)
        shell.settle()
        return shell.text()
    finally:
        shell.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shown = record(Path(folder))
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(shown, no_wrap=True, overflow="crop")
    console.save_svg(str(args.out), title="satchel")
    print(shown.plain)
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
