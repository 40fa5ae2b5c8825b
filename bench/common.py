"""What the benchmarks share: the model, the texts, a store of their own, and how results are shown."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from rich.console import Console
from rich.table import Table

from satchel.cache_store.local import LocalStore
from satchel.config.profiles import get_profile
from satchel.config.settings import Settings
from satchel.engine.generate import Delta, Finished
from satchel.engine.model import load_model
from satchel.session import Session, SessionManager

WIDTH = 120  # of tables that go to a file


def arguments(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser


def pydoc_text() -> str:
    """The longest topics of Python's own documentation, joined: about 60,000 tokens."""
    return "\n".join(sorted(topics.values(), key=len, reverse=True)[:12])


@contextmanager
def manager_in_new_store(name: str, profile: str = "turbo4") -> Iterator[tuple[SessionManager, Path]]:
    """A session manager on a store in a directory that is removed at the end."""
    model = load_model(name)
    settings = Settings(temperature=0.0, auto_save=False)
    with tempfile.TemporaryDirectory() as home:
        yield SessionManager(LocalStore(Path(home)), model, get_profile(profile), settings), Path(home)


def first_token_s(session: Session, question: str) -> tuple[float, Finished]:
    """Seconds until the first token of the answer can be shown, and how the turn ended."""
    start, first = time.perf_counter(), 0.0
    for event in session.reply(question, max_tokens=1, cancel=threading.Event()):
        if isinstance(event, Delta) and not first:
            first = time.perf_counter() - start
        if isinstance(event, Finished):
            return first, event
    raise RuntimeError("the turn did not finish")


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], out: Path | None) -> None:
    """A table on the terminal, and the same as JSON in `out`."""
    table = Table(title=f"{title} ({platform.machine()}, {platform.system()})")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row))
    Console(width=None if sys.stdout.isatty() else WIDTH).print(table)
    if out:
        out.write_text(json.dumps([dict(zip(columns, row, strict=True)) for row in rows], indent=2))
