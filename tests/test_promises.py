"""What is promised of stored sessions: killed, without space, foreign, contended, or without any KV state."""

from __future__ import annotations

import errno
import hashlib
import io
import itertools
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import faults
import numpy as np
import pytest
from small_talks import QUESTION, cold_answer, manifest_of, open_manager, say, small_model

from satchel.cache_store import maintenance
from satchel.cache_store.loading import load_snapshot
from satchel.cache_store.local import HeadMovedError, LocalStore
from satchel.cache_store.manifest import Manifest, Message
from satchel.cache_store.sessions import Saved, fork_session, open_session, save_snapshot
from satchel.cache_store.snapshot import Block, Snapshot
from satchel.cache_store.stats import stats
from satchel.cache_store.verify import verify
from satchel.cli import run
from satchel.config.profiles import get_profile
from satchel.config.settings import Settings
from satchel.engine import model as model_module
from satchel.engine.model import LoadedModel
from satchel.errors import DamagedError, SatchelError
from satchel.files import TEMPORARY_PREFIX
from satchel.session import Session, SessionManager

IDENTITY = {"weights": "d" * 64, "bits": [4, 4]}
BLOCK = 8  # tokens; the store takes blocks of any length
CHAT = ("chat", "--temperature", "0", "--max-tokens", "3")
SAVED_TWICE = "Hi\n/save talk\nWhy?\n"  # and named in between
FAULTS = Path(faults.__file__)


# Sessions of plain arrays


def block(start: int, stop: int, salt: int = 0, bits: int = 4) -> Block:
    tokens = np.arange(start, stop, dtype=np.uint32) + salt
    codes = np.random.default_rng([start, salt]).integers(0, 1 << 32, (1, stop - start, bits), np.uint32)
    return Block(start, stop, tokens, {"g0.k.codes": codes}, {"layers": [0]})


def snapshot(start: int, stop: int, salt: int = 0, bits: int = 4) -> Snapshot:
    """Blocks of `BLOCK` tokens from `start`, and a tail of what is left before `stop`."""
    last = max(start, stop - stop % BLOCK)
    blocks = tuple(block(at, at + BLOCK, salt, bits) for at in range(start, last, BLOCK))
    return Snapshot({**IDENTITY, "bits": [bits, bits]}, blocks, block(last, stop, salt, bits))


def save(
    store: LocalStore,
    part: Snapshot,
    base: Saved | None = None,
    name: str = "notes",
    words: Sequence[Message] = (),
    **more: Any,
) -> Saved:
    """`words` or `base`'s, and a turn."""
    before = words or (base.manifest.messages if base else ())
    messages = [*before, Message(role="user", content=f"to {part.stop}")]
    return save_snapshot(
        store, part, messages, name=name, model_name="embedded", profile_name="turbo4", base=base, **more
    )


def go_on(store: LocalStore, base: Saved) -> Saved:
    """A turn more, with state that joins what is stored."""
    start = base.manifest.blocks[-1].stop if base.manifest.blocks else 0
    tail = block(start, start + 3, salt=9000, bits=base.manifest.identity["bits"][0])
    return save(store, Snapshot(base.manifest.identity, (), tail), base, base.head.name)


View = dict[str, tuple[Any, ...]]


def view(store: LocalStore) -> View:
    """By name all that matters of each session. That it can be read means that it is whole."""
    listed = store.heads()
    assert listed.damaged == ()
    seen: View = {}
    for head in listed.heads:
        saved = open_session(store, head.session_id)
        assert saved.notice is None
        loaded, digest = load_snapshot(store, saved.manifest), hashlib.sha256()
        for part in (*loaded.blocks, loaded.tail) if loaded else ():
            for name, array in part.arrays.items():
                digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
        tokens = tuple(loaded.token_ids.tolist()) if loaded else ()
        abandoned = [store.get_manifest(each) for each in saved.manifest.abandoned]
        seen[head.name] = (
            words_of(saved.manifest),
            tokens,
            digest.hexdigest(),
            saved.manifest.archived_from,
            tuple(words_of(each) for each in abandoned),
        )
    return seen


def words_of(manifest: Manifest) -> tuple[str, ...]:
    return tuple(message.content for message in manifest.messages)


def files(root: Path) -> dict[str, bytes]:
    found = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    found.pop("v1/lock", None)
    return {name: data for name, data in found.items() if not name.startswith("v1/index.db")}


def temporaries(root: Path) -> list[Path]:
    return list(root.rglob(f"{TEMPORARY_PREFIX}*"))


# What can be interrupted


@dataclass(frozen=True, slots=True)
class Scenario:
    """`act` on a store that `prepare` has filled: the sessions are then as before, or all as after it.

    `one_by_one`: it does one session after another, so that each is as before or as after.
    """

    prepare: Callable[[LocalStore], object]
    act: Callable[[LocalStore], object]
    one_by_one: bool = False


def nothing(store: LocalStore) -> None:
    pass


def one_save(store: LocalStore) -> Saved:
    return save(store, snapshot(0, 13))


def three_saves(store: LocalStore) -> Saved:
    """The third has deleted what the second superseded."""
    return save(store, snapshot(8, 15), save(store, snapshot(8, 14), one_save(store)))


def two_sessions(store: LocalStore) -> None:
    """They share a block."""
    three_saves(store)
    save(store, snapshot(0, 11), name="other")


def litter(store: LocalStore) -> None:
    """What killed saves and damage leave."""
    two_sessions(store)
    root = store.locked()._path.parent
    path = root / "blocks" / store.put_block(b"stray")[:2] / f"{TEMPORARY_PREFIX}x"
    path.write_bytes(b"half")
    (root / "manifests" / f"{'0' * 64}.aside-0").write_bytes(b"")


def named(store: LocalStore, name: str = "notes") -> Saved:
    return open_session(store, name)


def go_back(store: LocalStore) -> Saved:
    """Save the first turn again, and leave what followed behind."""
    base = named(store)
    words = base.manifest.messages[:1]
    return save(store, snapshot(8, 12), base, words=words)


def archive(store: LocalStore) -> Saved:
    fewer_bits = snapshot(0, 15, bits=2)
    return save(store, fewer_bits, named(store), archived_from="turbo4", drop_base_state=True)


SCENARIOS = {
    "first save": Scenario(nothing, one_save),
    "second save": Scenario(one_save, lambda store: save(store, snapshot(8, 19), named(store))),
    "save that deletes what is superseded": Scenario(
        three_saves, lambda store: save(store, snapshot(8, 19), named(store))
    ),
    "save of a rewritten history": Scenario(
        three_saves, lambda store: save(store, snapshot(0, 19, salt=500), named(store))
    ),
    "save of another session": Scenario(
        three_saves, lambda store: save(store, snapshot(0, 11), name="other")
    ),
    "save as a fork": Scenario(
        three_saves, lambda store: save(store, snapshot(8, 19), named(store), name="fork", fork=True)
    ),
    "fork": Scenario(three_saves, lambda store: fork_session(store, named(store), "fork")),
    "restore": Scenario(three_saves, go_back),
    "save after a restore": Scenario(
        lambda store: (three_saves(store), go_back(store)),
        lambda store: save(store, snapshot(8, 19), named(store)),
    ),
    "rename": Scenario(two_sessions, lambda store: store.rename(named(store).head.session_id, "renamed")),
    "remove": Scenario(two_sessions, lambda store: maintenance.remove(store, named(store).head.session_id)),
    "archive": Scenario(two_sessions, archive),
    "archive after a restore": Scenario(lambda store: (three_saves(store), go_back(store)), archive),
    "gc": Scenario(litter, lambda store: maintenance.collect(store, grace_s=0)),
    "prune": Scenario(
        lambda store: (two_sessions(store), go_back(store)),
        lambda store: maintenance.prune(store, max_bytes=0),
        one_by_one=True,
    ),
}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A scenario whose beginning is in the directory `pristine`, and the sessions before and after it."""

    scenario: Scenario
    pristine: Path
    before: View
    after: View
    steps: int

    def copy(self, place: Path) -> Path:
        shutil.rmtree(place, ignore_errors=True)
        if self.pristine.exists():
            shutil.copytree(self.pristine, place)
        return place

    def assert_old_or_new(self, root: Path) -> View:
        free = {name: LocalStore(root).free_name(name) for name in ("notes", "other", "renamed", "fork")}
        seen = view(LocalStore(root))
        assert free == {name: f"{name}-2" if name in seen else name for name in free}
        if self.scenario.one_by_one:
            assert seen.keys() == self.before.keys()
            assert all(seen[name] in (self.before[name], self.after[name]) for name in seen)
        else:
            assert seen in (self.before, self.after)
        return seen


@pytest.fixture
def no_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line within this process finds standard input at its end."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here loses power, and nobody else wants the lock."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(maintenance, "_PAUSE_S", 0)


@pytest.fixture
def prepared(request: pytest.FixtureRequest, tmp_path: Path, no_waiting: None) -> Prepared:
    scenario, pristine, done = SCENARIOS[request.param], tmp_path / "pristine", tmp_path / "done"
    scenario.prepare(LocalStore(pristine))
    before = view(LocalStore(pristine))
    if pristine.exists():
        shutil.copytree(pristine, done)
    disk = faults.Disk(done)
    with faults.watched(disk):
        scenario.act(LocalStore(done))
    return Prepared(scenario, pristine, before, view(LocalStore(done)), len(disk.steps))


def in_scenarios(*quick: str) -> pytest.MarkDecorator:
    """The test is run in every scenario; in those that are not `quick` only where there is time."""
    marks = {name: [] if name in quick else [pytest.mark.slow] for name in SCENARIOS}
    params = [pytest.param(name, marks=marks[name]) for name in SCENARIOS]
    return pytest.mark.parametrize("prepared", params, indirect=True)


def assert_whole_and_usable(root: Path) -> None:
    """That all is as it should be, and can be cleaned of litter and saved to."""
    store = LocalStore(root)
    seen = view(store)
    maintenance.collect(store, grace_s=0)
    assert verify(store, read_data=True).faults == ()
    assert stats(store).unreferenced_bytes == 0
    assert temporaries(root) == []
    expected = {"later": ("to 21",)}
    for name, (words, *_) in seen.items():
        saved = go_on(store, named(store, name))
        expected[name] = (*words, f"to {saved.head.token_count}")
    save(store, snapshot(0, 21, salt=7), name="later")
    assert {name: words for name, (words, *_) in view(store).items()} == expected


# 1. Killed


@in_scenarios("first save", "second save", "remove", "gc")
def test_killed_at_any_step_every_session_is_the_old_or_the_new_one(
    prepared: Prepared, tmp_path: Path
) -> None:
    seen: list[View] = []
    for at in itertools.count(1):
        root = prepared.copy(tmp_path / "killed")
        killed = faults.dies(
            faults.Dying(root, at), lambda root=root: prepared.scenario.act(LocalStore(root))
        )
        seen.append(prepared.assert_old_or_new(root))
        assert_whole_and_usable(root)
        if not killed:
            break
    assert len(seen) > 2
    assert (seen[0], seen[-1]) == (prepared.before, prepared.after)


def test_a_file_is_durable_before_its_name_and_a_head_after_all_that_it_names(
    tmp_path: Path, no_waiting: None
) -> None:
    disk = faults.Disk(tmp_path)
    with faults.watched(disk):
        store = LocalStore(tmp_path / "new")
        save(store, snapshot(8, 19), one_save(store))
    derived = {str(tmp_path / "new" / "v1" / name) for name in ("lock", "index.db")}
    unsynced: set[str] = set()
    renamed: list[str] = []
    for step in disk.steps:
        match step.kind:
            case "open" | "write" | "half":
                unsynced.add(step.path)
            case "mkdir":
                unsynced.add(str(Path(step.path).parent))
            case "fsync":
                unsynced.discard(step.path)
            case "replace":
                assert step.source not in unsynced
                if "/heads/" in step.path:
                    assert unsynced - derived == set()
                unsynced.add(str(Path(step.path).parent))
                renamed.append(step.path.split("/v1/")[1].split("/")[0])
    assert renamed == ["blocks"] * 2 + ["manifests", "heads"] + ["blocks"] * 2 + ["manifests", "heads"]
    assert unsynced - derived == set()


def chat_here(model: LoadedModel, home: Path, said: str) -> int:
    """The exit code of a piped chat within this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SATCHEL_HOME", str(home))
        patch.setattr(model_module, "load_model", lambda *_: model)
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(said.encode())))
        return run(list(CHAT))


@pytest.fixture(scope="module")
def steps_of_a_chat(smollm: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> int:
    disk = faults.Disk(tmp_path_factory.mktemp("chat"))
    with faults.watched(disk):
        assert chat_here(smollm, Path(disk.root), SAVED_TWICE) == 0
    return len(disk.steps)


def run_chat_dying(home: Path, at: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, FAULTS, home, str(at), *CHAT],
        input=SAVED_TWICE,
        env=os.environ | {"SATCHEL_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    "part", [pytest.param(n / 32, marks=[] if n == 24 else pytest.mark.slow) for n in range(32)]
)
def test_a_real_chat_killed_at_a_step_is_whole(
    smollm: LoadedModel, steps_of_a_chat: int, tmp_path: Path, part: float
) -> None:
    assert steps_of_a_chat > 60  # three saves
    chat = run_chat_dying(tmp_path, 1 + round(part * steps_of_a_chat))
    assert chat.returncode == -signal.SIGKILL
    assert_sessions_are_whole(smollm, tmp_path, most=1)
    if "saved as talk" in chat.stderr:
        assert LocalStore(tmp_path).find("talk").turns >= 1


def assert_sessions_are_whole(smollm: LoadedModel, home: Path, most: int) -> None:
    """That every session opens with the state of all its words, and saves."""
    manager = SessionManager(LocalStore(home), smollm, get_profile("turbo4"), Settings(temperature=0.0))
    heads = manager.store.heads()
    assert heads.damaged == ()
    assert len(heads.heads) <= most
    for head in heads.heads:
        session = manager.open(head.session_id)
        assert session.notices == []
        assert [message.role for message in session.messages] == ["user", "assistant"] * head.turns
        read = smollm.tokenizer.decode(session.token_ids)
        assert all(message.content in read for message in session.messages[:-1])
        session.save()
        assert manager.open(head.session_id).token_ids == session.token_ids


@pytest.mark.slow
@pytest.mark.parametrize("kills", [200])
def test_a_chat_killed_at_random_times_loses_no_save_that_it_told_of(
    smollm: LoadedModel, satchel_home: Path, tmp_path: Path, kills: int
) -> None:
    """Each chat but the first of ten goes on in the one before. Most of its time is saving."""
    generator, died = random.Random(kills), 0
    script = "".join(f"Say {n}.\n" + "/save\n" * 40 for n in range(8))
    for kill in range(kills):
        head = LocalStore(satchel_home).find("talk") if kill % 10 else None
        if head is None and kill:
            store = LocalStore(satchel_home)
            store.rename(store.find("talk").session_id, f"talk-{kill}")
        command = ["resume", "talk"] if head else ["chat"]
        log = tmp_path / "log"
        with (
            log.open("w") as told,
            subprocess.Popen(
                [sys.executable, "-m", "satchel", *command, *CHAT[1:]],
                env=os.environ | {"SATCHEL_HOME": str(satchel_home)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=told,
            ) as chat,
        ):
            assert chat.stdin and chat.stdout
            chat.stdin.write(("" if head else "Hello\n/save talk\n").encode() + script.encode())
            chat.stdin.close()
            while head is None and "saved as talk" not in log.read_text():
                assert chat.poll() is None, log.read_text()
                time.sleep(0.005)
            assert chat.stdout.read(1)
            time.sleep(generator.random() * 2)
            chat.kill()
            died += chat.wait() == -signal.SIGKILL
        now = LocalStore(satchel_home).find("talk")
        assert "Traceback" not in log.read_text()
        # The first turn of a chat is saved by itself, before it can be saved under a name.
        told_of = log.read_text().count("saved as talk") + (head.generation if head else 1)
        assert now.generation >= told_of
        assert not head or now.turns >= head.turns
        saved = open_session(LocalStore(satchel_home), "talk")
        assert saved.notice is None
        loaded = load_snapshot(LocalStore(satchel_home), saved.manifest)
        assert loaded and loaded.stop == now.token_count
    assert died > kills * 0.6  # else most had ended before
    assert_sessions_are_whole(smollm, satchel_home, most=1 + kills // 10)
    maintenance.collect(LocalStore(satchel_home), grace_s=0)
    assert temporaries(satchel_home) == []
    assert verify(LocalStore(satchel_home), read_data=True).faults == ()


# 2. No space, no permission


@in_scenarios("second save")
@pytest.mark.parametrize(
    ("code", "every"),
    [(errno.ENOSPC, 1), (errno.EROFS, 3), pytest.param(errno.EROFS, 1, marks=pytest.mark.slow)],
)
def test_a_disk_that_refuses_from_any_step_on_is_one_line_and_loses_nothing(
    prepared: Prepared, tmp_path: Path, code: int, every: int
) -> None:
    refusals = 0
    for at in range(1, prepared.steps + 1, every):
        root = prepared.copy(tmp_path / "refused")
        with faults.watched(faults.Refusing(root, at, code)):
            try:
                prepared.scenario.act(LocalStore(root))
            except SatchelError as err:
                refusals += 1
                assert os.strerror(code) in err.one_line()
                assert "\n" not in err.one_line()
                assert err.exit_code == 1
            else:
                assert view(LocalStore(root)) == prepared.after
        if code == errno.ENOSPC:
            left_before = {path.name for path in temporaries(prepared.pristine)}
            assert {path.name for path in temporaries(root)} <= left_before
        prepared.assert_old_or_new(root)
        assert_whole_and_usable(root)
    assert refusals > 0


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_disk_that_is_full_after_any_byte_leaves_the_earlier_save(
    tmp_path: Path, no_waiting: None, every: int
) -> None:
    root = tmp_path / "root"
    store = LocalStore(root)
    base = three_saves(store)
    before, files_before = view(store), files(root)
    for room in itertools.count(step=every):
        with faults.watched(faults.Full(root, room)):
            try:
                save(store, snapshot(8, 19), base)
            except SatchelError as err:
                assert os.strerror(errno.ENOSPC) in err.one_line()
                assert err.hint == "what was saved before is intact"
            else:
                break
        now = files(root)
        assert files_before.items() <= now.items()
        # A block that found room stays for the next save; half a file does not.
        assert all(
            name.startswith(("v1/blocks/", "v1/manifests/")) for name in now.keys() - files_before.keys()
        )
        assert temporaries(root) == []
    assert room > 500
    assert files_before.keys() - files(root).keys() != set()  # what it superseded
    assert before != view(store)
    assert_whole_and_usable(root)


class WithoutDirectorySync(faults.Disk):
    def meets(self, step: faults.Step, number: int) -> None:
        if step.kind == "fsync" and Path(step.path).is_dir():
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def test_a_file_system_that_cannot_sync_directories_is_no_obstacle(tmp_path: Path) -> None:
    with faults.watched(WithoutDirectorySync(tmp_path)):
        store = LocalStore(tmp_path / "home")
        two_sessions(store)
        maintenance.remove(store, named(store, "other").head.session_id)
    assert_whole_and_usable(tmp_path / "home")


@dataclass(frozen=True, slots=True)
class SmallDisk:
    """A file system of its own."""

    path: Path

    def fill(self, but: int = 0) -> Path:
        """Leave room for `but` bytes."""
        filler = self.path / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError as err:
                assert err.errno == errno.ENOSPC
        os.truncate(filler, max(0, filler.stat().st_size - but))
        return filler

    def remount(self, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", self.path], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=200", "tmpfs", disk],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError as err:
        pytest.skip(f"no small disk can be made: {err}")
    if mounted.returncode:
        pytest.skip(f"no small disk can be made: {mounted.stderr.strip()}")
    yield SmallDisk(disk)
    subprocess.run(["umount", "-l", disk], check=True)


def test_with_any_room_that_is_left_a_save_is_made_or_the_earlier_one_stays(small_disk: SmallDisk) -> None:
    root = small_disk.path / "home"
    store = LocalStore(root)
    base = three_saves(store)
    before, refused = view(store), 0
    for room in range(0, 1 << 20, 4096):
        filler = small_disk.fill(but=room)
        try:
            base = save(store, snapshot(8, 19), base)
        except SatchelError as err:
            refused += 1
            assert f"{os.strerror(errno.ENOSPC)}; what was saved before is intact" in err.one_line()
            assert (view(store), temporaries(root)) == (before, [])
            filler.unlink()
            maintenance.collect(store, grace_s=0)
        else:
            break
    assert refused > 2
    filler.unlink()
    assert named(store) == base
    assert_whole_and_usable(root)


def test_without_room_for_another_file_the_earlier_save_stays(small_disk: SmallDisk) -> None:
    root = small_disk.path / "home"
    store = LocalStore(root)
    base = three_saves(store)
    before = view(store)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        for number in itertools.count():
            (small_disk.path / f"file {number}").touch()
    with pytest.raises(SatchelError, match=os.strerror(errno.ENOSPC)):
        save(store, snapshot(8, 19), base)
    assert (view(store), temporaries(root)) == (before, [])
    for path in small_disk.path.glob("file *"):
        path.unlink()
    save(store, snapshot(8, 19), base)
    assert_whole_and_usable(root)


def test_on_a_read_only_disk_sessions_are_read_and_talked_in(
    small_disk: SmallDisk,
    small: LoadedModel,
    monkeypatch: pytest.MonkeyPatch,
    no_input: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home = small_disk.path / "home"
    monkeypatch.setenv("SATCHEL_HOME", str(home))
    saved_talk(home, small).manager.store.index.close()  # what is open for writing keeps a disk writable
    small_disk.remount("ro")
    try:
        assert (run(["sessions", "list"]), run(["sessions", "show", "talk"])) == (0, 0)
        assert "talk" in capsys.readouterr().out
        assert run(["sessions", "rename", "talk", "other"]) == 1
        assert capsys.readouterr().err.endswith(
            f"{os.strerror(errno.EROFS)}; what was saved before is intact\n"
        )
        session = open_manager(home, small).open("talk")
        assert (session.notices, session.reused_tokens) == ([], len(session.token_ids))
        say(session, "And then?")
        with pytest.raises(SatchelError, match=f"cannot write .*{os.strerror(errno.EROFS)}"):
            session.save()
    finally:
        small_disk.remount("rw")
    session.save()
    assert_saved(session)


def test_a_talk_on_a_full_disk_goes_on_and_is_saved_when_there_is_room(
    small_disk: SmallDisk, small: LoadedModel
) -> None:
    session = saved_talk(small_disk.path / "home", small)
    before = list(session.messages)
    filler = small_disk.fill()
    for question in ("And then?", "Well?"):
        say(session, question)
        with pytest.raises(SatchelError, match=f"cannot write .*{os.strerror(errno.ENOSPC)}"):
            session.save()
        opened = open_manager(small_disk.path / "home", small).open("talk")
        assert (opened.notices, opened.messages) == ([], before)
    filler.unlink()
    session.save()
    assert len(session.messages) == len(before) + 4
    assert_saved(session)


def test_a_piped_chat_on_a_full_disk_ends_with_one_line(
    small_disk: SmallDisk,
    smollm: LoadedModel,
    small: LoadedModel,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home = small_disk.path / "home"
    before = saved_talk(home, small).messages
    small_disk.fill()
    assert chat_here(smollm, home, "Hi\nWhy?\n") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("satchel: cannot write ")
    assert line.endswith(f"{os.strerror(errno.ENOSPC)}; what was saved before is intact")
    assert [head.name for head in LocalStore(home).heads().heads] == ["talk"]
    assert open_manager(home, small).open("talk").messages == before


# Talks with a model


@pytest.fixture(scope="module")
def small(smollm: LoadedModel) -> LoadedModel:
    return small_model(smollm)


def saved_talk(home: Path, model: LoadedModel) -> Session:
    """Two turns, each saved; a block and a tail."""
    session = open_manager(home, model).new()
    say(session, QUESTION)
    session.save("talk")
    say(session, "Why?")
    session.save()
    assert manifest_of(session).blocks
    return session


@pytest.fixture(scope="module")
def talk_home(small: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a saved talk, to be read only."""
    home = tmp_path_factory.mktemp("talk")
    saved_talk(home, small).manager.store.index.close()
    return home


@pytest.fixture
def copied_talk(talk_home: Path, tmp_path: Path) -> Path:
    """A store with a saved talk."""
    return Path(shutil.copytree(talk_home, tmp_path / "store"))


def assert_saved(session: Session) -> None:
    """That another process would find the talk as it is, with its state."""
    manager = session.manager
    opened = SessionManager(manager.store, manager.model, session.profile, manager.settings).open(session.id)
    assert (opened.notices, opened.messages) == ([], session.messages)
    assert opened.token_ids == session.token_ids


def assert_read_again(home: Path, model: LoadedModel, words: Sequence[Message], empty: Path) -> Session:
    """That the talk opens with its `words` alone, answers as one that has read nothing, and is saved."""
    opened = open_manager(home, model).open("talk")
    (notice,) = opened.notices
    assert notice.endswith(": the context is read again with the next message")
    assert "\n" not in notice
    assert (opened.messages, opened.token_ids, opened.reused_tokens) == (list(words), [], 0)
    expected = cold_answer(opened, "And then?", empty)
    assert say(opened, "And then?") == expected
    opened.save()
    assert_saved(opened)
    return opened


# 4. Foreign state

FIELDS = (
    "format",
    "model.weights",
    "model.architecture",
    "model.tokenizer",
    "model.template",
    "activations",
    "kv.layers",
    "kv.codec",
    "kv.profile.keys",
    "kv.profile.values",
    "kv.profile.sink",
    "kv.profile.window",
    "kv.profile.move",
    "kv.profile.boundary",
    "kv.profile.raised",
    "kv.profile.recurrent",
    "kv.exact dtypes",
    "kv.codec constants.turbo4@32",
)


def leaves(value: dict[str, Any], above: str = "") -> Iterator[str]:
    for name, inner in value.items():
        if isinstance(inner, dict):
            yield from leaves(inner, f"{above}{name}.")
        else:
            yield f"{above}{name}"


def replaced(value: dict[str, Any], field: str, change: Callable[[Any], Any]) -> dict[str, Any]:
    """`value` with one of its leaves changed."""
    name, _, inner = field.partition(".")
    new = replaced(value[name], inner, change) if inner else change(value[name])
    return value | {name: new}


def other(value: Any) -> Any:
    """Another value of the same type."""
    match value:
        case str():
            return f"{value[:-1]}{'0' if value[-1] != '0' else '1'}"
        case int():
            return value + 1
    return [*value, "other"]


def with_identity(home: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Manifest:
    """Store the talk's state again as one of another identity; what was stored before."""
    store = LocalStore(home)
    head = store.find("talk")
    manifest = store.get_manifest(head.manifest)
    identity = change(manifest.identity)
    changed = {"identity": identity, "generation": head.generation + 1, "parent": head.manifest}
    store.commit(manifest.model_copy(update=changed), expected=head.manifest)
    return manifest


def test_every_field_of_the_identity_is_tested(talk_home: Path) -> None:
    assert sorted(leaves(named(LocalStore(talk_home), "talk").manifest.identity)) == sorted(FIELDS)


@pytest.mark.parametrize("field", FIELDS)
def test_state_with_another_field_in_its_identity_is_a_miss_that_names_it(
    small: LoadedModel, copied_talk: Path, field: str
) -> None:
    manifest = with_identity(copied_talk, lambda identity: replaced(identity, field, other))
    opened = open_manager(copied_talk, small).open("talk")
    shown = ".".join(field.split(".")[:2])
    of_version = field in ("format", "kv.codec")
    cause = "saved by another version of Satchel" if of_version else f"saved with another {shown}"
    assert opened.notices == [f"{cause}: the context is read again with the next message"]
    assert (opened.messages, opened.token_ids) == (list(manifest.messages), [])


@pytest.mark.parametrize("field", FIELDS)
def test_state_with_another_field_in_its_identity_is_a_miss_even_where_nobody_compares(
    talk_home: Path, field: str
) -> None:
    store = LocalStore(talk_home)
    manifest = named(store, "talk").manifest
    foreign = manifest.model_copy(update={"identity": replaced(manifest.identity, field, other)})
    with pytest.raises(DamagedError, match="belongs to another context"):
        load_snapshot(store, foreign)


IDENTITIES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "another field": lambda identity: replaced(identity, "kv.profile.keys", other),
    "a field too many": lambda identity: identity | {"later": 1},
    "a field too few": lambda identity: {k: v for k, v in identity.items() if k != "activations"},
    "none": lambda identity: {},
}


@pytest.mark.parametrize("change", IDENTITIES.values(), ids=IDENTITIES.keys())
def test_a_talk_with_state_of_another_identity_is_read_again_and_goes_on(
    small: LoadedModel,
    copied_talk: Path,
    tmp_path: Path,
    change: Callable[[dict[str, Any]], dict[str, Any]],
) -> None:
    manifest = with_identity(copied_talk, change)
    assert_read_again(copied_talk, small, manifest.messages, tmp_path / "empty")


# 5. Several at once


def race(root: Path, writers: int, write: Callable[..., None], rounds: int) -> list[str]:
    """What the processes say that did `write(root, number, rounds, ready, results)` at the same time."""
    context = multiprocessing.get_context("spawn")
    ready, results = context.Barrier(writers), context.SimpleQueue()
    children = [
        context.Process(target=write, args=(root, number, rounds, ready, results))
        for number in range(writers)
    ]
    for child in children:
        child.start()
    said = [results.get() for _ in range(writers * rounds)]
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * writers
    return said


def write_arrays(root: Path, number: int, rounds: int, ready: Barrier, results: Any) -> None:
    store = LocalStore(root)
    for turn in range(rounds):
        ready.wait(60)
        base = named(store)
        ready.wait(60)
        words = [*base.manifest.messages, Message(role="user", content=f"{turn}.{number}")]
        common = {"model_name": "m", "profile_name": "p"}
        part = snapshot(0, 20 + turn, salt=10 * number)
        try:
            saved = save_snapshot(store, part, words, name="notes", base=base, **common)
        except HeadMovedError:
            with store.locked():
                name = store.free_name("notes")
                saved = save_snapshot(store, part, words, name=name, base=base, fork=True, **common)
        results.put(f"{saved.head.name} {words[-1].content}")


@pytest.mark.parametrize(("writers", "rounds"), [(2, 3), pytest.param(4, 5, marks=pytest.mark.slow)])
def test_of_many_processes_that_save_one_session_all_histories_survive(
    tmp_path: Path, writers: int, rounds: int
) -> None:
    store = LocalStore(tmp_path)
    one_save(store)
    told = race(tmp_path, writers, write_arrays, rounds)
    seen = view(store)
    # In each round one goes on in the session, and each of the others in a new one.
    assert len(seen) == 1 + rounds * (writers - 1)
    for name, last in (line.rsplit(" ", 1) for line in told):
        assert last in seen[name][0]
    assert seen["notes"][0][0] == "to 13"
    assert [word.split(".")[0] for word in seen["notes"][0][1:]] == [str(turn) for turn in range(rounds)]
    assert verify(store, read_data=True).faults == ()
    maintenance.collect(store, grace_s=0)
    assert view(store) == seen


def write_talk(root: Path, number: int, rounds: int, ready: Barrier, results: Any) -> None:
    manager = open_manager(root, small_model())
    for turn in range(rounds):
        ready.wait(120)
        session = manager.open("talk")
        say(session, f"{turn}.{number}")
        ready.wait(120)
        session.save()
        results.put(f"{session.name} {turn}.{number} {len(session.take_notices())}")


@pytest.mark.slow
@pytest.mark.parametrize(("writers", "rounds"), [(2, 3), (4, 8)])
def test_of_many_talks_in_one_session_all_go_on(
    small: LoadedModel, tmp_path: Path, writers: int, rounds: int
) -> None:
    saved_talk(tmp_path, small)
    told = [line.rsplit(" ", 2) for line in race(tmp_path, writers, write_talk, rounds)]
    manager = open_manager(tmp_path, small)
    assert len({name for name, *_ in told}) == 1 + rounds * (writers - 1)
    for name, question, notices in told:
        assert (name == "talk") == (notices == "0")
        opened = manager.open(name)
        assert opened.notices == []
        assert len(opened.token_ids) == manager.store.find(name).token_count > 256
        assert question in [message.content for message in opened.messages]
    assert [head.name for head in manager.store.heads().heads].count("talk") == 1


HOLD = """
import sys
from pathlib import Path
from satchel.cache_store.local import LocalStore

with LocalStore(Path(sys.argv[1])).locked():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(satchel_home: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, which has the store's lock."""
    one_save(LocalStore(satchel_home))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLD, satchel_home], text=True, **pipes) as process:
        assert process.stdout and process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_held_lock_is_one_line_and_is_free_when_its_holder_is_killed(
    holder: subprocess.Popen[str],
    satchel_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    no_input: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(LocalStore.__init__, "__defaults__", (0.3,))
    assert run(["sessions", "rename", "notes", "other"]) == 1
    assert capsys.readouterr().err == (
        f"satchel: another Satchel has been writing to {satchel_home}/v1 for 0.3 s; "
        "try again when it is done\n"
    )
    assert run(["sessions", "rm", "notes", "--yes"]) == 1
    assert run(["sessions", "show", "notes"]) == 0  # reading needs no lock
    assert capsys.readouterr().out == "user:\nto 13\n"
    holder.kill()
    holder.wait()
    assert run(["sessions", "rename", "notes", "other"]) == 0
    assert view(LocalStore(satchel_home)).keys() == {"other"}


def test_a_save_waits_for_the_lock(holder: subprocess.Popen[str], satchel_home: Path) -> None:
    store = LocalStore(satchel_home)
    base = named(store)
    freed = threading.Timer(0.3, holder.kill)
    freed.start()
    assert save(store, snapshot(8, 15), base).head.generation == 2
    freed.join()


# 7. Without any KV state


def delete_blocks(home: Path) -> None:
    for path in home.glob("v1/blocks/*/*"):
        path.unlink()


def delete_directory(home: Path) -> None:
    shutil.rmtree(home / "v1" / "blocks")


def empty_blocks(home: Path) -> None:
    for path in home.glob("v1/blocks/*/*"):
        path.write_bytes(b"")


@pytest.mark.parametrize("destroy", [delete_blocks, delete_directory, empty_blocks])
def test_without_any_block_every_session_opens_is_read_again_and_saved(
    small: LoadedModel, tmp_path: Path, destroy: Callable[[Path], None]
) -> None:
    home = tmp_path / "store"
    session = saved_talk(home, small)
    second = open_manager(home, small).new()
    say(second, "Another talk.")
    second.save("second")
    destroy(home)
    assert [head.name for head in LocalStore(home).heads().heads] == ["second", "talk"]
    assert_read_again(home, small, session.messages, tmp_path / "empty")
    opened = open_manager(home, small).open("second")
    assert (len(opened.notices), opened.messages) == (1, second.messages)


def test_a_running_talk_whose_blocks_were_deleted_is_saved_whole(small: LoadedModel, tmp_path: Path) -> None:
    session = saved_talk(tmp_path, small)
    delete_directory(tmp_path)
    say(session, "Still there?")
    session.save()
    assert_saved(session)


def test_a_running_talk_whose_store_was_deleted_is_saved_whole(small: LoadedModel, tmp_path: Path) -> None:
    session = saved_talk(tmp_path, small)
    shutil.rmtree(tmp_path / "v1")
    say(session, "Still there?")
    session.save()
    assert session.notices == ["another process has removed 'talk': this talk goes on as 'talk'"]
    assert_saved(session)
    say(session, "And now?")
    session.save()
    assert_saved(session)
    assert [head.turns for head in LocalStore(tmp_path).heads().heads] == [4]


def test_the_loss_of_the_index_loses_nothing(small: LoadedModel, tmp_path: Path) -> None:
    session = saved_talk(tmp_path, small)
    for path in tmp_path.glob("v1/index.db*"):
        path.unlink()
    assert_saved(session)
    say(session, "And then?")
    session.save()
    (head,) = LocalStore(tmp_path).heads().heads
    assert (head.name, head.turns) == ("talk", 3)
    assert_saved(session)


class WithoutNames(faults.Disk):
    """Cannot make the names of heads durable, which have been changed by then."""

    def meets(self, step: faults.Step, number: int) -> None:
        if step.kind == "fsync" and step.path.endswith("/heads"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_save_that_was_made_but_not_confirmed_is_gone_on_from(small: LoadedModel, tmp_path: Path) -> None:
    session = saved_talk(tmp_path, small)
    say(session, "Once more?")
    with faults.watched(WithoutNames(tmp_path)), pytest.raises(SatchelError, match="cannot write"):
        session.save()
    session.save()
    assert (session.name, session.notices) == ("talk", [])
    assert [head.turns for head in LocalStore(tmp_path).heads().heads] == [3]


def test_a_running_talk_whose_head_is_damaged_is_saved(small: LoadedModel, tmp_path: Path) -> None:
    session = saved_talk(tmp_path, small)
    (head,) = (tmp_path / "v1" / "heads").glob("*.json")
    head.write_bytes(head.read_bytes()[:50])
    say(session, "Once more?")
    session.save()
    assert_saved(session)


def test_a_running_talk_whose_newer_generation_is_damaged_is_saved(
    small: LoadedModel, tmp_path: Path
) -> None:
    session = saved_talk(tmp_path, small)
    store = LocalStore(tmp_path)
    newer = store.rename(session.id, "renamed")
    (tmp_path / "v1" / "manifests" / newer.manifest).write_bytes(b"")
    say(session, "Once more?")
    session.save()
    assert_saved(session)
