"""Manifests (what one generation of a session consists of) and heads (which manifest is the newest).

Knows nothing of files: both are values that are checked when they are made and when they are read.
"""

from __future__ import annotations

import contextlib
from datetime import datetime
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, AwareDatetime, Field, model_validator
from pydantic_core import from_json

from satchel.cache_store import frame
from satchel.cache_store.figures import MAX_FIGURES, Count, TurnFigures, check_figures
from satchel.cache_store.names import name_fault
from satchel.cache_store.record import JsonObject, Record
from satchel.cache_store.snapshot import canonical_json
from satchel.errors import DamagedError, SatchelError, VersionError
from satchel.sanitize import encodable

MAX_MANIFEST_BYTES = 8 << 20  # two million tokens of text
MAX_HEAD_BYTES = 64 << 10
MAX_ABANDONED = 32
MAX_GENERATION = (1 << 53) - 1
MAX_STORED_BYTES = 1 << 52  # of a session, so that its head can count them
TITLE_LENGTH = 80  # characters


def _check_name(name: str) -> str:
    if fault := name_fault(name):
        raise ValueError(f"the name {fault}")
    return name


def _check_time(time: datetime) -> datetime:
    if not 1970 <= time.year < 9999:
        raise ValueError("a time that not every time zone has")
    return time


Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
SessionId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
SessionName = Annotated[str, AfterValidator(_check_name)]
Time = Annotated[AwareDatetime, AfterValidator(_check_time), Field(strict=False)]


class Message(Record):
    """One entry of the transcript.

    Lone surrogates, which a terminal can hand over for bytes that are not text, become question marks: a
    save must not fail on them.
    """

    role: Literal["system", "user", "assistant"]
    content: Annotated[str, AfterValidator(encodable)]


class TailRef(Record):
    """The stored object that holds the state of tokens `start` to `stop` (exclusive)."""

    sha256: Sha256
    stored_bytes: Count
    start: Count
    stop: Count

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if self.stop < self.start:
            raise ValueError(f"tokens {self.start} to {self.stop}")
        return self


class BlockRef(TailRef):
    """A block, with the chain key that stands for all tokens up to its end.

    `checkpoint`: it also holds the state, after its last token, of the layers whose state is not kept token
    by token (sliding windows, recurrent ones).
    """

    chain_key: Sha256
    checkpoint: bool = False


class Archivable(Record):
    """`archived_from` is the KV profile that the state had before it was encoded to fewer bits, if it was."""

    archived_from: Annotated[str, Field(max_length=128)] | None = None

    @property
    def archive_note(self) -> str | None:
        """A line that says so."""
        return f"archived from {self.archived_from}: lossy" if self.archived_from else None


class Manifest(Archivable):
    """One generation of a session: transcript, and where the state of its tokens is stored.

    `parent` is the id of the manifest this one was made from; for a fork it belongs to another session.
    `tail` is None when only the transcript was saved. `abandoned` are ids of manifests of the same session
    whose words are not the beginning of this one's, such as what followed the turn that the user went back
    to; the newest is last. `foreign`: the state came with a file from elsewhere, and is not for others.
    `figures` are those of its turns, as far as they are known.
    """

    format_version: Literal[1] = 1
    session_id: SessionId
    name: SessionName
    generation: Annotated[int, Field(ge=1, le=MAX_GENERATION)]
    parent: Sha256 | None
    created_at: Time
    model_name: str
    profile_name: str
    identity: JsonObject
    messages: tuple[Message, ...] = Field(strict=False)
    blocks: tuple[BlockRef, ...] = Field(strict=False)
    tail: TailRef | None
    token_count: Count
    foreign: bool = False
    abandoned: Annotated[tuple[Sha256, ...], Field(max_length=MAX_ABANDONED, strict=False)] = ()
    figures: Annotated[tuple[TurnFigures, ...], Field(max_length=MAX_FIGURES, strict=False)] = ()

    @model_validator(mode="after")
    def _check_ranges(self) -> Self:
        refs = self.refs
        for before, after in pairwise(refs):
            if before.stop != after.start:
                raise ValueError(f"a block ends at token {before.stop} and the next starts at {after.start}")
        if sum(ref.stored_bytes for ref in refs) >= MAX_STORED_BYTES:
            raise ValueError("its objects are larger than any disk")
        if refs and refs[0].start != 0:
            raise ValueError(f"the first block starts at token {refs[0].start}")
        if self.token_count != (refs[-1].stop if refs else 0):
            raise ValueError(f"{self.token_count} tokens are counted and the blocks hold another number")
        check_figures(self.figures, len(self.questions))
        return self

    @property
    def refs(self) -> tuple[TailRef, ...]:
        """All objects of its state: the blocks, and the tail."""
        return (*self.blocks, self.tail) if self.tail else self.blocks

    @property
    def questions(self) -> list[str]:
        """What the user said, turn by turn."""
        return [message.content for message in self.messages if message.role == "user"]

    @property
    def is_for_others(self) -> bool:
        """Whether other sessions may take its blocks: what reading gives is there, and it was read here."""
        return not (self.archived_from or self.foreign)

    def words_alone(self) -> Manifest:
        """The same generation with its transcript, and without its state and what is said of that."""
        no_state = {"blocks": (), "tail": None, "token_count": 0, "archived_from": None, "foreign": False}
        return self.model_copy(update=no_state)


class Head(Archivable):
    """What a list of sessions shows, and the id of the newest manifest. `stored_bytes` counts everything."""

    session_id: SessionId
    name: SessionName
    manifest: Sha256
    generation: Annotated[int, Field(ge=1, le=MAX_GENERATION)]
    updated_at: Time
    model_name: str
    profile_name: str
    turns: Count
    token_count: Count
    stored_bytes: Count
    title: Annotated[str, Field(max_length=TITLE_LENGTH)]

    @classmethod
    def of(cls, manifest: Manifest, stored: bytes) -> Self:
        """The head that names `manifest`, whose encoded bytes are `stored`."""
        questions = manifest.questions
        return cls(
            session_id=manifest.session_id,
            name=manifest.name,
            manifest=frame.object_id(stored),
            generation=manifest.generation,
            updated_at=manifest.created_at,
            model_name=manifest.model_name,
            profile_name=manifest.profile_name,
            archived_from=manifest.archived_from,
            turns=len(questions),
            token_count=manifest.token_count,
            stored_bytes=len(stored) + sum(ref.stored_bytes for ref in manifest.refs),
            title=title_of(questions[0]) if questions else "",
        )


def encode_manifest(manifest: Manifest) -> bytes:
    """The stored bytes, whose SHA-256 is the manifest's id.

    Raises:
        SatchelError: too large for the store.
    """
    return frame.compress(
        canonical_json({"format_version": manifest.format_version} | manifest.stored()), MAX_MANIFEST_BYTES
    )


def decode_manifest(data: bytes) -> Manifest:
    """
    Raises:
        DamagedError: not a whole, consistent manifest of this format; names it.
        VersionError: of another format, or with fields that this version does not know; names it.
    """
    try:
        content = frame.decompress(data, MAX_MANIFEST_BYTES)
        with contextlib.suppress(ValueError):
            check_format(from_json(content))
        return Manifest.parse(content)
    except DamagedError as err:
        raise DamagedError(f"manifest {frame.object_id(data)[:12]} is damaged: {err}") from err
    except VersionError as err:
        raise VersionError(f"manifest {frame.object_id(data)[:12]} cannot be read: {err}") from err


def check_format(value: object) -> None:
    """Look at a manifest, as JSON, before its fields are: those of another format are others.

    Raises:
        VersionError: it is of another format.
    """
    version = value.get("format_version") if isinstance(value, dict) else None
    if type(version) is int and version != 1:
        raise VersionError(f"it was saved by another version of Satchel (format {version}, not 1)")


def encode_head(head: Head) -> bytes:
    """The stored bytes.

    Raises:
        SatchelError: too large for the store, which would not read it again.
    """
    data = canonical_json(head.stored()) + b"\n"
    if len(data) > MAX_HEAD_BYTES:
        raise SatchelError(f"a head of {len(data)} bytes is beyond what the store takes")
    return data


def decode_head(data: bytes, session_id: str) -> Head:
    """
    Raises:
        DamagedError: not the head of this session.
    """
    try:
        head = Head.parse(data)
    except DamagedError as err:
        raise DamagedError(f"the head of session {session_id[:12]} is damaged: {err}") from err
    except VersionError as err:
        raise VersionError(f"the head of session {session_id[:12]} cannot be read: {err}") from err
    if head.session_id != session_id:
        raise DamagedError(f"the head of session {session_id[:12]} belongs to {head.session_id[:12]}")
    return head


def title_of(question: str) -> str:
    """The start of a question's first paragraph, in one printable line."""
    question = question.strip().partition("\n\n")[0]
    words = "".join(char if char.isprintable() else " " for char in question[: 4 * TITLE_LENGTH]).split()
    line = " ".join(words)
    return line if len(line) <= TITLE_LENGTH else line[: TITLE_LENGTH - 1].rstrip() + "…"
