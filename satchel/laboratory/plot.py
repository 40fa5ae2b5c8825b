"""The bench's picture: KL against bits. Knows nothing of how the figures were measured.

matplotlib is an optional extra, so it is imported where it draws.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from satchel.errors import SatchelError, UsageError
from satchel.laboratory.picture import COLOURS, DPI, check_plot
from satchel.laboratory.quality import QualityRow
from satchel.laboratory.report import Report
from satchel.laboratory.storage import StorageRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Annotation

PLOT_PARTS = ("quality", "storage")
SIZE_IN = 9.0, 5.6
MARKERS = "oDs^vPX"  # one fewer than colours, so that the 57th pair is the first to come again
# Where a label may stand: right and up from its point, in points, and which of its sides is there.
PLACES = [
    (dx * reach, dy * reach, horizontal, vertical)
    for reach in (9, 20, 32, 46)
    for dx, dy, horizontal, vertical in (
        (1, 0, "left", "center"),
        (-1, 0, "right", "center"),
        (0, 1, "center", "bottom"),
        (0, -1, "center", "top"),
        (0.7, 0.7, "left", "bottom"),
        (0.7, -0.7, "left", "top"),
        (-0.7, 0.7, "right", "bottom"),
        (-0.7, -0.7, "right", "top"),
    )
]
FAR = 15  # points from which on a thin line leads to a label
CLEAR_PX = 10  # around a point, kept free of labels


@dataclass(frozen=True, slots=True)
class Point:
    """One cache in the plot: KL over the texts, at least, mean and at most."""

    cache: str
    bits: float
    low: float
    kl: float
    high: float


def points(report: Report) -> list[Point]:
    """A point for each cache of which both quality and size were measured, and that is not exact."""
    divergences: dict[str, list[float]] = defaultdict(list)
    bits: dict[str, float] = {}
    for row in report.rows:
        if isinstance(row, QualityRow) and math.isfinite(row.kl_mean) and row.kl_mean > 0:
            divergences[row.cache].append(row.kl_mean)
        elif isinstance(row, StorageRow):
            bits[row.cache] = row.bits_held
    return [
        Point(cache, bits[cache], min(kl), sum(kl) / len(kl), max(kl))
        for cache, kl in divergences.items()
        if cache in bits
    ]


def title(report: Report) -> str:
    """Model, tokens and texts of the quality that was measured: texts may be shorter than was asked for."""
    measured = [row for row in report.rows if isinstance(row, QualityRow)]
    counts = sorted({row.tokens for row in measured})
    tokens = " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))
    return f"{report.model}, {tokens} tokens: {', '.join(sorted({row.text for row in measured}))}"


def style(number: int) -> tuple[str, str]:
    """Colour and marker of family `number`, from 0."""
    return COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]


def write_plot(reports: Sequence[Report], path: Path) -> None:
    """KL (a log axis) against bits held, a panel for each model, as PNG.

    Raises:
        UsageError: as `check_plot`; or no report has both quality and storage.
        SatchelError: the file cannot be written.
    """
    check_plot(path)
    drawn = [(report, found) for report in reports if (found := points(report))]
    if not drawn:
        raise UsageError("nothing to plot", f"it takes {' and '.join(PLOT_PARTS)}")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(SIZE_IN[0], SIZE_IN[1] * len(drawn)), dpi=DPI, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots(len(drawn), 1, squeeze=False)[:, 0]
    families = sorted({_family(point.cache) for _, found in drawn for point in found})
    for panel, (report, found) in zip(axes, drawn, strict=True):
        _draw(panel, canvas, report, found, families)
    try:
        figure.savefig(path)
    except OSError as err:
        raise SatchelError(f"cannot write {path}: {err.strerror or err}") from err


def _draw(
    panel: Axes, canvas: FigureCanvasAgg, report: Report, found: Sequence[Point], families: Sequence[str]
) -> None:
    panel.set_yscale("log")
    panel.set_xlabel("bits held per key or value coordinate, all counted")
    panel.set_ylabel("KL(exact ‖ cache), nats")
    panel.set_title(title(report), loc="left", fontsize=11)
    panel.grid(True, which="major", color="#e3e6e8", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.margins(x=0.12, y=0.12)
    for number, family in enumerate(families):
        members = sorted((p for p in found if _family(p.cache) == family), key=lambda point: point.bits)
        colour, marker = style(number)
        panel.plot(
            [p.bits for p in members],
            [p.kl for p in members],
            color=colour,
            marker=marker,
            linewidth=1.4,
            markersize=7,
        )
        for point in members:  # from the text with the least to the one with the most
            panel.plot([point.bits] * 2, [point.low, point.high], color=colour, alpha=0.35, linewidth=3)
    _label(panel, canvas, found, families)


def _label(panel: Axes, canvas: FigureCanvasAgg, found: Sequence[Point], families: Sequence[str]) -> None:
    """Each point's name as near to it as no other point and no earlier name is in the way."""
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox

    canvas.draw()
    renderer = canvas.get_renderer()
    inside = panel.get_window_extent(renderer)
    spots = panel.transData.transform([(point.bits, point.kl) for point in found])
    taken = [Bbox.from_bounds(x - CLEAR_PX, y - CLEAR_PX, 2 * CLEAR_PX, 2 * CLEAR_PX) for x, y in spots]
    for point in sorted(found, key=lambda point: point.kl):
        colour, _ = style(families.index(_family(point.cache)))
        for place in PLACES:
            label = _write(panel, point, place, colour)
            label.update_positions(renderer)
            box = Text.get_window_extent(label, renderer)  # without its line, which ends in the point
            if inside.containsx(box.x0) and inside.containsx(box.x1) and not box.count_overlaps(taken):
                taken.append(box)
                break
            label.remove()
        else:  # a crowd: better on top of another than not at all
            _write(panel, point, PLACES[0], colour)


def _write(panel: Axes, point: Point, place: tuple[float, float, str, str], colour: str) -> Annotation:
    dx, dy, horizontal, vertical = place
    leader = {"arrowstyle": "-", "color": colour, "alpha": 0.5, "linewidth": 0.8, "shrinkB": 5}
    return panel.annotate(
        point.cache,
        (point.bits, point.kl),
        (dx, dy),
        textcoords="offset points",
        ha=horizontal,
        va=vertical,
        color=colour,
        fontsize=10,
        arrowprops=leader if math.hypot(dx, dy) > FAR else None,
    )


def _family(cache: str) -> str:
    """Caches whose names differ in their numbers alone (bits, groups, windows): the name without them."""
    return re.sub(r"[\d.]+", "", cache).strip()
