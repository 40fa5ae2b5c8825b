"""The slash commands of the chat: a registry of names, help and handlers.

A handler yields lines to show and control outcomes. Knows nothing of how they are shown or typed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from satchel.agent.events import Notice
from satchel.errors import UsageError

if TYPE_CHECKING:  # the session brings the engine; the names of the commands must not
    from satchel.cache_store.manifest import Head
    from satchel.session import Session, SessionManager


@dataclass(slots=True)
class Desk:
    """What the commands work on. `session` is the one being talked in."""

    manager: SessionManager
    session: Session


@dataclass(frozen=True, slots=True)
class SwitchTo:
    """Go on in another session."""

    session: Session


@dataclass(frozen=True, slots=True)
class Quit:
    """End the chat."""


# A plain string is what the user asked to see; a Notice says what was done.
Outcome = str | Notice | SwitchTo | Quit
Handler = Callable[[Desk, str], Iterator[Outcome]]


@dataclass(frozen=True, slots=True)
class Command:
    """`args` as the help shows them: empty for none, `[optional]` or `<needed>`."""

    name: str
    args: str
    help: str
    handler: Handler
    aliases: tuple[str, ...] = ()


def is_command(line: str) -> bool:
    """Whether `line` is a command and not a message. A path such as `/etc/hosts` begins a message."""
    return re.match(r"/[^\s/]*(\s|$)", line) is not None


def run_command(desk: Desk, line: str) -> Iterator[Outcome]:
    """Run the command in `line`.

    Raises:
        UsageError: an unknown command (the nearest is named) or wrong arguments.
        SatchelError: whatever the command itself met.
    """
    name, *rest = line.removeprefix("/").split(maxsplit=1) or [""]
    argument = " ".join(rest).strip()
    command = _BY_NAME.get(name.lower())
    if command is None:
        near = difflib.get_close_matches(name.lower(), _BY_NAME, n=1, cutoff=0.5)
        hint = f"did you mean /{near[0]}?" if near else "/help lists the commands"
        raise UsageError(f"there is no command /{name}", hint)
    if argument and not command.args:
        raise UsageError(f"/{command.name} takes no argument")
    if not argument and command.args.startswith("<"):
        raise UsageError(f"/{command.name} needs {command.args}")
    yield from command.handler(desk, argument)


def session_table(heads: Iterable[Head]) -> str:
    """Stored sessions, a line each, times in the local zone."""
    # Names and titles stand last: they may hold wide characters, which would break the columns.
    lines = [f"{'SAVED':<16}  {'TURNS':>5}  {'TOKENS':>7}  {'SIZE':>9}  NAME  TITLE"]
    for head in heads:
        saved = f"{head.updated_at.astimezone():%Y-%m-%d %H:%M}"
        size = f"{head.stored_bytes / 1e6:.1f} MB"
        title = f"{head.title} ({head.archive_note})" if head.archive_note else head.title
        lines.append(f"{saved}  {head.turns:>5}  {head.token_count:>7,}  {size:>9}  {head.name}  {title}")
    return "\n".join(lines)


def _save(desk: Desk, argument: str) -> Iterator[Outcome]:
    desk.session.save(argument or None)
    yield Notice(f"saved as {desk.session.name or desk.session.id}")


def _load(desk: Desk, argument: str) -> Iterator[Outcome]:
    yield SwitchTo(desk.manager.open(argument))


def _new(desk: Desk, argument: str) -> Iterator[Outcome]:
    yield SwitchTo(desk.manager.new())
    yield Notice("a new session")


def _sessions(desk: Desk, argument: str) -> Iterator[Outcome]:
    listed = desk.manager.store.heads()
    if listed.heads:
        yield session_table(listed.heads)
    elif not listed.damaged:
        yield Notice("no sessions are stored yet")
    yield from map(Notice, listed.damaged)


def _stats(desk: Desk, argument: str) -> Iterator[Outcome]:
    stats = desk.session.stats()
    width = max(len(label) for label in stats)
    yield "\n".join(f"{label:<{width}}  {value}" for label, value in stats.items())


def _help(desk: Desk, argument: str) -> Iterator[Outcome]:
    usages = [f"/{command.name} {command.args}".rstrip() for command in COMMANDS]
    width = max(len(usage) for usage in usages)
    helps = [command.help for command in COMMANDS]
    yield "\n".join(f"{usage:<{width}}  {text}" for usage, text in zip(usages, helps, strict=True))


def _quit(desk: Desk, argument: str) -> Iterator[Outcome]:
    yield Quit()


COMMANDS = (
    Command("save", "[name]", "save this session, under a name if one is given", _save),
    Command("load", "<name>", "go on in a stored session", _load),
    Command("sessions", "", "list the stored sessions", _sessions),
    Command("new", "", "start a new session", _new),
    Command("stats", "", "tokens, memory and speed of this session", _stats),
    Command("help", "", "list the commands", _help),
    Command("quit", "", "leave (also /exit, Ctrl-D)", _quit, aliases=("exit",)),
)
_BY_NAME = {name: command for command in COMMANDS for name in (command.name, *command.aliases)}
