"""Sizes and times as people write them: `20GB`, `512 MiB`, `24h`. Knows nothing of what they limit."""

from __future__ import annotations

import re

from satchel.errors import UsageError

_SIZES = {
    "": 1,
    "b": 1,
    **{unit: 1000**power for power, unit in enumerate(("kb", "mb", "gb", "tb"), 1)},
    **{unit: 1024**power for power, unit in enumerate(("kib", "mib", "gib", "tib"), 1)},
}
_TIMES = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_QUANTITY = re.compile(r"(\d{1,18}(?:\.\d{1,9})?) *([a-z]*)", re.ASCII)


def parse_size(text: str) -> int:
    """Bytes: `20GB` is 20·10⁹, `20GiB` 20·2³⁰; a number alone counts bytes.

    Raises:
        UsageError: anything else.
    """
    return int(_parse(text, _SIZES, "size", "write bytes, or KB, MB, GB, TB, KiB, MiB, GiB, TiB, as in 20GB"))


def parse_duration_s(text: str) -> float:
    """Seconds: `90s`, `30m`, `24h`, `7d`; a number alone counts seconds.

    Raises:
        UsageError: anything else.
    """
    return _parse(text, _TIMES, "time", "write s, m, h or d, as in 24h")


def size_text(size_bytes: float) -> str:
    """A size in the largest decimal unit of which there is at least one: `1.2 GB`."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if abs(size_bytes) < 1000:
            return f"{size_bytes:.0f} bytes" if unit == "bytes" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} TB"


def _parse(text: str, units: dict[str, int], noun: str, right: str) -> float:
    found = _QUANTITY.fullmatch(text.strip().lower())
    if found is None or found[2] not in units:
        raise UsageError(f"{text[:40]!r} is not a {noun}", right)
    return float(found[1]) * units[found[2]]
