"""`satchel model …`: the models of this machine, what they take, and which one is used.

What takes long to import (MLX, the hub's library) is imported inside the commands that need it.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from satchel.cli.options import AsJson, agree, at_terminal, examples, open_store, report
from satchel.cli.schemas import print_json
from satchel.config.units import size_text
from satchel.errors import DamagedError, NotFoundError, SatchelError, UsageError
from satchel.terminal.sanitize import sanitize_line

models = typer.Typer(
    help="Fetch, choose, compare, convert and remove models.",
    epilog=examples(
        "satchel model list --known", "satchel model pull qwen3.5-4b", "satchel model use qwen3.5-4b"
    ),
)

Name = Annotated[
    str, typer.Argument(help="embedded, a short name, a hub name, an MLX folder or a GGUF file.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Don't ask; needed without a terminal.")]


@models.command(
    "list",
    epilog=examples(
        "satchel model list",
        "satchel model list --known     # what can be fetched by a short name, and what fits this machine",
        "satchel model list --json",
    ),
)
def list_models(
    known: Annotated[
        bool, typer.Option("--known", help="Those that have a short name, here or not.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """The models on this machine; `*` marks the one that is used when none is named."""
    from satchel.cli.model_records import known_records, local_records
    from satchel.cli.model_text import known_table, local_table

    if known:
        records = known_records()
        print_json(records) if as_json else print(known_table(records))
        return
    from satchel.config.settings import load_settings
    from satchel.engine.library import local_models
    from satchel.engine.model_names import full_name

    settings, uses = load_settings(), _uses()
    default = full_name(settings.model)
    found = local_models(settings.models, [default, *uses])
    listed = local_records(found, default, uses)
    if as_json:
        print_json(listed)
        return
    if listed:
        print(local_table(listed))
    for record in listed:
        if record.fault:
            report(f"{record.name}: {record.fault}")
    if not any(record.is_default for record in listed):
        report(f"{settings.model}, which is used when no model is named, is not on this machine")


@models.command(
    "info",
    epilog=examples(
        "satchel model info embedded",
        "satchel model info qwen3.5-9b     # also before it is fetched",
        "satchel model info ~/models/llama.gguf --json",
    ),
)
def show_model(name: Name, as_json: AsJson = False) -> None:
    """What a model is, what its context takes for each KV profile, and the longest one that fits here.

    Nothing is loaded: all comes from the model's configuration and the headers of its files. The longest
    context leaves a quarter of the memory, at least 1.5 GB, to the system and other programs.
    """
    from satchel.cli.model_records import info_record
    from satchel.cli.model_text import info_text

    record = info_record(name)
    print_json(record) if as_json else print(info_text(record))
    if not as_json and not record.here:
        report(f"it is not on this machine: `satchel model pull {name}` fetches it")
    if not as_json and record.is_guess:
        report(f"{record.architecture} is an architecture unknown here: the figures on memory are a guess")


@models.command(
    "use",
    epilog=examples(
        "satchel model use embedded",
        "satchel model use qwen3.5-9b        # after `satchel model pull qwen3.5-9b`",
        "satchel model use ~/models/llama.gguf",
    ),
)
def use_model(name: Name, as_json: AsJson = False) -> None:
    """Use a model that is on this machine whenever none is named: sets `model` in the settings file."""
    from satchel.cli.model_records import UsedRecord
    from satchel.config import paths
    from satchel.config.settings import set_in_file
    from satchel.engine.library import find
    from satchel.engine.model_files import has_tokenizer
    from satchel.engine.model_folder import check_supported
    from satchel.engine.model_names import resolve, users_names

    found = find(name)
    if found.fault:
        raise DamagedError(found.fault, "`satchel model list` shows the others")
    folder = found.path if found.path.is_dir() else found.conversion
    if folder is not None:
        check_supported(folder)
        if not has_tokenizer(folder):
            raise NotFoundError(f"{folder} has no tokenizer files", "copy those of the same model there")
    is_short = resolve(name, users_names()) != name and found.kind != "folder"
    value = name.strip().lower() if is_short else found.name
    set_in_file("model", value)
    if as_json:
        print_json(UsedRecord(model=value, settings=str(paths.config_file())))
    else:
        print(sanitize_line(f"{value} is used now when no model is named ({paths.config_file()})"))
    if os.environ.get("SATCHEL_MODEL"):
        report(f"but SATCHEL_MODEL is set, to {os.environ['SATCHEL_MODEL']!r}, and goes before it")


@models.command(
    "rm",
    epilog=examples(
        "satchel model rm qwen3.5-9b",
        "satchel model rm mlx-community/Qwen3-0.6B-4bit --yes",
    ),
)
def remove_model(name: Name, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete a model that was fetched or converted. Your own folders and GGUF files are never deleted."""
    from satchel.cli.model_records import RemovedRecord
    from satchel.engine.library import find, removable_bytes, remove, what_stays

    found = find(name, in_part=True)
    if found.fault and found.kind in ("folder", "gguf"):
        raise DamagedError(found.fault, "it is not a model, so it stays")
    stays = what_stays(found)
    size = removable_bytes(found)
    if not size and stays:
        remove(found)  # refuses, and says how
    users = _session_names(found.name)
    if users:
        report(f"used by {_counted(len(users), 'session')}: {_some(users)}; they stay, and need it to go on")
    what = f"what was made of {found.path}" if stays else found.name
    shared = "; other programs that use the hub's cache lose it, too" if found.kind == "hub" else ""
    agree(
        f"Delete {what} ({size_text(size)}){shared}?",
        yes,
        irreversible="deleting a model cannot be undone, only fetched or made again",
        kept=f"{name} stays as it is",
    )
    freed = remove(found)
    if as_json:
        print_json(RemovedRecord(name=found.name, freed_bytes=freed, stays=stays))
        return
    print(sanitize_line(f"deleted {what}: {size_text(freed)}"))
    if stays:
        report(stays)


@models.command(
    "pull",
    epilog=examples(
        "satchel model pull embedded",
        "satchel model pull qwen3.5-9b",
        "satchel model pull mlx-community/Qwen3-0.6B-4bit --yes",
    ),
)
def pull_model(
    name: Annotated[str, typer.Argument(help="embedded, a short name, or a hub name as owner/repository.")],
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask at a terminal.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fetch a model; prints its place. What was interrupted goes on where it stopped."""
    from satchel.cli.model_records import PulledRecord
    from satchel.engine.library import is_here
    from satchel.engine.model_names import EMBEDDED, full_name

    target = full_name(name)
    was_here = is_here(target)
    place = _pull_embedded() if target == EMBEDDED else _pull_from_hub(name, target, yes)
    if as_json:
        print_json(PulledRecord(name=target, path=str(place), was_here=was_here))
    else:
        print(sanitize_line(str(place)))


def _pull_embedded() -> Path:
    from satchel.engine.embedded import find_embedded_gguf, pull_embedded

    if found := find_embedded_gguf():
        report("the embedded model is here already")
        return found
    return pull_embedded(report)


def _pull_from_hub(name: str, target: str, yes: bool) -> Path:
    """The folder of a hub model, fetched if it is not here and a person at a terminal agrees to its size."""
    from satchel.config.paths import expand
    from satchel.engine.hub import cached_folder, fetch_from_hub, is_hub_name, plan_download
    from satchel.engine.model_folder import check_supported
    from satchel.engine.model_names import near_names, users_names
    from satchel.terminal.progress import progress_bar

    if expand(target).exists():
        raise UsageError(f"{target!r} is on this machine already", f"`satchel chat --model {target}` uses it")
    if not is_hub_name(target):
        near = near_names(name, users_names())
        hint = f"did you mean {near[0]}?" if near else "`satchel model list --known` shows the short names"
        raise NotFoundError(f"there is no model {name!r} to fetch", hint)
    if (folder := cached_folder(target)) is not None:
        report(f"{target} is here already")
        return folder
    plan = plan_download(target)
    part = "" if plan.left_bytes == plan.total_bytes else f" of {size_text(plan.total_bytes)}"
    agree(
        f"Fetch {target} ({size_text(plan.left_bytes)}{part})?",
        yes or not at_terminal(),
        irreversible="",
        kept=f"{target} was not fetched",
    )
    with progress_bar(f"fetching {target.rpartition('/')[2]}", plan.left_bytes, "bytes") as bar:
        return fetch_from_hub(target, report, bar.update, check_supported, plan)


def _uses() -> Counter[str]:
    """How many stored sessions used each model, by the name that loads it."""
    from satchel.engine.model_names import full_name

    try:
        return Counter(full_name(head.model_name) for head in open_store().heads(None, 0).heads)
    except SatchelError as err:  # a damaged store must not hide the models
        report(err.one_line())
        return Counter()


def _session_names(model: str) -> list[str]:
    from satchel.engine.model_names import full_name

    return [head.name for head in open_store().heads(None, 0).heads if full_name(head.model_name) == model]


def _some(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
