"""The words of a session as Markdown that people read, and back without loss. Knows nothing of stores.

A heading a message. The messages' own Markdown is left as it is, so that it is rendered, unless it could be
taken for ours or would swallow what follows it: then the message stands in a fence, word for word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from pydantic_core import from_json

from satchel.errors import DamagedError
from satchel.exchange.transcript import MAX_SHOWN, VERSION, Transcript, check_version, messages_of

OPENING = "---\nsatchel: "
VERBATIM = "verbatim"  # the info string of our fences
FIELDS = ("name", "model", "profile", "date")

_HEADING = re.compile(r"## (System|User|Assistant)")
_OUR_FENCE = re.compile(rf"(`{{3,}}){VERBATIM}")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_HTML_BLOCK = re.compile(r"^ {0,3}<[A-Za-z/!?]", re.MULTILINE)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


def to_markdown(transcript: Transcript) -> str:
    """Front matter, then a heading and a text for each message."""
    fields = {name: getattr(transcript, name) for name in FIELDS} | {"tokens": transcript.token_count}
    matter = [f"satchel: {VERSION}", *(f"{name}: {json.dumps(value)}" for name, value in fields.items())]
    messages = (f"## {each.role.capitalize()}\n\n{_body(each.content)}\n" for each in transcript.messages)
    return "\n".join(["---", *matter, "---\n", *messages])


def from_markdown(text: str) -> Transcript:
    """What `to_markdown` wrote.

    Raises:
        DamagedError: something else.
        VersionError: it was exported by another version.
    """
    lines = text.split("\n")
    end = lines.index("---", 1) if "---" in lines[1:] else 0
    if lines[0] != "---" or not end:
        raise DamagedError("it has no front matter")
    fields = dict(_field(line) for line in lines[1:end])
    check_version(fields.get("satchel"))
    values = {name: fields.get(name, "") for name in FIELDS}
    if not all(isinstance(value, str) for value in values.values()):
        raise DamagedError("its front matter has numbers in place of text")
    messages = [{"role": role, "content": content} for role, content in _messages(lines[end + 1 :])]
    return Transcript(messages_of(messages) if messages else (), **values)


def _body(content: str) -> str:
    if not _needs_fence(content):
        return content
    longest = max((len(run) for run in re.findall("`+", content)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{VERBATIM}\n{content}\n{fence}"


def _needs_fence(content: str) -> bool:
    """Whether the message would not come back as it is, or would take over the headings after it."""
    if content != content.strip() or not content or _CONTROL.search(content) or _HTML_BLOCK.search(content):
        return True
    open_fence = ""
    for line in content.split("\n"):
        if _HEADING.fullmatch(line) or _OUR_FENCE.fullmatch(line):
            return True
        found = _FENCE.match(line)
        if found is None:
            continue
        marks, info = found.groups()
        if not open_fence:
            # CommonMark 4.5: a line with further backticks is inline code.
            open_fence = "" if marks[0] == "`" and "`" in info else marks
        elif marks.startswith(open_fence) and not info.strip():
            open_fence = ""
    return bool(open_fence)


def _field(line: str) -> tuple[str, Any]:
    name, _, value = line.partition(": ")
    try:
        return name, from_json(value)  # which, unlike Python's parser, takes no half of a character
    except ValueError as err:
        raise DamagedError(f"its front matter has a line {line[:MAX_SHOWN]!r}") from err


def _messages(lines: list[str]) -> Iterator[tuple[str, str]]:
    """(role, content) of each message."""
    at = _skip_blank(lines, 0)
    while at < len(lines):
        heading = _HEADING.fullmatch(lines[at])
        if heading is None:
            raise DamagedError(f"it has {lines[at][:MAX_SHOWN]!r} where a message should begin")
        start = _skip_blank(lines, at + 1)
        fence = _OUR_FENCE.fullmatch(lines[start]) if start < len(lines) else None
        if fence:
            try:
                stop = lines.index(fence[1], start + 1)
            except ValueError as err:
                raise DamagedError("a message has no end") from err
            content, at = "\n".join(lines[start + 1 : stop]), _skip_blank(lines, stop + 1)
        else:
            at = start
            while at < len(lines) and not _HEADING.fullmatch(lines[at]):
                at += 1
            content = "\n".join(lines[start:at]).strip()
        yield heading[1].lower(), content


def _skip_blank(lines: list[str], at: int) -> int:
    while at < len(lines) and not lines[at].strip():
        at += 1
    return at
