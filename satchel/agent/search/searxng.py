"""Hits from a SearXNG server, through its JSON interface. Knows nothing of pages.

The server is one that the user named, so it may be anywhere, this machine included; where it redirects to
another host, that is not followed. https://docs.searxng.org/dev/search_api.html
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import httpx

from satchel.agent.search.addresses import PageError, checked_url, host_of
from satchel.agent.search.body import ACCEPT_ENCODING, BodyError, read_body
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
from satchel.agent.search.watch import Watch
from satchel.errors import UsageError

MAX_ANSWER_BYTES = 3_000_000
MAX_REDIRECTS = 3
_HEADERS = {
    "user-agent": "Satchel",
    "accept": "application/json",
    "accept-encoding": ACCEPT_ENCODING,
}
_NO_JSON_HINT = "add json to search.formats in the settings.yml of the server"
_LIMITER_HINT = "wait a minute, or let this machine pass in the limiter.toml of the server"


class SearXNG:
    """A SearXNG server.

    Args:
        url: of the server, with or without `/search`; may hold a name and password.

    Raises:
        UsageError: it is no URL of a server.
    """

    def __init__(self, url: str, *, timeout_s: float) -> None:
        try:
            given = httpx.URL(url.strip())
            self._auth = (given.username, given.password) if given.userinfo else None
            self._url = checked_url(given.copy_with(userinfo=b"", query=None, fragment=None))
        except (httpx.InvalidURL, ValueError, PageError) as err:
            hint = "such as http://127.0.0.1:8888"
            raise UsageError("search.url is not the address of a SearXNG server", hint) from err
        self._url = self._url.copy_with(path=self._url.path.rstrip("/").removesuffix("/search") + "/search")
        self._timeout_s = timeout_s

    @property
    def name(self) -> str:
        return f"SearXNG at {self._url.netloc.decode('ascii')}"

    def search(self, query: str, limit: int) -> list[Hit]:
        """As `SearchProvider.search`.

        Raises:
            SearchError: there are no hits; the kind of the error says why.
        """
        answer = self._answer(query)
        hits = list(islice(unique(_hits(answer)), limit))
        if not hits:
            raise self._why_nothing(answer, query)
        return hits

    def _answer(self, query: str) -> Mapping[str, Any]:
        watch = Watch(time.monotonic() + self._timeout_s, threading.Event())
        try:
            with (
                watch,
                httpx.Client(
                    trust_env=False, timeout=self._timeout_s, headers=_HEADERS, auth=self._auth
                ) as client,
            ):
                status, body = self._asked(client, query, watch)
        except (httpx.HTTPError, BodyError) as err:
            if watch.is_over or isinstance(err, httpx.TimeoutException):
                raise NoNetworkError(f"{self.name} did not answer within {self._timeout_s:g} s") from err
            if isinstance(err, BodyError):
                raise SearchError(f"{self.name}: its answer is {err}", "is search.url right?") from err
            hint = "does it run, and is search.url right?"
            raise NoNetworkError(f"{self.name} cannot be reached", hint) from err
        return self._parsed(status, body)

    def _asked(self, client: httpx.Client, query: str, watch: Watch) -> tuple[int, bytes]:
        url = self._url.copy_merge_params({"q": query, "format": "json", "categories": "general,news"})
        for _ in range(MAX_REDIRECTS + 1):
            with client.stream("GET", url, extensions=dict(watch.extensions)) as response:
                location = response.headers.get("location") if response.is_redirect else None
                if not location:
                    body = read_body(response, max_bytes=MAX_ANSWER_BYTES, is_over=lambda: watch.is_over)
                    return response.status_code, body
            try:
                target = checked_url(url.join(location))
            except (httpx.InvalidURL, ValueError, PageError) as err:
                raise SearchError(f"{self.name} redirects to no proper address") from err
            if host_of(target) != host_of(url):
                hint = "if that is the server, put its address into search.url"
                raise SearchError(f"{self.name} redirects to {host_of(target)}, which is not followed", hint)
            url = target
        raise SearchError(f"{self.name} redirects too often", "is search.url right?")

    def _parsed(self, status: int, body: bytes) -> Mapping[str, Any]:
        if status in RATE_LIMITED:
            raise RateLimitedError(self.name, _LIMITER_HINT)
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        if status == 200 and isinstance(answer, dict):
            return answer
        if asks_for_captcha(body.decode("utf-8", "replace")):
            raise CaptchaError(self.name, _LIMITER_HINT)
        if status == 403:
            raise SearchError(f"{self.name} gives no JSON", _NO_JSON_HINT)
        if status == 200:
            raise SearchError(f"{self.name} answered with something else than JSON", "is search.url right?")
        raise SearchError(f"{self.name} answered {status}", "is search.url right, and is the server well?")

    def _why_nothing(self, answer: Mapping[str, Any], query: str) -> SearchError:
        """A server whose engines were all refused has no results, either, and says so beside them."""
        unresponsive = answer.get("unresponsive_engines") or []
        reasons = json.dumps(unresponsive).lower()
        if "captcha" in reasons:
            return CaptchaError(f"{self.name}, or what it asks,")
        if "too many requests" in reasons or "access denied" in reasons:
            return RateLimitedError(f"{self.name}, or what it asks,")
        if unresponsive:
            return NoNetworkError(
                f"{self.name} reached none of its engines", "look at its log or its /stats page"
            )
        return NoHitsError(query)


def _hits(answer: Mapping[str, Any]) -> Iterator[Hit]:
    results = answer.get("results")
    for result in results if isinstance(results, list) else []:
        if isinstance(result, dict) and isinstance(result.get("url"), str):
            fields = (result.get(name) for name in ("title", "url", "content", "publishedDate"))
            yield Hit(*(field if isinstance(field, str) else "" for field in fields))
