"""`satchel store …`: how large the store is, whether it is whole, and making it smaller."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from satchel.cli.options import AsJson, open_store, report
from satchel.config.units import parse_duration_s, parse_size, size_text
from satchel.errors import DamagedError
from satchel.terminal.sanitize import sanitize_line

if TYPE_CHECKING:
    from satchel.cache_store.maintenance import Collected

store = typer.Typer(help="Measure, check and shrink the store of sessions.")

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]


@store.command("stats")
def show_stats(as_json: AsJson = False) -> None:
    """How many sessions and blocks there are, and what they take."""
    from satchel.cache_store.stats import stats

    found = stats(open_store())
    if as_json:
        _print_json(found)
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
    _report(found.faults)


@store.command("verify")
def verify_store(
    read_data: Annotated[
        bool, typer.Option("--read-data", help="Read every block, too: all bytes are checked.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check that all sessions are whole. Changes nothing; exit code 4 if anything is damaged."""
    from satchel.cache_store.verify import verify

    found = verify(open_store(), read_data)
    if as_json:
        _print_json(found)
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


@store.command("gc")
def collect_garbage(
    dry_run: DryRun = False,
    grace: Annotated[str, typer.Option(help="Spare what is younger: 90s, 30m, 24h, 7d.")] = "24h",
    as_json: AsJson = False,
) -> None:
    """Delete what no session refers to and what killed writes left over."""
    grace_s = parse_duration_s(grace)
    from satchel.cache_store.maintenance import collect

    done = collect(open_store(), grace_s, dry_run)
    if as_json:
        _print_json(done)
    else:
        print(_collected_line(done, dry_run))
    _end(done.faults)


@store.command("prune")
def prune_store(
    max_size: Annotated[str, typer.Option(help="What the store may take: 20GB, 512MiB…")],
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Delete the context of the sessions unused for longest until the store fits. Their words stay."""
    max_bytes = parse_size(max_size)
    from satchel.cache_store.maintenance import prune

    done = prune(open_store(), max_bytes, dry_run=dry_run)
    if as_json:
        _print_json(done)
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


@store.command("reindex")
def rebuild_index() -> None:
    """Make the index again from the sessions."""
    opened = open_store()
    opened.index.rebuild()
    totals = opened.index.totals()
    print(f"indexed {_counted(totals.sessions, 'session')} and {_counted(totals.blocks, 'block')}")
    _report(opened.index.faults().values())


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


def _print_json(value: Any) -> None:
    print(json.dumps(dataclasses.asdict(value), indent=2))


def _report(lines: Iterable[str]) -> None:
    for line in lines:
        report(line)


def _end(faults: tuple[str, ...]) -> None:
    """Tell why nothing was deleted, if so, and end with the exit code of damage."""
    _report(faults)
    if faults:
        report("nothing is deleted while it is not known what a session needs")
        raise typer.Exit(DamagedError.exit_code)
