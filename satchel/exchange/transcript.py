"""The words of a session as JSON and JSON lines, and back. Knows nothing of stores, models or KV states."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic_core import from_json

from satchel.cache_store.manifest import Message
from satchel.cache_store.record import Record
from satchel.errors import DamagedError, VersionError

FORMAT, VERSION = "satchel-session", 1
ROLES = ("system", "user", "assistant")
MAX_SHOWN = 40  # characters of a foreign value in a message

ShortText = Annotated[str, Field(max_length=4096)]


@dataclass(frozen=True, slots=True)
class Transcript:
    """The words, and what is known of where they come from; "" where it is not.

    `token_ids` are what the model has read, where that is known.
    """

    messages: tuple[Message, ...]
    name: str = ""
    model: str = ""
    profile: str = ""
    date: str = ""
    token_count: int = 0
    token_ids: tuple[int, ...] = ()


class _Document(Record):
    format: Literal["satchel-session"]
    version: Literal[1]
    name: ShortText
    model: ShortText
    profile: ShortText
    date: ShortText
    messages: tuple[Message, ...] = Field(strict=False)
    token_ids: tuple[Annotated[int, Field(ge=0, lt=1 << 32)], ...] = Field(strict=False)


def to_json(transcript: Transcript) -> str:
    """One document with everything."""
    fields = {
        "format": FORMAT,
        "version": VERSION,
        "name": transcript.name,
        "model": transcript.model,
        "profile": transcript.profile,
        "date": transcript.date,
        "messages": [message.model_dump() for message in transcript.messages],
    }
    head = json.dumps(fields, indent=2, ensure_ascii=False)
    ids = ", ".join(map(str, transcript.token_ids))  # on one line, not one line each
    return f'{head[:-2]},\n  "token_ids": [{ids}]\n}}\n'


def to_jsonl(transcript: Transcript) -> str:
    """A message a line: `role` and `content`, as OpenAI's interfaces have them."""
    messages = (message.model_dump() for message in transcript.messages)
    return "".join(json.dumps(message, ensure_ascii=False) + "\n" for message in messages)


def from_json_text(text: str) -> Transcript:
    """What `to_json` wrote, a list of messages, or an object with a list of `messages`.

    Raises:
        DamagedError: none of these; says what is wrong.
        VersionError: it was exported by another version.
    """
    value = _parsed(text)
    if isinstance(value, dict) and value.get("format") == FORMAT:
        check_version(value.get("version"))
        document = _Document.parse(text.encode())
        fields = document.model_dump(exclude={"format", "version", "messages"})
        return Transcript(document.messages, token_count=len(document.token_ids), **fields)
    if isinstance(value, dict):
        value = value.get("messages")
    if not isinstance(value, list):
        raise DamagedError("it is neither a session nor a list of messages")
    return Transcript(messages_of(value))


def from_jsonl(text: str) -> Transcript:
    """A message a line, or a whole talk in the only line, as files for fine-tuning have them.

    Raises:
        DamagedError: a line is something else; says which.
        VersionError: as `from_json_text`.
    """
    lines = [line for line in text.split("\n") if line.strip()]
    values = []
    for number, line in enumerate(lines, 1):
        try:
            values.append(_parsed(line))
        except DamagedError as err:
            raise DamagedError(f"line {number}: {err}") from err
    talks = sum(isinstance(each, dict) and "messages" in each and "role" not in each for each in values)
    if talks == len(values) == 1:
        return from_json_text(lines[0])
    if talks:
        raise DamagedError(f"it holds {talks} talks in {len(lines)} lines; a session is one, in its own file")
    return Transcript(messages_of(values))


def messages_of(values: Sequence[Any]) -> tuple[Message, ...]:
    """Messages as OpenAI's interfaces have them: content is text, or a list of texts, which are joined.

    Fields beside role and content are left out.

    Raises:
        DamagedError: there are none, or one has another role, or content that is not text.
    """
    messages = []
    for number, value in enumerate(values, 1):
        role, content = (value.get("role"), value.get("content")) if isinstance(value, dict) else (None, None)
        if role not in ROLES:
            found = f"the role {role[:MAX_SHOWN]!r}" if isinstance(role, str) else "no role"
            raise DamagedError(f"message {number} has {found}; {', '.join(ROLES)} can be imported")
        content = _joined(content) if isinstance(content, list) else content
        if not isinstance(content, str):
            raise DamagedError(f"message {number}: its content is not text")
        messages.append(Message(role=role, content=content))
    if not messages:
        raise DamagedError("it holds no messages")
    return tuple(messages)


def _joined(parts: list[Any]) -> str | None:
    """The text of content in parts, or None if some are not text."""
    found = (part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text")
    texts = [text for text in found if isinstance(text, str)]
    return "".join(texts) if len(texts) == len(parts) > 0 else None


def check_version(version: object) -> None:
    """
    Raises:
        VersionError: the file is of another version of the formats that Satchel writes.
        DamagedError: it does not say of which one.
    """
    if not isinstance(version, int) or isinstance(version, bool):
        raise DamagedError(f"its version is {str(version)[:MAX_SHOWN]!r}, and should be a number")
    if version != VERSION:
        raise VersionError(f"it has version {str(version)[:MAX_SHOWN]} and this Satchel reads {VERSION}")


def _parsed(text: str) -> Any:
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as err:
        raise DamagedError(f"it is not JSON ({err})") from err
