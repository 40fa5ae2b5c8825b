"""`satchel init`: finds a model for this machine, fetches it, and sets up sync, in a few questions.

What takes long to import (MLX, the hub's library) is imported inside the functions that need it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from satchel.cli.models import pull_model, use_model
from satchel.cli.options import AsJson, at_terminal, examples, need_embedded_model, open_store, report
from satchel.cli.schemas import print_json
from satchel.config.units import size_text
from satchel.errors import NotFoundError, SatchelError, UsageError
from satchel.terminal.sanitize import sanitize_line

if TYPE_CHECKING:
    from satchel.config.profiles import Profile
    from satchel.engine.device import Device
    from satchel.engine.fit import Shape

CONTEXTS = ("8k", "32k", "128k")
USUAL_CONTEXT = "32k"
EASE = 0.75  # of the memory that models may take: what is suggested takes no more
MOST_ROWS = 10
SHOWN_PROFILES = ("exact", "k8v4", "turbo4", "turbo3", "turbo2")
SYNC_ANSWERS = ("no", "new", "join")

_T = TypeVar("_T")


@dataclass(frozen=True)
class InitRecord:
    """What `init --json` prints."""

    model: Annotated[str, "that is used now when none is named"]
    kv_profile: Annotated[str, "that new sessions get"]
    context_tokens: Annotated[int, "of the context that was asked for"]
    needed_bytes: Annotated[int, "of memory for the model and such a context"]
    memory_bytes: Annotated[int, "that models may take on this machine"]
    settings: Annotated[str, "the settings file"]
    sync: Annotated[str | None, "the remote; null: none"]


@dataclass(frozen=True, slots=True)
class Choice:
    """A model that can be chosen; `needed` is bytes of weights and context by KV profile, where known."""

    name: str
    fetch: str
    needed: Mapping[str, int]


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "satchel init",
            "satchel init --context 128k     # models that have the memory for it",
            "satchel init --yes --model embedded",
            "satchel init --yes --model qwen3.5-9b --kv turbo3 --sync file:///Volumes/nas/satchel",
        )
    )(init)


def notice_of_first_run() -> str | None:
    """A line for a user who has neither settings nor sessions yet."""
    from satchel.config.paths import config_file
    from satchel.files import scan_dir

    if config_file().exists() or scan_dir(open_store().heads_dir):
        return None
    return "new here? `satchel init` finds a model for this machine and sets up sync"


def init(
    context: Annotated[
        str | None,
        typer.Option(metavar="TOKENS", help="How long contexts should be, such as 8k, 32k or 128k."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The model to use, in place of the question: any name or path.")
    ] = None,
    kv: Annotated[str | None, typer.Option(help="The KV profile of new sessions.")] = None,
    sync: Annotated[
        str | None, typer.Option(metavar="REMOTE", help="Sync with this, as `satchel sync setup` does.")
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Ask nothing: what is suggested, where no option says otherwise.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find a model that fits this machine, fetch it, and set up sync.

    It shows what weights and context would take of the memory with each KV profile, asks which model to use,
    and fetches it if you agree. What was set before is suggested when it is run again. Without a terminal,
    --yes takes what is suggested.
    """
    from satchel.config import paths
    from satchel.config.profiles import get_profile
    from satchel.config.settings import load_settings, set_in_file
    from satchel.engine.device import current_device
    from satchel.engine.fit import needed_bytes

    if not yes and not at_terminal():
        raise UsageError("init asks questions at a terminal", "`--yes` takes what is suggested")
    profile = get_profile(kv or load_settings().kv_profile)
    tokens = _tokens(context) if context else 0
    device = current_device()
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        try:
            _tell_machine(device)
            tokens = tokens or _ask_context(yes)
            chosen = _choose(model, tokens, profile, device, yes)
            shape = _shape(chosen, device)
            profile = _fitting(shape, profile, tokens, device, ask=not yes and kv is None)
            how = "no" if yes or sync else _ask_sync()
        except (typer.Abort, KeyboardInterrupt):
            print(file=sys.stderr)  # the question's line ends here
            report("stopped: the settings are as they were")
            raise
        use_model(chosen)
        if profile.name != load_settings().kv_profile:
            set_in_file("kv_profile", profile.name)
        report("`satchel` starts a talk, `satchel resume` goes on with it, `satchel init` asks again")
        _set_up_sync(sync, how)
    if as_json:
        print_json(
            InitRecord(
                model=chosen,
                kv_profile=profile.name,
                context_tokens=tokens,
                needed_bytes=needed_bytes(shape, profile, tokens),
                memory_bytes=_room(device),
                settings=str(paths.config_file()),
                sync=_remote(),
            )
        )


# The machine and the context


def _tell_machine(device: Device) -> None:
    print(f"This machine computes on {device.kind} and has {size_text(device.memory_bytes)} of memory;")
    print(f"models may take {size_text(_room(device))} of it.")
    for line in device.advice():
        print(f"Advice: {line}")


def _room(device: Device) -> int:
    """Bytes that models may take."""
    from satchel.engine.fit import reserve_bytes

    return max(0, device.memory_bytes - reserve_bytes(device.memory_bytes))


def _ask_context(yes: bool) -> int:
    if yes:
        return _tokens(USUAL_CONTEXT)
    print("\nThe context is what a talk has read and said: 8k tokens are some 15 pages.")
    return _ask(f"How long should contexts be ({', '.join(CONTEXTS)})", _tokens, USUAL_CONTEXT)


def _tokens(text: str) -> int:
    """
    Raises:
        UsageError: it is no number of tokens.
    """
    found = re.fullmatch(r"([0-9]{1,7}) *(k?)", text.strip().lower(), re.ASCII)
    tokens = int(found[1]) * (1024 if found[2] else 1) if found else 0
    if not 0 < tokens <= 1 << 22:
        raise UsageError(f"{text[:40]!r} is no length of a context", "write tokens, such as 8k, 32k or 128k")
    return tokens


# The model


def _choose(model: str | None, tokens: int, profile: Profile, device: Device, yes: bool) -> str:
    """The name of a model that is on this machine now.

    Raises:
        SatchelError: nobody can be asked for another one, and this one cannot be had.
    """
    if yes:
        chosen = model or _suggested(_choices(tokens, profile, device), profile, device)
        return _fetched(chosen, yes)
    choices = [] if model else _choices(tokens, profile, device)
    if choices:
        _show(choices, tokens, device)
    suggested = "" if model else _suggested(choices, profile, device)
    while True:
        answer = model or _ask("Which model (a number, name or path)", str, suggested)
        model = None
        number = int(answer) if re.fullmatch(r"[0-9]{1,2}", answer) else 0
        if 0 < number <= len(choices):
            answer = choices[number - 1].name
        try:
            return _fetched(answer, yes)
        except SatchelError as err:  # refused, no such model, no network: another one may do
            report(err.one_line())


def _choices(tokens: int, profile: Profile, device: Device) -> list[Choice]:
    """The embedded model, and those that fit with some KV profile, the smallest first.

    Of many, the largest; on a CPU, where those are slow, the smallest.
    """
    from satchel.engine.embedded import find_embedded_gguf
    from satchel.engine.fit import on_device, shape_of
    from satchel.engine.library import is_here
    from satchel.engine.model_names import EMBEDDED, named_models

    embedded, room = find_embedded_gguf(), _room(device)
    needed = _needed(on_device(shape_of(embedded), device), tokens, profile) if embedded else {}
    found = [
        (model, each)
        for model in named_models().values()
        if (each := _needed(on_device(model.shape(), device), tokens, profile)) and min(each.values()) <= room
    ]
    return [
        Choice(EMBEDDED, "here" if embedded else "93 MB", needed),
        *(
            Choice(model.name, "here" if is_here(model.name) else size_text(model.download_bytes), each)
            for model, each in (found[:MOST_ROWS] if device.kind == "cpu" else found[-MOST_ROWS:])
        ),
    ]


def _needed(shape: Shape, tokens: int, profile: Profile) -> dict[str, int]:
    """Bytes by KV profile; none of a model that was made for shorter contexts, or whose keys do not suit."""
    from satchel.config.profiles import get_profile
    from satchel.engine.fit import needed_bytes

    if shape.context_length < tokens:
        return {}
    names = dict.fromkeys((*SHOWN_PROFILES, profile.name))
    try:
        return {name: needed_bytes(shape, get_profile(name), tokens) for name in names}
    except ValueError:
        return {}


def _show(choices: Sequence[Choice], tokens: int, device: Device) -> None:
    room = _room(device)
    print(f"\nGB of memory with {tokens:,} tokens, by KV profile; (too much for this machine):\n")
    columns = "".join(f"{name:>8}" for name in SHOWN_PROFILES)
    print(f"    {'MODEL':<18} {'FETCH':>9}{columns}")
    for number, choice in enumerate(choices, 1):
        unknown = "  made for shorter contexts" if choice.fetch == "here" else ""
        cells = [_cell(choice.needed[name], room) for name in SHOWN_PROFILES if choice.needed]
        figures = "".join(f"{cell:>8}" for cell in cells) or unknown
        print(f"{number:>2}  {sanitize_line(choice.name):<18} {choice.fetch:>9}{figures}")
    print("\n`satchel model list --known` lists more; hub names, folders and GGUF files will do.")
    if device.kind == "cpu":
        print("Without a GPU, small models are held in 32 bits, and larger ones answer slowly.")


def _cell(needed_bytes: int, room: int) -> str:
    gigabytes = f"{needed_bytes / 1e9:.1f}"
    return gigabytes if needed_bytes <= room else f"({gigabytes})"


def _suggested(choices: Sequence[Choice], profile: Profile, device: Device) -> str:
    """What was chosen before, if it is here; else the largest that fits with ease, where a GPU runs it."""
    from satchel.config.settings import setting
    from satchel.engine.library import is_here
    from satchel.engine.model_names import EMBEDDED

    (current,) = setting("model")
    if current.origin != "default" and is_here(str(current.value)):
        return str(current.value)
    if device.kind == "cpu":
        return EMBEDDED
    most = EASE * _room(device)
    fitting = [choice.name for choice in choices if choice.needed and choice.needed[profile.name] <= most]
    return fitting[-1] if fitting else EMBEDDED


def _fetched(name: str, yes: bool) -> str:
    """`name`, once the model is on this machine and looks right.

    Raises:
        SatchelError: it cannot be had, or is not wanted after all.
    """
    from satchel.engine.library import find, is_here
    from satchel.engine.model_names import EMBEDDED

    if name == EMBEDDED and not yes:
        need_embedded_model()
    elif not is_here(name):
        with redirect_stdout(sys.stderr):  # it prints its place
            pull_model(name, yes)
    found = find(name)
    if found.fault:
        raise NotFoundError(found.fault)
    return name


def _shape(name: str, device: Device) -> Shape:
    from satchel.engine.fit import on_device, shape_of
    from satchel.engine.library import find

    found = find(name)
    return on_device(shape_of(found.conversion or found.path), device)


def _fitting(shape: Shape, profile: Profile, tokens: int, device: Device, ask: bool) -> Profile:
    """The KV profile to use: another one than `profile` if only that fits, and whoever is asked agrees.

    Raises:
        UsageError: one of the profile's codecs cannot hold this model's keys or values.
    """
    from satchel.config.profiles import get_profile
    from satchel.engine.fit import needed_bytes

    room = _room(device)
    try:
        needed = needed_bytes(shape, profile, tokens)
    except ValueError as err:
        raise UsageError(f"the KV profile {profile.name} does not suit this model: {err}") from err
    if tokens > shape.context_length:
        report(f"it was made for contexts of {shape.context_length:,} tokens; longer ones are cut")
    if needed <= room:
        return profile
    report(f"with the KV profile {profile.name} it takes {size_text(needed)}, more than there should be")
    smaller = [get_profile(name) for name in SHOWN_PROFILES]
    fits = next((each for each in smaller if needed_bytes(shape, each, tokens) <= room), None)
    if fits is None:
        report("shorter contexts, or a smaller model, would be faster")
    elif ask and typer.confirm(f"Use {fits.name}, which fits?", default=True, err=True):
        return fits
    return profile


# Sync


def _ask_sync() -> str:
    """One of `SYNC_ANSWERS`."""
    if (url := _remote()) is not None:
        print(sanitize_line(f"\nYour talks are synced with {url}."))
        return "no"
    print("\nTalks can be the same on several machines, encrypted in a bucket or a folder.")
    return _ask("Sync: no, new (this is the first machine) or join", _sync_answer, "no")


def _sync_answer(text: str) -> str:
    answer = text.strip().lower()
    if answer not in SYNC_ANSWERS:
        raise UsageError(f"{text[:40]!r} is no answer", f"type {', '.join(SYNC_ANSWERS)}")
    return answer


def _set_up_sync(remote: str | None, how: str) -> None:
    from satchel.cli.sync_setup import join, setup

    if remote is not None or how == "new":
        setup(remote)
    elif how == "join":
        join()


def _remote() -> str | None:
    from satchel.sync.configuration import load_config

    config = load_config()
    return config.url if config else None


def _ask(question: str, check: Callable[[str], _T], default: str) -> _T:
    """What `check` makes of the answer; asked again for as long as it raises a UsageError."""
    while True:
        answer = typer.prompt(question, err=True, default=default or None)
        try:
            return check(str(answer).strip())
        except UsageError as err:
            report(err.one_line())
