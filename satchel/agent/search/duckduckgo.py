"""Hits from DuckDuckGo and the other engines that `ddgs` asks, texts and news. Knows nothing of pages."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from satchel.agent.search.background import awaited, begun
from satchel.agent.search.errors import (
    RATE_LIMITED,
    CaptchaError,
    NoHitsError,
    NoNetworkError,
    RateLimitedError,
    SearchError,
    asks_for_captcha,
)
from satchel.agent.search.provider import Hit, unique
from satchel.agent.search.words import is_unspaced
from satchel.sanitize import sanitize_line

NEWS_SHARE = 3  # every third hit is of the news, where there are as many
NEWS_PATIENCE_S = 2.0  # for the news, once texts are there
_ENGINE_SHARE = 2  # `ddgs` asks its engines two by two, and some refuse: each gets half the time

_UNREACHED = re.compile(
    r"DNSError|dns error|ConnectError|connect error|Connection refused|unreachable", re.IGNORECASE
)
_REFUSED = re.compile(r"\b(?:202|429)\b|rate ?limit|too many requests", re.IGNORECASE)
_MAX_REASON_CHARS = 120


@dataclass(slots=True)
class _Log:
    """What the engines' servers answered to one search; `ddgs` itself makes one error of it all."""

    answered: bool = False
    refused: bool = False
    captcha: bool = False
    gone: threading.Event = field(default_factory=threading.Event)  # nobody waits any longer

    def note(self, status: int, text: str) -> None:
        self.answered = True
        self.refused |= status in RATE_LIMITED
        self.captcha |= status not in RATE_LIMITED and asks_for_captcha(text)


class DuckDuckGo:
    """The engines of `ddgs`.

    Args:
        timeout_s: of a search as a whole.
    """

    name = "ddgs"

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def search(self, query: str, limit: int) -> list[Hit]:
        """As `SearchProvider.search`.

        Raises:
            SearchError: there are no hits; the kind of the error says why.
        """
        log, deadline, never = _Log(), time.monotonic() + self._timeout_s, threading.Event()
        texts, news = (begun(self._asking(kind, query, limit, log)) for kind in ("text", "news"))
        try:
            awaited([texts], deadline, never)
            if texts.done() and not texts.exception():
                deadline = min(deadline, time.monotonic() + NEWS_PATIENCE_S)
            awaited([news], deadline, never)
        finally:
            log.gone.set()
        hits = _merged(_results(texts), _results(news), limit)
        if not hits:
            raise self._why_nothing([texts, news], log, query)
        return hits

    def _asking(self, kind: str, query: str, limit: int, log: _Log) -> Callable[[], list[dict[str, Any]]]:
        import ddgs

        engines = _watched(ddgs.DDGS, log)(timeout=max(1, round(self._timeout_s / _ENGINE_SHARE)))
        # Of the regions that name a language, the one of the query's.
        region = "cn-zh" if any(map(is_unspaced, query)) else "us-en"

        def ask() -> list[dict[str, Any]]:
            try:
                found: list[dict[str, Any]] = getattr(engines, kind)(query, region=region, max_results=limit)
            except ddgs.exceptions.DDGSException as err:
                raise _Failed(type(err).__name__, str(err)) from err
            return found

        return ask

    def _why_nothing(self, asked: Sequence[Future[Any]], log: _Log, query: str) -> SearchError:
        errors = [future.exception() for future in asked if future.done()]
        failures = [error for error in errors if isinstance(error, _Failed)]
        for error in errors:
            if error and error not in failures:
                raise error
        kinds, reasons = {failure.kind for failure in failures}, " ".join(map(str, failures))
        if log.refused or "RatelimitException" in kinds or _REFUSED.search(reasons):
            return RateLimitedError("the search engine")
        if log.captcha or (reasons and asks_for_captcha(reasons)):
            return CaptchaError("the search engine")
        if not log.answered and _UNREACHED.search(reasons):
            return NoNetworkError("no search engine can be reached")
        if "TimeoutException" in kinds or len(errors) < len(asked):
            return NoNetworkError(f"no search engine answered within {self._timeout_s:g} s")
        if not reasons or "No results found" in reasons:
            return NoHitsError(query)
        return SearchError(
            f"the search failed: {sanitize_line(reasons)[:_MAX_REASON_CHARS]}", "try again later"
        )


class _Failed(Exception):
    """What `ddgs` raised, by the name of its class and its text."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def _watched(base: type, log: _Log) -> type:
    """`DDGS`, noting in `log` what servers answer, and asking none once nobody waits.

    Where another version of `ddgs` makes its engines otherwise, nothing is noted: failures look alike.
    """

    class Watched(base):
        def _get_engines(self, *args: Any, **kwargs: Any) -> Any:
            engines = super()._get_engines(*args, **kwargs)
            for engine in engines:
                if not isinstance(engine.http_client, _WatchedClient):
                    engine.http_client = _WatchedClient(engine.http_client, log)
            return engines

    return Watched


class _WatchedClient:
    """An engine's HTTP client, with a log."""

    def __init__(self, client: Any, log: _Log) -> None:
        self._client, self._log = client, log

    def request(self, *args: Any, **kwargs: Any) -> Any:
        from ddgs.exceptions import DDGSException

        if self._log.gone.is_set():
            raise DDGSException("nobody waits any longer")
        response = self._client.request(*args, **kwargs)
        self._log.note(response.status_code, response.text)
        return response

    def get(self, url: str, *args: Any, **kwargs: Any) -> Any:
        return self.request("GET", url, *args, **kwargs)

    def post(self, url: str, *args: Any, **kwargs: Any) -> Any:
        return self.request("POST", url, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def _results(future: Future[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return future.result() if future.done() and not future.exception() else []


def _merged(texts: Iterable[Mapping[str, Any]], news: Iterable[Mapping[str, Any]], limit: int) -> list[Hit]:
    """Two texts, one of the news, and so on; the first of all is a text. What one lacks the other has."""
    left_texts, left_news = map(_text_hit, texts), map(_news_hit, news)

    def in_turn() -> Iterator[Hit]:
        while turn := [*islice(left_texts, NEWS_SHARE - 1), *islice(left_news, 1)]:
            yield from turn

    return list(islice(unique(in_turn()), limit))


def _text_hit(result: Mapping[str, Any]) -> Hit:
    return Hit(*(str(result.get(name) or "") for name in ("title", "href", "body")))


def _news_hit(result: Mapping[str, Any]) -> Hit:
    return Hit(*(str(result.get(name) or "") for name in ("title", "url", "body", "date")))
