"""Paths as the user types them behind a command. Knows nothing of what they are for."""

from __future__ import annotations

import shlex
from pathlib import Path

from satchel.config.paths import expand
from satchel.errors import UsageError


def below(base: Path, typed: str) -> Path:
    """The path that `typed` means where commands run in `base`. All of `typed` is one path, spaces and all.

    Raises:
        UsageError: it names a home directory that is not there.
    """
    if len(typed) > 1 and typed[0] == typed[-1] and typed[0] in "\"'":
        typed = typed[1:-1]
    return base / expand(typed)


def words(typed: str) -> list[str]:
    """The paths in `typed`; one with spaces stands in quotes.

    Raises:
        UsageError: a quote is not closed.
    """
    try:
        return shlex.split(typed)
    except ValueError as err:
        raise UsageError("a quote is not closed", "write it as 'my file.txt'") from err
