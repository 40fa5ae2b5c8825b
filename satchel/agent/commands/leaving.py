"""Before a talk is left: what was said is saved, or the user is told that it cannot be.

Knows nothing of where the user goes on.
"""

from __future__ import annotations

import weakref
from collections.abc import Generator
from typing import TYPE_CHECKING

from satchel.agent.events import Event, Failed, Notice
from satchel.errors import SatchelError

if TYPE_CHECKING:
    from satchel.agent.desk import Desk
    from satchel.session import Session


class Leaving:
    """Saves what an earlier save could not. Where that fails again, it asks to stay, but only once."""

    def __init__(self) -> None:
        self._told: weakref.ref[Session] | None = None

    def may_leave(self, desk: Desk) -> str | None:
        """None where the session at `desk` may be left; else the complaint, in one line."""
        session = desk.session
        told = self._told is not None and self._told() is session
        self._told = None
        if not (desk.settings.auto_save and session.unsaved):
            return None
        try:
            session.save()
        except SatchelError as err:
            if told:
                return None
            self._told = weakref.ref(session)
            return f"{err.one_line()}; what was said last is not saved: leave again to lose it"
        return None


LEAVING = Leaving()  # one for all: whom /quit has told, Ctrl-D need not tell again


def leave(desk: Desk) -> Generator[Event, None, bool]:
    """Returns whether the session at `desk` may be left."""
    complaint = LEAVING.may_leave(desk)
    yield from map(Notice, desk.session.take_notices())
    if complaint:
        yield Failed(complaint)
    return complaint is None
