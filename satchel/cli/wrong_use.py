"""What typer complains of, in our words. Knows nothing of what the commands do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

# What typer says, and pydantic, which it has values checked by.
_PLAINER = (
    (r"No such option:? (\S+)", r"there is no option \1"),
    (r"No such command ('.*?')\. Did you mean ('.*')\?", r"there is no command \1; did you mean \2?"),
    (r"No such command ('.*?')", r"there is no command \1"),
    (r"Missing (argument|option) ('.*')", r"the \1 \2 is missing"),
    (r"Input should be a valid integer.*", "it is no whole number"),
    (r"Input should be a valid number.*", "it is no number"),
    (r"Input should be greater than or equal to (\S+)", r"it is less than \1"),
    (r"Input should be less than or equal to (\S+)", r"it is more than \1"),
    (r"Value error, ", ""),
)


def wrong_use(err: Any) -> str:
    """One line about a `TyperException`, with where more is said."""
    if hasattr(err, "possibilities"):  # no such option; typer names others that only begin alike
        found = _nearest(err.option_name, err.possibilities or ())
        message = f"{err.message}; did you mean {found}?" if found else str(err.message)
    else:
        message = err.format_message().rstrip(".")
    for pattern, plainer in _PLAINER:
        message = re.sub(pattern, plainer, message)
    context = getattr(err, "ctx", None)
    if context is None or message.endswith("?"):  # it says what was meant
        return message
    return f"{message}; `{context.command_path} --help` says more"


def _nearest(option: str, known: Iterable[str]) -> str:
    """The one of `known` that is most like `option`, dashes aside; "" if none is."""
    import difflib

    bare = {each.lstrip("-"): each for each in known}
    found = difflib.get_close_matches(option.lstrip("-"), bare, n=1)
    return bare[found[0]] if found else ""
