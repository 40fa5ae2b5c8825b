"""The picture of a session: context, bytes and speed, turn by turn. Knows nothing of where the figures are.

matplotlib is an optional extra, so it is imported where it draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from satchel.errors import SatchelError
from satchel.laboratory.picture import COLOURS, DPI

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from satchel.cache_store.figures import TurnFigures

SIZE_IN = 8.0, 9.0
FAINT = "#c9d1d6"
READ, WRITTEN, HELD, TOKENS = COLOURS[:4]


def write_turns_plot(figures: Sequence[TurnFigures], title: str, path: Path) -> None:
    """Four panels below each other, as PNG. `figures` has one at least; `check_plot` has been asked.

    Raises:
        SatchelError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=SIZE_IN, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(_verbatim(title), fontsize=12, x=0.02, ha="left")
    context, kv, reading, writing = figure.subplots(4, 1, sharex=True)
    turns = [each.turn for each in figures]
    _panel(context, turns, [each.tokens for each in figures], "context, tokens", TOKENS)
    kv.bar(turns, [each.exact_bytes / 1e6 for each in figures], color=FAINT, label="in 16 bits")
    _panel(kv, turns, [each.held_bytes / 1e6 for each in figures], "KV state, MB", HELD, "held")
    kv.legend(loc="upper left", frameon=False)
    _panel(reading, turns, [each.prefill_tps for each in figures], "read, tokens/s", READ)
    _panel(writing, turns, [each.decode_tps for each in figures], "written, tokens/s", WRITTEN)
    writing.set_xlabel("turn")
    writing.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.align_ylabels()
    try:
        figure.savefig(path)
    except OSError as err:
        raise SatchelError(f"cannot write {path}: {err.strerror or err}") from err


def _panel(
    panel: Axes, turns: Sequence[int], values: Sequence[float], name: str, colour: str, label: str = ""
) -> None:
    panel.bar(turns, values, color=colour, label=label)
    panel.set_ylabel(name)
    panel.grid(True, axis="y", color="#e3e6e8", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def _verbatim(text: str) -> str:
    """`text` for matplotlib, which takes what stands between two dollar signs for a formula."""
    return text.replace("$", r"\$")
