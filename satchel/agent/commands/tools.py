"""Commands for the agent's tools: whether and how they are used. Knows nothing of how they work."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

from satchel.agent.commands.listing import facts
from satchel.agent.events import Event, Notice, Output
from satchel.errors import SatchelError, UsageError

if TYPE_CHECKING:
    from satchel.agent.desk import Desk

APPROVALS = {
    "ask": "every command that the model proposes is asked about",
    "read-only": "commands that only read run without asking; all others are asked about",
}


def agent(desk: Desk, argument: str) -> Iterator[Event]:
    desk.routing = True
    yield Notice("messages may become searches and commands now; /raw ends that")


def raw(desk: Desk, argument: str) -> Iterator[Event]:
    desk.routing = False
    yield Notice("messages go to the model as they are now; /agent ends that")


def search(desk: Desk, argument: str) -> Iterator[Event]:
    from satchel.agent.agent import search_turn

    yield from search_turn(desk, argument, must_find=True)


def shell(desk: Desk, argument: str) -> Iterator[Event]:
    from satchel.agent.agent import shell_turn

    yield from shell_turn(desk, argument)


def auto(desk: Desk, argument: str) -> Iterator[Event]:
    if argument:
        if argument not in APPROVALS:
            raise UsageError(
                f"there is no approval mode {argument!r}", f"there are {' and '.join(APPROVALS)}"
            )
        chosen = desk.settings.shell.model_copy(update={"approve": argument})
        desk.settings = desk.settings.model_copy(update={"shell": chosen})
    approve = desk.settings.shell.approve
    yield Notice(f"{approve}: {APPROVALS[approve]}")


def tools(desk: Desk, argument: str) -> Iterator[Event]:
    approve = desk.settings.shell.approve
    yield Output(
        facts(
            {
                "routing": "on: messages may become searches and commands (/raw ends that)"
                if desk.routing
                else "off: messages go to the model as they are (/agent changes that)",
                "search": _search(desk),
                "shell": _shell(desk),
                "directory": desk.tools.cwd,
                "approval": f"{approve}: {APPROVALS[approve]}",
                "sandbox": _sandbox(desk),
            }
        )
    )


def _search(desk: Desk) -> str:
    chosen = desk.settings.search
    try:
        name = desk.tools.finder.name
    except SatchelError as err:
        return f"{chosen.provider}: not usable: {err.one_line()}"
    if chosen.provider == "ddgs" and find_spec("ddgs") is None:
        return f"{name}: not usable: the package ddgs is not installed"
    return name


def _shell(desk: Desk) -> str:
    try:
        return f"{desk.tools.shell.shell}, at most {desk.settings.shell.timeout_s:g} s a command"
    except SatchelError as err:
        return f"not usable: {err.one_line()}"


def _sandbox(desk: Desk) -> str:
    from satchel.agent.shell.sandbox import open_sandbox

    try:
        open_sandbox()
    except SatchelError as err:
        return f"not there: {err}"
    if desk.settings.shell.sandbox:
        return "on: commands write nothing but temporary files, and have no network"
    return "off, and there (`sandbox = true` below [shell] turns it on)"
