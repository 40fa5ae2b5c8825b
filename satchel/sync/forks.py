"""Sessions that have gone two ways, so that both are kept. Knows nothing of when that is so by itself."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial

from satchel.cache_store.local import LocalStore
from satchel.cache_store.manifest import Head, Manifest
from satchel.cache_store.sessions import Saved, fork_id, fork_session
from satchel.sync.entries import Entry, Tips
from satchel.sync.ledger import FAULTS
from satchel.sync.notes import Notes
from satchel.sync.report import Fork
from satchel.sync.versions import Versions
from satchel.sync.words import Relation, relation


class Forks:
    """Makes forks in `store`.

    Attributes:
        several: sessions with several newest entries.
        mergeable: those of them that need one: the remote has a fork, or the newest says less than another.
    """

    def __init__(self, store: LocalStore, versions: Versions, notes: Notes, fetch_state: bool) -> None:
        self._store, self._versions, self._notes = store, versions, notes
        self._fetch_state = fetch_state
        self.several: list[str] = []
        self.mergeable: set[str] = set()

    def keep(self, local: Head, ours: Manifest, why: str) -> None:
        """Keep what is here as a session of its own."""
        fork = self._made_of(Saved(local, ours))
        made = Fork(local.session_id, local.name, fork.session_id, fork.name)
        if made in self._notes.report.forks:
            return  # and the session went on there before that was done
        self._notes.report.forks.append(made)
        line = f"{local.name!r} {why}: what was said here goes on as {fork.name!r}"
        self._notes.report.notices.append(line)

    def with_the_longest(self, session_id: str, found: Tips) -> Tips:
        """With that entry as the newest which says all that it does and more, if there is one."""
        if found.newest.entry.head is None:
            return found
        with contextlib.suppress(*FAULTS):
            said = self._versions.fetch(found.newest.entry.head, lambda line: None).words
            for other in found.others:
                if other.entry.head is None:
                    continue
                words = self._versions.fetch(other.entry.head, lambda line: None).words
                if relation(words, said) is Relation.OURS_HAS_ALL:
                    self.mergeable.add(session_id)
                    rest = [each for each in found.others if each != other]
                    return replace(found, newest=other, others=(found.newest, *rest))
        return found

    def keep_others(self, session_id: str, newest: Tips, local: Head | None) -> frozenset[str]:
        """Make forks of what machines said that did not know of the newest entry.

        Returns:
            Ids of entries whose words are elsewhere in the remote, so that they may be superseded.
        """
        for err in newest.unreadable:
            self._notes.fault(session_id, err.one_line())
        handled: set[str] = set()
        for other in newest.others:
            head = other.entry.head
            if head is None or head.manifest == newest.newest.entry.manifest:
                handled.add(other.id)
            elif fork_id(head.manifest) in self._notes.known:
                handled.add(other.id)
                self.mergeable.add(session_id)
            elif head.manifest == (local.manifest if local else None):
                continue  # what is here is compared by itself
            elif self._store.head(fork_id(head.manifest)) is None:  # else it has to be sent first
                try:
                    if self._keep_other(head, newest.newest.entry, local):
                        handled.add(other.id)
                except FAULTS as err:  # of a folder that is synced, it may not have come yet
                    self._notes.fault(session_id, f"what another machine said is not there: {err.one_line()}")
        if newest.others:
            self.several.append(session_id)
        return frozenset(handled)

    def _keep_other(self, head: Head, newest: Entry, local: Head | None) -> bool:
        """Make a fork of `head`, unless all of it was said in the newest entry; whether it was."""
        fault = partial(self._notes.fault, head.session_id)
        theirs = self._versions.fetch(head, fault)
        if newest.head and self._versions.fetch(newest.head, fault).words.has_all_of(theirs.words):
            return True
        if local:
            ours = self._versions.words(self._store.get_manifest(local.manifest))
            if ours.has_all_of(theirs.words):
                return False  # not before what is here is sent
        if self._fetch_state:
            self._versions.fetch_state(theirs, fault)
        with self._store.locked():
            self._versions.put_branches(theirs)
            fork = self._made_of(Saved(head, theirs.manifest))
        line = f"{head.name!r} has changed on two machines: one goes on as {fork.name!r}"
        self._notes.report.notices.append(line)
        return False  # not before the fork is sent

    def _made_of(self, saved: Saved) -> Head:
        """The session that `saved` has become; made if it is not here yet."""
        new_id = fork_id(saved.head.manifest)
        with self._store.locked():
            fork = self._store.head(new_id)
            if fork is None:
                name = self._store.free_name(saved.head.name)
                fork = fork_session(self._store, saved, name, new_id, saved.manifest.abandoned).head
        self._notes.to_send.append(new_id)
        return fork
