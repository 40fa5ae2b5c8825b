"""Sessions of several machines and a remote: nothing lost, nothing twice, whatever happens on the way."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults import Dying, Full, Refusing, dies, watched
from machines import KEYS, Killed, Machine, WatchedRemote, converge, killed_at, once
from s3_proxy import Fault, S3Proxy, Scripted
from s3_servers import S3Server, moto  # noqa: F401 (a fixture)

from satchel.cache_store.sessions import fork_id
from satchel.errors import SatchelError
from satchel.remotes.directory import DirectoryRemote
from satchel.remotes.encrypted import seal
from satchel.remotes.memory import MemoryRemote
from satchel.remotes.remote import Remote, TransientError
from satchel.remotes.retry import RetryingRemote
from satchel.remotes.s3 import S3Remote
from satchel.sync.entries import BLOCKS, HEADS, MANIFESTS, decode_entry, encode_entry
from satchel.sync.keys import KEY_OBJECT, Keys, RootKey
from satchel.sync.syncer import Direction, Progress, SyncReport

# What `Machine.say` saves for "a", for "a" and "b", and for "a", "b" and "c": 97 is the code of "a".
A = list(range(97, 107))
AB = [*range(97, 105), *range(106, 118)]
ABC = [*range(97, 105), *range(106, 114), *range(115, 129)]

_numbers = itertools.count()


@pytest.fixture(params=["memory", "directory", "s3"])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> Remote:
    if request.param == "memory":
        remote: Remote = MemoryRemote()
    elif request.param == "directory":
        (tmp_path / "remote").mkdir()
        remote = DirectoryRemote(tmp_path / "remote")
    else:
        remote = on_s3(request.getfixturevalue("moto"))
    remote.put(KEY_OBJECT, b"{}")
    return remote


@pytest.fixture(params=["memory", "directory"])
def near(request: pytest.FixtureRequest, tmp_path: Path) -> Remote:
    """A remote without a network."""
    (tmp_path / "remote").mkdir()
    remote = MemoryRemote() if request.param == "memory" else DirectoryRemote(tmp_path / "remote")
    remote.put(KEY_OBJECT, b"{}")
    return remote


def on_s3(server: S3Server, endpoint: str | None = None) -> S3Remote:
    bucket = server.make_bucket("sync")
    return S3Remote(
        bucket, f"run-{next(_numbers)}", endpoint or server.endpoint, "us-east-1", server.credentials
    )


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed loses nothing that it wrote: what `fsync` is for need not be waited for."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def memory() -> MemoryRemote:
    remote = MemoryRemote()
    remote.put(KEY_OBJECT, b"{}")
    return remote


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Machine]:
    def make(name: str, remote: Remote, **options: object) -> Machine:
        return Machine(tmp_path / name, remote, **options)  # type: ignore[arg-type]

    return make


Make = Callable[..., Machine]


def objects(remote: Remote, prefix: str = "v1/") -> dict[str, bytes]:
    """All but the key."""
    names = [each.name for each in remote.list(prefix) if each.name != KEY_OBJECT]
    return {name: remote.get(name, 1 << 30) for name in names}


def put_back(remote: Remote, before: dict[str, bytes], prefix: str = "v1/") -> None:
    """Make what begins with `prefix` in a remote what it was."""
    for name in objects(remote, prefix).keys() - before.keys():
        remote.delete(name)
    for name, data in before.items():
        if name.startswith(prefix):
            remote.put(name, data)


def entry_of(machine: Machine, name: str) -> str:
    """The object that is the newest entry of a session which `machine` has."""
    folder = HEADS + KEYS.name("session", machine.store.session_id(name)) + "/"
    return max(each.name for each in machine.remote.list(folder))


def did(report: SyncReport) -> dict[str, object]:
    """What there is in a report, without counts of bytes."""
    fields = ("pushed", "pulled", "removed", "forks", "notices", "faults")
    return {name: found for name in fields if (found := getattr(report, name))}


# There and back


def test_a_session_goes_from_one_machine_to_another_and_back(remote: Remote, make: Make) -> None:
    one, two = make("one", remote), make("two", remote)
    one.say("notes", "a")
    sent = one.sync()
    assert did(sent) == {"pushed": ["notes"]}
    assert sent.sent_bytes == sum(path.stat().st_size for path in _objects_here(one))
    got = two.sync()
    assert did(got) == {"pulled": ["notes"]}
    assert got.received_bytes == sent.sent_bytes
    assert (two.talks(), two.state("notes")) == ({"notes": "a"}, A)
    two.say("notes", "b")
    assert did(two.sync()) == {"pushed": ["notes"]}
    assert did(one.sync()) == {"pulled": ["notes"]}
    assert (one.talks(), one.state("notes")) == ({"notes": "a b"}, AB)
    assert one.store.find("notes") == two.store.find("notes")
    for machine in (one, two):
        assert did(machine.sync()) == {}
        assert machine.faults() == []


def _objects_here(machine: Machine) -> list[Path]:
    place = machine.home / "v1"
    return [path for kind in ("blocks", "manifests") for path in (place / kind).rglob("*") if path.is_file()]


def test_nothing_new_takes_one_listing(memory: MemoryRemote, make: Make) -> None:
    watched_one, watched_two = WatchedRemote(memory), WatchedRemote(memory)
    one, two = make("one", watched_one), make("two", watched_two)
    for name in ("first", "second", "third"):
        one.say(name, "a", name)
    one.sync()
    two.sync()
    one.remove("third")
    one.sync()
    two.sync()
    for machine, calls in ((one, watched_one.calls), (two, watched_two.calls)):
        calls.clear()
        assert did(machine.sync()) == {}
        assert calls == [("list", HEADS)]


def test_a_push_sends_blocks_then_the_manifest_then_the_entry(memory: MemoryRemote, make: Make) -> None:
    calls = WatchedRemote(memory)
    one = make("one", calls)
    one.say("notes", "a", "b", "c")
    one.sync()
    kinds = [name.split("/")[1] for name in calls.names("put")]
    assert kinds == ["blocks"] * 4 + ["manifests", "heads"]


def test_a_further_push_sends_only_what_is_new(memory: MemoryRemote, make: Make) -> None:
    calls = WatchedRemote(memory)
    one = make("one", calls)
    one.say("notes", *"abcdefgh")  # 80 tokens in 10 blocks, and an empty tail
    one.sync()
    assert len(calls.names("put")) == 10 + 1 + 2
    calls.calls.clear()
    one.say("notes", "i")
    report = one.sync()
    put = calls.names("put")
    assert [name.split("/")[1] for name in put] == ["blocks", "blocks", "manifests", "heads"]
    assert sorted(calls.names("stat")) == sorted(put[:2])  # nor is anything else asked for
    assert report.sent_bytes < 5000


def test_the_newest_session_goes_first_and_before_that_the_one_that_is_asked_for(
    memory: MemoryRemote, make: Make
) -> None:
    one = make("one", memory)
    ids = {name: one.say(name, "a").head.session_id for name in ("old", "middle", "new")}
    assert one.sync().pushed == ["new", "middle", "old"]
    assert make("two", memory).sync().pulled == ["new", "middle", "old"]
    assert make("three", memory).sync(first=ids["middle"]).pulled == ["middle", "new", "old"]
    four = make("four", memory)
    assert four.sync(only=[ids["old"]]).pulled == ["old"]
    assert four.names() == ["old"]


def test_push_and_pull_go_one_way(near: Remote, make: Make) -> None:
    one, two = make("one", near), make("two", near)
    one.say("ours", "a")
    two.say("theirs", "b")
    two.sync()
    assert did(one.sync(direction=Direction.PUSH)) == {"pushed": ["ours"]}
    assert one.names() == ["ours"]
    assert did(two.sync(direction=Direction.PULL)) == {"pulled": ["ours"]}
    two.say("theirs", "c")
    two.remove("ours")
    assert did(two.sync(direction=Direction.PULL)) == {}
    assert two.names() == ["theirs"]
    assert did(one.sync(direction=Direction.PULL)) == {"pulled": ["theirs"]}
    assert one.talks() == {"ours": "a", "theirs": "b"}
    assert did(two.sync(direction=Direction.PUSH)) == {"pushed": ["theirs"], "removed": ["ours"]}
    assert did(one.sync(direction=Direction.PUSH)) == {}
    assert one.talks() == {"ours": "a", "theirs": "b"}
    converge(one, two)
    assert one.talks() == two.talks() == {"theirs": "b c"}


def test_words_can_come_alone_and_the_state_when_it_is_wanted(remote: Remote, make: Make) -> None:
    one, two = make("one", remote), make("two", remote)
    one.say("notes", "a", "b", "c")
    one.go_back("notes", 1)
    one.say("notes", "x")
    one.say("other", "o")
    one.sync()
    got = two.sync(fetch_state=False)
    assert did(got) == {"pulled": ["other", "notes"]}
    assert (two.talks(), two.state("notes")) == ({"notes": "a x", "other": "o"}, None)
    assert two.branches("notes") == ["a b c"]
    assert two.faults() == []
    assert not list((two.home / "v1" / "blocks").rglob("*"))
    assert did(two.sync(fetch_state=False)) == {}
    assert did(two.syncer.fetch("notes")) == {"pulled": ["notes"]}
    assert two.state("notes") == one.state("notes")
    assert two.store.find("notes") == one.store.find("notes")
    assert two.state("other") is None
    assert two.branches("notes") == ["a b c"]
    assert two.faults() == []
    assert did(two.syncer.fetch("notes")) == {}


@pytest.mark.parametrize("wanted", ["Other", "id", "start", None])
def test_fetch_finds_what_is_only_in_the_remote(memory: MemoryRemote, make: Make, wanted: str | None) -> None:
    one, two = make("one", memory), make("two", memory)
    one.say("notes", "a")
    session_id = one.say("other", "b").head.session_id
    one.sync()
    two.say("mine", "m") if wanted else None
    wanted = {"id": session_id, "start": session_id[:6]}.get(wanted or "", wanted)
    assert did(two.syncer.fetch(wanted)) == {"pulled": ["other"]}
    assert two.state("other") == list(range(98, 108))
    assert not two.has("notes")
    assert did(two.syncer.fetch("nothing-of-that-name")) == {}


def test_what_was_said_without_the_state_goes_on_from_there(memory: MemoryRemote, make: Make) -> None:
    one, two = make("one", memory), make("two", memory)
    one.say("notes", "a", "b")
    one.sync()
    two.sync(fetch_state=False)
    two.rename("notes", "renamed")
    assert did(two.sync(fetch_state=False)) == {"pushed": ["renamed"]}
    assert did(one.sync()) == {"pulled": ["renamed"]}
    assert one.state("renamed") == AB  # the remote has kept it
    two.say("renamed", "c")
    two.sync(fetch_state=False)
    assert did(one.sync()) == {"pulled": ["renamed"]}
    assert one.talks() == {"renamed": "a b c"}
    assert one.state("renamed") == two.state("renamed")
    assert one.faults() == two.faults() == []


def test_who_goes_on_without_the_state_sends_what_of_it_the_remote_has_lost(
    memory: MemoryRemote, make: Make
) -> None:
    one, two, three = make("one", memory), make("two", memory), make("three", memory)
    one.say("notes", "a")
    one.sync()
    two.sync(fetch_state=False)
    for name in objects(memory, BLOCKS):
        memory.delete(name)
    two.say("notes", "a")  # which is read again, and comes out equal in part
    two.manifest("notes")
    assert two.manifest("notes").blocks[0] == one.manifest("notes").blocks[0]
    two.sync(fetch_state=False)
    assert did(three.sync()) == {"pulled": ["notes"]}
    assert three.state("notes") == two.state("notes")


def test_state_that_was_pruned_stays_in_the_remote_and_comes_back(remote: Remote, make: Make) -> None:
    one, two = make("one", remote), make("two", remote)
    one.say("notes", "a", "b", "c")
    one.go_back("notes", 1)
    one.say("notes", "b")
    one.sync()
    before, state = objects(remote), one.state("notes")
    one.prune()
    assert one.state("notes") is None
    assert did(one.sync(fetch_state=False)) == {}
    assert objects(remote) == before
    one.prune()
    one.rename("notes", "renamed")
    assert did(one.sync(fetch_state=False)) == {"pushed": ["renamed"]}
    two.sync()
    assert two.state("renamed") == state
    assert did(one.syncer.fetch("renamed")) == {"pulled": ["renamed"]}
    assert one.state("renamed") == state
    assert one.branches("renamed") == two.branches("renamed") == ["a b c"]
    assert one.faults() == two.faults() == []
    assert did(one.sync()) == did(two.sync()) == {}


def test_an_archived_state_goes_to_the_others(near: Remote, make: Make) -> None:
    one, two = make("one", near), make("two", near)
    one.say("notes", "a", "b")
    converge(one, two)
    one.archive("notes")
    assert did(one.sync()) == {"pushed": ["notes"]}
    assert did(two.sync()) == {"pulled": ["notes"]}
    assert two.state("notes") == list(range(1000, 1020))
    assert two.manifest("notes").archived_from == "turbo4"
    assert two.faults() == []


def test_what_was_left_behind_goes_along_with_its_blocks(near: Remote, make: Make) -> None:
    one, two, three = make("one", near), make("two", near), make("three", near)
    one.say("notes", "a", "b", "c")
    one.go_back("notes", 1)
    one.say("notes", "x")
    converge(one, two)
    assert two.talks() == {"notes": "a x"}
    assert two.branches("notes") == ["a b c"]
    (left,) = map(two.store.get_manifest, two.manifest("notes").abandoned)
    assert len(left.blocks) == 3
    assert all(map(two.store.has_block, left.blocks))
    two.go_back("notes", 1)
    two.say("notes", "y")
    converge(two, three)
    assert three.talks() == {"notes": "a y"}
    assert three.branches("notes") == ["a b c", "a x"]
    assert three.faults() == []


def test_three_machines_come_to_the_same(near: Remote, make: Make) -> None:
    machines = [make(name, near) for name in ("one", "two", "three")]
    for machine, name in zip(machines, ("first", "second", "third"), strict=True):
        machine.say(name, "a", name)
    converge(*machines)
    machines[2].say("first", "b")
    machines[0].rename("second", "2nd")
    machines[1].remove("third")
    converge(*machines)
    assert [machine.talks() for machine in machines] == [{"2nd": "a second", "first": "a first b"}] * 3
    assert [machine.faults() for machine in machines] == [[]] * 3
    assert len({tuple(machine.state("first") or ()) for machine in machines}) == 1


# Changed here and there


def fork_of(machine: Machine, name: str) -> str:
    """The id of what this session becomes where it has changed elsewhere, too."""
    return fork_id(machine.store.find(name).manifest)


def test_both_machines_go_on_and_one_becomes_a_fork(remote: Remote, make: Make) -> None:
    one, two = make("one", remote), make("two", remote)
    one.say("notes", "a")
    converge(one, two)
    one.say("notes", "b")
    two.say("notes", "c")
    session_id, forked = two.store.session_id("notes"), fork_of(two, "notes")
    assert did(one.sync()) == {"pushed": ["notes"]}
    report = two.sync()
    assert [(each.session_id, each.name, each.fork_id, each.fork_name) for each in report.forks] == [
        (session_id, "notes", forked, "notes-2")
    ]
    assert report.notices == [
        "'notes' has changed on another machine, too: what was said here goes on as 'notes-2'"
    ]
    assert (report.pushed, report.pulled, report.faults) == (["notes-2"], ["notes"], [])
    assert did(one.sync()) == {"pulled": ["notes-2"]}
    for machine in (one, two):
        assert machine.talks() == {"notes": "a b", "notes-2": "a c"}
        assert machine.store.session_id("notes-2") == forked
        assert machine.state("notes") == AB
        assert machine.state("notes-2") == [*range(97, 105), *range(107, 119)]
        assert machine.faults() == []
        assert did(machine.sync()) == {}


def test_a_lost_race_becomes_a_fork(memory: MemoryRemote, make: Make) -> None:
    """The other machine makes its entry just ahead of ours."""
    one, two = make("one", memory), make("two", memory)
    one.say("notes", "a")
    converge(one, two)
    one.say("notes", "b")
    two.say("notes", "c")
    slow = make("two", WatchedRemote(memory, before=once("put", HEADS, one.sync)))
    assert [each.fork_name for each in slow.sync().forks] == ["notes-2"]
    converge(one, two)
    assert one.talks() == two.talks() == {"notes": "a b", "notes-2": "a c"}


def test_forks_through_rounds_on_three_machines_lose_nothing(memory: MemoryRemote, make: Make) -> None:
    machines = [make(name, memory) for name in ("one", "two", "three")]
    machines[0].say("notes", "begin")
    converge(*machines)
    said = {"begin"}
    for turn in range(3):
        for number, machine in enumerate(machines):
            word = f"word{turn}{number}"
            machine.say("notes", word)
            said.add(word)
        for machine in machines:
            machine.sync()
    converge(*machines, rounds=6)
    assert machines[0].talks() == machines[1].talks() == machines[2].talks()
    talks = machines[0].talks()
    assert {word for talk in talks.values() for word in talk.split()} == said
    assert all(talk.startswith("begin ") for talk in talks.values())
    # Each went on with what had won, or with its own fork: no talk is there twice.
    assert len(set(talks.values())) == len(talks)
    for machine in machines:
        assert machine.faults() == []
        assert did(machine.sync()) == {}


def test_one_renamed_and_the_other_went_on(memory: MemoryRemote, make: Make) -> None:
    for first in (0, 1):
        remote = MemoryRemote()
        one, two = make(f"one{first}", remote), make(f"two{first}", remote)
        one.say("notes", "a")
        converge(one, two)
        one.rename("notes", "renamed")
        two.say("notes", "b")
        order = (one, two) if first == 0 else (two, one)
        reports = [machine.sync() for machine in order]
        assert not any(report.forks for report in reports)
        converge(*order)
        assert one.talks() == two.talks() == {"renamed": "a b"}
        assert one.state("renamed") == two.state("renamed") == AB


def test_both_renamed_and_the_first_name_stands(memory: MemoryRemote, make: Make) -> None:
    one, two = make("one", memory), make("two", memory)
    one.say("notes", "a")
    converge(one, two)
    one.rename("notes", "first")
    two.rename("notes", "second")
    one.sync()
    assert not two.sync().forks
    converge(one, two)
    assert one.talks() == two.talks() == {"first": "a"}


@pytest.mark.parametrize("removed_first", [True, False])
def test_one_removed_and_the_other_went_on(memory: MemoryRemote, make: Make, removed_first: bool) -> None:
    one, two = make("one", memory), make("two", memory)
    session_id = one.say("notes", "a").head.session_id
    converge(one, two)
    one.remove("notes")
    two.say("notes", "b")
    if removed_first:
        forked = fork_of(two, "notes")
        assert did(one.sync()) == {"removed": ["notes"]}
        report = two.sync()
        assert [(each.fork_id, each.fork_name) for each in report.forks] == [(forked, "notes-2")]
        assert report.notices[0].startswith("'notes' was removed on another machine: what was said here")
        assert two.talks() == {"notes-2": "a b"}
    else:
        assert did(two.sync()) == {"pushed": ["notes"]}
        report = one.sync()
        assert report.notices == ["'notes' was removed here, but has changed elsewhere: it is back"]
        assert one.store.session_id("notes") == session_id
    converge(one, two)
    assert [" ".join(one.talks().values()), one.talks()] == ["a b", two.talks()]
    assert one.state(*one.names()) == two.state(*two.names()) == AB


def test_one_went_back_and_the_other_went_on(memory: MemoryRemote, make: Make) -> None:
    one, two = make("one", memory), make("two", memory)
    one.say("notes", "a", "b")
    converge(one, two)
    one.go_back("notes", 1)
    two.say("notes", "c")
    one.sync()
    assert not two.sync().forks  # nothing was said there that is not here
    converge(one, two)
    assert one.talks() == two.talks() == {"notes": "a b c"}
    one.go_back("notes", 1)
    one.say("notes", "x")
    two.say("notes", "d")
    one.sync()
    assert len(two.sync().forks) == 1
    converge(one, two)
    assert one.talks() == two.talks() == {"notes": "a x", "notes-2": "a b c d"}
    assert one.branches("notes") == two.branches("notes") == ["a b c"]


def test_one_went_back_and_the_other_has_nothing_of_its_own(memory: MemoryRemote, make: Make) -> None:
    """It comes from before what was left behind was said, too."""
    one, two, three = make("one", memory), make("two", memory), make("three", memory)
    one.say("notes", "a", "b")
    converge(one, two, three)
    two.say("notes", "c", "d")
    two.sync()
    two.go_back("notes", 1)
    two.say("notes", "x")
    two.sync()
    for machine in (one, three):
        if machine is three:
            shutil.rmtree(three.home / "sync")
        assert did(machine.sync()) == {"pulled": ["notes"]}
        assert machine.talks() == {"notes": "a x"}
        assert machine.branches("notes") == ["a b c d"]


def test_the_same_words_with_other_state_are_one_session(memory: MemoryRemote, make: Make) -> None:
    one, two = make("one", memory), make("two", memory)
    one.say("notes", "a")
    converge(one, two)
    one.archive("notes")
    two.archive("notes")
    one.sync()
    assert did(two.sync()) == {"pulled": ["notes"]}
    converge(one, two)
    assert one.store.find("notes") == two.store.find("notes")


# Names


@pytest.mark.parametrize("first", [0, 1])
def test_two_sessions_of_one_name_are_both_kept(near: Remote, make: Make, first: int) -> None:
    one, two = make("one", near), make("two", near)
    one.say("notes", "a")
    two.say("Notes", "b")  # which looks the same to people
    order = (one, two) if first == 0 else (two, one)
    order[0].sync()
    report = order[1].sync()
    assert len(report.notices) == 1
    assert "two sessions are called" in report.notices[0]
    converge(*order)
    assert one.talks() == two.talks()
    assert sorted(one.talks().values()) == ["a", "b"]
    assert sorted(name.casefold() for name in one.names()) == ["notes", "notes-2"]
    assert one.faults() == two.faults() == []


def test_names_that_meet_on_three_machines(memory: MemoryRemote, make: Make) -> None:
    machines = [make(name, memory) for name in ("one", "two", "three")]
    for machine in machines:
        machine.say("notes", machine.home.name)
        machine.say("notes-2", f"{machine.home.name}-2")
    converge(*machines, rounds=8)
    talks = [machine.talks() for machine in machines]
    assert talks[0] == talks[1] == talks[2]
    assert sorted(talks[0].values()) == ["one", "one-2", "three", "three-2", "two", "two-2"]


def test_names_that_are_swapped_elsewhere(memory: MemoryRemote, make: Make) -> None:
    one, two = make("one", memory), make("two", memory)
    one.say("first", "a")
    one.say("second", "b")
    converge(one, two)
    one.rename("first", "x")
    one.rename("second", "first")
    one.rename("x", "second")
    converge(one, two)
    assert one.talks() == two.talks()
    assert sorted(one.talks().values()) == ["a", "b"]


def test_a_name_is_free_for_what_comes_although_the_one_that_has_it_is_damaged(
    memory: MemoryRemote, make: Make
) -> None:
    one, two = make("one", memory), make("two", memory)
    one.say("notes", "a")
    one.sync()
    saved = two.say("notes", "b")
    two.store.manifest_path(saved.head.manifest).unlink()
    report = two.sync()
    assert [fault.split(":")[0] for fault in report.faults] == ["notes"]
    assert two.store.find("notes") == saved.head  # it may be restored
    assert two.names() == ["notes", "notes-2"]
    assert two.manifest("notes-2").questions == ["a"]
    converge_to = make("three", memory)
    converge_to.sync()
    assert converge_to.talks() == {"notes-2": "a"}


# Removing


def test_a_session_that_was_removed_does_not_come_back(remote: Remote, make: Make) -> None:
    one, two, three = make("one", remote), make("two", remote), make("three", remote)
    one.say("notes", "a")
    one.say("kept", "k")
    converge(one, two)
    two.remove("notes")
    assert did(two.sync()) == {"removed": ["notes"]}
    report = one.sync()
    assert did(report) == {
        "removed": ["notes"],
        "notices": ["'notes' was removed on another machine, and so it is here"],
    }
    converge(one, two, three)
    for machine in (one, two, three):
        assert machine.talks() == {"kept": "k"}
        assert machine.faults() == []
    used = {path.name for path in _objects_here(one)}
    assert used == {path.name for path in _objects_here(three)}  # nothing of it is left
    shutil.rmtree(one.home / "sync")
    assert did(one.sync()) == {}
    assert one.names() == ["kept"]


def test_what_never_was_in_the_remote_leaves_nothing_there(memory: MemoryRemote, make: Make) -> None:
    one = make("one", memory)
    one.say("notes", "a")
    one.remove("notes")
    assert did(one.sync()) == {}
    assert objects(memory) == {}
    assert one.records.removals() == set()


def test_a_removal_that_the_process_was_killed_after_is_still_sent(memory: MemoryRemote, make: Make) -> None:
    one, two = make("one", memory), make("two", memory)
    one.say("notes", "a")
    converge(one, two)
    one.remove("notes")
    for number in itertools.count(1):
        calls = WatchedRemote(memory, before=killed_at(number))
        try:
            make("one", calls).sync()
        except Killed:
            assert one.names() == []
        else:
            break
    assert number > 2
    two.sync()
    assert two.names() == []
    assert did(one.sync()) == did(two.sync()) == {}
    assert one.records.removals() == set()


def test_a_session_that_was_noted_as_removed_and_is_here_again_stays(
    memory: MemoryRemote, make: Make
) -> None:
    """The process was killed between the note and the removal."""
    one, two = make("one", memory), make("two", memory)
    session_id = one.say("notes", "a").head.session_id
    converge(one, two)
    one.records.note_removals([session_id])
    assert did(one.sync()) == {}
    two.say("notes", "b")
    two.sync()
    assert did(one.sync()) == {"pulled": ["notes"]}
    assert one.talks() == two.talks() == {"notes": "a b"}


def test_sessions_without_records_of_them_are_compared_by_their_words(near: Remote, make: Make) -> None:
    one, two = make("one", near), make("two", near)
    for name in ("same", "behind", "ahead", "apart", "pruned", "gone"):
        one.say(name, "a")
    converge(one, two)
    one.say("behind", "b")
    one.say("apart", "b")
    one.remove("gone")
    one.sync()
    two.say("ahead", "b")
    two.say("apart", "c")
    shutil.rmtree(two.home / "sync")
    report = two.sync()
    assert [each.fork_name for each in report.forks] == ["apart-2"]
    converge(one, two)
    expected = {
        "same": "a",
        "behind": "a b",
        "ahead": "a b",
        "apart": "a b",
        "apart-2": "a c",
        "pruned": "a",
    }
    assert one.talks() == two.talks() == expected
    assert two.state("behind") == AB
    for machine in (one, two):
        shutil.rmtree(machine.home / "sync")
    converge(one, two)
    assert one.talks() == two.talks() == expected
    two.prune()
    shutil.rmtree(two.home / "sync")
    two.sync()
    assert two.state("pruned") == A


def test_a_record_that_is_damaged_is_none(memory: MemoryRemote, make: Make) -> None:
    one = make("one", memory)
    session_id = one.say("notes", "a").head.session_id
    one.sync()
    (one.home / "sync" / KEYS.id / "sessions" / f"{session_id}.json").write_bytes(b"{")
    assert did(one.sync()) == {}
    assert one.records.get(session_id) is not None


# Killed, and refused


def test_killed_at_any_call_of_a_push_all_is_whole_and_goes_on(tmp_path: Path, make: Make) -> None:
    one = make("one", MemoryRemote())
    one.say("notes", "a", "b", "c")
    one.go_back("notes", 1)
    one.say("notes", "x")
    one.say("other", "o")
    for number in itertools.count(1):
        memory, place = MemoryRemote(), f"one-{number}"
        shutil.copytree(one.home, tmp_path / place)
        try:
            make(place, WatchedRemote(memory, before=killed_at(number))).sync()
        except Killed:
            pass
        else:
            break
        again = WatchedRemote(memory)
        killed, other = make(place, again), make(f"other-{number}", memory)
        other.sync()  # what is there is whole
        assert other.faults() == []
        assert other.talks().items() <= one.talks().items()
        sent = set(objects(memory, BLOCKS))
        assert killed.sync().faults == []
        assert not sent & set(again.names("put"))  # nothing is sent twice
        converge(killed, other)
        assert other.talks() == {"notes": "a x", "other": "o"}
        assert other.branches("notes") == ["a b c"]
        assert [other.state(name) for name in other.names()] == [one.state(name) for name in one.names()]
        assert killed.faults() == other.faults() == []
    assert number > 15


def test_killed_at_any_call_of_a_pull_all_is_whole_and_goes_on(tmp_path: Path, make: Make) -> None:
    """The other one has changed, too, so that a fork is made and sent."""
    memory = MemoryRemote()
    one, two = make("one", memory), make("two", memory)
    one.say("notes", "a")
    one.say("gone", "g")
    converge(one, two)
    one.say("notes", "b")
    one.go_back("notes", 1)
    one.say("notes", "x")
    one.say("new", "n")
    one.remove("gone")
    one.sync()
    two.say("notes", "c")
    before = objects(memory)
    for number in itertools.count(1):
        remote, place = MemoryRemote(), f"two-{number}"
        put_back(remote, before)
        shutil.copytree(two.home, tmp_path / place)
        try:
            make(place, WatchedRemote(remote, before=killed_at(number))).sync()
        except Killed:
            pass
        else:
            break
        killed, other = make(place, remote), make(f"other-{number}", remote)
        assert killed.faults() == []
        other.sync()
        assert other.faults() == []
        assert "a c" in killed.talks().values()
        converge(killed, other)
        assert killed.talks() == other.talks() == {"new": "n", "notes": "a x", "notes-2": "a c"}
        assert killed.branches("notes") == ["a b"]
        assert killed.state("notes-2") == [*range(97, 105), *range(107, 119)]
        assert killed.faults() == other.faults() == []
    assert number > 15


def _pulling(tmp_path: Path) -> tuple[Path, Path]:
    """Homes of a machine that is to pull, and the folder that is the remote, to be copied."""
    (tmp_path / "remote").mkdir()
    remote = DirectoryRemote(tmp_path / "remote")
    one, two = Machine(tmp_path / "one", remote), Machine(tmp_path / "two", remote)
    one.say("notes", "a")
    converge(one, two)
    one.say("notes", "b")
    one.say("new", "n")
    one.sync()
    two.say("notes", "c")
    return tmp_path / "two", tmp_path / "remote"


def _copies(tmp_path: Path, number: int) -> tuple[Path, Path, Path]:
    place = tmp_path / f"copy-{number}"
    shutil.copytree(tmp_path / "two", place / "two")
    shutil.copytree(tmp_path / "remote", place / "remote")
    return place, place / "two", place / "remote"


def _comes_to_rest(home: Path, remote: Path, other_home: Path) -> None:
    killed, other = Machine(home, DirectoryRemote(remote)), Machine(other_home, DirectoryRemote(remote))
    assert killed.faults() == []
    assert "a c" in killed.talks().values()
    converge(killed, other)
    assert killed.talks() == other.talks() == {"new": "n", "notes": "a b", "notes-2": "a c"}
    assert killed.state("notes") == AB
    assert killed.faults() == other.faults() == []


def _killed_at_steps(tmp_path: Path, every: int) -> int:
    _pulling(tmp_path)
    for number in itertools.count(1, every):
        place, home, remote = _copies(tmp_path, number)
        machine = Machine(home, DirectoryRemote(remote))
        if not dies(Dying(place, number), machine.sync):
            return number
        _comes_to_rest(home, remote, place / "other")
        shutil.rmtree(place)
    raise AssertionError


def test_killed_at_a_step_of_either_disk_all_is_whole_and_goes_on(tmp_path: Path) -> None:
    assert _killed_at_steps(tmp_path, every=23) > 100


@pytest.mark.slow
def test_killed_at_any_step_of_either_disk_all_is_whole_and_goes_on(tmp_path: Path) -> None:
    assert _killed_at_steps(tmp_path, every=1) > 100


def test_a_disk_that_is_full_while_a_session_comes_leaves_all_as_it_was(tmp_path: Path) -> None:
    _pulling(tmp_path)
    for number, room in enumerate((0, 500, 2000, 4000, 6000)):
        place, home, remote = _copies(tmp_path, number)
        machine = Machine(home, DirectoryRemote(remote))
        with watched(Full(home, room)), pytest.raises(SatchelError, match="No space left on device"):
            machine.sync()
        _comes_to_rest(home, remote, place / "other")


def test_a_disk_that_refuses_at_a_step_leaves_all_as_it_was(tmp_path: Path) -> None:
    _pulling(tmp_path)
    for number in itertools.count(1, 11):
        place, home, remote = _copies(tmp_path, number)
        machine = Machine(home, DirectoryRemote(remote))
        refused = Refusing(home, number, errno.ENOSPC)
        try:
            with watched(refused):
                machine.sync()
        except (SatchelError, OSError) as err:
            assert isinstance(err, SatchelError), err
        _comes_to_rest(home, remote, place / "other")
        shutil.rmtree(place)
        if len(refused.steps) < number:
            break
    assert number > 60


def test_a_remote_that_fails_is_gone_on_with_and_nothing_is_sent_twice(
    memory: MemoryRemote, make: Make
) -> None:
    def fail(kind: str, name: str, number: int) -> None:
        if number >= 9:
            raise TransientError("the network is away")

    one = make("one", WatchedRemote(memory, before=fail))
    one.say("notes", *"abcdefgh")
    with pytest.raises(TransientError, match="the network is away"):
        one.sync()
    there = set(objects(memory))
    assert 0 < len(there) < 11
    calls = WatchedRemote(memory)
    make("one", calls).sync()
    assert not there & set(calls.names("put"))
    assert make("two", memory).sync().pulled == ["notes"]


# Saved meanwhile


def test_a_session_that_is_saved_while_it_is_sent_is_sent_as_it_was_or_is(tmp_path: Path, make: Make) -> None:
    """Often enough for what is being sent to be deleted here."""
    one = make("one", MemoryRemote())
    one.say("notes", "a")
    for turns, number in itertools.product((1, 3), range(1, 9)):
        memory, place = MemoryRemote(), f"one-{turns}-{number}"
        shutil.copytree(one.home, tmp_path / place)
        saver = make(place, memory)

        def save(kind: str, name: str, at: int) -> None:
            if at == number:  # noqa: B023
                saver.say("notes", *"bcd"[:turns])  # noqa: B023

        report = make(place, WatchedRemote(memory, before=save)).sync()
        assert report.faults == []
        assert report.forks == []
        other = make(f"other-{turns}-{number}", memory)
        other.sync()
        assert other.talks()["notes"] in ("a", "a b" if turns == 1 else "a b c d")
        converge(saver, other)
        assert other.talks() == saver.talks() == {"notes": "a b" if turns == 1 else "a b c d"}
        assert other.state("notes") == saver.state("notes")
        assert other.faults() == saver.faults() == []


def test_a_session_that_is_saved_while_it_comes_loses_nothing(tmp_path: Path, make: Make) -> None:
    memory = MemoryRemote()
    one, two = make("one", memory), make("two", memory)
    one.say("notes", "a")
    converge(one, two)
    one.say("notes", "b", "c")
    one.sync()
    before = objects(memory)
    for number in itertools.count(1):
        remote, place = MemoryRemote(), f"two-{number}"
        put_back(remote, before)
        shutil.copytree(two.home, tmp_path / place)
        saver = make(place, remote)
        met = []

        def save(kind: str, name: str, at: int) -> None:
            if at == number:  # noqa: B023
                met.append(at)  # noqa: B023
                saver.say("notes", "x")  # noqa: B023

        report = make(place, WatchedRemote(remote, before=save)).sync()
        assert report.faults == []
        if not met:
            break
        other = make(f"other-{number}", remote)
        converge(saver, other)
        assert saver.talks() == other.talks()
        said = sorted(saver.talks().values())
        assert said in (["a b c", "a x"], ["a b c x"])
        assert saver.faults() == other.faults() == []
    assert number > 5


def test_a_session_that_is_removed_while_it_is_sent_or_comes(tmp_path: Path, make: Make) -> None:
    memory = MemoryRemote()
    one, two = make("one", memory), make("two", memory)
    one.say("notes", "a")
    converge(one, two)
    one.say("notes", "b")
    one.sync()
    two.say("new", "n")
    before = objects(memory)
    for name, number in itertools.product(("notes", "new"), range(1, 14)):
        remote, place = MemoryRemote(), f"two-{name}-{number}"
        put_back(remote, before)
        shutil.copytree(two.home, tmp_path / place)
        remover = make(place, remote)

        def remove(kind: str, _: str, at: int) -> None:
            if at == number:  # noqa: B023
                remover.remove(name)  # noqa: B023

        report = make(place, WatchedRemote(remote, before=remove)).sync()
        assert report.faults == []
        other = make(f"other-{name}-{number}", remote)
        converge(remover, other)
        assert remover.talks() == other.talks()
        assert remover.faults() == other.faults() == []
        assert remover.talks().items() <= {"notes": "a b", "new": "n"}.items()
        assert len(remover.talks()) >= 1


def test_a_session_that_never_rests_is_given_up_with_a_line(memory: MemoryRemote, make: Make) -> None:
    one = make("one", memory)
    one.say("notes", "a")
    saver = make("one", memory)

    def save(kind: str, name: str, at: int) -> None:
        if kind == "stat":
            saver.say("notes", "x", "y", "z")

    report = make("one", WatchedRemote(memory, before=save)).sync()
    assert report.faults == ["notes: it keeps changing while it is synced: try again when it is at rest"]
    assert one.faults() == []


# Slow writers


@pytest.mark.parametrize("killed", [False, True])
def test_an_entry_that_comes_after_it_was_superseded_and_deleted_is_not_taken_for_ours(
    memory: MemoryRemote, make: Make, killed: bool
) -> None:
    one, two = make("one", memory), make("two", memory)
    one.say("notes", "a")
    converge(one, two)
    two.say("notes", "slow")

    def others_go_on() -> None:
        for word in "bcd":
            one.say("notes", word)
            one.sync()
        last = entry_of(one, "notes")
        assert last.endswith(f"{4:016x}")
        assert f"{last[:-1]}2" not in objects(memory)

    meet = once("put", HEADS, others_go_on)
    after = once("put", HEADS, _kill) if killed else None
    slow = make("two", WatchedRemote(memory, before=meet, after=after))
    if killed:
        with pytest.raises(Killed):
            slow.sync()
        assert f"{entry_of(one, 'notes')[:-1]}2" in objects(memory)
    else:
        assert [each.fork_name for each in slow.sync().forks] == ["notes-2"]
    converge(one, two)
    assert one.talks() == two.talks() == {"notes": "a b c d", "notes-2": "a slow"}
    assert one.faults() == two.faults() == []


def _kill() -> None:
    raise Killed


def test_what_was_listed_and_deleted_before_it_was_read_is_looked_for_again(
    memory: MemoryRemote, make: Make
) -> None:
    one = make("one", memory)
    one.say("notes", "a")
    one.sync()

    def go_on() -> None:
        for word in "bc":
            one.say("notes", word)
            one.sync()

    two = make("two", WatchedRemote(memory, before=once("get", HEADS, go_on)))
    assert did(two.sync()) == {"pulled": ["notes"]}
    assert two.talks() == {"notes": "a b c"}
    go_on()
    two.say("notes", "x")
    two = make("two", WatchedRemote(memory, before=once("get", HEADS, go_on)))
    report = two.sync()
    assert report.faults == []
    assert [each.fork_name for each in report.forks] == ["notes-2"]


def test_a_removal_outlasts_that_what_was_listed_is_deleted_before_it_is_read(
    memory: MemoryRemote, make: Make
) -> None:
    one, two = make("one", memory), make("two", memory)
    one.say("notes", "a")
    converge(one, two)
    one.rename("notes", "second")
    one.sync()

    def go_on() -> None:
        for name in ("third", "fourth"):
            one.rename(one.names()[0], name)
            one.sync()

    two.remove("notes")
    two = make("two", WatchedRemote(memory, before=once("get", HEADS, go_on)))
    report = two.sync()
    assert report.faults == []
    assert report.notices == ["'fourth' was removed here, but has changed elsewhere: it is back"]


# Where several can create one object


def test_two_entries_of_one_number_become_one_fork(memory: MemoryRemote, make: Make) -> None:
    for _ in range(4):  # either can come first
        memory, number = MemoryRemote(), next(_numbers)
        one, two = (make(f"{name}{number}", memory, exclusive=False) for name in ("one", "two"))
        one.say("notes", "a")
        converge(one, two)
        one.say("notes", "b")
        two.say("notes", "c")
        # One is there, but not listed yet, when the other makes its own.
        before = objects(memory)
        one.sync()
        ours = objects(memory)
        put_back(memory, before)
        two.sync()
        for name, data in ours.items():
            memory.put(name, data)
        _one_fork(one, two, memory)


def _one_fork(one: Machine, two: Machine, remote: Remote) -> None:
    converge(one, two)
    assert one.talks() == two.talks()
    assert sorted(one.talks().values()) == ["a b", "a c"]
    assert one.names() == ["notes", "notes-2"]
    assert one.faults() == two.faults() == []
    states = {one.talks()[name]: one.state(name) for name in one.names()}
    assert states == {"a b": AB, "a c": [*range(97, 105), *range(107, 119)]}
    three = Machine(one.home.with_name(f"three{next(_numbers)}"), remote, exclusive=False)
    assert sorted(three.sync().pulled) == ["notes", "notes-2"]
    assert three.talks() == one.talks()
    folder = entry_of(one, "notes").rpartition("/")[0] + "/"
    entries = sorted(objects(remote, folder))
    newest = decode_entry(one.remote.get(entries[-1], 1 << 20), entries[-1].rpartition("/")[2])
    assert {each.rpartition("/")[2] for each in entries[:-1]} <= {
        each.partition(".")[0] for each in newest.supersedes
    }


def test_entries_that_both_see_at_once_become_one_fork(memory: MemoryRemote, make: Make) -> None:
    for _ in range(4):
        memory, number = MemoryRemote(), next(_numbers)
        one, two = (make(f"{name}{number}", memory, exclusive=False) for name in ("one", "two"))
        one.say("notes", "a")
        converge(one, two)
        one.say("notes", "b")
        two.say("notes", "c")
        two_slow = make(
            f"two{number}", WatchedRemote(memory, before=once("put", HEADS, one.sync)), exclusive=False
        )
        two_slow.sync()
        _one_fork(one, two, memory)


def merge_folders(one: Path, two: Path) -> None:
    """As a synced folder does: what one lacks is copied from the other, and what was deleted comes back."""
    for source, target in ((one, two), (two, one)):
        for path in source.rglob("*"):
            copy = target / path.relative_to(source)
            if path.is_file() and not copy.exists():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, copy)


def test_copies_of_a_folder_that_are_merged_later_lose_nothing(tmp_path: Path, make: Make) -> None:
    for _ in range(4):
        number = next(_numbers)
        folders = [tmp_path / f"folder{number}-{each}" for each in (1, 2)]
        for folder in folders:
            folder.mkdir()
        one, two = (
            make(f"machine{number}-{each}", DirectoryRemote(folder), exclusive=False)
            for each, folder in enumerate(folders)
        )
        one.say("notes", "a")
        one.say("gone", "g")
        one.say("named", "n")
        one.sync()
        merge_folders(*folders)
        two.sync()
        merge_folders(*folders)
        for word in "bd":
            one.say("notes", word)
            one.sync()
        two.say("notes", "c")
        two.say("named", "m")
        two.sync()
        one.rename("named", "renamed")
        one.remove("gone")
        one.sync()
        for _ in range(4):
            for machine in (one, two):
                merge_folders(*folders)
                assert machine.sync().faults == []
        merge_folders(*folders)
        assert did(one.sync()) == did(two.sync()) == {}
        assert one.talks() == two.talks()
        assert one.faults() == two.faults() == []
        talks = list(one.talks().values())
        # Where one had been renamed and the other gone on with, that can be there twice.
        assert set(talks) == {"a b d", "a c", "n m"}
        assert len(talks) in (3, 4)


def test_a_removal_beside_an_entry_of_the_same_number_does_not_remove_what_it_had_not_seen(
    make: Make,
) -> None:
    for _ in range(4):
        memory, number = MemoryRemote(), next(_numbers)
        one, two = (make(f"{name}{number}", memory, exclusive=False) for name in ("one", "two"))
        one.say("notes", "a")
        converge(one, two)
        one.say("notes", "b")
        two.remove("notes")
        before = objects(memory)
        one.sync()
        ours = objects(memory)
        put_back(memory, before)
        two.sync()
        for name, data in ours.items():
            memory.put(name, data)
        converge(one, two)
        assert list(one.talks().values()) == list(two.talks().values()) == ["a b"]
        assert one.state(*one.names()) == AB


# Lost replies


@pytest.mark.parametrize("again", [True, False])
def test_an_entry_whose_reply_was_lost_is_recognised_as_ours(
    memory: MemoryRemote, make: Make, again: bool
) -> None:
    def lose() -> None:
        raise TransientError("the connection was closed")

    one, two = make("one", memory), make("two", memory)
    one.say("notes", "a")
    converge(one, two)
    one.say("notes", "b")
    lossy = WatchedRemote(memory, after=once("put", HEADS, lose))
    if again:
        slow = make("one", RetryingRemote(lossy, sleep=lambda _: None))
        assert did(slow.sync()) == {"pushed": ["notes"]}
    else:
        with pytest.raises(TransientError):
            make("one", lossy).sync()
        assert did(one.sync()) == {}  # it has been sent
    assert did(one.sync()) == {}
    assert did(two.sync()) == {"pulled": ["notes"]}
    assert two.talks() == {"notes": "a b"}


def test_an_entry_whose_reply_was_lost_on_the_wire_is_recognised_as_ours(
    moto: S3Server,
    make: Make,
) -> None:
    rule = Scripted(Fault.LOSE_REPLY, "PUT", "/heads/")
    with S3Proxy(moto.endpoint, rules=[rule]) as proxy:
        remote = on_s3(moto, proxy.url)
        one = make("one", RetryingRemote(remote, sleep=lambda _: None))
        one.say("notes", "a")
        assert did(one.sync()) == {"pushed": ["notes"]}
        assert did(one.sync()) == {}
        two = make("two", remote)
        assert did(two.sync()) == {"pulled": ["notes"]}
        assert two.state("notes") == A


# Older than it was


def _older_and_newer(make: Make, remote: Remote) -> tuple[Machine, dict[str, bytes]]:
    """A machine that has seen more than there was, and what there was."""
    one = make("one", remote)
    one.say("notes", "a")
    one.say("other", "o")
    one.sync()
    before = objects(remote)
    for word in "bcd":
        one.say("notes", word)
        one.sync()
    return one, before


def _is_sent_again(one: Machine, other: Machine) -> None:
    converge(one, other)
    assert one.talks() == other.talks() == {"notes": "a b c d", "other": "o"}
    assert other.state("notes") == one.state("notes")
    assert one.faults() == other.faults() == []


@pytest.mark.parametrize("lost", ["nothing else", "newest", "entries", "all", "manifests"])
def test_a_remote_that_went_back_is_named_and_gets_all_again(near: Remote, make: Make, lost: str) -> None:
    one, before = _older_and_newer(make, near)
    newest = entry_of(one, "notes")
    if lost == "newest":  # and the one before is there, as it always is
        near.delete(newest)
        says = "notes: the remote went back to an older state of it (3; this machine has seen 4)"
    elif lost == "entries":
        put_back(near, {}, f"{newest.rpartition('/')[0]}/")
        says = "notes: the remote has lost it; it is sent again"
    elif lost == "all":
        put_back(near, {})
        says = "notes: the remote has lost it; it is sent again"
    else:
        put_back(near, before, HEADS if lost == "manifests" else "v1/")
        if lost == "manifests":
            other = MANIFESTS + KEYS.name("manifest", one.store.find("other").manifest)
            put_back(near, {other: before[other]}, MANIFESTS)
        says = "notes: the remote went back to an older state of it (1; this machine has seen 4)"
    report = one.sync()
    assert says in report.faults
    assert "notes" in report.pushed
    assert report.forks == []
    assert int(entry_of(one, "notes")[-16:], 16) == 5
    _is_sent_again(one, make("two", near))


def test_an_old_entry_beside_the_newest_is_nothing(memory: MemoryRemote, make: Make) -> None:
    one, before = _older_and_newer(make, memory)
    for name, data in before.items():
        memory.put(name, data)
    assert did(one.sync()) == {}
    _is_sent_again(one, make("two", memory))


def test_a_pull_from_a_remote_that_went_back_says_so_and_keeps_all(memory: MemoryRemote, make: Make) -> None:
    one, before = _older_and_newer(make, memory)
    put_back(memory, before)
    report = one.sync(direction=Direction.PULL)
    assert did(report) == {
        "faults": ["notes: the remote went back to an older state of it (1; this machine has seen 4)"]
    }
    put_back(memory, {})
    report = one.sync(direction=Direction.PULL)
    assert report.faults == ["notes: the remote has lost it", "other: the remote has lost it"]
    assert report.pulled == []
    assert one.talks() == {"notes": "a b c d", "other": "o"}


def test_what_is_older_and_not_here_is_taken_only_if_that_is_wanted(memory: MemoryRemote, make: Make) -> None:
    one, before = _older_and_newer(make, memory)
    two = make("two", memory)
    two.sync()
    one.remove("notes")
    one.sync()
    two.sync()
    put_back(memory, before)
    for _ in range(2):
        report = two.sync()
        assert did(report) == {
            "faults": [
                "notes: the remote went back to an older state of it (1; this machine has seen 5): "
                "`satchel sync pull --accept-older` takes that"
            ]
        }
        assert two.names() == ["other"]
    report = two.sync(accept_older=True)
    assert (report.pulled, report.faults) == (["notes"], [])
    assert two.talks() == {"notes": "a", "other": "o"}
    assert did(two.sync()) == {}


def test_a_removal_that_was_undone_by_deleting_its_entry_is_noticed(memory: MemoryRemote, make: Make) -> None:
    one = make("one", memory)
    one.say("notes", "a")
    one.sync()
    one.remove("notes")
    one.sync()
    folder = HEADS + next(iter(objects(memory, HEADS))).split("/")[2] + "/"
    _, newest = sorted(objects(memory, folder))
    memory.delete(newest)
    assert did(one.sync()) == {
        "faults": [
            "notes: the remote went back to an older state of it (1; this machine has seen 2): "
            "`satchel sync pull --accept-older` takes that"
        ]
    }
    assert one.names() == []


def _session(machine: Machine) -> str:
    (session_id,) = machine.records.session_ids()
    return session_id


def test_what_others_said_on_an_older_remote_does_not_take_the_place_of_what_is_here(
    near: Remote, make: Make
) -> None:
    """By the time this machine looks, the remote has a newer entry than it has seen."""
    one, before = _older_and_newer(make, near)
    put_back(near, before)
    two = make("two", near)
    two.sync()
    for word in "vwxyz":
        two.say("notes", word)
        two.sync()
    report = one.sync()
    assert [each.fork_name for each in report.forks] == ["notes-2"]
    converge(one, two)
    assert (
        one.talks()
        == two.talks()
        == {
            "notes": "a v w x y z",
            "notes-2": "a b c d",
            "other": "o",
        }
    )


def test_a_name_that_was_given_stands_when_the_remote_goes_back(memory: MemoryRemote, make: Make) -> None:
    one = make("one", memory)
    one.say("notes", "a")
    one.sync()
    before = objects(memory)
    one.rename("notes", "renamed")
    one.sync()
    put_back(memory, before)
    assert len(one.sync().faults) == 1
    assert one.talks() == {"renamed": "a"}
    assert make("two", memory).sync().pulled == ["renamed"]


# Damaged and foreign objects


OTHER_KEYS = Keys.of(RootKey(bytes(32)))


def _flip(data: bytes, name: str) -> bytes:
    return data[:60] + bytes([data[60] ^ 1]) + data[61:]


DAMAGE: dict[str, Callable[[bytes, str], bytes]] = {
    "flipped": _flip,
    "cut": lambda data, name: data[: len(data) // 2],
    "cut by one": lambda data, name: data[:-1],
    "empty": lambda data, name: b"",
    "longer": lambda data, name: data + b"\0",
    "of another key": lambda data, name: seal(OTHER_KEYS.objects, name, b"{}"),
    "plain": lambda data, name: b"{}",
    "of another version": lambda data, name: data[:7] + b"\2" + data[8:],
    "other content": lambda data, name: seal(KEYS.objects, name, b"something else"),
}


@pytest.fixture
def two_sessions(make: Make, memory: MemoryRemote) -> Machine:
    one = make("one", memory)
    one.say("good", "g")
    one.say("bad", "a", "b", "c")
    one.go_back("bad", 1)
    one.say("bad", "x")
    one.sync()
    return one


def _object_of(one: Machine, kind: str, name: str = "bad") -> str:
    manifest = one.manifest(name)
    assert manifest.tail is not None
    left = manifest.abandoned[-1] if manifest.abandoned else ""
    return {
        "entry": lambda: entry_of(one, name),
        "manifest": lambda: MANIFESTS + KEYS.name("manifest", one.store.find(name).manifest),
        "block": lambda: BLOCKS + KEYS.name("block", manifest.blocks[0].sha256),
        "tail": lambda: BLOCKS + KEYS.name("block", manifest.tail.sha256),
        "branch": lambda: MANIFESTS + KEYS.name("manifest", left),
        "branch block": lambda: BLOCKS + KEYS.name("block", one.store.get_manifest(left).blocks[-1].sha256),
    }[kind]()


KINDS = ("entry", "manifest", "block", "tail", "branch", "branch block")
PAIRS = tuple(itertools.pairwise((*KINDS, KINDS[0])))


def _right_or_absent(one: Machine, two: Machine, kind: str) -> None:
    """What another machine has of the session `bad` when an object of this kind was damaged."""
    assert two.state("good") == one.state("good")
    if kind in ("entry", "manifest"):
        assert two.talks() == {"good": "g"}
    else:
        assert two.talks() == {"bad": "a x", "good": "g"}
        assert two.state("bad") == (None if kind in ("block", "tail") else one.state("bad"))
    # What was left behind stays named: it comes should it be right again.
    if kind == "branch":
        (fault,) = two.faults()
        assert "what was said there cannot be gone back to; the present words are safe" in fault
    elif kind == "branch block":
        (fault,) = two.faults()
        assert "its words are safe; the context will be read again if you go back there" in fault
        assert two.branches("bad") == ["a b c"]
    else:
        assert two.faults() == []


@pytest.mark.parametrize(
    ("kind", "damage"),
    [("block", damage) for damage in DAMAGE]
    + [(kind, damage) for kind in KINDS for damage in ("flipped", "of another key") if kind != "block"],
)
def test_an_object_that_is_damaged_is_named_and_the_rest_comes(
    memory: MemoryRemote, make: Make, two_sessions: Machine, kind: str, damage: str
) -> None:
    name = _object_of(two_sessions, kind)
    right = memory.get(name, 1 << 30)
    memory.put(name, DAMAGE[damage](right, name))
    two = make("two", memory)
    report = two.sync()
    (fault,) = report.faults
    # What only a writer with the key can have made is named by what it claims to be.
    assert name in fault or (kind == "entry" and "entry" in fault)
    assert "good" in report.pulled
    _right_or_absent(two_sessions, two, kind)
    report = two.sync()
    assert len(report.faults) == (kind != "branch")
    _right_or_absent(two_sessions, two, kind)
    memory.put(name, right)
    two.sync()
    assert did(two.sync()) == {}
    assert two.talks() == {"bad": "a x", "good": "g"}
    assert two.state("bad") == two_sessions.state("bad")
    if kind != "branch":  # which comes with the next generation
        assert two.faults() == []


@pytest.mark.parametrize(
    ("kind", "other_kind"),
    [(kind, kind) for kind in KINDS[:4]]
    + [
        pytest.param(*pair, marks=() if pair in PAIRS else pytest.mark.slow)
        for pair in itertools.permutations(KINDS, 2)
    ],
)
def test_an_object_in_place_of_another_is_named_and_the_rest_comes(
    memory: MemoryRemote, make: Make, two_sessions: Machine, kind: str, other_kind: str
) -> None:
    if kind == other_kind:
        source = _object_of(two_sessions, kind, "good")
        if kind == "block":
            assert source != _object_of(two_sessions, kind)
    else:
        source = _object_of(two_sessions, other_kind)
    name = _object_of(two_sessions, kind)
    memory.put(name, memory.get(source, 1 << 30))
    two = make("two", memory)
    report = two.sync()
    (fault,) = report.faults
    assert name in fault
    assert "good" in report.pulled
    _right_or_absent(two_sessions, two, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_that_is_missing_is_named_and_the_rest_comes(
    memory: MemoryRemote, make: Make, two_sessions: Machine, kind: str
) -> None:
    name = _object_of(two_sessions, kind)
    memory.delete(name)
    two = make("two", memory)
    report = two.sync()
    if kind == "entry":
        assert did(report) == {"pulled": ["good"]}
    else:
        assert [name in fault for fault in report.faults] == [True]
    _right_or_absent(two_sessions, two, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_session_that_is_here_outlasts_a_damaged_object(
    memory: MemoryRemote, make: Make, two_sessions: Machine, kind: str
) -> None:
    """Of its next generation; it goes on here, and nothing is taken that is not right."""
    two = make("two", memory)
    two.sync()
    two_sessions.say("bad", "y")
    two_sessions.go_back("bad", 2)
    two_sessions.say("bad", "z")
    two_sessions.say("good", "h")
    two_sessions.sync()
    name = _object_of(two_sessions, kind)
    memory.put(name, _flip(memory.get(name, 1 << 30), name))
    report = two.sync()
    assert two.talks()["good"] == "g h"
    assert two.talks()["bad"] == ("a x" if kind in ("entry", "manifest") else "a x z")
    assert len(two.faults()) == kind.startswith("branch")
    assert [name in fault for fault in report.faults] in ([True], [])


def test_an_entry_under_another_sessions_or_number_is_refused(
    memory: MemoryRemote, make: Make, two_sessions: Machine
) -> None:
    good, bad = entry_of(two_sessions, "good"), entry_of(two_sessions, "bad")
    next_bad = f"{bad[:-1]}2"
    two = make("two", memory)
    for data in (memory.get(good, 1 << 20), memory.get(bad, 1 << 20)):
        memory.put(next_bad, data)
        report = two.sync()
        assert report.faults == [f"bad: object {next_bad} is damaged, or of another key"]
        assert "bad" not in two.names()
    # Nor is it with the key.
    entry = decode_entry(two.remote.get(good, 1 << 20), good[-16:])
    two.remote.put(next_bad, encode_entry(entry.model_copy(update={"number": 2})))
    assert two.sync().faults == [f"bad: object {next_bad} is the entry of another session"]
    two.remote.put(next_bad, two.remote.get(bad, 1 << 20))
    assert two.sync().faults == ["bad: entry 0000000000000002 is another one's"]
    memory.delete(next_bad)
    assert did(two.sync()) == {"pulled": ["bad"]}


def test_an_entry_that_says_otherwise_than_its_manifest_is_refused(
    memory: MemoryRemote, make: Make, two_sessions: Machine
) -> None:
    bad = entry_of(two_sessions, "bad")
    entry = decode_entry(two_sessions.remote.get(bad, 1 << 20), bad[-16:])
    head = two_sessions.store.find("good")
    for changes in (
        {"name": "another"},
        {"manifest": head.manifest},
        {"generation": 9},
    ):
        lying = entry.model_copy(update={"head": entry.head.model_copy(update=changes)})
        two_sessions.remote.put(bad, encode_entry(lying))
        two = make(f"two{next(_numbers)}", memory)
        report = two.sync()
        assert [fault.split(": ", 1)[1] for fault in report.faults] == [
            "its entry says otherwise than its manifest"
        ]
        assert two.names() == ["good"]


def test_an_entry_that_is_listed_and_not_there_stops_nothing(
    memory: MemoryRemote, make: Make, two_sessions: Machine
) -> None:
    class Lying(WatchedRemote):
        def list(self, prefix: str) -> Iterator:
            found = list(super().list(prefix))
            yield from found
            for each in found:
                if each.name.startswith(HEADS):
                    yield type(each)(f"{each.name[:-16]}001fffffffffffff", 1000, 1.0)

    two = make("two", Lying(memory))
    report = two.sync()
    assert report.faults == []
    assert two.names() == ["bad", "good"]
    two.say("good", "h")
    report = two.sync()
    assert [fault.split(":")[0] for fault in report.faults] == ["good"]
    assert two.talks()["good"] == "g h"


def test_a_damaged_head_here_is_named_and_the_rest_is_synced(memory: MemoryRemote, make: Make) -> None:
    one = make("one", memory)
    bad = one.say("bad", "a").head.session_id
    one.say("good", "g")
    one.sync()
    one.say("good", "h")
    one.store.head_path(bad).write_bytes(b"{}")
    report = one.sync()
    (fault,) = report.faults
    assert f"the head of session {bad[:12]} is damaged" in fault
    assert report.pushed == ["good"]
    assert one.store.head_path(bad).read_bytes() == b"{}"  # it may be restored
    two = make("two", memory)
    two.sync()
    assert two.talks() == {"bad": "a", "good": "g h"}


@pytest.mark.parametrize("kind", ["block", "tail", "branch block"])
def test_what_is_lost_here_is_not_lost_for_the_others(memory: MemoryRemote, make: Make, kind: str) -> None:
    one = make("one", memory)
    one.say("notes", "a", "b", "c")
    one.go_back("notes", 1)
    one.say("notes", "x")
    manifest = one.manifest("notes")
    branch = one.store.get_manifest(manifest.abandoned[0])
    ref = {"block": manifest.blocks[-1], "tail": manifest.tail, "branch block": branch.blocks[-1]}[kind]
    one.store.block_path(ref.sha256).unlink()
    report = one.sync()
    (fault,) = report.faults
    assert fault.startswith(f"notes: block {ref.sha256[:12]} is missing: ")
    assert report.pushed == ["notes"]
    assert one.sync().pushed == []
    two = make("two", memory)
    assert did(two.sync()) == {"pulled": ["notes"]}
    assert two.talks() == {"notes": "a x"}
    assert two.branches("notes") == ["a b c"]
    assert (two.state("notes") is None) == (kind != "branch block")
    assert two.faults() == []


def test_state_that_is_here_is_not_given_up_for_words_that_are_the_same(
    memory: MemoryRemote, make: Make
) -> None:
    one, two = make("one", memory), make("two", memory)
    one.say("notes", "a")
    converge(one, two)
    tail = one.manifest("notes").tail
    one.store.block_path(tail.sha256).unlink()
    one.rename("notes", "renamed")
    one.sync()
    converge(two, one)
    assert two.talks() == {"renamed": "a"}
    assert two.state("renamed") == A


# What is told on the way


def test_progress_is_told_of_each_session(memory: MemoryRemote, make: Make) -> None:
    told: list[tuple[str, str, int, int]] = []

    def note(now: Progress) -> None:
        told.append((now.verb, now.name, now.done_bytes, now.total_bytes))

    one = make("one", memory, progress=note)
    one.say("notes", "a", "b")
    one.sync()
    total = sum(ref.stored_bytes for ref in (*one.manifest("notes").blocks, one.manifest("notes").tail))
    assert told[0] == ("sending", "notes", 0, total)
    assert told[-1] == ("sending", "notes", total, total)
    assert len(told) == 4
    told.clear()
    one.sync()
    assert told == []
    make("two", memory, progress=note).sync()
    assert (told[0], told[-1]) == (
        ("fetching", "notes", 0, total),
        ("fetching", "notes", total, total),
    )


def test_status_says_how_each_session_stands_and_changes_nothing(memory: MemoryRemote, make: Make) -> None:
    one, two = make("one", memory), make("two", memory)
    for name in ("same", "sent", "fetched", "apart", "gone-here", "gone-there", "words", "damaged"):
        one.say(name, "a")
    one.sync()
    words = one.store.session_id("words")
    two.sync(only=[words], fetch_state=False)
    two.sync(only=[each.session_id for each in one.store.heads().heads if each.session_id != words])
    one.say("fetched", "b")
    one.say("apart", "b")
    one.remove("gone-there")
    one.sync()
    one.say("new", "n")
    one.sync()
    two.say("sent", "c")
    two.say("apart", "c")
    two.say("own", "o")
    two.remove("gone-here")
    name = entry_of(one, "damaged")
    memory.put(f"{name[:-1]}2", b"")
    before = objects(memory)
    states = {each.name: (each.state, each.number) for each in two.syncer.status()}
    assert objects(memory) == before
    damaged = f"object {name[:-1]}2 is damaged, or of another key"
    assert states == {
        "same": ("in sync", 1),
        "sent": ("to be sent", 1),
        "fetched": ("to be fetched", 2),
        "apart": ("changed here and there", 2),
        "gone-here": ("removed here", 1),
        "gone-there": ("removed there", 2),
        "words": ("its context is not here yet", 1),
        "damaged": (damaged, 0),
        "new": ("to be fetched", 1),
        "own": ("to be sent", 0),
    }
