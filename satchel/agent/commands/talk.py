"""Commands within a talk: aside, again, shortened, and over and over. Knows nothing of how turns are run."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from satchel.agent.commands.listing import counted
from satchel.agent.events import Event, Failed, Notice, Quit
from satchel.errors import SatchelError, UsageError

if TYPE_CHECKING:
    from satchel.agent.desk import Desk
    from satchel.agent.loop import Loop


def btw(desk: Desk, argument: str) -> Iterator[Event]:
    from satchel.agent.agent import aside_turn

    yield from aside_turn(desk, argument)


def retry(desk: Desk, argument: str) -> Iterator[Event]:
    from satchel.agent.agent import retry_turn

    yield from retry_turn(desk)


def compact(desk: Desk, argument: str) -> Iterator[Event]:
    from satchel.agent.agent import compact_turn

    yield from compact_turn(desk)


def loop(desk: Desk, argument: str) -> Iterator[Event]:
    from satchel.agent.commands.table import is_command, name_of
    from satchel.agent.loop import parse_loop

    parsed = parse_loop(argument)
    if is_command(parsed.prompt) and name_of(parsed.prompt) in ("loop", "stop"):
        raise UsageError(f"a loop cannot repeat /{name_of(parsed.prompt)}")
    yield from _repeated(desk, parsed)


def _repeated(desk: Desk, loop: Loop) -> Iterator[Event]:
    """The turns of `loop`, one after the other. What goes wrong in one is told, and the loop goes on.

    Raises:
        UsageError: the prompt itself is wrong.
    """
    from satchel.agent.agent import run_turn

    cancel, done = desk.cancel, 0
    while True:
        yield Notice(f"turn {done + 1}" + (f" of {loop.times}" if loop.times else ""))
        try:
            for event in run_turn(desk, loop.prompt, cancel):
                yield event
                if isinstance(event, Quit):
                    return
        except UsageError:
            raise
        except SatchelError as err:
            yield Failed(err.one_line())
        done += 1
        if not cancel.is_set():
            if done == loop.times:
                return
            if loop.interval_s:
                yield Notice(f"the next turn comes in {loop.interval_s:g} s; /stop or Ctrl-C ends the loop")
        if (yield from _stopped(desk, loop.interval_s)):
            yield Notice(f"the loop ended after {counted(done, 'turn')}")
            return


def _stopped(desk: Desk, seconds: float) -> Generator[Event, None, bool]:
    """Wait that long; returns whether the user ends the loop before."""
    from satchel.agent.commands.table import name_of

    deadline = time.monotonic() + seconds
    while not desk.cancel.is_set():
        line = desk.user.hear(max(deadline - time.monotonic(), 0.0), desk.cancel)
        if not line:
            break
        if name_of(line) == "stop":
            return True
        yield Notice("a loop is running, which hears /stop and Ctrl-C")
    return desk.cancel.is_set()


def stop(desk: Desk, argument: str) -> Iterator[Event]:
    yield Notice("no loop is running")
