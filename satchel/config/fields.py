"""Settings by dotted keys, and what each allows, in words. Knows nothing of which settings there are.

A model's fields are settings, tables of settings (models themselves), or open tables (`dict[str, str]`),
whose names the user chooses: all behind the dot is the name, be there dots in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

Model = type[BaseModel]

# What a field says in `json_schema_extra` where its type says too little of what it allows.
ALLOWED = "allowed"


def setting_keys(model: Model, prefix: str = "") -> Iterator[str]:
    """Every setting's key; what open tables hold is not known here."""
    for name in model.model_fields:
        table = table_of(model, name)
        if table is not None:
            yield from setting_keys(table, f"{prefix}{name}.")
        elif not is_open(model, name):
            yield prefix + name


def open_tables(model: Model) -> list[str]:
    return [name for name in model.model_fields if is_open(model, name)]


def table_of(model: Model, name: str) -> Model | None:
    """The fields of the table `name`, if it is one."""
    field = model.model_fields.get(name)
    kind = field.annotation if field else None
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def is_open(model: Model, name: str) -> bool:
    field = model.model_fields.get(name)
    return field is not None and get_origin(field.annotation) is dict


def field_of(model: Model, key: str) -> FieldInfo | None:
    """The field of the setting `key`; of an open table's entry, the table's."""
    *tables, name = split_key(model, key)
    for each in tables:
        if is_open(model, each):
            return model.model_fields[each]
        inner = table_of(model, each)
        if inner is None:
            return None
        model = inner
    return model.model_fields.get(name)


def split_key(model: Model, key: str) -> list[str]:
    first, dot, rest = key.partition(".")
    return [first, rest] if dot and is_open(model, first) else key.split(".")


def nested(model: Model, settings: Mapping[str, object]) -> dict[str, object]:
    """As tables."""
    root: dict[str, object] = {}
    for key, value in settings.items():
        table: Any = root
        *tables, name = split_key(model, key)
        for each in tables:
            table = table.setdefault(each, {})
        table[name] = value
    return root


def flat(tables: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """By key, so that one source's settings replace another's one by one."""
    by_key: dict[str, object] = {}
    for name, value in tables.items():
        by_key |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return by_key


def allowed(field: FieldInfo) -> str:
    """What a field takes: `a whole number, at least 1`; `emacs or vi`."""
    extra = field.json_schema_extra
    if isinstance(extra, dict) and ALLOWED in extra:
        return str(extra[ALLOWED])
    kind, limits = _unpacked(field.annotation, field.metadata)
    if get_origin(kind) is Literal:
        return either(map(str, get_args(kind)))
    if kind is bool:
        return "true or false"
    noun = {int: "a whole number", float: "a number"}.get(kind, "text")
    return f"{noun}, {_range(limits)}" if limits else noun


def choices(field: FieldInfo) -> list[str]:
    """The words that a field takes, if it is one that takes certain words alone."""
    kind, _ = _unpacked(field.annotation, field.metadata)
    return list(map(str, get_args(kind))) if get_origin(kind) is Literal else []


def is_text(field: FieldInfo) -> bool:
    kind, _ = _unpacked(field.annotation, field.metadata)
    return kind is str or get_origin(kind) in (Literal, dict)


def either(words: Iterable[str]) -> str:
    """`a, b or c`."""
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def bound(kind: str, number: float) -> str:
    """One end of a range: `at least 1`. `kind` is how pydantic calls it."""
    word = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}[kind]
    text = (
        f"2^{int(number).bit_length() - 1}"
        if number == 1 << 64
        else f"{number:g}"
        if number < 1e6
        else number
    )
    return f"{word} {text}"


def _range(limits: Mapping[str, float]) -> str:
    if "ge" in limits and "le" in limits:
        return f"{limits['ge']:g} to {limits['le']:g}"
    return " and ".join(bound(kind, limits[kind]) for kind in ("ge", "gt", "le", "lt") if kind in limits)


def _unpacked(annotation: Any, metadata: Iterable[object]) -> tuple[Any, dict[str, float]]:
    """The type without None and annotations, and its limits."""
    limits: dict[str, float] = {}
    waiting = list(metadata)
    while waiting:
        each = waiting.pop()
        if isinstance(each, FieldInfo):
            waiting += each.metadata
        for kind, name in (
            ("ge", annotated_types.Ge),
            ("gt", annotated_types.Gt),
            ("le", annotated_types.Le),
            ("lt", annotated_types.Lt),
        ):
            if isinstance(each, name):
                limits[kind] = getattr(each, kind)
    if get_origin(annotation) in (Union, UnionType):
        annotation = next(each for each in get_args(annotation) if each is not type(None))
    if get_origin(annotation) is Annotated:
        kind, *inner = get_args(annotation)
        unpacked, more = _unpacked(kind, inner)
        return unpacked, limits | more
    return annotation, limits
