"""The container of blocks and tails: exact, deterministic, and readable for ever."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from satchel.cache_store import frame
from satchel.cache_store.block import decode_object, encode_object
from satchel.errors import DamagedError, SatchelError

GOLDEN = Path(__file__).parent / "golden"
META = {"chain_key": "ab" * 32, "engine": {"bits": [4, 4], "note": "ключ 键"}}
META_2 = {"chain_key": "cd" * 32, "engine": {"groups": [[0, 2], [1]], "layers": {}, "dtypes": {}}}


def golden_arrays() -> dict[str, np.ndarray]:
    return {
        "tokens": np.array([1, 17, 49151], np.uint32),
        "g0.k.codes": np.array([[0x76543210, 0xFEDCBA98], [0, 0xFFFFFFFF]], np.uint32),
        "g0.k.scale": np.array([[0.5], [-1.25]], np.float16),
        "g0.v.scale": np.array([0x3F80, 0xC000], np.uint16),
        "state": np.array([1e-8, -3.5], np.float32),
        "empty": np.zeros((0, 4), np.int32),
    }


def golden_arrays_2() -> dict[str, np.ndarray]:
    """With 3-bit codes, which are stored as sextets, and a grid of scale and middle in 16 bits."""
    return {
        "tokens": np.array([1, 17, 49151], np.uint32),
        "g0.k.codes": np.array([[[[0xE38C78E3, 0x78E38C78, 0x8C78E38C]]]], np.uint32),
        "g0.k.grid": np.array([[[[0.125]]], [[[-2.5]]]], np.float16),
        "g0.k.mean": np.array([1.5, -0.0625], np.float32),
        "g0.k.turns": np.array([0, 1], np.uint8),
        "g1.k.codes": np.array([[0x76543210, 0xFEDCBA98]], np.uint32),
    }


@pytest.mark.parametrize(("meta", "given"), [(META, golden_arrays()), (META_2, golden_arrays_2())])
def test_an_object_comes_back_exactly(meta: dict[str, object], given: dict[str, np.ndarray]) -> None:
    found, arrays = decode_object(encode_object("block", meta, given), "block")
    assert found == meta
    assert list(arrays) == list(given)
    for name, array in given.items():
        np.testing.assert_array_equal(arrays[name], array, strict=True)


def test_the_golden_object_decodes_for_ever() -> None:
    data = (GOLDEN / "block-1.zst").read_bytes()
    assert frame.object_id(data) == hashlib.sha256(data).hexdigest()
    meta, arrays = decode_object(data, "block")
    assert meta == {"chain_key": "ab" * 32, "engine": {"bits": [4, 4], "note": "ключ 键"}}
    assert {name: (array.dtype.name, array.tolist()) for name, array in arrays.items()} == {
        "tokens": ("uint32", [1, 17, 49151]),
        "g0.k.codes": ("uint32", [[0x76543210, 0xFEDCBA98], [0, 0xFFFFFFFF]]),
        "g0.k.scale": ("float16", [[0.5], [-1.25]]),
        "g0.v.scale": ("uint16", [0x3F80, 0xC000]),
        "state": ("float32", [float(np.float32(1e-8)), -3.5]),
        "empty": ("int32", []),
    }
    assert arrays["empty"].shape == (0, 4)


def test_the_golden_object_with_sextets_decodes_for_ever() -> None:
    data = (GOLDEN / "block-2.zst").read_bytes()
    payload = zstandard.ZstdDecompressor().decompress(data)
    assert b'"name":"g0.k.codes","planes":false,"sextets":true' in payload
    assert bytes([0o43, 0o43, 0o07, 0o43]) * 4 in payload  # 3, 4, 3, 4, 7, 0, 3, 4, four times
    meta, arrays = decode_object(data, "block")
    assert meta == {"chain_key": "cd" * 32, "engine": {"groups": [[0, 2], [1]], "layers": {}, "dtypes": {}}}
    assert {name: (array.dtype.name, array.tolist()) for name, array in arrays.items()} == {
        "tokens": ("uint32", [1, 17, 49151]),
        "g0.k.codes": ("uint32", [[[[0xE38C78E3, 0x78E38C78, 0x8C78E38C]]]]),
        "g0.k.grid": ("float16", [[[[0.125]]], [[[-2.5]]]]),
        "g0.k.mean": ("float32", [1.5, -0.0625]),
        "g0.k.turns": ("uint8", [0, 1]),
        "g1.k.codes": ("uint32", [[0x76543210, 0xFEDCBA98]]),
    }


def test_the_layout_inside_the_frame() -> None:
    payload = zstandard.ZstdDecompressor().decompress(encode_object("tail", {"a": 1}, {}))
    envelope = b'{"arrays":[],"kind":"tail","meta":{"a":1}}'
    padded = envelope.ljust(52)  # the npz starts at 64 bytes
    assert payload[:12] == b"SATCHEL\x01" + (52).to_bytes(4, "little")
    assert payload[12:64] == padded
    assert payload[64:68] == b"PK\x05\x06"


def test_equal_content_has_the_same_name() -> None:
    first = encode_object("block", {"a": 1, "b": 2}, golden_arrays())
    again = encode_object("block", {"b": 2, "a": 1}, golden_arrays())
    assert frame.object_id(first) == frame.object_id(again)


def test_a_block_is_not_a_tail() -> None:
    data = encode_object("block", {}, {})
    with pytest.raises(DamagedError, match=rf"^tail {frame.object_id(data)[:12]} is damaged: it is a block$"):
        decode_object(data, "tail")


def test_a_newer_format_is_named() -> None:
    payload = bytearray(zstandard.ZstdDecompressor().decompress(encode_object("block", {}, {})))
    payload[7] = 2
    with pytest.raises(DamagedError, match="it has format 2 and this Satchel reads 1"):
        decode_object(zstandard.compress(bytes(payload)), "block")


def test_what_could_not_be_read_again_is_not_written() -> None:
    zeros = np.zeros((70 << 20,), np.uint8)  # beyond the free 64 MiB, and 2 KB when compressed
    with pytest.raises(SatchelError, match="beyond what the store takes"):
        encode_object("tail", {}, {"zeros": zeros})
    with pytest.raises(SatchelError, match="beyond what the store takes"):
        encode_object("tail", {"text": "x" * (5 << 20)}, {})


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text() | st.none(), max_size=4))
def test_any_json_meta_comes_back(meta: dict[str, object]) -> None:
    assert decode_object(encode_object("block", meta, {}), "block")[0] == meta
