"""What drawing an answer costs, next to what a token takes a model: microseconds for each piece of text.

A long answer in markdown comes in pieces of four characters, about a token each, and is drawn to a terminal
that throws it away. The time is the processor's, in the thread that draws.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import threading
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from satchel.terminal.markdown import Document
from satchel.terminal.pen import Pen
from satchel.terminal.sanitize import Sanitizer

CHARS, PIECE_CHARS = 200_000, 4

PROSE = "A paragraph with **bold**, *italic* and `code`, a [link](https://example.com/page), and 2 * 3.\n\n"
TEXTS = {
    "prose": PROSE,
    "Chinese": "这是**重点**内容，包含中文标点符号。模型会输出很长的中文段落，没有任何空格。\n\n",
    "lists": "1. First of *all*\n   - nested, with some words\n     - deeper\n2. Second\n\n",
    "code": '```python\ndef f(x: int) -> str:\n    """Words."""\n    return f"{x!r}"  # why\n```\n\n',
    "tables": "| Name | Size |\n|------|-----:|\n| **one** | 1,234 |\n| `two` | 5 |\n| 三 | 6 |\n\n",
    "one long line": "word ",
    "held back": "an unclosed *mark in a long line ",
    "one word": "x",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    table = Table(
        "text", "pieces", "µs a piece, mean", "µs, longest 1 in 1,000", title=f"{CHARS:,} characters"
    )
    figures = {}
    for name, text in TEXTS.items():
        times = sorted(drawn(text * (CHARS // len(text))))
        mean, worst = 1e6 * sum(times) / len(times), 1e6 * times[-len(times) // 1000]
        figures[name] = {"pieces": len(times), "mean_us": round(mean, 1), "p999_us": round(worst, 1)}
        table.add_row(name, f"{len(times):,}", f"{mean:.1f}", f"{worst:.0f}")
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def drawn(text: str) -> list[float]:
    """Seconds that each piece of `text` took."""
    ours, theirs = pty.openpty()
    thread = threading.Thread(target=emptied, args=(ours,), daemon=True)
    thread.start()
    times = []
    with os.fdopen(theirs, "w") as out:
        document, sanitizer = Document(Pen(out, "256")), Sanitizer()
        for start in range(0, len(text), PIECE_CHARS):
            began = time.thread_time()
            document.feed(sanitizer.feed(text[start : start + PIECE_CHARS]))
            times.append(time.thread_time() - began)
        document.end()
    thread.join()
    return times


def emptied(descriptor: int) -> None:
    try:
        while os.read(descriptor, 65536):
            pass
    except OSError:  # the other end is closed
        os.close(descriptor)


if __name__ == "__main__":
    main()
