"""One pass over the sessions of a store and of a remote. What is done about each is decided in `decide`."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from enum import StrEnum
from functools import cached_property, partial
from typing import TYPE_CHECKING

from satchel.cache_store.local import HeadMovedError, next_generation
from satchel.cache_store.maintenance import delete_unused
from satchel.cache_store.manifest import Head, Manifest, encode_manifest
from satchel.cache_store.uses import SessionUses, session_uses
from satchel.errors import DamagedError, NotFoundError, SatchelError, UsageError
from satchel.sync.decide import Step, decide
from satchel.sync.entries import Named, Tips
from satchel.sync.forks import Forks
from satchel.sync.incoming import install
from satchel.sync.ledger import FAULTS, Ledger, LostRaceError
from satchel.sync.notes import Notes
from satchel.sync.overview import find_session, newest_first
from satchel.sync.records import State
from satchel.sync.report import SessionStatus, SyncReport
from satchel.sync.transfer import RemoteObjects, Transfer
from satchel.sync.versions import Fetched, Sent, Versions
from satchel.sync.words import Relation, Words, relation

if TYPE_CHECKING:
    from satchel.sync.syncer import Syncer

MAX_ROUNDS = 8  # of one session that changes here or there while it is looked at


class Direction(StrEnum):
    """Which way sessions go. One that has changed here and there goes both ways in any case."""

    BOTH = "both"
    PUSH = "push"
    PULL = "pull"


class Pass:
    """Looks at all that is here and there, then takes session by session; options are as of `Syncer`."""

    def __init__(
        self,
        syncer: Syncer,
        direction: Direction,
        *,
        fetch_state: bool = True,
        fetch_dropped: bool = False,
        accept_older: bool = False,
        again: bool = False,
        report: SyncReport | None = None,
    ) -> None:
        self._store, self._records = syncer.store, syncer.records
        self._pushes, self._pulls = direction is not Direction.PULL, direction is not Direction.PUSH
        self._fetch_state, self._fetch_dropped = fetch_state, fetch_dropped
        self._accept_older, self._again = accept_older, again
        found = filter(None, map(self._records.get, self._records.session_ids()))
        self._known = {record.session_id: record for record in found}
        self._ledger = Ledger(syncer.remote, syncer.keys, self._known, syncer.exclusive)
        syncer.check_place(not self._ledger.is_empty)
        self.report = SyncReport() if report is None else report
        self._transfer = Transfer(
            self._store, RemoteObjects(syncer.remote, syncer.keys), self.report, again, syncer.progress
        )
        self._versions = Versions(self._store, self._transfer)
        self._notes = Notes(self._store, self._records, self._ledger, self._known, self.report)
        self._forks = Forks(self._store, self._versions, self._notes, fetch_state)
        self._used: list[SessionUses] = []  # by sessions before they were changed

    def run(self, only: Collection[str] | None, first: str | None = None) -> None:
        """Sync the sessions `only`, beginning with `first`; `report` says what was done."""
        ids = newest_first(self._store, self._records, self._ledger)
        if only is None:
            self.report.faults += [err.one_line() for err in self._ledger.unreadable(ids).values()]
        ids = [each for each in ids if only is None or each in only]
        # What the remote does not know yet comes last: of two sessions of one name, it gets another.
        ids.sort(key=lambda each: (each != first, not self._ledger.names(each)))
        try:
            while ids:
                for session_id in ids:
                    with self._notes.noting_faults(session_id):
                        self._session(session_id)
                ids, self._notes.to_send = self._notes.to_send, []
            for session_id in dict.fromkeys(self._forks.several) if self._pushes else ():
                with self._notes.noting_faults(session_id):
                    self._merge(session_id)
        finally:
            delete_unused(self._store, *self._used)

    def find(self, wanted: str | None) -> str | None:
        """As `find_session`."""
        return find_session(self._store, self._ledger, wanted)

    def status(self) -> list[SessionStatus]:
        """How each session stands, newest first, and entries that cannot be read."""
        found, ids = [], newest_first(self._store, self._records, self._ledger)
        for session_id in ids:
            try:
                local = self._store.head(session_id)
                newest = self._tips(session_id, local)
                step = self._step(session_id, local, newest)
                step = Step.NOTHING if step is Step.NOTE else step  # which is all that a user need know
            except FAULTS as err:
                found.append(SessionStatus(session_id, self._notes.name(session_id), err.one_line(), None, 0))
                continue
            entry = newest.newest.entry if newest else None
            head = local or (entry.head if entry else None)
            if head or step is not Step.NOTHING:
                name = head.name if head else self._notes.name(session_id)
                found.append(SessionStatus(session_id, name, step.value, head, entry.number if entry else 0))
        unreadable = self._ledger.unreadable(ids).values()
        return found + [SessionStatus("", "?", err.one_line(), None, 0) for err in unreadable]

    # -- one session ---------------------------------------------------------------------------------------

    def _session(self, session_id: str) -> None:
        for _ in range(MAX_ROUNDS):
            local = self._store.head(session_id)
            newest = self._tips(session_id, local)
            self._notes.forget_old_removal(session_id, local)
            handled = self._forks.keep_others(session_id, newest, local) if newest else frozenset()
            step = self._step(session_id, local, newest)
            there = newest.newest if newest else None
            try:
                self._take(session_id, step, local, there, handled)
                return
            except NotFoundError:
                if not self._has_changed(session_id, local, there):
                    raise
            except (HeadMovedError, LostRaceError):
                pass
            self._ledger.look_again(session_id)
        self._notes.fault(session_id, "it keeps changing while it is synced: try again when it is at rest")

    def _tips(self, session_id: str, local: Head | None) -> Tips | None:
        """As of `Ledger`; None, too, where the newest entry is damaged, and what is here is to replace it."""
        try:
            newest = self._ledger.tips(session_id)
        except DamagedError:
            if local and self._again:
                return None
            raise
        return self._forks.with_the_longest(session_id, newest) if newest and newest.others else newest

    def _step(self, session_id: str, local: Head | None, newest: Tips | None) -> Step:
        # The note of a removal is read each time: it may be new.
        removed = local is None and self._records.removed_ns(session_id) is not None
        return decide(local, self._known.get(session_id), newest.newest if newest else None, removed)

    def _take(
        self, session_id: str, step: Step, local: Head | None, there: Named | None, handled: frozenset[str]
    ) -> None:
        """
        Args:
            handled: as for `Ledger.put_next`.

        Raises:
            HeadMovedError, LostRaceError: the session has changed here or there since it was looked at.
        """
        match step, local, there:
            case ((Step.NOTHING | Step.NOTE), Head(), _) if self._again:
                self._send(session_id, local, there, handled)
            case Step.NOTHING, _, _:
                self._notes.nothing_new(session_id, local, there)
            case Step.NOTE, _, Named():
                self._notes.say_the_same(there, local)
            case Step.SEND, Head(), _ if self._pushes:
                self._send(session_id, local, there, handled)
            case Step.VANISHED, Head(), _ if self._again and self._ledger.names(session_id):
                self._send(session_id, local, None, handled)  # its newest entry is damaged
            case Step.VANISHED, _, _:
                again = local if self._pushes else None
                then = "; it is sent again" if again else ""
                self._notes.fault(session_id, f"the remote has lost it{then}")
                if again:
                    self._send(session_id, again, None, handled)
            case Step.FETCH, _, Named() if self._pulls:
                self._fetch(session_id, local, there)
            case Step.RETURNED, None, Named() if self._pulls:
                here = self._fetch(session_id, None, there)
                self._records.forget_removal(session_id)
                line = f"{here.name!r} was removed here, but has changed elsewhere: it is back"
                self.report.notices.append(line)
            case Step.FETCH_STATE, Head(), Named() if self._pulls and self._fetch_state:
                self._compare(session_id, local, there, handled)
            case Step.FETCH_DROPPED, Head(), Named() if self._pulls and self._fetch_dropped:
                self._compare(session_id, local, there, handled)
            case Step.COMPARE, Head(), Named():
                self._compare(session_id, local, there, handled)
            case Step.ROLLED_BACK, _, Named():
                self._rolled_back(session_id, local, there, handled)
            case Step.SEND_REMOVAL, _, Named() if self._pushes:
                name, removed = self._notes.name(session_id), self._known[session_id].entry.manifest
                self._put_entry(session_id, None, there, handled, None, removed=removed)
                self._records.forget_removal(session_id)
                self.report.removed.append(name)
            case Step.REMOVE, Head(), Named() if self._pulls:
                self._remove(local, there)
            case Step.REMOVED_AND_CHANGED, Head(), Named() if self._pulls:
                self._remove_or_fork(local, there)

    def _rolled_back(
        self, session_id: str, local: Head | None, there: Named, handled: frozenset[str]
    ) -> None:
        if not local and there.entry.head and self._accept_older:
            self._fetch(session_id, None, there)
            return
        older, seen = there.entry.number, self._known[session_id].entry.number
        line = f"the remote went back to an older state of it ({older}; this machine has seen {seen})"
        if not local and there.entry.head:
            line += ": `satchel sync pull --accept-older` takes that"
        self._notes.fault(session_id, line)
        if local and there.entry.manifest and self._versions.manifest(there.entry.manifest):
            self._compare(session_id, local, there, handled, rather_ours=True)
        elif local and self._pushes:
            self._send(session_id, local, there, handled)

    # -- to the remote -------------------------------------------------------------------------------------

    def _send(self, session_id: str, local: Head, there: Named | None, handled: frozenset[str]) -> None:
        manifest, record = self._store.get_manifest(local.manifest), self._known.get(session_id)
        base_id = there.entry.manifest if there else None
        base = self._versions.manifest(base_id) if base_id else None
        if not (there and base and self._lacks_state_of(manifest, base)):
            needed = self._needed
            if base and not (record and record.named == there and record.state == "here" and not self._again):
                # Whether the remote still has what it is said to is not known here.
                needed, base = needed | {ref.sha256 for ref in base.refs}, None
            sent = self._versions.send(
                local, base, needed.__contains__, partial(self._notes.fault, session_id)
            )
            self._put_entry(session_id, sent, there, handled, local)
        elif local.name == base.name:
            self._notes.say_the_same(there, local, "dropped")
            return
        else:  # only its name is new: the remote keeps the state
            renamed = base.model_copy(
                update={"name": local.name, "generation": next_generation(base), "parent": base_id}
            )
            sent = self._versions.send_as(renamed, encode_manifest(renamed), base, self._needed.__contains__)
            self._put_entry(session_id, sent, there, handled, local, state="dropped")
        self.report.pushed.append(local.name)

    def _lacks_state_of(self, manifest: Manifest, base: Manifest) -> bool:
        """Whether `manifest` says what `base` does, without the state that `base` has."""
        if manifest.tail is not None or base.tail is None or manifest.messages != base.messages:
            return False  # to go back is to say nothing, and yet a change
        theirs = Words.of(base, self._versions.manifest)
        return relation(self._versions.words(manifest), theirs) is Relation.SAME

    @cached_property
    def _needed(self) -> frozenset[str]:
        """Blocks of other sessions that are in the remote, and stay there as long as those do."""
        needed: set[str] = set()
        for session_id, record in self._known.items():
            if record.manifest and record.state == "here" and record.name in self._ledger.names(session_id):
                with contextlib.suppress(SatchelError):
                    needed |= {ref.sha256 for ref in self._store.get_manifest(record.manifest).blocks}
        return frozenset(needed)

    def _put_entry(
        self,
        session_id: str,
        sent: Sent | None,
        there: Named | None,
        handled: frozenset[str],
        local: Head | None,
        *,
        removed: str | None = None,
        state: State = "here",
    ) -> None:
        """Make the session's next entry, and remember that it says what `local` does.

        Raises:
            LostRaceError: another machine was faster.
        """

        def made(entry: Named) -> None:
            if sent:
                self._versions.send_again(sent)
            self._notes.say_the_same(entry, local, state)
            if self._again:
                self._ledger.delete_damaged(session_id)

        self._ledger.put_next(session_id, sent.head if sent else None, there, handled, removed, made)

    # -- from the remote -----------------------------------------------------------------------------------

    def _fetch(
        self,
        session_id: str,
        local: Head | None,
        there: Named,
        fetched: Fetched | None = None,
        fork_of: Manifest | None = None,
    ) -> Head:
        """Make the session here what it is in the remote; its head here then.

        Args:
            fetched: its manifests, if they are here already.
            fork_of: what is here, if that is to go on as a fork.
        """
        fetched = fetched or self._fetch_manifests(session_id, local, there)
        faults: list[str] = []
        whole = not fetched.has_state or (
            self._fetch_state and self._versions.fetch_state(fetched, faults.append)
        )
        self._note_faults(session_id, local, there, faults)
        self._transfer.tell_done("fetching", fetched.manifest)  # the last moment to stop it
        self._note_uses(session_id)
        # Once all is here, and while nobody can go on with what was here: one fork of that is enough.
        with self._store.locked():
            if local and fork_of:
                self._check_here(local)
                self._forks.keep(local, fork_of, "has changed on another machine, too")
            installed = install(self._store, self._versions, fetched, whole, local, self._known)
        self._notes.say_the_same(there, installed.head, "here" if whole and not faults else "missing")
        self._notes.to_send += filter(None, [installed.renamed])
        self.report.notices += filter(None, [installed.notice])
        if local is None or local.manifest != installed.here.manifest:
            self.report.pulled.append(installed.here.name)
        return installed.here

    def _fetch_manifests(self, session_id: str, local: Head | None, there: Named) -> Fetched:
        assert there.entry.head is not None
        faults: list[str] = []
        fetched = self._versions.fetch(there.entry.head, faults.append)
        self._note_faults(session_id, local, there, faults)
        return fetched

    def _note_faults(
        self, session_id: str, local: Head | None, there: Named, faults: Collection[str]
    ) -> None:
        if faults and self._has_changed(session_id, local, there):
            raise LostRaceError
        for line in faults:
            self._notes.fault(session_id, line)

    def _has_changed(self, session_id: str, local: Head | None, there: Named | None) -> bool:
        """Whether a session goes on, here or there: what is missing of it may have been collected, then."""
        self._ledger.look_again(session_id)
        newest = self._tips(session_id, local)
        return self._store.head(session_id) != local or (newest.newest if newest else None) != there

    def _remove(self, local: Head, there: Named) -> None:
        self._drop(local, there)
        self.report.removed.append(local.name)
        self.report.notices.append(f"{local.name!r} was removed on another machine, and so it is here")

    def _remove_or_fork(self, local: Head, there: Named) -> None:
        """The session was removed there. What was said here alone goes on as a fork."""
        ours, removed = self._store.get_manifest(local.manifest), there.entry.removed
        theirs = self._versions.manifest(removed) if removed else None
        if theirs and self._versions.words(theirs).has_all_of(self._versions.words(ours)):
            self._remove(local, there)
            return
        with self._store.locked():
            self._check_here(local)
            self._forks.keep(local, ours, "was removed on another machine")
            self._drop(local, there)

    def _drop(self, local: Head, there: Named) -> None:
        self._note_uses(local.session_id)
        self._store.delete_head(local.session_id, local.manifest)
        self._notes.say_the_same(there, None)

    def _check_here(self, local: Head) -> None:
        """
        Raises:
            HeadMovedError: the session is not at `local` any more.
        """
        if (current := self._store.head(local.session_id)) != local:
            raise HeadMovedError(local.name, current)

    def _note_uses(self, session_id: str) -> None:
        """Note what the session uses, if that is known: what nobody uses in the end is deleted."""
        with contextlib.suppress(SatchelError):
            if uses := session_uses(self._store, session_id):
                self._used.append(uses)

    # -- both ways -----------------------------------------------------------------------------------------

    def _compare(
        self,
        session_id: str,
        local: Head,
        there: Named,
        handled: frozenset[str],
        rather_ours: bool = False,
    ) -> None:
        """Whichever has all that was said counts; where each has something of its own, ours is forked.

        Args:
            handled: as for `Ledger.put_next`.
            rather_ours: if both say the same.
        """
        ours = self._store.get_manifest(local.manifest)
        theirs = self._fetch_manifests(session_id, local, there)
        found = relation(self._versions.words(ours), theirs.words)
        rather_ours |= ours.tail is not None and theirs.manifest.tail is None
        before = self._known.get(session_id)
        name = before.entry.head.name if before and before.entry.head else None
        if found is Relation.OURS_HAS_ALL or (found is Relation.SAME and rather_ours):
            if self._pushes:
                if local.name == name != theirs.manifest.name and not self._went_back(there):
                    local = self._renamed(local, theirs.manifest.name)
                self._send(session_id, local, there, handled)
            return
        if found is Relation.BOTH_HAVE_OWN:
            self._fetch(session_id, local, there, theirs, fork_of=ours)
            return
        here = self._fetch(session_id, local, there, theirs)
        if local.name == here.name:
            return
        # A name that only this machine has given stands.
        if here.name == name and self._renamed(here, local.name) != here:
            self._notes.to_send.append(session_id)
        else:
            self.report.notices.append(f"{local.name!r} is called {here.name!r} now, as on another machine")

    def _renamed(self, head: Head, name: str) -> Head:
        """The session's head with another name, unless another session has that now."""
        with contextlib.suppress(UsageError):
            return self._store.rename(head.session_id, name)
        return head

    def _went_back(self, there: Named) -> bool:
        record = self._known.get(there.entry.session_id)
        return record is not None and there.entry.number < record.entry.number

    def _merge(self, session_id: str) -> None:
        """Say in the remote that the newest entry stands for those whose words are in forks now."""
        self._ledger.look_again(session_id)
        local, record = self._store.head(session_id), self._known.get(session_id)
        newest = self._tips(session_id, local)
        if not (newest and record and record.named == newest.newest):
            return  # the next sync will
        handled = self._forks.keep_others(session_id, newest, local)
        if session_id not in self._forks.mergeable or record.manifest != (local.manifest if local else None):
            return
        entry = newest.newest.entry
        sent = Sent(entry.head) if entry.head else None
        with contextlib.suppress(LostRaceError):
            self._put_entry(
                session_id,
                sent,
                newest.newest,
                handled,
                local,
                removed=entry.removed,
                state=record.state,
            )
