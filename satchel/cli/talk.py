"""`satchel chat` and `satchel resume`: the talk at the terminal, or with a script on a pipe.

What takes long to import (MLX, the store, the prompt) is imported inside the functions that need it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
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
    examples,
    load_manager,
    open_store,
    renderer_of,
)

if TYPE_CHECKING:
    from satchel.agent.desk import Desk
    from satchel.cache_store.manifest import Head
    from satchel.config.settings import Settings
    from satchel.session import Session, SessionManager
    from satchel.sync.background import BackgroundSync
    from satchel.terminal.chat import Chat
    from satchel.terminal.loading import Loading
    from satchel.terminal.render import Renderer
    from satchel.terminal.toolbar import Figures


FirstMessage = Annotated[
    list[str] | None, typer.Argument(metavar="[MESSAGE]", help="What is said first.", show_default=False)
]


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "satchel chat",
            "satchel chat --model qwen3.5-9b --kv turbo3",
            "satchel chat --no-save              # nothing of it stays on disk",
            'satchel chat "What is a satchel?"   # with a first message',
            "echo 'What is a satchel?' | satchel chat",
        )
    )(chat)
    app.command(
        epilog=examples(
            "satchel resume                      # the latest",
            "satchel resume bruno",
            'satchel resume bruno "And his age?" # with a first message',
            "satchel resume bruno --offline      # as it is here, without a look in the remote",
        )
    )(resume)


def chat(
    words: FirstMessage = None,
    model: Model = None,
    kv: Kv = None,
    no_save: NoSave = False,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    system: System = None,
) -> None:
    """Start a new talk (also what `satchel` alone does)."""
    with _quiet_keyboard():
        settings = chosen_settings(
            no_save,
            model=model,
            kv_profile=kv,
            max_tokens=max_tokens,
            temperature=temperature,
            system_prompt=system,
        )
        renderer = renderer_of(settings)
        if at_terminal():
            from satchel.cli.init import notice_of_first_run

            if line := notice_of_first_run():
                renderer.notice(line)
        _talk(settings, lambda manager: manager.new(), renderer, " ".join(words or ()))


def resume(
    name: Annotated[
        str | None, typer.Argument(help="A session's name or id; the latest if not given.")
    ] = None,
    words: FirstMessage = None,
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
    with _quiet_keyboard():
        head = open_store().find(name) if offline else _find_up_to_date(name)
        settings = chosen_settings(
            no_save,
            model=model or head.model_name,
            kv_profile=kv,
            max_tokens=max_tokens,
            temperature=temperature,
        )
        _talk(
            settings,
            lambda manager: manager.open(head.session_id, manager.profile if kv else None),
            renderer_of(settings),
            " ".join(words or ()),
        )


@contextmanager
def _quiet_keyboard() -> Iterator[None]:
    """What a person types stands at the prompt and nowhere else, from now on and as far as that can be."""
    from satchel.terminal.echo import no_echo, take_echo_back

    with no_echo():
        if at_terminal():
            take_echo_back()
        yield


def _talk(
    settings: Settings,
    open_session: Callable[[SessionManager], Session],
    renderer: Renderer,
    said: str,
) -> None:
    """Talk with a script on a pipe, or with a person, who has the prompt while the model is loaded.

    Args:
        said: the first message, if it stands on the command line.
    """
    if not at_terminal():
        desk = _opened(settings, open_session)
        from satchel.terminal.chat import Chat

        raise typer.Exit(Chat(desk, renderer).with_script(chain([said] if said else [], sys.stdin)))
    from satchel.engine.library import is_here
    from satchel.terminal.echo import echo, no_echo
    from satchel.terminal.loading import Loading

    # What has to be fetched tells of it, and what is wrong with a name is found, ahead of the prompt.
    there = None if is_here(settings.model) else _opened(settings, open_session)
    name = settings.model.rstrip("/").rpartition("/")[2]

    def load(tell: Callable[[str], None]) -> Desk:
        if there:
            return there
        desk = _opened(settings, open_session, tell)
        from satchel.engine.handover import evaluate_everything

        evaluate_everything()  # the talk goes on in another thread
        return desk

    # Leaving `Loading` may end the process at once: the keyboard must be as it was by then.
    with echo(), Loading(name, load) as loading, no_echo():
        _talk_with_person(settings, loading, renderer, said)


def _talk_with_person(settings: Settings, loading: Loading[Desk], renderer: Renderer, said: str) -> None:
    from satchel.config.paths import data_dir
    from satchel.terminal.completion import TalkCompleter
    from satchel.terminal.opening import first_message
    from satchel.terminal.person import Person
    from satchel.terminal.prompt import MessagePrompt
    from satchel.terminal.toolbar import Toolbar

    toolbar = Toolbar(lambda: loading.label)
    completer = TalkCompleter(open_store(), settings)
    prompt = MessagePrompt(
        data_dir() / "history" if settings.auto_save else None,
        completer,
        editing=settings.terminal.editing,
        toolbar=toolbar if settings.terminal.toolbar else None,
        notice=renderer.notice,
    )
    talks: list[Chat] = []

    def begin(desk: Desk) -> None:
        from satchel.terminal.chat import Chat

        desk.manager.sampler = desk.manager.sampling.sampler()  # its seed is for the thread that sets it
        desk.user = Person(renderer.settle)
        completer.desk = desk
        toolbar.watch(lambda: _figures(desk), lambda: _sync_state(desk))
        talks.append(Chat(desk, renderer))
        talks[0].begin()

    loading.start()
    first = first_message(prompt, loading, renderer, begin, said)
    if first is not None:
        talks[0].with_person(prompt, first)


def _opened(
    settings: Settings,
    open_session: Callable[[SessionManager], Session],
    progress: Callable[[str], None] | None = None,
) -> Desk:
    """A desk with the model and the session. What a talk needs besides is imported, too.

    Args:
        progress: takes a line for each slow step, in place of a bar.
    """
    manager = load_manager(settings, progress)
    desk = open_desk(settings, manager, open_session(manager))
    desk.sync = _background_sync()
    import satchel.terminal.chat  # noqa: F401

    return desk


def _figures(desk: Desk) -> Figures:
    from satchel.terminal.toolbar import Figures

    session = desk.session
    last = session.figures[-1] if session.figures else None
    read = len(session.token_ids)
    return Figures(
        model=desk.manager.model.name.rstrip("/").rpartition("/")[2],
        kv_profile=session.profile.asked,
        tokens=read or session.unread_tokens,
        context_length=desk.manager.model.context_length,
        held_bytes=session.kv_bytes() if read else 0,
        fp16_bytes=2 * session.kv_elements() if read else 0,
        decode_tps=last.decode_tps if last else 0.0,
        is_read=bool(read) or not session.turns(),
    )


def _sync_state(desk: Desk) -> str:
    if not desk.settings.auto_save:
        return "not saved"
    if desk.sync is None:
        return "sync off"
    return {"not reachable": "offline", "syncing": "sending"}.get(desk.sync.state, desk.sync.state)


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
