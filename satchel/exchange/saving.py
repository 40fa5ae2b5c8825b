"""Sessions that come from files, put into the store. Knows nothing of the files' formats."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from satchel.cache_store.figures import TurnFigures
from satchel.cache_store.local import LocalStore
from satchel.cache_store.manifest import Manifest, Message
from satchel.cache_store.names import MAX_LENGTH, name_fault, validate_name
from satchel.cache_store.sessions import save_snapshot
from satchel.cache_store.snapshot import Snapshot
from satchel.errors import DamagedError

DEFAULT_NAME = "imported"
MAX_MODEL_NAME, MAX_PROFILE_NAME = 256, 128  # characters, in a file that may come from anywhere


@dataclass(frozen=True, slots=True)
class Imported:
    """What was made: the session's name, its number of messages and of tokens that need not be read again.

    `notices` are lines for the user.
    """

    name: str
    messages: int
    tokens: int
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Wanted:
    """The name that the user wants, if any, and what a free one is made of otherwise, the best first."""

    name: str | None
    candidates: tuple[str, ...] = ()

    def name_in(self, store: LocalStore) -> str:
        """
        Raises:
            UsageError: the name breaks the rule. Whether it is taken shows when the head is written.
        """
        if self.name is not None:
            return validate_name(self.name)
        cut = (each[:MAX_LENGTH].strip() for each in (*self.candidates, DEFAULT_NAME))
        return store.free_name(next(each for each in cut if name_fault(each) is None))


def check_labels(model_name: str, profile_name: str) -> None:
    """Look at the names in a file, which lists and messages show, before a session gets them.

    Raises:
        DamagedError: one is not a short line.
    """
    model = ("model", model_name, MAX_MODEL_NAME, "--model names another")
    profile = ("KV profile", profile_name, MAX_PROFILE_NAME, "")
    for kind, text, most, hint in (model, profile):
        if len(text) > most:
            raise DamagedError(f"its {kind}'s name has {len(text)} characters, and {most} can be", hint)
        if not text.isprintable():
            raise DamagedError(f"its {kind}'s name is not a printable line", hint)


def save_copy(
    store: LocalStore,
    wanted: Wanted,
    manifest: Manifest,
    snapshot: Snapshot | None,
    *,
    model: str | None,
    refused: str,
) -> Imported:
    """A new session with the words, the state and the chain keys of `manifest`, which came from elsewhere.

    Args:
        model: the name to load its model by here; the one in `manifest` if not given.
        refused: the beginning of the message if that cannot be.

    Raises:
        DamagedError: an array's name or value is none that the store's format has.
        UsageError, SatchelError: as `save_new`.
    """
    try:
        return save_new(
            store,
            wanted,
            manifest.messages,
            snapshot,
            model_name=model or manifest.model_name,
            profile_name=manifest.profile_name,
            archived_from=manifest.archived_from,
            figures=manifest.figures,
        )
    except ValueError as err:
        raise DamagedError(f"{refused}: its arrays are no session's") from err


def save_new(
    store: LocalStore,
    wanted: Wanted,
    messages: Sequence[Message],
    snapshot: Snapshot | None,
    *,
    model_name: str,
    profile_name: str,
    archived_from: str | None = None,
    figures: Sequence[TurnFigures] = (),
) -> Imported:
    """Begin a session with these words and this state. Without one, its words are read at its first turn.

    Raises:
        UsageError: the name breaks the rule, or another session has it.
        SatchelError: the disk refused.
    """
    with store.locked():  # a name that is free now must still be when the head is written
        name = wanted.name_in(store)
        if snapshot is not None:
            save_snapshot(
                store,
                snapshot,
                messages,
                name=name,
                model_name=model_name,
                profile_name=profile_name,
                archived_from=archived_from,
                foreign=True,
                figures=figures,
            )
        else:
            manifest = Manifest(
                session_id=secrets.token_hex(16),
                name=name,
                generation=1,
                parent=None,
                created_at=datetime.now(UTC),
                model_name=model_name,
                profile_name=profile_name,
                identity={},
                messages=tuple(messages),
                blocks=(),
                tail=None,
                token_count=0,
                figures=tuple(figures),
            )
            store.commit(manifest, expected=None)
    return Imported(name, len(messages), snapshot.stop if snapshot else 0)
