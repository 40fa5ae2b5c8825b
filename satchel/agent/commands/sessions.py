"""Commands for stored sessions: saving, loading, listing, naming, and going back. Knows nothing of models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from satchel.agent.commands.leaving import leave
from satchel.agent.commands.listing import counted, local_time
from satchel.agent.events import Event, Notice, Output, Quit, Switched
from satchel.cache_store.manifest import title_of
from satchel.errors import UsageError
from satchel.sanitize import sanitize_line

if TYPE_CHECKING:
    from satchel.agent.desk import Desk
    from satchel.cache_store.manifest import Head, Manifest
    from satchel.session import Session

PAGE = 50  # sessions in a list

# A window with fewer columns shows fewer of the figures.
WIDE, NARROW = 80, 56
MIN_TITLE = 4  # columns: a shorter piece of a title says nothing


def session_table(heads: Iterable[Head], columns: int | None = None) -> str:
    """Stored sessions, a line each, times in the local zone.

    Args:
        columns: of the window. A narrow one shows less of each: first of the titles, then of the figures; a
            name is what is typed, and stays whole. None shows everything.
    """
    # Names and titles stand last: they may hold wide characters, which would break the columns.
    lines: list[tuple[str, ...]] = [
        (f"{'SAVED':<16}", f"{'TURNS':>5}", f"{'TOKENS':>7}", f"{'SIZE':>9}", "NAME", "TITLE")
    ]
    for head in heads:
        title = f"{head.title} ({head.archive_note})" if head.archive_note else head.title
        size = f"{head.stored_bytes / 1e6:.1f} MB"
        figures = f"{head.turns:>5}", f"{head.token_count:>7,}", f"{size:>9}"
        lines.append((local_time(head.updated_at), *figures, sanitize_line(head.name), sanitize_line(title)))
    if columns is None:
        return "\n".join("  ".join(line) for line in lines)
    if columns < WIDE:
        lines = [(saved, turns, name, title) for saved, turns, _, _, name, title in lines]
    if columns < NARROW:
        lines = [(saved[: len("2026-01-31")], name, title) for saved, _, name, title in lines]
    from wcwidth import width

    name_columns = min(max(width(line[-2]) for line in lines), columns // 4)
    return "\n".join(_fitted(line, name_columns, columns) for line in lines)


def _fitted(cells: Sequence[str], name_columns: int, columns: int) -> str:
    """`cells` in a line of at most so many columns, at the cost of the last; the name is before it."""
    from wcwidth import clip, ljust, width

    *others, name, title = cells
    before = "  ".join([*others, ljust(name, name_columns), ""])
    room = columns - width(before)
    if width(title) <= room:
        return before + title
    return f"{before}{clip(title, 0, room - 1).rstrip()}…" if room >= MIN_TITLE else before.rstrip()


def save(desk: Desk, argument: str) -> Iterator[Event]:
    desk.session.save(argument or None)
    yield Notice(f"saved as {desk.session.name or desk.session.id}")


def load(desk: Desk, argument: str) -> Iterator[Event]:
    if (yield from leave(desk)):
        desk.session = desk.manager.open(argument)
        yield Switched(desk.session)


def new(desk: Desk, argument: str) -> Iterator[Event]:
    if (yield from leave(desk)):
        desk.session = desk.manager.new()
        yield Switched(desk.session)
        yield Notice("a new session")


def clear(desk: Desk, argument: str) -> Iterator[Event]:
    before = desk.session
    if not (yield from leave(desk)):
        return
    desk.session = desk.manager.new()
    yield Switched(desk.session)
    if before.unsaved:
        yield Notice("a new session; the talk before was not stored")
    elif before.name:
        yield Notice(
            f"a new session; the talk before stays stored as {before.name}: /load {before.name} goes back"
        )
    else:
        yield Notice("a new session")


def sessions(desk: Desk, argument: str) -> Iterator[Event]:
    listed = desk.manager.store.heads(PAGE)
    if listed.heads:
        yield Output(session_table(listed.heads), lambda columns: session_table(listed.heads, columns))
        if len(listed.heads) < listed.total:
            yield Notice(
                f"the newest {PAGE} of {listed.total:,}; `satchel sessions list --limit 0` shows all"
            )
    elif not listed.damaged:
        yield Notice("no sessions are stored yet")
    yield from map(Notice, listed.damaged)


def rename(desk: Desk, argument: str) -> Iterator[Event]:
    session = desk.session
    if not session.id:
        raise UsageError("this talk is not stored yet", f"/save {argument} stores it under that name")
    head = desk.manager.store.rename(session.id, argument)
    if not session.follow(head.session_id):
        yield Notice(
            f"the stored session is called {head.name!r} now, and has words that are not in this talk"
        )
    yield from map(Notice, session.take_notices())


def branch(desk: Desk, argument: str) -> Iterator[Event]:
    before = desk.session.name
    name = desk.session.branch(argument or None)
    yield Notice(f"going on in {name}; {before or 'the session before'} stays as it is")


def restore(desk: Desk, argument: str) -> Iterator[Event]:
    session = desk.session
    abandoned = session.abandoned()
    if not argument:
        lines = "\n".join(_turn_lines(session, abandoned))
        yield Output(lines) if lines else Notice("nothing was said yet")
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


def undo_turn(desk: Desk, argument: str) -> Iterator[Event]:
    turns = desk.session.turns()
    desk.session.restore_turn(len(turns) - 1)
    yield Notice(f"taken back: {title_of(turns[-1])}; /restore lists what was left behind")


def _turn_lines(session: Session, abandoned: Sequence[Manifest]) -> Iterator[str]:
    for number, question in enumerate(session.turns(), start=1):
        yield f"{number:>3}  {title_of(question)}"
    if abandoned:
        yield "left behind:"
    for number, manifest in enumerate(abandoned, start=1):
        saved = local_time(manifest.created_at)
        last = title_of(manifest.questions[-1]) if manifest.questions else "none"
        yield f"{-number:>3}  {saved}, {counted(len(manifest.questions), 'turn')}, the last: {last}"


def quit_talk(desk: Desk, argument: str) -> Iterator[Event]:
    if (yield from leave(desk)):
        yield Quit()
