"""The sessions of a store, and which of them a name or an id means. Knows nothing of files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from satchel.cache_store.manifest import Head
from satchel.cache_store.names import name_key
from satchel.errors import DamagedError, NotFoundError, UsageError

if TYPE_CHECKING:
    from satchel.cache_store.index import StoreIndex

MAX_NAMED = 3  # damaged heads in one error

ID_LENGTH = 32

_ID_START = re.compile("[0-9a-f]{4,}")


@dataclass(frozen=True, slots=True)
class HeadList:
    """Sessions, newest first, of `total` in the store.

    `faults` says what is wrong with each head that cannot be read, by its file's id.
    """

    heads: tuple[Head, ...]
    faults: Mapping[str, str]
    total: int

    @property
    def damaged(self) -> tuple[str, ...]:
        """One line for each head that cannot be read."""
        return tuple(self.faults.values())


def find_session_id(index: StoreIndex, wanted: str | None) -> str:
    """The id of the session of this name (in any case) or id or start of an id; of the latest for None.

    A session whose head cannot be read is found by its id alone.

    Raises:
        NotFoundError: there is none; names what is near.
        UsageError: the start of an id fits several sessions.
        DamagedError: there is none, but one that cannot be read may be it; says what is wrong with those.
    """
    faults = index.faults()
    if wanted is None:
        if latest := index.heads(limit=1):
            return latest[0].session_id
        raise _damaged(faults, "") if faults else NotFoundError("no session is saved yet")
    if len(wanted) == ID_LENGTH and (session_id := _of_id(index, wanted)):
        return session_id  # whatever a session may be called
    if named := index.named(name_key(wanted)):
        return named[0].session_id
    if session_id := _of_id(index, wanted):
        return session_id
    if faults:
        raise _damaged(faults, f" called {wanted!r}")
    if not index.count():
        raise NotFoundError("no session is saved yet")
    near = [repr(each) for each in index.names_near(name_key(wanted))]
    meant = f"did you mean {' or '.join(filter(None, (', '.join(near[:-1]), near[-1])))}? " if near else ""
    raise NotFoundError(f"no session is called {wanted!r}", f"{meant}`satchel sessions list` shows all")


def _of_id(index: StoreIndex, wanted: str) -> str | None:
    fitting = dict(index.with_id_prefix(wanted))
    if wanted in fitting:
        return wanted
    if not _ID_START.fullmatch(wanted):
        return None
    if len(fitting) > 1:
        sessions = ", ".join(fitting.values())
        raise UsageError(f"{wanted!r} is the start of several ids", f"the sessions are {sessions}")
    return next(iter(fitting), None)


def _damaged(faults: Mapping[str, str], called: str) -> DamagedError:
    lines = list(faults.values())[:MAX_NAMED]
    return DamagedError(f"there is no readable session{called}", "; ".join(lines))
