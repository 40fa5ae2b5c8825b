"""Runs shell commands, one after the other, as in one session of a shell.

A command has its standard input at its end, no terminal, and a process group and session of its own, which
ends with it. Knows nothing of who agreed to it, nor of what its output is for.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from satchel.agent.shell.capture import Capture, LiveText
from satchel.agent.shell.processes import Family
from satchel.agent.shell.sandbox import Sandbox
from satchel.agent.shell.surroundings import Surroundings
from satchel.errors import SatchelError, UsageError

MAX_COMMAND_BYTES = 64 << 10  # Linux takes arguments of up to 128 KiB, and quoting may double it
FALLBACK_SHELL = "/bin/sh"
POSIX_SHELLS = ("bash", "zsh", "sh", "dash", "ash", "ksh", "mksh")
KNOWN_SHELLS = (*POSIX_SHELLS, "fish")  # whose syntax is known for telling where a command ended

LINGER_S = 0.5  # that processes of a command may live on after its shell
_POLL_S = 0.05  # between two looks at the clock and at the user's wish to stop
_PAUSE_S = 0.2  # without output, after which a begun line is shown
_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended, and what it said.

    Attributes:
        exit_code: of the shell, 128 + n if signal n killed it; None if it was stopped.
        output: stdout and stderr in order, without control sequences; a gap in it says how long it is.
        dropped_bytes: the length of that gap.
        seconds: from its start until it ended or was stopped.
        ended: processes that it had left in the background, and that were ended.
        left: processes of it that still run.
    """

    command: str
    exit_code: int | None
    output: str
    dropped_bytes: int
    timed_out: bool
    cancelled: bool
    seconds: float
    ended: int = 0
    left: int = 0

    def status(self) -> str:
        """How it ended, as one line."""
        parts = [self._end()]
        if self.ended:
            parts.append(f"{_counted(self.ended, 'background ')} ended, too (nohup keeps one running)")
        if self.left:
            parts.append(f"{_counted(self.left)} of it still running")
        return "; ".join(parts)

    def _end(self) -> str:
        if self.timed_out or self.cancelled:
            stopped = "timed out" if self.timed_out else "cancelled"
            return f"{stopped} after {round(self.seconds, 1):g} s; what it had done stays done"
        number = (self.exit_code or 0) - 128
        try:
            name = signal.Signals(number).name
        except ValueError:
            return f"exit code {self.exit_code}"
        return f"exit code {self.exit_code}, as of a program killed by signal {number} ({name})"


def _counted(processes: int, kind: str = "") -> str:
    return f"1 {kind}process" if processes == 1 else f"{processes} {kind}processes"


def find_shell(wanted: str | None = None) -> str:
    """The path of the shell that runs commands: `wanted` or $SHELL, if we know it, else /bin/sh."""
    path = wanted or os.environ.get("SHELL", "")
    known = Path(path).name in KNOWN_SHELLS
    return path if known and Path(path).is_absolute() and os.access(path, os.X_OK) else FALLBACK_SHELL


class ShellRunner:
    """Runs commands with the user's shell. The directory and the exported variables that one leaves are the
    next one's, unless it was stopped; its shell's other variables, functions and options end with it.
    """

    def __init__(
        self,
        *,
        timeout_s: float,
        sandbox: Sandbox | None = None,
        shell: str | None = None,
        cwd: Path | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._sandbox = sandbox
        self._shell = find_shell(shell)
        self._surroundings = Surroundings((cwd or _working_directory()).resolve())

    @property
    def cwd(self) -> Path:
        """Where the next command starts."""
        return self._surroundings.cwd

    @property
    def shell(self) -> str:
        """The path of the shell."""
        return self._shell

    @property
    def kind(self) -> str:
        """The name of the shell, which says what syntax it reads: one of `KNOWN_SHELLS`."""
        return Path(self._shell).name

    def run(self, command: str, cancel: threading.Event) -> Iterator[str | CommandResult]:
        """Run `command`: pieces of its output as they come, fit to be shown, and the result in the end.

        Setting `cancel` ends the command and all that it started, as do its timeout and leaving the iterator.
        What it started in the background ends with its shell, as if a terminal were closed: `nohup` and
        `setsid` keep a process running, though nobody reads its output then; `disown` does not.

        Raises:
            UsageError: it is too long, or no text that a shell can be given; nothing has run.
            NotFoundError: the directory to run in is gone; nothing has run, and the next command runs in the
                nearest one that is there.
            SatchelError: it could not be started.
        """
        _check(command)
        self._surroundings.check_cwd()
        with contextlib.ExitStack() as stack:
            try:
                notes = Path(stack.enter_context(_scratch())).resolve()
                process = self._start(command, notes)
            except OSError as err:
                raise SatchelError(f"the command cannot be started: {err.strerror}") from err
            run = _Run(command, process, self._timeout_s, cancel)
            stack.callback(run.close)
            yield from filter(None, run.pieces())
            result = run.result()
            if result.exit_code is not None:
                self._surroundings.learn(notes)
        yield result

    def _start(self, command: str, notes: Path) -> subprocess.Popen[bytes]:
        text = self._surroundings.script(self.kind, command, notes)
        argv = [self._shell, "-c", text]
        if self._sandbox is not None:
            argv = self._sandbox.wrapped(argv, self.cwd, notes)
        return subprocess.Popen(
            argv,
            cwd=self.cwd,
            env=self._surroundings.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            start_new_session=True,
        )


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # deleted; the first command says so
        return Path(os.environ.get("PWD", "/"))


def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="satchel-", ignore_cleanup_errors=True)


def _check(command: str) -> None:
    """Raises:
    UsageError: no shell can be given `command`.
    """
    if "\0" in command:
        raise UsageError("the command holds a NUL character", "no shell can be given one")
    try:
        size = len(command.encode())
    except UnicodeEncodeError as err:
        raise UsageError("the command holds what is no text", "write it anew") from err
    if size > MAX_COMMAND_BYTES:
        raise UsageError(f"the command is {size:,} bytes long", f"at most {MAX_COMMAND_BYTES:,} can be run")


class _Run:
    """One command while it runs."""

    def __init__(
        self, command: str, process: subprocess.Popen[bytes], timeout_s: float, cancel: threading.Event
    ) -> None:
        self._command = command
        self._process = process
        self._family = Family(process.pid)
        self._timeout_s = timeout_s
        self._cancel = cancel
        self._capture = Capture()
        self._live = LiveText()
        self._started = self._ended = time.monotonic()
        self._stopped: str | None = None
        self._background = (0, 0)
        assert process.stdout is not None
        self._pipe = process.stdout
        self._pipe_open = True
        os.set_blocking(self._pipe.fileno(), False)

    def pieces(self) -> Iterator[str]:
        """What is to be shown, until the command and all that it started have ended."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe, selectors.EVENT_READ)
            yield from self._watched(selector)
        if self._stopped:
            self._background = (0, self._family.end())
            self._process.poll()
        else:
            self._background = self._without_background()
        deadline = time.monotonic() + LINGER_S  # what does not end may write for ever
        while self._pipe_open and time.monotonic() < deadline and (data := self._read()):
            yield self._taken(data)
        yield self._live.finish()

    def _watched(self, selector: selectors.BaseSelector) -> Iterator[str]:
        """Follow the command until its shell has exited and its output is over, or until it is to stop."""
        exited_at: float | None = None
        heard_at = self._started
        while True:
            now = time.monotonic()
            if exited_at is None and self._process.poll() is not None:
                exited_at = self._ended = now
            if exited_at is None and self._to_stop(now):
                self._ended = now
                return
            if exited_at is not None and (not self._pipe_open or now - exited_at > LINGER_S):
                return
            if not self._pipe_open:  # closed by a shell that runs on
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_POLL_S)
            elif selector.select(_POLL_S):
                heard_at = now
                if data := self._read():
                    yield self._taken(data)
            elif now - heard_at > _PAUSE_S:
                yield self._live.pause()

    def _to_stop(self, now: float) -> bool:
        if self._cancel.is_set():
            self._stopped = "cancelled"
        elif now - self._started >= self._timeout_s:
            self._stopped = "timed out"
        return self._stopped is not None

    def _read(self) -> bytes:
        """What is in the pipe now; b"" if it is empty, or over, which `_pipe_open` tells apart."""
        try:
            data = os.read(self._pipe.fileno(), _READ_BYTES)
        except BlockingIOError:
            return b""
        self._pipe_open = bool(data)
        return data

    def _taken(self, data: bytes) -> str:
        self._capture.feed(data)
        return self._live.feed(data)

    def _without_background(self) -> tuple[int, int]:
        """End what the shell left behind. How many processes were ended, and how many run on."""
        while self._family.in_session():
            if time.monotonic() - self._ended > LINGER_S:
                return self._family.hang_up()
            time.sleep(_POLL_S)
        return 0, 0

    def result(self) -> CommandResult:
        """How it ended; after `pieces`."""
        code = self._process.returncode
        if code is not None and code < 0:
            code = 128 - code
        ended, left = self._background
        output = self._capture.text()
        return CommandResult(
            command=self._command,
            exit_code=None if self._stopped else code,
            output=output,
            dropped_bytes=self._capture.dropped_bytes,
            timed_out=self._stopped == "timed out",
            cancelled=self._stopped == "cancelled",
            seconds=self._ended - self._started,
            ended=ended,
            left=left,
        )

    def close(self) -> None:
        """End the command if it was left before its end."""
        try:
            if self._process.returncode is None:
                self._family.end()
                # One that another user's rights keep from being ended must not keep us.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_POLL_S)
        finally:
            self._pipe.close()
