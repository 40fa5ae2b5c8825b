"""Commands for what the model is, is told first, and keeps its KV in. Knows nothing of how one is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from satchel.agent.commands.listing import facts
from satchel.agent.events import Event, Notice, Output, Switched
from satchel.errors import UsageError

if TYPE_CHECKING:
    from satchel.agent.desk import Desk
    from satchel.config.profiles import Profile
    from satchel.config.settings import Settings
    from satchel.session import Session, SessionManager

CLEARED = "-"  # in place of a system prompt
READ_AGAIN = "what was said is read again with the next message"


def model(desk: Desk, argument: str) -> Iterator[Event]:
    if not argument:
        yield Output(_described(desk))
        return
    if argument == desk.manager.model.name:
        yield Notice(f"the model is {argument} already")
        return
    if desk.open_manager is None:
        raise UsageError("no other model can be loaded here")
    settings = desk.settings.model_copy(update={"model": argument})
    manager = desk.open_manager(settings)
    session = _taken_over(desk, manager, None)
    desk.tools = desk.tools.with_model(manager.model)
    yield from _go_on(desk, manager, session, settings)
    yield Notice(f"the model is {manager.model.name} now")


def _described(desk: Desk) -> str:
    model = desk.manager.model
    return facts(
        {
            "model": model.name,
            "from": model.path,
            "context": f"{model.context_length:,} tokens",
            "computes": f"in {model.dtype} on {model.device.kind}".replace("mlx.core.", ""),
        }
    )


def profile(desk: Desk, argument: str) -> Iterator[Event]:
    from satchel.config.profiles import PROFILES, get_profile

    asked = desk.session.profile.asked
    if not argument:
        yield Output(facts({"KV profile": asked, "there are": f"{', '.join(PROFILES)}, and such as k4v3"}))
        return
    chosen = get_profile(argument)
    if argument == asked:
        yield Notice(f"the KV profile is {argument} already")
        return
    from satchel.session import SessionManager

    settings = desk.settings.model_copy(update={"kv_profile": argument})
    manager = SessionManager(desk.manager.store, desk.manager.model, chosen, settings)
    session = _taken_over(desk, manager, manager.profile)
    yield from _go_on(desk, manager, session, settings)
    yield Notice(f"the KV profile is {session.profile.asked} now")


def _taken_over(desk: Desk, manager: SessionManager, profile: Profile | None) -> Session:
    """The talk at `desk` as a session of `manager`, with all that was said, be it stored or not."""
    before = desk.session
    session = manager.open(before.id, profile) if before.id else manager.new()
    session.messages, session.figures = list(before.messages), before.figures
    if session.turns() and not before.id:  # of a stored one it says so by itself
        session.notices.append(READ_AGAIN)
    return session


def _go_on(desk: Desk, manager: SessionManager, session: Session, settings: Settings) -> Iterator[Event]:
    desk.manager, desk.session, desk.settings = manager, session, settings
    yield Switched(session)


def system(desk: Desk, argument: str) -> Iterator[Event]:
    from satchel.agent.context import split_files, with_files

    prompt, files = split_files(desk.session.system)
    if not argument:
        yield (
            Output(prompt) if prompt else Notice("there is no system prompt; the chat template may have one")
        )
        return
    desk.session.set_system(with_files("" if argument == CLEARED else argument, files))
    done = "there is no system prompt any more" if argument == CLEARED else "the system prompt is set"
    yield Notice(f"{done}; {READ_AGAIN}" if desk.session.turns() else done)
