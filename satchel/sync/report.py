"""What a sync did, and how sessions stand. Knows nothing of how."""

from __future__ import annotations

from dataclasses import dataclass, field

from satchel.cache_store.manifest import Head
from satchel.config.units import size_text

MAX_NAMED = 3  # sessions in a line


@dataclass(frozen=True, slots=True)
class Fork:
    """What this machine had of a session that had changed elsewhere, too, goes on as another session."""

    session_id: str
    name: str
    fork_id: str
    fork_name: str


@dataclass(slots=True)
class SyncReport:
    """What was done.

    Attributes:
        pushed, pulled, removed: names of sessions.
        forks: see `Fork`.
        notices: lines for the user: of forks, of names, of what was removed or came back.
        faults: what is damaged, foreign, missing or older than it was; a line each.
        sent_bytes, received_bytes: of objects.
    """

    pushed: list[str] = field(default_factory=list)
    pulled: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    forks: list[Fork] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    sent_bytes: int = 0
    received_bytes: int = 0

    def summary(self) -> str:
        """What went which way, such as `sent bruno, notes (12.3 MB); received 7 sessions (3.4 MB)`."""
        parts: list[str] = []
        for verb, names, size in (
            ("sent", self.pushed, f" ({size_text(self.sent_bytes)})"),
            ("received", self.pulled, f" ({size_text(self.received_bytes)})"),
            ("removed", self.removed, ""),
        ):
            if names:
                few = len(names) <= MAX_NAMED
                parts.append(f"{verb} {', '.join(names) if few else f'{len(names)} sessions'}{size}")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """How a session stands.

    Attributes:
        session_id: its id; "" where the remote's entry of it cannot be read.
        name: its name here, else there.
        state: a `Step`, or what is wrong.
        head: the newest that is known of it; None of a removed one.
        number: of its newest entry in the remote; 0 if it is not there.
    """

    session_id: str
    name: str
    state: str
    head: Head | None
    number: int
