"""A turn that looks in the web: a query of the message, pages, and an answer that cites them.

Knows nothing of providers and pages, nor of how anything is shown.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from datetime import date
from typing import TYPE_CHECKING

from satchel.agent.answers import NOT_SENT, answer_at, collected, room_for_data
from satchel.agent.desk import Desk
from satchel.agent.events import Event, Failed, Notice, Searching, SourcesFound
from satchel.errors import SatchelError, UsageError

if TYPE_CHECKING:
    from satchel.agent.search.sources import Found

UNSOURCED = "(The web could not be searched for this. Say so where the answer would be of today.)"
QUERY_TOKENS = 48  # of a rewritten query, at most


def search_turn(
    desk: Desk,
    message: str,
    *,
    rewrite: bool = True,
    answered: bool = True,
    must_find: bool = False,
) -> Iterator[Event]:
    """Search for what `message` asks, and answer it from what was found.

    Args:
        rewrite: have the model make a query of the message and of what was said before.
        answered: have the model answer; without it the turn ends with the sources.
        must_find: raise where nothing could be found, in place of an answer without sources.

    Raises:
        SearchError: nothing was found, or the search could not be done, and `must_find`.
        UsageError: nothing is asked; with `must_find`, also settings that name no server.
        SatchelError: the turn could not be run or saved.
    """
    from satchel.agent.context import with_files
    from satchel.agent.search.errors import SearchError
    from satchel.agent.search.prompts import question_with_sources

    if not message.strip():
        raise UsageError("there is nothing to search for", "write it behind: ? or /search")
    query = (yield from rewritten(desk, message)) if rewrite else message
    if desk.cancel.is_set():
        yield Notice(NOT_SENT)
        return
    try:
        finder = desk.tools.finder
        yield Searching(query, finder.name)
        found = finder.find(
            query,
            limit=desk.settings.search.results,
            budget_tokens=room_for_data(desk),
            count_tokens=desk.session.count_tokens,
            cancel=desk.cancel,
            pages=answered,
        )
    except (SearchError, UsageError) as err:
        if must_find:
            raise
        if not desk.cancel.is_set():
            yield Failed(err.one_line())
            yield Notice("this answer rests on no sources")
            yield from answer_at(desk, with_files(f"{message}\n\n{UNSOURCED}", ()))
        return
    if desk.cancel.is_set():
        yield Notice("the search was stopped")
        return
    yield from map(Notice, found.notices)
    yield SourcesFound(found.sources)
    if answered:
        # With no file attached, whatever the pages say of any.
        yield from _answered(desk, with_files(question_with_sources(message, found), ()), found)


def _answered(desk: Desk, text: str, found: Found) -> Iterator[Event]:
    desk.tools.cited[text] = found.sources
    yield from answer_at(desk, text, desk.tools.citations(text))


def rewritten(desk: Desk, message: str) -> Generator[Event, None, str]:
    """Returns the query that the model makes of `message`, what was said before, and the date."""
    from satchel.agent.search.query import query_from, rewriting_question

    history, today = desk.session.messages, date.today()
    question = rewriting_question(message, history, today)
    try:
        pieces = desk.tools.rewriter.answer(question, max_tokens=QUERY_TOKENS, cancel=desk.cancel)
        said = yield from collected(desk, pieces, "writing a search query")
        return query_from(said, message, history, today)
    except SatchelError as err:
        yield Notice(f"{err.one_line()}: it is searched for as it was asked")
        return message
