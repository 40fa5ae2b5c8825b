"""Pages as they are at their URLs, and only what is public. Knows nothing of what a page says.

A host's name is resolved once: the addresses that were found to be public are the ones that are connected to,
so that a name cannot turn into a private address in between. Each redirect is checked like a first URL.
"""

from __future__ import annotations

import http.cookiejar
import ssl
import threading
import time
from dataclasses import dataclass
from functools import cached_property

import httpx

from satchel.agent.search.addresses import (
    PageError,
    Resolver,
    allowed_addresses,
    checked_url,
    host_of,
    shown,
)
from satchel.agent.search.body import ACCEPT_ENCODING, BodyError, read_body
from satchel.agent.search.watch import Watch

MAX_PAGE_BYTES = 3_000_000
MAX_REDIRECTS = 5
MAX_ADDRESSES = 3  # of a host that are tried
TYPES = ("text/html", "application/xhtml+xml", "text/plain")
_REDIRECTS = (301, 302, 303, 307, 308)
_HEADERS = {
    "user-agent": "Mozilla/5.0 (compatible; Satchel)",
    "accept": "text/html,application/xhtml+xml,text/plain;q=0.8",
    "accept-encoding": ACCEPT_ENCODING,
    "connection": "close",
}


@dataclass(frozen=True, slots=True)
class Page:
    """What was at `url` in the end; `content_type` is one of `TYPES`, `charset` what the server called it."""

    url: str
    content_type: str
    charset: str
    body: bytes


class PageFetcher:
    """Fetches pages, from several threads at once if need be.

    Args:
        timeout_s: of a page, with all that redirects to it.
        allow_loopback: fetch pages of this machine as well.
        resolve: in place of `socket.getaddrinfo`.
    """

    def __init__(
        self, *, timeout_s: float, allow_loopback: bool = False, resolve: Resolver | None = None
    ) -> None:
        self._timeout_s = timeout_s
        self._allow_loopback = allow_loopback
        self._resolve = resolve

    def fetch(self, url: str, gone: threading.Event) -> Page:
        """The page at `url`. A name server that does not answer may hold this up longer than the time limit,
        and opening a connection longer than until `gone` is set.

        Args:
            gone: set when nobody waits any longer.

        Raises:
            PageError: it is not public, not there, not text, too large or too slow.
        """
        at = checked_url(url)
        with Watch(time.monotonic() + self._timeout_s, gone) as watch:
            for _ in range(MAX_REDIRECTS + 1):
                answer = self._ask(at, watch)
                if isinstance(answer, Page):
                    return answer
                at = answer
        raise PageError(f"{host_of(at)}: redirects too often")

    def _ask(self, url: httpx.URL, watch: Watch) -> Page | httpx.URL:
        """What is at `url`: a page, or where else to look."""
        addresses = allowed_addresses(url, allow_loopback=self._allow_loopback, resolve=self._resolve)
        host, failure = host_of(url), "cannot be reached"
        for address in addresses[:MAX_ADDRESSES]:
            if watch.is_over:
                break
            try:
                return self._ask_at(address, url, watch)
            except (httpx.HTTPError, BodyError) as err:
                if watch.is_over or isinstance(err, httpx.TimeoutException):
                    raise PageError(f"{host}: did not answer in time") from err
                if isinstance(err, BodyError):
                    raise PageError(f"{host}: is {err}") from err
                if not isinstance(err, httpx.ConnectError):
                    raise PageError(f"{host}: broke off") from err
                failure = "its certificate is not valid" if _is_about_certificate(err) else failure
        else:
            raise PageError(f"{host}: {failure}")
        raise PageError(f"{host}: did not answer in time")

    def _ask_at(self, address: str, url: httpx.URL, watch: Watch) -> Page | httpx.URL:
        # A client for each request: a connection that is kept may be another host's at the same address,
        # whose certificate was checked for that one.
        with httpx.Client(
            verify=self._ssl_context,
            trust_env=False,  # a proxy would resolve names itself
            follow_redirects=False,
            timeout=watch.left_s,
            headers=_HEADERS,
            cookies=http.cookiejar.CookieJar(http.cookiejar.DefaultCookiePolicy(allowed_domains=())),
        ) as client:
            request = client.build_request(
                "GET",
                url.copy_with(host=address, fragment=None),
                headers={"host": url.netloc.decode("ascii")},
                extensions={"sni_hostname": host_of(url), **watch.extensions},
            )
            response = client.send(request, stream=True)
            try:
                return _judged(response, url, watch)
            finally:
                response.close()

    @cached_property
    def _ssl_context(self) -> ssl.SSLContext:
        return httpx.create_ssl_context()


def _judged(response: httpx.Response, url: httpx.URL, watch: Watch) -> Page | httpx.URL:
    host = host_of(url)
    if response.status_code in _REDIRECTS and (location := response.headers.get("location")):
        try:
            target = url.join(location)
        except (httpx.InvalidURL, ValueError) as err:
            raise PageError(f"{host}: redirects to no proper address") from err
        return checked_url(target)
    if response.status_code != 200:
        raise PageError(f"{shown(host + url.path)}: answered {response.status_code}")
    content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type not in TYPES:
        raise PageError(f"{shown(host + url.path)}: is no page of text")
    body = read_body(response, max_bytes=MAX_PAGE_BYTES, is_over=lambda: watch.is_over)
    return Page(str(url.copy_with(fragment=None)), content_type, response.charset_encoding or "", body)


def _is_about_certificate(err: httpx.ConnectError) -> bool:
    cause: BaseException | None = err
    while cause:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
