"""The text of a page. Knows nothing of where it comes from.

HTML is taken apart in a process of its own: some that is easily written keeps the extractor busy for minutes,
and only a process can be ended. It also has the limits of memory that this system can set.
"""

from __future__ import annotations

import codecs
import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from html import unescape

from satchel.agent.search.fetch import Page
from satchel.config.waits import POLL_S
from satchel.sanitize import sanitize, sanitize_line

EXTRACTION_S = 6.0
MAX_TEXT_CHARS = 200_000  # of a page that are looked at for passages
_MAX_TITLE_CHARS = 200

_META_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_TITLE = re.compile(r"<title[^>]{0,200}>([^<]{0,1000})", re.IGNORECASE)
# What pages are written in (the names of https://encoding.spec.whatwg.org). Python's codecs know others which
# are none, or which take time that grows with the square of the text.
_ENCODINGS = re.compile(
    r"utf-?8|utf-16(-?[lb]e)?|ascii|iso8859-\d+|cp125\d|cp866|koi8-[ru]|gbk|gb2312|gb18030|big5(hkscs)?|cp950"
    r"|euc_(jp|kr)|shift_jis|cp932|cp949|iso2022_jp|mac-(roman|cyrillic)|tis-620"
)


@dataclass(frozen=True, slots=True)
class PageText:
    """What a page says, without control characters; `title` is one line. Either may be empty."""

    title: str
    text: str


def page_text(page: Page, gone: threading.Event, *, time_s: float = EXTRACTION_S) -> PageText | None:
    """The text of `page` without menus and the like; None where it takes longer than `time_s` or fails.

    Args:
        gone: set when nobody waits any longer.
    """
    text = decoded(page.body, page.charset)
    if page.content_type == "text/plain":
        return PageText("", _cleaned(text))
    extracted = _extracted(text, time.monotonic() + time_s, gone)
    if extracted is None:
        return None
    title = _TITLE.search(text[:MAX_TEXT_CHARS])
    shown = sanitize_line(unescape(title[1]))[:_MAX_TITLE_CHARS] if title else ""
    return PageText(shown, _cleaned(extracted))


def decoded(body: bytes, charset: str = "") -> str:
    """The characters of `body`: as the server says, the page, UTF-8, or else one byte for each."""
    meta = _META_CHARSET.search(body[:4096])
    if body.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return body.decode("utf-16", "replace")
    if named := _encoding(charset) or _encoding(meta[1].decode("ascii", "replace") if meta else ""):
        return body.decode(named, "replace").removeprefix("\ufeff")
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError:
        return body.decode("cp1252", "replace")


def _encoding(name: str) -> str:
    """Python's name of what pages call `name`; "" if it is not known."""
    try:
        known = codecs.lookup(name.strip()).name if name.isascii() else ""
    except (LookupError, ValueError):
        return ""
    if not _ENCODINGS.fullmatch(known):
        return ""
    # What calls itself the older or smaller one is often the other, which takes all that it has.
    return {"gbk": "gb18030", "gb2312": "gb18030", "iso8859-1": "cp1252", "ascii": "cp1252"}.get(known, known)


def _cleaned(text: str) -> str:
    return sanitize(text[:MAX_TEXT_CHARS]).strip()


def _extracted(html: str, deadline: float, gone: threading.Event) -> str | None:
    # -P: nothing is imported from the directory that the user is in.
    command = [sys.executable, "-P", "-m", "satchel.agent.search.extraction"]
    given: bytes | None = html.encode("utf-8", "replace")
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us
        )
    except OSError:  # the system has no room for a process
        return None
    with process:
        try:
            while time.monotonic() < deadline and not gone.is_set():
                try:
                    said, _ = process.communicate(given, timeout=POLL_S)
                except subprocess.TimeoutExpired:
                    given = None
                    continue
                return said.decode("utf-8", "replace") if process.returncode == 0 else None
        finally:
            process.kill()
    return None
