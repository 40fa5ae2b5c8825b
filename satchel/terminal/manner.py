"""How much is said, and how plainly: what the flags and the environment ask of every output.

The flags `--quiet` and `--no-color` are kept in the environment, so that everything in the process sees them.
"""

from __future__ import annotations

import os

QUIET = "SATCHEL_QUIET"
DEBUG = "SATCHEL_DEBUG"
NO_COLOR = "NO_COLOR"  # https://no-color.org


def is_quiet() -> bool:
    """Whether notices and progress are not wanted: answers and errors alone."""
    return bool(os.environ.get(QUIET))


def is_dumb() -> bool:
    """Whether the terminal knows no more than text, as far as is known."""
    return os.environ.get("TERM", "dumb") in ("dumb", "unknown")


def is_plain() -> bool:
    """Whether colours and other attributes are not wanted, or not understood."""
    return bool(os.environ.get(NO_COLOR)) or is_dumb()


def is_debugging() -> bool:
    """Whether a fault of the program is to be shown with its traceback."""
    return bool(os.environ.get(DEBUG))
