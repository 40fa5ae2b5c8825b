"""Looking after a store: its figures, its faults, and deleting what may go, beside processes that save."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
from test_local_store import IDENTITY, assert_equal, files, snapshot

from satchel.cache_store import frame, local, maintenance
from satchel.cache_store.loading import load_snapshot
from satchel.cache_store.local import HeadMovedError, LocalStore
from satchel.cache_store.lock import FileLock
from satchel.cache_store.maintenance import Collected, collect, prune, remove
from satchel.cache_store.manifest import Message, encode_head
from satchel.cache_store.sessions import Saved, fork_session, open_session, save_snapshot
from satchel.cache_store.snapshot import Snapshot, canonical_json
from satchel.cache_store.stats import ModelStats, stats
from satchel.cache_store.verify import verify
from satchel.cli.app import run
from satchel.config.units import parse_duration_s, parse_size, size_text
from satchel.errors import NotFoundError, SatchelError, UsageError, VersionError
from satchel.files import delete_file

HOUR_NS = 3600 * 10**9
DAY_NS = 24 * HOUR_NS


def save(
    store: LocalStore,
    part: Snapshot,
    base: Saved | None = None,
    name: str = "notes",
    words: str = "one",
    model: str = "embedded",
) -> Saved:
    """A save whose transcript is a message for each word: continuing `base` means going on with its words."""
    messages = [Message(role="user", content=word) for word in words.split()]
    return save_snapshot(store, part, messages, name=name, model_name=model, profile_name="turbo4", base=base)


def save_with_branch(store: LocalStore, name: str = "notes") -> Saved:
    """A session that said "one two", went back and said "one other more yet".

    Its manifests: the current one with tokens 0 to 42, the parent with 0 to 41, and the abandoned one with
    0 to 29, whose block of tokens 16 to 24 only it has.
    """
    first = save(store, snapshot(0, 29), name=name, words="one two")
    back = save(store, snapshot(16, 35, salt=500), first, name=name, words="one other")
    parent = save(store, snapshot(32, 41, salt=500), back, name=name, words="one other more")
    return save(store, snapshot(40, 42, salt=500), parent, name=name, words="one other more yet")


def block_path(root: Path, object_id: str) -> Path:
    return root / "v1" / "blocks" / object_id[:2] / object_id


def manifest_path(root: Path, manifest_id: str) -> Path:
    return root / "v1" / "manifests" / manifest_id


def head_path(root: Path, saved: Saved) -> Path:
    return root / "v1" / "heads" / f"{saved.head.session_id}.json"


def make_older(*paths: Path, by_ns: int = 2 * DAY_NS) -> None:
    for path in paths:
        written = path.stat().st_mtime_ns - by_ns
        os.utime(path, ns=(written, written))


def make_all_older(root: Path) -> None:
    make_older(*(path for path in root.rglob("*") if path.is_file()))


def size(path: Path) -> int:
    return path.stat().st_size


def words_of(saved: Saved) -> list[str]:
    return [message.content for message in saved.manifest.messages]


def right_files(root: Path) -> dict[str, bytes]:
    """The files of blocks, manifests and heads."""
    return {name: data for name, data in files(root).items() if not name.startswith("v1/index.db")}


@pytest.fixture
def root(satchel_home: Path) -> Path:
    return satchel_home


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore(root)


# Figures


def test_an_empty_store_has_nothing(store: LocalStore, root: Path) -> None:
    found = stats(store)
    assert (found.place, found.sessions, found.blocks, found.bytes) == (str(root / "v1"), 0, 0, 0)
    assert (found.shared_bytes, found.unreferenced_bytes, dict(found.models), found.faults) == (0, 0, {}, ())
    assert not root.exists()


def test_figures_are_those_of_the_files(store: LocalStore, root: Path) -> None:
    one = save(store, snapshot(0, 29), name="a")
    save(store, snapshot(0, 29), name="b")
    other = save(store, snapshot(0, 12, salt=7), name="c", model="other")
    store.put_block(b"nobody's")
    (root / "v1" / "manifests" / ".tmp-killed").write_bytes(b"12345")
    found = stats(store)
    objects = {name: len(data) for name, data in right_files(root).items() if "/heads/" not in name}
    shared = sum(ref.stored_bytes for ref in one.manifest.blocks)
    other_bytes = other.head.stored_bytes
    assert (found.sessions, found.blocks, found.bytes) == (3, 3 + 1, sum(objects.values()))
    assert (found.shared_bytes, found.unreferenced_bytes) == (shared, 8 + 5)
    assert dict(found.models) == {
        "embedded": ModelStats(2, 58, found.bytes - other_bytes - 8 - 5),
        "other": ModelStats(1, 12, other_bytes),
    }


def test_a_forks_tail_is_not_counted_as_shared(store: LocalStore) -> None:
    origin = save(store, snapshot(0, 29))
    fork_session(store, origin, "fork")
    assert stats(store).shared_bytes == sum(ref.stored_bytes for ref in origin.manifest.blocks)


def test_the_indexs_size_is_told(store: LocalStore, root: Path) -> None:
    (root / "v1").mkdir(parents=True)
    (root / "v1" / "index.db").write_bytes(b"123")
    (root / "v1" / "index.db-wal").write_bytes(b"4567")
    assert stats(store).index_bytes == 7


def test_what_is_unreferenced_is_not_known_while_a_head_is_damaged(store: LocalStore, root: Path) -> None:
    saved = save(store, snapshot(0, 29))
    head_path(root, saved).write_text("{")
    found = stats(store)
    assert (found.sessions, found.unreferenced_bytes) == (0, None)
    (line,) = found.faults
    assert line.startswith(f"session {saved.head.session_id[:12]}: the head of session")


# Verifying


def test_a_whole_store_has_no_faults(store: LocalStore) -> None:
    save_with_branch(store)
    save(store, snapshot(0, 29), name="shares")
    for read_data in (False, True):
        found = verify(store, read_data)
        assert (found.sessions, found.faults) == (2, ())
        # Of the branched session: 2 blocks at first, 1 abandoned, 3 further, a tail. Of the other: a tail.
        assert (found.manifests, found.objects) == (3 + 1, 2 + 1 + 3 + 1 + 1)


def test_a_missing_or_cut_object_is_named_with_its_session_and_what_it_means(
    store: LocalStore, root: Path
) -> None:
    saved = save(store, snapshot(0, 29), name="notes")
    save(store, snapshot(0, 12), name="shares")
    first, second, _ = saved.manifest.blocks
    assert saved.manifest.tail
    block_path(root, first.sha256).unlink()
    tail = block_path(root, saved.manifest.tail.sha256)
    tail.write_bytes(tail.read_bytes()[:-1])
    block_path(root, second.sha256).unlink()
    block_path(root, second.sha256).mkdir()
    means = "its words are safe; the context will be read again"
    length = saved.manifest.tail.stored_bytes
    assert sorted(fault.line() for fault in verify(store).faults) == sorted(
        [
            f"notes: block {first.sha256[:12]} is missing: {means}",
            f"notes: {block_path(root, second.sha256)} is not a file: {means}",
            f"notes: tail {tail.name[:12]} has {length - 1} bytes instead of {length}: {means}",
            f"shares: block {first.sha256[:12]} is missing: {means}",
        ]
    )


def test_changed_bytes_are_found_by_reading_the_data(store: LocalStore, root: Path) -> None:
    saved = save(store, snapshot(0, 29))
    path = block_path(root, saved.manifest.blocks[1].sha256)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert verify(store).faults == ()
    (fault,) = verify(store, read_data=True).faults
    assert (fault.session, fault.session_id, fault.object_id) == ("notes", saved.head.session_id, path.name)
    assert fault.problem == f"block {path.name[:12]} is damaged: its SHA-256 is another"


def test_objects_of_another_context_are_found_by_reading_the_data(store: LocalStore) -> None:
    saved = save(store, snapshot(0, 29))
    foreign = saved.manifest.model_copy(update={"identity": {**IDENTITY, "bits": [3, 3]}, "generation": 2})
    store.commit(foreign, expected=saved.head.manifest)
    assert verify(store).faults == ()
    problems = {fault.problem for fault in verify(store, read_data=True).faults}
    assert problems == {
        *(f"block {ref.sha256[:12]} belongs to another context" for ref in saved.manifest.blocks),
        f"tail {saved.manifest.tail and saved.manifest.tail.sha256[:12]} belongs to another context",
    }


def test_damage_to_what_is_not_current_says_so(store: LocalStore, root: Path) -> None:
    saved = save_with_branch(store)
    (abandoned_id,) = saved.manifest.abandoned
    abandoned = store.get_manifest(abandoned_id)
    parent = store.get_manifest(saved.manifest.parent or "")
    assert parent.tail
    block_path(root, abandoned.blocks[2].sha256).unlink()
    block_path(root, parent.tail.sha256).unlink()
    assert [fault.line() for fault in verify(store).faults] == [
        f"notes: block {abandoned.blocks[2].sha256[:12]} is missing: "
        "its words are safe; the context will be read again if you go back there",
    ]
    manifest_path(root, saved.manifest.parent or "").write_bytes(b"x")
    manifest_path(root, abandoned_id).unlink()
    assert [(fault.object_id, fault.meaning) for fault in verify(store).faults] == [
        (saved.manifest.parent, "the save before last cannot stand in for the last one, which is whole"),
        (abandoned_id, "what was said there cannot be gone back to; the present words are safe"),
    ]


def test_a_parent_that_is_gone_is_no_fault(store: LocalStore, root: Path) -> None:
    two = save(store, snapshot(24, 30), save(store, snapshot(0, 29)), words="one two")
    manifest_path(root, two.manifest.parent or "").unlink()
    assert verify(store).faults == ()


def test_a_damaged_manifest_is_told_with_what_stands_in(store: LocalStore, root: Path) -> None:
    two = save(store, snapshot(24, 30), save(store, snapshot(0, 29)), words="one two")
    manifest_path(root, two.head.manifest).write_bytes(b"x")
    (fault,) = verify(store).faults
    assert fault.meaning == "it goes on from the save before, with 1 messages"
    manifest_path(root, two.manifest.parent or "").unlink()
    (fault,) = verify(store).faults
    assert fault.meaning == "its words cannot be read"


def test_a_head_that_names_another_sessions_manifest_is_a_fault(store: LocalStore) -> None:
    one, other = save(store, snapshot(0, 29), name="a"), save(store, snapshot(0, 12), name="b")
    swapped = one.head.model_copy(update={"manifest": other.head.manifest})
    store.head_path(one.head.session_id).write_bytes(encode_head(swapped))
    (fault,) = verify(store).faults
    assert fault.line() == (
        f"a: manifest {other.head.manifest[:12]} is of another session or generation: "
        "its words cannot be read"
    )


def test_a_damaged_head_is_told_with_the_way_out(store: LocalStore, root: Path) -> None:
    saved = save(store, snapshot(0, 29))
    session_id = saved.head.session_id
    head_path(root, saved).write_bytes(b"{")
    (fault,) = verify(store).faults
    assert fault.session == fault.session_id == session_id
    assert fault.object_id == ""
    assert (
        fault.meaning == f"restore the file, or give the session up with `satchel sessions rm {session_id}`"
    )


def test_a_head_of_a_later_version_is_not_called_damaged(store: LocalStore, root: Path) -> None:
    saved = save(store, snapshot(0, 29))
    fields = json.loads(head_path(root, saved).read_bytes())
    head_path(root, saved).write_text(json.dumps(fields | {"colour": "red"}))
    (fault,) = verify(store).faults
    assert fault.problem.endswith("it was saved by another version of Satchel (colour is not known)")
    assert fault.meaning == "its words need the version of Satchel that saved them"


def test_nothing_stands_in_for_a_manifest_of_a_later_version(store: LocalStore, root: Path) -> None:
    two = save(store, snapshot(24, 30), save(store, snapshot(0, 29)), words="one two")
    later = frame.compress(canonical_json({"format_version": 2}), 1 << 20)
    manifest_path(root, frame.object_id(later)).write_bytes(later)
    head = two.head.model_copy(update={"manifest": frame.object_id(later)})
    head_path(root, two).write_bytes(encode_head(head))
    (fault,) = verify(store).faults
    assert fault.meaning == "its words need the version of Satchel that saved them"
    with pytest.raises(VersionError):
        open_session(store, "notes")


def test_what_the_disk_refuses_to_read_is_not_called_damaged(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, snapshot(0, 29))

    def refuse(path: Path, max_bytes: int) -> bytes:
        raise SatchelError(f"cannot read {path}: Input/output error")

    monkeypatch.setattr(local, "read_file", refuse)
    (fault,) = verify(store).faults
    assert fault.line().endswith("Input/output error: nothing more is known of it until it can be read")


@pytest.mark.parametrize(
    "changes",
    [
        {"title": "ona"},
        {"turns": 3},
        {"token_count": 28},
        {"stored_bytes": 7},
        {"updated_at": datetime(2026, 1, 1, tzinfo=UTC)},
        {"name": "motes", "model_name": "another"},
    ],
)
def test_a_head_that_says_otherwise_than_its_manifest_is_a_fault(
    store: LocalStore, root: Path, changes: dict[str, object]
) -> None:
    saved = save(store, snapshot(0, 29))
    wrong = saved.head.model_copy(update=changes)
    head_path(root, saved).write_bytes(encode_head(wrong))
    (fault,) = verify(store).faults
    assert fault.line() == (
        f"{wrong.name}: its head says otherwise than its manifest of: {', '.join(changes)}: "
        "its words and its context are safe; lists show it wrongly until its next save"
    )
    assert fault.object_id == ""


def save_three_times_at_the_next_read(
    store: LocalStore, base: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest that is read next is gone by then."""
    read = store.stored_manifest

    def slow_read(manifest_id: str) -> bytes:
        monkeypatch.setattr(store, "stored_manifest", read)
        saved, words = base, " ".join(words_of(base))
        for _ in range(3):
            words += " more"
            saved = save(store, snapshot(24, saved.head.token_count + 1), saved, words=words)
        return read(manifest_id)

    monkeypatch.setattr(store, "stored_manifest", slow_read)


def test_a_session_that_is_saved_while_it_is_looked_at_is_looked_at_again(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_three_times_at_the_next_read(store, save(store, snapshot(0, 29)), monkeypatch)
    assert verify(store).faults == ()


# Collecting garbage


def test_only_what_is_unreferenced_and_old_is_deleted(store: LocalStore, root: Path) -> None:
    save_with_branch(store)
    save(store, snapshot(0, 29, salt=3), name="other")
    kept = right_files(root)
    old, young = store.put_block(b"old"), store.put_block(b"young")
    manifest = save(store, snapshot(0, 9, salt=9), name="gone")
    head_path(root, manifest).unlink()
    make_all_older(root)
    os.utime(block_path(root, young))
    assert manifest.manifest.tail
    gone = [block_path(root, ref.sha256) for ref in (*manifest.manifest.blocks, manifest.manifest.tail)]
    gone += [block_path(root, old), manifest_path(root, manifest.head.manifest)]
    expected = Collected(blocks=3, manifests=1, freed_bytes=sum(map(size, gone)), younger_bytes=5)

    before = right_files(root)
    assert collect(store, dry_run=True) == expected
    assert right_files(root) == before
    assert collect(store) == expected
    assert right_files(root) == {**kept, f"v1/blocks/{young[:2]}/{young}": b"young"}
    assert collect(store, grace_s=0) == Collected(blocks=1, freed_bytes=5)
    assert right_files(root) == kept
    assert verify(store, read_data=True).faults == ()


def test_the_branchs_tail_goes_and_its_words_and_blocks_stay(store: LocalStore, root: Path) -> None:
    first = save(store, snapshot(0, 29), words="one two")
    tail = first.manifest.tail
    assert tail
    stored_tail = store.get_block(tail.sha256, tail.stored_bytes)
    back = save(store, snapshot(16, 35, salt=500), first, words="one other")
    assert collect(store, grace_s=0) == Collected()  # the parent is what was abandoned
    save(store, snapshot(32, 36, salt=500), back, words="one other more")
    store.put_block(stored_tail)  # which the disk refused to delete
    assert collect(store, grace_s=0) == Collected(blocks=1, freed_bytes=tail.stored_bytes)
    assert not block_path(root, tail.sha256).exists()
    assert all(map(store.has_block, first.manifest.blocks))
    assert store.get_manifest(first.head.manifest) == first.manifest


def test_a_session_saved_twice_while_its_head_is_read_is_no_fault(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = save(store, snapshot(0, 29))
    save_three_times_at_the_next_read(store, one, monkeypatch)
    assert collect(store, grace_s=0) == Collected()
    save_three_times_at_the_next_read(store, open_session(store, "notes"), monkeypatch)
    assert stats(store).faults == ()


def test_leftovers_go_wherever_they_lie_and_foreign_files_stay(store: LocalStore, root: Path) -> None:
    saved = save(store, snapshot(0, 29))
    shard = block_path(root, saved.manifest.blocks[0].sha256).parent
    places = [root / "v1", root / "v1" / "heads", root / "v1" / "manifests", shard.parent, shard]
    for place in places:
        (place / ".tmp-killed").write_bytes(b"12")
        (place / "abcd.aside-0011aabb").write_bytes(b"123")
        (place / ".DS_Store").write_bytes(b"theirs")
    folder = shard / f"{'0' * 64}.aside-0011aabb"
    folder.mkdir()
    (folder / ".tmp-letter").write_text("theirs")
    (root / ".tmp-beside-the-store").write_text("theirs")
    make_all_older(root)
    # What was set aside keeps the time at which it was written, so it is the renaming that counts.
    young = 3 * len(places)
    done = Collected(leftovers=len(places), freed_bytes=2 * len(places), younger_bytes=young)
    assert collect(store) == done
    assert collect(store, grace_s=0) == Collected(leftovers=len(places), freed_bytes=3 * len(places))
    assert len(list(root.rglob(".DS_Store"))) == len(places)
    assert (folder / ".tmp-letter").exists() and (root / ".tmp-beside-the-store").exists()
    assert verify(store, read_data=True).faults == ()


@pytest.mark.parametrize("damage", ["head", "manifest"])
def test_nothing_is_deleted_while_a_session_cannot_be_read(
    store: LocalStore, root: Path, damage: str
) -> None:
    saved = save(store, snapshot(0, 29))
    store.put_block(b"nobody's")
    path = {"head": head_path(root, saved), "manifest": manifest_path(root, saved.head.manifest)}[damage]
    content = path.read_bytes()
    path.write_bytes(content[:20])
    before = right_files(root)
    for dry_run in (False, True):
        done = collect(store, grace_s=0, dry_run=dry_run)
        assert (done.blocks, done.freed_bytes, len(done.faults)) == (0, 0, 1)
        assert saved.head.session_id[:12] in done.faults[0] and "damaged" in done.faults[0]
        pruned = prune(store, 0, dry_run=dry_run)
        assert (pruned.sessions, pruned.faults) == ((), done.faults)
    assert right_files(root) == before
    path.write_bytes(content)
    assert collect(store, grace_s=0) == Collected(blocks=1, freed_bytes=8)


class InterruptedStore(LocalStore):
    """Lets `others` act each time before the lock is taken, as another process may."""

    others: Callable[[], object] = staticmethod(lambda: None)

    def locked(self) -> FileLock:
        self.others()
        return super().locked()


def test_what_a_save_takes_up_while_garbage_is_collected_stays(store: LocalStore, root: Path) -> None:
    removed = save(store, snapshot(0, 29), name="removed")
    head_path(root, removed).unlink()  # its blocks lie there unreferenced
    make_all_older(root)
    interrupted = InterruptedStore(root)
    taken: list[Saved] = []
    interrupted.others = lambda: taken or taken.append(save(store, snapshot(0, 29), name="new"))
    done = collect(interrupted)
    assert (done.blocks, done.manifests) == (1, 1)  # the other's tail and manifest
    assert_equal(load_snapshot(store, open_session(store, "new").manifest), snapshot(0, 29))


def test_a_file_that_is_written_anew_while_garbage_is_collected_is_young(
    store: LocalStore, root: Path
) -> None:
    path = block_path(root, store.put_block(b"nobody's"))
    path.write_bytes(b"damaged")
    make_all_older(root)
    interrupted = InterruptedStore(root)
    interrupted.others = lambda: store.put_block(b"nobody's")
    assert collect(interrupted) == Collected()
    assert path.read_bytes() == b"nobody's"


def test_a_head_that_gets_damaged_meanwhile_ends_the_deleting(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = save(store, snapshot(0, 29))
    for number in range(6):
        store.put_block(b"nobody's %d" % number)
    monkeypatch.setattr(maintenance, "BATCH", 2)
    holds = iter(range(10))
    interrupted = InterruptedStore(root)
    interrupted.others = lambda: head_path(root, saved).write_text("{") if next(holds) == 2 else None
    done = collect(interrupted, grace_s=0)
    assert (done.blocks, len(done.faults)) == (4, 1)


def test_what_the_disk_refuses_to_delete_is_counted(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = store.put_block(b"refused")
    store.put_block(b"other")

    def delete(path: Path) -> int:
        if path.name == refused:
            raise SatchelError(f"cannot delete {path}")
        return delete_file(path)

    monkeypatch.setattr(maintenance, "delete_file", delete)
    assert collect(store, grace_s=0) == Collected(blocks=1, freed_bytes=5, refused=1)


# Removing


def test_what_removed_sessions_shared_goes_with_the_last_of_them(store: LocalStore, root: Path) -> None:
    keep = save(store, snapshot(0, 29, salt=3), name="keep")
    kept, kept_bytes = right_files(root), stats(store).bytes
    one, two = save_with_branch(store, "one"), save(store, snapshot(0, 29), name="two")
    added_bytes = stats(store).bytes - kept_bytes
    assert remove(store, one.head.session_id, two.head.session_id) == added_bytes
    assert right_files(root) == kept
    assert store.heads().heads == (keep.head,)


def test_of_several_to_remove_those_before_a_missing_one_go(store: LocalStore) -> None:
    one, two = save(store, snapshot(0, 9), name="one"), save(store, snapshot(0, 9), name="two")
    with pytest.raises(NotFoundError):
        remove(store, one.head.session_id, "0" * 32, two.head.session_id)
    assert store.heads().heads == (two.head,)
    assert stats(store).unreferenced_bytes == 0  # its tail went too; the block is shared
    assert verify(store, read_data=True).faults == ()


def test_a_fork_needs_nothing_of_what_it_was_made_from_but_its_blocks(store: LocalStore) -> None:
    origin = save(store, snapshot(0, 29))
    fork = fork_session(store, origin, "fork")
    assert origin.manifest.tail
    of_origin_alone = origin.head.stored_bytes - sum(ref.stored_bytes for ref in origin.manifest.blocks)
    assert remove(store, origin.head.session_id) == of_origin_alone
    assert_equal(load_snapshot(store, fork.manifest), snapshot(0, 29))
    assert verify(store, read_data=True).faults == ()
    remove(store, fork.head.session_id)
    assert stats(store).bytes == 0


def test_what_a_save_takes_up_while_a_session_is_removed_stays(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = save(store, snapshot(0, 80), name="gone")
    monkeypatch.setattr(maintenance, "BATCH", 3)
    interrupted, holds = InterruptedStore(root), iter(range(100))
    interrupted.others = lambda: save(store, snapshot(0, 80), name="new") if next(holds) == 3 else None
    remove(interrupted, gone.head.session_id)
    assert next(holds) > 5  # the lock was let go of in between
    assert_equal(load_snapshot(store, open_session(store, "new").manifest), snapshot(0, 80))
    assert verify(store, read_data=True).faults == ()
    assert stats(store).unreferenced_bytes == 0


def test_a_session_is_removed_though_what_it_used_cannot_be_deleted(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = save(store, snapshot(0, 29))
    assert saved.manifest.tail
    objects_bytes = sum(ref.stored_bytes for ref in (*saved.manifest.blocks, saved.manifest.tail))

    def refuse(block_id: str) -> int:
        raise SatchelError("no")

    with monkeypatch.context() as patch:
        patch.setattr(store, "delete_block", refuse)
        assert remove(store, saved.head.session_id) == saved.head.stored_bytes - objects_bytes
    assert store.heads().heads == ()
    assert collect(store, grace_s=0) == Collected(blocks=4, freed_bytes=objects_bytes)


# Pruning


def used_long_ago(root: Path, saved: Saved, hours: int) -> None:
    make_older(head_path(root, saved), by_ns=hours * HOUR_NS)


def test_a_store_that_fits_is_left_alone(store: LocalStore, root: Path) -> None:
    save(store, snapshot(0, 29))
    before = right_files(root)
    taken = stats(store).bytes
    done = prune(store, taken)
    assert (done.before_bytes, done.after_bytes, done.sessions) == (taken, taken, ())
    assert right_files(root) == before


def test_the_sessions_unused_for_longest_lose_their_state_and_keep_their_words(
    store: LocalStore, root: Path
) -> None:
    middle = save(store, snapshot(0, 80, salt=1), name="middle")
    newest = save(store, snapshot(0, 80, salt=2), name="newest")
    oldest = save(store, snapshot(0, 80, salt=3), name="oldest")
    used_long_ago(root, oldest, hours=3)
    used_long_ago(root, middle, hours=2)
    taken = stats(store).bytes
    limit = taken - oldest.head.stored_bytes - 1  # one is not enough

    before = right_files(root)
    planned = prune(store, limit, dry_run=True)
    assert [session.name for session in planned.sessions] == ["oldest", "middle"]
    assert right_files(root) == before

    done = prune(store, limit)
    assert [session.name for session in done.sessions] == ["oldest", "middle"]
    assert (done.before_bytes, done.after_bytes) == (taken, stats(store).bytes)
    assert done.after_bytes < limit
    for lost in (oldest, middle):
        opened = open_session(store, lost.head.name)
        assert (opened.head.generation, opened.head.token_count) == (2, 0)
        assert (words_of(opened), opened.head.updated_at) == (["one"], lost.head.updated_at)
        assert load_snapshot(store, opened.manifest) is None
    assert_equal(load_snapshot(store, open_session(store, "newest").manifest), snapshot(0, 80, salt=2))
    assert open_session(store, "newest").head == newest.head
    assert verify(store, read_data=True).faults == ()
    assert collect(store, grace_s=0) == Collected()  # nothing is left over
    again = save(
        store, snapshot(0, 88, salt=3), open_session(store, "oldest"), name="oldest", words="one two"
    )
    assert_equal(load_snapshot(store, again.manifest), snapshot(0, 88, salt=3))


def test_opening_a_session_counts_as_using_it(store: LocalStore, root: Path) -> None:
    one = save(store, snapshot(0, 80, salt=1), name="one")
    other = save(store, snapshot(0, 80, salt=2), name="other")
    used_long_ago(root, one, hours=3)
    used_long_ago(root, other, hours=2)
    store.touch(one.head.session_id)
    done = prune(store, stats(store).bytes - 1)
    assert [session.name for session in done.sessions] == ["other"]


def test_the_session_to_keep_keeps_its_state_whatever_the_limit(store: LocalStore, root: Path) -> None:
    running = save(store, snapshot(0, 29, salt=1), name="running")
    used_long_ago(root, running, hours=3)
    save(store, snapshot(0, 29, salt=2), name="other")
    done = prune(store, 0, keep=running.head.session_id)
    assert [session.name for session in done.sessions] == ["other"]
    assert_equal(load_snapshot(store, open_session(store, "running").manifest), snapshot(0, 29, salt=1))
    assert done.after_bytes >= running.head.stored_bytes


def test_shared_blocks_stay_for_the_other_session(store: LocalStore, root: Path) -> None:
    one = save(store, snapshot(0, 29), name="one")
    used_long_ago(root, one, hours=3)
    other = save(store, snapshot(0, 29), name="other")
    assert one.manifest.tail
    done = prune(store, stats(store).bytes - 1)
    assert [session.name for session in done.sessions] == ["one"]
    assert not store.has_block(one.manifest.tail)
    assert_equal(load_snapshot(store, other.manifest), snapshot(0, 29))


def test_words_that_were_gone_back_from_stay_too(store: LocalStore, root: Path) -> None:
    saved = save_with_branch(store)
    prune(store, 0)
    opened = open_session(store, "notes")
    assert words_of(opened) == ["one", "other", "more", "yet"]
    (branch,) = opened.manifest.abandoned
    assert [message.content for message in store.get_manifest(branch).messages] == ["one", "two"]
    assert opened.manifest.generation == saved.manifest.generation + 1
    assert list((root / "v1" / "blocks").rglob("?" * 64)) == []
    assert verify(store, read_data=True).faults == ()
    # Were the newest manifest damaged, the one before has all of it.
    manifest_path(root, opened.head.manifest).write_bytes(b"x")
    before = open_session(store, "notes")
    assert (words_of(before), before.manifest.abandoned) == (words_of(opened), (branch,))


def test_garbage_goes_before_any_session_loses_its_state(store: LocalStore, root: Path) -> None:
    saved = save(store, snapshot(0, 29))
    taken = stats(store).bytes
    make_older(block_path(root, store.put_block(b"nobody's")))
    done = prune(store, taken)
    assert done.collected == Collected(blocks=1, freed_bytes=8)
    assert (done.before_bytes, done.after_bytes, done.sessions) == (taken + 8, taken, ())
    assert open_session(store, "notes") == saved


def test_a_save_just_before_a_prune_takes_the_lock_counts(store: LocalStore, root: Path) -> None:
    first = save(store, snapshot(0, 80, salt=1), name="first")
    save(store, snapshot(0, 80, salt=2), name="second")
    used_long_ago(root, first, hours=3)
    interrupted = InterruptedStore(root)
    saves: list[Saved] = []
    interrupted.others = lambda: (
        saves or saves.append(save(store, snapshot(80, 81, salt=1), first, name="first", words="one two"))
    )
    done = prune(interrupted, stats(store).bytes - 1)
    assert [session.name for session in done.sessions] == ["second"]
    assert_equal(load_snapshot(store, open_session(store, "first").manifest), snapshot(0, 81, salt=1))


def dies_at(step: int, act: Callable[[], object]) -> bool:
    """Whether a process that does `act` died at its `step`-th fsync, rename or unlink."""
    child = os.fork()
    if child == 0:
        steps = iter(range(1, 10_000))
        for name in ("fsync", "replace", "unlink"):

            def dying(*args: object, _real: object = getattr(os, name), **kwargs: object) -> object:
                if next(steps) == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                return _real(*args, **kwargs)  # type: ignore[operator]

            setattr(os, name, dying)
        try:
            act()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("act", ["prune", "collect"])
def test_killed_at_any_step_each_session_is_as_before_or_words_alone(tmp_path: Path, act: str) -> None:
    pristine = tmp_path / "pristine"
    origin = LocalStore(pristine)
    save_with_branch(origin)
    save(origin, snapshot(0, 20), name="shares")
    if act == "collect":
        gone = save(origin, snapshot(0, 29, salt=9), name="gone")
        head_path(pristine, gone).unlink()
    stops: list[int] = []
    killed = True
    while killed:
        root = tmp_path / str(len(stops))
        shutil.copytree(pristine, root)
        store = LocalStore(root)
        acts = {"prune": lambda: prune(store, 0), "collect": lambda: collect(store, grace_s=0)}  # noqa: B023
        killed = dies_at(len(stops) + 1, acts[act])
        for name, words, tokens in (("notes", "one other more yet", 42), ("shares", "one", 20)):
            opened = open_session(store, name)
            assert words_of(opened) == words.split()
            assert opened.head.token_count in (0, tokens)
            loaded = load_snapshot(store, opened.manifest)
            assert (loaded.stop if loaded else 0) == opened.head.token_count
        stops.append(open_session(store, "notes").head.token_count)
        (branch,) = open_session(store, "notes").manifest.abandoned
        assert len(store.get_manifest(branch).messages) == 2
        assert verify(store, read_data=True).faults == ()
        collect(store, grace_s=0)
        assert stats(store).unreferenced_bytes == 0
        assert verify(store, read_data=True).faults == ()
        shutil.rmtree(root)
    if act == "prune":
        assert len(stops) > 20
        assert (stops[0], stops[-1]) == (42, 0)
    else:
        assert set(stops) == {42}


# Beside other processes


def keep_saving(root: Path, number: int, stop: Event) -> None:
    """Save turn after turn, of sessions that begin alike; start afresh where the state was taken away."""
    store = LocalStore(root, lock_timeout_s=60)
    name, turn, base = f"talk-{number}", 0, None
    while not stop.wait(0.005):
        turn += 1
        words = " ".join(f"w{n}" for n in range(turn))
        end = 20 + turn % 40
        try:
            whole = base is None or not base.manifest.tail or turn % 10 == 0
            start = 0 if whole else min(base.manifest.blocks[-1].stop, end - end % 8)
            base = save(store, snapshot(start, end), base, name=name, words=words)
        except HeadMovedError:
            base = open_session(store, name)
            turn = len(base.manifest.messages)
        if turn % 15 == 0:  # killed in a removal: what it used is garbage, which the next save takes up again
            with store.locked():
                head_path(root, base).unlink()
            turn, base = 0, None


@pytest.mark.parametrize("act", ["collect", "prune", "both"])
def test_beside_processes_that_save_no_session_is_hurt(root: Path, act: str) -> None:
    store = LocalStore(root, lock_timeout_s=60)
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    savers = [context.Process(target=keep_saving, args=(root, number, stop)) for number in range(2)]
    save(store, snapshot(0, 29), name="quiet")
    for saver in savers:
        saver.start()
    try:
        _until(lambda: len(store.heads().heads) == 3)
        done = 0
        ends = time.monotonic() + 1.5
        while time.monotonic() < ends:
            if act != "prune":
                done += collect(store, grace_s=0).blocks
            if act != "collect":
                done += len(prune(store, 2000).sessions)
            for fault in verify(store, read_data=True).faults:
                pytest.fail(fault.line())
    finally:
        stop.set()
        for saver in savers:
            saver.join(60)
    assert [saver.exitcode for saver in savers] == [0, 0]
    assert done > 0
    assert verify(store, read_data=True).faults == ()
    collect(store, grace_s=0)
    assert stats(store).unreferenced_bytes == 0
    assert verify(store, read_data=True).faults == ()
    assert words_of(open_session(store, "quiet")) == ["one"]


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# The command line


@pytest.fixture(autouse=True)
def _real_stdin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with Path(os.devnull).open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield


def test_store_stats_prints_figures(store: LocalStore, capsys: pytest.CaptureFixture[str]) -> None:
    save(store, snapshot(0, 29), model="embed\x1b[31mded")
    assert run(["store", "stats"]) == 0
    lines = capsys.readouterr().out.splitlines()
    taken = size_text(stats(store).bytes)
    assert lines[1:4] == ["sessions          1", "blocks            3", f"on disk           {taken}"]
    assert lines[-1] == f"model embedded: 1 session, 29 tokens, {taken}"
    assert run(["store", "stats", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["models"]["embed\x1b[31mded"]["tokens"] == 29


def test_store_verify_exits_with_4_where_something_is_damaged(
    store: LocalStore, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = save(store, snapshot(0, 29))
    assert run(["store", "verify", "--read-data"]) == 0
    assert capsys.readouterr().out == "1 session, 1 manifest, 4 blocks and tails: all right\n"
    path = block_path(root, saved.manifest.blocks[0].sha256)
    path.unlink()
    assert run(["store", "verify"]) == 4
    assert capsys.readouterr().out == (
        f"notes: block {path.name[:12]} is missing: its words are safe; the context will be read again\n"
        "1 session, 1 manifest, 4 blocks and tails: 1 fault\n"
    )
    assert run(["store", "verify", "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["faults"][0]["object_id"] == path.name


def test_store_gc_tells_what_it_deletes(
    store: LocalStore, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = save(store, snapshot(0, 29))
    make_older(block_path(root, store.put_block(b"nobody's")), by_ns=HOUR_NS)
    assert run(["store", "gc"]) == 0
    assert run(["store", "gc", "--grace", "30m", "--dry-run"]) == 0
    assert run(["store", "gc", "--grace", "30m"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "deleted 0 blocks, 0 manifests, 0 leftover files: 0 bytes; "
        "8 bytes more is younger than the grace period",
        "would delete 1 block, 0 manifests, 0 leftover files: 8 bytes",
        "deleted 1 block, 0 manifests, 0 leftover files: 8 bytes",
    ]
    head_path(root, saved).write_text("{")
    assert run(["store", "gc", "--json"]) == 4
    printed = capsys.readouterr()
    assert json.loads(printed.out)["blocks"] == 0
    assert printed.err.splitlines()[0].startswith(f"session {saved.head.session_id[:12]}: the head of")
    assert printed.err.splitlines()[1] == "nothing is deleted while it is not known what a session needs"


def test_store_prune_tells_who_lost_its_context(
    store: LocalStore, capsys: pytest.CaptureFixture[str]
) -> None:
    save(store, snapshot(0, 80))
    assert run(["store", "prune", "--max-size", "1GB"]) == 0
    taken = size_text(stats(store).bytes)
    assert capsys.readouterr().out == f"the store took {taken} and takes {taken}\n"
    assert run(["store", "prune", "--max-size", "2KiB", "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("notes would lose its context: ")
    assert run(["store", "prune", "--max-size", "2 KiB"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("notes lost its context: ")
    assert lines[1] == f"the store took {taken} and takes {size_text(stats(store).bytes)}"
    assert run(["store", "prune", "--max-size", "0"]) == 0
    assert capsys.readouterr().err == (
        "that is more than 0: words, and what nothing refers to for a minute only, stay\n"
    )


def test_store_reindex_counts(store: LocalStore, capsys: pytest.CaptureFixture[str]) -> None:
    save(store, snapshot(0, 29), name="a")
    save(store, snapshot(0, 29), name="b")
    assert run(["store", "reindex"]) == 0
    assert capsys.readouterr().out == "indexed 2 sessions and 3 blocks\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("prune", "--max-size", "20XB"),
        ("prune", "--max-size", "-1"),
        ("prune", "--max-size", ""),
        ("prune",),
        ("gc", "--grace", "soon"),
    ],
)
def test_a_size_or_a_time_that_is_none_is_a_usage_error(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["store", *arguments]) == 2
    assert capsys.readouterr().err.startswith("satchel: ")


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("1000", 1000),
        ("12 bytes", None),
        ("1b", 1),
        ("20GB", 20_000_000_000),
        ("20 gb", 20_000_000_000),
        ("1.5KB", 1500),
        ("2KiB", 2048),
        ("3MiB", 3_145_728),
        ("1GiB", 1_073_741_824),
        ("2TB", 2_000_000_000_000),
        ("1TiB", 1_099_511_627_776),
        ("7MB", 7_000_000),
        ("1e9", None),
        ("inf", None),
        ("GB", None),
        ("²GB", None),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size_bytes: int | None) -> None:
    if size_bytes is not None:
        assert parse_size(text) == size_bytes
        return
    with pytest.raises(UsageError, match="is not a size"):
        parse_size(text)


def test_times_are_read_and_sizes_written_as_people_do() -> None:
    assert [parse_duration_s(text) for text in ("5", "90s", "30m", "24h", "7d")] == [
        5,
        90,
        1800,
        86400,
        604800,
    ]
    assert [size_text(size) for size in (0, 999, 1000, 1_250_000, 2_000_000_000, 3e15)] == [
        "0 bytes",
        "999 bytes",
        "1.0 KB",
        "1.2 MB",
        "2.0 GB",
        "3000.0 TB",
    ]


@pytest.fixture(autouse=True)
def _no_temporaries(request: pytest.FixtureRequest, root: Path) -> Iterator[None]:
    yield
    if "leftovers" not in request.node.name and "figures" not in request.node.name:
        assert not list(root.rglob(".tmp-*"))
