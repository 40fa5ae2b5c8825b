"""Files within the text of a message, written so that they can be read out of it again, exactly.

Knows nothing of disks: a file is a path to show and a text.

After the message's own text comes the line `Files in context:`, and then each file behind a line that names
it and counts its lines. Lines end with a newline and nothing else, so that carriage returns, form feeds and
the line separators of Unicode stay what they are. The same file is the same text in every message, so that
what a model has read of it can be shared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from satchel.cache_store.manifest import Message

_MARK = "Files in context:"

# That line in somebody's text gets a backslash more than it has, so that the real one is the only one.
_LIKE_MARK = re.compile(rf"^\\*{_MARK}$", re.MULTILINE)
_ESCAPED_MARK = re.compile(rf"^\\(\\*{_MARK})$", re.MULTILINE)
_REAL_MARK = re.compile(rf"^{_MARK}\n", re.MULTILINE)

_NO_NEWLINE = ", no newline at the end"
_HEADER = re.compile(rf"File: (?P<path>.*) \((?P<lines>\d{{1,9}}) lines?(?P<open>{_NO_NEWLINE})?\)\n")


@dataclass(frozen=True, slots=True)
class ContextFile:
    """A file that the model reads.

    Attributes:
        path: as it is shown: relative to the directory that is worked in if below it, else absolute.
        text: what it holds, without a byte order mark.
    """

    path: str
    text: str


def with_files(prompt: str, files: Sequence[ContextFile]) -> str:
    """The text of a message that says `prompt` and has `files` attached, behind it and in this order.

    Without files that is `prompt`, unless it looks as if it had some: then it is changed so that it has not.
    """
    if not files and split_files(prompt) == (prompt, ()):
        return prompt
    said = _LIKE_MARK.sub(r"\\\g<0>", prompt)
    if not files:
        return said
    return "".join((f"{said}\n\n" if said else "", _MARK, "\n", *(f"\n{_section(file)}" for file in files)))


def split_files(text: str) -> tuple[str, tuple[ContextFile, ...]]:
    """What `with_files` made `text` of. A text that it did not make is all prompt, as it is."""
    marks = list(_REAL_MARK.finditer(text))
    if not marks:
        return _ESCAPED_MARK.sub(r"\1", text), ()
    # The last one: those before stand in what was put before the text later, and say nothing.
    start = marks[-1].start()
    end = max(start - 2, 0)
    before, gap = text[:end], text[end:start] if start else "\n\n"
    files = _sections(text, marks[-1].end())
    if gap != "\n\n" or files is None:
        return text, ()
    return _ESCAPED_MARK.sub(r"\1", before), files


def known_files(messages: Iterable[Message]) -> list[ContextFile]:
    """The files that the user put before the model, in the first message, if that is the system's, and in
    their own; of each the newest text. Later system messages quote what was said, which proves nothing.
    """
    newest: dict[str, ContextFile] = {}
    for index, message in enumerate(messages):
        if message.role == "user" or (message.role == "system" and index == 0):
            newest |= {file.path: file for file in split_files(message.content)[1]}
    return list(newest.values())


def _section(file: ContextFile) -> str:
    text = _LIKE_MARK.sub(r"\\\g<0>", file.text)
    unended = bool(text) and not text.endswith("\n")
    lines = text.count("\n") + unended
    counted = f"{lines} line{'' if lines == 1 else 's'}{_NO_NEWLINE if unended else ''}"
    return f"File: {_shown(file.path)} ({counted})\n{text}{chr(10) if unended else ''}"


def _sections(text: str, position: int) -> tuple[ContextFile, ...] | None:
    """The files from `position` to the end; None if something else than `_section` writes stands there."""
    files = []
    while position < len(text):
        header = _HEADER.match(text, position + 1)
        if text[position] != "\n" or header is None:
            return None
        stop = header.end()
        for _ in range(int(header["lines"])):
            stop = text.find("\n", stop) + 1
            if not stop:
                return None
        content = text[header.end() : stop - 1 if header["open"] else stop]
        path = _path(header["path"])
        if path is None:
            return None
        file = ContextFile(path, _ESCAPED_MARK.sub(r"\1", content))
        if _section(file) != text[position + 1 : stop]:
            return None
        files.append(file)
        position = stop
    return tuple(files) or None


def _shown(path: str) -> str:
    """`path` on one line, and in a form that only it has."""
    return path if path.isprintable() and not path.startswith('"') else json.dumps(path)


def _path(shown: str) -> str | None:
    if not shown.startswith('"'):
        return shown
    try:
        path = json.loads(shown)
    except (ValueError, RecursionError):
        return None
    return path if isinstance(path, str) else None
