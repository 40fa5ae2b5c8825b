"""Commands that change files as the model proposed it, and take that back. Knows nothing of diffs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from satchel.agent.commands.listing import counted
from satchel.agent.events import Diff, Event, Failed, Notice
from satchel.agent.user import agrees
from satchel.config.paths import data_dir
from satchel.errors import RefusedError, SatchelError, UsageError

if TYPE_CHECKING:
    from satchel.agent.attached import ContextFile
    from satchel.agent.desk import Desk
    from satchel.agent.edits.apply import Applied
    from satchel.agent.edits.plan import Change
    from satchel.agent.toolbox import Toolbox

BACKUPS = "backups"  # below the data directory
NOTHING_CHANGED = "nothing was changed"

_OUTSIDE = "it is outside of the directory worked in: /add it, if it is to be changed"
_UNSURE = "it was put into the talk elsewhere, and where is not known any more: /add it again"


def apply(desk: Desk, argument: str) -> Iterator[Event]:
    from satchel.agent.edits.apply import apply_plan, recover
    from satchel.agent.edits.parse import parse_edits
    from satchel.agent.edits.plan import plan_edits

    answer = desk.session.last_answer()
    if answer is None:
        raise UsageError("there is no answer yet")
    edits = parse_edits(answer)
    if not edits:
        raise UsageError(
            "the last answer changes no file", "changes are unified diffs, or SEARCH/REPLACE blocks"
        )
    backups = data_dir() / BACKUPS
    yield from map(Notice, recover(backups))
    places = _places(desk)
    plan = plan_edits(edits, places, desk.tools.cwd)
    if plan.changes:
        yield Diff(plan.diff())
    if plan.faults:
        yield from map(Failed, plan.faults)
        yield Notice(f"{NOTHING_CHANGED}: all of it has to fit")
        return
    if not plan.changes:
        yield Notice("the files are like that already")
        return
    if not agrees(desk.user, f"change {_names(plan.changes)}?"):
        yield Notice(NOTHING_CHANGED)
        return
    desk.tools.last_applied = apply_plan(plan, backups)
    yield Notice(f"changed {_names(plan.changes)}; /undo takes it back")
    yield from _noted(desk, plan.changes, places)


def undo(desk: Desk, argument: str) -> Iterator[Event]:
    from satchel.agent.edits import apply as edits

    backups = data_dir() / BACKUPS
    yield from map(Notice, edits.recover(backups))
    of_this_talk = desk.tools.last_applied
    applied = of_this_talk or edits.load_last(backups)
    if applied is None:
        raise UsageError("/apply has changed nothing that could be taken back")
    back, places = _reversed(applied, desk.tools.cwd), _places(desk)
    yield Diff("".join(change.diff() for change in back))
    if not of_this_talk and not agrees(desk.user, "this was changed in another talk: take it back?"):
        yield Notice(NOTHING_CHANGED)
        return
    edits.undo(applied)
    desk.tools.last_applied = None
    yield Notice(f"taken back: {_names(back)}")
    yield from _noted(desk, back, places)


def _reversed(applied: Applied, cwd: Path) -> list[Change]:
    """What taking `applied` back changes.

    Raises:
        RefusedError: a file was changed since.
        SatchelError: a file or its backup cannot be read.
    """
    from satchel.agent.edits.backup import digest
    from satchel.agent.edits.plan import MAX_BYTES, Change, shown_path
    from satchel.files import read_file

    back = []
    for index, file in enumerate(applied.files):
        target = Path(file.target)
        now = read_file(target, MAX_BYTES)
        if (None if now is None else digest(now)) != file.after:
            raise RefusedError(f"{file.path} was changed since", "nothing was taken back")
        back.append(Change(shown_path(file.path, target, cwd), target, now, applied.before(index)))
    return back


def _places(desk: Desk) -> dict[str, Path | str]:
    """By the paths that the model knows them by, where files are; or why they are not to be changed."""
    from satchel.agent.context import known_files, split_files

    added = split_files(desk.session.system)[1]
    return {
        file.path: _place(desk.tools, file, is_added=file in added)
        for file in known_files(desk.session.messages)
    }


def _place(tools: Toolbox, file: ContextFile, *, is_added: bool) -> Path | str:
    """Where `file` is, or why it is not to be changed.

    That is known of what was put into the context in this run. Of another run's files the path alone is
    left: those that the user added may be anywhere if it is absolute; else a file is below the directory
    where commands run, which changes, or below the one that we started in, whichever has it as it was read.
    """
    from satchel.agent.places import is_file, real_path

    if place := tools.places.get(file):
        return place
    bases = list(dict.fromkeys(map(real_path, (tools.cwd, Path.cwd()))))
    found = list(dict.fromkeys(real_path(base / file.path) for base in bases))
    if len(found) > 1:
        found = [place for place in found if is_file(place) and _holds(place, file.text)]
    if len(found) != 1:
        return _UNSURE
    is_allowed = is_added and Path(file.path).is_absolute()
    is_inside = any(found[0].is_relative_to(base) for base in bases)
    return found[0] if is_allowed or is_inside else _OUTSIDE


def _holds(place: Path, text: str) -> bool:
    from satchel.agent.edits.plan import MAX_BYTES
    from satchel.files import read_file

    try:
        content = read_file(place, MAX_BYTES)
        return content is not None and content.decode("utf-8-sig") == text
    except (SatchelError, UnicodeDecodeError):
        return False


def _names(changes: Sequence[Change]) -> str:
    return changes[0].path if len(changes) == 1 else counted(len(changes), "file")


def _noted(desk: Desk, changes: Sequence[Change], places: Mapping[str, Path | str]) -> Iterator[Event]:
    """Have the model read the files of the context as they are now.

    Args:
        places: where they were, by the paths that the model knows them by.
    """
    from satchel.agent.context import ContextFile, split_files, with_files
    from satchel.agent.places import real_path

    session, known = desk.session, desk.tools.places
    prompt, files = split_files(session.system)
    changed = {each.target: each.after for each in changes}
    now = []
    for file in files:
        place = known.get(file) or places.get(file.path)
        target = real_path(place) if isinstance(place, Path) else None
        if target is None or target not in changed:
            now.append(file)
        elif (after := changed[target]) is not None:
            now.append(ContextFile(file.path, after.decode("utf-8-sig")))
            known[now[-1]] = target
    if tuple(now) != files:
        session.set_system(with_files(prompt, now))
        yield Notice(
            "the talk has the files as they are now, and is read again from there with the next message"
        )
