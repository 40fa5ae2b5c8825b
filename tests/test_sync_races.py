"""Races, copies of a remote, and remotes that go back or break promises: no words are lost, no sync stops."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from machines import KEYS, Killed, Machine, WatchedRemote, converge, once
from s3_servers import S3Server, moto  # noqa: F401 (a fixture)
from test_sync import did, entry_of, objects, on_s3, put_back

from satchel.cache_store import manifest as manifests
from satchel.cache_store.uses import StoreUses
from satchel.errors import NetworkError
from satchel.remotes.memory import MemoryRemote
from satchel.remotes.remote import Listed, Remote
from satchel.sync import entries, versions
from satchel.sync.collect import collect_remote
from satchel.sync.entries import BLOCKS, HEADS, MANIFESTS
from satchel.sync.records import SyncRecords
from satchel.sync.syncer import Direction, Syncer, SyncReport

# What `Machine.say` saves for "a", for "a" and "b", and for "a", "b" and "c": 97 is the code of "a".
A = list(range(97, 107))
AB = [*range(97, 105), *range(106, 118)]
ABC = [*range(97, 105), *range(106, 114), *range(115, 129)]

HOUR_S = 3600.0
FIRST, EARLIER, LATER = "0" * 16, "a" * 16, "f" * 16  # random ends of entries' names

Make = Callable[..., Machine]


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed loses nothing that it wrote: what `fsync` is for need not be waited for."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def memory() -> MemoryRemote:
    return MemoryRemote()


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def make(name: str, remote: Remote, **options: object) -> Machine:
        return Machine(tmp_path / name, remote, **options)  # type: ignore[arg-type]

    return make


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the random ends of the next entries' names."""

    def ends(*values: str) -> None:
        left = iter(values)
        end = SimpleNamespace(token_hex=lambda size: next(left, None) or secrets.token_hex(size))
        monkeypatch.setattr(entries, "secrets", end)

    return ends


class Folder(MemoryRemote):
    """One machine's copy of a synced folder."""

    def copy(self) -> Folder:
        copy = Folder(self._now)
        copy._objects = dict(self._objects)
        return copy

    def go_back_to(self, before: Folder) -> None:
        self._objects = dict(before._objects)


def deliver(one: Folder, two: Folder, late: Collection[str] = ()) -> None:
    """Give each copy what the other has and it has not, but what is `late`."""
    for source, target in ((one, two), (two, one)):
        for name, found in source._objects.items():
            if name not in late:
                target._objects.setdefault(name, found)


def flip(remote: Remote, name: str) -> None:
    data = remote.get(name, 1 << 30)
    remote.put(name, data[:60] + bytes([data[60] ^ 1]) + data[61:])


def folder_of(machine: Machine, name: str) -> str:
    return HEADS + KEYS.name("session", machine.store.session_id(name)) + "/"


# A remote that goes back


def test_words_without_state_outlast_a_remote_that_went_back(make: Make) -> None:
    folder = Folder()
    one = make("one", folder)
    one.say("notes", "a", "b")
    one.sync()
    before = folder.copy()
    one.say("notes", "c")
    one.sync()
    one.prune()
    one.sync()
    folder.go_back_to(before)
    assert did(one.sync()) == {
        "pushed": ["notes"],
        "faults": ["notes: the remote went back to an older state of it (1; this machine has seen 2)"],
    }
    assert did(one.sync()) == {}
    two = make("two", folder)
    two.sync()
    assert one.talks() == two.talks() == {"notes": "a b c"}


def test_an_entry_whose_name_is_used_again_is_not_taken_for_the_one_before(make: Make) -> None:
    folder = Folder()
    one, two = make("one", folder), make("two", folder)
    one.say("notes", "a")
    converge(one, two)
    before = folder.copy()
    two.say("notes", "b")
    two.sync()
    folder.go_back_to(before)
    one.say("notes", "c")
    assert did(one.sync()) == {"pushed": ["notes"]}
    report = two.sync()
    assert (report.pulled, report.pushed, report.faults) == (["notes"], ["notes-2"], [])
    assert [each.fork_name for each in report.forks] == ["notes-2"]
    assert two.talks() == {"notes": "a c", "notes-2": "a b"}
    two.say("notes", "d")
    converge(two, one)
    assert one.talks() == two.talks() == {"notes": "a c d", "notes-2": "a b"}


def test_what_follows_an_entry_whose_name_is_used_again_does_not_follow_the_one_before(make: Make) -> None:
    folder = Folder()
    one, two = make("one", folder), make("two", folder)
    one.say("notes", "a")
    converge(one, two)
    before = folder.copy()
    two.say("notes", "b")
    two.sync()
    folder.go_back_to(before)
    for word in "cd":
        one.say("notes", word)
        one.sync()
    assert entry_of(one, "notes").endswith(f"/{3:016x}")  # which says that it supersedes entry 2
    assert [each.fork_name for each in two.sync().forks] == ["notes-2"]
    converge(one, two)
    assert one.talks() == two.talks() == {"notes": "a c d", "notes-2": "a b"}


def test_an_entry_whose_name_is_used_again_on_s3_is_not_taken_for_the_one_before(
    moto: S3Server, make: Make
) -> None:
    remote = on_s3(moto)
    one, two = make("one", remote), make("two", remote)
    one.say("notes", "a")
    converge(one, two)
    before = objects(remote)
    one.say("notes", "b")
    one.sync()
    put_back(remote, before)
    two.say("notes", "c")
    two.sync()
    assert entry_of(two, "notes").endswith(f"/{2:016x}")
    converge(one, two)
    assert one.talks() == two.talks() == {"notes": "a c", "notes-2": "a b"}
    assert one.state("notes-2") == two.state("notes-2") == AB
    assert one.faults() == two.faults() == []


def test_a_removal_does_not_remove_what_came_under_the_name_of_a_known_entry(make: Make) -> None:
    folder = Folder()
    one, two = make("one", folder), make("two", folder)
    one.say("notes", "a")
    converge(one, two)
    before = folder.copy()
    two.say("notes", "b")
    two.sync()
    folder.go_back_to(before)
    one.say("notes", "c")
    one.sync()
    two.remove("notes")
    assert did(two.sync()) == {
        "pulled": ["notes"],
        "notices": ["'notes' was removed here, but has changed elsewhere: it is back"],
    }
    converge(one, two)
    assert one.talks() == two.talks() == {"notes": "a c"}


def test_what_was_said_under_a_name_that_is_used_again_is_in_the_remote_for_a_new_machine(make: Make) -> None:
    folder = Folder()
    one, two = make("one", folder), make("two", folder)
    one.say("notes", "a")
    converge(one, two)
    before = folder.copy()
    two.say("notes", "b")
    two.sync()
    folder.go_back_to(before)
    one.say("notes", "c")
    one.sync()
    two.say("notes", "d")
    assert [each.fork_name for each in two.sync().forks] == ["notes-2"]
    three = make("three", folder)  # and the first is gone
    three.sync()
    assert three.talks() == {"notes": "a c", "notes-2": "a b d"}
    assert three.faults() == []


def test_an_old_entry_of_a_removed_session_does_not_bring_it_back(make: Make) -> None:
    folder = Folder()
    one, two = make("one", folder), make("two", folder)
    one.say("notes", "a")
    converge(one, two)
    before = folder.copy()
    for number in range(70):  # more than an entry names
        one.rename(one.names()[0], f"notes{number}")
        one.sync()
    two.sync()
    one.remove("notes69")
    converge(one, two)
    assert one.names() == two.names() == []
    deliver(folder, before)
    three = make("three", folder)
    for machine in (two, one, three):
        assert did(machine.sync()) == {}
        assert machine.names() == []


def test_two_copies_of_a_place_that_went_two_ways_are_no_faults_of_one_another(make: Make) -> None:
    place = Folder()
    one, two = make("one", place), make("two", place)
    one.say("notes", "a")
    converge(one, two)
    copy = place.copy()
    for word in "bc":
        one.say("notes", word)
        one.sync()
    # What is remembered of the copy is kept apart.
    at_the_copy = make("one", copy)
    at_the_copy.records = SyncRecords(one.home / "sync" / KEYS.id / "copy")
    at_the_copy.syncer = Syncer(one.store, at_the_copy.remote, KEYS, at_the_copy.records, exclusive=True)
    assert did(at_the_copy.sync()) == {"pushed": ["notes"]}
    assert entry_of(at_the_copy, "notes").endswith(f"/{2:016x}")
    at_the_copy.say("notes", "d")
    assert did(at_the_copy.sync()) == {"pushed": ["notes"]}
    two.say("notes", "x")
    assert did(two.sync())["pulled"] == ["notes"]
    report = one.sync()
    assert (report.pushed, report.pulled, report.faults) == (["notes"], ["notes-2"], [])
    converge(one, two)
    assert one.talks() == two.talks() == {"notes": "a b c d", "notes-2": "a x"}
    assert did(at_the_copy.sync()) == {"pushed": ["notes-2"]}
    assert did(at_the_copy.sync()) == did(one.sync()) == {}


# Removals


@pytest.mark.parametrize("order", [(EARLIER, LATER), (LATER, EARLIER)])
def test_a_removal_beside_what_it_has_not_seen_leaves_that_as_a_fork(
    make: Make, ends: Callable[..., None], order: tuple[str, str]
) -> None:
    folder = Folder()
    ends(FIRST, *order)
    one = make("one", folder, exclusive=False)
    one.say("notes", "a")
    one.sync()
    copy = folder.copy()
    two = make("two", copy, exclusive=False)
    two.sync()
    one.say("notes", "b")
    one.sync()
    two.remove("notes")
    two.sync()
    for _ in range(3):
        for machine in (one, two):
            deliver(folder, copy)
            report = machine.sync()
            assert report.faults == []
            assert "'notes' was removed on another machine, and so it is here" not in report.notices
    for machine in (one, two):
        assert list(machine.talks().values()) == ["a b"]
        assert machine.state(*machine.names()) == AB
    assert one.names() == two.names()


@pytest.mark.parametrize("order", [(EARLIER, LATER), (LATER, EARLIER)])
def test_a_removal_that_the_process_was_killed_after_removes_nothing_that_it_has_not_seen(
    memory: MemoryRemote, make: Make, ends: Callable[..., None], order: tuple[str, str]
) -> None:
    one, two = make("one", memory, exclusive=False), make("two", memory, exclusive=False)
    one.say("notes", "a")
    converge(one, two)
    two.remove("notes")
    ends(*order)

    def go_on() -> None:
        one.say("notes", "b")
        one.sync()

    def kill() -> None:
        raise Killed

    watched = WatchedRemote(memory, before=once("put", HEADS, go_on))
    killed_after = WatchedRemote(watched, after=once("put", HEADS, kill))
    with pytest.raises(Killed):
        make("two", killed_after, exclusive=False).sync()
    assert len(objects(memory, folder_of(one, "notes"))) == 3
    converge(one, two)
    assert list(one.talks().values()) == list(two.talks().values()) == ["a b"]
    assert one.state(*one.names()) == two.state(*two.names()) == AB


@pytest.mark.parametrize(("kind", "start"), [("list", HEADS), ("put", BLOCKS), ("put", HEADS)])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_session_that_is_removed_during_a_sync_is_removed_everywhere(
    memory: MemoryRemote, make: Make, kind: str, start: str, when: str
) -> None:
    one, two = make("one", memory), make("two", memory)
    one.say("notes", "a")
    converge(one, two)
    one.say("notes", "b")
    watched = WatchedRemote(memory, **{when: once(kind, start, lambda: one.remove("notes"))})
    assert make("one", watched).sync().faults == []
    converge(one, two)
    assert one.names() == two.names() == []
    assert one.records.removals() == set()


def test_a_session_that_is_removed_while_what_others_said_comes_is_back_with_a_line(
    memory: MemoryRemote, make: Make
) -> None:
    one, two = make("one", memory), make("two", memory)
    one.say("notes", "a")
    converge(one, two)
    two.say("notes", "b")
    two.sync()
    watched = WatchedRemote(memory, before=once("get", MANIFESTS, lambda: one.remove("notes")))
    assert did(make("one", watched).sync()) == {
        "pulled": ["notes"],
        "notices": ["'notes' was removed here, but has changed elsewhere: it is back"],
    }
    assert one.records.removals() == set()
    converge(one, two)
    assert one.talks() == two.talks() == {"notes": "a b"}


def test_a_removal_that_failed_is_forgotten_when_the_session_is_used_again(
    memory: MemoryRemote, make: Make
) -> None:
    one, two = make("one", memory), make("two", memory)
    session_id = one.say("notes", "a").head.session_id
    converge(one, two)
    one.records.note_removals([session_id])
    one.sync()
    assert one.records.removals() == {session_id}  # the removal may be under way
    one.store.touch(session_id, time.time() + 1)
    assert did(one.sync()) == {}
    assert one.records.removals() == set()
    # What was never removed by the user is fetched again, and not removed from the others.
    one.store.delete_head(session_id, one.store.find("notes").manifest)
    assert did(one.sync()) == {"pulled": ["notes"]}
    assert one.talks() == {"notes": "a"}
    assert did(two.sync()) == {}


# Entries beside one another, of which not all has come


def _both_went_on(make: Make, ends: Callable[..., None]) -> tuple[Machine, Folder, Machine, Folder, set[str]]:
    """Two machines with a copy of a folder each, and what the second's entry needs: the first's counts."""
    ends(FIRST, LATER, EARLIER)
    folder = Folder()
    one = make("one", folder, exclusive=False)
    one.say("notes", "a")
    one.sync()
    copy = folder.copy()
    two = make("two", copy, exclusive=False)
    two.sync()
    one.say("notes", "b")
    one.sync()
    two.say("notes", "c")
    two.sync()
    theirs = objects(copy, MANIFESTS).keys() - objects(folder, MANIFESTS).keys()
    assert len(theirs) == 1
    return one, folder, two, copy, theirs


def test_what_another_machine_said_is_not_superseded_while_it_has_not_come(
    make: Make, ends: Callable[..., None]
) -> None:
    one, folder, two, copy, late = _both_went_on(make, ends)
    deliver(folder, copy, late)
    (name,) = late
    assert did(one.sync()) == {
        "faults": [f"notes: what another machine said is not there: there is no object {name}"]
    }
    for _ in range(3):
        for machine in (two, one):
            deliver(folder, copy)
            assert machine.sync().faults == []
    assert one.talks() == two.talks() == {"notes": "a b", "notes-2": "a c"}


def test_what_another_machine_said_is_not_superseded_while_it_is_damaged(
    make: Make, ends: Callable[..., None]
) -> None:
    one, folder, two, copy, damaged = _both_went_on(make, ends)
    deliver(folder, copy)
    (name,) = damaged
    right = copy.copy()
    flip(folder, name)
    fault = f"notes: what another machine said is not there: object {name} is damaged, or of another key"
    assert did(one.sync()) == {"faults": [fault]}
    three = make("three", folder, exclusive=False)
    assert three.sync().faults == [fault]
    assert three.talks() == {"notes": "a b"}
    deliver(folder, copy)
    assert [each.fork_name for each in two.sync().forks] == ["notes-2"]
    deliver(folder, copy)
    folder.put(name, right.get(name, 1 << 30))
    converge(one, three)
    assert one.talks() == two.talks() == three.talks() == {"notes": "a b", "notes-2": "a c"}


def test_sending_does_not_supersede_what_has_not_come(make: Make, ends: Callable[..., None]) -> None:
    one, folder, _, copy, late = _both_went_on(make, ends)
    deliver(folder, copy, late)
    one.say("notes", "d")
    (name,) = late
    assert did(one.sync()) == {
        "pushed": ["notes"],
        "faults": [f"notes: what another machine said is not there: there is no object {name}"],
    }
    deliver(folder, copy)
    assert did(one.sync()) == {
        "pushed": ["notes-2"],
        "notices": ["'notes' has changed on two machines: one goes on as 'notes-2'"],
    }
    three = make("three", folder, exclusive=False)  # and the second is gone
    three.sync()
    assert three.talks() == {"notes": "a b d", "notes-2": "a c"}


def test_what_another_machine_said_is_not_superseded_before_its_fork_is_sent(
    make: Make, ends: Callable[..., None]
) -> None:
    one, folder, _, copy, _ = _both_went_on(make, ends)
    deliver(folder, copy)
    one.say("notes", "d")

    def kill() -> None:
        raise Killed

    with pytest.raises(Killed):
        make("one", WatchedRemote(folder, after=once("put", HEADS, kill)), exclusive=False).sync()
    three = make("three", folder, exclusive=False)  # and the others are gone
    assert three.sync().faults == []
    assert three.talks() == {"notes": "a b d", "notes-2": "a c"}
    assert three.state("notes-2") == [*range(97, 105), *range(107, 119)]


def test_an_entry_that_comes_while_others_are_merged_is_not_superseded_unread(
    make: Make, ends: Callable[..., None]
) -> None:
    ends(FIRST, LATER, "b" * 16, EARLIER)
    folder = Folder()
    watched = WatchedRemote(folder)
    one = make("one", watched, exclusive=False)
    one.say("notes", "a")
    one.sync()
    copies = [folder.copy(), folder.copy()]
    two, three = (make(f"other{n}", copy, exclusive=False) for n, copy in enumerate(copies))
    for machine in (two, three):
        machine.sync()
    for machine, word in ((one, "b"), (two, "c"), (three, "d")):
        machine.say("notes", word)
        machine.sync()
    deliver(folder, copies[0])
    watched.before = once("list", folder_of(one, "notes"), lambda: deliver(folder, copies[1]))
    assert one.sync().faults == []
    watched.before = None
    for _ in range(3):
        for machine in (three, one, two):
            for copy in copies:
                deliver(folder, copy)
            assert machine.sync().faults == []
    assert one.talks() == two.talks() == three.talks()
    assert one.talks() == {"notes": "a b", "notes-2": "a c", "notes-3": "a d"}


def test_words_without_state_outlast_an_entry_beside_theirs_that_says_less(
    make: Make, ends: Callable[..., None]
) -> None:
    ends(FIRST, EARLIER, LATER)
    folder = Folder()
    one = make("one", folder, exclusive=False)
    one.say("notes", "a")
    one.sync()
    copy = folder.copy()
    two = make("two", copy, exclusive=False)
    two.sync()
    one.say("notes", "b")
    one.sync()
    one.prune()
    two.archive("notes")
    two.sync()
    for _ in range(3):
        for machine in (one, two):
            deliver(folder, copy)
            report = machine.sync()
            assert (report.faults, report.forks) == ([], [])
            assert one.talks() == {"notes": "a b"}
    assert two.talks() == {"notes": "a b"}
    assert two.state("notes") == AB


def test_state_that_was_dropped_here_does_not_come_back_by_itself(memory: MemoryRemote, make: Make) -> None:
    one = make("one", memory)
    one.say("notes", "a")
    one.sync()
    one.prune()
    for _ in range(3):
        assert did(one.sync()) == {}
        assert one.state("notes") is None
    one.syncer.fetch("notes")
    assert one.state("notes") == A


# What a remote claims


@pytest.mark.parametrize(
    ("number", "pushed", "faults"),
    [
        (
            (1 << 53) - 1,
            ["other"],
            ["notes: the remote claims 9007199254740991 entries of it, and it takes no more"],
        ),
        (7, ["notes", "other"], []),
    ],
)
def test_an_entry_that_is_only_listed_stops_one_session_at_most(
    memory: MemoryRemote, make: Make, number: int, pushed: list[str], faults: list[str]
) -> None:
    class Lying(WatchedRemote):
        def list(self, prefix: str) -> Iterator[Listed]:
            yield from self.inner.list(prefix)
            if phantom.startswith(prefix):
                yield Listed(phantom, 1100, 5.0)

    one = make("one", memory)
    one.say("notes", "a")
    one.say("other", "o")
    one.sync()
    phantom = folder_of(one, "notes") + f"{number:016x}"
    one.say("notes", "b")
    one.say("other", "p")
    report = make("one", Lying(memory)).sync()
    assert (sorted(report.pushed), report.faults) == (pushed, faults)
    if "notes" in pushed:
        assert entry_of(one, "notes").endswith(f"/{8:016x}")
        two = make("two", Lying(memory))
        two.sync()
        assert two.talks() == {"notes": "a b", "other": "o p"}


def test_a_session_whose_entries_are_always_lost_to_others_stops_no_other(
    memory: MemoryRemote, make: Make
) -> None:
    class Busy(WatchedRemote):
        def put_if_absent(self, name: str, data: bytes) -> bool:
            return not name.startswith(busy) and super().put_if_absent(name, data)

    one = make("one", memory)
    one.say("notes", "a")
    one.say("other", "o")
    one.sync()
    busy = folder_of(one, "notes")
    one.say("other", "p")
    one.say("notes", "b")  # which comes first
    assert did(make("one", Busy(memory)).sync()) == {
        "pushed": ["other"],
        "faults": ["notes: it keeps changing while it is synced: try again when it is at rest"],
    }
    assert did(one.sync()) == {"pushed": ["notes"]}


def test_an_older_entry_that_is_unreadable_is_a_fault_and_no_stop(memory: MemoryRemote, make: Make) -> None:
    one, two = make("one", memory), make("two", memory)
    one.say("notes", "a")
    one.sync()
    one.say("notes", "b")
    one.sync()
    junk = folder_of(one, "notes") + f"{1:016x}-{'0' * 16}"
    memory.put(junk, b"junk")
    fault = f"notes: object {junk} is damaged, or of another key"
    one.say("notes", "c")
    assert did(one.sync()) == {"pushed": ["notes"], "faults": [fault]}
    assert did(two.sync()) == {"pulled": ["notes"], "faults": [fault]}
    assert two.state("notes") == ABC
    assert [(each.name, each.state) for each in two.syncer.status()] == [("notes", "in sync")]


@pytest.mark.parametrize("knows", ["a record", "an older entry", "the session", "nothing"])
def test_a_newest_entry_that_is_unreadable_stops_that_session_alone_and_is_told_once(
    memory: MemoryRemote, make: Make, knows: str
) -> None:
    one, two = make("one", memory), make("two", memory)
    one.say("notes", "a")
    one.say("other", "o")
    one.sync()
    if knows in ("a record", "the session"):
        two.sync()
        if knows == "the session":
            two.syncer.records = SyncRecords(two.home / "sync" / "nothing")
    if knows in ("a record", "an older entry"):
        one.say("notes", "b")
        one.sync()
    one.say("other", "p")
    one.sync()
    name = entry_of(one, "notes")
    flip(memory, name)
    wrong, known = f"object {name} is damaged, or of another key", knows != "nothing"
    states = [(each.name, each.state) for each in two.syncer.status()]
    assert states.count(("notes" if known else "?", wrong)) == 1
    assert len(states) == 2
    for _ in range(2):
        assert two.sync().faults == [f"notes: {wrong}" if known else wrong]
    assert two.talks()["other"] == "o p"
    assert two.has("notes") == (knows in ("a record", "the session"))


def test_a_title_that_another_machine_would_give_otherwise_is_right(
    memory: MemoryRemote, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which characters can be shown depends on the version of Python."""
    one, two = make("one", memory), make("two", memory)
    monkeypatch.setattr(manifests, "title_of", lambda question: question)
    one.say("notes", "shaking \U0001fae8 face")
    one.sync()
    monkeypatch.setattr(manifests, "title_of", lambda question: question.replace("\U0001fae8", ""))
    assert did(two.sync()) == {"pulled": ["notes"]}
    assert two.talks() == {"notes": "shaking \U0001fae8 face"}
    assert did(two.sync()) == {}
    monkeypatch.undo()
    converge(one, two)
    assert one.talks() == two.talks() == {"notes": "shaking \U0001fae8 face"}


def test_entries_that_cannot_be_deleted_do_not_become_more_by_themselves(
    memory: MemoryRemote, make: Make
) -> None:
    class Keeping(WatchedRemote):
        def delete(self, name: str) -> None:
            raise NetworkError("the bucket keeps all")

    keeping = Keeping(memory)
    one, two = make("one", keeping), make("two", keeping)
    one.say("notes", "a")
    for number in range(72):  # more than an entry names
        one.rename(one.names()[0], f"notes{number}")
        one.sync()
    assert len(objects(memory, HEADS)) == 72
    assert did(two.sync()) == {"pulled": ["notes71"]}
    for machine in (one, two, one):
        assert did(machine.sync()) == {}
    assert len(objects(memory, HEADS)) == 72
    assert two.talks() == {"notes71": "a"}
    two.say("notes71", "b")
    assert did(two.sync()) == {"pushed": ["notes71"]}
    assert did(one.sync()) == {"pulled": ["notes71"]}
    assert one.state("notes71") == AB


@pytest.mark.parametrize("exclusive", [True, False])
def test_a_remote_that_keeps_nothing_of_what_it_takes_is_an_error_and_nothing_counts_as_sent(
    memory: MemoryRemote, make: Make, exclusive: bool
) -> None:
    class Swallowing(MemoryRemote):
        def put(self, name: str, data: bytes) -> None:
            pass

        def put_if_absent(self, name: str, data: bytes) -> bool:
            return True

    one = make("one", memory, exclusive=exclusive)
    one.say("notes", "a", "b")
    one.say("other", "o")
    for _ in range(2):
        report = SyncReport()
        with pytest.raises(NetworkError, match="the remote does not list what it was given"):
            make("one", Swallowing(), exclusive=exclusive).sync(report=report)
        assert did(report) == {}
        assert one.records.session_ids() == []
    report = one.sync()
    assert (sorted(report.pushed), report.faults) == (["notes", "other"], [])
    two = make("two", memory, exclusive=exclusive)
    two.sync()
    assert two.talks() == {"notes": "a b", "other": "o"}
    assert two.state("notes") == AB
    assert two.faults() == []


# What is told


def test_what_was_done_before_the_remote_failed_is_told(memory: MemoryRemote, make: Make) -> None:
    one, two = make("one", memory), make("two", memory)
    one.say("notes", "a")
    converge(one, two)
    one.say("notes", "b")
    one.sync()
    two.say("notes", "c")

    def fail(kind: str, name: str, number: int) -> None:
        if kind == "put":
            raise NetworkError("down")

    report = SyncReport()
    with pytest.raises(NetworkError, match="down"):
        make("two", WatchedRemote(memory, before=fail)).sync(report=report)
    assert report.notices == [
        "'notes' has changed on another machine, too: what was said here goes on as 'notes-2'"
    ]
    assert [each.fork_name for each in report.forks] == ["notes-2"]
    assert did(two.sync()) == {"pushed": ["notes-2"]}


def test_a_session_that_came_counts_as_used_when_it_was_saved(memory: MemoryRemote, make: Make) -> None:
    """And so those that are used here keep their state longer."""
    one, two = make("one", memory), make("two", memory)
    one.say("theirs", "a")
    one.sync()
    saved_s = one.manifest("theirs").created_at.timestamp()
    two.say("ours", "b")
    two.sync()
    uses = sorted(StoreUses(two.store).sessions.values(), key=lambda each: each.used_ns)
    assert [each.head.name for each in uses] == ["theirs", "ours"]
    assert uses[0].used_ns / 1e9 == pytest.approx(saved_s, abs=1e-3)


def test_a_name_is_taken_although_the_manifest_of_the_session_that_has_it_is_damaged(
    memory: MemoryRemote, make: Make
) -> None:
    one, two = make("one", memory), make("two", memory)
    one.say("notes", "a")
    one.sync()
    damaged = two.say("notes", "own").head
    two.store.manifest_path(damaged.manifest).write_bytes(b"x")
    report = two.sync()
    assert report.pulled == ["notes-2"]
    assert report.faults == [f"notes: manifest {damaged.manifest[:12]} is damaged: its SHA-256 is another"]
    assert list(two.manifest("notes-2").questions) == ["a"]
    assert two.store.head(damaged.session_id) == damaged


def test_branches_beyond_what_a_session_keeps_make_no_forks(memory: MemoryRemote, make: Make) -> None:
    one, two = make("one", memory), make("two", memory)
    one.say("notes", "a")
    converge(one, two)
    for number in range(34):
        one.say("notes", f"x{number}")
        one.go_back("notes", 1)
        if number >= 30:
            assert did(one.sync()) == {"pushed": ["notes"]}
            assert did(two.sync()) == {"pulled": ["notes"]}
    assert did(one.sync()) == {}
    assert one.names() == two.names() == ["notes"]
    assert one.branches("notes") == two.branches("notes")
    assert len(two.branches("notes")) == 32
    assert "a x33" in two.branches("notes")


# Collections meanwhile


def _clock(now_s: list[float]) -> MemoryRemote:
    return MemoryRemote(now=lambda: now_s[0])


def test_what_was_sent_so_long_ago_that_it_was_collected_is_sent_again_once_it_is_named(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a machine sleeps during a sync. The wall clock has gone on, and others may have not."""
    now_s = [0.0]
    memory = _clock(now_s)
    monkeypatch.setattr(versions, "time", SimpleNamespace(time=lambda: now_s[0]))
    collected: list[int] = []

    def sleep() -> None:
        now_s[0] += 13 * HOUR_S
        collected.append(collect_remote(make("any", memory).remote, KEYS, HOUR_S).blocks)

    one = make("one", WatchedRemote(memory, before=once("put", MANIFESTS, sleep)))
    one.say("notes", "a", "b")
    assert did(one.sync()) == {"pushed": ["notes"]}
    assert collected == [3]
    two = make("two", memory)
    assert did(two.sync()) == {"pulled": ["notes"]}
    assert two.state("notes") == AB


def test_what_is_sent_again_after_a_collection_found_it_unneeded_is_not_deleted(make: Make) -> None:
    now_s = [0.0]
    memory = _clock(now_s)
    one, two = make("one", memory), make("two", memory)

    def kill() -> None:
        raise Killed

    one.say("notes", "a", "b")
    with pytest.raises(Killed):  # so that its blocks are there, and no session needs them
        make("one", WatchedRemote(memory, before=once("put", MANIFESTS, kill))).sync()
    assert len(objects(memory, BLOCKS)) == 3
    now_s[0] = 13 * HOUR_S
    sent: list[dict[str, object]] = []

    def send(kind: str, name: str, number: int) -> None:
        """Once all has been looked at for the second time: there are no entries to be read."""
        if watched.calls.count(("list", HEADS)) == 4 and not sent:
            sent.append(did(one.sync()))

    watched = WatchedRemote(memory, after=send)
    done = collect_remote(make("any", watched).remote, KEYS, HOUR_S)
    assert len(watched.names("list")) == 2 * 6
    assert sent == [{"pushed": ["notes"]}]
    assert len(watched.names("stat")) == 3
    assert (done.blocks, done.faults) == (0, ())
    assert did(two.sync()) == {"pulled": ["notes"]}
    assert two.state("notes") == AB


# Sending all again


@pytest.fixture
def sender(memory: MemoryRemote, make: Make) -> Machine:
    one = make("one", memory)
    one.say("other", "o")
    one.say("notes", "a", "b")
    one.sync()
    one.say("notes", "c")
    one.sync()
    return one


BROKEN = ["a block", "no block", "a manifest", "the newest entry"]


@pytest.mark.parametrize("remembers", [True, False])
@pytest.mark.parametrize("broken", BROKEN)
def test_what_is_damaged_in_the_remote_is_mended_by_a_machine_that_has_it(
    memory: MemoryRemote, make: Make, sender: Machine, broken: str, remembers: bool
) -> None:
    two = make("two", memory)
    two.sync(only=[sender.store.session_id("other")])
    name = {
        "a block": BLOCKS + KEYS.name("block", sender.manifest("notes").blocks[0].sha256),
        "no block": BLOCKS + KEYS.name("block", sender.manifest("notes").blocks[0].sha256),
        "a manifest": MANIFESTS + KEYS.name("manifest", sender.store.find("notes").manifest),
        "the newest entry": entry_of(sender, "notes"),
    }[broken]
    if broken == "no block":
        memory.delete(name)
    else:
        flip(memory, name)
    (fault,) = two.sync().faults
    assert fault.startswith("notes: ")
    assert name in fault
    if not remembers:
        sender.syncer.records = SyncRecords(sender.home / "sync" / "nothing")
    notes = sender.store.session_id("notes")
    assert did(sender.sync(direction=Direction.PUSH, only=[notes], again=True)) == {"pushed": ["notes"]}
    assert did(two.sync()) == {"pulled": ["notes"]}
    three = make("three", memory)
    assert sorted(three.sync().pulled) == ["notes", "other"]
    for machine in (two, three):
        assert did(machine.sync()) == {}
        assert machine.talks() == {"notes": "a b c", "other": "o"}
        assert machine.state("notes") == ABC
        assert machine.faults() == []
        assert machine.store.find("notes") == sender.store.find("notes")
        assert stored_objects(machine) == stored_objects(sender)
    assert did(sender.sync()) == {}


def stored_objects(machine: Machine) -> dict[str, bytes]:
    """What a store needs for its sessions, bit for bit."""
    needed = [machine.manifest(name) for name in machine.names()]
    refs = [ref for each in needed for ref in (*each.blocks, each.tail) if ref]
    return {ref.sha256: machine.store.get_block(ref.sha256, ref.stored_bytes) for ref in refs}


def test_a_damaged_older_entry_is_gone_when_all_is_sent_again(
    memory: MemoryRemote, make: Make, sender: Machine
) -> None:
    junk = folder_of(sender, "notes") + f"{1:016x}-{'0' * 16}"
    memory.put(junk, b"junk")
    assert sender.sync().faults == [f"notes: object {junk} is damaged, or of another key"]
    sender.sync(direction=Direction.PUSH, only=[sender.store.session_id("notes")], again=True)
    assert junk not in objects(memory)
    assert did(sender.sync()) == {}


def test_what_another_machine_said_in_an_entry_that_was_damaged_comes_back_from_there(
    memory: MemoryRemote, make: Make, sender: Machine
) -> None:
    """Whoever replaces the entry has not seen what it said."""
    two = make("two", memory)
    two.sync()
    two.say("notes", "d")
    two.sync()
    flip(memory, entry_of(two, "notes"))
    notes = sender.store.session_id("notes")
    assert did(sender.sync(direction=Direction.PUSH, only=[notes], again=True)) == {"pushed": ["notes"]}
    converge(two, sender)
    assert sender.talks() == two.talks() == {"notes": "a b c d", "other": "o"}
    assert sender.state("notes") == two.state("notes")
    assert sender.faults() == two.faults() == []


def test_sending_all_again_sends_every_object_of_these_sessions_alone(
    memory: MemoryRemote, make: Make, sender: Machine
) -> None:
    watched = WatchedRemote(memory)
    one = make("one", watched)
    one.sync(direction=Direction.PUSH, only=[one.store.session_id("notes")], again=True)
    manifest = one.manifest("notes")
    refs = (*manifest.blocks, manifest.tail)
    blocks = {BLOCKS + KEYS.name("block", ref.sha256) for ref in refs if ref}
    sent = watched.names("put")
    assert {name for name in sent if name.startswith(BLOCKS)} == blocks
    assert [name for name in sent if not name.startswith(BLOCKS)] == [
        MANIFESTS + KEYS.name("manifest", one.store.find("notes").manifest),
        folder_of(one, "notes") + f"{3:016x}",
    ]
