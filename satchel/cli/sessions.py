"""`satchel sessions …`: the stored talks."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from satchel.cli.options import (
    AsJson,
    Model,
    Name,
    agree,
    chosen_settings,
    load_manager,
    open_store,
    report,
)
from satchel.terminal.sanitize import sanitize, sanitize_line

sessions = typer.Typer(help="List, show, rename, archive and remove stored sessions.")


@sessions.command("list")
def list_sessions(
    as_json: AsJson = False,
    limit: Annotated[
        int | None, typer.Option(min=0, help="How many; 0 is all. The newest 50 if not given; all as JSON.")
    ] = None,
    offset: Annotated[int, typer.Option(min=0, help="How many of the newest to leave out.")] = 0,
) -> None:
    """Stored sessions, the newest first."""
    from satchel.agent.commands import PAGE, session_table

    if limit is None:
        limit = 0 if as_json else PAGE
    listed = open_store().heads(limit or None, offset)
    if as_json:
        print(json.dumps([head.model_dump(mode="json") for head in listed.heads], indent=2))
    elif listed.heads:
        print(sanitize(session_table(listed.heads)))
        shown = offset + len(listed.heads)
        if shown < listed.total:
            report(f"{listed.total - shown:,} older ones: --offset {shown} goes on, --limit 0 shows all")
    elif listed.total:
        report(f"there are {listed.total:,} sessions: none stands behind {offset:,} others")
    elif not listed.damaged:
        report("no sessions are stored yet")
    for line in listed.damaged:
        report(line)


@sessions.command("show")
def show_session(
    name: Annotated[
        str | None, typer.Argument(help="A session's name or id; the latest if not given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The words of a stored session."""
    from satchel.cache_store.sessions import open_session

    saved = open_session(open_store(), name)
    messages = saved.manifest.messages
    for note in filter(None, (saved.notice, saved.manifest.archive_note)):
        report(note)
    if as_json:
        fields = saved.head.model_dump(mode="json")
        print(json.dumps(fields | {"messages": [message.model_dump() for message in messages]}, indent=2))
        return
    print("\n\n".join(f"{message.role}:\n{sanitize(message.content)}" for message in messages))


@sessions.command("fork")
def fork_session(
    name: Name,
    new: Annotated[
        str | None, typer.Argument(help="The copy's name; the same with a number if not given.")
    ] = None,
) -> None:
    """Make a copy of a stored session, to go another way in. Both use the same blocks."""
    from satchel.cache_store import sessions as stored

    store = open_store()
    saved = stored.open_session(store, name)
    with store.locked():
        fork = stored.fork_session(store, saved, new or store.free_name(saved.head.name))
    print(sanitize_line(fork.head.name))


@sessions.command("rename")
def rename_session(name: Name, new: Annotated[str, typer.Argument(help="The new name.")]) -> None:
    """Give a stored session another name."""
    store = open_store()
    store.rename(store.find(name).session_id, new)


@sessions.command("archive")
def archive_session(
    name: Name,
    model: Model = None,
    kv: Annotated[str, typer.Option(help="KV profile of fewer bits.")] = "turbo2",
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask; needed without a terminal.")] = False,
) -> None:
    """Make a stored session smaller by storing its context in fewer bits. Lossy: answers may differ."""
    from satchel.config.profiles import get_profile

    profile, store = get_profile(kv), open_store()
    head = store.find(name)
    agree(
        f"Store {head.name!r} in {kv}? It cannot be undone, and answers may differ.",
        yes,
        irreversible="archiving is lossy and cannot be undone",
        kept=f"{head.name!r} stays as it is",
    )
    manager = load_manager(chosen_settings(model=model or head.model_name, kv_profile=kv))
    archived = manager.archive(head.session_id, profile)
    if archived.notice:
        report(archived.notice)
    before, after = (f"{size / 1e6:.1f} MB" for size in (archived.before_bytes, archived.after_bytes))
    sizes = f"{before} before, {after} in {archived.profile}"
    print(sanitize_line(f"{head.name}: {sizes}; lossy: answers may differ from before"))
    if archived.freed_bytes <= archived.after_bytes:
        report("the store is no smaller yet: another session uses the state of before, or one cannot be read")


@sessions.command("rm")
def remove_sessions(names: Annotated[list[str], typer.Argument(help="Names or ids.")]) -> None:
    """Remove stored sessions."""
    from satchel.cache_store.maintenance import remove
    from satchel.sync.opening import note_removals

    store = open_store()
    session_ids = list(dict.fromkeys(store.session_id(name) for name in names))
    note_removals(session_ids)
    remove(store, *session_ids)
