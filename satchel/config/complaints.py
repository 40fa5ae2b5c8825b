"""What is wrong with a setting, in plain words: where it stands, what it is, and what is right.

Turns pydantic's complaints into ours. Knows nothing of which settings there are.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import ValidationError

from satchel.config.fields import (
    Model,
    allowed,
    bound,
    choices,
    either,
    field_of,
    is_open,
    is_text,
    setting_keys,
    table_of,
)
from satchel.errors import UsageError

MAX_SHOWN = 80  # characters of a value

# Where settings come from, beside a file's path: the environment, and what was typed, as a flag or a setting.
ENVIRONMENT, TYPED = "environment", ""

# Pydantic's names of what lies outside a range, and ours of its end.
_BOUNDS = {
    "greater_than_equal": "ge",
    "greater_than": "gt",
    "less_than_equal": "le",
    "less_than": "lt",
}


def usage_error(
    err: ValidationError, model: Model, source: str, name: Callable[[str], str] = str
) -> UsageError:
    """The first complaint as one line.

    Args:
        source: where the settings come from: a file's path, or one of those above.
        name: how a setting is called there.
    """
    first: Any = err.errors(include_url=False)[0]
    inner, path, tables = model, [str(part) for part in first["loc"]], []
    while len(path) > 1 and (table := table_of(inner, path[0])):
        tables.append(path.pop(0))
        inner = table
    is_entry = len(path) > 1 and is_open(inner, path[0])
    key = ".".join([*tables, *path[: 2 if is_entry else 1]])
    if first["type"] == "extra_forbidden":
        return unknown_key(model, key, source)
    shown = f"{placed(source)}{name(key)} is {shown_value(first['input'])}"
    if not is_entry and ((table := table_of(inner, path[0])) or is_open(inner, path[0])):
        below = ", ".join(table.model_fields) if table else 'name = "what it stands for"'
        return UsageError(shown, f"it is a table: write [{key}] and {below} below it")
    if path[-1] == "[key]":
        return UsageError(
            f"{placed(source)}{shown_value(path[1])} is no name for a model", str(first["ctx"]["error"])
        )
    return UsageError(shown, _right(first, model, key, source))


def unknown_key(model: Model, key: str, source: str) -> UsageError:
    """There is no such setting; names the nearest one that there is."""
    return UsageError(f"{placed(source)}there is no setting {key[:MAX_SHOWN]!r}", _nearest(model, key))


def placed(source: str) -> str:
    """How a complaint about what stands in `source` begins."""
    return f"{source}: " if source else ""


def near(word: str, known: Sequence[str], cutoff: float = 0.6) -> str | None:
    """The one of `known` that is most like `word`, if any is."""
    found = difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    return found[0] if found else None


def shown_value(value: object) -> str:
    """A value as one would write it, bounded."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    if isinstance(value, int | float | str):
        try:
            text = repr(value)
        except ValueError:  # TOML's hexadecimal integers may be longer than Python prints
            return "a number of thousands of digits"
    else:
        text = str(value)  # a date
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _right(first: Any, model: Model, key: str, source: str) -> str:
    """What is right in place of a wrong value."""
    kind, value = first["type"], first["input"]
    if kind in _BOUNDS:
        return bound(_BOUNDS[kind], first["ctx"][_BOUNDS[kind]])
    if kind == "value_error":
        return str(first["ctx"]["error"])
    field = field_of(model, key)
    if field is None:  # something below a setting that is no table
        return "it is no table"
    if not isinstance(value, str):
        in_file = is_text(field) and source != TYPED
        return f"write {allowed(field)}{', in quotes' if in_file else ''}"
    if (words := choices(field)) and (word := near(value.lower(), words)):
        return f"did you mean {word}? {either(words)} is right"
    if value == "" and not is_text(field):
        return f"write {allowed(field)}; `satchel config unset {key}` takes it back"
    unquoted = kind in ("int_type", "float_type", "bool_type") and source != TYPED
    return f"write {allowed(field)}{', without quotes' if unquoted else ''}"


def _nearest(model: Model, key: str) -> str:
    """A hint: the settings most like `key`, or those that there are."""
    keys = list(setting_keys(model))
    if key in keys:  # as the name of one setting: "sync.auto" = true
        return f"write {key} without quotes"
    *tables, name = key.replace("-", "_").lower().split(".")
    if same := [each for each in keys if each.split(".")[-1] == name]:
        return f"did you mean {either(same)}?"
    prefix, inner = "", model
    for each in tables:
        table = table_of(inner, each)
        if table is None:
            break
        prefix, inner = f"{prefix}{each}.", table
    here = [prefix + each for each in inner.model_fields]
    if found := near(prefix + name if inner is not model else key, here):
        return f"did you mean {found}?"
    lasts = [each.split(".")[-1] for each in keys]
    if last := near(name, lasts, 0.75):
        return f"did you mean {either(each for each in keys if each.split('.')[-1] == last)}?"
    if whole := near(key, keys, 0.75):
        return f"did you mean {whole}?"
    return f"known are {', '.join(here)}" if prefix else "`satchel config show` lists those that there are"
