"""`satchel stats`: how sessions developed, turn by turn.

What takes long to import (the store, what draws) is imported inside the functions that need it.
"""

from __future__ import annotations

import dataclasses
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from satchel.cli.options import AsJson, complain, examples, open_store, report
from satchel.config.units import size_text
from satchel.errors import SatchelError, UsageError
from satchel.terminal.sanitize import sanitize_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from satchel.cache_store.figures import TurnFigures
    from satchel.cache_store.manifest import Manifest

LEAST_NAME = 12  # columns of a name in the table


@dataclass(frozen=True, kw_only=True)
class TurnRecord:
    turn: Annotated[int, "number of the question, from 1"]
    tokens: Annotated[int, "of the context after the answer"]
    held_bytes: Annotated[int, "of the KV state then, in memory"]
    exact_bytes: Annotated[int, "of the same keys and values in 16 bits"]
    read_tokens: Annotated[int, "of the prompt, without those that were kept"]
    read_ms: Annotated[int, "until the answer's first token"]
    written_tokens: Annotated[int, "of the answer"]
    write_ms: Annotated[int, "from its first token to its last"]
    prefill_tps: Annotated[float, "tokens a second, reading; 0 if not known"]
    decode_tps: Annotated[float, "tokens a second, answering; 0 if not known"]


@dataclass(frozen=True, kw_only=True)
class SumsRecord:
    turns: Annotated[int, "of which figures are kept"]
    read_tokens: Annotated[int, "of all of them"]
    read_ms: Annotated[int, "likewise"]
    written_tokens: Annotated[int, "likewise"]
    write_ms: Annotated[int, "likewise"]
    prefill_tps: Annotated[float, "tokens a second, reading; 0 if not known"]
    decode_tps: Annotated[float, "tokens a second, answering; 0 if not known"]


@dataclass(frozen=True, kw_only=True)
class SessionSummary:
    """One of the list that `stats --all --json` prints."""

    session_id: Annotated[str, "of the session"]
    name: Annotated[str, "of the session"]
    model_name: Annotated[str, "that answered last"]
    profile_name: Annotated[str, "in which its context is held"]
    turns: Annotated[int, "questions asked"]
    sums: Annotated[SumsRecord, "over its turns"]
    last: Annotated[TurnRecord | None, "the newest turn; null if no figures are kept"]


@dataclass(frozen=True, kw_only=True)
class StatsRecord(SessionSummary):
    """What `stats --json` prints."""

    figures: Annotated[list[TurnRecord], "turn by turn, the newest 512"]


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "satchel stats",
            "satchel stats bruno --json",
            "satchel stats bruno --png bruno.png  # needs matplotlib: pip install matplotlib",
            "satchel stats --all",
        )
    )(stats)


def stats(
    name: Annotated[
        str | None, typer.Argument(help="A session's name or id; the latest if not given.")
    ] = None,
    all_sessions: Annotated[
        bool, typer.Option("--all", help="A line for each session, the newest first.")
    ] = False,
    png: Annotated[
        Path | None, typer.Option("--png", metavar="FILE.png", help="Draw them there, too.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """How a session's context, its bytes and the tokens a second developed, turn by turn."""
    if all_sessions and (name or png):
        raise UsageError("--all has neither a name nor a picture", "leave it out to see one session")
    if png:
        from satchel.laboratory.picture import check_plot

        check_plot(png)
    if all_sessions:
        _show_all(as_json)
    else:
        _show_one(name, png, as_json)


def _show_one(name: str | None, png: Path | None, as_json: bool) -> None:
    from satchel.agent.charts import takes_blocks
    from satchel.agent.turns import charts
    from satchel.cache_store.sessions import open_session

    saved = open_session(open_store(), name)
    if saved.notice:
        report(saved.notice)
    manifest = saved.manifest
    title = _title(manifest)
    if as_json:
        from satchel.cli.schemas import print_json

        print_json(_record(manifest))
    elif manifest.figures:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 80
        print(sanitize_line(title))
        print(charts(manifest.figures, width, takes_blocks(sys.stdout)))
    else:
        report(f"no figures are kept of {manifest.name!r}: its next answer has the first")
    if png and manifest.figures:
        from satchel.laboratory.turns_plot import write_turns_plot

        write_turns_plot(manifest.figures, sanitize_line(title), png)
        report(f"drawn in {png}")
    elif png:
        raise SatchelError(f"nothing to draw: no figures are kept of {manifest.name!r}")


def _title(manifest: Manifest) -> str:
    turns = len(manifest.questions)
    counted = f"{turns:,} turn" if turns == 1 else f"{turns:,} turns"
    profile = manifest.profile_name.partition(",raised=")[0]
    return f"{manifest.name}: {counted}, {manifest.model_name}, {profile}"


def _summary(manifest: Manifest) -> SessionSummary:
    from satchel.agent.turns import sums

    return SessionSummary(
        session_id=manifest.session_id,
        name=manifest.name,
        model_name=manifest.model_name,
        profile_name=manifest.profile_name,
        turns=len(manifest.questions),
        sums=SumsRecord(**dataclasses.asdict(sums(manifest.figures))),
        last=_turn(manifest.figures[-1]) if manifest.figures else None,
    )


def _record(manifest: Manifest) -> StatsRecord:
    summary = _summary(manifest)
    fields = {field.name: getattr(summary, field.name) for field in dataclasses.fields(summary)}
    return StatsRecord(**fields, figures=list(map(_turn, manifest.figures)))


def _turn(figures: TurnFigures) -> TurnRecord:
    return TurnRecord(**figures.model_dump(), prefill_tps=figures.prefill_tps, decode_tps=figures.decode_tps)


def _show_all(as_json: bool) -> None:
    from satchel.terminal.progress import progress_bar

    store = open_store()
    listed = store.heads()
    found, faults = [], list(listed.damaged)
    with progress_bar("looking at sessions", len(listed.heads)) as bar:
        for number, head in enumerate(listed.heads, 1):
            try:
                found.append(_summary(store.get_manifest(head.manifest)))
            except SatchelError as err:
                faults.append(f"{head.name!r}: {err}")
            bar.update(number)
    if as_json:
        from satchel.cli.schemas import print_json

        print_json(found)
    elif found:
        print("\n".join(_table(found)))
    elif not faults:
        report("no sessions are stored yet")
    for fault in faults:
        complain(fault)


def _table(found: Sequence[SessionSummary]) -> list[str]:
    """A line for each session; names are cut to the window's width."""
    from rich.cells import cell_len, set_cell_size

    heading = ("TURNS", "CONTEXT", "KV", "16 BITS", "READ", "WRITTEN")
    rows = [_cells(summary) for summary in found]
    widths = [max(map(len, column)) for column in zip(heading, *rows, strict=True)]
    names = [sanitize_line(summary.name) for summary in found]
    longest = max(cell_len(name) for name in ("SESSION", *names))
    room = shutil.get_terminal_size().columns - sum(widths) - 2 * len(widths)
    name_width = min(longest, max(LEAST_NAME, room)) if sys.stdout.isatty() else longest

    def line(name: str, cells: Sequence[str]) -> str:
        short = name if cell_len(name) <= name_width else f"{set_cell_size(name, name_width - 1)}…"
        padded = (f"  {cell:>{size}}" for cell, size in zip(cells, widths, strict=True))
        return set_cell_size(short, name_width) + "".join(padded)

    return [line("SESSION", heading), *map(line, names, rows)]


def _cells(summary: SessionSummary) -> tuple[str, ...]:
    turns, last, total = f"{summary.turns:,}", summary.last, summary.sums
    if last is None:
        return (turns, *["-"] * 5)
    return (
        turns,
        f"{last.tokens:,}",
        size_text(last.held_bytes),
        size_text(last.exact_bytes),
        f"{total.prefill_tps:,.0f}/s",
        f"{total.decode_tps:,.1f}/s",
    )
