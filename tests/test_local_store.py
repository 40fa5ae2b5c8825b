"""The store on disk: incremental, private, whole at any moment, and safe between processes."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import resource
import shutil
import signal
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from itertools import count
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pytest

from satchel.cache_store import objects
from satchel.cache_store.frame import object_id
from satchel.cache_store.loading import load_blocks, load_snapshot
from satchel.cache_store.local import HeadMovedError, LocalStore
from satchel.cache_store.maintenance import collect, prune, remove
from satchel.cache_store.manifest import Message
from satchel.cache_store.sessions import Saved, fork_session, open_session, save_snapshot
from satchel.cache_store.snapshot import (
    Block,
    Snapshot,
    chain_key,
    identity_differences,
    identity_digest,
)
from satchel.cache_store.stats import stats
from satchel.errors import DamagedError, NotFoundError, SatchelError, UsageError

IDENTITY = {"weights": "d" * 64, "rope": {"theta": 100000.0}, "bits": [4, 4]}
BLOCK = 8  # tokens; the store takes blocks of any length


def block(start: int, stop: int, salt: int = 0) -> Block:
    tokens = np.arange(start, stop, dtype=np.uint32) + salt
    codes = np.random.default_rng([start, salt]).integers(0, 1 << 32, (2, stop - start, 8), np.uint32)
    scale = np.linspace(0.5, 1.5, 2 * (stop - start), dtype=np.float16).reshape(2, -1)
    return Block(start, stop, tokens, {"g0.k.codes": codes, "g0.k.scale": scale}, {"layers": [0, 1]})


def snapshot(start: int, stop: int, salt: int = 0) -> Snapshot:
    """Blocks of `BLOCK` tokens from `start`, and a tail of what is left before `stop`."""
    last = stop - stop % BLOCK
    blocks = tuple(block(at, at + BLOCK, salt) for at in range(start, last, BLOCK))
    return Snapshot(IDENTITY, blocks, block(last, stop, salt))


def save(
    store: LocalStore, part: Snapshot, base: Saved | None = None, name: str = "notes", **more: bool
) -> Saved:
    before = base.manifest.messages if base else ()
    messages = [*before, Message(role="user", content=f"question {part.stop}")]
    return save_snapshot(
        store, part, messages, name=name, model_name="embedded", profile_name="turbo4", base=base, **more
    )


def save_words(store: LocalStore, part: Snapshot, base: Saved, *words: str) -> Saved:
    """A save whose whole transcript is these words."""
    messages = [Message(role="user", content=each) for each in words]
    return save_snapshot(
        store, part, messages, name="notes", model_name="embedded", profile_name="turbo4", base=base
    )


def assert_equal(loaded: Snapshot | None, expected: Snapshot) -> None:
    assert loaded is not None
    assert loaded.identity == expected.identity
    pairs = zip((*loaded.blocks, loaded.tail), (*expected.blocks, expected.tail), strict=True)
    for got, want in pairs:
        assert (got.start, got.stop, got.meta) == (want.start, want.stop, want.meta)
        np.testing.assert_array_equal(got.token_ids, want.token_ids, strict=True)
        assert list(got.arrays) == list(want.arrays)
        for name in want.arrays:
            np.testing.assert_array_equal(got.arrays[name], want.arrays[name], strict=True)


def files(root: Path) -> dict[str, bytes]:
    found = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if name != "v1/lock" and "index.db" not in name}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "home" / "data"


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore(root)


# Saving and loading


def test_a_session_comes_back_exactly(store: LocalStore, root: Path) -> None:
    saved = save(store, snapshot(0, 29))
    opened = open_session(store, "notes")
    assert opened == saved
    assert opened.head.token_count == 29
    assert_equal(load_snapshot(store, opened.manifest), snapshot(0, 29))
    stored = files(root)
    del stored[f"v1/heads/{saved.head.session_id}.json"]
    assert opened.head.stored_bytes == sum(map(len, stored.values()))


def test_a_turn_writes_new_blocks_a_tail_a_manifest_and_a_head(store: LocalStore, root: Path) -> None:
    first = save(store, snapshot(0, 29))
    before = files(root)
    second = save(store, snapshot(24, 35), first)
    after = files(root)
    new = sorted(name.split("/")[1] for name in after.keys() - before.keys())
    assert new == ["blocks", "blocks", "manifests"]
    assert second.head.generation == 2
    assert second.manifest.parent == first.head.manifest
    assert_equal(load_snapshot(store, second.manifest), snapshot(0, 35))


def test_the_parent_stays_readable_and_what_is_older_goes(store: LocalStore, root: Path) -> None:
    one = save(store, snapshot(0, 29))
    two = save(store, snapshot(24, 30), one)
    three = save(store, snapshot(24, 31), two)
    assert_equal(load_snapshot(store, two.manifest), snapshot(0, 30))
    assert_equal(load_snapshot(store, three.manifest), snapshot(0, 31))
    with pytest.raises(NotFoundError, match=f"manifest {one.head.manifest[:12]} is missing"):
        store.get_manifest(one.head.manifest)
    assert one.manifest.tail
    with pytest.raises(NotFoundError, match="is missing"):
        store.get_block(one.manifest.tail.sha256, one.manifest.tail.stored_bytes)
    assert len(files(root)) == 3 + 2 + 2 + 1  # blocks, tails, manifests, head


def test_a_rewritten_history_replaces_blocks_from_where_it_differs(store: LocalStore) -> None:
    first = save(store, snapshot(0, 29))
    rewritten = snapshot(8, 20, salt=1000)
    second = save(store, rewritten, first)
    loaded = load_snapshot(store, second.manifest)
    assert loaded and loaded.token_ids.tolist() == [*range(8), *range(1008, 1020)]


def test_a_snapshot_that_leaves_a_gap_or_changes_identity_is_the_callers_fault(store: LocalStore) -> None:
    first = save(store, snapshot(0, 29))
    with pytest.raises(ValueError, match="starts at token 32, and the blocks kept do not end there"):
        save(store, snapshot(32, 40), first)
    other = Snapshot({**IDENTITY, "bits": [3, 3]}, (), block(24, 30))
    with pytest.raises(ValueError, match="another identity"):
        save(store, other, first)


def test_sessions_with_an_equal_prefix_share_its_blocks(store: LocalStore, root: Path) -> None:
    save(store, snapshot(0, 29), name="a")
    before = files(root)
    save(store, snapshot(0, 29), name="b")
    new = sorted(name.split("/")[1] for name in files(root).keys() - before.keys())
    assert new == ["blocks", "heads", "manifests"]  # the tail is never shared


def test_swapped_blocks_are_noticed(store: LocalStore) -> None:
    manifest = save(store, snapshot(0, 24)).manifest
    one, two, three = manifest.blocks
    swapped = (
        one.model_copy(update={"start": 0, "stop": 8}),
        three.model_copy(update={"start": 8, "stop": 16}),
        two.model_copy(update={"start": 16, "stop": 24}),
    )
    with pytest.raises(DamagedError, match="belongs to another context"):
        load_snapshot(store, manifest.model_copy(update={"blocks": swapped}))


def test_a_manifest_of_another_identity_cannot_name_the_blocks(store: LocalStore) -> None:
    manifest = save(store, snapshot(0, 24)).manifest
    foreign = manifest.model_copy(update={"identity": {**IDENTITY, "weights": "e" * 64}})
    with pytest.raises(DamagedError, match="belongs to another context"):
        load_snapshot(store, foreign)


def test_a_damaged_block_is_named_and_healed_by_the_next_whole_save(store: LocalStore, root: Path) -> None:
    saved = save(store, snapshot(0, 29))
    ref = saved.manifest.blocks[1]
    path = root / "v1" / "blocks" / ref.sha256[:2] / ref.sha256
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    with pytest.raises(DamagedError, match=f"block {ref.sha256[:12]} is damaged: its SHA-256 is another"):
        load_snapshot(store, saved.manifest)
    again = save(store, snapshot(0, 29), saved)
    assert_equal(load_snapshot(store, again.manifest), snapshot(0, 29))


def test_chain_keys_and_digests_are_fixed_for_ever() -> None:
    digest = identity_digest({"b": 1, "a": "ü"})
    assert digest == "46b92765f7fa6668c80b6eb859df7c595442fbd5280d262a69cfe4dfff4e5bff"
    key = chain_key("", digest, np.array([1, 2, 3], np.uint32))
    assert key == "c93c3a945d7151f0c6b04bcf50f7feafffe5d6c324dcd243a37b486220a69d1f"
    assert (
        chain_key(key, digest, np.array([4], np.uint32))
        == "5f23f76577aaca445cffd40ed435875a6806c238051ce8f44300c27bbbdebd8b"
    )
    # Length prefixes: what moves from one field to the next changes the key.
    assert chain_key("ab", "c", np.array([1], np.uint32)) != chain_key("a", "bc", np.array([1], np.uint32))


def test_identity_differences_are_named() -> None:
    current = {"weights": "e" * 64, "rope": {"theta": 100000, "scaling": None}, "bits": [4, 4]}
    assert identity_differences(IDENTITY, current) == ["rope.scaling", "rope.theta", "weights"]
    assert identity_differences(IDENTITY, dict(IDENTITY)) == []


# Files


def test_directories_are_0700_and_files_0600_whatever_the_umask(store: LocalStore, root: Path) -> None:
    old = os.umask(0)
    try:
        save(store, snapshot(0, 29))
    finally:
        os.umask(old)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (root, *root.rglob("*"))}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}


def killed_at(step: int, root: Path, base: Saved) -> bool:
    """Whether a process that saves died at its `step`-th fsync, rename or unlink."""
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
            save(LocalStore(root), snapshot(24, 41), base)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_killed_at_any_step_the_old_or_the_new_session_is_whole(tmp_path: Path) -> None:
    pristine = LocalStore(tmp_path / "pristine")
    base = save(pristine, snapshot(24, 30), save(pristine, snapshot(0, 29)))
    stops: list[int] = []
    while True:
        root = tmp_path / str(len(stops))
        shutil.copytree(tmp_path / "pristine", root)
        killed, store = killed_at(len(stops) + 1, root, base), LocalStore(root)
        opened = open_session(store, "notes")
        assert_equal(load_snapshot(store, opened.manifest), snapshot(0, opened.head.token_count))
        stops.append(opened.head.token_count)
        collect(store, grace_s=0)
        assert_equal(load_snapshot(store, opened.manifest), snapshot(0, opened.head.token_count))
        assert len(save(store, snapshot(opened.manifest.blocks[-1].stop, 43), opened).manifest.blocks) == 5
        if not killed:
            break
    # Two blocks and the tail take two steps each, manifest and head three, and the directories as many.
    assert len(stops) > 15
    assert set(stops) == {30, 41}
    assert stops == sorted(stops)  # the head's rename is the one moment of change


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_disk_that_refuses_leaves_the_earlier_save(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    base = save(store, snapshot(0, 29))
    before = files(root)

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(SatchelError) as refused:
            save(store, snapshot(24, 35), base)
    assert os.strerror(code) in refused.value.one_line()
    assert refused.value.hint == "what was saved before is intact"
    assert files(root) == before
    assert_equal(load_snapshot(store, open_session(store, "notes").manifest), snapshot(0, 29))


def test_a_write_that_the_system_cuts_off_leaves_the_earlier_save(store: LocalStore, root: Path) -> None:
    base = save(store, snapshot(0, 29))
    before = files(root)
    noise = np.random.default_rng(0).integers(0, 256, 1 << 16, np.uint8)
    large = Block(24, 25, np.zeros(1, np.uint32), {"noise": noise})
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 15, limits[1]))
    try:
        with pytest.raises(SatchelError, match="File too large"):
            save(store, Snapshot(IDENTITY, (), large), base)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert files(root) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_store_can_be_read_and_says_why_it_cannot_be_written(
    store: LocalStore, root: Path
) -> None:
    base = save(store, snapshot(0, 29))
    folders = [path for path in (root, *root.rglob("*")) if path.is_dir()]
    for folder in folders:
        folder.chmod(0o500)
    try:
        with pytest.raises(SatchelError, match="Permission denied"):
            save(store, snapshot(24, 35), base)
        assert_equal(load_snapshot(store, open_session(store, None).manifest), snapshot(0, 29))
    finally:
        for folder in folders:
            folder.chmod(0o700)


def watch_syncs(monkeypatch: pytest.MonkeyPatch, flush_code: int = 0) -> list[tuple[str, str]]:
    """(what, where) of each fsync, flush of the drive and rename to come: a file's directory, or `its/`.

    The drive is flushed as on macOS; with a `flush_code` that fails.
    """
    seen: list[tuple[str, str]] = []
    real_replace = os.replace

    def place(status: os.stat_result, name: str) -> str:
        parts = Path(name).parts
        below = parts[parts.index("v1") + 1 :]
        kept = (*below, "") if stat.S_ISDIR(status.st_mode) else below[:-1]
        return "/".join("ab" if len(part) == 2 else part for part in kept)

    def note(kind: str, descriptor: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").readlink()
        seen.append((kind, place(os.fstat(descriptor), str(name))))

    def flush(descriptor: int, command: int) -> None:
        assert command == 51
        if flush_code:
            raise OSError(flush_code, os.strerror(flush_code))
        note("flush", descriptor)

    def replace(source: Path, target: Path) -> None:
        real_replace(source, target)
        seen.append(("replace", place(target.stat(), str(target))))

    monkeypatch.setattr(os, "fsync", lambda descriptor: note("fsync", descriptor))
    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr("satchel.files._FULL_SYNC", 51)
    monkeypatch.setattr("satchel.files.fcntl.fcntl", flush)
    return seen


MANIFEST_AND_HEAD = [
    *(("flush", "manifests"), ("replace", "manifests"), ("flush", "manifests/")),
    *(("flush", "heads"), ("replace", "heads"), ("flush", "heads/")),
]
needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="asks /proc what is synced")


@needs_proc
def test_blocks_are_durable_before_the_manifest_and_that_is_before_the_head(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = save(store, snapshot(0, 9))
    monkeypatch.setattr("satchel.cache_store.sessions._WORKERS", 1)
    seen = watch_syncs(monkeypatch)
    save(store, snapshot(8, 27), first)
    made = seen.index(("flush", "manifests"))
    assert seen[:6] == [("fsync", "blocks/ab"), ("replace", "blocks/ab")] * 3  # the tail and two blocks
    assert set(seen[6 : made - 1]) == {("fsync", "blocks/ab/")}
    assert 1 <= made - 1 - 6 <= 3  # each directory once
    assert seen[made - 1] == ("fsync", "blocks/")
    assert seen[made:] == MANIFEST_AND_HEAD


@needs_proc
def test_where_the_drive_cannot_be_told_to_flush_there_is_fsync(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = save(store, snapshot(0, 9))
    seen = watch_syncs(monkeypatch, errno.ENOTSUP)
    save(store, snapshot(8, 10), first)
    assert seen[-6:] == [(kind.replace("flush", "fsync"), place) for kind, place in MANIFEST_AND_HEAD]


def test_a_block_that_a_killed_save_left_is_made_durable_by_the_next(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_block(b"a block")
    synced: list[Path] = []
    monkeypatch.setattr("satchel.cache_store.objects.sync", lambda folder, *_: synced.append(folder))
    block_id = store.put_block(b"a block")
    assert synced == [store.block_path(block_id).parent, store.blocks_dir]


def two_of_one_directory() -> tuple[bytes, bytes]:
    """Blocks whose ids begin with the same two digits."""
    seen: dict[str, bytes] = {}
    for number in count():
        data = b"block %d" % number
        other = seen.setdefault(object_id(data)[:2], data)
        if other != data:
            return other, data
    raise AssertionError


def test_of_two_threads_that_need_a_directory_neither_sets_the_others_aside(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The late one has looked, and goes on when the other one has put its block."""
    early, late = two_of_one_directory()
    has_looked, has_put = threading.Event(), threading.Event()
    looks = objects.is_real_dir

    def slow_look(path: Path) -> bool:
        found = looks(path)
        if threading.current_thread().name == "late" and path == store.block_path(object_id(late)).parent:
            has_looked.set()
            has_put.wait(0.5)
        return found

    monkeypatch.setattr(objects, "is_real_dir", slow_look)
    with store.locked(), store.putting_blocks() as put:
        thread = threading.Thread(target=put, args=(late,), name="late")
        thread.start()
        assert has_looked.wait(10)
        put(early)
        has_put.set()
        thread.join(10)
    for data in (early, late):
        assert store.get_block(object_id(data), len(data)) == data
    assert len(list(store.blocks_dir.iterdir())) == 1


def test_a_branch_that_cannot_be_read_does_not_make_a_save_a_failure(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = save(store, snapshot(0, 29))
    branch = first.head.manifest
    back = save_words(store, snapshot(16, 35, salt=500), first, "another way")
    assert back.manifest.abandoned == (branch,)
    read = objects.read_file

    def refuse(path: Path, max_bytes: int) -> bytes | None:
        if path.name == branch:
            raise SatchelError(f"cannot read {path}: Input/output error")
        return read(path, max_bytes)

    keys = [ref.chain_key for ref in first.manifest.blocks]
    with monkeypatch.context() as patch:
        patch.setattr(objects, "read_file", refuse)
        saved = save_words(store, snapshot(32, 41, salt=500), back, "another way", "and on")
    assert saved.head.generation == 3
    assert store.find("notes") == saved.head
    assert store.longest_prefix(keys, resumable_only=False) == (first.manifest, 3)


def test_names_that_cannot_be_made_durable_are_told_in_one_line(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = save(store, snapshot(0, 9))

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(objects, "sync", refuse)
    with pytest.raises(SatchelError, match=r"cannot write .*/manifests: Input/output error"):
        store.put_manifest(saved.manifest)


def test_manifests_that_cannot_be_looked_at_are_not_taken_for_earlier_ones(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = save(store, snapshot(0, 9))
    two = save(store, snapshot(8, 12), one)
    store.manifest_path(two.head.manifest).write_bytes(b"x")
    look = Path.lstat

    def refuse(path: Path) -> os.stat_result:
        if path.parent == store.manifests_dir:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return look(path)

    monkeypatch.setattr(Path, "lstat", refuse)
    assert open_session(store, "notes").manifest == one.manifest  # all the same, that one can be read


def test_a_fork_of_what_has_lost_a_block_meanwhile_has_its_words_alone(store: LocalStore) -> None:
    saved = save(store, snapshot(0, 29))
    store.delete_block(saved.manifest.blocks[1].sha256)
    fork = fork_session(store, saved, "fork")
    assert (fork.manifest.messages, fork.manifest.tail) == (saved.manifest.messages, None)
    assert (fork.head.token_count, fork.manifest.blocks) == (0, ())


# Finding, naming, removing


def test_sessions_are_found_by_name_id_and_age(store: LocalStore) -> None:
    with pytest.raises(NotFoundError, match="no session is saved yet"):
        store.find(None)
    one = save(store, snapshot(0, 9), name="Notes").head
    two = save(store, snapshot(0, 9), name="recipes").head
    assert store.find(None) == two
    assert store.find("nOTES") == one
    assert store.find(one.session_id) == store.find(one.session_id[:8]) == one
    assert [head.name for head in store.heads().heads] == ["recipes", "Notes"]
    with pytest.raises(NotFoundError) as missing:
        store.find("recipe")
    assert missing.value.one_line() == (
        "no session is called 'recipe'; did you mean 'recipes'? `satchel sessions list` shows all"
    )
    for wanted in ("", two.session_id[:3], "../" + two.session_id):
        with pytest.raises(NotFoundError):
            store.find(wanted)


def test_names_differing_in_case_alone_clash(store: LocalStore) -> None:
    save(store, snapshot(0, 9), name="notes")
    other = save(store, snapshot(0, 9), name="b")
    with pytest.raises(UsageError, match="there is a session called 'notes' already"):
        save(store, snapshot(0, 9), name="NOTES")
    with pytest.raises(UsageError, match="there is a session called 'notes' already"):
        store.rename(other.head.session_id, "Notes")
    assert store.free_name("Notes") == "Notes-2"
    assert store.free_name("x" * 64) == "x" * 64
    save(store, snapshot(0, 9), name="x" * 64)
    assert store.free_name("x" * 64) == "x" * 62 + "-2"


def test_rename_keeps_the_state_and_counts_as_a_generation(store: LocalStore) -> None:
    saved = save(store, snapshot(0, 29))
    renamed = store.rename(saved.head.session_id, "NOTES")
    assert (renamed.name, renamed.generation) == ("NOTES", 2)
    assert_equal(load_snapshot(store, open_session(store, "notes").manifest), snapshot(0, 29))
    with pytest.raises(HeadMovedError, match="another process has saved") as moved:
        save(store, snapshot(24, 30), saved)
    assert moved.value.current == renamed
    with pytest.raises(NotFoundError):
        store.rename("0" * 32, "x")


def test_a_session_that_counts_no_further_can_only_be_forked(store: LocalStore) -> None:
    saved = save(store, snapshot(0, 29))
    last = saved.manifest.model_copy(update={"generation": (1 << 53) - 1, "parent": saved.head.manifest})
    base = Saved(store.commit(last, expected=saved.head.manifest), last)
    for write in (
        lambda: save(store, snapshot(24, 30), base),
        lambda: store.rename(base.head.session_id, "other"),
        lambda: prune(store, 0),
    ):
        with pytest.raises(SatchelError) as refused:
            write()
        assert refused.value.one_line() == (
            "session 'notes' claims 9007199254740991 saves, and takes no more; "
            "fork it: a copy begins to count anew"
        )
    fork = fork_session(store, open_session(store, "notes"), "fork")
    assert save(store, snapshot(24, 30), fork, name="fork").head.generation == 2
    assert open_session(store, "notes") == base


def test_remove_frees_what_no_other_session_uses(store: LocalStore, root: Path) -> None:
    keep = save(store, snapshot(0, 29), name="keep")
    kept_files = files(root)
    gone = save(store, snapshot(24, 40), save(store, snapshot(0, 29), name="gone"), name="gone")
    whole = files(root)
    freed = remove(store, gone.head.session_id)
    assert files(root) == kept_files
    head_bytes = len(whole[f"v1/heads/{gone.head.session_id}.json"])
    assert freed == sum(map(len, whole.values())) - sum(map(len, kept_files.values())) - head_bytes
    assert_equal(load_snapshot(store, keep.manifest), snapshot(0, 29))
    with pytest.raises(NotFoundError):
        remove(store, gone.head.session_id)
    with pytest.raises(HeadMovedError, match="another process has removed"):
        save(store, snapshot(40, 41), gone)


def test_a_disk_that_refuses_to_delete_does_not_undo_a_save(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = save(store, snapshot(24, 30), save(store, snapshot(0, 29)))

    def refuse(path: Path) -> int:
        raise SatchelError(f"cannot delete {path}")

    with monkeypatch.context() as patch:
        patch.setattr("satchel.cache_store.local.delete_file", refuse)
        three = save(store, snapshot(24, 31), two)
    assert open_session(store, "notes") == three
    assert collect(store, grace_s=0).freed_bytes > 0
    assert len(files(root)) == 3 + 2 + 2 + 1  # blocks, tails, manifests, head


def test_no_block_is_deleted_while_a_head_is_damaged(store: LocalStore, root: Path) -> None:
    damaged = save(store, snapshot(0, 29), name="damaged").head
    healthy = save(store, snapshot(0, 20, salt=7), name="healthy").head
    path = root / "v1" / "heads" / f"{damaged.session_id}.json"
    content = path.read_bytes()
    path.write_bytes(content[:50])
    listed = store.heads()
    assert listed.heads == (healthy,)
    assert len(listed.damaged) == 1 and damaged.session_id[:12] in listed.damaged[0]
    assert remove(store, healthy.session_id) == 0
    path.write_bytes(content)
    assert_equal(load_snapshot(store, open_session(store, "damaged").manifest), snapshot(0, 29))
    assert collect(store, grace_s=0).blocks == 3


# What is not what it should be


def make_directory(path: Path) -> None:
    path.mkdir()
    (path / "letter").write_text("kept")


def make_loop(path: Path) -> None:
    path.symlink_to(path.name)


def make_dangling_link(path: Path) -> None:
    path.symlink_to("nowhere")


def make_socket(path: Path) -> None:
    os.chdir(path.parent)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)


def make_garbage(path: Path) -> None:
    path.write_text("x")


Make = Callable[[Path], None]
NO_FILES = [make_directory, make_loop, make_dangling_link, make_socket, os.mkfifo]


def put_in_place(path: Path, make: Make) -> None:
    path.unlink()
    make(path)


@pytest.fixture
def no_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A read that waits for ever, as of a pipe, fails after two seconds."""

    def give_up(*_: object) -> None:
        for path in tmp_path.rglob("*"):
            if path.is_fifo():  # threads that read it must end too
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        raise AssertionError("waited for ever")

    monkeypatch.chdir(tmp_path)
    usual = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(2)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, usual)


def head_path(root: Path, saved: Saved) -> Path:
    return root / "v1" / "heads" / f"{saved.head.session_id}.json"


def block_path(root: Path, block_id: str) -> Path:
    return root / "v1" / "blocks" / block_id[:2] / block_id


@pytest.mark.parametrize("make", [make_garbage, *NO_FILES])
def test_a_damaged_head_is_named_and_can_be_removed_and_disturbs_no_other_session(
    store: LocalStore, root: Path, make: Make, no_hang: None
) -> None:
    healthy = save(store, snapshot(0, 20, salt=7), name="healthy")
    only_healthy = files(root)
    damaged = save(store, snapshot(0, 29), name="damaged")
    damaged_id = damaged.head.session_id
    put_in_place(head_path(root, damaged), make)

    assert store.heads().heads == (healthy.head,)
    (line,) = store.heads().damaged
    assert damaged_id in line
    assert store.find(None) == store.find("healthy") == healthy.head
    for wanted in ("damaged", damaged_id, damaged_id[:4]):
        with pytest.raises(DamagedError) as raised:
            store.find(wanted)
        assert raised.value.one_line().endswith(
            f"; restore the file, or give the session up with `satchel sessions rm {damaged_id}`"
        )
    assert store.session_id("HEALTHY") == healthy.head.session_id
    for wanted in (damaged_id[:3], "damaged"):
        with pytest.raises(DamagedError, match=f"there is no readable session called '{wanted}'"):
            store.session_id(wanted)

    assert store.session_id(damaged_id) == store.session_id(damaged_id[:4]) == damaged_id
    assert remove(store, damaged_id) == 0  # what it used is not known
    assert store.heads().damaged == ()
    collect(store, grace_s=0)
    left = {name: data for name, data in files(root).items() if ".aside-" not in name}
    assert left == only_healthy
    if make is make_directory:
        (aside,) = (root / "v1" / "heads").glob(f"{damaged_id}.json.aside-*")
        assert (aside / "letter").read_text() == "kept"


def test_where_no_head_can_be_read_the_latest_session_is_a_damaged_one(store: LocalStore, root: Path) -> None:
    damaged = save(store, snapshot(0, 9))
    make_garbage(head_path(root, damaged))
    with pytest.raises(DamagedError, match=r"there is no readable session$") as raised:
        store.find(None)
    assert f"the head of session {damaged.head.session_id[:12]} is damaged" in raised.value.one_line()


def test_a_whole_id_is_meant_even_where_a_stray_file_begins_with_it(store: LocalStore, root: Path) -> None:
    saved = save(store, snapshot(0, 9))
    copy = head_path(root, saved).with_stem(f"{saved.head.session_id} copy")
    shutil.copy(head_path(root, saved), copy)
    assert store.find(saved.head.session_id) == saved.head
    with pytest.raises(UsageError, match="is the start of several ids"):
        store.session_id(saved.head.session_id[:8])
    remove(store, store.session_id(copy.stem))
    assert store.heads().heads == (saved.head,)


def test_a_stray_file_is_not_taken_for_a_session_by_the_start_of_its_name(
    store: LocalStore, root: Path
) -> None:
    save(store, snapshot(0, 9))
    make_garbage(root / "v1" / "heads" / "notebook.json")
    with pytest.raises(DamagedError, match="there is no readable session called 'note'"):
        store.session_id("note")


@pytest.mark.parametrize("make", NO_FILES)
def test_what_is_no_file_is_damage_and_the_next_whole_save_replaces_it(
    store: LocalStore, root: Path, make: Make, no_hang: None
) -> None:
    saved = save(store, snapshot(0, 29))
    ref = saved.manifest.blocks[1]
    path = block_path(root, ref.sha256)
    put_in_place(path, make)
    with pytest.raises(DamagedError, match=str(path)):
        load_snapshot(store, saved.manifest)
    again = save(store, snapshot(0, 29), saved)
    assert_equal(load_snapshot(store, again.manifest), snapshot(0, 29))
    kept = [file.read_text() for file in path.parent.glob("*.aside-*/letter")]
    assert kept == (["kept"] if make is make_directory else [])


@pytest.mark.parametrize("make", [make_garbage, make_loop, os.mkfifo])
def test_what_is_in_place_of_a_directory_of_blocks_is_set_aside(
    store: LocalStore, root: Path, make: Make, no_hang: None
) -> None:
    saved = save(store, snapshot(0, 29))
    shard = block_path(root, saved.manifest.blocks[1].sha256).parent
    shutil.rmtree(shard)
    make(shard)
    with pytest.raises(DamagedError):
        load_snapshot(store, saved.manifest)
    again = save(store, snapshot(0, 29), saved)
    assert_equal(load_snapshot(store, again.manifest), snapshot(0, 29))
    (aside,) = shard.parent.glob("*.aside-*")
    assert aside.lstat().st_mode != shard.lstat().st_mode


@pytest.mark.parametrize("make", NO_FILES)
def test_what_is_no_file_keeps_no_session_from_being_removed(
    store: LocalStore, root: Path, make: Make, no_hang: None
) -> None:
    keep = save(store, snapshot(0, 20, salt=7), name="keep")
    kept_files = files(root)
    gone = save(store, snapshot(0, 29), name="gone")
    other = save(store, snapshot(0, 20, salt=9), name="other")
    assert gone.manifest.tail
    put_in_place(block_path(root, gone.manifest.blocks[0].sha256), make)
    put_in_place(block_path(root, gone.manifest.tail.sha256), make)
    make_garbage(root / "v1" / "blocks" / "stray")
    assert remove(store, other.head.session_id) > 0
    assert remove(store, gone.head.session_id) > 0
    left = {name: data for name, data in files(root).items() if not name.endswith(("/letter", "/stray"))}
    assert left == kept_files
    assert store.heads().heads == (keep.head,)


def test_a_store_in_a_file_is_an_error_and_not_an_empty_store(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for root in (file, file / "below"):
        for read in (LocalStore(root).heads, lambda root=root: LocalStore(root).find(None)):
            with pytest.raises(SatchelError) as raised:
                read()
            assert (raised.value.one_line(), raised.value.exit_code) == (f"{file} is not a directory", 1)
        with pytest.raises(SatchelError, match=r"cannot write .*: Not a directory"):
            save(LocalStore(root), snapshot(0, 9))
    assert file.read_text() == "x"


def make_outside(tmp_path: Path) -> dict[str, bytes]:
    """A directory beside the store with files that are called as the store's are."""
    outside = tmp_path / "outside"
    (outside / "ab").mkdir(parents=True)
    for folder in (outside, outside / "ab"):
        for name in ("ab" * 32, ".tmp-theirs", f"{'ab' * 32}.aside-0011aabb", "letter"):
            (folder / name).write_bytes(b"not the store's")
    return files(outside)


@pytest.mark.parametrize("name", ["blocks", "manifests", "heads"])
def test_nothing_is_done_through_a_link_in_place_of_a_directory(
    store: LocalStore, root: Path, tmp_path: Path, name: str
) -> None:
    saved = save(store, snapshot(0, 29))
    before = make_outside(tmp_path)
    folder = root / "v1" / name
    folder.rename(tmp_path / "moved")
    stored = files(tmp_path / "moved")
    for aim in ("outside", "moved"):
        folder.unlink(missing_ok=True)
        folder.symlink_to(tmp_path / aim)
        for write in (
            lambda: save(store, snapshot(0, 29, salt=1), name="new"),
            lambda: collect(store, grace_s=0),
            lambda: prune(store, 0),
            lambda: stats(store),
        ):
            with pytest.raises(SatchelError) as refused:
                write()
            assert refused.value.one_line() == (
                f"{folder} is a link, and nothing is written or deleted through it; "
                "put a directory in its place; SATCHEL_HOME says where the store is"
            )
        store.touch("ab" * 32)
        with contextlib.suppress(SatchelError):
            remove(store, saved.head.session_id)
    assert files(tmp_path / "moved") == stored
    assert files(tmp_path / "outside") == before


def test_a_link_in_place_of_a_directory_of_blocks_is_not_followed_and_set_aside_by_a_save(
    store: LocalStore, root: Path, tmp_path: Path
) -> None:
    saved = save(store, snapshot(0, 29))
    make_outside(tmp_path)
    ref = saved.manifest.blocks[0]
    shard = block_path(root, ref.sha256).parent
    shutil.copytree(shard, tmp_path / "outside", dirs_exist_ok=True)
    before = files(tmp_path / "outside")
    shutil.rmtree(shard)
    shard.symlink_to(tmp_path / "outside")
    assert_equal(load_snapshot(store, saved.manifest), snapshot(0, 29))
    with pytest.raises(SatchelError, match="is a link, and nothing is written or deleted through it"):
        store.delete_block(ref.sha256)
    collect(store, grace_s=0)
    assert shard.is_symlink()
    again = save(store, snapshot(0, 29), saved)
    assert shard.is_dir() and not shard.is_symlink()
    assert_equal(load_snapshot(store, again.manifest), snapshot(0, 29))
    collect(store, grace_s=0)
    remove(store, saved.head.session_id)
    assert files(tmp_path / "outside") == before
    assert not list(root.rglob("*.aside-*"))


@pytest.mark.parametrize("make", NO_FILES)
def test_what_is_no_file_in_place_of_the_lock_is_told(
    store: LocalStore, root: Path, make: Make, no_hang: None
) -> None:
    save(store, snapshot(0, 9))
    lock = root / "v1" / "lock"
    put_in_place(lock, make)
    with pytest.raises(SatchelError) as refused:
        save(store, snapshot(0, 9), name="other")
    assert refused.value.one_line() == f"{lock} is not a file, which the lock has to be; delete it"
    assert not (root / "v1" / "nowhere").exists()


def test_a_directory_that_cannot_be_listed_is_told(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block_id = save(store, snapshot(0, 29)).manifest.blocks[0].sha256
    real = os.scandir
    for folder in (block_path(root, block_id).parent, *(root / "v1" / name for name in ("", "manifests"))):

        def scandir(path: Path, refused: Path = folder) -> object:
            if Path(path) == refused:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return real(path)

        monkeypatch.setattr(os, "scandir", scandir)
        for act in (stats, collect):
            with pytest.raises(SatchelError) as refused:
                act(store)
            assert refused.value.one_line() == f"cannot read {folder}: Permission denied"


# What is claimed and cannot be


def test_a_context_of_impossible_blocks_is_refused_before_any_is_read(store: LocalStore) -> None:
    manifest = save(store, snapshot(0, 24)).manifest
    first, second, third = manifest.blocks
    for refs, complaint in (
        ((first, second, first.model_copy(update={"start": 16, "stop": 24})), "two of one context"),
        ((first, second.model_copy(update={"stop": 8}), third), "said to hold 0 tokens"),
        ((first.model_copy(update={"stop": 1 << 40}), second, third), "said to hold 1099511627776 tokens"),
    ):
        taken: list[Block] = []
        with pytest.raises(DamagedError, match=complaint):
            load_blocks(store, manifest.identity, refs, taken.append)
        assert taken == []


def test_blocks_that_expand_too_far_together_are_refused(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    zeros = {"zeros": np.zeros(100_000, np.uint8)}
    tokens = [np.arange(at, at + BLOCK, dtype=np.uint32) for at in range(0, 10 * BLOCK, BLOCK)]
    blocks = tuple(Block(int(ids[0]), int(ids[-1]) + 1, ids, zeros) for ids in tokens)
    tail = Block(10 * BLOCK, 10 * BLOCK + 1, np.zeros(1, np.uint32), {})
    manifest = save(store, Snapshot(IDENTITY, blocks, tail)).manifest
    taken: list[Block] = []
    with monkeypatch.context() as patch:
        patch.setattr("satchel.cache_store.frame.FREE_BYTES", 450_000)
        with pytest.raises(DamagedError, match=r"is the last of \d+ bytes of blocks, which would take"):
            load_blocks(store, manifest.identity, manifest.blocks, taken.append)
    assert len(taken) == 4
    load_blocks(store, manifest.identity, manifest.blocks, taken.append)
    assert len(taken) == 14


@pytest.mark.parametrize("make", [None, make_garbage, *NO_FILES])
def test_a_damaged_manifest_gives_way_to_the_one_before_and_saving_goes_on(
    store: LocalStore, root: Path, make: Make | None, no_hang: None
) -> None:
    save(store, snapshot(0, 35), name="other")
    one = save(store, snapshot(0, 29))
    two = save(store, snapshot(24, 30), one)
    three = save(store, snapshot(24, 41), two)
    path = root / "v1" / "manifests" / three.head.manifest
    path.unlink()
    if make:
        make(path)
    assert collect(store, grace_s=0).freed_bytes == 0
    opened = open_session(store, "notes")
    assert (opened.head, opened.manifest, opened.earlier) == (three.head, two.manifest, two.head.manifest)
    assert opened.notice and opened.notice.endswith(": 'notes' goes on from the save before, with 2 messages")
    assert_equal(load_snapshot(store, opened.manifest), snapshot(0, 30))

    four = save(store, snapshot(24, 43), opened)
    assert (four.head.generation, four.manifest.parent) == (4, two.head.manifest)
    collect(store, grace_s=0)
    assert open_session(store, "notes") == four
    assert_equal(load_snapshot(store, four.manifest), snapshot(0, 43))
    assert_equal(load_snapshot(store, two.manifest), snapshot(0, 30))


def test_without_an_earlier_whole_manifest_the_damage_is_reported(store: LocalStore, root: Path) -> None:
    one = save(store, snapshot(0, 29))
    fork = save(store, snapshot(24, 30), one, name="fork", fork=True)  # its parent is another session's
    two = save(store, snapshot(24, 31), one)
    manifests = root / "v1" / "manifests"
    make_garbage(manifests / fork.head.manifest)
    with pytest.raises(DamagedError, match=f"manifest {fork.head.manifest[:12]} is damaged"):
        open_session(store, "fork")
    make_garbage(manifests / two.head.manifest)
    make_garbage(manifests / one.head.manifest)
    with pytest.raises(DamagedError, match=f"manifest {two.head.manifest[:12]} is damaged"):
        open_session(store, "notes")


def test_what_was_never_committed_does_not_stand_in_for_a_damaged_manifest(
    store: LocalStore, root: Path
) -> None:
    one = save(store, snapshot(0, 29))
    two = save(store, snapshot(24, 30), one)
    store.put_manifest(two.manifest.model_copy(update={"generation": 3}))
    make_garbage(root / "v1" / "manifests" / two.head.manifest)
    assert open_session(store, "notes").manifest == one.manifest


# Between processes


def racing_save(root: Path, base: Saved, salt: int, ready: Barrier) -> str:
    ready.wait()
    try:
        save(LocalStore(root), snapshot(24, 35, salt), base)
    except HeadMovedError as err:
        assert err.current and err.current.generation == 2
        return "moved"
    return "won"


def _child(root: Path, base: Saved, salt: int, ready: Barrier, results: multiprocessing.SimpleQueue) -> None:
    results.put((salt, racing_save(root, base, salt, ready)))


def test_of_two_processes_that_save_one_wins_and_the_other_can_fork(store: LocalStore, root: Path) -> None:
    base = save(store, snapshot(0, 29))
    context = multiprocessing.get_context("spawn")
    ready, results = context.Barrier(2), context.SimpleQueue()
    children = [
        context.Process(target=_child, args=(root, base, salt, ready, results)) for salt in (100, 200)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    outcome = dict(results.get() for _ in children)
    assert sorted(outcome.values()) == ["moved", "won"]
    winner, loser = sorted(outcome, key=lambda salt: outcome[salt] == "moved")
    fork = save(store, snapshot(24, 35, loser), base, name=store.free_name("notes"), fork=True)
    assert (fork.head.name, fork.head.generation, fork.manifest.parent) == ("notes-2", 1, base.head.manifest)
    for name, salt in (("notes", winner), ("notes-2", loser)):
        loaded = load_snapshot(store, open_session(store, name).manifest)
        assert loaded and loaded.token_ids.tolist() == [*range(24), *range(24 + salt, 35 + salt)]


def test_a_lock_held_by_another_is_waited_for_and_then_reported(root: Path) -> None:
    with LocalStore(root).locked(), pytest.raises(SatchelError, match=r"has been writing to .* for 0.1 s"):
        save(LocalStore(root, lock_timeout_s=0.1), snapshot(0, 9))
    save(LocalStore(root, lock_timeout_s=0.1), snapshot(0, 9))


@pytest.fixture(autouse=True)
def _no_leftovers(tmp_path: Path) -> Iterator[None]:
    yield
    assert {path.name for path in tmp_path.rglob(".tmp-*")} <= {".tmp-theirs"}
