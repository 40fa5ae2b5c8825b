"""What is done about a session, whose words count, and what entries are: values in, values out."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from satchel.cache_store.manifest import MAX_GENERATION, Head, Manifest, Message
from satchel.cache_store.snapshot import canonical_json
from satchel.errors import DamagedError, SatchelError, VersionError
from satchel.remotes.remote import Listed
from satchel.sync.decide import Step, decide
from satchel.sync.entries import (
    MAX_SUPERSEDED,
    Entry,
    Named,
    by_session,
    decode_entry,
    encode_entry,
    entry_name,
    number_of,
    superseding,
    tips,
    unread,
)
from satchel.sync.records import State, SyncRecord
from satchel.sync.words import Relation, Words, relation

SESSION, OTHER_SESSION = "5e" * 16, "0a" * 16
OURS, THEIRS, BEFORE = "a" * 64, "b" * 64, "c" * 64
TIME = datetime(2025, 1, 2, tzinfo=UTC)


def head(manifest: str, session_id: str = SESSION) -> Head:
    return Head(
        session_id=session_id,
        name="notes",
        manifest=manifest,
        generation=1,
        updated_at=TIME,
        model_name="embedded",
        profile_name="turbo4",
        turns=1,
        token_count=10,
        stored_bytes=100,
        title="hello",
    )


def entry(
    number: int,
    manifest: str | None = THEIRS,
    removed: str | None = None,
    supersedes: tuple[str, ...] = (),
    session_id: str = SESSION,
) -> Entry:
    there = head(manifest, session_id) if manifest else None
    return Entry(session_id=session_id, number=number, head=there, removed=removed, supersedes=supersedes)


def record(of: Entry, name: str, manifest: str | None, state: State = "here") -> SyncRecord:
    return SyncRecord(name=name, entry=of, manifest=manifest, state=state)


# What is to be done. `seen` is entry 3, or nothing.

SEEN = Named(f"{3:016x}-{1:016x}", entry(3))
NEWER = f"{4:016x}-{1:016x}"
AFTER_SEEN = {"supersedes": (SEEN.id,)}
THERE = {
    "nothing": None,
    "an older one": Named(f"{2:016x}-{1:016x}", entry(2)),
    "the one seen": SEEN,
    "another one of its number": Named(f"{3:016x}-{2:016x}", entry(3)),
    "another one of its name": Named(SEEN.name, entry(3, "e" * 64)),
    "a newer one with ours": Named(NEWER, entry(4, OURS)),
    "a newer one": Named(NEWER, entry(4, "e" * 64, **AFTER_SEEN)),
    "a newer one that knows not of it": Named(NEWER, entry(4, "e" * 64)),
    "a removal of ours": Named(NEWER, entry(4, None, removed=OURS)),
    "a removal": Named(NEWER, entry(4, None, removed="e" * 64, **AFTER_SEEN)),
    "a removal that knows not of it": Named(NEWER, entry(4, None, removed="e" * 64)),
}
N, COMPARE, NOTE, FETCH, FORK = (
    Step.NOTHING,
    Step.COMPARE,
    Step.NOTE,
    Step.FETCH,
    Step.REMOVED_AND_CHANGED,
)
BACK, RETURNED, REMOVE, GONE = Step.ROLLED_BACK, Step.RETURNED, Step.REMOVE, Step.VANISHED
# By what is here: a step for each of `THERE`, in its order.
TABLE = {
    "none, never seen": (N, *[FETCH] * 7, *[NOTE] * 3),
    "none, never seen, removed": (N, *[RETURNED] * 7, *[NOTE] * 3),
    "none, seen": (N, BACK, *[FETCH] * 6, *[NOTE] * 3),
    "none, seen, removed": (N, BACK, Step.SEND_REMOVAL, *[RETURNED] * 5, *[NOTE] * 3),
    "never seen": (Step.SEND, *[COMPARE] * 4, NOTE, *[COMPARE] * 2, REMOVE, FORK, FORK),
    "as seen": (GONE, BACK, N, COMPARE, COMPARE, NOTE, FETCH, COMPARE, REMOVE, REMOVE, FORK),
    "as seen, its state missing": (
        *(GONE, BACK, Step.FETCH_STATE, COMPARE, COMPARE, NOTE, FETCH, COMPARE, REMOVE, REMOVE, FORK),
    ),
    "as seen, its state dropped": (
        *(GONE, BACK, Step.FETCH_DROPPED, COMPARE, COMPARE, NOTE, FETCH, COMPARE, REMOVE, REMOVE, FORK),
    ),
    "changed": (GONE, BACK, Step.SEND, COMPARE, COMPARE, NOTE, COMPARE, COMPARE, REMOVE, FORK, FORK),
}


@pytest.mark.parametrize(("here", "what"), list(product(TABLE, THERE)))
def test_what_is_to_be_done(here: str, what: str) -> None:
    local = None if here.startswith("none") else head(OURS)
    state: State = "missing" if "missing" in here else "dropped" if "dropped" in here else "here"
    seen = None
    if "never" not in here:
        seen = record(SEEN.entry, SEEN.name, BEFORE if here == "changed" else OURS, state)
    expected = TABLE[here][list(THERE).index(what)]
    assert decide(local, seen, THERE[what], here.endswith("removed")) is expected
    if local:  # a note that it was removed is of no account once it is here again
        assert decide(local, seen, THERE[what], removed_here=True) is expected


REMOVED = Named(SEEN.name, entry(3, None, removed=OURS))


@pytest.mark.parametrize(
    ("local", "there", "expected"),
    [
        (None, None, N),
        (None, REMOVED, N),
        (None, Named("2".zfill(16), entry(2)), BACK),
        (None, Named("4".zfill(16), entry(4)), FETCH),  # somebody kept it, and went on
        (head(OURS), None, Step.SEND),  # put back by hand, and so is all that the remote knows
        (head(OURS), REMOVED, REMOVE),
        (head(THEIRS), REMOVED, FORK),
        (head(OURS), Named("2".zfill(16), entry(2, None)), BACK),
        (head(OURS), Named("4".zfill(16), entry(4)), COMPARE),
        (head(OURS), Named("4".zfill(16), entry(4, supersedes=(REMOVED.id,))), COMPARE),
        (head(OURS), Named("4".zfill(16), entry(4, OURS)), NOTE),
    ],
)
def test_what_is_to_be_done_after_a_removal_was_seen(
    local: Head | None, there: Named | None, expected: Step
) -> None:
    seen = record(REMOVED.entry, REMOVED.name, None)
    assert decide(local, seen, there, removed_here=False) is expected
    if local is None and expected is FETCH:
        assert decide(local, seen, there, removed_here=True) is RETURNED


def test_every_step_can_come() -> None:
    assert {step for row in TABLE.values() for step in row} == set(Step)


# Whose words count

Talk = tuple[str, ...]
talks = st.lists(st.sampled_from("ab"), max_size=4).map(tuple)
versions = st.tuples(talks, st.lists(talks, max_size=3).map(tuple))


def manifest(talk: Talk, abandoned: tuple[str, ...] = ()) -> Manifest:
    return Manifest(
        session_id=SESSION,
        name="notes",
        generation=1,
        parent=None,
        created_at=TIME,
        model_name="embedded",
        profile_name="turbo4",
        identity={},
        messages=tuple(Message(role="user", content=each) for each in talk),
        blocks=(),
        tail=None,
        token_count=0,
        abandoned=abandoned,
    )


def words(version: tuple[Talk, tuple[Talk, ...]], unreadable: tuple[str, ...] = ()) -> Words:
    talk, left = version
    ids = {f"{number:064x}": each for number, each in enumerate(left)}
    return Words.of(
        manifest(talk, (*ids, *unreadable)), lambda each: manifest(ids[each]) if each in ids else None
    )


def is_in(talk: Talk, version: tuple[Talk, tuple[Talk, ...]]) -> bool:
    return any(each[: len(talk)] == talk for each in (version[0], *version[1]))


def has_all(one: tuple[Talk, tuple[Talk, ...]], other: tuple[Talk, tuple[Talk, ...]]) -> bool:
    return all(is_in(talk, one) for talk in (other[0], *other[1]))


@given(versions, versions)
def test_a_version_has_all_of_another_if_every_talk_of_it_begins_one_of_its_own(
    ours: tuple[Talk, tuple[Talk, ...]], theirs: tuple[Talk, tuple[Talk, ...]]
) -> None:
    expected = {
        (True, True): Relation.SAME,
        (True, False): Relation.OURS_HAS_ALL,
        (False, True): Relation.THEIRS_HAS_ALL,
        (False, False): Relation.BOTH_HAVE_OWN,
    }[has_all(ours, theirs), has_all(theirs, ours)]
    assert relation(words(ours), words(theirs)) is expected


def test_who_said_it_counts_and_where_a_message_ends() -> None:
    def of(*messages: tuple[str, str]) -> Words:
        said = tuple(Message(role=role, content=content) for role, content in messages)  # type: ignore[arg-type]
        return Words.of(manifest(()).model_copy(update={"messages": said}), lambda _: None)

    one = of(("user", "ab"), ("assistant", "c"))
    for other in (
        of(("user", "a"), ("assistant", "bc")),
        of(("assistant", "ab"), ("user", "c")),
        of(("user", "abc")),
    ):
        assert relation(one, other) is Relation.BOTH_HAVE_OWN


def test_a_branch_that_cannot_be_read_is_its_own_words() -> None:
    lost = words((("a",), ()), unreadable=("f" * 64,))
    assert relation(lost, words((("a", "b"), ()))) is Relation.BOTH_HAVE_OWN
    assert relation(lost, words((("a", "b"), ()), unreadable=("f" * 64,))) is Relation.THEIRS_HAS_ALL


# Entries


def test_an_entry_comes_back_and_its_bytes_stay_what_they_are() -> None:
    one = entry(3, OURS, supersedes=(Named(f"{2:016x}", entry(2)).id,))
    assert decode_entry(encode_entry(one), entry_name(3, True)) == one
    gone = entry(2, None, removed=OURS, supersedes=(f"{1:016x}.{255:016x}",))
    data = encode_entry(gone)
    assert data == (
        b'{"format_version":1,"head":null,"number":2,"removed":"' + b"a" * 64 + b'",'
        b'"session_id":"' + b"5e" * 16 + b'","supersedes":["0000000000000001.00000000000000ff"]}'
    )
    assert decode_entry(data, "0000000000000002-00000000000000ff") == gone


def test_an_entrys_name_is_its_number_and_where_that_excludes_nobody_a_random_end() -> None:
    assert entry_name(255, exclusive=True) == "00000000000000ff"
    one, two = entry_name(255, exclusive=False), entry_name(255, exclusive=False)
    assert one[:17] == two[:17] == "00000000000000ff-"
    assert len(one) == len(two) == 33
    assert one != two
    assert number_of(one) == 255


def stored(**changes: object) -> bytes:
    return canonical_json({"format_version": 1} | entry(3, OURS).stored() | changes)


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        (stored(number=4), DamagedError, "is another one's"),
        (stored(session_id=OTHER_SESSION), DamagedError, "is another one's"),
        (stored(number=0), DamagedError, "number"),
        (stored(number=MAX_GENERATION + 1), DamagedError, "number"),
        (stored(number=3.0), DamagedError, "number"),
        (stored(number=True), DamagedError, "number"),
        (stored(session_id="../../x"), DamagedError, "session_id"),
        (stored(session_id="5E" * 16), DamagedError, "session_id"),
        (stored(format_version=2), DamagedError, "format_version"),
        (stored(removed="a"), DamagedError, "removed"),
        (stored(supersedes=["../1"]), DamagedError, "supersedes"),
        (stored(supersedes=[1]), DamagedError, "supersedes"),
        (stored(supersedes=["0000000000000001"]), DamagedError, "supersedes"),
        (stored(supersedes=[f"{each:016x}.{1:016x}" for each in range(65)]), DamagedError, "supersedes"),
        (stored(head={}), DamagedError, "head"),
        (stored(head=[]), DamagedError, "head"),
        (canonical_json({"format_version": 1, "session_id": SESSION, "number": 3}), DamagedError, "head"),
        (stored(more=1), VersionError, "another version"),
        (stored(head=head(OURS).stored() | {"more": 1}), VersionError, "another version"),
        (b"", DamagedError, "JSON"),
        (b"[]", DamagedError, "top"),
        (b"\xff\xfe", DamagedError, "JSON"),
        (b"[" * 60_000, DamagedError, "JSON"),
        (stored()[:-1], DamagedError, "JSON"),
    ],
)
def test_what_is_no_entry_of_its_name_is_refused(data: bytes, error: type[SatchelError], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        decode_entry(data, "0000000000000003")
    assert "0000000000000003" in str(caught.value)
    assert len(str(caught.value)) < 500  # and what it holds is not printed


def test_an_entry_that_its_readers_would_refuse_is_not_made() -> None:
    large = head(OURS).model_copy(update={"model_name": "m" * (64 << 10)})
    with pytest.raises(SatchelError, match="beyond what sync takes"):
        encode_entry(Entry(session_id=SESSION, number=1, head=large))


def test_entries_are_told_from_other_objects_by_their_names() -> None:
    one, two, key = "0" * 15 + "1", "0" * 15 + "2-" + "a" * 16, "k" * 64
    names = [f"v1/heads/{key}/{two}", f"v1/heads/{key}/{one}"]
    bad = (
        f"v1/heads/{key}/{'0' * 16}",  # they count from 1
        f"v1/heads/{key}/{'f' * 16}",  # beyond what an entry can say of itself
        f"v1/heads/{key}/1",
        f"v1/heads/{key}/{one}-",
        f"v1/heads/{key}/{one}/{one}",
        f"v1/heads/{key}/{'F' * 16}",
        f"v1/heads/{one}",
        f"v1/heads/{key}/{one} (conflicted copy)",
    )
    listed = [Listed(name, 100, 1.0, tag=str(number)) for number, name in enumerate([*names, *bad])]
    found = by_session(listed)
    assert found == {key: {one: "1", two: "0"}}
    assert list(found[key]) == [one, two]


def test_what_was_seen_is_not_read_again() -> None:
    names = [f"{each:016x}" for each in (1, 2, 3, 4)]
    assert unread(names, names[:3]) == names[3:]
    assert unread(names, ()) == names


def standing(*named: Named) -> tuple[str, list[str]]:
    found = tips({each.name: each.entry for each in named})
    return found.newest.name, [each.name for each in found.others]


def test_the_newest_entry_counts_and_those_beside_it_that_nothing_supersedes() -> None:
    one = Named(f"{1:016x}", entry(1))
    two = Named(f"{2:016x}-{2:016x}", entry(2, OURS, supersedes=(one.id,)))
    three = Named(f"{2:016x}-{3:016x}", entry(2, supersedes=(one.id,)))
    assert standing(one, two, three) == (three.name, [two.name])
    merged = Named(f"{3:016x}-{1:016x}", entry(3, supersedes=(one.id, two.id, three.id)))
    assert standing(one, two, three, merged) == (merged.name, [])
    assert standing(Named(f"{9:016x}", entry(9)), Named(f"{10:016x}", entry(10))) == (
        f"{10:016x}",
        [f"{9:016x}"],
    )


def test_an_entry_that_took_anothers_name_is_not_superseded_for_that() -> None:
    one, other = Named(f"{1:016x}", entry(1)), Named(f"{1:016x}", entry(1, OURS))
    two = Named(f"{2:016x}", entry(2, supersedes=(one.id,)))
    assert one.id != other.id
    assert standing(one, two) == (two.name, [])
    assert standing(other, two) == (two.name, [one.name])


def test_an_entrys_id_is_its_name_and_a_digest_of_it() -> None:
    assert Named(f"{1:016x}", entry(1)).id == "0000000000000001.f5e2e8e1abea98db"


def test_an_entry_supersedes_what_was_handled_and_what_the_one_before_did_up_to_a_bound() -> None:
    ids = [f"{each:016x}.{1:016x}" for each in range(1, 101)]
    assert superseding(ids[1:3], entry(3, supersedes=(ids[0],))) == tuple(ids[:3])
    assert superseding([], None) == ()
    many = superseding(ids[50:], entry(99, supersedes=tuple(ids[:50])))
    assert many == tuple(ids[100 - MAX_SUPERSEDED :])


def test_what_is_older_than_a_full_list_of_superseded_ones_was_in_it_once() -> None:
    ids = tuple(f"{each:016x}.{1:016x}" for each in range(10, 10 + MAX_SUPERSEDED))
    newest = Named(f"{80:016x}", entry(80, supersedes=ids))
    old, beside = Named(f"{9:016x}", entry(9)), Named(f"{9:016x}-{1:016x}", entry(9))
    assert standing(newest, old) == (newest.name, [])
    assert standing(newest, beside) == (newest.name, [beside.name])
    short = Named(f"{80:016x}", entry(80, supersedes=ids[1:]))
    assert standing(short, old) == (short.name, [old.name])
