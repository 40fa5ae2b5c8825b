"""The bar of all long work: how far it is, how fast it goes, and how long it still takes.

Knows nothing of the work: whoever does it calls `update(done, total)`, from any thread.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from satchel.terminal.manner import is_plain, is_quiet
from satchel.terminal.sanitize import sanitize_line

Unit = Literal["tokens", "bytes", "steps"]

DELAY_S = 0.5  # what is over sooner has no bar
WORTH_S = 1.0  # nor has what is over so soon after that
REDRAWS_PER_S = 5

LABEL_WIDTH = 32
BAR_WIDTHS = 8, 40

# The rate is that of the last while: of as many seconds, or of as many updates where these are rare.
WINDOW_S, WINDOW_UPDATES = 15.0, 8
UPDATE_S = 0.1  # updates that are closer count as one

# One bar at a time: a second one would be drawn over the first.
_drawing = threading.Lock()


def progress_bar(
    label: str,
    total: int | None = None,
    unit: Unit = "steps",
    console: Console | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Bar:
    """A bar for `with`: on a terminal at standard error, when the work takes long, and gone at the end.

    Args:
        label: what is done, in a few words; sanitized. Without one, the bar waits for one.
        total: how much there is to do; None while that is not known.
        console: where it is drawn, in place of standard error.
        clock: seconds.
    """
    return Bar(label, total, unit, console, clock)


@dataclass(frozen=True, slots=True)
class _Now:
    """How far the work is, `at_s`; `gained` of it was done in the last `gained_s`, in `updates` updates."""

    label: str
    done: int
    total: int | None
    at_s: float
    gained: int = 0
    gained_s: float = 0.0
    updates: int = 0

    def rate(self, clock_s: float) -> float | None:
        """What is done in a second. When an update is overdue, it falls."""
        seconds = max(self.gained_s, self.gained_s + clock_s - self.at_s - self._gap_s)
        return self.gained / seconds if self.gained and seconds > 0 else None

    def left_s(self, clock_s: float) -> float | None:
        rate = self.rate(clock_s)
        if self.total is None or not rate:
            return None
        return max(0.0, (self.total - self.done) / rate - min(clock_s - self.at_s, self._gap_s))

    @property
    def _gap_s(self) -> float:
        """Between two updates."""
        return self.gained_s / max(1, self.updates)


class Bar:
    """See `progress_bar`. Draws nothing off a terminal, on one that cannot, or where quiet is asked for."""

    def __init__(
        self, label: str, total: int | None, unit: Unit, console: Console | None, clock: Callable[[], float]
    ) -> None:
        self._console = console or Console(
            file=sys.stderr, color_system=None if is_plain() else "auto", highlight=False
        )
        # rich takes a pipe for a terminal where FORCE_COLOR is set.
        can_show = self._console.is_interactive and self._console.file.isatty()
        self._can_show = can_show and not is_quiet()
        self._unit, self._clock = unit, clock
        self._lock = threading.RLock()  # never taken to draw: rich has a lock of its own around that
        self._live: Live | None = None
        self._ended = threading.Event()
        self._started_s = clock()
        self._now = _Now(sanitize_line(label), 0, total, self._started_s)

    def __enter__(self) -> Self:
        self._started_s = self._clock()
        self._begin(self._now.label, self._now.done, self._now.total)
        if self._can_show:
            threading.Thread(target=self._wait, name="progress", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._ended.set()
            if self._live is not None:
                self._live.stop()
                self._live = None
                _drawing.release()

    def update(self, done: int, total: int | None = None, label: str | None = None) -> None:
        """Say that `done` of `total` is done; of the last total, and under the last label, if not given.

        Where less is done than before, or another label comes with another total, it is other work: the rate
        and the time left begin anew.
        """
        with self._lock:
            now = self._now
            total = now.total if total is None else total
            label = now.label if label is None else sanitize_line(label)
            if done < now.done or (label != now.label and total != now.total):
                self._begin(label, done, total)
            else:
                self._now = self._gone_on(label, done, total)
            self._show()

    def say(self, line: str) -> None:
        """A line above the bar."""
        if not is_quiet():
            self._console.print(sanitize_line(line), markup=False, emoji=False, soft_wrap=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # A column stays free: a full line would wrap on some terminals.
        yield from _line(self._now, self._unit, self._clock(), self._started_s, options.max_width - 1)

    def _begin(self, label: str, done: int, total: int | None) -> None:
        at_s = self._clock()
        self._updates = deque([(at_s, done)])
        self._now = _Now(sanitize_line(label), done, total, at_s)

    def _gone_on(self, label: str, done: int, total: int | None) -> _Now:
        updates, at_s = self._updates, self._clock()
        if len(updates) > 1 and at_s - updates[-1][0] < UPDATE_S:
            updates.pop()
        updates.append((at_s, done))
        while len(updates) > WINDOW_UPDATES and updates[0][0] < at_s - WINDOW_S:
            updates.popleft()
        first_s, first = updates[0]
        return _Now(label, done, total, at_s, done - first, at_s - first_s, len(updates) - 1)

    def _wait(self) -> None:
        """Show the bar in good time, whether updates come or not."""
        while not self._ended.wait(DELAY_S):
            with self._lock:
                self._show()
                if self._live is not None:
                    return

    def _show(self) -> None:
        if self._live is not None or not self._can_show or self._ended.is_set() or not self._is_worth_it():
            return
        if _drawing.acquire(blocking=False):
            self._live = Live(
                self,
                console=self._console,
                refresh_per_second=REDRAWS_PER_S,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start(refresh=True)

    def _is_worth_it(self) -> bool:
        now, clock_s = self._now, self._clock()
        if not now.label or clock_s - self._started_s <= DELAY_S:
            return False
        if now.total is not None and now.done >= now.total:
            return False
        left_s = now.left_s(clock_s)
        return left_s is None or left_s >= WORTH_S


def _line(now: _Now, unit: Unit, clock_s: float, started_s: float, width: int) -> RenderResult:
    """The bar's line in `width` columns: what there is no room for is left out, the least needed first."""
    left_s, rate = now.left_s(clock_s), now.rate(clock_s)
    count, rate_text = _count(now, unit), _rate_text(rate, unit) if rate else ""
    if left_s is not None:
        time_text = f"{duration_text(left_s)} left"
    else:
        time_text = "" if now.total is not None and now.done else duration_text(clock_s - started_s)
    label_width = min(cell_len(now.label), LABEL_WIDTH, max(width, 0) // 2)
    for words in ([count, rate_text, time_text], [count, time_text], [time_text], []):
        figures = "  ".join(filter(None, words))
        room = width - label_width - cell_len(figures) - 2
        if room >= 0:
            break
    yield Text(_shortened(now.label, label_width), end="")
    bar_width = min(room - 2, BAR_WIDTHS[1])
    if now.total and bar_width >= BAR_WIDTHS[0]:
        yield Text("  ", end="")
        yield ProgressBar(total=now.total, completed=now.done, width=bar_width)
    if figures:
        yield Text(f"  {figures}", end="")


def _shortened(text: str, width: int) -> str:
    return text if cell_len(text) <= width else f"{set_cell_size(text, max(width - 1, 0)).rstrip()}…"


def _count(now: _Now, unit: Unit) -> str:
    if unit == "bytes":
        if now.total is None:
            return _bytes(now.done, now.done) if now.done else ""
        return f"{_bytes(now.done, now.total, with_unit=False)}/{_bytes(now.total, now.total)}"
    counted = " tokens" if unit == "tokens" else ""
    if now.total is None:
        return f"{now.done:,}{counted}" if now.done else ""
    return f"{now.done:,}/{now.total:,}{counted}"


def _bytes(size: float, like: float, with_unit: bool = True) -> str:
    """A size in the unit that `like` is shown in."""
    power, name = next(
        (each for each in ((4, "TB"), (3, "GB"), (2, "MB"), (1, "KB")) if like >= 1000 ** each[0]),
        (0, "bytes"),
    )
    number = f"{size / 1000**power:.1f}" if power else f"{size:.0f}"
    return f"{number} {name}" if with_unit else number


def _rate_text(rate: float, unit: Unit) -> str:
    """What is done in a second. Steps are rarely so quick or so alike that it would mean anything."""
    if unit == "steps":
        return ""
    return f"{_bytes(rate, rate)}/s" if unit == "bytes" else f"{rate:,.0f}/s"


def duration_text(seconds: float) -> str:
    """`9 s`, `3 min 5 s`, `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
