"""`satchel sync …`: sessions between this machine and its remote.

What takes long to import (the store, encryption, S3) is imported inside the commands.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from satchel.cli import sync_setup
from satchel.cli.options import AsJson, complain, examples, open_store, report
from satchel.cli.records import (
    ForkRecord,
    RemoteCollectedRecord,
    SyncedRecord,
    SyncStateRecord,
    SyncStatusRecord,
)
from satchel.cli.schemas import print_json
from satchel.config.units import parse_duration_s, size_text
from satchel.errors import DamagedError, NetworkError, NotFoundError, SatchelError, UsageError
from satchel.terminal.sanitize import sanitize_line

if TYPE_CHECKING:
    from satchel.sync.collect import RemoteCollected
    from satchel.sync.syncer import Syncer

sync = typer.Typer(help="Keep sessions the same on several machines, end-to-end encrypted.")
sync.command(
    epilog=examples(
        "satchel sync setup                                  # asks for all it needs",
        "satchel sync setup s3://my-bucket/satchel --auto",
        "satchel sync setup file:///Volumes/nas/satchel --no-passphrase",
    )
)(sync_setup.setup)
sync.command(
    epilog=examples(
        "satchel sync join s3://my-bucket/satchel            # asks for the passphrase",
        "satchel sync join s3://my-bucket/satchel --words    # for the recovery words",
    )
)(sync_setup.join)

Names = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME]...", help="Names or ids; all if none is given.")
]
MAX_FAULTS = 20  # that are told one by one
NOTHING_DONE = {"both": "everything is in sync", "push": "nothing to send", "pull": "nothing to fetch"}


@sync.callback(
    invoke_without_command=True,
    epilog=examples(
        "satchel sync setup                # once",
        "satchel sync                      # then, whenever you like",
        "satchel sync status",
    ),
)
def sync_all(context: typer.Context, as_json: AsJson = False) -> None:
    """Send what is new here and fetch what is new in the remote."""
    if context.invoked_subcommand is None:
        _sync("both", (), as_json)
    elif as_json:
        command = f"satchel sync {context.invoked_subcommand}"
        raise UsageError("--json stands behind the command", f"{command} --json")


@sync.command("push", epilog=examples("satchel sync push", "satchel sync push bruno"))
def push(
    names: Names = None,
    again: Annotated[
        bool, typer.Option("--again", help="Send all of it anew, to mend what is damaged in the remote.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Send what is new here."""
    _sync("push", names or (), as_json, again=again)


@sync.command("pull", epilog=examples("satchel sync pull", "satchel sync pull bruno"))
def pull(
    names: Names = None,
    accept_older: Annotated[
        bool,
        typer.Option(
            "--accept-older",
            help="Take sessions that are not here from a remote that went back, as after its restore.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Fetch what is new in the remote."""
    _sync("pull", names or (), as_json, accept_older=accept_older)


@sync.command("status", epilog=examples("satchel sync status", "satchel sync status --json"))
def show_status(as_json: AsJson = False) -> None:
    """How each session stands, here and in the remote. Changes nothing; exit code 4 if one cannot be read."""
    from satchel.config.settings import load_settings
    from satchel.sync.opening import needed_config, open_syncer

    config, auto = needed_config(), load_settings().sync.auto
    if not as_json:
        place = f"{config.url} at {config.endpoint}" if config.endpoint else config.url
        facts = {
            "remote": place,
            "key": config.key_id,
            "automatic": "after each turn" if auto else "no",
            "conditional writes": "honoured" if config.exclusive else "not honoured",
        }
        for label, value in facts.items():
            print(f"{label:<18}  {sanitize_line(value)}")
    from satchel.sync.decide import Step

    found = open_syncer(open_store()).status()
    steps = {step.value for step in Step}
    if as_json:
        sessions = [
            SyncStateRecord(
                session_id=each.session_id,
                name=each.name,
                state=each.state,
                number=each.number,
                updated_at=each.head.updated_at.isoformat() if each.head else None,
            )
            for each in found
        ]
        print_json(SyncStatusRecord(**config.model_dump(mode="json"), auto=auto, sessions=sessions))
    else:
        rows = [each for each in found if each.state in steps]
        width = max((len(each.state) for each in rows), default=0)
        for each in rows:
            print(f"{each.state:<{width}}  {sanitize_line(each.name)}")
    faults = [f"{each.name}: {each.state}" for each in found if each.state not in steps]
    _end(() if as_json else faults, bool(faults))


@sync.command("gc", epilog=examples("satchel sync gc --dry-run", "satchel sync gc --grace 7d"))
def collect_garbage(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    grace: Annotated[
        str, typer.Option(metavar="AGE", help="Spare what is younger: 24h at least, 7d.")
    ] = "24h",
    as_json: AsJson = False,
) -> None:
    """Delete what the remote holds for no session, and expired shares."""
    grace_s = parse_duration_s(grace)
    from satchel.sync.collect import GRACE_S, collect_remote
    from satchel.sync.opening import needed_config, open_remote, open_syncer
    from satchel.terminal.progress import progress_bar

    if grace_s < GRACE_S and not dry_run:
        raise UsageError(
            f"{grace} is too short: another machine may be sending what it names later", "24h is the least"
        )
    syncer, place = open_syncer(open_store()), open_remote(needed_config())
    syncer.check_place(False)

    def abort_uploads(age_s: float) -> int:
        try:
            return place.abort_old_uploads(age_s)
        except NetworkError as err:  # not all that speaks S3 tells of them
            bar.say(f"unfinished uploads were not looked for: {err.one_line()}")
            return 0

    with progress_bar("looking through the remote") as bar:
        done = collect_remote(syncer.remote, syncer.keys, grace_s, dry_run, abort_uploads)
    if as_json:
        print_json(RemoteCollectedRecord(**dataclasses.asdict(done) | {"faults": list(done.faults)}))
    else:
        print(_collected_line(done, dry_run))
    if done.faults:
        complain("nothing is deleted while it is not known what a session needs")
    _end(() if as_json else done.faults, bool(done.faults))


def _sync(
    direction: str, names: Iterable[str], as_json: bool, accept_older: bool = False, again: bool = False
) -> None:
    """Sync and tell what was done; as JSON, a `SyncedRecord`."""
    from satchel.sync.opening import open_syncer
    from satchel.sync.report import SyncReport
    from satchel.sync.syncer import Direction
    from satchel.terminal.transfer import TransferBar

    done = SyncReport()
    try:
        with TransferBar() as progress:
            syncer = open_syncer(open_store(), progress)
            only = _session_ids(syncer, names)
            syncer.sync(Direction(direction), only, accept_older=accept_older, again=again, report=done)
    except SatchelError:
        for line in done.notices:  # of what was done until then
            report(line)
        for line in done.faults:
            complain(line)
        raise
    if as_json:
        forks = [ForkRecord(**dataclasses.asdict(fork)) for fork in done.forks]
        print_json(SyncedRecord(**dataclasses.asdict(done) | {"forks": forks}))
    else:
        for notice in done.notices:
            report(notice)
        if line := done.summary() or ("" if done.faults else NOTHING_DONE[direction]):
            print(line)
    _end(() if as_json else done.faults, bool(done.faults))


def _session_ids(syncer: Syncer, names: Iterable[str]) -> set[str] | None:
    """The sessions of these names or ids, here or in the remote; None for all, if there are no names.

    Raises:
        NotFoundError: one is neither here nor there.
        UsageError: several fit.
    """
    found: set[str] = set()
    for name in dict.fromkeys(names):
        session_id = syncer.find(name)
        if session_id is None:
            raise NotFoundError(f"no session is called {name!r}, here or in the remote")
        found.add(session_id)
    return found or None


def _collected_line(done: RemoteCollected, dry_run: bool) -> str:
    counts = {
        "block": done.blocks,
        "manifest": done.manifests,
        "superseded entry": done.entries,
        "share": done.shares,
        "leftover probe": done.probes,
        "unfinished upload": done.uploads,
    }
    parts = [f"{count} {_plural(noun, count)}" for noun, count in counts.items() if count]
    verb = "would delete" if dry_run else "deleted"
    line = f"{verb} {', '.join(parts)}: {size_text(done.freed_bytes)}" if parts else f"{verb} nothing"
    if done.younger_bytes:
        line += f"; {size_text(done.younger_bytes)} more is younger than the grace period"
    return line


def _plural(noun: str, count: int) -> str:
    if count == 1:
        return noun
    return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"


def _end(faults: Iterable[str], faulty: bool) -> None:
    """Tell the faults, and end with the exit code of damage if there are any."""
    told = list(faults)
    for fault in told[:MAX_FAULTS]:
        complain(fault)
    if len(told) > MAX_FAULTS:
        complain(f"and {len(told) - MAX_FAULTS} more; --json lists all")
    if faulty:
        raise typer.Exit(DamagedError.exit_code)
