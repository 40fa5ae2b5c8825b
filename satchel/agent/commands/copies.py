"""Commands that give the talk to files, to other people, and to the user's other machines.

Knows nothing of formats, seals and remotes.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import TYPE_CHECKING

from satchel.agent.commands.paths import below
from satchel.agent.events import Event, Notice, Output
from satchel.agent.user import agrees
from satchel.config.waits import PATIENCE_S, POLL_S
from satchel.errors import NotFoundError, UsageError
from satchel.exchange.endings import MD, MLX_LM, WORDS, format_of
from satchel.files import atomic_file, cannot_write

if TYPE_CHECKING:
    from satchel.agent.desk import Desk
    from satchel.cache_store.manifest import Manifest

SHARED_FOR = "24h"


def export(desk: Desk, argument: str) -> Iterator[Event]:
    if not argument:
        yield Output(_words(desk, MD))
        return
    target = below(desk.tools.cwd, argument)
    yield from _exported(desk, format_of(target.name), target)


def _exported(desk: Desk, kind: str, target: Path) -> Iterator[Event]:
    write, note = _writer(desk, kind)
    if not target.parent.is_dir():
        raise NotFoundError(f"there is no folder {target.parent} to write to")
    if target.is_dir():
        raise UsageError(f"{target} is a folder")
    if os.path.lexists(target) and not agrees(desk.user, f"replace {target}?"):
        yield Notice(f"{target} stays as it is")
        return
    try:
        with atomic_file(target) as work:
            write(work)
    except OSError as err:
        raise cannot_write(target, err) from err
    yield Notice(f"written to {target}")
    if note:
        yield Notice(note)


def _writer(desk: Desk, kind: str) -> tuple[Callable[[Path], object], str]:
    """What writes the talk to a file, and a line to show once that is done."""
    if kind in WORDS:
        text = _words(desk, kind)
        return lambda path: path.write_bytes(text.encode("utf-8", "replace")), ""
    manifest = _stored(desk)
    if kind == MLX_LM:
        from satchel.exchange.prompt_caches import export_prompt_cache, loadable_name

        manager = desk.manager
        name = shlex.quote(loadable_name(manager.model))
        return (
            lambda path: export_prompt_cache(path, manager, manifest.session_id),
            f"mlx_lm takes it with --model {name}",
        )
    from satchel.exchange.tensors import write_session

    return lambda path: write_session(path, desk.manager.store, manifest), ""


def _words(desk: Desk, kind: str) -> str:
    """The words of the talk, stored or not."""
    from datetime import UTC, datetime

    from satchel.exchange.transcript import Transcript
    from satchel.exchange.words import WRITERS

    session = desk.session
    if not session.turns():
        raise UsageError("nothing was said yet")
    return WRITERS[kind](
        Transcript(
            tuple(session.messages),
            session.name or "",
            desk.manager.model.name,
            session.profile.name,
            datetime.now(UTC).isoformat(timespec="seconds"),
            len(session.token_ids),
            tuple(session.token_ids) if kind == "json" else (),
        )
    )


def _stored(desk: Desk) -> Manifest:
    """What the store has of the talk, with all that was said.

    Raises:
        UsageError: nothing was said, or the settings forbid to store it.
    """
    from satchel.cache_store.sessions import open_session

    session = desk.session
    if not session.turns():
        raise UsageError("nothing was said yet")
    if session.unsaved or not session.id:
        if not desk.settings.auto_save:
            raise UsageError("this talk is not stored", "/save stores it")
        session.save()
    return open_session(desk.manager.store, session.id).manifest


def share(desk: Desk, argument: str) -> Iterator[Event]:
    from satchel.exchange.sharing import ends_early, open_link_remote, parse_expiry_s, share_session

    lasting = argument or SHARED_FOR
    expiry_s = parse_expiry_s(lasting)
    remote = open_link_remote(desk.session.name)
    link = share_session(remote, desk.manager.store, _stored(desk), expiry_s)
    early = ", or until the temporary credentials that it was made with end" if ends_early(link) else ""
    yield Notice(f"whoever has the link can read the session, for {lasting}{early}")
    yield Output(link)


def sync(desk: Desk, argument: str) -> Iterator[Event]:
    if desk.sync is None:
        raise UsageError("sync is not set up", "`satchel sync setup` does it; then start the chat again")
    running = desk.sync.start(desk.session.id)
    if wait([running], PATIENCE_S).not_done:
        yield Notice("syncing; Ctrl-C goes back to the talk")
    while wait([running], POLL_S).not_done:
        if desk.cancel.is_set() and running.cancel():
            yield Notice("the sync goes on in the background")
            return
    report = running.result()
    yield from map(Notice, (*report.notices, *report.faults, report.summary() or "everything is in sync"))
