"""`satchel ingest`, and the files that `ask` puts ahead of a question.

What takes long to import (MLX, the store) is imported inside the functions that need it.
"""

from __future__ import annotations

import shlex
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from satchel.cli.exchange import counted
from satchel.cli.options import (
    AsJson,
    Kv,
    Model,
    System,
    chosen_settings,
    examples,
    load_manager,
    open_store,
    renderer_of,
    report,
)
from satchel.cli.records import FileTokens, IngestedRecord
from satchel.cli.schemas import print_json
from satchel.errors import NotFoundError, RefusedError
from satchel.terminal.manner import is_quiet
from satchel.terminal.sanitize import sanitize_line

if TYPE_CHECKING:
    from satchel.agent.context import ContextFile
    from satchel.agent.events import Event
    from satchel.session import Session

LISTED = 30  # files that are named, the largest; the rest is counted
LEAST_ROOM = 512  # tokens that the files have to leave for the talk about them


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "satchel ingest README.md docs --name project",
            "satchel ingest 'src/**/*.py' --name code        # quoted: Satchel finds the files",
            "satchel resume project                          # a talk about them, at once",
        )
    )(ingest)


def ingest(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH…", help="Files, folders, or patterns such as 'src/**/*.py'.")
    ],
    name: Annotated[str, typer.Option(help="What the session is to be called.")],
    model: Model = None,
    kv: Kv = None,
    system: System = None,
    as_json: AsJson = False,
) -> None:
    """Read files once, and keep what the model has read of them as a session to start talks from.

    What .gitignore names, and what is no text, is left out.
    """
    from satchel.terminal.interrupts import interrupt_sets

    settings = chosen_settings(model=model, kv_profile=kv, system_prompt=system)
    files = collect_files(paths)
    earlier = _earlier(name)
    manager = load_manager(settings)
    session = manager.open(earlier, manager.profile) if earlier else manager.new()
    sizes = _place(session, settings.system_prompt, files)

    renderer, reading = renderer_of(settings), _Reading()
    with interrupt_sets(cancel := threading.Event()):
        renderer.turn(reading.events(session, cancel))
        if cancel.is_set():
            report("stopped: nothing is kept")
            raise KeyboardInterrupt
        session.save(name)
    for notice in session.take_notices():
        report(notice)
    name = session.name or name
    kept = len(session.token_ids) - reading.total
    if as_json:
        print_json(
            IngestedRecord(
                name=name,
                session_id=session.id,
                files=[FileTokens(path=path, tokens=tokens) for tokens, path in sizes],
                read_tokens=reading.total,
                reused_tokens=kept,
            )
        )
        return
    taken = f"; {counted(kept, 'token')} taken from the store" if kept else ""
    report(f"read {counted(reading.total, 'token')}{taken}")
    report(f"`satchel resume {shlex.quote(name)}` starts a talk from there")
    report("other sessions that begin with these files take what was read of them from the store")
    print(sanitize_line(name))


def collect_files(wanted: Sequence[str]) -> tuple[ContextFile, ...]:
    """The files that `wanted` names; those that are left out are told of on standard error.

    Raises:
        NotFoundError: one names nothing, or nothing that is left is text.
    """
    from satchel.agent.context import collect

    collected = collect(wanted, Path.cwd())
    for line in collected.skipped:
        report(f"left out: {line}")
    if not collected.files:
        raise NotFoundError(f"there is no text to read in {', '.join(wanted)}")
    return collected.files


def _earlier(name: str) -> str | None:
    """The id of the session `name`, if there is one that holds nothing but what was ingested before.

    Raises:
        RefusedError: there is a talk of this name.
    """
    from satchel.cache_store.names import validate_name
    from satchel.cache_store.sessions import open_session

    store, name = open_store(), validate_name(name)
    if store.free_name(name) == name:
        return None
    saved = open_session(store, name)
    if saved.manifest.questions:
        raise RefusedError(f"there is a talk called {name!r}, which stays as it is", "choose another --name")
    return saved.head.session_id


def _place(session: Session, prompt: str, files: Sequence[ContextFile]) -> list[tuple[int, str]]:
    """Begin `session` with `files`, and say how many tokens each has; returns that, the largest first.

    Raises:
        ContextFullError: they are more than the model takes.
    """
    from satchel.agent.context import with_files
    from satchel.session import ContextFullError

    text = with_files(prompt, files)
    length, total = session.manager.model.context_length, session.count_tokens(text)
    sizes = sorted(((session.count_tokens(file.text), file.path) for file in files), reverse=True)
    rows = sizes[:LISTED]
    if more := sizes[LISTED:]:
        rows.append((sum(tokens for tokens, _ in more), f"in {counted(len(more), 'smaller file')}"))
    for tokens, label in rows:
        if not is_quiet():
            print(f"{tokens:>9,}  {sanitize_line(label)}", file=sys.stderr)
    report(f"{counted(total, 'token')} in {counted(len(files), 'file')}; the model takes {length:,}")
    if total + LEAST_ROOM > length:
        raise ContextFullError(
            f"the files are {total:,} tokens, and the model takes {length:,}, of which {LEAST_ROOM} are "
            "needed to talk about them",
            f"leave some out; the largest is {sizes[0][1]}",
        )
    session.set_system(text)
    return sizes


class _Reading:
    """How many tokens were read ahead."""

    total = 0

    def events(self, session: Session, cancel: threading.Event) -> Iterator[Event]:
        from satchel.agent.events import PrefillProgress

        for progress in session.read_ahead(cancel):
            self.total = progress.total
            yield PrefillProgress(progress.done, progress.total)
