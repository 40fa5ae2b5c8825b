"""A prompt that is to be asked again and again: how often, how far apart. Knows nothing of asking."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass

from satchel.config.units import parse_duration_s
from satchel.config.waits import POLL_S
from satchel.errors import UsageError

DEFAULT_INTERVAL_S = 600.0  # where neither a number nor an interval is given
MIN_INTERVAL_S = 1.0  # of a loop that only the user ends
MAX_INTERVAL_S = 86400.0
MAX_TIMES = 1000

_PART = r"\d{1,6}(?:\.\d{1,3})?[smh]"
_LOOP = re.compile(
    rf"(?:(?P<times>\d{{1,9}})(?:\s+|$))?(?:(?P<interval>(?:{_PART})+)(?:\s+|$))?(?P<prompt>.*)",
    re.ASCII | re.DOTALL,
)
_USAGE = "write [number] [interval] prompt, as in 5 30s check the log"


@dataclass(frozen=True, slots=True)
class Loop:
    """`prompt`, asked `times` times (None: until stopped), `interval_s` after the answer before."""

    times: int | None
    interval_s: float
    prompt: str


def parse_loop(argument: str) -> Loop:
    """`[number] [interval] prompt`; an interval is written with s, m and h: `30s`, `1.5h`, `1h30m`.

    `5 30s check the log` asks five times, 30 s apart; `3 tell me a joke` three times without a pause;
    `10m what changed?` every ten minutes until stopped, and so does `what changed?` alone.

    Raises:
        UsageError: no prompt, or a number or an interval that is too small or too large.
    """
    found = _LOOP.fullmatch(argument.strip())
    if found is None or not found["prompt"]:
        raise UsageError("there is no prompt to ask again", _USAGE)
    times = int(found["times"]) if found["times"] else None
    if times is not None and not 1 <= times <= MAX_TIMES:
        raise UsageError(f"a loop of {times} times is not possible: 1 to {MAX_TIMES} are", _USAGE)
    return Loop(times, _interval_s(found["interval"], bounded=times is not None), found["prompt"])


def wait(seconds: float, cancel: threading.Event) -> bool:
    """Wait that long, or until `cancel` is set; whether it was set, as `cancel.wait` says it."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if cancel.wait(min(left, POLL_S)):
            return True
    return cancel.is_set()


def _interval_s(text: str | None, bounded: bool) -> float:
    if text is None:
        return 0.0 if bounded else DEFAULT_INTERVAL_S
    seconds = sum(map(parse_duration_s, re.findall(_PART, text)))
    least = 0.0 if bounded else MIN_INTERVAL_S
    if not least <= seconds <= MAX_INTERVAL_S:
        raise UsageError(
            f"an interval of {text} is not possible here: {least:g}s to {MAX_INTERVAL_S / 3600:g}h are",
            _USAGE,
        )
    return seconds
