"""What a search has found, as an answer may cite it. Knows nothing of providers, pages or models."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Source:
    """One page, untrusted but for its control characters, which are gone.

    Attributes:
        number: what the answer cites it by, counted from 1.
        title: one line.
        url: http or https; where the page was in the end.
        snippet: what the provider showed of it, one line; may be empty.
        passages: the parts of its text that fit the query, in the page's order; empty if it was not read.
    """

    number: int
    title: str
    url: str
    snippet: str
    passages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """The sources for `query`, numbered from 1; `notices` has a line for each page that could not be read."""

    query: str
    sources: tuple[Source, ...]
    notices: tuple[str, ...]
