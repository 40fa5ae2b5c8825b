"""What a search provider is. Knows none of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Hit:
    """What a provider says of one page, untrusted; `published` is a date in any form, or ""."""

    title: str
    url: str
    snippet: str
    published: str = ""


class SearchProvider(Protocol):
    """Knows pages for a query."""

    @property
    def name(self) -> str:
        """What users know it by."""

    def search(self, query: str, limit: int) -> list[Hit]:
        """At least one and at most `limit` hits, the best first, each URL once.

        Raises:
            SearchError: there are none; the kind of the error says why.
        """


def unique(hits: Iterable[Hit]) -> Iterator[Hit]:
    """The first hit of each page: scheme, "www.", fragment and a slash at the end make no difference."""
    seen = set()
    for hit in hits:
        page = hit.url.partition("#")[0].partition("://")[2].removeprefix("www.").rstrip("/")
        if page and page not in seen:
            seen.add(page)
            yield hit
