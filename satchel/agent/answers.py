"""The model's answers as events: to a message, aside, again, and as a summary. Knows nothing of tools."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from satchel.agent.desk import Desk
from satchel.agent.events import Event, Notice, PrefillProgress, TextDelta, TurnDone, Working
from satchel.config.settings import Settings
from satchel.engine.generate import Delta, Finished, Progress
from satchel.errors import UsageError

if TYPE_CHECKING:
    from satchel.agent.meter import Meter
    from satchel.engine.generate import Sampler
    from satchel.session import Session

LEAST_DATA, MOST_DATA = 200, 3000  # tokens; more costs more time to read than it tells
ASIDE_TOKENS = 512  # of an explanation or a summary, at most
LEAST_COMPACTED = 256  # tokens of talk: a summary of less, with what it quotes, may be longer
NOT_SENT = "stopped; nothing was sent"  # where the turn ends before the model has the message
LIVELY = 0.7  # the temperature at which a model that takes the likeliest token always is asked again


class Filter(Protocol):
    """Changes an answer as it comes: what `feed` and `finish` return joins to what `whole` makes of it."""

    def feed(self, text: str) -> str: ...

    def finish(self) -> str: ...

    def whole(self, text: str) -> str: ...


def answer(
    session: Session,
    text: str,
    settings: Settings,
    cancel: threading.Event,
    *,
    meter: Meter | None = None,
    passing: Filter | None = None,
    sampler: Sampler | None = None,
) -> Iterator[Event]:
    """Answer `text`. Setting `cancel` ends the answer within a token; the part said stays in the history.

    The turn is saved, where the settings say so, before its `TurnDone` is yielded.

    Args:
        passing: what the answer goes through, on the screen and in the transcript.

    Raises:
        SatchelError: the turn could not be run or saved.
    """
    replies = session.reply(
        text,
        max_tokens=settings.max_tokens,
        cancel=cancel,
        revise=passing.whole if passing else None,
        sampler=sampler,
    )
    for piece in replies:
        yield from map(Notice, session.take_notices())
        match piece:
            case Progress(done, total):
                yield PrefillProgress(done, total)
            case Delta(text=delta):
                yield TextDelta(passing.feed(delta) if passing else delta)
            case Finished(stop_reason=stop_reason, stats=stats):
                if passing:
                    yield TextDelta(passing.finish())
                if meter:
                    meter.add(stats)
                # A turn that was stopped before its first word leaves nothing to keep.
                if settings.auto_save and stats.generated_tokens:
                    session.save()
                yield from map(Notice, session.take_notices())
                yield TurnDone(stop_reason, stats)


def answer_at(desk: Desk, text: str, passing: Filter | None = None) -> Iterator[Event]:
    """The answer to `text` in the talk at `desk`, and what can be done with it.

    Raises:
        SatchelError: as `answer`.
    """
    yield from answer(desk.session, text, desk.settings, desk.cancel, meter=desk.tools.meter, passing=passing)
    said = desk.session.last_answer() or ""
    if "<<<<<<< SEARCH" in said or "\n@@" in said:
        yield Notice("/apply shows the changes in this answer, and makes them")


def aside_turn(desk: Desk, question: str) -> Iterator[Event]:
    """Answer `question` from a fork of the talk, which goes on as if it had not been asked.

    Raises:
        SatchelError: there is no room for it.
    """
    yield from shown(
        desk, desk.session.aside(question, max_tokens=desk.settings.max_tokens, cancel=desk.cancel)
    )


def retry_turn(desk: Desk) -> Iterator[Event]:
    """Answer the last message again; the answer before is kept among what was left behind.

    Raises:
        UsageError: nothing was said yet.
        SatchelError: as `answer`.
    """
    session = desk.session
    turns = session.turns()
    if not turns:
        raise UsageError("nothing was said yet")
    passing = desk.tools.citations(turns[-1])
    session.restore_turn(len(turns) - 1)
    sampling, sampler = desk.manager.sampling, None
    if not sampling.temperature:
        sampler = replace(sampling, temperature=LIVELY, seed=None).sampler()
        yield Notice(f"answered again at temperature {LIVELY}")
    yield from answer(
        session,
        turns[-1],
        desk.settings,
        desk.cancel,
        meter=desk.tools.meter,
        passing=passing,
        sampler=sampler,
    )


def compact_turn(desk: Desk) -> Iterator[Event]:
    """Summarise the talk, and go on from the summary.

    Raises:
        UsageError: there is nothing to summarise, or too little to gain by it.
        SatchelError: there is no room for a summary, or it could not be saved.
    """
    session, before = desk.session, len(desk.session.token_ids)
    said = sum(session.count_tokens(message.content) for message in session.since_summary())
    if 0 < said < LEAST_COMPACTED:
        raise UsageError(
            f"there is too little to compact: a summary of {said} tokens of talk would not be shorter"
        )
    yield from shown(desk, session.compact(max_tokens=ASIDE_TOKENS, cancel=desk.cancel))
    if desk.cancel.is_set():
        yield Notice("nothing was compacted")
        return
    yield from reading(session.read_ahead(desk.cancel))
    yield from saved(desk)
    yield Notice(
        f"the model goes on from this summary: {before:,} tokens became {len(session.token_ids):,}; "
        f"all that was said is kept, and /restore {len(session.turns())} takes it back"
    )


def collected(
    desk: Desk,
    pieces: Iterator[Progress | Delta | Finished],
    work: str,
    until: Callable[[str], bool] = lambda text: False,
) -> Generator[Event, None, str]:
    """Returns the text of an answer that is not for the user; yields that `work` goes on, and reading for it.

    One that did not come to its end is none: "".

    Args:
        work: what it is for, as the user is told.
        until: says of the text so far whether the rest is not worth waiting for.
    """
    said = ""
    yield Working(work)
    for piece in pieces:
        match piece:
            case Progress(done, total):
                yield PrefillProgress(done, total)
            case Delta(text=text):
                if not said:
                    yield Working(work)  # reading has taken its place
                said += text
                if until(said):
                    break
            case Finished(stop_reason=stop_reason, stats=stats):
                desk.tools.meter.add(stats)
                if stop_reason == "length":
                    return ""
    return said


def reading(progress: Iterator[Progress]) -> Iterator[Event]:
    """The events of reading without an answer."""
    for each in progress:
        yield PrefillProgress(each.done, each.total)


def saved(desk: Desk) -> Iterator[Event]:
    """Save the talk, where the settings say so; what there is to say of it."""
    if desk.settings.auto_save:
        desk.session.save()
    yield from map(Notice, desk.session.take_notices())


def shown(desk: Desk, pieces: Iterator[Progress | Delta | Finished]) -> Iterator[Event]:
    """The events of an answer that the talk does not keep."""
    for piece in pieces:
        match piece:
            case Progress(done, total):
                yield PrefillProgress(done, total)
            case Delta(text=text):
                yield TextDelta(text)
            case Finished(stop_reason=stop_reason, stats=stats):
                desk.tools.meter.add(stats)
                yield TurnDone(stop_reason, stats)


def room_for_data(desk: Desk) -> int:
    """How many tokens of pages or of output a message may hold, beside the answer."""
    session, settings = desk.session, desk.settings
    length = desk.manager.model.context_length
    free = length - len(session.token_ids) - settings.max_tokens
    return max(LEAST_DATA, min(int(length * settings.agent.answer_share), free, MOST_DATA))
