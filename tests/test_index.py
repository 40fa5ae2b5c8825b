"""The index of a store: its answers, how it keeps up with the files, and that its loss costs time alone."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import resource
import shutil
import signal
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

import pytest

from satchel.cache_store import index_file, index_rows
from satchel.cache_store.index import Chain, StoreIndex, Totals
from satchel.cache_store.lock import FileLock
from satchel.cache_store.manifest import (
    MAX_HEAD_BYTES,
    BlockRef,
    Head,
    Manifest,
    Message,
    decode_head,
    decode_manifest,
    encode_head,
    encode_manifest,
)
from satchel.cache_store.names import name_key
from satchel.cache_store.snapshot import canonical_json
from satchel.errors import DamagedError, NotFoundError, SatchelError, VersionError
from satchel.files import atomic_write, read_file

START = datetime(2025, 3, 1, 12, tzinfo=UTC)
HOUR_NS = 3_600_000_000_000


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def session(name: str) -> str:
    return sha(name)[:32]


def keys(words: str) -> list[str]:
    """The chain keys of blocks, one a letter: each stands for all letters up to its own."""
    return [sha(f"key of {words[: end + 1]}") for end in range(len(words))]


def refs(words: str) -> tuple[BlockRef, ...]:
    """Blocks, one a letter; those of capital letters hold a checkpoint."""
    return tuple(
        BlockRef(
            chain_key=key,
            sha256=sha(f"block {key}"),
            stored_bytes=100 + at,
            start=8 * at,
            stop=8 * at + 8,
            checkpoint=words[at].isupper(),
        )
        for at, key in enumerate(keys(words))
    )


class Files:
    """A store's heads and manifests as real files, and a count of what an index reads of them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.heads_dir = root / "v1" / "heads"
        self.manifests_dir = root / "v1" / "manifests"
        self.heads_read: list[str] = []
        self.manifests_read: list[str] = []

    def index(self) -> StoreIndex:
        return StoreIndex(self.path, self.heads_dir, self.read_head, self.read_chains)

    @property
    def path(self) -> Path:
        return self.root / "v1" / "index.db"

    def head_path(self, name: str) -> Path:
        return self.heads_dir / f"{session(name)}.json"

    def read_head(self, session_id: str) -> Head | None:
        self.heads_read.append(session_id)
        data = read_file(self.heads_dir / f"{session_id}.json", MAX_HEAD_BYTES)
        return None if data is None else decode_head(data, session_id)

    def manifest(self, manifest_id: str) -> Manifest:
        try:
            return decode_manifest((self.manifests_dir / manifest_id).read_bytes())
        except OSError as err:
            raise NotFoundError(f"manifest {manifest_id[:12]} is missing") from err

    def read_chains(self, head: Head) -> list[Chain]:
        """As a store does it: what was archived is not for others."""
        self.manifests_read.append(head.session_id)
        abandoned = self.manifest(head.manifest).abandoned
        found = [(each, self.manifest(each)) for each in (head.manifest, *abandoned)]
        return [Chain(each, manifest.blocks) for each, manifest in found if not manifest.archived_from]

    def commit(
        self,
        name: str,
        words: str = "ab",
        at: int = 0,
        called: str | None = None,
        abandoned: Sequence[str] = (),
        archived_from: str | None = None,
    ) -> Head:
        """Write a session's manifest and head, as saved `at` seconds after the start."""
        blocks = refs(words)
        manifest = Manifest(
            session_id=session(name),
            name=called or name,
            generation=1,
            parent=None,
            created_at=START + timedelta(seconds=at),
            model_name="embedded",
            profile_name="turbo4",
            identity={"weights": "d" * 64},
            messages=(Message(role="user", content=f"{name}, {words} at {at}"),),
            blocks=blocks,
            tail=None,
            token_count=8 * len(blocks),
            abandoned=tuple(abandoned),
            archived_from=archived_from,
        )
        head = Head.of(manifest, encode_manifest(manifest))
        atomic_write(self.manifests_dir / head.manifest, encode_manifest(manifest))
        atomic_write(self.head_path(name), encode_head(head))
        return head

    def save(self, index: StoreIndex, name: str, words: str = "ab", at: int = 0, **more: str) -> Head:
        """As a store does it: what the index has to know is marked before, and the change noted after."""
        mark = index.mark()
        head = self.commit(name, words, at, **more)
        index.note(head, self.read_chains(head), mark)
        self.reset()
        return head

    def age(self) -> None:
        """Let an hour have passed since the last change."""
        for path in (*self.heads_dir.iterdir(), self.heads_dir):
            self.set_time(path, path.stat().st_mtime_ns - HOUR_NS)

    def set_time(self, path: Path, time_ns: int) -> None:
        os.utime(path, ns=(time_ns, time_ns))

    def reset(self) -> None:
        self.heads_read.clear()
        self.manifests_read.clear()

    def true_heads(self) -> list[Head]:
        """What a list must show, from the files."""
        paths = [path for path in self.heads_dir.glob("*.json") if path.stem != "damaged"]
        heads = [decode_head(path.read_bytes(), path.stem) for path in paths]
        return sorted(heads, key=lambda head: (head.updated_at, head.session_id), reverse=True)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "data")


@pytest.fixture
def index(files: Files) -> Iterator[StoreIndex]:
    opened = files.index()
    yield opened
    opened.close()


# Answers


def test_heads_come_newest_first_in_pages(files: Files, index: StoreIndex) -> None:
    a, b, c = (files.commit(name, at=at) for name, at in (("a", 5), ("b", 9), ("c", 7)))
    same = sorted(
        (files.commit(name, at=1) for name in ("d", "e")), key=lambda head: head.session_id, reverse=True
    )
    index.refresh()
    assert index.heads() == [b, c, a, *same] == files.true_heads()
    assert index.heads(limit=2) == [b, c]
    assert index.heads(limit=2, offset=1) == [c, a]
    assert index.heads(offset=4) == same[1:]
    assert index.heads(limit=0) == index.heads(limit=9, offset=9) == []
    assert index.count() == 5


def test_times_are_ordered_to_the_microsecond_and_across_zones(files: Files, index: StoreIndex) -> None:
    zone = timezone_of(hours=5)
    times = [
        datetime(2025, 3, 1, 17, 0, 0, 1, zone),  # 12:00:00.000001 UTC
        datetime(2025, 3, 1, 12, 0, 0, 0, UTC),
        datetime(1980, 1, 1, tzinfo=zone),
        datetime(2025, 3, 1, 7, 0, 0, 2, timezone_of(hours=-5)),
    ]
    for number, when in enumerate(times):
        head = files.commit(str(number)).model_copy(update={"updated_at": when})
        atomic_write(files.head_path(str(number)), encode_head(head))
    index.refresh()
    assert [head.name for head in index.heads()] == ["3", "0", "1", "2"]


def timezone_of(hours: int) -> timezone:
    return timezone(timedelta(hours=hours))


def test_names_are_found_by_their_key(files: Files, index: StoreIndex) -> None:
    notes = files.commit("a", called="Notes", at=1)
    ghost = files.commit("b", called="\U0001f47b Straße", at=2)
    assert index.named("notes") == [notes]
    assert index.named(name_key("\U0001f47b STRASSE")) == [ghost]
    assert index.named("note") == []
    assert index.has_name("notes") and not index.has_name("Notes") and not index.has_name("")
    files.commit("c", called="notes", at=0)
    index.refresh()
    assert [head.name for head in index.named("notes")] == ["Notes", "notes"]


def test_names_near_a_wrong_one(files: Files, index: StoreIndex) -> None:
    for number, name in enumerate(("Recipes", "recipe box", "travel", "tax")):
        files.commit(name, at=number)
    assert index.names_near("recipe") == ["Recipes", "recipe box"]
    assert index.names_near("recipe", n=1) == ["Recipes"]
    assert index.names_near("zzz") == []


def test_the_start_of_an_id_finds_damaged_heads_too(files: Files, index: StoreIndex) -> None:
    a, b = files.commit("a"), files.commit("b")
    (files.heads_dir / f"{a.session_id[:8]}.json").write_text("x")
    assert index.with_id_prefix(a.session_id[:6]) == [
        (a.session_id[:8], a.session_id[:8]),
        (a.session_id, "a"),
    ]
    assert index.with_id_prefix(b.session_id) == [(b.session_id, "b")]
    assert index.with_id_prefix(b.session_id + "0") == []
    ids = [a.session_id[:8], a.session_id, b.session_id]
    assert [each for each, _ in index.with_id_prefix("")] == sorted(ids)


def test_a_head_that_cannot_be_read_is_a_fault_in_one_line_until_it_is_right(
    files: Files, index: StoreIndex
) -> None:
    right = files.commit("a")
    files.commit("b")
    whole = files.head_path("b").read_bytes()
    files.head_path("b").write_bytes(whole[:40])
    (files.heads_dir / "letters.json").mkdir()
    index.refresh()
    assert index.heads() == [right]
    assert index.count() == 1
    faults = index.faults()
    assert sorted(faults) == sorted([session("b"), "letters"])
    assert faults[session("b")].startswith(f"the head of session {session('b')[:12]} is damaged: ")
    assert str(files.heads_dir / "letters.json") in faults["letters"]
    assert index.longest_chain(keys("ab")) == (right.manifest, 2)

    files.head_path("b").write_bytes(whole)
    (files.heads_dir / "letters.json").rmdir()
    index.refresh(thorough=True)
    assert index.heads() == files.true_heads()
    assert index.faults() == {}


def test_what_is_no_head_is_passed_over(files: Files, index: StoreIndex) -> None:
    files.commit("a")
    for name in (".tmp-x", ".tmp-x.json", ".json", "notes.txt", f"{session('a')}.json.aside-1234"):
        (files.heads_dir / name).write_text("x")
    assert index.count() == 1
    assert index.faults() == {}


def test_a_file_whose_name_is_no_unicode_is_a_fault(files: Files, index: StoreIndex) -> None:
    files.commit("a")
    try:
        Path(os.fsdecode(os.fsencode(files.heads_dir) + b"/\xff.json")).write_text("x")
    except OSError:
        pytest.skip("the file system takes Unicode names alone")
    assert list(index.faults()) == ["\udcff"]
    assert index.with_id_prefix("\udcff") == [("\udcff", "\udcff")]


# Chains


def test_the_longest_known_prefix_is_found(files: Files, index: StoreIndex) -> None:
    short, long = files.commit("a", "abc", at=5), files.commit("b", "abcde", at=1)
    assert index.longest_chain(keys("abcdefg")) == (long.manifest, 5)
    assert index.longest_chain(keys("abcx")) == (short.manifest, 3)  # newer than the other
    assert index.longest_chain(keys("ax")) == (short.manifest, 1)
    assert index.longest_chain(keys("xbc")) is None
    assert index.longest_chain([]) is None
    # A key counts only where it stands in the chain.
    assert index.longest_chain(keys("abc")[1:]) is None


def test_a_state_that_resumes_at_checkpoints_alone_ends_at_one(files: Files, index: StoreIndex) -> None:
    head = files.commit("a", "aBcDe")
    assert index.longest_chain(keys("aBcDef"), resumable_only=True) == (head.manifest, 4)
    assert index.longest_chain(keys("aBc"), resumable_only=True) == (head.manifest, 2)
    assert index.longest_chain(keys("a"), resumable_only=True) is None
    assert index.longest_chain(keys("aBc"), resumable_only=False) == (head.manifest, 3)


def test_archived_sessions_offer_nothing(files: Files, index: StoreIndex) -> None:
    plain = files.commit("a", "ab", at=1)
    files.commit("b", "abcd", at=9, archived_from="turbo4")
    assert index.longest_chain(keys("abcd")) == (plain.manifest, 2)
    archived = files.save(index, "a", "ab", at=10, archived_from="turbo4")
    assert index.longest_chain(keys("ab")) is None
    assert index.heads(limit=1) == [archived]


def test_what_was_abandoned_is_offered_and_what_is_replaced_is_not(files: Files, index: StoreIndex) -> None:
    one = files.save(index, "a", "abcd", at=1)
    two = files.save(index, "a", "abxy", at=2, abandoned=[one.manifest])
    assert index.longest_chain(keys("abcd")) == (one.manifest, 4)
    assert index.longest_chain(keys("abxy")) == (two.manifest, 4)
    assert index.longest_chain(keys("ab")) == (two.manifest, 2)  # rather the current one
    three = files.save(index, "a", "abxz", at=3)
    assert index.longest_chain(keys("abcd")) == index.longest_chain(keys("ab")) == (three.manifest, 2)
    assert index.longest_chain(keys("abxy")) == (three.manifest, 3)
    assert index.longest_chain(keys("abxz")) == (three.manifest, 4)
    words_alone = files.save(index, "a", "", at=4)
    assert index.longest_chain(keys("ab")) is None
    assert index.heads() == [words_alone]


def test_a_session_whose_manifest_is_missing_is_listed_and_tried_again(
    files: Files, index: StoreIndex
) -> None:
    head = files.commit("a", "abc")
    aside = files.manifests_dir / "aside"
    (files.manifests_dir / head.manifest).rename(aside)
    assert index.heads() == [head]
    assert index.longest_chain(keys("abc")) is None
    aside.rename(files.manifests_dir / head.manifest)
    index.refresh(thorough=True)
    assert index.longest_chain(keys("abc")) == (head.manifest, 3)


def test_totals_count_each_block_once(files: Files, index: StoreIndex) -> None:
    files.save(index, "a", "abc", at=1)
    files.save(index, "b", "abx", at=2)
    files.commit("c", "ab", at=3)
    (files.heads_dir / "damaged.json").write_text("x")
    index.refresh()
    assert index.totals() == Totals(sessions=3, blocks=4)  # a, ab, abc, abx


# Keeping up with the files


def test_an_unchanged_directory_is_not_listed(files: Files, index: StoreIndex) -> None:
    files.commit("a")
    files.age()
    index.refresh()
    assert (files.heads_read, files.manifests_read) == ([session("a")], [session("a")])
    # Written in place: the directory stays as it was, so only a thorough look finds it.
    changed = files.true_heads()[0].model_copy(update={"title": "changed"})
    files.head_path("a").write_bytes(encode_head(changed))
    files.reset()
    for each in (index, files.index()):
        each.refresh()
        assert each.heads()[0].title == "a, ab at 0"
    assert files.heads_read == []
    index.refresh(thorough=True)
    assert index.heads() == [changed]
    assert (files.heads_read, files.manifests_read) == ([session("a")], [])


def test_only_what_changed_is_read(files: Files, index: StoreIndex) -> None:
    for name in "abcd":
        files.commit(name)
    files.age()
    index.refresh()
    files.reset()
    files.commit("b", "abc", at=5)
    files.head_path("c").unlink()
    files.commit("e", at=6)
    index.refresh()
    assert sorted(files.heads_read) == sorted(files.manifests_read) == sorted([session("b"), session("e")])
    assert index.heads() == files.true_heads()
    assert [head.name for head in index.heads()][:2] == ["e", "b"]
    assert index.named("c") == []
    assert index.longest_chain(keys("abc")) == (index.heads()[1].manifest, 3)


def test_a_touched_head_is_read_again_and_its_manifest_is_not(files: Files, index: StoreIndex) -> None:
    files.commit("a")
    files.age()
    index.refresh()
    files.reset()
    files.set_time(files.head_path("a"), 1_000_000_000)
    index.refresh(thorough=True)
    assert (files.heads_read, files.manifests_read) == ([session("a")], [])
    index.refresh(thorough=True)
    assert files.heads_read == [session("a")]


def test_a_change_in_the_same_tick_of_the_clock_is_not_missed(files: Files, index: StoreIndex) -> None:
    files.commit("a")
    index.refresh()
    tick = files.heads_dir.stat().st_mtime_ns
    files.commit("b")
    files.set_time(files.heads_dir, tick)
    index.refresh()
    assert [head.name for head in index.heads()] == [head.name for head in files.true_heads()]
    assert index.count() == 2


def test_a_head_rewritten_in_the_same_tick_is_not_missed(files: Files, index: StoreIndex) -> None:
    files.commit("a", called="one")
    index.refresh()
    before = files.head_path("a").stat()
    files.head_path("a").write_bytes(files.head_path("a").read_bytes().replace(b'"one"', b'"two"'))
    files.set_time(files.head_path("a"), before.st_mtime_ns)
    assert files.head_path("a").stat().st_size == before.st_size
    index.refresh(thorough=True)
    assert [head.name for head in index.heads()] == ["two"]


def test_what_was_noted_is_not_read_again(files: Files, index: StoreIndex) -> None:
    saved = [files.save(index, name, at=at) for at, name in enumerate("abc")]
    saved[0] = files.save(index, "a", "abcd", at=9)
    index.refresh()
    other = files.index()
    other.refresh()
    assert files.heads_read == []
    assert index.heads() == other.heads() == files.true_heads()
    assert other.longest_chain(keys("abcd")) == (saved[0].manifest, 4)
    mark = index.mark()
    files.head_path("b").unlink()
    index.forget(session("b"), mark)
    other.refresh()
    assert files.heads_read == []
    assert [head.name for head in other.heads()] == ["a", "c"]


def test_a_note_without_a_mark_makes_the_next_refresh_look(files: Files, index: StoreIndex) -> None:
    files.save(index, "a")
    unnoted = files.commit("b", at=1)
    noted = files.commit("c", at=2)
    index.note(noted, files.read_chains(noted))
    files.reset()
    index.refresh()
    assert unnoted.session_id in files.heads_read
    assert index.heads() == files.true_heads()


def test_a_head_that_a_killed_process_did_not_note_is_found(files: Files, index: StoreIndex) -> None:
    files.path.parent.mkdir(parents=True)
    mark = index.mark()
    noted = files.commit("a")
    tick = files.heads_dir.stat().st_mtime_ns
    index.note(noted, files.read_chains(noted), mark)
    killed = files.commit("b", at=1)
    files.set_time(files.heads_dir, tick)  # all in one tick of the clock
    files.save(files.index(), "c", at=2)
    index.refresh()
    assert killed in index.heads()
    assert index.heads() == files.true_heads()


def test_a_head_written_without_the_lock_after_the_listing_is_found(files: Files, index: StoreIndex) -> None:
    files.save(index, "a")
    files.age()
    real, stray = files.read_head, []

    def read_and_meddle(session_id: str) -> Head | None:
        if not stray:
            stray.append(files.commit("stray", at=3))
        return real(session_id)

    meddled = StoreIndex(files.path, files.heads_dir, read_and_meddle, files.read_chains)
    files.save(meddled, "b", at=4)
    index.refresh()
    assert len(stray) == 1 and index.heads() == files.true_heads()


def test_what_another_process_read_before_the_mark_is_read_again(files: Files, index: StoreIndex) -> None:
    old = files.save(index, "a", at=1)
    chains = files.read_chains(old)
    new = files.save(index, "a", "abc", at=2)
    mark = index.mark()
    files.index().note(old, chains)  # as if it had listed the heads long ago and put them in just now
    files.commit("b", at=3)
    index.note(files.true_heads()[0], files.read_chains(files.true_heads()[0]), mark)
    index.refresh()
    assert new in index.heads()
    assert index.heads() == files.true_heads()


def test_what_another_process_puts_in_while_heads_are_read_is_not_half_overwritten(
    files: Files, index: StoreIndex
) -> None:
    old = files.save(index, "a", "abcd", at=1)
    chains = files.read_chains(old)
    files.save(index, "a", "ab", at=2)
    files.commit("b", "x", at=3)

    def read_and_meddle(head: Head) -> list[Chain]:
        index.note(old, chains)
        return files.read_chains(head)

    meddled = StoreIndex(files.path, files.heads_dir, files.read_head, read_and_meddle)
    assert meddled.mark() is None  # for what it noted would hide what it did not read
    meddled.close()
    index.refresh()
    assert index.heads() == files.true_heads()
    assert index.longest_chain(keys("abcd")) == (index.heads()[1].manifest, 2)


def test_nothing_is_made_before_the_store_is(files: Files, index: StoreIndex) -> None:
    index.refresh()
    assert (index.heads(), index.count(), index.faults(), index.longest_chain(keys("a"))) == ([], 0, {}, None)
    assert not files.root.exists()
    files.path.parent.mkdir(parents=True)
    head = files.save(index, "a")
    assert index.heads() == [head]
    assert files.path.is_file()
    index.refresh()
    assert files.heads_read == []


def test_a_head_that_could_not_be_read_once_is_read_again(files: Files) -> None:
    """Nothing about its file tells of it: the system had no descriptors left, or refused this process."""
    head = files.commit("a")
    files.age()
    read = files.read_head

    def refuse(session_id: str) -> Head | None:
        raise SatchelError("cannot read it: Too many open files")

    files.read_head = refuse
    index = files.index()
    index.refresh()
    assert index.faults() == {session("a"): "cannot read it: Too many open files"}
    index.close()
    files.read_head = read
    again = files.index()
    again.refresh()  # not even a thorough one: names are taken by what it finds
    assert (again.heads(), again.faults()) == ([head], {})
    assert [ref.chain_key for ref in refs("ab")] == keys("ab")
    assert again.longest_chain(keys("ab")) == (head.manifest, 2)
    again.close()


@pytest.mark.parametrize("error", [DamagedError, VersionError])
def test_a_head_that_this_version_refused_is_read_again_by_the_next_list(
    files: Files, error: type[SatchelError]
) -> None:
    head = files.commit("a")
    files.age()
    read = files.read_head

    def refuse(session_id: str) -> Head | None:
        raise error("it was saved by another version of Satchel")

    files.read_head = refuse
    index = files.index()
    index.refresh(thorough=True)
    assert index.heads() == []
    index.close()
    files.read_head = read
    later = files.index()
    later.refresh(thorough=True)
    assert (later.heads(), later.faults()) == ([head], {})
    later.close()


def test_a_row_of_a_later_version_is_read_again_from_the_files(files: Files) -> None:
    """Its digest is right: it was written so."""
    heads = [files.commit("b", at=1), files.commit("a")]
    files.age()
    index = files.index()
    index.refresh()
    index.close()
    with contextlib.closing(sqlite3.connect(files.path, isolation_level=None)) as db:
        row = index_rows.find_row(db, session("a"))
        assert row is not None
        content = canonical_json(heads[1].stored() | {"colour": "red"})
        digest = index_rows._digest((*row[:-2], content))
        db.execute("UPDATE sessions SET content = ?, digest = ? WHERE stem = ?", (content, digest, row.stem))
    for thorough in (False, True):
        opened = files.index()
        opened.refresh(thorough)
        assert opened.heads() == heads
        assert opened.named(name_key("a")) == [heads[1]]
        opened.close()


def test_heads_that_cannot_be_listed_are_an_error(files: Files, index: StoreIndex) -> None:
    files.commit("a")
    index.refresh()
    shutil.rmtree(files.heads_dir)
    files.heads_dir.write_text("x")
    with pytest.raises(SatchelError, match="heads is not a directory"):
        index.refresh()
    files.heads_dir.unlink()
    index.refresh()
    assert index.heads() == []


# Damage


def garbage(path: Path) -> None:
    path.write_bytes(b"not a database, and not short either" * 200)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def cut_in_the_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:50])


def cut_in_a_page(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5000])


def of_another_version(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 999")
        db.execute("DELETE FROM sessions")
    db.close()


def of_another_program(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE songs (title)")
    db.close()


def without_a_table(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE chains")
    db.close()


def with_a_changed_head(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("UPDATE sessions SET content = replace(content, '\"a\"', '\"z\"')")
    db.close()


def with_text_for_numbers(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("UPDATE sessions SET updated_us = 'x', name_key = 5, stem = CAST(stem AS TEXT)")
        db.execute("UPDATE chains SET manifest = 'x'")
        db.execute("UPDATE blocks SET checkpoint = 'x'")
    db.close()


def with_text_that_is_no_unicode(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("UPDATE sessions SET content = CAST(x'ff' AS TEXT), status = CAST(x'ff' AS TEXT)")
    db.close()


DAMAGE: list[Callable[[Path], None]] = [
    garbage,
    emptied,
    cut_in_the_header,
    cut_in_a_page,
    of_another_version,
    of_another_program,
    without_a_table,
    with_a_changed_head,
    with_text_for_numbers,
    with_text_that_is_no_unicode,
    Path.unlink,
]


def answers(index: StoreIndex) -> tuple[object, ...]:
    return (
        index.heads(),
        index.count(),
        index.faults(),
        index.named("b"),
        index.has_name("a"),
        index.with_id_prefix(""),
        index.names_near("aa"),
        index.longest_chain(keys("abcd")),
        index.longest_chain(keys("aBx"), resumable_only=True),
        index.totals(),
    )


def filled(files: Files) -> tuple[object, ...]:
    """The answers of an index of three sessions and a fault, settled and closed."""
    files.commit("a", "abcd", at=1)
    files.commit("b", "abx", at=2)
    files.commit("c", "aBx", at=3)
    (files.heads_dir / "damaged.json").write_text("x")
    files.age()
    index = files.index()
    index.refresh()
    right = answers(index)
    index.close()
    files.reset()
    return right


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_made_anew(files: Files, damage: Callable[[Path], None]) -> None:
    right = filled(files)
    damage(files.path)
    index = files.index()
    index.refresh(thorough=True)
    assert answers(index) == right
    index.close()
    files.reset()
    again = files.index()
    again.refresh(thorough=True)
    assert answers(again) == right
    assert files.heads_read == ["damaged"]  # all else was in the file
    again.close()


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_damaged_while_it_is_open_does_no_harm(files: Files, damage: Callable[[Path], None]) -> None:
    right = filled(files)
    index = files.index()
    index.refresh()
    damage(files.path)
    index.refresh(thorough=True)
    assert answers(index) == right
    files.save(index, "d", at=9)
    assert index.heads() == files.true_heads()
    index.close()
    other = files.index()
    other.refresh(thorough=True)
    assert other.heads() == files.true_heads()
    other.close()


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_comes_after_damage_is_listed_with_all_the_rest(
    files: Files, damage: Callable[[Path], None]
) -> None:
    filled(files)
    damage(files.path)
    files.commit("d", "abcde", at=9)
    index = files.index()
    index.refresh()
    assert index.heads() == files.true_heads()
    assert index.longest_chain(keys("abcdef")) == (index.heads()[0].manifest, 5)
    index.close()


def test_whatever_byte_flips_the_answers_stay_right(files: Files) -> None:
    right = filled(files)
    whole = files.path.read_bytes()
    for position in [*range(100), *range(100, len(whole), 173)]:
        flipped = bytearray(whole)
        flipped[position] ^= 1 << position % 8
        files.path.write_bytes(flipped)
        index = files.index()
        index.refresh()
        for head in index.heads():  # unchecked, there may be too few, and never a wrong one
            assert head in right[0]  # type: ignore[operator]
        index.refresh(thorough=True)
        assert index.heads() == right[0]
        assert answers(index)[1:7] == right[1:7]
        index.close()


def test_a_name_is_found_wherever_it_is_damaged(files: Files) -> None:
    saved = files.commit("a", called="zanzibar")
    files.age()
    index = files.index()
    index.refresh()
    index.close()
    whole = files.path.read_bytes()
    places = [at for at in range(len(whole)) if whole.startswith(b"zanzibar", at)]
    assert len(places) >= 3  # the row's key and head, and the entry by name
    for place in places:
        files.path.write_bytes(whole[:place] + b"x" + whole[place + 1 :])
        index = files.index()
        index.refresh(thorough=True)
        assert index.named("zanzibar") == [saved]
        index.close()


@pytest.mark.parametrize("damage", [garbage, Path.unlink])
def test_a_log_beside_the_file_that_is_not_its_own_does_no_harm(
    files: Files, damage: Callable[[Path], None]
) -> None:
    right = filled(files)
    files.path.with_name("index.db-wal").write_bytes(b"x" * 9000)
    damage(files.path)
    index = files.index()
    index.refresh()
    assert answers(index) == right
    index.close()


def put_directory(path: Path) -> None:
    path.mkdir()
    (path / "letter").write_text("kept")


def put_link(path: Path) -> None:
    path.with_name("elsewhere").write_bytes(b"kept")
    path.symlink_to("elsewhere")


@pytest.mark.parametrize("put", [put_directory, put_link, os.mkfifo])
def test_with_something_else_in_its_place_all_goes_on_in_memory(
    files: Files, put: Callable[[Path], None]
) -> None:
    right = filled(files)
    files.path.unlink()
    put(files.path)
    index = files.index()
    index.refresh()
    assert answers(index) == right
    saved = files.save(index, "d", at=9)
    unnoted = files.commit("e", at=10)
    index.refresh()
    assert index.heads(limit=2) == [unnoted, saved]
    assert not stat.S_ISREG(files.path.lstat().st_mode)
    kept = [path for path in (files.path / "letter", files.path.with_name("elsewhere")) if path.exists()]
    assert all(path.read_text() == "kept" for path in kept)
    index.close()


def test_on_a_full_disk_all_goes_on_in_memory(files: Files) -> None:
    right = filled(files)
    files.path.unlink()
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, limits[1]))
    try:
        index = files.index()
        index.refresh()
        assert answers(index) == right
        saved = files.save(index, "d", at=9)
        assert index.heads(limit=1) == [saved]
        index.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    later = files.index()
    later.refresh()
    assert later.heads(limit=1) == [saved]
    later.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_in_a_read_only_store_all_goes_on_in_memory(files: Files) -> None:
    right = filled(files)
    files.path.unlink()
    files.path.parent.chmod(0o500)
    try:
        index = files.index()
        index.refresh()
        assert answers(index) == right
        index.close()
    finally:
        files.path.parent.chmod(0o700)


def test_a_rebuilt_index_is_read_from_all_files(files: Files, index: StoreIndex) -> None:
    right = filled(files)
    index.rebuild()
    assert sorted(files.heads_read) == sorted([*map(session, "abc"), "damaged"])
    assert sorted(files.manifests_read) == sorted(map(session, "abc"))
    assert answers(index) == right
    files.path.unlink()
    index.rebuild()
    assert answers(index) == right
    assert files.path.is_file()


def test_a_file_that_could_not_be_used_is_tried_again_by_a_rebuild(files: Files, index: StoreIndex) -> None:
    right = filled(files)
    files.path.unlink()
    put_directory(files.path)
    index.refresh()
    shutil.rmtree(files.path)
    index.refresh()
    assert not files.path.exists()
    index.rebuild()
    assert files.path.is_file()
    assert answers(index) == right


def test_files_are_0600_whatever_the_umask(files: Files) -> None:
    old = os.umask(0)
    try:
        index = files.index()
        files.path.parent.mkdir(parents=True)
        files.save(index, "a")
        paths = list(files.path.parent.glob("index.db*"))
        assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}
        assert files.path in paths
        index.close()
        files.path.chmod(0o644)
        index.refresh()
        assert stat.S_IMODE(files.path.stat().st_mode) == 0o600
        index.close()
    finally:
        os.umask(old)


# Between threads and processes


def test_a_file_that_is_lost_while_it_is_open_is_made_again(files: Files, index: StoreIndex) -> None:
    files.save(index, "a")
    index.close()
    index.refresh()
    files.path.unlink()
    saved = files.save(index, "b", at=1)
    assert files.path.is_file()
    other = files.index()
    other.refresh()
    assert other.heads() == [saved, files.true_heads()[1]]
    assert files.heads_read == []
    other.close()


def test_a_note_that_another_process_keeps_waiting_is_left_to_the_next_refresh(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_file, "_BUSY_S", 0.05)
    index = files.index()
    files.commit("a")
    files.age()
    index.refresh()
    files.reset()
    other = sqlite3.connect(files.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    files.save(index, "b", at=1)
    other.execute("ROLLBACK")
    other.close()
    index.refresh()
    assert index.heads() == files.true_heads()
    assert files.heads_read == [session("b")]  # the rest was in the file still
    index.close()


def sessions_in(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as db:
        return db.execute("SELECT count(*) FROM sessions").fetchone()[0]


def test_a_refresh_that_another_process_keeps_waiting_goes_on_in_memory(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_file, "_BUSY_S", 0.05)
    index = files.index()
    index.refresh()
    files.commit("a")
    index.refresh()
    other = sqlite3.connect(files.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    files.commit("b", at=1)
    inode = files.path.stat().st_ino
    index.refresh()
    assert index.heads() == files.true_heads()
    other.execute("ROLLBACK")
    other.close()
    files.commit("c", at=2)
    index.refresh()
    assert index.heads() == files.true_heads()
    assert sessions_in(files.path) == 1  # for some time it is left alone
    minutes_later = time.monotonic() + 100
    monkeypatch.setattr(index_file, "time", SimpleNamespace(monotonic=lambda: minutes_later))
    index.refresh()
    assert index.heads() == files.true_heads()
    index.close()
    assert sessions_in(files.path) == 3  # and then it is used again
    assert files.path.stat().st_ino == inode


def test_threads_may_use_one_index(files: Files, index: StoreIndex) -> None:
    errors: list[BaseException] = []
    lock = threading.Lock()

    def work(number: int) -> None:
        try:
            for turn in range(10):
                with lock:  # stands for the store's
                    files.save(index, f"{number}", "abcdefgh"[:turn], at=10 * turn + number)
                assert index.named(str(number))[0].turns == 1
                index.refresh(thorough=turn % 2 == 0)
        except BaseException as err:
            errors.append(err)
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not errors
    assert index.heads() == files.true_heads()
    assert index.count() == 4


def write_sessions(root: Path, prefix: str, turns: int) -> None:
    files = Files(root)
    index, lock = files.index(), FileLock(root / "v1" / "lock", 30)
    for turn in range(turns):
        with lock:
            files.save(index, f"{prefix}{turn % 7}", "abcdefghijklmnopqrstuvwxyz"[: turn % 26], at=turn)
    index.close()


def test_two_processes_that_write_at_once_note_all(files: Files, index: StoreIndex) -> None:
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=write_sessions, args=(files.root, name, 40)) for name in "ab"]
    for child in children:
        child.start()
    while any(child.is_alive() for child in children):
        index.refresh()
        index.heads(limit=3)
    assert [child.exitcode for child in children] == [0, 0]
    index.refresh()
    assert index.heads() == files.true_heads()
    assert index.count() == 14
    found = index.totals()
    index.rebuild()
    assert index.totals() == found


def test_killed_at_any_moment_nothing_is_missed(files: Files) -> None:
    write_sessions(files.root, "a", 2)
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=write_sessions, args=(files.root, "b", 100_000))
    child.start()
    index = files.index()
    while index.count() < 9:
        index.refresh()
    os.kill(child.pid or 0, signal.SIGKILL)
    child.join(30)
    for leftover in files.root.rglob(".tmp-*"):
        leftover.unlink()
    index.refresh()
    assert index.heads() == files.true_heads()
    # One that comes after it notes its own, and still finds all.
    other = files.index()
    files.save(other, "c", at=200_000)
    assert other.heads() == files.true_heads()
    totals = other.totals()
    other.rebuild()
    assert other.totals() == totals
    other.close()
    index.close()


def test_a_forked_child_leaves_the_parents_connection_alone(files: Files, index: StoreIndex) -> None:
    saved = files.save(index, "a")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            index.refresh()
            status = 0 if index.heads() == [saved] else 2
            index.close()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    later = files.save(index, "b", at=1)
    other = files.index()
    assert other.heads() == [later, saved]
    assert files.heads_read == []
    other.close()
