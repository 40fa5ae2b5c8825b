"""Machines with a store each that share a remote, and talks on them whose state is a few numbers.

What sync does depends neither on models nor on what was said.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from test_local_store import snapshot

from satchel.cache_store.loading import load_snapshot
from satchel.cache_store.local import LocalStore
from satchel.cache_store.maintenance import prune, remove
from satchel.cache_store.manifest import Manifest, Message
from satchel.cache_store.sessions import Saved, open_session, save_snapshot
from satchel.cache_store.verify import verify
from satchel.remotes.encrypted import EncryptedRemote
from satchel.remotes.remote import Listed, Remote, Stat
from satchel.sync.keys import Keys, RootKey
from satchel.sync.records import SyncRecords
from satchel.sync.syncer import Syncer, SyncReport
from satchel.sync.transfer import Progress

Hook = Callable[[str, str, int], None]
Result = TypeVar("Result")

KEYS = Keys.of(RootKey(bytes(range(32))))
TURN_TOKENS = 10  # blocks have 8 tokens here


class Machine:
    """A store in `home`, synced with `remote`, which it encrypts."""

    def __init__(
        self,
        home: Path,
        remote: Remote,
        exclusive: bool = True,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.home = home
        self.store = LocalStore(home)
        self.remote = EncryptedRemote(remote, KEYS.objects)
        self.records = SyncRecords(home / "sync" / KEYS.id)
        self.syncer = Syncer(self.store, self.remote, KEYS, self.records, exclusive, progress)

    def say(self, name: str, *words: str) -> Saved:
        """Save a turn for each word in the session of this name, which begins if there is none."""
        saved = open_session(self.store, name) if self.has(name) else None
        for word in words:
            before = saved.manifest if saved else None
            blocks, stop = (before.blocks, before.token_count) if before else ((), 0)
            start = blocks[-1].stop if blocks else 0
            saved = save_snapshot(
                self.store,
                snapshot(start, stop + TURN_TOKENS, salt=sum(map(ord, word))),
                [*(before.messages if before else ()), Message(role="user", content=word)],
                name=name,
                model_name="embedded",
                profile_name="turbo4",
                base=saved,
            )
        assert saved is not None
        return saved

    def go_back(self, name: str, turns: int) -> Saved:
        """Go on from after the first `turns` turns; what followed is left behind."""
        saved = open_session(self.store, name)
        return save_snapshot(
            self.store,
            snapshot(0, turns * TURN_TOKENS),
            saved.manifest.messages[:turns],
            name=saved.head.name,
            model_name="embedded",
            profile_name="turbo4",
            base=saved,
            kept=(),
        )

    def archive(self, name: str) -> Saved:
        """The same words with another state, as `satchel archive` leaves them."""
        saved = open_session(self.store, name)
        return save_snapshot(
            self.store,
            snapshot(0, saved.manifest.token_count, salt=1000),
            saved.manifest.messages,
            name=saved.head.name,
            model_name="embedded",
            profile_name="turbo3",
            base=saved,
            kept=(),
            archived_from="turbo4",
        )

    def prune(self) -> None:
        """Leave all sessions their words alone."""
        prune(self.store, max_bytes=0)

    def rename(self, name: str, new_name: str) -> None:
        self.store.rename(self.store.session_id(name), new_name)

    def sync(self, **options: object) -> SyncReport:
        return self.syncer.sync(**options)  # type: ignore[arg-type]

    def remove(self, name: str) -> None:
        """As `satchel sessions rm`."""
        session_id = self.store.session_id(name)
        self.records.note_removals([session_id])
        remove(self.store, session_id)

    def has(self, name: str) -> bool:
        return name in self.names()

    def names(self) -> list[str]:
        return sorted(head.name for head in self.store.heads().heads)

    def manifest(self, name: str) -> Manifest:
        return self.store.get_manifest(self.store.find(name).manifest)

    def talks(self) -> dict[str, str]:
        """What was said, by the sessions' names."""
        return {name: " ".join(self.manifest(name).questions) for name in self.names()}

    def branches(self, name: str) -> list[str]:
        """What was said and left behind in a session."""
        left = map(self.store.get_manifest, self.manifest(name).abandoned)
        return sorted(" ".join(manifest.questions) for manifest in left)

    def faults(self) -> list[str]:
        """What is wrong in the store, every byte of which is read."""
        return [fault.line() for fault in verify(self.store, read_data=True).faults]

    def state(self, name: str) -> list[int] | None:
        """The token ids of the state, every byte of which is right; None if only the words are here."""
        whole = load_snapshot(self.store, self.manifest(name))
        return whole.token_ids.tolist() if whole else None


class Killed(BaseException):
    """The process has ended."""


class WatchedRemote:
    """A remote whose calls are noted, and met by what a test does ahead of them or after them.

    Attributes:
        calls: kind and name of each so far.
        before: called ahead of each call with its kind, name and number, from 1 on; what it raises is raised.
        after: likewise, when it is done.
    """

    def __init__(self, inner: Remote, before: Hook | None = None, after: Hook | None = None) -> None:
        self.inner = inner
        self.before, self.after = before, after
        self.calls: list[tuple[str, str]] = []
        self._one_at_a_time = threading.Lock()

    def names(self, kind: str) -> list[str]:
        return [name for each, name in self.calls if each == kind]

    def put(self, name: str, data: bytes) -> None:
        self._call("put", name, lambda: self.inner.put(name, data))

    def put_if_absent(self, name: str, data: bytes) -> bool:
        return self._call("put", name, lambda: self.inner.put_if_absent(name, data))

    def get(self, name: str, max_bytes: int) -> bytes:
        return self._call("get", name, lambda: self.inner.get(name, max_bytes))

    def stat(self, name: str) -> Stat | None:
        return self._call("stat", name, lambda: self.inner.stat(name))

    def list(self, prefix: str) -> Iterator[Listed]:
        return self._call("list", prefix, lambda: iter(tuple(self.inner.list(prefix))))

    def delete(self, name: str) -> None:
        self._call("delete", name, lambda: self.inner.delete(name))

    def _call(self, kind: str, name: str, act: Callable[[], Result]) -> Result:
        with self._one_at_a_time:
            self.calls.append((kind, name))
            number = len(self.calls)
        if self.before:
            self.before(kind, name, number)
        result = act()
        if self.after:
            self.after(kind, name, number)
        return result


def killed_at(number: int) -> Hook:
    """What ends the process at its call of this number: none comes after it."""

    def meet(kind: str, name: str, at: int) -> None:
        if at >= number:
            raise Killed

    return meet


def once(kind: str, start: str, act: Callable[[], object]) -> Hook:
    """What does `act` at the first call of this kind for a name that begins so."""
    done = False

    def meet(this: str, name: str, number: int) -> None:
        nonlocal done
        if not done and this == kind and name.startswith(start):
            done = True
            act()

    return meet


def converge(*machines: Machine, rounds: int = 4) -> None:
    """Sync all in turn until none has anything to do.

    Raises:
        AssertionError: they do not come to rest.
    """
    for _ in range(rounds):
        reports = [machine.sync() for machine in machines]
        done = [
            (report.pushed, report.pulled, report.removed, report.forks, report.faults) for report in reports
        ]
        if not any(map(any, done)):
            return
    raise AssertionError(f"they do not come to rest: {done}")
