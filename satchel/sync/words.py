"""What was said in two versions of a session, compared. Knows nothing of state or of remotes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from satchel.cache_store.manifest import Manifest, Message
from satchel.cache_store.snapshot import canonical_json

FindManifest = Callable[[str], Manifest | None]


class Relation(Enum):
    """What two versions of a session have of one another."""

    SAME = auto()
    OURS_HAS_ALL = auto()
    THEIRS_HAS_ALL = auto()
    BOTH_HAVE_OWN = auto()


@dataclass(frozen=True, slots=True)
class Words:
    """All that was said in a session.

    Attributes:
        messages: digests of the transcript's beginnings: the last stands for all of it.
        branches: digests of what was said and left behind, unless more that begins so was.
        said: of all beginnings of all of that.
    """

    messages: tuple[str, ...]
    branches: frozenset[str]
    said: frozenset[str]

    @classmethod
    def of(cls, manifest: Manifest, find: FindManifest) -> Words:
        """
        Args:
            find: an abandoned manifest by its id, or None if it cannot be read: its id stands for its words.
        """
        left = [(each, find(each)) for each in manifest.abandoned]
        branches = [_beginnings(found.messages) if found else (each,) for each, found in left]
        own = _beginnings(manifest.messages)
        inner = {*own, *(digest for branch in branches for digest in branch[:-1])}
        ends = {branch[-1] for branch in branches}
        return cls(own, frozenset(ends - inner), frozenset(inner | ends))

    def has_all_of(self, other: Words) -> bool:
        """Whether everything that was said in `other` was said here, too."""
        return other.messages[-1] in self.said and other.branches <= self.said


def relation(ours: Words, theirs: Words) -> Relation:
    if ours.has_all_of(theirs):
        return Relation.SAME if theirs.has_all_of(ours) else Relation.OURS_HAS_ALL
    return Relation.THEIRS_HAS_ALL if theirs.has_all_of(ours) else Relation.BOTH_HAVE_OWN


def _beginnings(messages: Sequence[Message]) -> tuple[str, ...]:
    """A digest for each beginning of a transcript, of the empty one first."""
    digests = [hashlib.sha256(b"satchel.words/1").hexdigest()]
    for message in messages:
        said = canonical_json([digests[-1], message.role, message.content])
        digests.append(hashlib.sha256(said).hexdigest())
    return tuple(digests)
