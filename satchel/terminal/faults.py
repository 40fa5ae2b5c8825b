"""What is said of an exception that nobody foresaw: one line, and the traceback where that is asked for.

Knows nothing of where it is written.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator

from satchel.errors import fault_of
from satchel.terminal.manner import DEBUG, is_debugging
from satchel.terminal.sanitize import sanitize, sanitize_line

MAX_TOLD_CHARS = 300  # of what the exception says


def fault_lines(err: Exception) -> Iterator[str]:
    """The lines about `err`, clean."""
    told = f": {str(err)[:MAX_TOLD_CHARS]}" if str(err) else ""
    more = "" if is_debugging() else f"; {DEBUG}=1 shows more"
    yield sanitize_line(f"satchel: {fault_of(err)}{told}{more}")
    if is_debugging():
        yield from sanitize("".join(traceback.format_exception(err))).splitlines()
