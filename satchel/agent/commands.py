"""The slash commands of the chat: a registry of names, help and handlers.

A handler yields lines to show and control outcomes. Knows nothing of how they are shown or typed.
"""

from __future__ import annotations

import contextlib
import difflib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from satchel.agent.events import Notice
from satchel.cache_store.manifest import title_of
from satchel.config.waits import PATIENCE_S, POLL_S
from satchel.errors import UsageError

if TYPE_CHECKING:  # the session brings the engine; the names of the commands must not
    from satchel.cache_store.manifest import Head, Manifest
    from satchel.session import Session, SessionManager
    from satchel.sync.background import BackgroundSync


PAGE = 50  # sessions in a list


@dataclass(slots=True)
class Desk:
    """What the commands work on.

    Attributes:
        session: the one being talked in.
        sync: what syncs beside the talk, if sync is set up.
        cancel: set when the user does not want to wait any longer.
    """

    manager: SessionManager
    session: Session
    sync: BackgroundSync | None = None
    cancel: threading.Event = field(default_factory=threading.Event)


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
        saved = _local_time(head.updated_at)
        size = f"{head.stored_bytes / 1e6:.1f} MB"
        title = f"{head.title} ({head.archive_note})" if head.archive_note else head.title
        lines.append(f"{saved}  {head.turns:>5}  {head.token_count:>7,}  {size:>9}  {head.name}  {title}")
    return "\n".join(lines)


def _local_time(time: datetime) -> str:
    with contextlib.suppress(ValueError, OverflowError):  # the zone of the environment may be none
        time = time.astimezone()
    return f"{time:%Y-%m-%d %H:%M}"


def _save(desk: Desk, argument: str) -> Iterator[Outcome]:
    desk.session.save(argument or None)
    yield Notice(f"saved as {desk.session.name or desk.session.id}")


def _load(desk: Desk, argument: str) -> Iterator[Outcome]:
    yield SwitchTo(desk.manager.open(argument))


def _new(desk: Desk, argument: str) -> Iterator[Outcome]:
    yield SwitchTo(desk.manager.new())
    yield Notice("a new session")


def _sessions(desk: Desk, argument: str) -> Iterator[Outcome]:
    listed = desk.manager.store.heads(PAGE)
    if listed.heads:
        yield session_table(listed.heads)
        if len(listed.heads) < listed.total:
            yield Notice(
                f"the newest {PAGE} of {listed.total:,}; `satchel sessions list --limit 0` shows all"
            )
    elif not listed.damaged:
        yield Notice("no sessions are stored yet")
    yield from map(Notice, listed.damaged)


def _branch(desk: Desk, argument: str) -> Iterator[Outcome]:
    before = desk.session.name
    name = desk.session.branch(argument or None)
    yield Notice(f"going on in {name}; {before or 'the session before'} stays as it is")


def _restore(desk: Desk, argument: str) -> Iterator[Outcome]:
    session = desk.session
    abandoned = session.abandoned()
    if not argument:
        yield "\n".join(_turn_lines(session, abandoned)) or Notice("nothing was said yet")
        return
    try:
        number = int(argument)
    except ValueError as err:
        raise UsageError(f"{argument!r} is not the number of a turn", "/restore lists them") from err
    if number >= 0:
        session.restore_turn(number)
    elif -number <= len(abandoned):
        session.restore_abandoned(abandoned[-number - 1])
    else:
        raise UsageError(f"there is no {argument} to go back to", "/restore lists what there is")
    yield Notice(f"back at turn {len(session.turns())}; /restore lists what was left behind")


def _turn_lines(session: Session, abandoned: Sequence[Manifest]) -> Iterator[str]:
    for number, question in enumerate(session.turns(), start=1):
        yield f"{number:>3}  {title_of(question)}"
    if abandoned:
        yield "left behind:"
    for number, manifest in enumerate(abandoned, start=1):
        saved = _local_time(manifest.created_at)
        last = title_of(manifest.questions[-1]) if manifest.questions else "none"
        yield f"{-number:>3}  {saved}, {len(manifest.questions)} turns, the last: {last}"


def _sync(desk: Desk, argument: str) -> Iterator[Outcome]:
    if desk.sync is None:
        raise UsageError("sync is not set up", "`satchel sync setup` does it; then start the chat again")
    running = desk.sync.start(desk.session.id)
    if wait([running], PATIENCE_S).not_done:
        yield Notice("syncing; Ctrl-C goes back to the talk")
    while wait([running], POLL_S).not_done:
        if desk.cancel.is_set() and running.cancel():
            yield Notice("the sync goes on in the background")
            return
    report = running.result()
    yield from map(Notice, (*report.notices, *report.faults, report.summary() or "everything is in sync"))


def _stats(desk: Desk, argument: str) -> Iterator[Outcome]:
    stats = desk.session.stats()
    if desk.sync is not None:
        stats["sync"] = desk.sync.state
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
    Command("branch", "[name]", "go on in a copy of this session, which stays as it is", _branch),
    Command(
        "restore",
        "[turn]",
        "go back to the end of a turn; -1 to what was left behind last; alone, list both",
        _restore,
    ),
    Command("new", "", "start a new session", _new),
    Command("sync", "", "send and fetch what is new, now", _sync),
    Command("stats", "", "tokens, memory and speed of this session", _stats),
    Command("help", "", "list the commands", _help),
    Command("quit", "", "leave (also /exit, Ctrl-D)", _quit, aliases=("exit",)),
)
_BY_NAME = {name: command for command in COMMANDS for name in (command.name, *command.aliases)}
