"""What is to be done about one session: a function of what is here, what is there, and what was seen last.

Knows nothing of disks and remotes. No clock has a say.
"""

from __future__ import annotations

from enum import StrEnum

from satchel.cache_store.manifest import Head
from satchel.sync.entries import Named
from satchel.sync.records import SyncRecord


class Step(StrEnum):
    """What is to be done; the values are how it is told."""

    NOTHING = "in sync"
    NOTE = "in sync, to be noted"  # the entry is new here, and what it says is not
    SEND = "to be sent"
    FETCH = "to be fetched"
    FETCH_STATE = "its context is not here yet"
    FETCH_DROPPED = "its context was dropped here"
    COMPARE = "changed here and there"
    SEND_REMOVAL = "removed here"
    REMOVE = "removed there"
    REMOVED_AND_CHANGED = "removed there and changed here"
    RETURNED = "removed here and changed there"  # and so fetched again
    VANISHED = "gone there, without having been removed"
    ROLLED_BACK = "an older state than was seen is there"


def decide(local: Head | None, seen: SyncRecord | None, there: Named | None, removed_here: bool) -> Step:
    """The next step for a session.

    Args:
        local: what is here.
        seen: the newest entry that this machine saw or made, and which manifest of here says the same.
        there: the newest entry now.
        removed_here: the user has removed the session here since.
    """
    if there is None:
        if local is None:
            return Step.NOTHING
        return Step.VANISHED if seen and seen.manifest else Step.SEND
    if seen and there.entry.number < seen.entry.number:
        return Step.ROLLED_BACK
    same_there = seen is not None and seen.named == there
    # Whoever made it knew what was here when `seen` was.
    follows = seen is not None and seen.named.id in there.entry.supersedes
    same_here = seen is not None and local is not None and seen.manifest == local.manifest
    if there.entry.head is None:
        if local is None:
            return Step.NOTHING if same_there else Step.NOTE
        known = (same_here and (same_there or follows)) or local.manifest == there.entry.removed
        return Step.REMOVE if known else Step.REMOVED_AND_CHANGED
    if local is None:
        if removed_here:
            return Step.SEND_REMOVAL if same_there else Step.RETURNED
        return Step.FETCH
    if same_here and same_there:
        state = seen.state if seen else "here"
        return {"here": Step.NOTHING, "missing": Step.FETCH_STATE, "dropped": Step.FETCH_DROPPED}[state]
    if local.manifest == there.entry.manifest:
        return Step.NOTE
    if same_there:
        return Step.SEND
    return Step.FETCH if same_here and follows else Step.COMPARE
