"""Why a search has found nothing, told apart as far as a provider's answer allows. Knows no provider."""

from __future__ import annotations

import re

from satchel.errors import NetworkError

RATE_LIMITED = (202, 429)  # DuckDuckGo says 202, all others 429
# What stands on pages that are in a machine's way, with Google, Bing, Brave, Cloudflare, Baidu and others.
_CAPTCHA = re.compile(
    r"captcha|unusual (?:network )?traffic|automated (?:queries|requests)"
    r"|(?:verify|confirm) (?:that )?you(?:'| a)re (?:a |not )|are you (?:a )?(?:human|robot)|not a robot"
    r"|安全验证|人机验证|验证码",
    re.IGNORECASE,
)
# And in their source: DuckDuckGo's, Cloudflare's.
_CAPTCHA_SOURCE = re.compile(r"anomaly-modal|cf-challenge|cf_chl_opt")
_HIDDEN = re.compile(r"<(?:script|style)\b", re.IGNORECASE)
_HIDDEN_END = re.compile(r"</(?:script|style)\b", re.IGNORECASE)
_TAG = re.compile(r"<[^<>]*>")
_LOOKED_AT_CHARS = 200_000

_LATER = "wait a minute, or use a SearXNG server of your own (search.provider, search.url)"


class SearchError(NetworkError):
    """A search that could not be done, or found nothing."""


class NoNetworkError(SearchError):
    """The provider cannot be reached, or does not answer."""

    def __init__(self, message: str, hint: str = "check the connection, then try again") -> None:
        super().__init__(message, hint)


class RateLimitedError(SearchError):
    """The provider answers no more for a while."""

    def __init__(self, provider: str, hint: str = _LATER) -> None:
        super().__init__(f"{provider} takes no more searches from here for a while", hint)


class CaptchaError(SearchError):
    """The provider wants to see a person."""

    def __init__(self, provider: str, hint: str = _LATER) -> None:
        super().__init__(f"{provider} asks for a captcha in place of an answer", hint)


class NoHitsError(SearchError):
    """The provider knows of no page."""

    def __init__(self, query: str) -> None:
        super().__init__(f"nothing was found for “{query}”", "try fewer or other words")


def asks_for_captcha(page: str) -> bool:
    """Whether `page`, which holds no results, wants to see a person. What its scripts say does not count."""
    page = page[:_LOOKED_AT_CHARS]
    first, *others = _HIDDEN.split(page)
    seen = [first, *(part for other in others for part in _HIDDEN_END.split(other, maxsplit=1)[1:])]
    words = _TAG.sub(" ", "".join(seen))
    return bool(_CAPTCHA.search(words) or _CAPTCHA_SOURCE.search(page))
