"""What `--json` prints for each command, how it is printed, and the tables of docs/scripts.md.

A command has a record, a frozen dataclass whose fields are `Annotated[type, "what it means"]`, and an entry
in `RECORDS`; it ends with `print_json(record)`. `python -m satchel.cli.schemas` prints the tables.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

_RECORDS = "satchel.cli.records"

# By command: where its record is, and whether it prints a list of them. Imported where they are needed alone.
RECORDS: Mapping[str, str] = {
    "ask": f"{_RECORDS}:AnswerRecord",
    "search": f"{_RECORDS}:FoundRecord",
    "shell": f"{_RECORDS}:CommandRecord",
    "ingest": f"{_RECORDS}:IngestedRecord",
    "share": f"{_RECORDS}:SharedRecord",
    "receive": f"{_RECORDS}:MadeRecord",
    "sessions list": f"{_RECORDS}:SessionRecord[]",
    "sessions show": f"{_RECORDS}:TalkRecord",
    "sessions fork": f"{_RECORDS}:SessionRecord",
    "sessions rename": f"{_RECORDS}:SessionRecord",
    "sessions archive": f"{_RECORDS}:ArchivedRecord",
    "sessions rm": f"{_RECORDS}:RemovedRecord[]",
    "sessions export": f"{_RECORDS}:ExportedRecord",
    "sessions import": f"{_RECORDS}:MadeRecord",
    "store stats": f"{_RECORDS}:StoreRecord",
    "store verify": f"{_RECORDS}:VerifiedRecord",
    "store gc": f"{_RECORDS}:CollectedRecord",
    "store prune": f"{_RECORDS}:PrunedRecord",
    "store reindex": f"{_RECORDS}:IndexedRecord",
    "sync": f"{_RECORDS}:SyncedRecord",
    "sync push": f"{_RECORDS}:SyncedRecord",
    "sync pull": f"{_RECORDS}:SyncedRecord",
    "sync status": f"{_RECORDS}:SyncStatusRecord",
    "sync gc": f"{_RECORDS}:RemoteCollectedRecord",
    "model list": "satchel.cli.model_records:LocalRecord[]",
    "model list --known": "satchel.cli.model_records:KnownRecord[]",
    "model info": "satchel.cli.model_records:InfoRecord",
    "model use": "satchel.cli.model_records:UsedRecord",
    "model rm": "satchel.cli.model_records:RemovedRecord",
    "model pull": "satchel.cli.model_records:PulledRecord",
    "model convert": "satchel.cli.convert:ConvertedRecord",
    "model quantize": "satchel.cli.convert:ConvertedRecord",
    "config show": "satchel.cli.config:SettingsRecord",
    "config get": "satchel.cli.config:SettingRecord[]",
    "config set": "satchel.cli.config:SettingRecord",
    "config unset": "satchel.cli.config:UnsetRecord",
    "config path": "satchel.cli.config:SettingsFileRecord",
    "init": "satchel.cli.init:InitRecord",
    "doctor": "satchel.cli.doctor:DoctorRecord",
    "stats": "satchel.cli.stats:StatsRecord",
    "stats --all": "satchel.cli.stats:SessionSummary[]",
    "completion install": f"{_RECORDS}:CompletionRecord",
    "completion uninstall": f"{_RECORDS}:CompletionRecord",
}
EVENTS = tuple(f"{_RECORDS}:{kind}Event" for kind in ("Progress", "Delta", "Notice", "Done", "Error"))


def print_json(record: Any) -> None:
    """Print a record, or a list of them, on standard output.

    All that is not ASCII is escaped: no text in it can drive a terminal, and none of it is changed.
    """
    print(json.dumps(plain(record), indent=2))


def print_json_line(record: Any) -> None:
    """Print a record as one line, which is seen at once."""
    print(json.dumps(plain(record)), flush=True)


def plain(record: Any) -> Any:
    """A record, or a list of them, as JSON values."""
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return dataclasses.asdict(record)
    if isinstance(record, list | tuple):
        return [plain(each) for each in record]
    return record


def record_of(command: str) -> tuple[type, bool]:
    """The record that `command` prints, and whether it prints a list of them."""
    return _find(RECORDS[command])


def event_records() -> list[type]:
    """The records of the lines of `ask --stream-json`."""
    return [_find(where)[0] for where in EVENTS]


def faults(value: object, kind: Any, place: str = "") -> Iterator[str]:
    """What is wrong with a JSON value that is to be of the type `kind`: nothing, if it is right."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        fields = typing.get_type_hints(kind)
        if not isinstance(value, dict):
            yield f"{place or 'all'} is {value!r}"
        elif set(value) != set(fields):
            yield f"{place or 'all'} differs in {sorted(set(value) ^ set(fields))}"
        else:
            for name, inner in fields.items():
                yield from faults(value[name], inner, f"{place}.{name}")
    elif origin is list:
        entries = enumerate(value) if isinstance(value, list) else ()
        for index, each in entries:
            yield from faults(each, arguments[0], f"{place}[{index}]")
        if not isinstance(value, list):
            yield f"{place} is {value!r}"
    elif origin is dict:
        if isinstance(value, dict):
            for key, each in value.items():
                yield from faults(each, arguments[1], f"{place}.{key}")
        else:
            yield f"{place} is {value!r}"
    elif origin is types.UnionType:
        if all(any(faults(value, each)) for each in arguments):
            yield f"{place} is {value!r}"
    elif kind is not Any and (type(value) is not kind and not (kind is float and type(value) is int)):
        yield f"{place} is {value!r}"


def tables() -> str:
    """The tables of docs/scripts.md, in Markdown."""
    commands: dict[str, list[str]] = {}
    for command, where in RECORDS.items():
        commands.setdefault(where, []).append(f"`satchel {command} --json`")
    parts = [f"### {', '.join(same)}\n\n{_table(where)}" for where, same in commands.items()]
    parts.append("### `satchel ask --stream-json`\n\nA line for each event, each one of these:")
    parts += [_table(where) for where in EVENTS]
    return "\n\n".join(parts) + "\n"


def _table(where: str) -> str:
    kind, listed = _find(where)
    lines = ["A list; of each:", ""] if listed else []
    lines += ["| field | type | what it is |", "|---|---|---|", *_rows(kind)]
    return "\n".join(lines)


def _rows(kind: Any, prefix: str = "") -> Iterator[str]:
    for name, annotated in typing.get_type_hints(kind, include_extras=True).items():
        inner, *meanings = typing.get_args(annotated)
        yield f"| `{prefix}{name}` | {_said(inner)} | {meanings[0]} |"
        nested, mark = _nested(inner)
        if nested is not None:
            yield from _rows(nested, f"{prefix}{name}{mark}.")


def _nested(kind: Any) -> tuple[type | None, str]:
    """The record within `kind`, if there is one, and how its place is written."""
    if dataclasses.is_dataclass(kind):
        return typing.cast(type, kind), ""
    marks: dict[Any, str] = {list: "[]", dict: ".*"}
    mark = marks.get(typing.get_origin(kind), "")
    arguments = typing.get_args(kind)
    inner = next((each for each in arguments if dataclasses.is_dataclass(each)), None)
    return typing.cast("type | None", inner), mark


def _said(kind: Any) -> str:
    names = {str: "text", int: "integer", float: "number", bool: "true or false", types.NoneType: "null"}
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        return f"list of {_said(arguments[0])}"
    if origin is dict:
        return f"object of {_said(arguments[1])}"
    if origin is types.UnionType:
        return " or ".join(map(_said, arguments))
    return names.get(kind, "object" if dataclasses.is_dataclass(kind) else "any")


def _find(where: str) -> tuple[type, bool]:
    module, _, name = where.removesuffix("[]").partition(":")
    return getattr(importlib.import_module(module), name), where.endswith("[]")


if __name__ == "__main__":
    print(tables(), end="")
