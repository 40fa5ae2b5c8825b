"""The sessions of a store, and which of them a name or an id means. Knows nothing of files."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from satchel.cache_store.manifest import Head
from satchel.cache_store.names import name_key
from satchel.errors import DamagedError, NotFoundError, UsageError

MAX_NAMED = 3  # damaged heads in one error

_ID_START = re.compile("[0-9a-f]{4,}")


@dataclass(frozen=True, slots=True)
class HeadList:
    """The sessions, newest first, and what is wrong with each head that cannot be read, by its file's id."""

    heads: tuple[Head, ...]
    faults: Mapping[str, str]

    @property
    def damaged(self) -> tuple[str, ...]:
        """One line for each head that cannot be read."""
        return tuple(self.faults.values())

    def session_id(self, wanted: str | None) -> str:
        """The id of the session of this name (in any case) or id or start of an id; of the latest for None.

        A session whose head cannot be read is found by its id alone.

        Raises:
            NotFoundError: there is none; names what is near.
            UsageError: the start of an id fits several sessions.
            DamagedError: there is none, but one that cannot be read may be it; says what is wrong with those.
        """
        if wanted is None:
            if self.heads:
                return self.heads[0].session_id
            raise self._damaged("") if self.faults else NotFoundError("no session is saved yet")
        by_key = {name_key(head.name): head for head in reversed(self.heads)}
        if head := by_key.get(name_key(wanted)):
            return head.session_id
        if session_id := self._of_id(wanted):
            return session_id
        if self.faults:
            raise self._damaged(f" called {wanted!r}")
        if not self.heads:
            raise NotFoundError("no session is saved yet")
        near = difflib.get_close_matches(name_key(wanted), by_key, n=3)
        hint = f"near it are {', '.join(by_key[key].name for key in near)}" if near else ""
        raise NotFoundError(f"no session is called {wanted!r}", hint)

    def _of_id(self, wanted: str) -> str | None:
        names = {head.session_id: head.name for head in self.heads} | {each: each for each in self.faults}
        if wanted in names:
            return wanted
        fitting = [each for each in names if each.startswith(wanted)] if _ID_START.fullmatch(wanted) else []
        if len(fitting) > 1:
            sessions = ", ".join(names[each] for each in fitting)
            raise UsageError(f"{wanted!r} is the start of several ids", f"the sessions are {sessions}")
        return fitting[0] if fitting else None

    def _damaged(self, called: str) -> DamagedError:
        return DamagedError(f"there is no readable session{called}", "; ".join(self.damaged[:MAX_NAMED]))
