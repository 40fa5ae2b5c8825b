"""Lays out what commands show: labels and values, and times. Knows nothing of what they say."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import datetime


def facts(values: Mapping[str, object]) -> str:
    """A line for each label, the values below each other."""
    width = max(map(len, values), default=0)
    return "\n".join(f"{label:<{width}}  {value}" for label, value in values.items())


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def local_time(time: datetime) -> str:
    with contextlib.suppress(ValueError, OverflowError):  # the zone of the environment may be none
        time = time.astimezone()
    return f"{time:%Y-%m-%d %H:%M}"
