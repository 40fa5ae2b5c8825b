"""`satchel chat` and `satchel resume`: the talk at the terminal, or with a script on a pipe.

What takes long to import (MLX, the store, the prompt) is imported inside the functions that need it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from satchel.cli.agent import open_desk
from satchel.cli.options import (
    Kv,
    MaxTokens,
    Model,
    NoSave,
    System,
    Temperature,
    at_terminal,
    chosen_settings,
    load_manager,
    open_store,
)

if TYPE_CHECKING:
    from satchel.cache_store.manifest import Head
    from satchel.config.settings import Settings
    from satchel.session import Session, SessionManager
    from satchel.sync.background import BackgroundSync


def add_to(app: typer.Typer) -> None:
    app.command()(chat)
    app.command()(resume)


def chat(
    model: Model = None,
    kv: Kv = None,
    no_save: NoSave = False,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    system: System = None,
) -> None:
    """Start a new talk (also what `satchel` alone does)."""
    settings = chosen_settings(
        no_save,
        model=model,
        kv_profile=kv,
        max_tokens=max_tokens,
        temperature=temperature,
        system_prompt=system,
    )
    manager = load_manager(settings)
    _talk(manager, manager.new(), settings)


def resume(
    name: Annotated[
        str | None, typer.Argument(help="A session's name or id; the latest if not given.")
    ] = None,
    model: Model = None,
    kv: Kv = None,
    no_save: NoSave = False,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Take it as it is here; don't look in the remote.")
    ] = False,
) -> None:
    """Go on with a stored talk, without reading it again; where sync is set up, from where it is now."""
    head = open_store().find(name) if offline else _find_up_to_date(name)
    settings = chosen_settings(
        no_save,
        model=model or head.model_name,
        kv_profile=kv,
        max_tokens=max_tokens,
        temperature=temperature,
    )
    manager = load_manager(settings)
    _talk(manager, manager.open(head.session_id, manager.profile if kv else None), settings)


def _talk(manager: SessionManager, session: Session, settings: Settings) -> None:
    from satchel.config.paths import data_dir
    from satchel.terminal.chat import Chat
    from satchel.terminal.render import Renderer

    renderer = Renderer()
    desk = open_desk(settings, manager, session)
    desk.sync = _background_sync()
    talk = Chat(desk, renderer)
    if not at_terminal():
        talk.with_script(sys.stdin)
        return
    from satchel.terminal.completion import DeskCompleter
    from satchel.terminal.person import Person
    from satchel.terminal.prompt import MessagePrompt

    desk.user = Person(renderer.settle)
    history = data_dir() / "history" if settings.auto_save else None
    talk.with_person(MessagePrompt(history, DeskCompleter(desk)))


def _find_up_to_date(name: str | None) -> Head:
    """The stored session of this name or id, its newest state fetched where sync is set up."""
    from satchel.sync.configuration import is_configured

    store = open_store()
    if not is_configured():
        return store.find(name)
    from satchel.sync.opening import open_syncer
    from satchel.sync.resuming import bring_up_to_date
    from satchel.terminal.render import Renderer
    from satchel.terminal.transfer import TransferBar

    lines: list[str] = []  # until the bar is gone
    try:
        with TransferBar() as progress:
            return bring_up_to_date(
                store, name, lambda show: open_syncer(open_store(), show), progress, lines.append
            )
    finally:
        for line in lines:
            Renderer().notice(line)


def _background_sync() -> BackgroundSync | None:
    """What syncs beside a talk, if sync is set up."""
    from satchel.sync.configuration import is_configured

    if not is_configured():
        return None
    from satchel.sync.background import BackgroundSync
    from satchel.sync.opening import open_syncer

    return BackgroundSync(lambda: open_syncer(open_store()))
