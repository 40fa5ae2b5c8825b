"""Which files a message mentions, as @path. Knows nothing of what is in them.

A message may be pasted from anywhere: however long it is and whatever it holds, the search ends soon.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from satchel.agent.collecting import Allowance, names_a_file
from satchel.agent.places import full_path, is_file, is_there

MAX_MENTIONS = 20  # of a message; more are a text that was pasted
MAX_LOOK_UPS = 5_000  # paths of a message that are looked for
MAX_SEEN = 30_000  # names in directories that are held against a message's wildcards
_MAX_PATTERNS = 40  # with wildcards, of a message
_MAX_PATTERN_CHARS = 300
_MAX_CUTS = 200  # places where a path may end, of one @

# Not behind a word's character, as in an e-mail address; other scripts put no space before it.
_AT = re.compile(
    r"""(?<![A-Za-z0-9_.+@/\\-])@"""
    r"""(?:"(?P<one>[^"\n]{1,1000})"|'(?P<other>[^'\n]{1,1000})'|(?P<bare>\S{1,1000}))"""
)

# What may follow a path: punctuation that paths seldom hold, or a script without spaces between words; behind
# the last letter also the end and asterisks.
_CUT = re.compile(r"""(?=\.{0,8}(?:[,;:!?()\[\]{}<>"'`]|[^\x00-\u2dff])|[…–—“”‘’«»])""")
_LAST_CUT = re.compile(r"(?=\.{0,8}(?:\*|\Z))")


def mentioned(message: str, base: Path) -> list[str]:
    """The paths that `message` names behind an @, in its order: `@src/a.py`, `@"my file"`, `@src/`, `@*.py`.

    They are files and directories that exist, and wildcards (with a `*`) that match some; the first
    `MAX_MENTIONS` of them. What stands behind a path, such as a full stop, is not of it. A word without a
    slash may be somebody's name or a decorator: it means a file if there is one, never a directory. E-mail
    addresses mention nothing.
    """
    found: dict[str, None] = {}
    search = _Search(base)
    position = 0
    while len(found) < MAX_MENTIONS and search.goes_on and (match := _AT.search(message, position)):
        position = match.start() + 1
        if path := search.path(match):
            found[path] = None
            position += len(path)
    return list(found)


class _Search:
    """Looks for what one message may mention, and no longer than a message is worth."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._look_ups = 0
        self._patterns = 0
        self._seen = Allowance(MAX_SEEN)

    @property
    def goes_on(self) -> bool:
        return self._look_ups < MAX_LOOK_UPS

    def path(self, match: re.Match[str]) -> str | None:
        if quoted := match["one"] or match["other"]:
            return quoted if self._exists(quoted) or self._matches(quoted) else None
        candidates = _candidates(match["bare"])
        meant = (path for path in candidates if self._exists(path) and self._is_meant(path))
        return next(meant, None) or next((path for path in candidates if self._matches(path)), None)

    def _exists(self, path: str) -> bool:
        self._look_ups += 1
        return is_there(full_path(path, self._base))

    def _is_meant(self, path: str) -> bool:
        if not path.strip("./~"):
            return path == "./"
        return "/" in path or is_file(full_path(path, self._base))

    def _matches(self, path: str) -> bool:
        if "*" not in path or not path.strip("*./~?[]") or len(path) > _MAX_PATTERN_CHARS:
            return False
        self._patterns += 1
        return self._patterns <= _MAX_PATTERNS and names_a_file(path, self._base, self._seen)


def _candidates(word: str) -> list[str]:
    """`word`, and what is left of it without what may follow a path; the longest first."""
    behind_word = len(word)
    while behind_word > 1 and not (word[behind_word - 1].isalnum() or word[behind_word - 1] == "_"):
        behind_word -= 1
    found = itertools.chain(_CUT.finditer(word, 1), _LAST_CUT.finditer(word, behind_word))
    cuts = sorted({cut.start() for cut in found} - {len(word)})[:_MAX_CUTS]
    return [word, *(word[:end] for end in reversed(cuts))]
