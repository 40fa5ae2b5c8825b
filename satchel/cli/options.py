"""What the commands share: options, the settings, the store and the model.

What takes long to import (MLX, the store, the prompt) is imported inside the functions that need it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from satchel.errors import NotFoundError, RefusedError
from satchel.terminal.manner import is_quiet
from satchel.terminal.sanitize import sanitize_line

if TYPE_CHECKING:
    from satchel.cache_store.local import LocalStore
    from satchel.config.settings import Settings
    from satchel.session import SessionManager
    from satchel.terminal.render import Renderer

INTERRUPTED = 130  # the exit code after Ctrl-C

Model = Annotated[
    str | None, typer.Option(help="embedded, a short name, an MLX folder, a GGUF file, or a hub name.")
]
Kv = Annotated[
    str | None,
    typer.Option(metavar="PROFILE", help="KV profile: turbo4, turbo3, turbo2, k8v4, v-only, exact, k4v3…"),
]
MaxTokens = Annotated[int | None, typer.Option(metavar="N", help="Longest answer, in tokens.")]
Temperature = Annotated[float | None, typer.Option(metavar="T", help="0 always takes the likeliest token.")]
System = Annotated[str | None, typer.Option(metavar="TEXT", help="System prompt of a new session.")]
NoSave = Annotated[bool, typer.Option("--no-save", help="Keep nothing of this talk on disk.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Name = Annotated[str, typer.Argument(help="A session's name or id.")]


def examples(*lines: str) -> str:
    """What a command's `epilog` is: lines to type, each perhaps with `# what it does` behind it."""
    return "\n".join(lines)


def chosen_settings(no_save: bool = False, **options: object) -> Settings:
    from satchel.config.settings import load_settings

    return load_settings({**options, "auto_save": False if no_save else None})


def open_store() -> LocalStore:
    from satchel.cache_store.local import LocalStore
    from satchel.config.paths import data_dir

    return LocalStore(data_dir())


def load_manager(settings: Settings, progress: Callable[[str], None] | None = None) -> SessionManager:
    """The store and the model, which is loaded here; what takes long has a bar at a terminal.

    Args:
        progress: takes a line for each slow step, in place of the bar.
    """
    from satchel.config.profiles import get_profile
    from satchel.engine.device import preload_blas

    preload_blas()  # works only ahead of the first import of MLX
    if settings.model == "embedded":
        need_embedded_model()
    from satchel.engine.model import load_model
    from satchel.session import SessionManager

    try:
        if progress:
            model = load_model(settings.model, progress)
        else:
            from satchel.terminal.progress import progress_bar

            with progress_bar("loading the model", unit="bytes") as bar:
                model = load_model(settings.model, bar.say, bar.update)
    except NotFoundError as err:
        if place := _where_set(settings.model):
            raise NotFoundError(f"{err}, which {place} names", err.hint) from err
        raise
    return SessionManager(open_store(), model, get_profile(settings.kv_profile), settings)


def _where_set(model: str) -> str:
    """The file or the variable that makes `model` the standard one; "" if it is none, or built in."""
    from satchel.config import paths
    from satchel.config.settings import setting

    found = setting("model")[0]
    if found.value != model:
        return ""
    return {"file": str(paths.config_file()), "environment": found.variable}.get(found.origin, "")


def renderer_of(settings: Settings) -> Renderer:
    """What draws answers, as the settings say."""
    from satchel.terminal.render import Renderer

    return Renderer(markdown=settings.terminal.markdown, code_theme=settings.terminal.code_theme)


def need_embedded_model() -> None:
    """Offer to fetch the embedded model where it is missing."""
    from satchel.engine.embedded import find_embedded_gguf, pull_embedded

    if find_embedded_gguf() is not None:
        return
    if at_terminal() and _confirmed("The embedded model is missing. Fetch it (93 MB)?"):
        pull_embedded(report)
        return
    raise NotFoundError("the embedded model is missing", "`satchel model pull embedded` fetches it (93 MB)")


def _confirmed(question: str) -> bool:
    """Ask a person, who sees what they type, also where a talk keeps the keyboard quiet."""
    from satchel.terminal.echo import echo

    with echo():
        return typer.confirm(question, err=True)


def at_terminal() -> bool:
    """Whether a person types and reads here."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def report(line: str) -> None:
    """A line about how it goes, on standard error; none where `--quiet` asks for that."""
    if not is_quiet():
        print(sanitize_line(line), file=sys.stderr)


def complain(line: str) -> None:
    """A line about something that is wrong, on standard error."""
    print(sanitize_line(line), file=sys.stderr)


def agree(question: str, agreed: bool, irreversible: str, kept: str) -> None:
    """Ask a person before what cannot be undone, unless `agreed` says yes already.

    Raises:
        RefusedError: the user does not agree (`kept` says what stays), or cannot be asked.
    """
    if agreed:
        return
    if not at_terminal():
        raise RefusedError(irreversible, "`--yes` agrees to it")
    if not typer.confirm(sanitize_line(question), err=True):
        raise RefusedError(kept)
