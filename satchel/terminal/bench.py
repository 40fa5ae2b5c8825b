"""`satchel bench`: checks what was asked for, runs it with a bar on standard error, and prints tables.

Knows nothing of how anything is measured.
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from satchel.engine.model import LoadedModel, load_model
from satchel.errors import UsageError
from satchel.laboratory.caches import Candidate, caches_by_name, check_cache_names
from satchel.laboratory.kv_bench import DEFAULT_CACHES, PARTS, Plan, Step, run
from satchel.laboratory.picture import check_plot
from satchel.laboratory.plot import PLOT_PARTS, write_plot
from satchel.laboratory.report import Report, write_json
from satchel.laboratory.texts import available_texts, check_text_names
from satchel.terminal.manner import is_quiet
from satchel.terminal.progress import progress_bar
from satchel.terminal.sanitize import sanitize_line

WIDTH = 120  # of a table that no terminal bounds

# Heading and number format of each column; a row's field of another name is not shown.
COLUMNS = {
    "cache": ("cache", ""),
    "text": ("text", ""),
    "tokens": ("tokens", ",d"),
    "kl_mean": ("KL mean", ".4f"),
    "kl_p99": ("KL p99", ".4f"),
    "top_1": ("top-1", ".3f"),
    "perplexity_ratio": ("PPL ratio", ".4f"),
    "agreed": ("agreed", "d"),
    "of": ("of", "d"),
    "retrieved": ("retrieved", ".0%"),
    "exact_retrieved": ("by exact", ".0%"),
    "depths": ("depths", ""),
    "log_prob": ("log p", ".2f"),
    "bits_held": ("bits held", ".2f"),
    "bits_stored": ("bits stored", ".2f"),
    "decode_tokens_s": ("decode/s", ".2f"),
    "decode_x_exact": ("× exact", ".2f"),
    "decode_x_mlx_lm_4": ("× mlx-lm", ".2f"),
    "prefill_tokens": ("prefilled", ",d"),
    "prefill_tokens_s": ("prefill/s", ".0f"),
    "prefill_x_exact": ("× exact", ".2f"),
    "encode_melements_s": ("enc M/s", ".0f"),
    "decode_melements_s": ("dec M/s", ".0f"),
    "encode_share": ("enc part", ".1%"),
}
TITLES = {
    "quality": "Quality against the exact cache",
    "greedy": "Greedy tokens until the first that differs",
    "needle": "Facts retrieved, by depth",
    "storage": "Bits a key or value coordinate",
    "speed": "Speed: tokens a second, million coordinates a second, encoding as a part of prefill",
}
WORDS = ("cache", "text", "depths")  # columns to the left

Extra = Callable[[LoadedModel], Mapping[str, Candidate]]


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for. Empty lists stand for all; names but those of models may be lists with commas."""

    models: Sequence[str] = ()
    caches: Sequence[str] = ()
    texts: Sequence[str] = ()
    only: Sequence[str] = ()
    tokens: int = 2048
    chunk: int = 1
    json: Path | None = None
    plot: Path | None = None


def bench_kv(request: Request, extra: Extra | None = None, out: TextIO | None = None) -> list[Report]:
    """Measure, print the tables to `out` (standard output), and write the files that were asked for.

    Args:
        extra: further candidates for a model, after those of `request`.

    Raises:
        UsageError: a name, a count or a file that cannot be; before any model is loaded.
        SatchelError: a model cannot be loaded or measured, or a file cannot be written.
    """
    plan, caches = _checked(request)
    reports: list[Report] = []

    def measure(name: str) -> None:
        model = load_model(name, progress=_say)
        candidates = caches_by_name(model, caches) | dict(extra(model) if extra else {})
        described = str(model.device.kind), str(model.dtype).removeprefix("mlx.core.")
        report = Report(name, " ".join(described), plan.tokens, plan.chunk)
        reports.append(report)
        # Hours of measuring may end in Ctrl-C: what there is, is kept first, and then shown.
        with ExitStack() as at_the_end:
            at_the_end.callback(show, report, out or sys.stdout)
            if request.json:
                at_the_end.callback(write_json, reports, request.json)
            _run(model, candidates, plan, report)

    for name in dict.fromkeys(request.models or ("embedded",)):
        measure(name)
        gc.collect()  # a model is held in a circle by what measures it; the next one needs its memory
    if request.plot:
        write_plot(reports, request.plot)
    return reports


def show(report: Report, out: TextIO) -> None:
    """A table for each part that was measured."""
    console = Console(file=out, width=None if out.isatty() else WIDTH, highlight=False)
    for part in PARTS:
        if rows := [asdict(row) for row in report.part(part)]:
            title = f"{TITLES[part]}: {report.model} on {report.device}"
            console.print(Text(sanitize_line(title), style="bold"), _table(rows), sep="\n")


def _table(rows: Sequence[Mapping[str, object]]) -> Table:
    table = Table()
    fields = [field for field in rows[0] if field in COLUMNS]
    for field in fields:
        table.add_column(COLUMNS[field][0], justify="left" if field in WORDS else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(_cell(row[field], COLUMNS[field][1])) for field in fields))
    return table


def _cell(value: object, number_format: str) -> str:
    return "" if value is None else sanitize_line(format(value, number_format))


def _run(model: LoadedModel, candidates: Mapping[str, Candidate], plan: Plan, report: Report) -> None:
    told = not is_quiet() and not sys.stderr.isatty()  # a log has a line for each task, in place of a bar
    with progress_bar("measuring", unit="steps") as bar:
        for event in run(model, candidates, plan):
            if not isinstance(event, Step):
                report.rows.append(event)
                continue
            bar.update(event.number - 1, event.total, event.label)
            if told:
                _say(f"{event.number}/{event.total} {event.label}")


def _checked(request: Request) -> tuple[Plan, list[str]]:
    """The plan and the names of the caches, or the UsageError that ends this before it begins."""
    caches = _listed(request.caches) or list(DEFAULT_CACHES)
    texts = _listed(request.texts) or available_texts()
    check_cache_names(caches)
    check_text_names(texts)
    plan = Plan(texts, request.tokens, request.chunk, _listed(request.only) or PARTS)
    for path in filter(None, (request.json, request.plot)):
        if not path.parent.is_dir():
            raise UsageError(f"there is no directory {str(path.parent)!r}")
        if path.exists() and not path.is_file():
            raise UsageError(f"{str(path)!r} is not a file")
    if request.plot:
        check_plot(request.plot)
        plan = replace(plan, parts=[part for part in PARTS if part in {*plan.parts, *PLOT_PARTS}])
    return plan, caches


def _listed(names: Iterable[str]) -> list[str]:
    """Names given one by one, or several with commas; each once. `turbo4,window=256` is one name."""
    parts = (name.strip() for given in names for name in re.split(r",(?!\s*\w+=)", given))
    return list(dict.fromkeys(filter(None, parts)))


def _say(line: str) -> None:
    print(sanitize_line(line), file=sys.stderr, flush=True)
