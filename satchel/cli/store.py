"""`satchel store …`: how large the store is, whether it is whole, and making it smaller."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from satchel.cli.options import AsJson, agree, at_terminal, complain, examples, open_store, report
from satchel.cli.records import (
    CollectedRecord,
    FaultRecord,
    IndexedRecord,
    ModelUse,
    PrunedRecord,
    PrunedSessionRecord,
    StoreRecord,
    VerifiedRecord,
)
from satchel.cli.schemas import print_json
from satchel.config.units import parse_duration_s, parse_size, size_text
from satchel.errors import DamagedError
from satchel.terminal.sanitize import sanitize_line

if TYPE_CHECKING:
    from satchel.cache_store.maintenance import Collected

store = typer.Typer(
    help="Measure, check and shrink the store of sessions.",
    epilog=examples("satchel store stats", "satchel store verify", "satchel store prune --max-size 20GB"),
)

MAX_LISTED = 5  # sessions in one question

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]


@store.command("stats", epilog=examples("satchel store stats", "satchel store stats --json"))
def show_stats(as_json: AsJson = False) -> None:
    """How many sessions and blocks there are, and what they take."""
    from satchel.cache_store.stats import stats

    found = stats(open_store())
    if as_json:
        models = {name: ModelUse(**dataclasses.asdict(part)) for name, part in found.models.items()}
        fields = dataclasses.asdict(found) | {"models": models, "faults": list(found.faults)}
        print_json(StoreRecord(**fields))
    else:
        unreferenced = found.unreferenced_bytes
        _print_table(
            {
                "store": found.place,
                "sessions": found.sessions,
                "blocks": found.blocks,
                "on disk": size_text(found.bytes),
                "saved by sharing": size_text(found.shared_bytes),
                "unreferenced": "not known" if unreferenced is None else size_text(unreferenced),
                "index": size_text(found.index_bytes),
            }
        )
        for model, part in found.models.items():
            sizes = f"{_counted(part.sessions, 'session')}, {part.tokens} tokens, {size_text(part.bytes)}"
            print(sanitize_line(f"model {model}: {sizes}"))
    _complain(found.faults)


@store.command(
    "verify",
    epilog=examples(
        "satchel store verify",
        "satchel store verify --read-data      # all bytes",
        "satchel store verify -q && echo whole",
    ),
)
def verify_store(
    read_data: Annotated[
        bool, typer.Option("--read-data", help="Read every block, too: all bytes are checked.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check that all sessions are whole. Changes nothing; exit code 4 if anything is damaged."""
    from satchel.cache_store.verify import verify
    from satchel.terminal.progress import progress_bar

    with progress_bar("checking sessions") as bar:
        found = verify(open_store(), read_data, bar.update)
    if as_json:
        faults = [FaultRecord(**dataclasses.asdict(fault)) for fault in found.faults]
        print_json(VerifiedRecord(**dataclasses.asdict(found) | {"faults": faults}))
    else:
        for fault in found.faults:
            print(sanitize_line(fault.line()))
        seen = ", ".join(
            (
                _counted(found.sessions, "session"),
                _counted(found.manifests, "manifest"),
                f"{found.objects} blocks and tails",
            )
        )
        print(f"{seen}: {_counted(len(found.faults), 'fault') if found.faults else 'all right'}")
    if found.faults:
        raise typer.Exit(DamagedError.exit_code)


@store.command(
    "gc",
    epilog=examples(
        "satchel store gc --dry-run",
        "satchel store gc --grace 7d           # spares what is younger than a week",
    ),
)
def collect_garbage(
    dry_run: DryRun = False,
    grace: Annotated[
        str, typer.Option(metavar="AGE", help="Spare what is younger: 90s, 30m, 24h, 7d.")
    ] = "24h",
    as_json: AsJson = False,
) -> None:
    """Delete what no session refers to and what killed writes left over."""
    grace_s = parse_duration_s(grace)
    from satchel.cache_store.maintenance import collect
    from satchel.terminal.progress import progress_bar

    with progress_bar("looking for what no session uses") as bar:
        done = collect(open_store(), grace_s, dry_run, lambda n, of: bar.update(n, of, "deleting files"))
    if as_json:
        print_json(_collected_record(done))
    else:
        print(_collected_line(done, dry_run))
    _end(done.faults)


@store.command(
    "prune",
    epilog=examples(
        "satchel store prune --max-size 20GB --dry-run",
        "satchel store prune --max-size 512MiB",
    ),
)
def prune_store(
    max_size: Annotated[str, typer.Option(metavar="SIZE", help="What the store may take: 20GB, 512MiB…")],
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask at a terminal.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete the context of the sessions unused for longest until the store fits. Their words stay."""
    max_bytes = parse_size(max_size)
    from satchel.cache_store.maintenance import prune

    opened = open_store()
    if at_terminal() and not (dry_run or yes):
        _agree_to_prune([each.name for each in prune(opened, max_bytes, dry_run=True).sessions])
    done = prune(opened, max_bytes, dry_run=dry_run)
    if as_json:
        print_json(
            PrunedRecord(
                before_bytes=done.before_bytes,
                after_bytes=done.after_bytes,
                collected=_collected_record(done.collected),
                sessions=[PrunedSessionRecord(**dataclasses.asdict(each)) for each in done.sessions],
                faults=list(done.faults),
            )
        )
    else:
        if not done.collected.is_empty:
            print(_collected_line(done.collected, dry_run))
        verb = "would lose" if dry_run else "lost"
        for session in done.sessions:
            print(sanitize_line(f"{session.name} {verb} its context: {size_text(session.freed_bytes)}"))
        would = "would take" if dry_run else "takes"
        print(f"the store took {size_text(done.before_bytes)} and {would} {size_text(done.after_bytes)}")
    if done.after_bytes > max_bytes and not done.faults:
        report(f"that is more than {max_size}: words, and what nothing refers to for a minute only, stay")
    _end(done.faults)


@store.command("reindex", epilog=examples("satchel store reindex"))
def rebuild_index(as_json: AsJson = False) -> None:
    """Make the index again from the sessions."""
    opened = open_store()
    opened.index.rebuild()
    totals, faults = opened.index.totals(), list(opened.index.faults().values())
    if as_json:
        print_json(IndexedRecord(sessions=totals.sessions, blocks=totals.blocks, faults=faults))
    else:
        print(f"indexed {_counted(totals.sessions, 'session')} and {_counted(totals.blocks, 'block')}")
    _complain(faults)


def _agree_to_prune(names: Sequence[str]) -> None:
    """
    Raises:
        RefusedError: the sessions are not to lose their context.
    """
    if not names:
        return
    listed = ", ".join(map(repr, names[:MAX_LISTED]))
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    agree(
        f"Delete the context of {listed}{more}? Their words stay, and are read again when resumed.",
        agreed=False,
        irreversible="",
        kept="nothing was deleted",
    )


def _collected_record(done: Collected) -> CollectedRecord:
    return CollectedRecord(**dataclasses.asdict(done) | {"faults": list(done.faults)})


def _collected_line(done: Collected, dry_run: bool) -> str:
    """What was deleted, or why nothing was."""
    files = ", ".join(
        (
            _counted(done.blocks, "block"),
            _counted(done.manifests, "manifest"),
            _counted(done.leftovers, "leftover file"),
        )
    )
    line = f"{'would delete' if dry_run else 'deleted'} {files}: {size_text(done.freed_bytes)}"
    if done.younger_bytes:
        line += f"; {size_text(done.younger_bytes)} more is younger than the grace period"
    if done.refused:
        line += f"; {_counted(done.refused, 'file')} could not be deleted"
    return line


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _print_table(rows: dict[str, object]) -> None:
    for label, value in rows.items():
        print(f"{label:<17} {sanitize_line(str(value))}")


def _complain(lines: Iterable[str]) -> None:
    for line in lines:
        complain(line)


def _end(faults: tuple[str, ...]) -> None:
    """Tell why nothing was deleted, if so, and end with the exit code of damage."""
    _complain(faults)
    if faults:
        complain("nothing is deleted while it is not known what a session needs")
        raise typer.Exit(DamagedError.exit_code)
