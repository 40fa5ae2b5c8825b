"""One turn of the conversation, as events. Knows nothing of how they are shown.

Routing, search and shell proposals belong here, ahead of the model's answer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from satchel.agent.events import Event, Notice, PrefillProgress, TextDelta, TurnDone
from satchel.config.settings import Settings
from satchel.engine.generate import Delta, Finished, Progress
from satchel.session import Session


def run_turn(session: Session, text: str, settings: Settings, cancel: threading.Event) -> Iterator[Event]:
    """Answer `text`. Setting `cancel` ends the answer within a token; the part said stays in the history.

    The turn is saved, where the settings say so, before its `TurnDone` is yielded.

    Raises:
        SatchelError: the turn could not be run or saved.
    """
    # Bytes that are not UTF-8 reach us as lone surrogates, which no tokenizer takes.
    text = text.encode("utf-8", "replace").decode("utf-8")
    for piece in session.reply(text, max_tokens=settings.max_tokens, cancel=cancel):
        yield from map(Notice, session.take_notices())
        match piece:
            case Progress(done, total):
                yield PrefillProgress(done, total)
            case Delta(text=delta):
                yield TextDelta(delta)
            case Finished(stop_reason=stop_reason, stats=stats):
                # A turn that was stopped before its first word leaves nothing to keep.
                if settings.auto_save and stats.generated_tokens:
                    session.save()
                yield from map(Notice, session.take_notices())
                yield TurnDone(stop_reason, stats)
