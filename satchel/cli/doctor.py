"""`satchel doctor`: what this machine computes with, where things are, and what is wrong or could be better.

What takes long to import (MLX, the store) is imported inside the functions that look at it.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Annotated

import typer

from satchel import __version__
from satchel.cli.options import AsJson, examples, open_store
from satchel.cli.schemas import print_json
from satchel.config import paths
from satchel.config.units import size_text
from satchel.errors import SatchelError
from satchel.terminal.manner import is_plain
from satchel.terminal.sanitize import sanitize_line

if TYPE_CHECKING:
    from satchel.config.settings import Settings
    from satchel.engine.device import Device

PACKAGES = ("mlx", "mlx-lm", "transformers")
MAX_FAULTS = 3  # of the store that are told one by one


@dataclass(slots=True)
class DoctorRecord:
    """What was found; null and empty where it could not be looked at, which `problems` then says."""

    satchel: Annotated[str, "the version"]
    python: Annotated[str, "the version"]
    platform: Annotated[str, "the system and the machine"]
    packages: Annotated[dict[str, str], "versions of MLX and what is built on it; empty: not installed"]
    device: Annotated[str, "`metal`, `cuda` or `cpu`"] = ""
    blas: Annotated[str, "the library put before MLX's own; empty: none"] = ""
    memory_bytes: Annotated[int | None, "that this process may use"] = None
    settings: Annotated[str, "the settings file"] = ""
    settings_exist: Annotated[bool, "whether it is there"] = False
    settings_right: Annotated[bool, "whether the settings can be used"] = False
    model: Annotated[str, "what the settings name"] = ""
    model_place: Annotated[str, "where it is on this machine; empty: it is not"] = ""
    model_bytes: Annotated[int | None, "on disk"] = None
    longest_context: Annotated[int | None, "tokens that fit in memory beside it; 0: not even its weights"] = (
        None
    )
    embedded_model: Annotated[str, "where the embedded model is; empty: missing"] = ""
    sessions: Annotated[str, "the directory of the store"] = ""
    session_count: Annotated[int | None, "sessions that can be read"] = None
    store_bytes: Annotated[int | None, "that the store takes"] = None
    converted_models: Annotated[str, "the cache directory"] = ""
    sync: Annotated[str, "the remote; empty: not set up"] = ""
    terminal: Annotated[str, "what is known of it; empty: standard output is none"] = ""
    problems: Annotated[list[str], "what is wrong, a line each"] = field(default_factory=list)
    advice: Annotated[list[str], "what would be better, a line each"] = field(default_factory=list)


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=examples("satchel doctor", "satchel doctor --json  # to go with a report of a fault"),
    )(doctor)


def doctor(as_json: AsJson = False) -> None:
    """What this machine computes with, where things are kept, what is wrong, and what would make it faster.

    The exit code is 0 whatever is found.
    """
    found = examine()
    if as_json:
        print_json(found)
        return
    for label, value in _facts(found).items():
        print(f"{label:<17} {sanitize_line(value)}")
    for line in found.problems:
        print(f"problem: {sanitize_line(line)}")
    for line in found.advice:
        print(f"advice: {sanitize_line(line)}")


def examine() -> DoctorRecord:
    """Look at everything; what fails is a problem in the record, and the rest is looked at all the same."""
    found = DoctorRecord(
        satchel=__version__,
        python=platform.python_version(),
        platform=f"{sys.platform} {platform.machine()}",
        packages={name: _version(name) for name in PACKAGES},
        settings=str(paths.config_file()),
        settings_exist=paths.config_file().exists(),
        sessions=str(paths.data_dir()),
        converted_models=str(paths.cache_dir()),
        terminal=_terminal(),
    )
    settings = device = None
    with _told(found):
        settings = _settings(found)
    with _told(found):
        device = _device(found)
    looks: list[Callable[[DoctorRecord], None]] = [_embedded, _store, _sync, _strays]
    if settings is not None:
        _model(found, settings, device)
    for look in looks:
        with _told(found):
            look(found)
    return found


@contextmanager
def _told(found: DoctorRecord) -> Iterator[None]:
    """What goes wrong becomes a line of the record."""
    try:
        yield
    except SatchelError as err:
        found.problems.append(err.one_line())
    except (ImportError, OSError, RuntimeError) as err:  # as of an MLX that cannot be loaded
        found.problems.append(" ".join(str(err).split()) or type(err).__name__)


def _settings(found: DoctorRecord) -> Settings:
    from satchel.config.settings import load_settings

    settings = load_settings()
    found.settings_right = True
    found.model = settings.model
    return settings


def _device(found: DoctorRecord) -> Device:
    from satchel.engine.device import current_device

    device = current_device()
    found.device, found.blas, found.memory_bytes = device.kind, device.blas or "", device.memory_bytes
    found.advice += device.advice()
    return device


def _model(found: DoctorRecord, settings: Settings, device: Device | None) -> None:
    """Whether the model of the settings is here, and whether it fits."""
    from satchel.config.profiles import get_profile
    from satchel.engine.fit import longest_context, on_device, shape_of
    from satchel.engine.library import find
    from satchel.errors import NotFoundError

    with _told(found):
        try:
            model = find(settings.model)
        except NotFoundError as err:  # it may be meant to come at its first use
            found.advice.append(err.one_line())
            return
        found.model_place, found.model_bytes = str(model.path), model.stored_bytes
        if model.fault:
            found.problems.append(f"the model {model.name} cannot be used: {model.fault}")
        if device is None:
            return
        shape = on_device(shape_of(model.conversion or model.path), device)
        with contextlib.suppress(ValueError):  # a codec that cannot hold this model's vectors
            found.longest_context = longest_context(
                shape, get_profile(settings.kv_profile), device.memory_bytes
            )
        if found.longest_context == 0:
            found.problems.append(
                f"the model {model.name} takes {size_text(shape.weights_bytes)}, which does not fit in "
                f"{size_text(device.memory_bytes)} with what the system needs"
            )


def _embedded(found: DoctorRecord) -> None:
    from satchel.engine.embedded import find_embedded_gguf

    path = find_embedded_gguf()
    found.embedded_model = str(path) if path else ""


def _store(found: DoctorRecord) -> None:
    """Sessions and damage as the index knows them: nothing is read whole."""
    from satchel.cache_store.stored_files import stored_files

    store = open_store()
    listed = store.heads()
    found.session_count = len(listed.heads)
    found.store_bytes = sum(file.size for file in stored_files(store))
    faults = listed.damaged
    found.problems += faults[:MAX_FAULTS]
    if len(faults) > MAX_FAULTS:
        found.problems.append(f"{len(faults) - MAX_FAULTS} more sessions are damaged")
    if faults:
        found.advice.append("`satchel store verify` says what is damaged and what can be done")


def _sync(found: DoctorRecord) -> None:
    from satchel.sync.configuration import load_config

    remote = load_config()
    found.sync = remote.url if remote else ""


def _strays(found: DoctorRecord) -> None:
    """Variables that look like ours."""
    from satchel.config.settings import stray_variables

    said = " ".join(found.problems)  # one that is like a setting's
    found.advice += [
        f"{name} in the environment is no setting" for name in stray_variables() if repr(name) not in said
    ]


def _terminal() -> str:
    if not sys.stdout.isatty():
        return ""
    columns, lines = shutil.get_terminal_size()
    colour = "no colour" if is_plain() else "true colour" if _has_true_colour() else "colour"
    return f"{os.environ.get('TERM', 'unknown')}, {columns}×{lines}, {colour}, {sys.stdout.encoding}"


def _has_true_colour() -> bool:
    return os.environ.get("COLORTERM", "") in ("truecolor", "24bit")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _facts(found: DoctorRecord) -> dict[str, str]:
    """What a person sees."""
    unknown = "not known"
    packages = ", ".join(f"{name} {number or 'missing'}" for name, number in found.packages.items())
    facts = {
        "satchel": f"{found.satchel} on Python {found.python}, {found.platform}",
        "packages": packages,
        "device": found.device or unknown,
        "BLAS": f"OpenBLAS ({found.blas})" if found.blas else "MLX's own",
        "memory": f"{found.memory_bytes / 1e9:.1f} GB" if found.memory_bytes else unknown,
        "settings": found.settings,
        "model": _model_text(found),
        "embedded model": found.embedded_model or "missing: satchel model pull embedded",
        "sessions": found.sessions,
        "store": unknown,
        "converted models": found.converted_models,
        "sync": found.sync or "not set up: satchel sync setup",
        "terminal": found.terminal or "none: plain text",
    }
    if found.session_count is not None and found.store_bytes is not None:
        noun = "session" if found.session_count == 1 else "sessions"
        facts["store"] = f"{found.session_count} {noun}, {size_text(found.store_bytes)}"
    return facts


def _model_text(found: DoctorRecord) -> str:
    if not found.settings_right:
        return "known when the settings are right"
    if not found.model_place:
        return f"{found.model}, which is not on this machine"
    parts = [found.model, size_text(found.model_bytes or 0)]
    if found.longest_context:
        parts.append(f"room for {found.longest_context:,} tokens of context")
    return ", ".join(parts)
