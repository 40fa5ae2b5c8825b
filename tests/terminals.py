"""Programs on a real terminal: a pseudo-terminal with an emulator (pyte) behind it."""

import os
import sys
import termios
import time

import pexpect
import pyte
import pytest

UP, LEFT, BACKSPACE, CTRL_C, CTRL_D, ALT_ENTER = "\x1b[A", "\x1b[D", "\x7f", "\x03", "\x04", "\x1b\r"


class Terminal:
    """A program on a terminal of 24 lines, and what a person sees of it."""

    def __init__(self, command, environment, columns=80):
        # What runs these tests may have a size of its own.
        environment = {key: environment[key] for key in environment if key not in ("COLUMNS", "LINES")}
        self.child = pexpect.spawn(command[0], command[1:], dimensions=(24, columns), env=environment)
        self.modes = termios.tcgetattr(self.child.child_fd)
        self.raw = b""
        self.screen = pyte.HistoryScreen(columns, 24, history=10_000)
        self.screen.write_process_input = self.child.send  # answers to what the program asks the terminal
        self._stream = pyte.ByteStream(self.screen)

    def wait(self, seen, timeout_s=60):
        """Read until `seen()` is true."""
        deadline = time.monotonic() + timeout_s
        while not seen():
            assert time.monotonic() < deadline, "not seen in time:\n" + "\n".join(self.lines())
            self._read()

    def wait_for(self, text, timeout_s=60):
        self.wait(lambda: text in "\n".join(self.lines()), timeout_s)

    def exit_code(self, timeout_s=60):
        deadline = time.monotonic() + timeout_s
        while self._read():
            assert time.monotonic() < deadline, "the program goes on:\n" + "\n".join(self.lines())
        self.child.close()
        return self.child.exitstatus

    def lines(self):
        """All lines, those that have scrolled away first."""
        columns = range(self.screen.columns)
        gone = ["".join(row[x].data for x in columns).rstrip() for row in self.screen.history.top]
        return gone + [line.rstrip() for line in self.screen.display]

    def after(self, question):
        """What stands below the message `question`."""
        return "\n".join(self.lines()).partition(f"> {question}\n")[2].strip()

    def prompt_is_ready(self):
        row = self.screen.display[self.screen.cursor.y].rstrip()
        return (row, self.screen.cursor.x) == (">", 2)

    def resize(self, columns, rows=24):
        self.child.setwinsize(rows, columns)
        self.screen.resize(rows, columns)

    def _read(self):
        try:
            data = self.child.read_nonblocking(65536, timeout=0.05)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.raw += data
        self._stream.feed(data)
        return True


@pytest.fixture
def environment(tmp_path):
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SATCHEL_", "NO_COLOR"))}
    if cache := os.environ.get("SATCHEL_CACHE"):
        kept["SATCHEL_CACHE"] = cache
    return kept | {"SATCHEL_HOME": str(tmp_path), "TERM": "xterm-256color", "PYTHONUTF8": "1"}


def draw(environment, body, **more):
    """A terminal in which `body` draws with a Renderer called `r`."""
    code = (
        "import time\n"
        "from types import SimpleNamespace\n"
        "from satchel.agent.events import *\n"
        "from satchel.terminal.render import Renderer\n"
        "r = Renderer()\n"
        "stats = SimpleNamespace(prompt_tokens=5, reused_tokens=398, generated_tokens=12, decode_tps=8.25)\n"
        + body
    )
    return Terminal([sys.executable, "-c", code], environment | more)


class Typed:
    """A prompt at which these lines are typed, and then Ctrl-D."""

    def __init__(self, *lines: str) -> None:
        self.lines = list(lines)

    def read(self) -> str:
        if not self.lines:
            raise EOFError
        return self.lines.pop(0)
