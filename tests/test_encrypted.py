"""Nobody without the key reads or alters an object, and its size tells little of what is in it."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from satchel.errors import DamagedError, NotFoundError, SatchelError, VersionError
from satchel.remotes import encrypted
from satchel.remotes.encrypted import EncryptedRemote, padded_bytes, seal, stored_bytes, unseal
from satchel.remotes.memory import MemoryRemote

GOLDEN = Path(__file__).parent / "golden" / "sync-1"
KEY = bytes(range(32))
NAME = "v1/blocks/" + "ab" * 32
DAMAGED = f"object {NAME} is damaged, or of another key"
# Of the golden object: what `Keys.of(RootKey(bytes(range(32))))` gives.
GOLDEN_KEY = bytes.fromhex("b3465e810114b0b88c6aa0273546af2c332a65145b85b7f1a463bd0e4ed25453")
GOLDEN_NAME = "v1/blocks/32ca9fb483b7572247a273a0a3dd85acf8cb7c3c1b692fc6c72923edc77c42a9"
GOLDEN_CONTENT = "A bag with a long strap. 书包。".encode()


def test_an_object_of_version_1_can_be_read_for_ever() -> None:
    data = (GOLDEN / "object").read_bytes()
    assert data[:8] == b"SATCENC\x01"
    assert len(data) == 1080
    assert unseal(GOLDEN_KEY, GOLDEN_NAME, data) == GOLDEN_CONTENT


def test_with_its_salt_the_object_comes_out_byte_for_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encrypted.secrets, "token_bytes", lambda count: bytes(range(100, 100 + count)))
    assert seal(GOLDEN_KEY, GOLDEN_NAME, GOLDEN_CONTENT) == (GOLDEN / "object").read_bytes()


@given(st.binary(max_size=5000), st.binary(min_size=32, max_size=32))
def test_content_comes_back(content: bytes, key: bytes) -> None:
    assert unseal(key, NAME, seal(key, NAME, content)) == content


@given(st.binary(max_size=5000))
def test_what_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(DamagedError):
        unseal(KEY, NAME, data)
    with pytest.raises(DamagedError):
        unseal(KEY, NAME, b"SATCENC\x01" + data)


def test_equal_contents_make_different_objects() -> None:
    one, other = seal(KEY, NAME, b"text"), seal(KEY, NAME, b"text")
    assert one[:8] == other[:8]
    assert one[8:40] != other[8:40]
    assert one[40:56] != other[40:56]


def test_nothing_of_the_content_is_in_the_object() -> None:
    canary = b"canary-0123456789"
    assert canary not in seal(KEY, NAME, canary * 10)


def test_each_flipped_bit_is_refused() -> None:
    data = seal(KEY, NAME, b"text")
    for place in range(len(data)):
        altered = bytearray(data)
        altered[place] ^= 1 << place % 8
        # The version stands in the eighth byte.
        with pytest.raises(VersionError if place == 7 else DamagedError):
            unseal(KEY, NAME, bytes(altered))


def test_each_truncation_and_a_byte_more_is_refused() -> None:
    data = seal(KEY, NAME, b"text")
    for size in range(len(data)):
        with pytest.raises(DamagedError):
            unseal(KEY, NAME, data[:size])
    with pytest.raises(DamagedError):
        unseal(KEY, NAME, data + b"\0")


def test_an_object_under_another_name_is_refused() -> None:
    data = seal(KEY, NAME, b"text")
    for name in ("v1/blocks/" + "ac" * 32, "v1/manifests/" + "ab" * 32):
        with pytest.raises(DamagedError, match=f"object {name} is damaged, or of another key"):
            unseal(KEY, name, data)


def test_another_key_is_refused() -> None:
    with pytest.raises(DamagedError, match=DAMAGED):
        unseal(bytes(32), NAME, seal(KEY, NAME, b"text"))


def test_a_later_version_is_named_and_not_taken_for_damage() -> None:
    data = bytearray(seal(KEY, NAME, b"text"))
    data[7] = 2
    with pytest.raises(VersionError, match=r"saved by another version of Satchel \(format 2, not 1\)"):
        unseal(KEY, NAME, bytes(data))


@pytest.mark.parametrize("claimed", [1024 - 8 + 1, 1 << 40, (1 << 64) - 1])
def test_a_length_beyond_the_object_is_refused_and_allocates_nothing(claimed: int) -> None:
    salt = bytes(32)
    plaintext = claimed.to_bytes(8, "little") + bytes(1016)
    ciphertext = encrypted._cipher(KEY, salt).encrypt(bytes(12), plaintext, encrypted._associated(NAME))
    tracemalloc.start()
    try:
        with pytest.raises(DamagedError):
            unseal(KEY, NAME, b"SATCENC\x01" + salt + ciphertext)
        assert tracemalloc.get_traced_memory()[1] < 64 << 10
    finally:
        tracemalloc.stop()


def test_more_than_can_be_encrypted_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encrypted, "MAX_CONTENT_BYTES", 3)
    with pytest.raises(SatchelError, match="an object of 4 bytes is more than can be encrypted"):
        seal(KEY, NAME, b"text")


@pytest.mark.parametrize(
    ("size", "padded"),
    [
        (0, 1024),
        (1024, 1024),
        (1025, 1088),  # exponent 10, so 4 bits of mantissa: steps of 64
        (1088, 1088),
        (1089, 1152),
        (2047, 2048),
        (2048, 2048),
        (2049, 2176),
        (65_536, 65_536),
        (65_537, 67_584),  # exponent 16, 5 bits: steps of 2048
        (1_000_000, 1_015_808),
        ((1 << 20) + 1, 1_081_344),
        (10_000_000, 10_223_616),
        (1 << 30, 1 << 30),
    ],
)
def test_padded_sizes(size: int, padded: int) -> None:
    assert padded_bytes(size) == padded


@given(st.integers(1025, 1 << 31))
def test_padding_is_small_and_leaves_few_sizes(size: int) -> None:
    padded = padded_bytes(size)
    assert size <= padded <= size * 17 / 16
    assert padded_bytes(padded) == padded
    if size >= 65_536:
        assert padded <= size * 33 / 32


def test_contents_of_one_bucket_have_one_size() -> None:
    # 8 bytes of length before the content; 40 of header and 16 of tag around it.
    assert {len(seal(KEY, NAME, bytes(size))) for size in (0, 1, 500, 1016)} == {1080}
    assert {len(seal(KEY, NAME, bytes(size))) for size in (1017, 1050, 1080)} == {1144}
    assert len(seal(KEY, NAME, bytes(1081))) == 1208


@given(st.integers(0, 20_000))
def test_the_size_of_an_object_is_known_beforehand(size: int) -> None:
    assert len(seal(KEY, NAME, bytes(size))) == stored_bytes(size)


def test_a_key_of_another_length_is_a_fault() -> None:
    with pytest.raises(ValueError, match="an object key has 32 bytes, not 16"):
        EncryptedRemote(MemoryRemote(), bytes(16))


def test_the_remote_beneath_holds_no_content() -> None:
    inner = MemoryRemote()
    remote = EncryptedRemote(inner, KEY)
    remote.put(NAME, b"canary-0123456789")
    assert b"canary" not in inner.get(NAME, 1 << 20)
    assert remote.get(NAME, 17) == b"canary-0123456789"


def test_what_is_larger_than_allowed_is_refused_though_the_padding_has_room() -> None:
    remote = EncryptedRemote(MemoryRemote(), KEY)
    remote.put(NAME, bytes(18))
    with pytest.raises(DamagedError, match=f"object {NAME} has 18 bytes where at most 17 are right"):
        remote.get(NAME, 17)
    assert remote.get(NAME, 18) == bytes(18)


def test_of_an_object_far_too_large_nothing_is_read() -> None:
    inner = MemoryRemote()
    inner.put(NAME, bytes(1081))
    with pytest.raises(DamagedError, match=f"object {NAME} has 1081 bytes where at most 1080 are right"):
        EncryptedRemote(inner, KEY).get(NAME, 1016)


def test_only_the_first_of_a_name_is_stored() -> None:
    remote = EncryptedRemote(MemoryRemote(), KEY)
    assert remote.put_if_absent(NAME, b"first")
    assert not remote.put_if_absent(NAME, b"second")
    assert remote.get(NAME, 100) == b"first"


def test_swapped_and_replayed_objects_are_refused() -> None:
    inner = MemoryRemote()
    remote = EncryptedRemote(inner, KEY)
    first, second = (
        "v1/heads/" + "a" * 64 + "/" + "0" * 15 + "1",
        "v1/heads/" + "a" * 64 + "/" + "0" * 15 + "2",
    )
    remote.put(first, b"old")
    remote.put(second, b"new")
    old, new = inner.get(first, 2000), inner.get(second, 2000)
    inner.put(second, old)
    inner.put(first, new)
    for name in (first, second):
        with pytest.raises(DamagedError, match=f"object {name} is damaged"):
            remote.get(name, 100)


def test_sizes_are_those_of_the_encrypted_objects() -> None:
    remote = EncryptedRemote(MemoryRemote(), KEY)
    remote.put(NAME, b"text")
    stat = remote.stat(NAME)
    assert stat is not None
    assert stat.size == 1080
    assert [(listed.name, listed.size) for listed in remote.list("v1/")] == [(NAME, 1080)]
    remote.delete(NAME)
    assert remote.stat(NAME) is None
    with pytest.raises(NotFoundError):
        remote.get(NAME, 100)


@pytest.mark.parametrize("name", ["", "/v1", "../key", "V1/key", "v1/\udcff"])
def test_what_is_no_name_is_a_fault(name: str) -> None:
    with pytest.raises(ValueError, match="no object's name"):
        EncryptedRemote(MemoryRemote(), KEY).put(name, b"")
