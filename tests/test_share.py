"""Sessions that are sealed, linked to, and received: the same words, state and chain keys somewhere else."""

from __future__ import annotations

import base64
import errno
import hashlib
import hmac
import io
import logging
import os
import socket
import ssl
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
from bundles import KEY, KEY_TEXT, WORDS, bundle_of, sealed, sealed_file, stored, unsealed
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from faults import Refusing, watched
from in_process import Completed, Run
from s3_servers import Answer, S3Server, ScriptedServer, Seen, rclone  # noqa: F401
from small_talks import QUESTION, manifest_of, open_manager, say, small_model

from satchel.cache_store.loading import load_snapshot
from satchel.cache_store.local import LocalStore
from satchel.cache_store.sessions import open_session
from satchel.engine.model import LoadedModel
from satchel.errors import DamagedError, NetworkError, NotFoundError, SatchelError, UsageError
from satchel.exchange import download as download_module
from satchel.exchange.bundle import read_bundle
from satchel.exchange.download import download
from satchel.exchange.sealed import CHUNK_BYTES, Sealer, SealKey
from satchel.exchange.sharing import (
    Origin,
    RetryingLinkRemote,
    parse_expiry_s,
    parse_origin,
    receive_session,
    seal_session,
    share_session,
)
from satchel.remotes.encrypted import padded_bytes
from satchel.remotes.memory import MemoryRemote
from satchel.remotes.remote import TransientError
from satchel.remotes.s3 import Credentials, S3Remote
from satchel.sync.configuration import SyncConfig, save_config

BUCKET = "shares"


@pytest.fixture
def store(satchel_home: Path) -> LocalStore:
    return LocalStore(satchel_home)


@pytest.fixture
def other(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "other")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_module, "WAITS_S", (0.0, 0.0, 0.0))


def receive_file(store: LocalStore, path: Path, **options: str) -> str:
    return receive_session(store, Origin(str(path), False, KEY), KEY, **options).name


# Seals


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES])
def test_what_is_sealed_is_unsealed(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    whole = sealed(data)
    assert unsealed(whole) == data
    assert len(whole) == 40 + size + 16 * max(1, -(-size // CHUNK_BYTES))


def test_a_seal_does_not_depend_on_how_it_was_written() -> None:
    data = np.random.default_rng(3).bytes(2 * CHUNK_BYTES + 5)
    file = io.BytesIO()
    sealer = Sealer(file, KEY)
    for at in range(0, len(data), 100_000):
        assert sealer.write(data[at : at + 100_000]) == len(data[at : at + 100_000])
    sealer.finish()
    assert sealer.size == len(data)
    assert unsealed(file.getvalue()) == data


def test_a_seal_is_what_its_description_says() -> None:
    """Opened without our code: HKDF by HMAC, chunk by chunk."""
    data = bytes(range(256)) * (CHUNK_BYTES // 256) + b"the end"
    whole = sealed(data)
    assert whole[:8] == b"SATSEAL\x01"
    extracted = hmac.digest(whole[8:40], KEY.data, hashlib.sha256)
    cipher = AESGCM(hmac.digest(extracted, b"satchel.seal/1\x01", hashlib.sha256))
    border = 40 + CHUNK_BYTES + 16
    first = cipher.decrypt(bytes(12), whole[40:border], None)
    last = cipher.decrypt(bytes(10) + b"\x01\x01", whole[border:], None)
    assert first + last == data


def test_two_seals_of_one_content_have_nothing_in_common() -> None:
    one, two = sealed(bytes(4096)), sealed(bytes(4096))
    same = sum(a == b for a, b in zip(one[8:], two[8:], strict=True))
    assert same < 100  # 16 of 4,128 by chance
    assert b"\0" * 8 not in one


def test_a_key_is_text_for_a_link() -> None:
    assert KEY.text() == KEY_TEXT
    assert SealKey.from_text(KEY_TEXT) == KEY
    assert SealKey.generate() != SealKey.generate()
    assert repr(KEY) == str(KEY) == "SealKey()"


@pytest.mark.parametrize(
    "text",
    [
        "",
        KEY_TEXT[:-1],
        KEY_TEXT + "A",
        KEY_TEXT + "=",
        KEY_TEXT[:-1] + "9",  # the same 32 bytes
        KEY_TEXT[:-1] + "!",
        KEY_TEXT[:20] + " " + KEY_TEXT[20:],
        KEY_TEXT[:-1] + "é",
        KEY_TEXT.replace("A", "+", 1),
    ],
)
def test_what_is_no_key_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        SealKey.from_text(text)
    assert caught.value.one_line() == "that is no key; a key has 43 letters, digits, '-' and '_'"
    assert caught.value.__cause__ is caught.value.__context__ is None


# Bundles


def test_a_bundle_is_a_tar_of_the_stored_bytes(store: LocalStore) -> None:
    manifest = stored(store)
    refs = [*manifest.blocks, manifest.tail]
    with tarfile.open(fileobj=io.BytesIO(bundle_of(store, manifest))) as tar:
        assert tar.getnames() == ["manifest", *(f"blocks/{ref.sha256}" for ref in refs if ref)]
        for ref in refs:
            assert ref
            content = tar.extractfile(f"blocks/{ref.sha256}")
            assert content
            assert content.read() == store.get_block(ref.sha256, ref.stored_bytes)


def test_a_bundle_names_no_earlier_saves(store: LocalStore, tmp_path: Path) -> None:
    manifest = stored(store).model_copy(update={"parent": "1" * 64, "abandoned": ("2" * 64,)})
    found, held = read_bundle(io.BytesIO(bundle_of(store, manifest)), tmp_path)
    assert found == manifest.model_copy(update={"parent": None, "abandoned": ()})
    assert held.place == tmp_path / "v1"
    assert all(held.has_block(ref) for ref in found.blocks)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_session_whose_state_is_lost_is_not_shared(store: LocalStore, tmp_path: Path, lost: int) -> None:
    manifest = stored(store)
    ref = [*manifest.blocks, manifest.tail][lost]
    assert ref
    store.block_path(ref.sha256).write_bytes(b"else")
    with pytest.raises(DamagedError, match="'bruno' cannot be exported with its state: block") as caught:
        seal_session(tmp_path / "file", store, manifest)
    assert caught.value.hint.startswith("resume it and say something")


# There and back


def test_a_received_session_is_the_same_bit_for_bit(
    store: LocalStore, other: LocalStore, tmp_path: Path
) -> None:
    manifest, path = stored(store), tmp_path / "file"
    key = seal_session(path, store, manifest)
    made = receive_session(other, Origin(str(path), False, key), key)
    assert (made.name, made.messages, made.tokens, made.notices) == ("bruno", 2, 520, ())

    back = open_session(other, "bruno").manifest
    assert back.session_id != manifest.session_id
    assert (back.generation, back.parent, back.foreign, back.is_for_others) == (1, None, True, False)
    for field in ("messages", "identity", "model_name", "profile_name", "archived_from", "blocks"):
        assert getattr(back, field) == getattr(manifest, field)
    before, after = load_snapshot(store, manifest), load_snapshot(other, back)
    assert before
    assert after
    for old, new in zip((*before.blocks, before.tail), (*after.blocks, after.tail), strict=True):
        assert (old.start, old.stop, old.meta) == (new.start, new.stop, new.meta)
        np.testing.assert_array_equal(old.token_ids, new.token_ids, strict=True)
        assert old.arrays.keys() == new.arrays.keys()
        for name in old.arrays:
            np.testing.assert_array_equal(old.arrays[name], new.arrays[name], strict=True)


def test_a_session_without_state_is_shared_as_words(
    store: LocalStore, other: LocalStore, tmp_path: Path
) -> None:
    path = sealed_file(tmp_path / "file", bundle_of(store, stored(store).words_alone()))
    assert receive_file(other, path, model="mine") == "bruno"
    back = open_session(other, "bruno").manifest
    assert (back.messages, back.token_count, back.model_name) == (WORDS, 0, "mine")


def test_a_received_session_takes_a_name_that_is_free(store: LocalStore, tmp_path: Path) -> None:
    path = sealed_file(tmp_path / "file", bundle_of(store, stored(store)))
    assert receive_file(store, path) == "bruno-2"
    assert receive_file(store, path, name="mine") == "mine"
    with pytest.raises(UsageError, match="there is a session called 'mine' already"):
        receive_file(store, path, name="mine")
    assert sorted(head.name for head in store.heads().heads) == ["bruno", "bruno-2", "mine"]


def test_the_size_of_a_shared_file_says_little(store: LocalStore, tmp_path: Path) -> None:
    sizes = set()
    for number in range(6):
        manifest = stored(store, f"n{number}").model_copy(update={"model_name": "m" * 40 * number})
        seal_session(tmp_path / "file", store, manifest)
        plain = len(bundle_of(store, manifest))
        sizes.add((tmp_path / "file").stat().st_size)
        assert (tmp_path / "file").stat().st_size == 40 + padded_bytes(plain) + 16
    assert len(sizes) == 1


def test_a_received_talk_goes_on_without_reading_again(smollm: LoadedModel, tmp_path: Path) -> None:
    small = small_model(smollm)
    session = open_manager(tmp_path / "a", small).new()
    say(session, QUESTION)
    session.save("talk")
    manifest, path = manifest_of(session), tmp_path / "file"
    assert len(manifest.blocks) == 1
    key = seal_session(path, session.manager.store, manifest)
    receive_session(LocalStore(tmp_path / "b"), Origin(str(path), False, key), key)

    received = open_manager(tmp_path / "b", small).open("talk")
    assert received.notices == []
    assert received.reused_tokens == len(session.token_ids) > 256
    assert received.messages == session.messages
    assert say(received, "And then?") == say(session, "And then?")


# Links


class Shelf(MemoryRemote):
    """A bucket whose links are answered by a `ScriptedServer`; `failures` uploads fail first."""

    def __init__(self, failures: int = 0) -> None:
        super().__init__()
        self.failures = failures
        self.linked: dict[str, bytes] = {}
        self.server = ScriptedServer(self.answer)

    def put_file(self, name: str, path: Path) -> None:
        if self.failures:
            self.failures -= 1
            raise TransientError("the line dropped")
        self.put(name, path.read_bytes())

    def presigned_url(self, name: str, seconds: int) -> str:
        self.linked[f"/{name}?expires={seconds}"] = self.get(name, 1 << 30)
        return f"{self.server.endpoint}/{name}?expires={seconds}"

    def answer(self, seen: Seen) -> Answer:
        data = self.linked.get(seen.path)
        return Answer(404) if data is None else Answer(200, data)


def test_a_link_gives_the_session_to_whoever_has_all_of_it(store: LocalStore, other: LocalStore) -> None:
    shelf = Shelf()
    link = share_session(shelf, store, stored(store), 3600)
    address, _, key = link.partition("#")
    (object_,) = shelf.list("v1/shares/")
    assert address == f"{shelf.server.endpoint}/{object_.name}?expires=3600"
    assert len(object_.name) == len("v1/shares/") + 32
    seen: list[tuple[int, int]] = []
    origin = parse_origin(f" {link}\n")
    assert origin.key
    with shelf.server:
        made = receive_session(
            other, origin, origin.key, progress=lambda done, total: seen.append((done, total))
        )
    assert (made.name, made.tokens) == ("bruno", 520)
    assert seen[-1] == (object_.size, object_.size)
    (request,) = shelf.server.seen
    assert key not in f"{request}"
    assert request.headers["accept-encoding"] == "identity"


def test_an_upload_is_tried_again(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("satchel.remotes.retry.FIRST_PAUSE_S", 0.0)
    shelf = Shelf(failures=3)
    remote = RetryingLinkRemote(shelf)
    assert share_session(remote, store, stored(store), 60).count("#") == 1
    assert len(list(shelf.list("v1/shares/"))) == 1
    shelf.failures = 99
    with pytest.raises(NetworkError, match=r"the line dropped \(tried 5 times\)"):
        share_session(remote, store, open_session(store, "bruno").manifest, 60)


@pytest.mark.parametrize(
    ("text", "seconds"), [("1m", 60), ("24h", 86400), (" 7d ", 604800), ("90", 90), ("1.5h", 5400)]
)
def test_a_link_lasts_from_a_minute_to_a_week(text: str, seconds: int) -> None:
    assert parse_expiry_s(text) == seconds


@pytest.mark.parametrize("text", ["59s", "0", "7.1d", "8d", "999999h"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=f"a link cannot last for {text}") as caught:
        parse_expiry_s(text)
    assert caught.value.hint == "1m to 7d are possible"


def test_a_link_and_a_file_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a#b").write_bytes(b"")
    assert parse_origin(f"https://h/p?q=1#{KEY_TEXT}") == Origin("https://h/p?q=1", True, KEY)
    assert parse_origin(f"HTTP://h/p#{KEY_TEXT}") == Origin("HTTP://h/p", True, KEY)
    for alone in ("https://h/p", " https://h/p#\n"):
        assert parse_origin(alone) == Origin("https://h/p", True, None)
    assert parse_origin("a#b") == Origin("a#b", False, None)
    assert parse_origin(f"a#b#{KEY_TEXT}") == Origin("a#b", False, KEY)
    assert parse_origin("file") == Origin("file", False, None)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"https://h/p#{KEY_TEXT[:-1]}", "that is no key; a key has 43 letters, digits, '-' and '_'"),
        (f"file#{KEY_TEXT[:-1]}", "that is no key; a key has 43 letters, digits, '-' and '_'"),
        (f"ftp://h/p#{KEY_TEXT}", "links begin with https:// or http://; a file is given by its path"),
        (
            f"file:///etc/passwd#{KEY_TEXT}",
            "links begin with https:// or http://; a file is given by its path",
        ),
    ],
)
def test_what_is_neither_is_refused_and_not_repeated(text: str, line: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_origin(text)
    assert caught.value.one_line() == line


# Downloads


def fetch(address: str, max_bytes: int = 1000) -> bytes:
    file = io.BytesIO()
    download(address, file, max_bytes, lambda _: None)
    return file.getvalue()


@pytest.mark.parametrize(
    ("status", "kind", "message", "requests"),
    [
        (400, NetworkError, "the link has expired or is wrong", 1),
        (403, NetworkError, "the link has expired or is wrong", 1),
        (404, NotFoundError, "there is nothing behind the link any more", 1),
        (410, NotFoundError, "there is nothing behind the link any more", 1),
        (302, NetworkError, "HOST sends the link elsewhere, where it is not followed", 1),
        (308, NetworkError, "HOST sends the link elsewhere, where it is not followed", 1),
        (416, NetworkError, "HOST answered with status 416", 1),
        (429, NetworkError, "HOST answered with status 429", 4),
        (503, NetworkError, "HOST answered with status 503", 4),
        (0, NetworkError, "cannot fetch from HOST: Server disconnected without sending a response.", 4),
    ],
)
def test_a_server_that_refuses_is_one_line(
    status: int, kind: type[SatchelError], message: str, requests: int
) -> None:
    headers = {"Location": "http://127.0.0.1:1/elsewhere"}
    with ScriptedServer(lambda _: Answer(status, b"<Error>canary</Error>", headers)) as server:
        with pytest.raises(kind) as caught:
            fetch(f"{server.endpoint}/x?signature=canary")
        assert len(server.seen) == requests
    assert str(caught.value) == message.replace("HOST", server.endpoint.removeprefix("http://"))
    assert "canary" not in caught.value.one_line()


def test_a_download_goes_on_where_it_broke_off() -> None:
    data = bytes(range(200))

    def answer(seen: Seen) -> Answer:
        start = int(seen.headers.get("range", "bytes=0-")[6:-1])
        rest = data[start:]
        status, part = (206, {"Content-Range": f"bytes {start}-199/200"}) if start else (200, {})
        return Answer(status, rest[: max(1, len(rest) // 2)], part, length=len(rest))

    with ScriptedServer(answer) as server:
        with pytest.raises(NetworkError, match="cannot fetch from"):
            fetch(server.endpoint)
        ranges = [seen.headers.get("range") for seen in server.seen]
        assert ranges == [None, "bytes=100-", "bytes=150-", "bytes=175-"]
        server.seen.clear()
        answers = iter([answer, lambda seen: Answer(206, data[100:], {"Content-Range": "bytes 100-199/200"})])
        server._answer = lambda seen: next(answers)(seen)
        assert fetch(server.endpoint) == data


def test_a_server_that_knows_no_ranges_begins_again() -> None:
    answers = iter([Answer(200, b"old" * 20, length=100), Answer(503), Answer(200, b"new")])
    with ScriptedServer(lambda _: next(answers)) as server:
        assert fetch(server.endpoint) == b"new"


def test_a_part_that_was_not_asked_for_is_refused() -> None:
    answers = iter([Answer(200, b"0123", length=8), Answer(206, b"4567", {"Content-Range": "bytes 0-3/8"})])
    with (
        ScriptedServer(lambda _: next(answers)) as server,
        pytest.raises(NetworkError, match=r"127\.0\.0\.1:\d+ sent another part than was asked for"),
    ):
        fetch(server.endpoint)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, b"", length=1001),
        Answer(200, b"", length=1 << 60),
        Answer(200, b"7d0\r\n" + bytes(2000) + b"\r\n0\r\n\r\n", {"Transfer-Encoding": "chunked"}, length=1),
    ],
)
def test_a_download_is_bounded_whatever_the_server_says(answer: Answer) -> None:
    with (
        ScriptedServer(lambda _: answer) as server,
        pytest.raises(DamagedError, match=r"what is behind the link has more than 1\.0 KB"),
    ):
        fetch(server.endpoint)


def test_room_is_looked_for_before_anything_is_fetched() -> None:
    def refuse(size: int) -> None:
        raise SatchelError(f"no room for {size}")

    with (
        ScriptedServer(lambda _: Answer(200, b"12345")) as server,
        pytest.raises(SatchelError, match="no room for 5"),
    ):
        download(server.endpoint, io.BytesIO(), 1000, refuse)


def test_room_is_looked_for_where_a_server_does_not_say_how_much_it_sends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(download_module, "ROOM_BYTES", 1000)
    chunked = {"Transfer-Encoding": "chunked"}
    body = b"7d0\r\n" + bytes(2000) + b"\r\n" + b"1f4\r\n" + bytes(500) + b"\r\n0\r\n\r\n"
    asked: list[int] = []
    file = io.BytesIO()
    with ScriptedServer(lambda _: Answer(200, body, chunked, length=1)) as server:
        download(server.endpoint, file, 10_000, asked.append)
        assert (asked, len(file.getvalue())) == ([1000, 1000, 1000], 2500)

        def refuse(size: int) -> None:
            raise SatchelError(f"no room for {size}")

        with pytest.raises(SatchelError, match="no room for 1000"):
            download(server.endpoint, file := io.BytesIO(), 10_000, refuse)
    assert file.getvalue() == b""


@pytest.mark.parametrize(
    "address",
    [
        "https://",
        "http:///p",
        "https://[::1",
        "https://h\x00/",
        "mailto:a@b",
        "http://h:0/",
        "http://h:65536/",
        "http://h:-1/",
    ],
)
def test_what_is_no_address_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(UsageError, match=r"^that is no link to a session$") as caught:
        fetch(address)
    assert caught.value.__cause__ is caught.value.__context__ is None


def failing_to_connect(failures: list[OSError], monkeypatch: pytest.MonkeyPatch) -> list[OSError]:
    """What is raised, one after the other, in place of connections; those that were, as they are."""
    raised: list[OSError] = []

    def connect(*_: object, **__: object) -> None:
        raised.append(failures[len(raised)])
        raise raised[-1]

    monkeypatch.setattr(socket, "create_connection", connect)
    return raised


def test_a_server_that_is_not_there_is_one_line() -> None:
    with pytest.raises(NetworkError) as caught:
        fetch("http://127.0.0.1:1/x")
    assert caught.value.one_line() == (
        f"cannot fetch from 127.0.0.1:1: {os.strerror(errno.ECONNREFUSED)}; try again later"
    )


@pytest.mark.parametrize(
    ("failure", "line"),
    [
        (
            ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
            "cannot fetch from h.invalid:81: Connection refused; try again later",
        ),
        (
            socket.gaierror(-2, "Name or service not known"),
            "there is no host h.invalid, or no network; check the link",
        ),
        (TimeoutError("timed out"), "h.invalid:81 did not answer in time; try again later"),
        (
            ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"),
            "there is no trusted connection to h.invalid:81; check the link",
        ),
    ],
)
def test_where_there_was_no_connection_one_more_attempt_is_made(
    failure: OSError, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised = failing_to_connect([failure] * 4, monkeypatch)
    with pytest.raises(NetworkError) as caught:
        fetch("http://h.invalid:81/x")
    assert (caught.value.one_line(), len(raised)) == (line, 2)


def test_a_download_that_has_begun_goes_on_once_there_are_connections_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ScriptedServer(lambda _: Answer(200, b"0123", length=8)) as server:

        def lose_the_network(_: int) -> None:
            failing_to_connect(
                [ConnectionRefusedError(errno.ECONNREFUSED, "refused")] * 2 + [missing], monkeypatch
            )

        missing = OSError(errno.EHOSTUNREACH, "No route to host")
        with pytest.raises(NetworkError, match=r"^cannot fetch from 127\.0\.0\.1:\d+: No route to host$"):
            download(server.endpoint, io.BytesIO(), 1000, lose_the_network)


# Commands


def configure(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sync with a bucket, as `satchel sync setup` leaves it."""
    server.make_bucket(BUCKET)
    monkeypatch.setenv("SATCHEL_S3_ACCESS_KEY_ID", server.credentials.access_key)
    monkeypatch.setenv("SATCHEL_S3_SECRET_ACCESS_KEY", server.credentials.secret_key)
    save_config(
        SyncConfig(
            url=f"s3://{BUCKET}/me",
            endpoint=server.endpoint,
            region="us-east-1",
            key_id="0" * 16,
            exclusive=False,
        )
    )


def test_a_session_goes_through_a_real_bucket(
    rclone: S3Server,
    satchel: Run,
    store: LocalStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    configure(rclone, monkeypatch)
    manifest = stored(store, "canary name")
    shared = satchel("share", "canary name", "--expires", "2h")
    assert (shared.returncode, shared.stderr) == (
        0,
        "archived from k8v4: lossy\nwhoever has the link can read the session, for 2h\n",
    )
    address, _, key = shared.stdout.strip().partition("#")
    assert len(key) == 43
    assert "X-Amz-Expires=7200" in address

    (name,) = rclone.keys(BUCKET)
    assert name.startswith("me/v1/shares/")
    held = rclone.client().get_object(Bucket=BUCKET, Key=name)["Body"].read()
    assert httpx.get(address).content == held
    seal = base64.urlsafe_b64decode(key + "=")
    for secret in (b"canary", b"Ada did", seal, key.encode(), manifest.blocks[0].sha256.encode()):
        assert secret not in held + name.encode()

    monkeypatch.setenv("SATCHEL_HOME", str(tmp_path / "other"))
    made = satchel("receive", shared.stdout.strip())
    assert (made.returncode, made.stdout, made.stderr) == (0, "canary name\n", "2 messages; 520 tokens\n")
    assert open_session(LocalStore(tmp_path / "other"), "canary name").manifest.blocks == manifest.blocks

    wrong_key = satchel("receive", f"{address}#{KEY_TEXT}")
    assert (wrong_key.returncode, wrong_key.stdout) == (4, "")
    assert wrong_key.stderr == (
        "satchel: the shared session cannot be received: the key is another, or it is damaged\n"
    )
    forged = satchel("receive", f"{address[:-4]}0000#{key}")
    assert (forged.returncode, forged.stdout) == (5, "")
    assert forged.stderr == "satchel: the link has expired or is wrong; ask for a new one\n"
    rclone.client().delete_object(Bucket=BUCKET, Key=name)
    gone = satchel("receive", f"{address}#{key}")
    assert gone.returncode in (3, 5)  # this server says 403, others 404
    for secret in (key, KEY_TEXT, seal.hex(), "Ada did"):
        assert secret not in caplog.text


def test_a_link_ends(
    rclone: S3Server,
    store: LocalStore,
    other: LocalStore,
) -> None:
    rclone.make_bucket(BUCKET)
    remote = S3Remote(BUCKET, "me", rclone.endpoint, "us-east-1", rclone.credentials)
    origin = parse_origin(share_session(remote, store, stored(store), 1))
    assert origin.key
    time.sleep(2.1)  # the server counts whole seconds
    with pytest.raises(NetworkError, match="the link has expired or is wrong"):
        receive_session(other, origin, origin.key)
    assert other.heads().total == 0


def test_a_link_made_with_temporary_credentials_is_said_to_end_with_them(
    satchel: Run, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(store)
    for token, said in (
        ("", "for 24h"),
        ("T", "for 24h, or until the temporary credentials that it was made with end"),
    ):
        keys = Credentials("A", "S", token or None)

        class Bucket(Shelf):
            signer = S3Remote(BUCKET, "", "http://127.0.0.1:1", "us-east-1", keys)

            def presigned_url(self, name: str, seconds: int) -> str:
                return self.signer.presigned_url(name, seconds)

        monkeypatch.setattr("satchel.exchange.sharing.open_link_remote", lambda name: Bucket())
        shared = satchel("share", "bruno")
        assert shared.stderr.splitlines()[-1] == f"whoever has the link can read the session, {said}"


def test_a_large_file_is_sent_in_parts(
    rclone: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rclone.make_bucket(BUCKET)
    monkeypatch.setattr("satchel.remotes.s3.MULTIPART_BYTES", 5 << 20)
    monkeypatch.setattr("satchel.remotes.s3.PART_BYTES", 5 << 20)
    data = np.random.default_rng(1).bytes((11 << 20) + 7)
    (tmp_path / "file").write_bytes(data)
    remote = S3Remote(BUCKET, "me", rclone.endpoint, "us-east-1", rclone.credentials)
    remote.put_file("v1/shares/large", tmp_path / "file")
    assert remote.get("v1/shares/large", 12 << 20) == data
    assert fetch(remote.presigned_url("v1/shares/large", 60), 12 << 20) == data


def test_a_session_goes_through_a_file(satchel: Run, store: LocalStore, tmp_path: Path) -> None:
    """No sync is set up."""
    stored(store)
    path = tmp_path / "talk.sealed"
    shared = satchel("share", "bruno", "--output", path)
    assert (shared.returncode, shared.stderr.splitlines()[1:]) == (
        0,
        ["whoever has the file and the key after # can read the session: send them by different ways"],
    )
    name, _, key = shared.stdout.strip().rpartition("#")
    assert (name, len(key)) == (str(path), 43)
    assert path.stat().st_mode & 0o777 == 0o600
    assert b"bruno" not in path.read_bytes()
    made = satchel("receive", shared.stdout.strip(), "--name", "mine")
    assert (made.returncode, made.stdout, made.stderr) == (0, "mine\n", "2 messages; 520 tokens\n")

    held = path.read_bytes()
    again = satchel("share", "bruno", "--output", path)
    assert (again.returncode, again.stdout, path.read_bytes()) == (6, "", held)
    assert again.stderr == f"satchel: there is a file {path}; --force replaces it\n"
    replaced = satchel("share", "bruno", "--output", path, "--force")
    assert replaced.stdout != shared.stdout
    assert satchel("receive", shared.stdout.strip()).returncode == 4
    assert satchel("receive", replaced.stdout.strip()).stdout == "bruno-2\n"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["home", "talk.sealed"]


def test_a_session_that_cannot_be_sealed_leaves_no_file(
    satchel: Run, store: LocalStore, tmp_path: Path
) -> None:
    store.block_path(stored(store).blocks[1].sha256).unlink()
    result = satchel("share", "bruno", "--output", tmp_path / "file")
    assert (result.returncode, result.stdout) == (4, "")
    assert [each.name for each in tmp_path.iterdir()] == ["home"]


@pytest.mark.parametrize(
    ("args", "exit_code", "line"),
    [
        (
            ["share", "none", "--output", "f"],
            3,
            "no session is called 'none'; `satchel sessions list` shows all\n",
        ),
        (
            ["share", "bruno"],
            3,
            "a link needs a bucket; `satchel sync setup` sets one up, or "
            "`satchel share bruno --output bruno.satchel` seals the talk into a file\n",
        ),
        (["share", "bruno", "--expires", "8d"], 2, "a link cannot last for 8d; 1m to 7d are possible"),
        (["share", "bruno", "--expires", "soon"], 2, "'soon' is not a time"),
        (["share", "bruno", "--expires", "1h", "--output", "f"], 2, "a file does not expire; leave out"),
        (["share", "bruno", "--output", "-"], 2, "the key is what goes to standard output; name a file"),
        (["share", "bruno", "--output", "none/f"], 3, "there is no folder none to write to"),
        (
            ["receive", "none"],
            3,
            "there is no file none; name the file that was shared, or give the whole link\n",
        ),
        (
            ["receive", f"none#{KEY_TEXT}"],
            3,
            "there is no file none; name the file that was shared, or give the whole link\n",
        ),
        (
            ["receive", f".#{KEY_TEXT}"],
            2,
            ". is not a file; name the file that was shared, or give the whole link\n",
        ),
        (
            ["receive", f"#{KEY_TEXT}"],
            2,
            "neither a link nor a file is named; give it as LINK#key or FILE#key\n",
        ),
        (["receive", ""], 2, "neither a link nor a file is named; give it as LINK#key or FILE#key\n"),
        (["receive", f"{'x' * 280}#{KEY_TEXT}"], 1, f"cannot read {'x' * 280}: File name too long\n"),
        (["share", "bruno", "--output", "x" * 280], 1, f"cannot write {'x' * 280}: File name too long\n"),
        (["share", "bruno", "--expires", ""], 2, "'' is not a time; "),
        (["share", "bruno", "--expires", "", "--output", "f"], 2, "'' is not a time; "),
        (["receive", f"http://127.0.0.1:65536/p#{KEY_TEXT}"], 2, "that is no link to a session; "),
        (["receive", f"words#{KEY_TEXT}"], 4, "words cannot be received: it is no sealed session\n"),
        (["receive", "words"], 2, "the file's key is missing; give it as FILE#key\n"),
        (["receive", "https://h/p"], 2, "the link has no key; it ends with # and 43 letters and digits\n"),
        (["receive", "-"], 2, "standard input holds no link; "),
        (["receive", f"https://#{KEY_TEXT}"], 2, "that is no link to a session; "),
        (["receive", f"http://127.0.0.1:1/p#{KEY_TEXT}"], 5, "cannot fetch from 127.0.0.1:1: "),
    ],
)
def test_what_does_not_work_is_one_line_without_the_key(
    satchel: Run,
    store: LocalStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    args: list[str],
    exit_code: int,
    line: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.chdir(tmp_path)
    stored(store)
    (tmp_path / "words").write_text("These are words, and more of them than a header has.")
    result = satchel(*args)
    assert (result.returncode, result.stdout) == (exit_code, "")
    assert result.stderr.startswith(f"satchel: {line}")
    assert result.stderr.count("\n") == 1
    assert KEY_TEXT not in result.stderr + caplog.text
    assert store.heads().total == 1


def test_what_a_full_disk_spares_is_said_only_of_what_is_there(
    satchel: Run, store: LocalStore, tmp_path: Path
) -> None:
    stored(store)
    path = tmp_path / "sealed"
    for line in ("", "; what was saved before is intact"):
        with watched(Refusing(tmp_path, 1, errno.ENOSPC)):
            result = satchel("share", "bruno", "--output", path, "--force")
        assert (result.returncode, result.stderr.splitlines()[-1]) == (
            1,
            f"satchel: cannot write {path}: {os.strerror(errno.ENOSPC)}{line}",
        )
        path.write_bytes(b"there before")


def test_a_folder_makes_no_links(satchel: Run, store: LocalStore, tmp_path: Path) -> None:
    stored(store)
    (tmp_path / "nas").mkdir()
    save_config(SyncConfig(url=f"file://{tmp_path}/nas", key_id="0" * 16, exclusive=True))
    result = satchel("share", "bruno")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        "satchel: only a bucket makes links; "
        "`satchel share bruno --output bruno.satchel` seals the talk into a file\n"
    )


def test_names_that_come_with_a_session_are_shown_as_one_line(
    satchel: Run, store: LocalStore, tmp_path: Path
) -> None:
    manifest = stored(store).model_copy(update={"name": "a\u200db"})
    path = sealed_file(tmp_path / "fi\x1b[31mle", bundle_of(store, manifest))
    assert satchel("receive", f"{path}#{KEY_TEXT}").stdout == "a\u200db\n"
    path.write_bytes(b"none")
    assert "\x1b" not in satchel("receive", f"{path}#{KEY_TEXT}").stderr


def test_the_key_of_a_file_is_asked_for_at_a_terminal(
    satchel: Run, store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sealed_file(tmp_path / "file", bundle_of(store, stored(store)))
    monkeypatch.setattr("satchel.cli.share.at_terminal", lambda: True)
    asked: list[str] = []

    def answer(question: str, **options: object) -> str:
        asked.append(question)
        assert options == {"hide_input": True, "err": True}
        return f" {KEY_TEXT} "

    monkeypatch.setattr("typer.prompt", answer)
    made = satchel("receive", path)
    assert (made.returncode, made.stdout, asked) == (0, "bruno-2\n", ["Key (not shown)"])
    assert KEY_TEXT not in made.stdout + made.stderr


def test_the_key_of_a_link_is_asked_for_at_a_terminal(
    satchel: Run, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = Shelf()
    address, _, key = share_session(shelf, store, stored(store), 3600).partition("#")
    monkeypatch.setattr("satchel.cli.share.at_terminal", lambda: True)
    monkeypatch.setattr("typer.prompt", lambda question, **options: key if options["hide_input"] else "")
    with shelf.server:
        made = satchel("receive", address)
    assert (made.returncode, made.stdout) == (0, "bruno-2\n")
    assert key not in made.stderr


def test_a_link_comes_by_standard_input(satchel: Run, store: LocalStore, tmp_path: Path) -> None:
    shelf = Shelf()
    link = share_session(shelf, store, stored(store), 3600)

    def receive(text: str) -> Completed:
        return satchel("receive", "-", stdin=text.encode())

    with shelf.server:
        made = receive(f"{link}\n")
    assert (made.returncode, made.stdout) == (0, "bruno-2\n")
    path = sealed_file(tmp_path / "file", bundle_of(store, open_session(store, "bruno").manifest))
    assert receive(f"{path}#{KEY_TEXT}").stdout == "bruno-3\n"
    for text, line in (
        (link.partition("#")[0], "the link has no key; it ends with # and 43 letters and digits"),
        ("\n", "standard input holds no link; it is one line, with # and the key at its end"),
        ("file\0#", "standard input holds no link; it is one line, with # and the key at its end"),
    ):
        refused = receive(text)
        assert (refused.returncode, refused.stderr) == (2, f"satchel: {line}\n")


def test_sharing_a_file_imports_neither_a_model_nor_boto3(store: LocalStore, tmp_path: Path) -> None:
    stored(store)
    code = (
        "import sys; from satchel.cli import run; run(sys.argv[1:]); "
        "print([name for name in ('mlx', 'boto3', 'keyring') if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, "share", "bruno", "--output", str(tmp_path / "file")]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1:] == ["[]"]
