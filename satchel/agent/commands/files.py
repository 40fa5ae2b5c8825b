"""Commands for the files that the model reads with the talk. Knows nothing of how files are found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from satchel.agent.commands.listing import counted
from satchel.agent.commands.paths import words
from satchel.agent.events import Event, Notice, Output
from satchel.errors import SatchelError, UsageError

if TYPE_CHECKING:
    from satchel.agent.attached import ContextFile
    from satchel.agent.desk import Desk

ROLE_TOKENS = 8  # what a chat template puts around a message, about
ANSWER_SHARE = 4  # a quarter of the context, at most, is kept free for an answer


def add(desk: Desk, argument: str) -> Iterator[Event]:
    from satchel.agent.answers import reading
    from satchel.agent.context import collect, split_files, with_files

    session = desk.session
    collected = collect(words(argument), desk.tools.cwd)
    desk.tools.places |= collected.places
    yield from map(Notice, collected.skipped)
    if not collected.files:
        raise UsageError("none of these files can be read into the talk")
    before = session.system
    prompt, known = split_files(before)
    together = {file.path: file for file in (*known, *collected.files)}
    system = with_files(prompt, tuple(together.values()))
    _check_room(desk, system, len(collected.files))
    yield Output(_table(desk, collected.files))
    if system == before:
        yield Notice("the talk has them already, just as they are")
        return
    session.set_system(system)
    if session.turns():
        yield Notice("what was said stands behind the files, and is read again")
    try:
        yield from reading(session.read_ahead(desk.cancel))
    except SatchelError:
        session.set_system(before)
        raise
    yield from map(Notice, session.take_notices())
    if desk.cancel.is_set():
        yield Notice("stopped; what was not read yet is read with the next message")


def _check_room(desk: Desk, system: str, files: int) -> None:
    """
    Raises:
        UsageError: with the system message `system` no room would be left for an answer.
    """
    from satchel.session.summary import as_read

    session, length = desk.session, desk.manager.model.context_length
    before = session.system
    said = sum(session.count_tokens(each.content) + ROLE_TOKENS for each in as_read(session.messages))
    answer = min(desk.settings.max_tokens, length // ANSWER_SHARE)
    free = max(0, length - said - answer)
    needed = session.count_tokens(system) - (session.count_tokens(before) if before else 0)
    if needed > free:
        what = "this file takes" if files == 1 else f"these {files:,} files take"
        raise UsageError(
            f"{what} {needed:,} tokens, and {free:,} are free in the model's {length:,}",
            "add fewer of them, or /drop others",
        )


def drop(desk: Desk, argument: str) -> Iterator[Event]:
    from satchel.agent.context import known_files, split_files, with_files

    session = desk.session
    prompt, files = split_files(session.system)
    wanted = words(argument)
    if not known_files(session.messages):
        raise UsageError("there are no files in the talk", "/add puts some there")
    for each in wanted:
        if any(_is_meant(file.path, each) for file in files):
            continue
        if any(_is_meant(file.path, each) for file in known_files(session.messages)):
            raise UsageError(f"{each} came with a message, and stays in it", "/undo-turn takes that back")
        raise UsageError(f"there is no {each} in the talk", "/files lists what there is")
    dropped = [file for file in files if any(_is_meant(file.path, each) for each in wanted)]
    tokens = sum(session.count_tokens(file.text) for file in dropped)
    session.set_system(with_files(prompt, [file for file in files if file not in dropped]))
    names = dropped[0].path if len(dropped) == 1 else counted(len(dropped), "file")
    yield Notice(f"dropped {names}: {counted(tokens, 'token')}")
    if session.turns():
        yield Notice("what stands behind them is read again with the next message")


def files(desk: Desk, argument: str) -> Iterator[Event]:
    from satchel.agent.context import known_files, split_files

    session = desk.session
    added = split_files(session.system)[1]
    names = {file.path for file in added}
    others = [file for file in known_files(session.messages) if file.path not in names]
    if not (added or others):
        yield Notice("there are no files in the talk; /add puts some there")
        return
    if added:
        yield Output(_table(desk, added))
    if others:
        yield Notice("in messages:")
        yield Output(_table(desk, others))


def _table(desk: Desk, files: Sequence[ContextFile]) -> str:
    """The files with their tokens, and all together."""
    counts = [desk.session.count_tokens(file.text) for file in files]
    # Paths stand last: they may hold wide characters, which would break the columns.
    lines = [f"{count:>9,}  {file.path}" for count, file in zip(counts, files, strict=True)]
    total = [f"{sum(counts):>9,}  in {counted(len(files), 'file')}"] if len(files) > 1 else []
    return "\n".join([f"{'TOKENS':>9}  FILE", *lines, *total])


def _is_meant(path: str, wanted: str) -> bool:
    """Whether `wanted`, a path, a pattern or a folder, stands for the file shown as `path`."""
    wanted = wanted.removeprefix("./")
    return path == wanted or fnmatchcase(path, wanted) or path.startswith(f"{wanted.rstrip('/')}/")
