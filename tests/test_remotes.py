"""What every place for objects does alike, and what each does with its own failures."""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from faults import Refusing, watched
from s3_proxy import R2Rules, S3Proxy
from s3_servers import Answer, S3Server, ScriptedServer, Seen, moto, rclone, rgw, s3_error  # noqa: F401

from satchel.errors import DamagedError, NetworkError, NotFoundError, UsageError
from satchel.files import TEMPORARY_PREFIX
from satchel.remotes import directory as directory_module
from satchel.remotes import retry as retry_module
from satchel.remotes import s3 as s3_module
from satchel.remotes.address import RemoteAddress
from satchel.remotes.directory import DirectoryRemote
from satchel.remotes.encrypted import EncryptedRemote, stored_bytes
from satchel.remotes.memory import MemoryRemote
from satchel.remotes.probe import probe
from satchel.remotes.remote import Listed, Remote, Stat, TransientError
from satchel.remotes.retry import RetryingRemote
from satchel.remotes.s3 import Credentials, S3Remote

BUCKET = "satchel-remotes"
KEYS = Credentials("AKEXAMPLE", "a-canary-of-a-secret", "a-canary-of-a-token")
NAME = "v1/blocks/0a"
RETRY_AT = {"Retry-After": "Mon, 30 Nov 2026 10:00:00 GMT"}


@dataclass(frozen=True)
class Place:
    """A remote with what sets it apart.

    Attributes:
        lies: it ignores conditions.
        size: how large the object of so many bytes is.
    """

    remote: Remote
    lies: bool = False
    size: Callable[[int], int] = field(default=lambda size: size)


def bucket_of(server: S3Server) -> S3Remote:
    """A part of a bucket that nobody else uses."""
    return open_bucket(server, server.make_bucket(BUCKET), f"tests/{uuid4().hex}")


def open_bucket(server: S3Server, bucket: str = BUCKET, prefix: str = "") -> S3Remote:
    return S3Remote(bucket, prefix, server.endpoint, "us-east-1", server.credentials)


@pytest.fixture(params=["memory", "directory", "retrying", "encrypted", "moto", "rclone", "rgw"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    match request.param:
        case "memory":
            return Place(MemoryRemote())
        case "directory":
            return Place(DirectoryRemote(tmp_path))
        case "retrying":
            return Place(RetryingRemote(MemoryRemote()))
        case "encrypted":
            return Place(EncryptedRemote(MemoryRemote(), bytes(range(32))), size=stored_bytes)
        case server:
            return Place(bucket_of(request.getfixturevalue(server)), lies=server == "rclone")


# What all do alike


@pytest.mark.parametrize("size", [0, 1, 70_000])
def test_what_is_put_is_there_until_it_is_deleted(place: Place, size: int) -> None:
    remote, data = place.remote, os.urandom(size)
    remote.put(NAME, data)
    assert remote.get(NAME, size) == data
    assert (status := remote.stat(NAME)) and status.size == place.size(size)
    assert [(listed.name, listed.size) for listed in remote.list("")] == [(NAME, place.size(size))]
    remote.delete(NAME)
    assert remote.stat(NAME) is None
    assert list(remote.list("")) == []
    with pytest.raises(NotFoundError, match=NAME):
        remote.get(NAME, size)


def test_what_is_put_again_is_replaced(place: Place) -> None:
    place.remote.put(NAME, b"a first one")
    place.remote.put(NAME, b"another")
    assert place.remote.get(NAME, 100) == b"another"


def test_what_is_not_there_is_not_found_and_can_be_deleted(place: Place) -> None:
    with pytest.raises(NotFoundError, match="v1/none/at-all"):
        place.remote.get("v1/none/at-all", 10)
    assert place.remote.stat("v1/none/at-all") is None
    assert list(place.remote.list("v1/none/")) == []
    place.remote.delete("v1/none/at-all")


def test_no_more_is_read_than_allowed(place: Place) -> None:
    place.remote.put(NAME, b"0123456789")
    assert place.remote.get(NAME, 10) == b"0123456789"
    with pytest.raises(DamagedError, match=NAME):
        place.remote.get(NAME, 9)


def test_a_listing_has_what_its_prefix_stands_for_with_whole_names(place: Place) -> None:
    names = ["v1/heads/aa/01", "v1/heads/aa/02-ff", "v1/heads/ab/01", "v1/heads-up", "v1.heads/x", "v1/key"]
    for name in names:
        place.remote.put(name, b"x")

    def listed(prefix: str) -> list[str]:
        return sorted(entry.name for entry in place.remote.list(prefix))

    assert listed("v1/heads/aa/") == ["v1/heads/aa/01", "v1/heads/aa/02-ff"]
    assert listed("v1/heads/") == ["v1/heads/aa/01", "v1/heads/aa/02-ff", "v1/heads/ab/01"]
    assert listed("") == sorted(names)


def test_ages_are_those_of_what_was_just_made(place: Place) -> None:
    place.remote.put(NAME, b"x")
    status, (listed,) = place.remote.stat(NAME), place.remote.list("")
    assert status is not None
    for age_s in (status.age_s, listed.age_s):
        assert age_s is not None
        assert 0 <= age_s < 60


def test_what_is_there_is_not_put_again_if_it_must_be_absent(place: Place) -> None:
    if place.lies:
        pytest.skip("it ignores conditions")
    assert place.remote.put_if_absent(NAME, b"mine")
    assert not place.remote.put_if_absent(NAME, b"theirs")
    assert place.remote.get(NAME, 100) == b"mine"
    place.remote.delete(NAME)
    assert place.remote.put_if_absent(NAME, b"theirs")
    assert place.remote.get(NAME, 100) == b"theirs"


def test_of_those_that_race_one_puts_its_object(place: Place) -> None:
    if place.lies:
        pytest.skip("it ignores conditions")
    for turn in range(5):
        name = f"v1/heads/race/{turn}"
        assert race(place.remote, name) == place.remote.get(name, 100)


def race(remote: Remote, name: str) -> bytes:
    """The content of the only one of six that put it."""
    together = threading.Barrier(6)

    def put(content: bytes) -> bool:
        together.wait()
        return remote.put_if_absent(name, content)

    contents = [f"of {number}".encode() for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        stored = list(pool.map(put, contents))
    assert stored.count(True) == 1
    return contents[stored.index(True)]


def test_several_threads_can_use_a_remote_at_once(place: Place) -> None:
    remote = RetryingRemote(place.remote)  # rclone answers one in a thousand with 500 in a folder that is new

    def use(number: int) -> bool:
        name, data = f"v1/blocks/{number:02x}", bytes([number]) * 3000
        remote.put(name, data)
        return remote.get(name, 3000) == data and remote.stat(name) is not None

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, range(24)))
    assert len(list(remote.list("v1/blocks/"))) == 24


def test_a_wrong_name_is_the_callers_fault(place: Place) -> None:
    remote = place.remote
    for name in ("", "/a", "a/", "a//b", "../a", "a/../b", ".tmp-a", "A", "a b", "ä", "a" * 257):
        calls: list[Callable[[str], object]] = [
            lambda name: remote.put(name, b""),
            lambda name: remote.put_if_absent(name, b""),
            lambda name: remote.get(name, 1),
            remote.stat,
            remote.delete,
        ]
        for call in calls:
            with pytest.raises(ValueError, match="name"):
                call(name)
    for prefix in ("v1", "/", "../", "V1/", "v1//"):
        with pytest.raises(ValueError, match=r"name|end"):
            list(remote.list(prefix))
    assert list(remote.list("")) == []


# A directory


def test_a_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    root = tmp_path / "drive" / "satchel"
    remote = DirectoryRemote(root)
    calls: list[Callable[[], object]] = [
        lambda: remote.put(NAME, b"x"),
        lambda: remote.put_if_absent(NAME, b"x"),
        lambda: remote.get(NAME, 1),
        lambda: remote.stat(NAME),
        lambda: list(remote.list("")),
        lambda: remote.delete(NAME),
        lambda: remote.abort_old_uploads(0),
        lambda: probe(remote),
    ]
    for call in calls:
        with pytest.raises(NetworkError, match=f"^{re.escape(str(root))} is not there$") as caught:
            call()
        assert caught.value.hint == "mount it, or make the folder"
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_the_directory_is_said(tmp_path: Path) -> None:
    (root := tmp_path / "file").write_bytes(b"mine")
    for call in (lambda: DirectoryRemote(root).get(NAME, 1), lambda: probe(DirectoryRemote(root))):
        with pytest.raises(NetworkError) as caught:
            call()
        assert caught.value.one_line() == f"{root} is not a folder; name another one"
    assert root.read_bytes() == b"mine"


def test_a_directory_that_cannot_be_looked_at_is_said() -> None:
    with pytest.raises(
        NetworkError, match=f"cannot look for a folder in /x+: {os.strerror(errno.ENAMETOOLONG)}"
    ):
        DirectoryRemote(Path("/" + "x" * 300)).get(NAME, 1)


def test_a_directorys_objects_are_their_owners_alone(tmp_path: Path) -> None:
    remote = DirectoryRemote(tmp_path)
    remote.put("v1/blocks/0a", b"x")
    remote.put_if_absent("v1/heads/0b", b"x")
    modes = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    folders = {"v1": 0o700, "v1/blocks": 0o700, "v1/heads": 0o700}
    assert modes == folders | {"v1/blocks/0a": 0o600, "v1/heads/0b": 0o600}


def test_links_in_a_directory_lead_nowhere(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "0a").write_bytes(b"private")
    root = tmp_path / "root"
    (root / "v1").mkdir(parents=True)
    (root / "v1" / "folder").symlink_to(outside)
    (root / "v1" / "file").symlink_to(outside / "0a")
    remote = DirectoryRemote(root)
    for name in ("v1/folder/0a", "v1/folder/new", "v1/file"):
        calls: list[Callable[[], object]] = [
            lambda name=name: remote.put(name, b"x"),
            lambda name=name: remote.put_if_absent(name, b"x"),
            lambda name=name: remote.get(name, 100),
            lambda name=name: remote.stat(name),
            lambda name=name: remote.delete(name),
        ]
        for call in calls:
            with pytest.raises(NetworkError, match="is a link"):
                call()
    assert list(remote.list("")) == []
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == {"0a": b"private"}


def test_a_directory_may_itself_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "drive").symlink_to(tmp_path / "real")
    DirectoryRemote(tmp_path / "drive").put(NAME, b"x")
    assert (tmp_path / "real" / NAME).read_bytes() == b"x"


def test_what_is_no_object_in_a_directory_is_passed_over(tmp_path: Path) -> None:
    remote = DirectoryRemote(tmp_path)
    remote.put("v1/blocks/0a", b"x")
    for name in (".DS_Store", f"{TEMPORARY_PREFIX}abc", "0a (conflicted copy)", "0a.sync-conflict-2026-AB"):
        (tmp_path / "v1" / "blocks" / name).write_bytes(b"foreign")
    (tmp_path / "v1" / "blocks" / "0b").mkdir()
    os.mkfifo(tmp_path / "v1" / "blocks" / "0c")
    assert [listed.name for listed in remote.list("")] == ["v1/blocks/0a"]
    assert remote.stat("v1/blocks/0b") is None


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP])
def test_without_hard_links_one_that_races_puts_its_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(directory_module.os, "link", refuse)
    remote = DirectoryRemote(tmp_path)
    for turn in range(5):
        name = f"v1/heads/{turn}"
        assert race(remote, name) == remote.get(name, 100)
        assert not remote.put_if_absent(name, b"late")
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("act", ["put", "put_if_absent"])
def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path, act: str) -> None:
    remote = DirectoryRemote(tmp_path)
    remote.put("v1/heads/0a", b"before")
    with (
        watched(disk := Refusing(tmp_path, 1, errno.ENOSPC)),
        pytest.raises(NetworkError, match="No space left"),
    ):
        getattr(remote, act)("v1/heads/0b", b"x")
    assert disk.steps
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["0a"]


def test_a_file_where_a_folder_should_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "v1").write_bytes(b"")
    with pytest.raises(NetworkError, match="v1/heads"):
        DirectoryRemote(tmp_path).put("v1/heads/0a", b"x")


def test_what_a_killed_process_left_in_a_directory_is_cleared_away_later(tmp_path: Path) -> None:
    remote = DirectoryRemote(tmp_path)
    remote.put("v1/blocks/0a", b"x")
    old, young = (tmp_path / "v1" / "blocks" / f"{TEMPORARY_PREFIX}{name}" for name in ("old", "young"))
    others = tmp_path / f"{TEMPORARY_PREFIX}a", tmp_path / "photos" / f"{TEMPORARY_PREFIX}b"
    others[1].parent.mkdir()
    ages = {old: 7200, young: 60, tmp_path / "v1" / "blocks" / "0a": 7200, **dict.fromkeys(others, 7200)}
    for path, age_s in ages.items():
        path.touch()
        os.utime(path, (time.time() - age_s, time.time() - age_s))
    assert remote.abort_old_uploads(3600) == 1
    assert not old.exists()
    assert young.exists()
    assert all(path.exists() for path in others)
    assert remote.get("v1/blocks/0a", 1) == b"x"


def test_what_a_link_in_a_directory_leads_to_is_not_cleared_away(tmp_path: Path) -> None:
    (place := tmp_path / "place").mkdir()
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (elsewhere / f"{TEMPORARY_PREFIX}a").touch()
    (place / "v1").symlink_to(elsewhere)
    with pytest.raises(NetworkError, match="v1 is a link"):
        DirectoryRemote(place).abort_old_uploads(0)
    assert [path.name for path in elsewhere.iterdir()] == [f"{TEMPORARY_PREFIX}a"]


def test_ages_in_a_directory_are_by_the_clock_of_its_file_system(tmp_path: Path) -> None:
    remote = DirectoryRemote(tmp_path)
    remote.put(NAME, b"x")
    os.utime(tmp_path / NAME, (time.time() - 500, time.time() - 500))
    status = remote.stat(NAME)
    assert status is not None
    assert status.age_s == pytest.approx(500, abs=30)
    os.utime(tmp_path / NAME, (time.time() + 500, time.time() + 500))
    assert remote.stat(NAME) == Stat(1, 0.0)


# Trying again


class Failing(MemoryRemote):
    """Each call fails as often as is left of `failures`; `late`: after it has done what it was asked."""

    def __init__(self, failures: int, late: bool = False, wait_s: float | None = None) -> None:
        super().__init__()
        self.failures, self.late, self.wait_s = failures, late, wait_s
        self.calls = 0

    def _call(self, act: Callable[[], Any]) -> Any:
        self.calls += 1
        if self.failures == 0:
            return act()
        self.failures -= 1
        if self.late:
            act()
        raise TransientError("it broke", "wait a little", self.wait_s)

    def put(self, name: str, data: bytes) -> None:
        self._call(lambda: MemoryRemote.put(self, name, data))

    def put_if_absent(self, name: str, data: bytes) -> bool:
        def act() -> bool:
            if MemoryRemote.stat(self, name):
                return False
            MemoryRemote.put(self, name, data)
            return True

        return bool(self._call(act))

    def get(self, name: str, max_bytes: int) -> bytes:
        return bytes(self._call(lambda: MemoryRemote.get(self, name, max_bytes)))

    def stat(self, name: str) -> Stat | None:
        found: Stat | None = self._call(lambda: MemoryRemote.stat(self, name))
        return found

    def list(self, prefix: str) -> Iterator[Listed]:
        """Fails half-way."""
        found = list(MemoryRemote.list(self, prefix))
        yield from found[: len(found) // 2]
        self._call(lambda: None)
        yield from found[len(found) // 2 :]

    def delete(self, name: str) -> None:
        self._call(lambda: MemoryRemote.delete(self, name))


CALLS: dict[str, Callable[[Remote], object]] = {
    "put": lambda remote: remote.put(NAME, b"new"),
    "put_if_absent": lambda remote: remote.put_if_absent("v1/heads/0b", b"new"),
    "get": lambda remote: remote.get(NAME, 100),
    "stat": lambda remote: remote.stat(NAME).size,  # type: ignore[union-attr]
    "list": lambda remote: [listed.name for listed in remote.list("")],
    "delete": lambda remote: remote.delete(NAME),
}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_what_fails_four_times_succeeds_the_fifth(call: str, late: bool) -> None:
    expected: dict[str, object] = {"put_if_absent": True, "get": b"old", "stat": 3, "list": [NAME, "v1/key"]}
    inner, pauses = Failing(0, late), list[float]()
    inner.put(NAME, b"old")
    inner.put("v1/key", b"k")
    inner.failures = 4
    assert CALLS[call](RetryingRemote(inner, pauses.append)) == expected.get(call)
    assert len(pauses) == 4


@pytest.mark.parametrize("call", CALLS)
def test_what_fails_five_times_is_given_up(call: str) -> None:
    inner, pauses = Failing(99), list[float]()
    MemoryRemote.put(inner, NAME, b"old")
    with pytest.raises(TransientError, match=r"^it broke \(tried 5 times\)$") as caught:
        CALLS[call](RetryingRemote(inner, pauses.append))
    assert caught.value.hint == "wait a little"
    assert (inner.calls, len(pauses)) == (5, 4)


def test_pauses_are_random_and_their_bound_doubles() -> None:
    runs = []
    for _ in range(200):
        pauses: list[float] = []
        with pytest.raises(TransientError):
            RetryingRemote(Failing(99), pauses.append).stat(NAME)
        runs.append(pauses)
    for bound, pauses_of_one in zip((0.5, 1.0, 2.0, 4.0), zip(*runs, strict=True), strict=True):
        assert all(0 <= pause <= bound for pause in pauses_of_one)
        assert min(pauses_of_one) < 0.2 * bound
        assert max(pauses_of_one) > 0.8 * bound


@pytest.mark.parametrize(("asked_s", "least_s", "most_s"), [(2.0, 2.0, 2.5), (3600.0, 30.0, 30.5)])
def test_a_remote_is_waited_for_as_it_asks_but_not_for_ever(
    asked_s: float, least_s: float, most_s: float
) -> None:
    pauses: list[float] = []
    RetryingRemote(Failing(1, wait_s=asked_s), pauses.append).put(NAME, b"x")
    assert len(pauses) == 1
    assert least_s <= pauses[0] <= most_s


@pytest.mark.parametrize(
    "error", [NetworkError("no"), NotFoundError("no"), DamagedError("no"), ValueError("no")]
)
def test_what_cannot_pass_is_not_tried_again(error: Exception) -> None:
    class Refusing(MemoryRemote):
        def get(self, name: str, max_bytes: int) -> bytes:
            raise error

    with pytest.raises(type(error), match=r"^no$"):
        RetryingRemote(Refusing(), pytest.fail).get(NAME, 1)


@pytest.mark.parametrize("theirs", [b"like", b"longer than ours"])
def test_another_ones_object_is_not_taken_for_ours_after_a_failure(theirs: bytes) -> None:
    inner = Failing(0)
    inner.put(NAME, theirs)
    inner.failures = 1
    assert not RetryingRemote(inner, lambda _: None).put_if_absent(NAME, b"ours")


def test_our_own_earlier_object_is_not_taken_for_a_lost_reply() -> None:
    remote = RetryingRemote(MemoryRemote())
    assert remote.put_if_absent(NAME, b"same")
    assert not remote.put_if_absent(NAME, b"same")


def test_a_listing_that_is_too_long_is_refused_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry_module, "MAX_LISTED", 3)
    yielded: list[int] = []

    class Endless(MemoryRemote):
        def list(self, prefix: str) -> Iterator[Listed]:
            for number in itertools.count(1):
                yielded.append(number)
                yield Listed(f"v1/blocks/{number}", 1, None)

    with pytest.raises(NetworkError, match=r"^the remote lists more than 3 objects, which is not right$"):
        list(RetryingRemote(Endless(), pytest.fail).list(""))
    assert yielded == [1, 2, 3, 4]
    whole = MemoryRemote()
    for number in range(3):
        whole.put(f"v1/blocks/{number}", b"x")
    assert len(list(RetryingRemote(whole).list(""))) == 3


# S3: what it sends


def test_no_checksums_are_sent_that_others_than_aws_refuse() -> None:
    with ScriptedServer(lambda _: Answer(headers={"ETag": '"e"'})) as server:
        remote = open_scripted(server)
        small, large = b"small", os.urandom(100_000)
        remote.put(NAME, small)
        remote.put(NAME, large)
        assert remote.put_if_absent(NAME, large)
    assert [seen.body for seen in server.seen] == [small, large, large]
    for seen in server.seen:
        assert (seen.method, seen.path) == ("PUT", f"/{BUCKET}/pre/{NAME}")
        assert not [name for name in seen.headers if re.search("checksum|trailer|content-md5", name)]
        assert "aws-chunked" not in seen.headers.get("content-encoding", "")
        assert seen.headers["content-length"] == str(len(seen.body))
        assert seen.headers["x-amz-content-sha256"] == hashlib.sha256(seen.body).hexdigest()
    assert [seen.headers.get("if-none-match") for seen in server.seen] == [None, None, "*"]


def test_all_parts_of_a_large_object_but_the_last_are_equal(moto: S3Server) -> None:
    data = os.urandom(1 << 20) * 42 + b"and a little more"
    moto.make_bucket(BUCKET)
    with S3Proxy(moto.endpoint, rules=[R2Rules()]) as proxy:
        remote = S3Remote(BUCKET, f"tests/{uuid4().hex}", proxy.url, "us-east-1", moto.credentials)
        remote.put(NAME, data)
        assert remote.get(NAME, len(data)) == data
        parts = {
            int(match[1]): int(request.headers["content-length"])
            for request in proxy.requests
            if (match := re.search(r"partNumber=(\d+)", request.query))
        }
    assert [parts[number] for number in sorted(parts)] == [8 << 20] * 5 + [(2 << 20) + 17]
    assert not [request for request in proxy.requests if "expect" in request.headers]
    assert {request.status for request in proxy.requests} == {200}


def test_a_small_file_is_sent_whole_and_a_large_one_in_parts(tmp_path: Path) -> None:
    def answer(seen: Seen) -> Answer:
        uploads = b"<R><UploadId>u</UploadId></R>" if seen.method == "POST" else b""
        return Answer(body=uploads, headers={"ETag": f'"{len(seen.body)}"'})

    file = tmp_path / "file"
    with ScriptedServer(answer) as server:
        file.write_bytes(b"small")
        open_scripted(server).put_file(NAME, file)
        assert [(seen.method, seen.path, seen.body) for seen in server.seen] == [
            ("PUT", f"/{BUCKET}/pre/{NAME}", b"small")
        ]
        server.seen.clear()
        file.write_bytes(bytes((16 << 20) + 1))
        open_scripted(server).put_file(NAME, file)
    assert [(seen.method, seen.path.partition("?")[2]) for seen in server.seen] == [
        ("POST", "uploads"),
        ("PUT", "uploadId=u&partNumber=1"),
        ("PUT", "uploadId=u&partNumber=2"),
        ("PUT", "uploadId=u&partNumber=3"),
        ("POST", "uploadId=u"),
    ]
    assert re.findall(rb"<PartNumber>(\d+)<", server.seen[-1].body) == [b"1", b"2", b"3"]
    etags = [b"8388608", b"8388608", b"1"]  # what each part was answered with
    assert re.findall(rb"<ETag>\D*(\d+)", server.seen[-1].body) == etags


def test_of_an_upload_that_fails_no_parts_are_left(tmp_path: Path) -> None:
    def answer(seen: Seen) -> Answer:
        if seen.method == "PUT":
            return s3_error(503, "SlowDown")
        return Answer(body=b"<R><UploadId>u</UploadId></R>") if seen.method == "POST" else Answer(204)

    with ScriptedServer(answer) as server, pytest.raises(TransientError, match="503 SlowDown"):
        open_scripted(server).put(NAME, bytes(16 << 20))
    assert [(seen.method, seen.path.partition("?")[2]) for seen in server.seen] == [
        ("POST", "uploads"),
        ("PUT", "uploadId=u&partNumber=1"),
        ("DELETE", "uploadId=u"),
    ]


@pytest.mark.parametrize("size", [1, 16 << 20])
def test_who_is_interrupted_does_not_wait_for_a_server_that_never_answers(size: int, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(size))
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from satchel.remotes.s3 import Credentials, S3Remote\n"
        "remote = S3Remote('bucket', '', sys.argv[1], 'us-east-1', Credentials('A', 'S'))\n"
        "remote.put_file('v1/shares/0a', Path(sys.argv[2]))\n"
    )
    ended, waiting = threading.Event(), threading.Event()

    def answer(seen: Seen) -> Answer:
        if seen.method == "POST":
            return Answer(body=b"<R><UploadId>u</UploadId></R>")
        waiting.set()
        ended.wait(60)
        return Answer(0)

    with ScriptedServer(answer) as server:
        command = [sys.executable, "-c", code, server.endpoint, str(tmp_path / "file")]
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        try:
            assert waiting.wait(60)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=15)  # the answer is waited for twice as long
        finally:
            process.kill()
            ended.set()
    assert said.rstrip().endswith(b"KeyboardInterrupt")
    assert [seen.method for seen in server.seen][-1] == "PUT"


def test_a_slow_line_can_carry_a_large_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_module, "CONNECT_TIMEOUT_S", 0.2)
    data = bytes(8 << 20)  # what sockets buffer is sent at once
    with ScriptedServer(lambda _: Answer(headers={"ETag": '"e"'}), bytes_per_s=12 << 20) as server:
        open_scripted(server).put(NAME, data)
    assert server.seen[0].body == data


# S3: what it is told


def open_scripted(server: ScriptedServer) -> S3Remote:
    return S3Remote(BUCKET, "pre", server.endpoint, "us-east-1", KEYS)


@pytest.mark.parametrize(
    ("answer", "wait_s"),
    [
        (s3_error(503, "SlowDown", {"Retry-After": "7"}), 7.0),
        (s3_error(429, "TooManyRequests", {"Retry-After": "120"}), 120.0),
        (s3_error(503, "ServiceUnavailable", RETRY_AT | {"Date": "Mon, 30 Nov 2026 09:59:00 GMT"}), 60.0),
        (s3_error(503, "ServiceUnavailable", RETRY_AT), None),
        (s3_error(503, "SlowDown", {"Retry-After": "soon"}), None),
        (s3_error(500, "InternalError"), None),
        (s3_error(502, "BadGateway"), None),
        (Answer(504, b"<html>gateway timeout</html>"), None),
        (s3_error(409, "ConditionalRequestConflict"), None),
        (s3_error(400, "RequestTimeout"), None),
        (s3_error(400, "IncompleteBody"), None),
        (Answer(0), None),
    ],
)
def test_what_may_pass_is_said_to(answer: Answer, wait_s: float | None) -> None:
    with ScriptedServer(lambda _: answer) as server:
        remote = open_scripted(server)
        calls: list[Callable[[], object]] = [
            lambda: remote.put(NAME, b"x"),
            lambda: remote.put_if_absent(NAME, b"x"),
            lambda: remote.get(NAME, 10),
            lambda: list(remote.list("")),
            lambda: remote.delete(NAME),
        ]
        for call in calls:
            with pytest.raises(TransientError, match=f"s3://{BUCKET} at 127.0.0.1") as caught:
                call()
            assert caught.value.wait_s == wait_s
        assert len(server.seen) == len(calls)  # nothing below tries again


def test_a_reply_that_was_lost_is_found_out() -> None:
    kept: dict[str, bytes] = {}

    def answer(seen: Seen) -> Answer:
        if seen.method == "GET":
            return Answer(body=kept[seen.path])
        if seen.path in kept:
            return s3_error(412, "PreconditionFailed")
        kept[seen.path] = seen.body
        return Answer(0)

    with ScriptedServer(answer) as server:
        assert RetryingRemote(open_scripted(server), lambda _: None).put_if_absent(NAME, b"ours")
    assert [seen.method for seen in server.seen] == ["PUT", "PUT", "GET"]


@pytest.mark.parametrize("answer", [s3_error(404, "NoSuchKey"), s3_error(404, "NotFound"), Answer(404)])
def test_only_an_object_that_is_asked_for_can_be_missing(answer: Answer) -> None:
    with ScriptedServer(lambda _: answer) as server:
        remote = open_scripted(server)
        where = f"s3://{BUCKET} at {server.endpoint.removeprefix('http://')}"
        with pytest.raises(NotFoundError, match=f"^there is no object {NAME} in {where}$"):
            remote.get(NAME, 1)
        assert remote.stat(NAME) is None
        calls: list[Callable[[], object]] = [
            lambda: remote.put(NAME, b"x"),
            lambda: remote.put(NAME, bytes(s3_module.MULTIPART_BYTES)),
            lambda: remote.put_if_absent(NAME, b"x"),
            lambda: list(remote.list("")),
        ]
        for call in calls:
            with pytest.raises(NetworkError) as caught:
                call()
            assert not isinstance(caught.value, TransientError)
            assert caught.value.one_line() == (
                f"there is no bucket {where}, or no S3 service there; make it, or check its name, --endpoint"
                " and --region"
            )


def test_what_a_service_says_is_missing_is_deleted() -> None:
    with ScriptedServer(lambda _: s3_error(404, "NoSuchKey")) as server:
        open_scripted(server).delete(NAME)
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"<html><body>Log in</body></html>",
        b" <!DOCTYPE html>\n<html><head><meta></head></html>",
        b"<HTML><BR>",
        b"It works!",
        b'{"up":true}',
    ],
)
def test_what_answers_as_no_s3_service_does_is_said(body: bytes) -> None:
    with ScriptedServer(lambda _: Answer(body=body)) as server:
        remote = open_scripted(server)
        calls: list[Callable[[], object]] = [
            lambda: list(remote.list("")),
            lambda: remote.abort_old_uploads(0),
            lambda: remote.put(NAME, b"x"),
            lambda: remote.put(NAME, bytes(s3_module.MULTIPART_BYTES)),
            lambda: remote.delete(NAME),
        ]
        for call in calls:
            assert_is_no_service(call, server)


@pytest.mark.parametrize("body", [b"", b"<R/>", b"<R><Contents><Key>pre/v1/key</Key></Contents></R>"])
def test_an_answer_that_is_no_listing_is_not_an_empty_one(body: bytes) -> None:
    with ScriptedServer(lambda _: Answer(body=body)) as server:
        remote = open_scripted(server)
        assert_is_no_service(lambda: list(remote.list("")), server)
        assert_is_no_service(lambda: remote.abort_old_uploads(0), server)
        assert_is_no_service(lambda: remote.put(NAME, bytes(s3_module.MULTIPART_BYTES)), server)


def assert_is_no_service(call: Callable[[], object], server: ScriptedServer) -> None:
    asked = len(server.seen)
    with pytest.raises(NetworkError) as caught:
        call()
    where = f"s3://{BUCKET} at {server.endpoint.removeprefix('http://')}"
    assert caught.value.one_line() == f"{where} answers, but not as an S3 service; check --endpoint"
    assert not isinstance(caught.value, TransientError)
    assert len(server.seen) == asked + 1


@pytest.mark.parametrize("name", ["moto", "rclone", "rgw"])
def test_an_empty_listing_is_known_for_one(request: pytest.FixtureRequest, name: str) -> None:
    remote = bucket_of(request.getfixturevalue(name))
    assert list(remote.list("")) == []
    if name != "rclone":  # which answers as if one had been named
        assert remote.abort_old_uploads(0) == 0


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("body", [b"", b"<html>moved</html>"])
def test_where_a_redirection_leads_nothing_is_sent(status: int, body: bytes) -> None:
    with ScriptedServer(lambda _: Answer(status, body, {"Location": "http://127.0.0.1:1/x"})) as server:
        remote = open_scripted(server)
        where = f"s3://{BUCKET} at {server.endpoint.removeprefix('http://')}"
        for call in (
            lambda: remote.get(NAME, 1),
            lambda: list(remote.list("")),
            lambda: remote.put(NAME, b"x"),
        ):
            with pytest.raises(NetworkError) as caught:
                call()
            assert caught.value.one_line() == (
                f"{where} redirects elsewhere, which is not followed; check --endpoint"
            )
        assert len(server.seen) == 3


def test_a_bucket_in_another_region_is_said_and_not_looked_for_without_end() -> None:
    for answer in (
        Answer(301, headers={"x-amz-bucket-region": "eu-west-1"}),
        Answer(307, headers={"x-amz-bucket-region": "eu-west-1"}),
        s3_error(301, "PermanentRedirect"),
    ):
        with ScriptedServer(lambda _, answer=answer: answer) as server:
            with pytest.raises(NetworkError, match=r"is in another region$") as caught:
                open_scripted(server).get(NAME, 1)
            assert caught.value.hint == "give it with --region"
            assert len(server.seen) == 2


def test_half_a_body_is_not_taken_for_the_object() -> None:
    answers = iter([Answer(body=b"half", length=8), Answer(body=b"half", length=8), Answer(body=b"all of i")])
    with ScriptedServer(lambda _: next(answers)) as server:
        remote = open_scripted(server)
        with pytest.raises(TransientError):
            remote.get(NAME, 8)
        assert RetryingRemote(remote, lambda _: None).get(NAME, 8) == b"all of i"


def test_half_a_listing_is_not_taken_for_all_of_it() -> None:
    whole = listing(["v1/key"])
    cut = Answer(body=whole[: len(whole) // 2], length=len(whole))
    garbled = Answer(body=whole[: len(whole) // 2])
    for answer in (cut, garbled):
        with ScriptedServer(lambda _, answer=answer: answer) as server, pytest.raises(TransientError):
            list(open_scripted(server).list(""))


def test_what_no_server_answers_is_said_and_not_asked_for_again() -> None:
    nonsense = listing(["v1/key"]).replace(b"<Size>1<", b"<Size>many<")
    with (
        ScriptedServer(lambda _: Answer(body=nonsense)) as server,
        pytest.raises(NetworkError, match=r"^what s3://.* answered makes no sense$") as caught,
    ):
        list(open_scripted(server).list(""))
    assert not isinstance(caught.value, TransientError)


@pytest.mark.parametrize(
    "fault", [ValueError("ours"), TypeError("ours"), KeyError("ours"), IndexError("ours")]
)
def test_a_fault_of_our_own_is_not_taken_for_the_networks(
    fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = S3Remote(BUCKET, "", "http://127.0.0.1:1", None, KEYS)

    def fall_over(**_: object) -> None:
        raise fault

    monkeypatch.setattr(remote._client, "get_object", fall_over)
    with pytest.raises(type(fault), match="ours"):
        remote.get(NAME, 1)


def test_a_wrong_name_of_a_large_object_is_the_callers_fault() -> None:
    with pytest.raises(ValueError, match="is no object's name"):
        S3Remote(BUCKET, "", "http://127.0.0.1:1", None, KEYS).put("../etc", bytes(s3_module.MULTIPART_BYTES))


def test_a_body_that_is_too_large_is_not_read() -> None:
    with ScriptedServer(lambda _: Answer(body=b"x", length=1 << 40)) as server, pytest.raises(DamagedError):
        open_scripted(server).get(NAME, 1 << 20)


def test_an_answer_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_module, "READ_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        remote = S3Remote(BUCKET, "", f"http://127.0.0.1:{silent.getsockname()[1]}", None, KEYS)
        with pytest.raises(TransientError, match="did not answer in time"):
            remote.get(NAME, 1)


def listing(keys: list[str], more: str = "", kind: str = "Contents") -> bytes:
    stamp = "2026-11-30T10:00:00.000Z"
    items = "".join(
        f"<{kind}><Key>{key}</Key><Size>1</Size><LastModified>{stamp}</LastModified>"
        f"<UploadId>u{number}</UploadId><Initiated>{stamp}</Initiated></{kind}>"
        for number, key in enumerate(keys)
    )
    rest = f"<NextContinuationToken>{more}</NextContinuationToken>" if more else ""
    truncated = "true" if more else "false"
    return f"<R><IsTruncated>{truncated}</IsTruncated>{items}{rest}</R>".encode()


def test_a_listing_goes_through_all_pages_and_passes_over_foreign_keys() -> None:
    date = {"Date": "Mon, 30 Nov 2026 10:00:05 GMT"}

    def answer(seen: Seen) -> Answer:
        if "continuation-token=next" in seen.path:
            return Answer(body=listing(["pre/v1/key"]), headers=date)
        foreign = ["pre/v1/Photo.JPG", "pre/v1//x", "pre/../etc", "pre/v1/", "v1/key"]
        return Answer(body=listing(["pre/v1/blocks/0a", *foreign], "next"), headers=date)

    with ScriptedServer(answer) as server:
        listed = list(open_scripted(server).list("v1/"))
    assert listed == [Listed("v1/blocks/0a", 1, 5.0), Listed("v1/key", 1, 5.0)]
    assert all("prefix=pre%2Fv1%2F" in seen.path for seen in server.seen)


@pytest.mark.parametrize("call", ["list", "abort_old_uploads"])
@pytest.mark.parametrize(("marks", "asked"), [("ab", 5), ("aa", 2)])
def test_a_listing_without_end_is_given_up(
    call: str, marks: str, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_module, "MAX_PAGES", 5)
    numbers = itertools.count()

    def answer(seen: Seen) -> Answer:
        mark = marks[next(numbers) % 2]
        body = listing([], mark).replace(b"</R>", f"<NextKeyMarker>{mark}</NextKeyMarker></R>".encode())
        return Answer(body=body)

    with ScriptedServer(answer) as server:
        remote = open_scripted(server)
        calls = {
            "list": lambda: list(remote.list("")),
            "abort_old_uploads": lambda: remote.abort_old_uploads(0),
        }
        with pytest.raises(NetworkError, match=r"^a listing of s3://.* has no end$") as caught:
            calls[call]()
    assert not isinstance(caught.value, TransientError)
    assert len(server.seen) == asked


def test_ages_are_by_the_servers_clock_and_none_without_one() -> None:
    made = {"Last-Modified": "Mon, 30 Nov 2026 10:00:00 GMT"}
    for headers, age_s in (
        (made | {"Date": "Mon, 30 Nov 2026 11:00:00 GMT"}, 3600.0),
        (made | {"Date": "Mon, 30 Nov 2026 09:59:59 GMT"}, 0.0),
        (made | {"Date": "today"}, None),
        ({"Date": "Mon, 30 Nov 2026 11:00:00 GMT"}, None),
    ):
        answer = Answer(headers=headers)
        with ScriptedServer(lambda _, answer=answer: answer) as server:
            assert open_scripted(server).stat(NAME) == Stat(0, age_s)


def test_uploads_that_were_never_finished_are_dropped_when_they_are_old() -> None:
    def answer(seen: Seen) -> Answer:
        if seen.method == "DELETE":
            return Answer(204)
        date = {"Date": "Mon, 30 Nov 2026 11:00:00 GMT"}
        begun = ["pre/v1/blocks/0a", "pre/v1/blocks/0b", "pre/v1/Film.MP4", "pre/film", "other/v1/blocks/0c"]
        return Answer(body=listing(begun, kind="Upload"), headers=date)

    with ScriptedServer(answer) as server:
        remote = open_scripted(server)
        assert remote.abort_old_uploads(3601) == 0
        assert remote.abort_old_uploads(3600) == 2
    dropped = [seen.path for seen in server.seen if seen.method == "DELETE"]
    assert dropped == [
        f"/{BUCKET}/pre/v1/blocks/0{key}?uploadId=u{number}" for number, key in enumerate("ab")
    ]
    assert all("prefix=pre%2Fv1%2F" in seen.path for seen in server.seen if seen.method == "GET")


@pytest.mark.parametrize("name", ["moto", "rclone", "rgw"])
def test_no_parts_are_left_of_what_was_dropped(request: pytest.FixtureRequest, name: str) -> None:
    server: S3Server = request.getfixturevalue(name)
    bucket, prefix = server.make_bucket(BUCKET), f"tests/{uuid4().hex}"
    client = server.client()
    upload = client.create_multipart_upload(Bucket=bucket, Key=f"{prefix}/{NAME}")["UploadId"]
    client.upload_part(Bucket=bucket, Key=f"{prefix}/{NAME}", UploadId=upload, PartNumber=1, Body=b"x")
    assert open_bucket(server, bucket, prefix).abort_old_uploads(0) == 1
    assert client.list_multipart_uploads(Bucket=bucket, Prefix=prefix).get("Uploads", []) == []


# S3: what is refused


def refusal(server: S3Server, bucket: str, keys: Credentials | None) -> set[str]:
    """What is said of each way to use a bucket."""
    remote = S3Remote(bucket, "pre", server.endpoint, "us-east-1", keys)
    said = set()
    calls: list[Callable[[], object]] = [
        lambda: remote.put(NAME, b"x"),
        lambda: remote.put_if_absent(NAME, b"x"),
        lambda: remote.get(NAME, 10),
        lambda: list(remote.list("")),
        lambda: remote.delete(NAME),
    ]
    for call in calls:
        with pytest.raises(NetworkError) as caught:
            call()
        assert not isinstance(caught.value, TransientError)
        said.add(caught.value.one_line())
    return said


@pytest.mark.parametrize("name", ["moto", "rclone", "rgw"])
def test_wrong_keys_and_buckets_are_said_in_one_line(request: pytest.FixtureRequest, name: str) -> None:
    server: S3Server = request.getfixturevalue(name)
    server.make_bucket(BUCKET)
    host = server.endpoint.removeprefix("http://")
    do = "check the credentials and which endpoint they are for; `satchel sync join` again keeps new ones"
    assert refusal(server, BUCKET, Credentials("AKNOBODY", KEYS.secret_key)) == {
        f"s3://{BUCKET} at {host} does not know the access key; {do}"
    }
    wrong_secret = Credentials(server.credentials.access_key, KEYS.secret_key)
    assert refusal(server, BUCKET, wrong_secret) == {
        f"the secret key is not the access key's at s3://{BUCKET} at {host}; {do}"
    }
    assert refusal(server, "not-a-bucket", server.credentials) == {
        f"there is no bucket s3://not-a-bucket at {host}; make it, or check its name, --endpoint and --region"
    }


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (
            s3_error(403, "AccessDenied"),
            "the credentials have no right to get object in {where}; they need to read, write, list and"
            " delete objects there",
        ),
        (
            s3_error(403, "RequestTimeTooSkewed"),
            "the clock of this machine is wrong: {where} refuses its requests; set date and time, then try"
            " again",
        ),
        (
            s3_error(400, "ExpiredToken"),
            "the credentials for {where} have expired; renew them where they come from: `aws sso login`, or"
            " the SATCHEL_S3_ variables",
        ),
        (
            s3_error(400, "InvalidToken"),
            "{where} does not take the session token; renew them where they come from: `aws sso login`, or"
            " the SATCHEL_S3_ variables",
        ),
        (s3_error(301, "PermanentRedirect"), "{where} is in another region; give it with --region"),
        (
            s3_error(400, "AuthorizationHeaderMalformed"),
            "{where} is in another region; give it with --region",
        ),
        (s3_error(501, "NotImplemented"), "{where} cannot get object this way"),
        (
            Answer(401),
            "{where} refuses the credentials, or to get object with them; they need to read, write, list and"
            " delete objects there",
        ),
        (s3_error(418, "Teapot"), "{where} refused to get object: 418 Teapot"),
        (s3_error(400, "\x1b[2JEvil &lt;code>"), "{where} refused to get object: 400"),
    ],
)
def test_each_refusal_is_said_in_one_line(answer: Answer, line: str) -> None:
    with ScriptedServer(lambda _: answer) as server:
        where = f"s3://{BUCKET} at {server.endpoint.removeprefix('http://')}"
        with pytest.raises(NetworkError) as caught:
            open_scripted(server).get(NAME, 1)
    assert caught.value.one_line() == line.format(where=where)
    assert not isinstance(caught.value, TransientError)


def test_a_server_that_is_not_there_is_said_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    remote = S3Remote(BUCKET, "", f"http://127.0.0.1:{port}", None, KEYS)
    with pytest.raises(NetworkError) as caught:
        remote.put(NAME, b"x")
    expected = f"s3://{BUCKET} at 127.0.0.1:{port} cannot be reached; check the network and --endpoint"
    assert caught.value.one_line() == expected
    assert not isinstance(caught.value, TransientError)


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that boto3 could find."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)


def test_credentials_that_no_request_can_carry_are_said_in_one_line() -> None:
    with ScriptedServer(lambda _: Answer()) as server, pytest.raises(NetworkError) as caught:
        keys = Credentials("AK\ncanary", "secret")
        S3Remote(BUCKET, "", server.endpoint, None, keys).put(NAME, b"x")
    assert re.sub("127.*?:[0-9]+", "host", caught.value.one_line()) == (
        f"the credentials for s3://{BUCKET} at host cannot be sent; a line end is in them, or another sign"
        " that does not belong there"
    )
    assert server.seen == []


def test_missing_credentials_are_said_in_one_line(no_credentials: None) -> None:
    remote = S3Remote(BUCKET, "", "http://127.0.0.1:9", None, None)
    calls: list[Callable[[], object]] = [
        lambda: remote.put(NAME, b"x"),
        lambda: remote.presigned_url(NAME, 60),
    ]
    for call in calls:
        with pytest.raises(NetworkError) as caught:
            call()
        assert caught.value.one_line() == (
            f"no credentials were found for s3://{BUCKET} at 127.0.0.1:9; set SATCHEL_S3_ACCESS_KEY_ID and"
            " SATCHEL_S3_SECRET_ACCESS_KEY, or log in as for the aws command"
        )


def test_a_profile_that_is_not_there_is_said_in_one_line(
    no_credentials: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(NetworkError, match=f"^no credentials were found for s3://{BUCKET}$"):
        S3Remote(BUCKET)


def test_credentials_show_in_nothing_that_is_printed() -> None:
    assert repr(KEYS) == str(KEYS) == "Credentials()"

    def repeat(seen: Seen) -> Answer:
        """As servers do that say what they were sent."""
        sent = f"{KEYS.secret_key} {seen.headers}".replace("<", "")
        return s3_error(403, f"SignatureDoesNotMatch</Code><Message>{sent}</Message><Code>")

    with ScriptedServer(repeat) as server, pytest.raises(NetworkError) as caught:
        open_scripted(server).get(NAME, 1)
    for canary in (KEYS.access_key, KEYS.secret_key, KEYS.session_token):
        assert canary not in caught.value.one_line()


def test_a_link_is_signed_and_ends(rclone: S3Server) -> None:
    remote = bucket_of(rclone)
    remote.put(NAME, b"shared")
    url = remote.presigned_url(NAME, 60)
    assert urllib.request.urlopen(url).read() == b"shared"
    assert "X-Amz-Expires=60" in url
    assert rclone.credentials.secret_key not in url
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(url.replace("0a?", "0b?"))


def test_a_link_ends_when_its_time_is_over(rgw: S3Server) -> None:
    remote = bucket_of(rgw)
    remote.put(NAME, b"shared")
    url = remote.presigned_url(NAME, 1)
    assert urllib.request.urlopen(url).read() == b"shared"
    time.sleep(2.1)
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(url)


@pytest.mark.parametrize("seconds", [0, -1, 604_801])
def test_a_link_lasts_up_to_a_week(seconds: int) -> None:
    with pytest.raises(UsageError, match="cannot last"):
        S3Remote(BUCKET, "", "http://127.0.0.1:9", None, KEYS).presigned_url(NAME, seconds)


# Probing


@pytest.mark.parametrize("wrap", [lambda remote: remote, RetryingRemote])
def test_a_probe_says_what_holds(moto: S3Server, wrap: Callable[[Remote], Remote]) -> None:
    remote = bucket_of(moto)
    found = probe(wrap(remote))
    assert found.exclusive
    assert found.ages
    assert found.lines == (
        "write, read, list, delete: work",
        "conditional writes: honoured",
        "ages of objects: told",
    )
    assert list(remote.list("")) == []


@pytest.mark.parametrize("name", ["moto", "rclone"])
def test_where_nothing_is_unfinished_there_is_nothing_to_drop(
    request: pytest.FixtureRequest, name: str
) -> None:
    assert bucket_of(request.getfixturevalue(name)).abort_old_uploads(0) == 0


def test_a_listed_object_has_another_tag_once_it_was_put_again(place: Place) -> None:
    place.remote.put(NAME, b"one")
    (first,) = place.remote.list("")
    (again,) = place.remote.list("")
    place.remote.put(NAME, b"two")
    (second,) = place.remote.list("")
    assert first.tag == again.tag != ""
    assert second.tag not in ("", first.tag)


def test_a_probe_finds_out_who_ignores_conditions(rclone: S3Server) -> None:
    remote = bucket_of(rclone)
    found = probe(remote)
    assert not found.exclusive
    assert found.ages
    assert found.lines[1] == (
        "conditional writes: ignored by this remote; machines that save one session at once are both kept,"
        " as forks"
    )
    assert list(remote.list("")) == []


def test_a_real_gateway_passes_the_probe(rgw: S3Server) -> None:
    found = probe(bucket_of(rgw))
    assert (found.exclusive, found.ages) == (True, True)


@pytest.mark.parametrize("wrap", [lambda remote: remote, RetryingRemote])
def test_no_folder_excludes_anybody(tmp_path: Path, wrap: Callable[[Remote], Remote]) -> None:
    found = probe(wrap(DirectoryRemote(tmp_path)))
    assert (found.exclusive, found.ages) == (False, True)
    assert list(tmp_path.rglob("*")) == [tmp_path / "v1"]


def test_a_probe_leaves_the_folder_of_another_one(tmp_path: Path) -> None:
    other = tmp_path / "v1" / "probe" / ("0" * 32)
    other.parent.mkdir(parents=True)
    other.write_bytes(b"x")
    probe(DirectoryRemote(tmp_path))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [other]


class Forgetting(MemoryRemote):
    def put(self, name: str, data: bytes) -> None:
        pass


class Altering(MemoryRemote):
    def get(self, name: str, max_bytes: int) -> bytes:
        return super().get(name, max_bytes)[:-1]


class Hiding(MemoryRemote):
    def list(self, prefix: str) -> Iterator[Listed]:
        return iter(())


class Immutable(MemoryRemote):
    def put(self, name: str, data: bytes) -> None:
        if not self.stat(name):
            super().put(name, data)


class Keeping(MemoryRemote):
    def delete(self, name: str) -> None:
        pass


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Forgetting, "reading does not work: an object is not what was written"),
        (Altering, "reading does not work: an object is not what was written"),
        (Hiding, "listing does not work: a new object is not in the list, or not as it was written"),
        (Immutable, "writing does not work: an object that was replaced is still the old one"),
        (Keeping, "deleting does not work: a deleted object is still there"),
    ],
)
def test_a_remote_that_does_not_work_is_refused(kind: type[MemoryRemote], said: str) -> None:
    remote = kind()
    with pytest.raises(NetworkError) as caught:
        probe(remote)
    assert str(caught.value) == said
    if kind is not Keeping:
        assert list(MemoryRemote.list(remote, "")) == []


@pytest.mark.parametrize(
    ("method", "says"),
    [
        ("put", "no right to put"),
        ("get", "no right to get"),
        ("list", "no right to list"),
        ("delete", "no right"),
    ],
)
def test_a_probe_that_is_refused_something_says_what_and_leaves_nothing(method: str, says: str) -> None:
    remote = MemoryRemote()

    def refuse(*_: object) -> None:
        raise NetworkError(f"no right to {method}")

    setattr(remote, method, refuse)
    with pytest.raises(NetworkError, match=says):
        probe(remote)
    if method != "delete":
        assert list(MemoryRemote.list(remote, "")) == []


class Overwriting(MemoryRemote):
    """Says that it has not, but has."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        there = self.stat(name)
        self.put(name, data)
        return not there


class Racing(MemoryRemote):
    """Looks, and only then writes."""

    def __init__(self) -> None:
        super().__init__()
        self._all_have_looked = threading.Barrier(4)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if self.stat(name):
            return False
        self._all_have_looked.wait()
        self.put(name, data)
        return True


class Unconditional(MemoryRemote):
    def put_if_absent(self, name: str, data: bytes) -> bool:
        raise NetworkError("s3://bucket cannot put object this way")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Overwriting, "conditional writes: denied, but done"),
        (Racing, "conditional writes: do not hold when several race"),
        (Unconditional, "conditional writes: refused (s3://bucket cannot put object this way)"),
    ],
)
def test_conditions_that_do_not_hold_are_done_without(kind: type[MemoryRemote], said: str) -> None:
    remote = kind()
    found = probe(remote)
    assert not found.exclusive
    fallback = "machines that save one session at once are both kept, as forks"
    assert found.lines[1] == f"{said}; {fallback}"
    assert list(remote.list("")) == []


class Undated(MemoryRemote):
    def stat(self, name: str) -> Stat | None:
        found = super().stat(name)
        return found and Stat(found.size, None)


class Antique(MemoryRemote):
    def stat(self, name: str) -> Stat | None:
        found = super().stat(name)
        return found and Stat(found.size, 1e9)


@pytest.mark.parametrize("kind", [Undated, Antique])
def test_ages_that_cannot_be_told_are_said(kind: type[MemoryRemote]) -> None:
    found = probe(kind())
    assert (found.exclusive, found.ages) == (True, False)
    assert found.lines[2] == "ages of objects: not told; nothing can be cleared away"


# Addresses


@pytest.mark.parametrize(
    ("text", "address", "written"),
    [
        ("s3://my-bucket", RemoteAddress("my-bucket"), "s3://my-bucket"),
        ("s3://my.bucket.1/", RemoteAddress("my.bucket.1"), "s3://my.bucket.1"),
        (" S3://bucket//a///B_c.d/ ", RemoteAddress("bucket", "a/B_c.d"), "s3://bucket/a/B_c.d"),
        ("file:///Volumes/NAS/satchel", RemoteAddress(directory=Path("/Volumes/NAS/satchel")), None),
        (
            "file:///Volumes/My%20NAS/ä/",
            RemoteAddress(directory=Path("/Volumes/My NAS/ä")),
            "file:///Volumes/My%20NAS/%C3%A4",
        ),
        ("file://localhost/mnt/x", RemoteAddress(directory=Path("/mnt/x")), "file:///mnt/x"),
        ("file:////mnt//x", RemoteAddress(directory=Path("/mnt/x")), "file:///mnt/x"),
    ],
)
def test_an_address_is_read_and_written(text: str, address: RemoteAddress, written: str | None) -> None:
    parsed = RemoteAddress.parse(text)
    assert parsed == address
    assert str(parsed) == (written or text)
    assert RemoteAddress.parse(str(parsed)) == address


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "a remote is s3://BUCKET/PREFIX or file:///PATH/TO/A/FOLDER"),
        ("bucket/prefix", "a remote is s3://BUCKET/PREFIX or file:///PATH/TO/A/FOLDER"),
        ("/Volumes/NAS", "a remote is s3://BUCKET/PREFIX or file:///PATH/TO/A/FOLDER"),
        ("ftp://host/x", "a remote is s3://BUCKET/PREFIX or file:///PATH/TO/A/FOLDER"),
        (
            "https://abc.r2.cloudflarestorage.com/bucket",
            "give the server with --endpoint https://HOST, and the bucket as s3://BUCKET/PREFIX",
        ),
        ("s3://", "a bucket's name has 3 to 63 lower-case letters, digits, dots and hyphens"),
        ("s3://ab/x", "a bucket's name has 3 to 63 lower-case letters, digits, dots and hyphens"),
        ("s3://Bucket/x", "a bucket's name has 3 to 63 lower-case letters, digits, dots and hyphens"),
        ("s3://192.168.0.1/x", "a bucket's name has 3 to 63 lower-case letters, digits, dots and hyphens"),
        ("s3://a..b/x", "a bucket's name has 3 to 63 lower-case letters, digits, dots and hyphens"),
        (
            "s3://bucket/a/../b",
            "a prefix has letters, digits, dots, underscores and hyphens, and no part begins with a dot",
        ),
        (
            "s3://bucket/a?b",
            "a prefix has letters, digits, dots, underscores and hyphens, and no part begins with a dot",
        ),
        ("file://NAS/share", "as in file:///NAS/share; a server is mounted first"),
        ("file:///", "a remote is s3://BUCKET/PREFIX or file:///PATH/TO/A/FOLDER"),
        ("file:///mnt/../etc", "a remote is s3://BUCKET/PREFIX or file:///PATH/TO/A/FOLDER"),
        ("file:///mnt/%2e%2e/etc", "a remote is s3://BUCKET/PREFIX or file:///PATH/TO/A/FOLDER"),
        ("file:///mnt/%00", "a remote is s3://BUCKET/PREFIX or file:///PATH/TO/A/FOLDER"),
    ],
)
def test_what_is_no_address_is_refused_with_what_is_right(text: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        RemoteAddress.parse(text)
    assert caught.value.hint == hint
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "open_it",
    [
        lambda: RemoteAddress.parse("s3://AKEXAMPLE:a-canary@bucket/x"),
        lambda: RemoteAddress.parse("https://AKEXAMPLE:a-canary@host/x"),
        lambda: RemoteAddress.parse("s3://bucket").open("https://AKEXAMPLE:a-canary@host", None, KEYS),
    ],
)
def test_credentials_in_an_address_are_refused_and_not_repeated(open_it: Callable[[], object]) -> None:
    with pytest.raises(UsageError, match="must hold no credentials") as caught:
        open_it()
    assert "canary" not in caught.value.one_line()


@pytest.mark.parametrize(
    "endpoint",
    [
        "127.0.0.1:9000",
        "s3://bucket",
        "http://",
        "http://host:port",
        "http://host/bucket",
        "https://h?x=1",
        "",
    ],
)
def test_what_is_no_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(UsageError, match="is no endpoint"):
        S3Remote(BUCKET, "", endpoint, None, KEYS)


def test_what_is_no_region_is_refused() -> None:
    with pytest.raises(UsageError, match="'not a region' is no region"):
        S3Remote(BUCKET, "", "http://127.0.0.1:9", "not a region", KEYS)


def test_an_address_opens_what_it_names(tmp_path: Path, moto: S3Server) -> None:
    moto.make_bucket(BUCKET)
    prefix = f"tests/{uuid4().hex}"
    bucket = RemoteAddress.parse(f"s3://{BUCKET}/{prefix}").open(moto.endpoint, None, moto.credentials)
    folder = RemoteAddress.parse(f"file://{tmp_path}").open()
    for remote in (bucket, folder):
        remote.put(NAME, b"x")
    assert f"{prefix}/{NAME}" in moto.keys(BUCKET)
    assert (tmp_path / NAME).read_bytes() == b"x"


def test_boto3_is_imported_by_those_alone_who_open_a_bucket(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from satchel.remotes import address, directory, memory, probe, retry, s3\n"
        "from pathlib import Path\n"
        "probe.probe(retry.RetryingRemote(address.RemoteAddress(directory=Path(sys.argv[1])).open()))\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'boto3', 'botocore', 'urllib3'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
