"""A machine syncs with the place that it was set up for, and with no other one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from test_local_store import save, snapshot

from satchel.cache_store.local import LocalStore
from satchel.config.paths import data_dir
from satchel.errors import DamagedError, NetworkError, NotFoundError, RefusedError
from satchel.remotes.directory import DirectoryRemote
from satchel.sync.opening import open_syncer
from satchel.sync.setup import Destination, join, set_up

pytestmark = pytest.mark.usefixtures("cheap_passphrases")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A remote that this machine is set up for."""
    place = tmp_path / "nas"
    place.mkdir()
    set_up(DirectoryRemote(place), Destination(place.as_uri()), "a long passphrase", lambda root: None)
    return place


@pytest.fixture
def store() -> LocalStore:
    return LocalStore(data_dir())


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def test_a_remote_that_is_suddenly_empty_is_not_filled(folder: Path, store: LocalStore) -> None:
    save(store, snapshot(0, 9))
    assert open_syncer(store).sync().pushed == ["notes"]
    empty(folder)
    with pytest.raises(NetworkError, match="is empty, without even the key that was in it"):
        open_syncer(store).sync()
    assert list(folder.iterdir()) == []


def test_nor_is_one_that_is_empty_at_the_first_sync(folder: Path, store: LocalStore) -> None:
    save(store, snapshot(0, 9))
    empty(folder)
    with pytest.raises(NetworkError, match="is empty"):
        open_syncer(store).sync()
    assert list(folder.iterdir()) == []


def test_a_remote_that_has_only_lost_its_key_gets_it_back(folder: Path, store: LocalStore) -> None:
    save(store, snapshot(0, 9))
    open_syncer(store).sync()
    key = (folder / "v1" / "key").read_bytes()
    (folder / "v1" / "key").unlink()
    place, destination = DirectoryRemote(folder), Destination(folder.as_uri())
    with pytest.raises(NotFoundError, match="this remote has lost its key"):
        join(place, destination, passphrase="a long passphrase")
    with pytest.raises(RefusedError, match="holds sessions, and has lost their key"):
        set_up(place, destination, "another passphrase", lambda root: None)
    assert open_syncer(store).sync().faults == []
    assert (folder / "v1" / "key").read_bytes() == key
    join(place, destination, passphrase="a long passphrase")


def test_a_remote_that_was_set_up_anew_is_not_written_to(folder: Path, store: LocalStore) -> None:
    save(store, snapshot(0, 9))
    ours = open_syncer(store)
    empty(folder)
    place = DirectoryRemote(folder)
    set_up(place, Destination(folder.as_uri()), "another passphrase", lambda root: None)
    with pytest.raises(DamagedError, match="has another key now: it was set up anew"):
        ours.sync()
    assert [each.name for each in place.list("")] == ["v1/key"]


def test_a_copy_of_a_remote_elsewhere_is_another_place(
    folder: Path, store: LocalStore, tmp_path: Path
) -> None:
    """What is remembered of one says nothing about the other, which may have gone another way."""
    save(store, snapshot(0, 9))
    open_syncer(store).sync()
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    shutil.rmtree(copy / "v1" / "heads")
    join(DirectoryRemote(copy), Destination(copy.as_uri()), passphrase="a long passphrase")
    done = open_syncer(store).sync()
    assert (done.pushed, done.faults) == (["notes"], [])
