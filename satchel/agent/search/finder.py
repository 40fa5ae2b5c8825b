"""From a query to sources: asks a provider, reads the pages, picks their passages. Knows no model.

Everything slow runs beside: whoever waits can leave within a tenth of a second.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

import httpx

from satchel.agent.search.addresses import PageError, checked_url, host_of
from satchel.agent.search.background import awaited, begun
from satchel.agent.search.errors import NoHitsError, NoNetworkError, SearchError
from satchel.agent.search.extract import EXTRACTION_S, page_text
from satchel.agent.search.fetch import PageFetcher
from satchel.agent.search.fitting import Draft, fitted
from satchel.agent.search.passages import passages_of
from satchel.agent.search.provider import Hit, SearchProvider
from satchel.agent.search.sources import Found, Source
from satchel.agent.search.words import weight
from satchel.config.settings import SearchSettings
from satchel.errors import UsageError
from satchel.sanitize import sanitize_line

MAX_TITLE_CHARS = 120
MAX_SNIPPET_WEIGHT = 80  # in tokens as `words.weight` estimates them
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
MARGIN_S = 1.0  # for what ends by its own time limit, before it is left behind


class Finder:
    """Finds sources with `provider`, and reads them with `fetcher`.

    Args:
        timeout_s: of the provider's answer, and of each page; all pages are read at once.
    """

    def __init__(self, provider: SearchProvider, fetcher: PageFetcher, *, timeout_s: float) -> None:
        self._provider = provider
        self._fetcher = fetcher
        self._timeout_s = timeout_s

    @property
    def name(self) -> str:
        return self._provider.name

    def find(
        self,
        query: str,
        *,
        limit: int,
        budget_tokens: int,
        count_tokens: Callable[[str], int],
        cancel: threading.Event,
        pages: bool = True,
    ) -> Found:
        """At most `limit` sources for `query`, as much of them as fits into `budget_tokens`.

        A page that cannot be read is a source with its snippet alone. Where `cancel` is set there are none.

        Args:
            pages: read the pages; without it, sources have no passages, and the budget does not matter.

        Raises:
            SearchError: nothing was found, or the search could not be done.
        """
        hits = self._hits(query, limit, cancel)
        if cancel.is_set():
            return Found(query, (), ())
        if not pages:
            sources = tuple(
                Source(number, hit.title, hit.url, hit.snippet, ()) for number, hit in enumerate(hits, 1)
            )
            return Found(query, sources, ())
        drafts, notices = self._read(hits, cancel)
        if cancel.is_set():
            return Found(query, (), ())
        if not drafts:
            raise SearchError(f"none of {len(hits)} pages could be read", notices[0])
        return Found(
            query,
            fitted(query, drafts, budget_tokens=budget_tokens, count_tokens=count_tokens),
            tuple(notices),
        )

    def _hits(self, query: str, limit: int, cancel: threading.Event) -> list[Hit]:
        asked = begun(lambda: self._provider.search(query, limit))
        if not awaited([asked], time.monotonic() + self._timeout_s + MARGIN_S, cancel):
            if cancel.is_set():
                return []
            raise NoNetworkError(f"{self.name} did not answer within {self._timeout_s:g} s")
        hits = [clean for hit in asked.result()[:limit] if (clean := _clean(hit))]
        if not hits:
            raise NoHitsError(query)
        return hits

    def _read(self, hits: Sequence[Hit], cancel: threading.Event) -> tuple[list[Draft], list[str]]:
        """The pages of `hits`, and of which there is nothing but the snippet."""
        gone = threading.Event()
        reading = [begun(partial(self._draft, hit, gone)) for hit in hits]
        try:
            awaited(reading, time.monotonic() + self._timeout_s + EXTRACTION_S + MARGIN_S, cancel)
        finally:
            gone.set()
        drafts, notices = [], []
        for hit, future in zip(hits, reading, strict=True):
            try:
                draft = _result(future, hit)
            except PageError as err:
                notices.append(str(err))
                draft = Draft(hit.title, hit.url, hit.snippet, ())
            if draft.snippet or draft.passages:
                drafts.append(draft)
        return drafts, notices

    def _draft(self, hit: Hit, gone: threading.Event) -> Draft:
        page = self._fetcher.fetch(hit.url, gone)
        read = page_text(page, gone)
        if read is None or not read.text:
            reason = "its text cannot be told from the rest" if read is None else "holds no text"
            raise PageError(f"{host_of(httpx.URL(page.url))}: {reason}")
        title = (hit.title if hit.title != _host(hit.url) else "") or read.title or hit.title
        return Draft(title[:MAX_TITLE_CHARS], page.url, hit.snippet, passages_of(read.text))


def open_finder(settings: SearchSettings) -> Finder:
    """The finder that `settings` describe. Asks nobody anything yet.

    Raises:
        UsageError: they want a SearXNG server, and do not say which.
    """
    fetcher = PageFetcher(timeout_s=settings.timeout_s, allow_loopback=settings.allow_loopback)
    return Finder(_provider(settings), fetcher, timeout_s=settings.timeout_s)


def _provider(settings: SearchSettings) -> SearchProvider:
    from satchel.agent.search.duckduckgo import DuckDuckGo
    from satchel.agent.search.searxng import SearXNG

    if settings.provider == "ddgs":
        return DuckDuckGo(timeout_s=settings.timeout_s)
    if not settings.url:
        hint = "set search.url to its address, such as http://127.0.0.1:8888"
        raise UsageError("no SearXNG server is named", hint)
    return SearXNG(settings.url, timeout_s=settings.timeout_s)


def _result(future: Future[Draft], hit: Hit) -> Draft:
    if not future.done():
        raise PageError(f"{_host(hit.url)}: did not answer in time")
    return future.result()


def _clean(hit: Hit) -> Hit | None:
    """`hit` as it can be shown; None where its URL is none of a web page."""
    try:
        url = str(checked_url(hit.url))
    except PageError:
        return None
    title = sanitize_line(hit.title)[:MAX_TITLE_CHARS] or _host(url)
    day = _DAY.match(hit.published)
    snippet = sanitize_line(f"{day[0]}: {hit.snippet}" if day and hit.snippet else hit.snippet)
    return Hit(title, url, _cut(snippet), hit.published)


def _cut(snippet: str) -> str:
    size = weight(snippet)
    if size <= MAX_SNIPPET_WEIGHT:
        return snippet
    return snippet[: int(len(snippet) * MAX_SNIPPET_WEIGHT / size)].rstrip() + "…"


def _host(url: str) -> str:
    return host_of(httpx.URL(url))
