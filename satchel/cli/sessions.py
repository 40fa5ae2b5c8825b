"""`satchel sessions …`: the stored talks."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from satchel.cli.options import (
    AsJson,
    Model,
    Name,
    agree,
    chosen_settings,
    complain,
    examples,
    load_manager,
    open_store,
    report,
)
from satchel.cli.records import ArchivedRecord, MessageRecord, RemovedRecord, SessionRecord, TalkRecord
from satchel.cli.schemas import print_json
from satchel.errors import SatchelError
from satchel.terminal.sanitize import sanitize, sanitize_line

if TYPE_CHECKING:
    from satchel.cache_store.local import LocalStore
    from satchel.cache_store.manifest import Head

MOST = 1 << 31  # sessions; the index counts no further than 2^63

sessions = typer.Typer(
    help="List, show, fork, rename, archive, export and remove stored sessions.",
    epilog=examples(
        "satchel sessions list",
        "satchel sessions show bruno",
        "satchel sessions export bruno --output bruno.md",
    ),
)


@sessions.command(
    "list",
    epilog=examples(
        "satchel sessions list",
        "satchel sessions list --limit 10 --offset 10          # the second ten",
        "satchel sessions list --json | jq -r '.[].name'       # all names",
    ),
)
def list_sessions(
    as_json: AsJson = False,
    limit: Annotated[
        int | None,
        typer.Option(
            min=0, max=MOST, metavar="N", help="How many; 0 is all. The newest 50 if not given; all as JSON."
        ),
    ] = None,
    offset: Annotated[
        int, typer.Option(min=0, max=MOST, metavar="N", help="How many of the newest to leave out.")
    ] = 0,
) -> None:
    """Stored sessions, the newest first."""
    from satchel.agent.commands import PAGE, session_table
    from satchel.terminal.pen import window_columns

    if limit is None:
        limit = 0 if as_json else PAGE
    listed = open_store().heads(limit or None, offset)
    if as_json:
        print_json([_record(head) for head in listed.heads])
    elif listed.heads:
        print(sanitize(session_table(listed.heads, window_columns(sys.stdout))))
        shown = offset + len(listed.heads)
        if shown < listed.total:
            report(f"{listed.total - shown:,} older ones: --offset {shown} goes on, --limit 0 shows all")
    elif listed.total:
        report(f"there are {listed.total:,} sessions: none stands behind {offset:,} others")
    elif not listed.damaged:
        report("no sessions are stored yet")
    for line in listed.damaged:
        complain(line)


@sessions.command(
    "show",
    epilog=examples(
        "satchel sessions show                # the latest",
        "satchel sessions show bruno",
        "satchel sessions show bruno --json | jq -r '.messages[-1].content'",
    ),
)
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
        said = [MessageRecord(role=message.role, content=message.content) for message in messages]
        print_json(TalkRecord(**saved.head.model_dump(mode="json"), messages=said))
        return
    print("\n\n".join(f"{message.role}:\n{sanitize(message.content)}" for message in messages))


@sessions.command(
    "fork",
    epilog=examples(
        "satchel sessions fork bruno          # as bruno-2",
        "satchel sessions fork bruno another-way",
    ),
)
def fork_session(
    name: Name,
    new: Annotated[
        str | None, typer.Argument(help="The copy's name; the same with a number if not given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a copy of a stored session, to go another way in. Both use the same blocks."""
    from satchel.cache_store import sessions as stored

    store = open_store()
    saved = stored.open_session(store, name)
    with store.locked():
        fork = stored.fork_session(store, saved, new or store.free_name(saved.head.name))
    print_json(_record(fork.head)) if as_json else print(sanitize_line(fork.head.name))


@sessions.command("rename", epilog=examples("satchel sessions rename bruno dog"))
def rename_session(
    name: Name, new: Annotated[str, typer.Argument(help="The new name.")], as_json: AsJson = False
) -> None:
    """Give a stored session another name."""
    store = open_store()
    before = store.find(name)
    head = store.rename(before.session_id, new)
    if as_json:
        print_json(_record(head))
    else:
        report(f"renamed {before.name!r} to {head.name!r}")


@sessions.command(
    "archive",
    epilog=examples(
        "satchel sessions archive bruno",
        "satchel sessions archive bruno --kv turbo3 --yes    # without a question",
    ),
)
def archive_session(
    name: Name,
    model: Model = None,
    kv: Annotated[str, typer.Option(metavar="PROFILE", help="KV profile of fewer bits.")] = "turbo2",
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask; needed without a terminal.")] = False,
    as_json: AsJson = False,
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
    if as_json:
        print_json(
            ArchivedRecord(
                session_id=head.session_id,
                name=head.name,
                profile=archived.profile,
                before_bytes=archived.before_bytes,
                after_bytes=archived.after_bytes,
                freed_bytes=archived.freed_bytes,
            )
        )
        return
    before, after = (f"{size / 1e6:.1f} MB" for size in (archived.before_bytes, archived.after_bytes))
    sizes = f"{before} before, {after} in {archived.profile}"
    print(sanitize_line(f"{head.name}: {sizes}; lossy: answers may differ from before"))
    if archived.freed_bytes <= archived.after_bytes:
        report("the store is no smaller yet: another session uses the state of before, or one cannot be read")


@sessions.command(
    "rm",
    epilog=examples(
        "satchel sessions rm bruno",
        "satchel sessions rm bruno dog --yes    # without a question",
    ),
)
def remove_sessions(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Names or ids.")],
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask; needed without a terminal.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove stored sessions; where sync is set up, the next sync removes them everywhere."""
    from satchel.cache_store.maintenance import remove
    from satchel.sync.configuration import is_configured
    from satchel.sync.opening import note_removals

    store = open_store()
    found = {store.session_id(name): name for name in reversed(names)}
    session_ids = list(reversed(found))
    listed = ", ".join(repr(_name_of(store, each, found[each])) for each in session_ids)
    them = "it" if len(session_ids) == 1 else "them"
    synced = (
        f" The next sync removes {them} in the remote and on other machines, too." if is_configured() else ""
    )
    agree(
        f"Remove {listed}? It cannot be undone.{synced}",
        yes,
        irreversible="removing sessions cannot be undone",
        kept="nothing was removed",
    )
    note_removals(session_ids)
    remove(store, *session_ids)
    if as_json:
        print_json([RemovedRecord(session_id=each, name=found[each]) for each in session_ids])
    else:
        report(f"removed {listed}")


def _name_of(store: LocalStore, session_id: str, given: str) -> str:
    """What a session is called, or what it was asked for by, if its head cannot be read."""
    try:
        head = store.head(session_id)
    except SatchelError:
        return given
    return head.name if head else given


def _record(head: Head) -> SessionRecord:
    return SessionRecord(**head.model_dump(mode="json"))
