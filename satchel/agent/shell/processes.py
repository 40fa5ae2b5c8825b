"""The processes that a command started, to end them all. Knows nothing of what they are for.

They are found by their session, which only a process that asks for one of its own leaves, and by their
parents. On Linux /proc tells; elsewhere `ps` does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TERM_GRACE_S = 0.3  # between SIGTERM and SIGKILL
KILL_GRACE_S = 0.5  # for what is killed to be gone
HANGUP_GRACE_S = 0.5  # for what a hangup ends to be gone
_STEP_S = 0.02


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    session: int
    started: str  # tells it from a later process of the same number


class Family:
    """What descends from `leader`, the first process of a session of its own."""

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self._known: set[_Process] = set()

    def in_session(self) -> list[int]:
        """The processes that are still in the session, by number."""
        return [process.pid for process in _processes() if process.session == self._leader]

    def members(self) -> list[int]:
        """The session's processes, and all that descend from one, in whatever session they are.

        Not those which left the session and lost their parents before they were seen.
        """
        running = _processes()
        parents = {self._leader}
        members = {each for each in running if each.session == self._leader or each in self._known}
        while True:
            parents |= {each.pid for each in members}
            found = {each for each in running if each.parent in parents} - members
            if not found:
                break
            members |= found
        self._known |= members
        return [each.pid for each in members]

    def hang_up(self) -> tuple[int, int]:
        """Tell the session's processes what a closing terminal tells them: SIGHUP ends all but those which
        chose to ignore it, as under nohup. How many it ended, and how many run on."""
        before = self.in_session()
        _signal(before, signal.SIGHUP)
        after = _wait_until_none(self.in_session, HANGUP_GRACE_S) if before else []
        return len(set(before) - set(after)), len(after)

    def end(self) -> int:
        """End all members: SIGTERM, and SIGKILL for what is left. How many could not be ended."""
        try:
            members = self.members()  # before their parents end, by which they are found
            self._signal_group(signal.SIGTERM)
            _signal(members, signal.SIGTERM)
            left = _wait_until_none(self.members, TERM_GRACE_S)
        finally:  # also when a second Ctrl-C comes meanwhile
            self._signal_group(signal.SIGKILL)
            left = _wait_until_none(self._killed, KILL_GRACE_S)
        return len(left)

    def _killed(self) -> list[int]:
        members = self.members()
        _signal(members, signal.SIGKILL)
        return members

    def _signal_group(self, number: signal.Signals) -> None:
        """At once for all of the group, so that none can start another meanwhile."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._leader, number)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _wait_until_none(running: Callable[[], list[int]], grace_s: float) -> list[int]:
    """What is still `running` after at most `grace_s`."""
    deadline = time.monotonic() + grace_s
    while (left := running()) and time.monotonic() < deadline:
        time.sleep(_STEP_S)
    return left


def _processes() -> list[_Process]:
    """All processes of the machine that run; those which only wait to be noticed by their parents do not."""
    if Path("/proc/self/stat").exists():
        return _from_proc()
    return _from_ps()


def _from_proc() -> list[_Process]:
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            stat = (folder / "stat").read_bytes()
        except OSError:  # it has ended
            continue
        # proc(5): "pid (name) state ppid pgrp session … starttime"; the name may hold parentheses
        state, parent, _, session, *rest = stat[stat.rindex(b")") + 2 :].decode("ascii").split()
        if state not in "ZX":
            found.append(_Process(int(folder.name), int(parent), int(session), rest[15]))
    return found


def _from_ps() -> list[_Process]:
    listing = subprocess.run(
        ["ps", "-axo", "pid=,ppid=,stat=,lstart="],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=10,
        env={"PATH": "/bin:/usr/bin", "LC_ALL": "C"},
    ).stdout
    found = []
    for line in listing.splitlines():
        pid, parent, state, started = line.split(None, 3)
        if state.startswith("Z"):
            continue
        with contextlib.suppress(ProcessLookupError, PermissionError):  # ended; or another user's
            found.append(_Process(int(pid), int(parent), os.getsid(int(pid)), started))
    return found
