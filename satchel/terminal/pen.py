"""Writes styled text to a terminal: the only escapes that leave are colours and links made here.

Knows nothing of what the text means. What it is given is sanitized already.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import IO, TYPE_CHECKING

from rich.color import ColorSystem
from rich.errors import StyleSyntaxError
from rich.style import Style
from wcwidth import iter_graphemes
from wcwidth import width as columns_of

from satchel.terminal.manner import is_dumb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DEFAULT_COLUMNS = 80  # of a terminal that does not say
MIN_COLUMNS = 10  # narrower windows are written to as if they were so wide
MAX_URL_CHARS = 2000
MAX_GRAPHEME_CHARS = 32  # no script has longer ones (UAX 15, "stream-safe"): what goes on is cut
_LOOK_AHEAD_CHARS = 8 * MAX_GRAPHEME_CHARS

_COLOURS = {
    "standard": ColorSystem.STANDARD,
    "256": ColorSystem.EIGHT_BIT,
    "truecolor": ColorSystem.TRUECOLOR,
    "windows": ColorSystem.WINDOWS,
}
_LINKABLE = re.compile(r"(?:https?://(?![^/?#]*@)|mailto:)[!-~]+", re.IGNORECASE)
_KNOWS_LINKS = {"iTerm.app", "WezTerm", "vscode", "ghostty", "Hyper", "Tabby", "rio", "WarpTerminal"}
_KNOWS_LINKS_TERM = ("xterm-kitty", "xterm-ghostty", "alacritty", "foot", "wezterm", "contour")
_KNOWS_LINKS_SINCE = {"VTE_VERSION": 5000, "KONSOLE_VERSION": 201200}


@dataclass(frozen=True, slots=True)
class Span:
    """Text of one kind: `style` as rich names it, `url` where it leads to, or ""."""

    text: str
    style: str = ""
    url: str = ""


class Pen:
    """Writes to `out`, a terminal."""

    def __init__(self, out: IO[str], color_system: str | None) -> None:
        """`color_system` is what a console of rich calls it; None for no attributes at all."""
        self._out = out
        self._colours = _COLOURS.get(color_system or "")
        self.links = self._colours is not None and takes_links()
        self.unicode = _encodes("•◦▪─│┼☐☑", out)

    @property
    def styled(self) -> bool:
        """Whether bold and colours can be seen."""
        return self._colours is not None

    @property
    def columns(self) -> int:
        """The width of the window now."""
        return max(window_columns(self._out) or DEFAULT_COLUMNS, MIN_COLUMNS)

    def write(self, spans: Iterable[Span], end: str = "") -> None:
        text = "".join(map(self._drawn, _joined(spans))) + end
        if text:
            self._out.write(text)
            self._out.flush()

    def _drawn(self, span: Span) -> str:
        text = span.text
        if self._colours is not None and span.style:
            text = _style(span.style).render(text, color_system=self._colours)
        if span.url and self.links and is_linkable(span.url):
            return f"\x1b]8;;{span.url}\x1b\\{text}\x1b]8;;\x1b\\"
        return text


def is_linkable(url: str) -> bool:
    """Whether a click on `url` may do no more than it seems: a page or an address, and no user name in it."""
    return len(url) <= MAX_URL_CHARS and _LINKABLE.fullmatch(url) is not None


def takes_links() -> bool:
    """Whether the terminal is one of those that are known to take OSC 8. None can be asked."""
    term, env = os.environ.get("TERM", ""), os.environ
    if term.startswith(("screen", "tmux")) or "TMUX" in env or "STY" in env:
        return False
    if env.get("TERM_PROGRAM") in _KNOWS_LINKS or "WT_SESSION" in env or term.startswith(_KNOWS_LINKS_TERM):
        return True
    return any(_number(env.get(name, "")) >= since for name, since in _KNOWS_LINKS_SINCE.items())


def takes_escapes(stream: IO[str]) -> bool:
    """Whether `stream` is a terminal that knows more than text."""
    return stream.isatty() and not is_dumb()


def window_columns(stream: IO[str]) -> int | None:
    """The width of the terminal that `stream` is; None if it is none, or does not say."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError, AttributeError):
        return None


def graphemes(text: str) -> Iterator[tuple[str, int]]:
    """What a person takes for the characters of `text`, and how many columns each is wide."""
    if text.isascii():
        for char in text:
            yield char, 1
    else:
        for cluster in _clusters(text):
            yield cluster, columns_of(cluster)


def _clusters(text: str) -> Iterator[str]:
    """The graphemes of `text`, none longer than `MAX_GRAPHEME_CHARS`, in a time that grows as it does."""
    start = 0
    while start < len(text):
        limit = min(start + _LOOK_AHEAD_CHARS, len(text))
        for cluster in iter_graphemes(text, start, limit):
            if len(cluster) > MAX_GRAPHEME_CHARS:
                yield cluster[:MAX_GRAPHEME_CHARS]
                start += MAX_GRAPHEME_CHARS
                break  # what is left of it is looked at anew
            if start + len(cluster) == limit < len(text):
                break  # it may go on
            yield cluster
            start += len(cluster)


def text_columns(text: str) -> int:
    return len(text) if text.isascii() else sum(width for _, width in graphemes(text))


@lru_cache(maxsize=512)
def _style(definition: str) -> Style:
    try:
        return Style.parse(definition)
    except StyleSyntaxError:  # a theme of colours that rich does not know
        return Style.null()


def _joined(spans: Iterable[Span]) -> Iterator[Span]:
    """`spans`, neighbours of one kind as one."""
    last: Span | None = None
    for span in spans:
        if last is not None and (last.style, last.url) == (span.style, span.url):
            last = Span(last.text + span.text, last.style, last.url)
            continue
        if last is not None:
            yield last
        last = span
    if last is not None:
        yield last


def _encodes(text: str, out: IO[str]) -> bool:
    try:
        text.encode(getattr(out, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0
