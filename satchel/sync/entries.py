"""What a remote says of each session: a chain of numbered entries, of which the newest counts.

An entry is an object that never changes. A machine makes the next one by creating it: of several that try,
one succeeds, which is all the compare-and-swap that sync needs. Where a remote lets several create an object
of one name (some buckets, any synced folder), names get a random end; several newest entries can then stand
side by side, and whoever sees that makes forks of all but one.

Knows nothing of encryption or of this machine's store.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from satchel.cache_store.manifest import MAX_GENERATION, Head, SessionId, Sha256
from satchel.cache_store.record import Record
from satchel.cache_store.snapshot import canonical_json
from satchel.errors import DamagedError, SatchelError, VersionError
from satchel.remotes.remote import Listed

HEADS, BLOCKS, MANIFESTS = "v1/heads/", "v1/blocks/", "v1/manifests/"
MAX_ENTRY_BYTES = 64 << 10
MAX_SUPERSEDED = 64  # named by an entry: its writer deletes them, and may be killed before that

_NAME = re.compile("[0-9a-f]{16}(-[0-9a-f]{16})?")

EntryName = Annotated[str, Field(pattern=rf"^{_NAME.pattern}$")]
EntryId = Annotated[str, Field(pattern=rf"^{_NAME.pattern}\.[0-9a-f]{{16}}$")]


class Entry(Record):
    """What became of a session.

    Attributes:
        session_id: the session.
        number: from 1 on; it orders the entries of a session.
        head: what is there now; None if the session was removed.
        removed: the manifest that was current when it was.
        supersedes: ids of earlier entries, the newest last.
    """

    format_version: Literal[1] = 1
    session_id: SessionId
    number: Annotated[int, Field(ge=1, le=MAX_GENERATION)]
    head: Head | None
    removed: Sha256 | None = None
    supersedes: Annotated[tuple[EntryId, ...], Field(max_length=MAX_SUPERSEDED, strict=False)] = ()

    @property
    def manifest(self) -> str | None:
        return self.head.manifest if self.head else None


@dataclass(frozen=True, slots=True)
class Named:
    """An entry and the last part of its object's name."""

    name: str
    entry: Entry

    @property
    def id(self) -> str:
        """Its name and a digest of what it says: in a remote that went back, a name may be used again."""
        return f"{self.name}.{hashlib.sha256(encode_entry(self.entry)).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class Tips:
    """The entries of a session that no other one supersedes.

    Attributes:
        newest: the one that counts.
        others: made by machines that did not know of it.
        unreadable: what is wrong with entries of smaller numbers.
    """

    newest: Named
    others: tuple[Named, ...] = ()
    unreadable: tuple[SatchelError, ...] = ()


def encode_entry(entry: Entry) -> bytes:
    """The stored bytes.

    Raises:
        SatchelError: too large, which its readers would refuse.
    """
    data = canonical_json({"format_version": entry.format_version} | entry.stored())
    if len(data) > MAX_ENTRY_BYTES:
        raise SatchelError(f"an entry of {len(data)} bytes is beyond what sync takes")
    return data


def decode_entry(data: bytes, name: str) -> Entry:
    """
    Raises:
        DamagedError: it is not the entry of this name.
        VersionError: another version of Satchel wrote it.
    """
    try:
        entry = Entry.parse(data)
    except DamagedError as err:
        raise DamagedError(f"entry {name} is damaged: {err}") from err
    except VersionError as err:
        raise VersionError(f"entry {name} cannot be read: {err}") from err
    if entry.number != number_of(name) or (entry.head and entry.head.session_id != entry.session_id):
        raise DamagedError(f"entry {name} is another one's")
    return entry


def entry_name(number: int, exclusive: bool) -> str:
    """The last part of the name of entry `number`.

    Args:
        exclusive: of several machines that create an object of one name, one succeeds.
    """
    return f"{number:016x}" if exclusive else f"{number:016x}-{secrets.token_hex(8)}"


def number_of(name: str) -> int:
    return int(name[:16], 16)


def by_session(listed: Iterable[Listed]) -> dict[str, dict[str, str]]:
    """Each session's entries, by its keyed name: their last parts in order, and the tags of their objects.

    Other names are passed over.
    """
    found: dict[str, dict[str, str]] = {}
    for each in sorted(listed, key=lambda each: each.name):
        key, _, last = each.name.removeprefix(HEADS).partition("/")
        if _NAME.fullmatch(last) and 1 <= number_of(last) <= MAX_GENERATION:
            found.setdefault(key, {})[last] = each.tag
    return found


def unread(names: Collection[str], seen: Collection[str]) -> list[str]:
    """Those of a session's entries to be read: the newest, and what is not known to be superseded.

    Args:
        names: in order.
        seen: names that this machine knows, all but the newest of them superseded.
    """
    known = set(seen)
    return [name for name in names if name not in known]


def tips(found: Mapping[str, Entry]) -> Tips:
    """Which of a session's entries, by their names, count. There must be one."""
    named = [Named(name, entry) for name, entry in found.items()]
    superseded = {each for other in named for each in other.entry.supersedes}
    # What is older than the oldest that a full list names was in it once.
    oldest = max(map(_oldest, named))
    standing = [each for each in named if each.id not in superseded and not _is_before(each, oldest)] or named
    newest, *others = sorted(standing, key=lambda each: (each.entry.number, each.name), reverse=True)
    return Tips(newest, tuple(others))


def superseding(handled: Iterable[str], before: Entry | None) -> tuple[str, ...]:
    """What the next entry supersedes: those of the ids `handled`, and what the one `before` it did."""
    return tuple(sorted({*handled, *(before.supersedes if before else ())}))[-MAX_SUPERSEDED:]


def _oldest(named: Named) -> int:
    """The smallest number that an entry supersedes, if others may have been left out; else 0."""
    supersedes = named.entry.supersedes
    return number_of(supersedes[0]) if len(supersedes) == MAX_SUPERSEDED else 0


def _is_before(named: Named, number: int) -> bool:
    """Whether an entry is of a chain, where no two have one number, and stands before that number in it."""
    return "-" not in named.name and named.entry.number < number
