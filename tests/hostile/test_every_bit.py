"""A bit flipped at every byte of a small session: never another text, never a traceback."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from small_talks import QUESTION, cold_answer, manifest_of, open_manager, say, small_model

from satchel.cache_store.local import LocalStore
from satchel.cache_store.maintenance import remove
from satchel.cache_store.manifest import Manifest
from satchel.cache_store.sessions import open_session
from satchel.engine.model import LoadedModel
from satchel.errors import DamagedError, SatchelError
from satchel.session import Session

NEXT = "And then?"
Answer = list[int | None]


@pytest.fixture(scope="module")
def small(smollm: LoadedModel) -> LoadedModel:
    return small_model(smollm)


@dataclass(frozen=True, slots=True)
class Talk:
    """A session saved twice, and what it answers next: by its words, with its state and without."""

    home: Path
    id: str
    first: Manifest
    last: Manifest
    warm: dict[int, Answer]
    cold: dict[int, Answer]

    def copy(self, place: Path) -> Path:
        return shutil.copytree(self.home, place)

    def head(self, home: Path) -> Path:
        return home / "v1" / "heads" / f"{self.id}.json"

    def manifest(self, home: Path, which: Manifest) -> Path:
        parent = self.last.parent
        assert parent
        current = LocalStore(self.home).find(self.id).manifest
        return home / "v1" / "manifests" / (current if which is self.last else parent)


@pytest.fixture(scope="module")
def talk(small: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Talk:
    folder = tmp_path_factory.mktemp("talk")
    manager = open_manager(folder / "home", small)
    session = manager.new()
    warm: dict[int, Answer] = {}
    cold: dict[int, Answer] = {}
    saves: list[Manifest] = []
    for question in (QUESTION, "Why?"):
        say(session, question)
        session.save("talk")
        saves.append(manifest_of(session))
        opened = open_manager(folder / "home", small).open("talk")
        count = len(opened.messages)
        cold[count] = cold_answer(opened, NEXT, folder / "empty")
        warm[count] = say(opened, NEXT)
    assert len(saves[-1].blocks) == 1
    # Four answers, of which no two are equal: a wrong context or a wrong state would show.
    assert len({tuple(answer) for answer in (*warm.values(), *cold.values())}) == 4
    return Talk(folder / "home", session.id, saves[0], saves[1], warm, cold)


@contextmanager
def flipped(path: Path, position: int) -> Iterator[None]:
    """The file with one bit of the byte at `position` changed; which one depends on the position."""
    with path.open("r+b", buffering=0) as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1 << (position * 3 + position // 8) % 8]))
    yield
    with path.open("r+b", buffering=0) as file:
        file.seek(position)
        file.write(bytes([byte]))


def spread(path: Path, count: int) -> list[int]:
    """Positions over the whole file, its first and last bytes among them."""
    size = path.stat().st_size
    return sorted({0, 1, 4, size - 1, *(size * n // count for n in range(count))})


def object_path(home: Path, object_id: str) -> Path:
    return home / "v1" / "blocks" / object_id[:2] / object_id


# Under a hash


@pytest.mark.parametrize("kind", ["block", "tail", "manifest"])
def test_a_flip_at_any_byte_under_a_hash_is_found(talk: Talk, tmp_path: Path, kind: str) -> None:
    home = talk.copy(tmp_path / "home")
    store = LocalStore(home)
    (block,), tail = talk.last.blocks, talk.last.tail
    assert tail
    ref = block if kind == "block" else tail
    path = talk.manifest(home, talk.last) if kind == "manifest" else object_path(home, ref.sha256)
    size = path.stat().st_size
    for position in range(size):
        with (
            flipped(path, position),
            pytest.raises(DamagedError, match=f"{path.name[:12]} is damaged: its SHA"),
        ):
            if kind == "manifest":
                store.get_manifest(path.name)
            else:
                store.get_block(ref.sha256, ref.stored_bytes)
    assert open_session(store, "talk").manifest == talk.last
    store.get_block(ref.sha256, ref.stored_bytes)
    assert size > 500


@pytest.mark.parametrize("kind", ["block", "tail"])
def test_a_flip_in_the_state_is_read_again(talk: Talk, small: LoadedModel, tmp_path: Path, kind: str) -> None:
    home = talk.copy(tmp_path / "home")
    (block,), tail = talk.last.blocks, talk.last.tail
    assert tail
    damaged = block if kind == "block" else tail
    path = object_path(home, damaged.sha256)
    for position in spread(path, 24):
        with flipped(path, position):
            opened = open_manager(home, small).open("talk")
            (notice,) = opened.notices
            assert damaged.sha256[:12] in notice
            assert notice.endswith(": the context is read again with the next message")
            assert opened.messages == list(talk.last.messages)
            assert say(opened, NEXT) == talk.cold[4]


def test_a_flip_in_the_manifest_goes_on_from_the_save_before(
    talk: Talk, small: LoadedModel, tmp_path: Path
) -> None:
    home = talk.copy(tmp_path / "home")
    path = talk.manifest(home, talk.last)
    for position in spread(path, 24):
        with flipped(path, position):
            opened = open_manager(home, small).open("talk")
            (notice,) = opened.notices
            assert path.name[:12] in notice
            assert opened.messages == list(talk.first.messages)
            assert say(opened, NEXT) == talk.warm[2]


def test_a_flip_in_what_was_saved_before_does_no_harm(talk: Talk, small: LoadedModel, tmp_path: Path) -> None:
    home = talk.copy(tmp_path / "home")
    assert talk.first.tail
    for path in (talk.manifest(home, talk.first), object_path(home, talk.first.tail.sha256)):
        for position in spread(path, 6):
            with flipped(path, position):
                opened = open_manager(home, small).open("talk")
                assert (opened.notices, opened.messages) == ([], list(talk.last.messages))
                assert say(opened, NEXT) == talk.warm[4]


# The head, which no hash covers


def test_a_flip_at_any_byte_of_the_head_never_gives_another_text(
    talk: Talk, small: LoadedModel, tmp_path: Path
) -> None:
    home = talk.copy(tmp_path / "home")
    path = talk.head(home)
    whole, damaged, earlier = 0, 0, 0
    for position in range(path.stat().st_size):
        with flipped(path, position):
            try:
                opened = open_manager(home, small).open(talk.id)
            except SatchelError as err:
                assert isinstance(err, DamagedError)
                assert talk.id[:12] in err.one_line()
                damaged += 1
                continue
            expected = answer_after(opened, talk)
            if position % 4 == 0:
                assert say(opened, NEXT) == expected
            if opened.notices:
                earlier += 1
            else:
                whole += 1
    # Most bytes are names of fields, ids, or hold JSON together.
    assert damaged > 150
    assert earlier > 5  # digits of the manifest's id that became other digits
    assert whole > 10  # name, title, time, counts
    assert open_manager(home, small).open(talk.id).notices == []


def answer_after(opened: Session, talk: Talk) -> Answer:
    """What must follow the words that were opened: those of now, or of the save before."""
    words = opened.messages
    assert words == list((talk.first if opened.notices else talk.last).messages)
    return talk.warm[len(words)]


def test_after_a_flip_in_the_head_the_talk_is_saved_or_can_be_removed(
    talk: Talk, small: LoadedModel, tmp_path: Path
) -> None:
    for number, position in enumerate(spread(talk.head(talk.home), 40)):
        home = talk.copy(tmp_path / str(number))
        with flipped(talk.head(home), position):
            store = LocalStore(home)
            try:
                opened = open_manager(home, small).open(talk.id)
            except DamagedError:
                remove(store, store.session_id(talk.id))
                assert store.heads().heads == ()
                talk.head(home).touch()  # for the bit to be put back
                continue
            say(opened, NEXT)
            opened.save()
            again = open_manager(home, small).open(talk.id)
            assert (again.notices, again.messages) == ([], opened.messages)
            assert again.token_ids == opened.token_ids


# The index, which is only ever a pointer


@pytest.mark.parametrize("step", [211, pytest.param(1, marks=pytest.mark.slow)])
def test_a_flip_at_any_byte_of_the_index_changes_nothing(talk: Talk, tmp_path: Path, step: int) -> None:
    home = talk.copy(tmp_path / "home")
    store = LocalStore(home)
    listed = store.heads().heads
    assert [head.session_id for head in listed] == [talk.id]
    store.index.close()
    path = home / "v1" / "index.db"
    pristine = path.read_bytes()
    for position in (*range(min(step, 100)), *range(100, len(pristine), step)):
        for other in home.glob("v1/index.db*"):
            other.unlink()
        path.write_bytes(pristine)
        with flipped_once(path, position):
            damaged = LocalStore(home)
            assert damaged.heads().heads == listed
            assert damaged.heads().damaged == ()
            assert open_session(damaged, "talk").manifest == talk.last
            damaged.index.close()


@contextmanager
def flipped_once(path: Path, position: int) -> Iterator[None]:
    """As `flipped`, of a file that may be replaced meanwhile."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << (position * 3 + position // 8) % 8
    path.write_bytes(data)
    yield
