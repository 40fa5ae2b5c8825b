"""A cage for commands: nothing of the user's can be changed, and there is no network.

Reading stays allowed: a command in the sandbox can read what the user can. Knows nothing of commands.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from satchel.errors import RefusedError

SEATBELT = "/usr/bin/sandbox-exec"  # deprecated by Apple for years, and what its own tools still use

_TRIAL_TIMEOUT_S = 10


class Sandbox(Protocol):
    """Runs a program so that it can write nothing but temporary files of its own, and reach no network."""

    def wrapped(self, argv: Sequence[str], cwd: Path, scratch: Path) -> list[str]:
        """The arguments that run `argv` inside, in `cwd`; it may write to `scratch`, too, which exists."""


def open_sandbox() -> Sandbox:
    """The sandbox of this system, tried out.

    Raises:
        RefusedError: there is none, or it does not work here; the message says what is missing.
    """
    if sys.platform == "darwin":
        return _seatbelt(SEATBELT)
    program = shutil.which("bwrap")
    if program is None:
        raise RefusedError(
            "there is no sandbox: bwrap is not installed",
            "install the package bubblewrap, or go on without --sandbox",
        )
    return _bubblewrap(program)


@functools.cache
def _bubblewrap(program: str) -> Sandbox:
    sandbox = BubblewrapSandbox(program)
    _try_out(sandbox, "bwrap")
    return sandbox


@functools.cache
def _seatbelt(program: str) -> Sandbox:
    if not os.access(program, os.X_OK):
        raise RefusedError(f"there is no sandbox: {program} is not there", "go on without --sandbox")
    sandbox = SeatbeltSandbox(program)
    _try_out(sandbox, "sandbox-exec")
    return sandbox


def _try_out(sandbox: Sandbox, name: str) -> None:
    """Raises:
    RefusedError: nothing runs inside.
    """
    with tempfile.TemporaryDirectory(prefix="satchel-") as scratch:
        argv = sandbox.wrapped(["/bin/sh", "-c", "exit 0"], Path("/"), Path(scratch).resolve())
        try:
            trial = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TRIAL_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as err:
            raise _broken(name, str(err)) from err
    if trial.returncode != 0:
        raise _broken(name, trial.stderr.decode("utf-8", "replace").strip() or f"exit {trial.returncode}")


def _broken(name: str, why: str) -> RefusedError:
    hint = "the system may forbid user namespaces; go on without --sandbox" if name == "bwrap" else ""
    return RefusedError(f"the sandbox does not work: {why.splitlines()[-1]}", hint)


class BubblewrapSandbox:
    """Linux: namespaces of its own, and the file system read-only but for an empty /tmp.

    /run is hidden, too: through its sockets, services outside would do what the command itself cannot. Those
    that lie elsewhere, as in the home directory, can still be reached.
    """

    _HIDDEN = (Path("/tmp"), Path("/run"))  # noqa: S108 - of the sandbox alone

    def __init__(self, program: str) -> None:
        self._program = program

    def wrapped(self, argv: Sequence[str], cwd: Path, scratch: Path) -> list[str]:
        tmp, run = map(str, self._HIDDEN)
        options = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", tmp, "--tmpfs", run]
        # Programs of NixOS
        options += ["--ro-bind-try", "/run/current-system", "/run/current-system"]
        if any(hidden in cwd.parents for hidden in self._HIDDEN):
            options += ["--ro-bind", str(cwd), str(cwd)]
        options += ["--bind", str(scratch), str(scratch), "--chdir", str(cwd), "--setenv", "TMPDIR", tmp]
        options += [
            "--unshare-net",
            "--unshare-pid",
            "--unshare-ipc",
            "--unshare-uts",
            "--unshare-cgroup-try",
        ]
        # Also where the user is root, who could mount the file system anew
        options += ["--cap-drop", "ALL", "--die-with-parent", "--new-session"]
        return [self._program, *options, "--", *argv]


class SeatbeltSandbox:
    """macOS: no network, and nothing written outside the scratch directory, where TMPDIR points to.

    Programs that would run outside, started for the command by launchd or through Apple events, are refused.
    """

    _PROFILE = """\
(version 1)
(allow default)
(deny network*)
(deny file-write*)
(allow file-write* (subpath (param "SCRATCH")) (literal "/dev/null") (literal "/dev/zero")
                   (literal "/dev/stdout") (literal "/dev/stderr") (subpath "/dev/fd"))
(deny appleevent-send)
(deny job-creation)
(deny lsopen)
(deny signal)
(allow signal (target same-sandbox))
"""

    def __init__(self, program: str) -> None:
        self._program = program

    def wrapped(self, argv: Sequence[str], cwd: Path, scratch: Path) -> list[str]:
        place = scratch.resolve()  # the kernel compares paths without links, as /var is one
        options = ["-D", f"SCRATCH={place}", "-p", self._PROFILE]
        return [self._program, *options, "/usr/bin/env", f"TMPDIR={place}", *argv]
