"""Sealed sessions and bundles that somebody made to do harm, or that a network made wrong."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bundles import KEY, Member, bundle_of, member, members, sealed, sealed_file, stored, tar, unsealed

from satchel.cache_store.local import LocalStore
from satchel.cache_store.manifest import Manifest, encode_manifest
from satchel.errors import DamagedError, SatchelError, VersionError
from satchel.exchange import bundle
from satchel.exchange import sealed as sealed_module
from satchel.exchange.sealed import HEADER_BYTES, TAG_BYTES, SealKey
from satchel.exchange.sharing import Origin, receive_session

CHUNK = 64


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_module, "CHUNK_BYTES", CHUNK)


@pytest.fixture
def source(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "source")


@pytest.fixture
def manifest(source: LocalStore) -> Manifest:
    return stored(source)


@pytest.fixture
def receive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], str]]:
    """Tries to receive what is sealed, and says why not. No session is there then, and nothing left over."""
    store, file, work = LocalStore(tmp_path / "other"), tmp_path / "file", tmp_path / "work"
    work.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(work))

    def take(data: bytes) -> str:
        file.write_bytes(data)
        with pytest.raises(SatchelError) as caught:
            receive_session(store, Origin(str(file), False, KEY), KEY)
        assert isinstance(caught.value, DamagedError | VersionError)
        return str(caught.value).removeprefix("file cannot be received: ")

    yield take
    assert {path.name for path in tmp_path.iterdir()} <= {"home", "source", "file", "work"}
    assert not list(work.iterdir())


# Seals


def chunks(data: bytes) -> tuple[bytes, list[bytes]]:
    """The header of a sealed stream, and its chunks."""
    body, step = data[HEADER_BYTES:], CHUNK + TAG_BYTES
    return data[:HEADER_BYTES], [body[at : at + step] for at in range(0, len(body), step)]


def test_a_bit_flipped_at_any_byte_of_a_seal_is_found(small_chunks: None) -> None:
    whole = sealed(bytes(range(200)))
    assert len(whole) == 40 + 200 + 4 * 16
    for at in range(len(whole)):
        for bit in range(8):
            changed = bytearray(whole)
            changed[at] ^= 1 << bit
            kind = VersionError if at == 7 else DamagedError
            with pytest.raises(kind):
                unsealed(bytes(changed))


@pytest.mark.parametrize("size", [0, 1, CHUNK, 3 * CHUNK, 3 * CHUNK + 9])
def test_a_seal_that_ends_anywhere_else_is_refused(small_chunks: None, size: int) -> None:
    whole = sealed(bytes(size))
    for length in range(len(whole)):
        with pytest.raises(DamagedError):
            unsealed(whole[:length])
    for more in (b"\0", bytes(TAG_BYTES), bytes(CHUNK + TAG_BYTES), whole[HEADER_BYTES:], whole):
        with pytest.raises(DamagedError):
            unsealed(whole + more)


def test_chunks_that_are_moved_repeated_or_dropped_are_refused(small_chunks: None) -> None:
    header, parts = chunks(sealed(b"".join(bytes([at]) * CHUNK for at in range(4))))
    a, b, c, d = parts
    assert unsealed(b"".join([header, a, b, c, d]))[-1] == 3
    for wrong in (
        [b, a, c, d],
        [a, a, b, c, d],
        [a, c, d],
        [b, c, d],
        [a, b, d, c],
        [d],
        [a, b, c],
        [a, b, c, c],
    ):
        with pytest.raises(DamagedError):
            unsealed(b"".join([header, *wrong]))


def test_chunks_of_another_stream_with_the_same_key_are_refused(small_chunks: None) -> None:
    (header, one), (_, other) = chunks(sealed(bytes(4 * CHUNK))), chunks(sealed(bytes(4 * CHUNK)))
    with pytest.raises(DamagedError):
        unsealed(b"".join([header, one[0], other[1], *one[2:]]))
    with pytest.raises(DamagedError, match="the key is another, or it is damaged"):
        unsealed(b"".join([header, *other]))


def test_nothing_of_a_chunk_is_given_out_before_it_is_known_to_be_right(small_chunks: None) -> None:
    whole = bytearray(sealed(bytes(range(3 * CHUNK))))
    whole[-1] ^= 1
    reader = sealed_module.Unsealer(io.BytesIO(whole), KEY)
    assert reader.read(2 * CHUNK) == bytes(range(2 * CHUNK))
    with pytest.raises(DamagedError, match="it is damaged, or not whole"):
        reader.read(1)


def test_an_empty_chunk_at_the_end_of_others_is_refused(small_chunks: None) -> None:
    """Else there were two seals of one content; only whoever has the key can make it."""
    header, parts = chunks(sealed(bytes(CHUNK)))
    writer = sealed_module._Chunks(KEY, header[-32:])
    data = header + writer.seal(bytes(CHUNK), False) + writer.seal(b"", True)
    assert len(parts) == 1
    with pytest.raises(DamagedError, match="it ends with an empty chunk"):
        unsealed(data)


def test_another_key_opens_nothing() -> None:
    with pytest.raises(DamagedError, match="the key is another, or it is damaged"):
        unsealed(sealed(b"words"), SealKey(bytes(32)))


@pytest.mark.parametrize("data", [b"", b"SATSEAL", b"<?xml version='1.0'?>" * 9, b"SATCENC\1" + bytes(99)])
def test_what_is_no_seal_is_named_so(receive: Callable[[bytes], str], data: bytes) -> None:
    assert receive(data) == "it is no sealed session"


def test_a_damaged_seal_leaves_nothing(
    source: LocalStore, manifest: Manifest, receive: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed_module, "CHUNK_BYTES", 1024)
    whole = sealed(bundle_of(source, manifest))
    assert len(whole) > 8 * 1024
    for at in range(0, len(whole), len(whole) // 30):
        changed = bytearray(whole)
        changed[at] ^= 1 << at % 8
        receive(bytes(changed))
        receive(whole[:at])


# Bundles


def test_a_bundle_that_ends_anywhere_is_refused(
    source: LocalStore, manifest: Manifest, receive: Callable[[bytes], str]
) -> None:
    """By whoever has the key, so that the seal is whole."""
    whole = bundle_of(source, manifest)
    for length in (0, 1, 511, 512, 513, len(whole) // 2, len(whole) - 1024, len(whole) - 1):
        receive(sealed(whole[:length]))


WHERE_MANIFEST_SHOULD_BE = [
    (member("../manifest"), "it has '../manifest' where manifest should be"),
    (member("/manifest"), "it has '/manifest' where manifest should be"),
    (member("./manifest"), "it has './manifest' where manifest should be"),
    (member("manifest\x1b[2J"), r"it has 'manifest\x1b[2J' where manifest should be"),
    (member("blocks/" + "0" * 64), f"it has 'blocks/{'0' * 64}' where manifest should be"),
    (member("x" * 99), f"it has '{'x' * 80}' where manifest should be"),
    *(
        (member("manifest", b"", type_, linkname="/etc/passwd"), "it has 'manifest' where manifest should be")
        for type_ in (
            tarfile.SYMTYPE,
            tarfile.LNKTYPE,
            tarfile.DIRTYPE,
            tarfile.FIFOTYPE,
            tarfile.CHRTYPE,
            tarfile.XHDTYPE,
            tarfile.XGLTYPE,
            tarfile.GNUTYPE_LONGNAME,
            tarfile.GNUTYPE_SPARSE,
            tarfile.CONTTYPE,
        )
    ),
    (member("manifest", size=8 << 20 | 1), "its manifest has 8388609 bytes instead of at most 8388608"),
    (member("manifest", size=7), "its manifest is not whole"),
    (member("manifest", bytes(9)), "manifest 3e7077fd2f66 is damaged: its compressed frame is broken"),
]


@pytest.mark.parametrize(("first", "message"), WHERE_MANIFEST_SHOULD_BE)
def test_a_bundle_begins_with_a_manifest(
    receive: Callable[[bytes], str], first: Member, message: str
) -> None:
    assert receive(sealed(tar([first], end=b""))) == message


@pytest.mark.parametrize("format_", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_extended_headers_are_not_acted_upon(receive: Callable[[bytes], str], format_: int) -> None:
    name = "manifest" + "/../x" * 60
    assert "where manifest should be" in receive(sealed(tar([member(name)], format_)))


def test_a_size_that_is_negative_is_refused(receive: Callable[[bytes], str]) -> None:
    data = tar([member("manifest", size=-512)], tarfile.GNU_FORMAT)
    assert receive(sealed(data)) == "its manifest has -512 bytes instead of at most 8388608"


def test_a_tar_with_a_wrong_checksum_is_none(receive: Callable[[bytes], str]) -> None:
    data = bytearray(tar([member("manifest")]))
    data[148] ^= 1
    assert receive(sealed(bytes(data))) == "it ends, or is no tar, where manifest should be"


def swapped(parts: list[Member]) -> list[Member]:
    return [parts[0], parts[2], parts[1], parts[3]]


def linked(parts: list[Member]) -> list[Member]:
    parts[1][0].type, parts[1][0].linkname = tarfile.SYMTYPE, "/etc/passwd"
    return parts


def renamed(parts: list[Member]) -> list[Member]:
    parts[1][0].name = parts[1][0].name.upper()
    return parts


def resized(parts: list[Member]) -> list[Member]:
    info, data = parts[1]
    return [parts[0], member(info.name, data + b"x"), *parts[2:]]


def altered(parts: list[Member]) -> list[Member]:
    info, data = parts[1]
    return [parts[0], (info, bytes([data[0] ^ 1]) + data[1:]), *parts[2:]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda parts: parts[:2] + parts[1:], "it has 'blocks/{0}' where blocks/{1:.12} should be"),
        (swapped, "it has 'blocks/{1}' where blocks/{0:.12} should be"),
        (lambda parts: parts[:1] + parts[2:], "it has 'blocks/{1}' where blocks/{0:.12} should be"),
        (lambda parts: parts[:3], "it ends, or is no tar, where blocks/{2:.12} should be"),
        (lambda parts: parts[:1] * 2 + parts[1:], "it has 'manifest' where blocks/{0:.12} should be"),
        (lambda parts: [*parts, parts[3]], "something follows its last block"),
        (lambda parts: [*parts, member("../x")], "something follows its last block"),
        (linked, "it has 'blocks/{0}' where blocks/{0:.12} should be"),
        (renamed, None),
        (resized, None),
        (altered, "block {0:.12} is damaged: its SHA-256 is another"),
    ],
)
def test_a_bundle_holds_what_its_manifest_lists_and_nothing_else(
    source: LocalStore,
    manifest: Manifest,
    receive: Callable[[bytes], str],
    change: Callable[[list[Member]], list[Member]],
    message: str | None,
) -> None:
    names = [ref.sha256 for ref in (*manifest.blocks, manifest.tail) if ref]
    found = receive(sealed(tar(change(members(source, manifest)))))
    if message is None:
        assert found.startswith(("it has 'BLOCKS/", "its blocks/"))
    else:
        assert found == message.format(*names)


def test_what_fills_up_a_bundle_is_zeros(
    source: LocalStore, manifest: Manifest, receive: Callable[[bytes], str]
) -> None:
    parts = members(source, manifest)
    whole = tar(parts)
    end = 512 + len(parts[0][1])
    assert end % 512
    assert receive(sealed(whole[:end] + b"x" + whole[end + 1 :])) == "its manifest is not whole"
    assert receive(sealed(whole + b"x")) == "something follows its last block"
    assert receive(sealed(tar(parts, end=bytes(1023)))) == "it ends too early"


def with_manifest(source: LocalStore, manifest: Manifest, **changes: object) -> bytes:
    changed = Manifest.model_construct(**(dict(manifest) | changes))
    return sealed(tar([member("manifest", encode_manifest(changed)), *members(source, manifest)[1:]]))


def test_a_manifest_may_not_list_a_block_twice(
    source: LocalStore, manifest: Manifest, receive: Callable[[bytes], str]
) -> None:
    first, second = manifest.blocks
    again = second.model_copy(update={"sha256": first.sha256, "stored_bytes": first.stored_bytes})
    found = receive(with_manifest(source, manifest, blocks=(first, again)))
    assert found == f"its block {first.sha256[:12]} is said to be two of one context"


def test_sizes_are_bounded_before_anything_is_read(
    source: LocalStore, manifest: Manifest, receive: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = manifest.blocks
    huge = first.model_copy(update={"stored_bytes": 1 << 40})
    found = receive(with_manifest(source, manifest, blocks=(huge, second)))
    assert found == f"its block {first.sha256[:12]} is said to have 1099511627776 bytes"
    monkeypatch.setattr(bundle, "MAX_BYTES", 1000)
    assert receive(with_manifest(source, manifest)).startswith("it is said to take ")


def test_a_block_of_another_session_is_refused(
    source: LocalStore, manifest: Manifest, receive: Callable[[bytes], str]
) -> None:
    first, second = manifest.blocks
    other = stored(source, "other", first_token=9).blocks[1]
    named = second.model_copy(update={"sha256": other.sha256, "stored_bytes": other.stored_bytes})
    changed = manifest.model_copy(update={"blocks": (first, named)})
    found = receive(sealed(tar(members(source, changed))))
    assert found == f"block {other.sha256[:12]} belongs to another context"


def test_a_tail_of_another_session_is_refused(
    source: LocalStore, manifest: Manifest, receive: Callable[[bytes], str]
) -> None:
    other = stored(source, "other", first_token=9).tail
    assert other
    changed = manifest.model_copy(update={"tail": other})
    found = receive(sealed(tar(members(source, changed))))
    assert found == f"tail {other.sha256[:12]} belongs to another context"


def test_a_session_of_another_version_is_not_called_damaged(
    source: LocalStore, manifest: Manifest, receive: Callable[[bytes], str]
) -> None:
    found = receive(with_manifest(source, manifest, format_version=2))
    assert found.endswith("cannot be read: it was saved by another version of Satchel (format 2, not 1)")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"model_name": "m" * 257}, "its model's name has 257 characters, and 256 can be"),
        ({"profile_name": "p\x1b[2J"}, "its KV profile's name is not a printable line"),
    ],
)
def test_labels_are_short_lines(
    source: LocalStore, receive: Callable[[bytes], str], labels: dict[str, str], message: str
) -> None:
    assert receive(sealed(bundle_of(source, stored(source, **labels)))) == message


def test_a_session_that_the_disk_has_no_room_for_is_refused(
    source: LocalStore, manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = sealed_file(tmp_path / "file", bundle_of(source, manifest))
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(SatchelError, match=r"it takes 7\.0 KB, and there is room for 1\.0 KB of") as caught:
        receive_session(LocalStore(tmp_path / "other"), Origin(str(file), False, KEY), KEY)
    assert caught.value.exit_code == 1
    assert not (tmp_path / "other").exists()
