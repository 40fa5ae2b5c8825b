"""What is deleted from a remote, and what never is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from machines import KEYS, Machine, WatchedRemote, converge, once

from satchel.remotes.encrypted import EncryptedRemote
from satchel.remotes.memory import MemoryRemote
from satchel.remotes.remote import Listed, Remote
from satchel.remotes.s3 import MAX_LINK_S
from satchel.sync.collect import RemoteCollected, collect_remote
from satchel.sync.entries import BLOCKS, HEADS, MANIFESTS
from satchel.sync.keys import KEY_OBJECT

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def memory(clock: Clock) -> MemoryRemote:
    remote = MemoryRemote(now=clock)
    remote.put(KEY_OBJECT, b"{}")
    return remote


Make = Callable[..., Machine]


@pytest.fixture
def make(tmp_path: Path, memory: MemoryRemote) -> Make:
    def make(name: str, remote: Remote = memory, **options: object) -> Machine:
        return Machine(tmp_path / name, remote, **options)  # type: ignore[arg-type]

    return make


def collect(remote: Remote, **options: object) -> RemoteCollected:
    return collect_remote(EncryptedRemote(remote, KEYS.objects), KEYS, **options)  # type: ignore[arg-type]


def names(remote: Remote, prefix: str = "v1/") -> set[str]:
    return {each.name for each in remote.list(prefix)}


def object_names(machine: Machine, name: str) -> tuple[str, set[str]]:
    """The manifest and the blocks of a session's newest generation, in the remote."""
    head, manifest = machine.store.find(name), machine.manifest(name)
    assert manifest.tail is not None
    refs = (*manifest.blocks, manifest.tail)
    blocks = {BLOCKS + KEYS.name("block", ref.sha256) for ref in refs}
    return MANIFESTS + KEYS.name("manifest", head.manifest), blocks


def test_what_was_superseded_goes_when_it_is_old_enough(
    clock: Clock, memory: MemoryRemote, make: Make
) -> None:
    one = make("one")
    one.say("notes", "a")
    one.sync()
    first, blocks = object_names(one, "notes")
    one.say("notes", "b")
    one.sync()
    second, more = object_names(one, "notes")
    gone = blocks - more  # the tail
    assert len(gone) == 1
    size = sum(len(memory.get(name, 1 << 20)) for name in (first, *gone))
    clock.now_s = DAY_S - 1
    assert collect(memory) == RemoteCollected(younger_bytes=size)
    assert {first, *gone} <= names(memory)
    clock.now_s = DAY_S
    before = names(memory)
    expected = RemoteCollected(blocks=1, manifests=1, freed_bytes=size)
    assert collect(memory, dry_run=True) == expected
    assert names(memory) == before
    assert collect(memory) == expected
    assert before - names(memory) == {first, *gone}
    assert collect(memory) == RemoteCollected()
    two = make("two")
    two.sync()
    assert two.state("notes") == one.state("notes")
    assert KEY_OBJECT in names(memory)
    assert second in names(memory)


def test_the_grace_counts_from_when_an_object_came_last(
    clock: Clock, memory: MemoryRemote, make: Make
) -> None:
    one = make("one")
    one.say("notes", "a")
    one.sync()
    first, _ = object_names(one, "notes")
    one.say("notes", "b")
    one.sync()
    clock.now_s = 10 * DAY_S
    memory.put(first, memory.get(first, 1 << 20))
    clock.now_s += HOUR_S
    assert collect(memory, grace_s=2 * HOUR_S).manifests == 0
    assert collect(memory, grace_s=HOUR_S).manifests == 1
    assert first not in names(memory)


def test_the_entry_before_the_newest_stays_and_older_ones_go(
    clock: Clock, memory: MemoryRemote, make: Make
) -> None:
    one = make("one")
    one.say("notes", "a")
    one.sync()
    (first,) = names(memory, HEADS)
    data = memory.get(first, 1 << 20)
    for word in "bc":
        one.say("notes", word)
        one.sync()
    memory.put(first, data)  # by whoever was slow
    assert len(names(memory, HEADS)) == 3
    clock.now_s = DAY_S
    assert collect(memory).entries == 1
    assert names(memory, HEADS) == {f"{first[:-1]}2", f"{first[:-1]}3"}


def test_what_was_left_behind_stays_with_its_blocks(clock: Clock, memory: MemoryRemote, make: Make) -> None:
    one = make("one")
    one.say("notes", "a", "b", "c")
    one.sync()
    branch, blocks = object_names(one, "notes")
    tail = one.manifest("notes").tail
    one.go_back("notes", 1)
    one.say("notes", "x")
    one.sync()
    clock.now_s = DAY_S
    done = collect(memory)
    # One goes on from a branch's blocks, and its tail is of no use.
    assert (done.blocks, done.manifests) == (1, 0)
    unused = BLOCKS + KEYS.name("block", tail.sha256)
    assert names(memory) >= {branch, *blocks} - {unused}
    assert unused not in names(memory)
    two = make("two")
    assert two.sync().faults == []
    assert two.branches("notes") == ["a b c"]
    assert two.faults() == []


def test_a_removed_session_goes_and_that_it_was_removed_stays(
    clock: Clock, memory: MemoryRemote, make: Make
) -> None:
    one, two = make("one"), make("two")
    one.say("notes", "a")
    one.say("kept", "a")  # which shares its block
    converge(one, two)
    gone, blocks = object_names(one, "notes")
    kept, shared = object_names(one, "kept")
    assert len(blocks & shared) == 1
    one.remove("notes")
    one.sync()
    clock.now_s = DAY_S
    done = collect(memory)
    assert (done.blocks, done.manifests, done.entries) == (1, 1, 0)
    assert not names(memory) & {gone, *(blocks - shared)}
    assert names(memory) >= {kept, *shared}
    converge(one, two, make("three"))
    assert one.names() == two.names() == ["kept"]
    assert two.faults() == []


def test_entries_beside_the_newest_keep_what_they_need(
    clock: Clock, memory: MemoryRemote, make: Make
) -> None:
    one, two = make("one", exclusive=False), make("two", exclusive=False)
    one.say("notes", "a")
    converge(one, two)
    one.say("notes", "b")
    two.say("notes", "c")
    before = names(memory)
    one.sync()
    ours = {name: memory.get(name, 1 << 20) for name in names(memory)}
    for name in names(memory, HEADS) - before:
        memory.delete(name)
    two.sync()
    for name, data in ours.items():
        memory.put(name, data)
    needed = [object_names(machine, "notes") for machine in (one, two)]
    clock.now_s = DAY_S
    assert collect(memory).faults == ()
    for manifest, blocks in needed:
        assert names(memory) >= {manifest, *blocks}
    converge(one, two)
    assert sorted(one.talks().values()) == sorted(two.talks().values()) == ["a b", "a c"]
    assert None not in {one.state(name) and "state" for name in one.names()}


@pytest.mark.parametrize("broken", ["an entry", "a foreign entry", "a manifest", "no manifest", "a branch"])
def test_nothing_is_deleted_while_something_cannot_be_read(
    clock: Clock, memory: MemoryRemote, make: Make, broken: str
) -> None:
    one = make("one")
    one.say("notes", "a", "b")
    one.sync()
    branch, _ = object_names(one, "notes")
    one.go_back("notes", 1)
    one.say("notes", "c")
    one.say("other", "o")
    one.sync()
    one.say("other", "p")
    one.sync()
    manifest, _ = object_names(one, "notes")
    entry = HEADS + KEYS.name("session", one.store.session_id("notes")) + f"/{2:016x}"
    name = {
        "an entry": entry,
        "a foreign entry": HEADS + "0" * 64 + f"/{1:016x}",
        "a manifest": manifest,
        "no manifest": manifest,
        "a branch": branch,
    }[broken]
    right = memory.get(name, 1 << 20) if name in names(memory) else None
    if broken == "no manifest":
        memory.delete(name)
    else:
        memory.put(name, b"SATCENC\x01" + bytes(100))
    clock.now_s = 30 * DAY_S
    before = names(memory)
    done = collect(memory)
    assert len(done.faults) == 1
    assert name in done.faults[0]
    assert done == RemoteCollected(faults=done.faults)
    assert names(memory) == before
    memory.put(name, right) if right else memory.delete(name)
    assert collect(memory).manifests >= 1


def test_shares_go_when_no_link_to_them_holds_and_so_do_probes(clock: Clock, memory: MemoryRemote) -> None:
    memory.put("v1/shares/" + "a" * 32, b"12345")
    memory.put("v1/probe/" + "b" * 32, b"123")
    memory.put("v1/unknown/" + "c" * 32, b"1")
    memory.put("v1/blocks/" + "d" * 64, b"12")
    clock.now_s = HOUR_S
    assert collect(memory) == RemoteCollected(younger_bytes=3 + 2)
    assert collect(memory, grace_s=HOUR_S) == RemoteCollected(probes=1, blocks=1, freed_bytes=3 + 2)
    clock.now_s = MAX_LINK_S - 1
    assert collect(memory) == RemoteCollected()
    clock.now_s = MAX_LINK_S
    assert collect(memory) == RemoteCollected(shares=1, freed_bytes=5)
    assert names(memory) == {KEY_OBJECT, "v1/unknown/" + "c" * 32}


def test_an_age_that_is_not_told_is_young(memory: MemoryRemote) -> None:
    class Ageless(WatchedRemote):
        def list(self, prefix: str) -> Iterator[Listed]:
            return (replace(each, age_s=None) for each in super().list(prefix))

    memory.put("v1/blocks/" + "d" * 64, b"12")
    assert collect(Ageless(memory), grace_s=0.0) == RemoteCollected(younger_bytes=2)


def test_uploads_that_were_never_finished_are_ended_but_by_a_dry_run(memory: MemoryRemote) -> None:
    asked: list[float] = []

    def abort(age_s: float) -> int:
        asked.append(age_s)
        return 3

    assert collect(memory, dry_run=True, abort_uploads=abort) == RemoteCollected()
    assert asked == []
    assert collect(memory, grace_s=2 * HOUR_S, abort_uploads=abort) == RemoteCollected(uploads=3)
    assert asked == [2 * HOUR_S]


@pytest.mark.parametrize("kind", ["list", "delete"])
def test_what_comes_to_be_needed_meanwhile_is_spared(
    clock: Clock, memory: MemoryRemote, make: Make, kind: str
) -> None:
    """While all is looked at, or when the first object is about to be deleted."""
    one, two = make("one"), make("two")
    one.say("notes", "a", "b", "c", "d")
    one.sync()
    one.remove("notes")
    one.sync()
    two.say("again", "a", "b", "c", "d")  # in the same blocks
    clock.now_s = 2 * DAY_S
    prefix = HEADS if kind == "list" else BLOCKS
    watched = WatchedRemote(memory, before=once(kind, prefix, two.sync))
    assert collect(watched).faults == ()
    manifest, blocks = object_names(two, "again")
    # One object at most was under way.
    assert manifest in names(memory)
    assert len(blocks - names(memory)) <= (kind == "delete")


def test_who_relies_on_what_is_collected_before_it_is_named_sends_it_again(
    clock: Clock, memory: MemoryRemote, make: Make
) -> None:
    one = make("one")
    one.say("notes", "a", "b", "c")
    one.sync()
    _, blocks = object_names(one, "notes")
    one.remove("notes")
    one.sync()
    clock.now_s = HOUR_S / 3  # young enough to be relied on

    def collect_all() -> None:
        done = collect(memory, grace_s=HOUR_S / 4)
        assert done.blocks == len(blocks)

    watched = WatchedRemote(memory, before=once("put", HEADS, collect_all))
    two = make("two", watched)
    two.say("again", "a", "b", "c")
    two.sync()
    sent = watched.names("put")
    assert [name.split("/")[1] for name in sent] == [
        "blocks",
        "manifests",
        "heads",
        "blocks",
        "blocks",
        "blocks",
    ]
    three = make("three")
    assert three.sync().pulled == ["again"]
    assert three.state("again") == two.state("again")
    assert three.faults() == []


def test_an_old_object_that_no_session_needs_is_not_relied_on(
    clock: Clock, memory: MemoryRemote, make: Make
) -> None:
    one = make("one")
    one.say("notes", "a", "b", "c")
    one.sync()
    one.remove("notes")
    one.sync()
    clock.now_s = 13 * HOUR_S
    watched = WatchedRemote(memory)
    two = make("two", watched)
    two.say("again", "a", "b", "c")
    two.sync()
    _, blocks = object_names(two, "again")
    assert set(watched.names("put")) >= blocks
    two.say("third", "a", "b", "c")
    watched.calls.clear()
    clock.now_s = 26 * HOUR_S
    two.sync()  # which `again` needs, and so they stay
    assert len([name for name in watched.names("put") if name.startswith(BLOCKS)]) == 1
