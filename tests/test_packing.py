"""Arrays come back from the npz exactly, and anyone with numpy can read it."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from satchel.cache_store.block import encode_object
from satchel.cache_store.packing import ALIGNMENT, ArraySpec, breaks, pack_arrays, unpack_arrays
from satchel.errors import DamagedError

DTYPES = ("uint8", "uint16", "uint32", "int32", "float16", "float32")
arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=7))
)
# Levels of N(0, 1) on a uniform grid, as a rotated vector's are: steps near those of least squared error
# (Max 1960, table II) at 2 to 4 bits, the whole range of 64 samples at 8.
STEPS = {2: 0.996, 3: 0.586, 4: 0.335, 8: 5 / 256}
names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,20}", fullmatch=True)


def gaussian_levels(bits: int, count: int, seed: int = 1) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal(count)
    return np.clip(np.floor(x / STEPS[bits]) + 2 ** (bits - 1), 0, 2**bits - 1).astype(np.uint8)


def packed(levels: np.ndarray, bits: int) -> np.ndarray:
    """Level i in bits [i * bits, (i + 1) * bits) of a little-endian stream, as uint32 words."""
    stream = np.unpackbits(levels[:, None], axis=1, bitorder="little")[:, :bits]
    return np.packbits(stream.reshape(-1), bitorder="little").view("<u4")


def entropy_bytes(levels: np.ndarray) -> float:
    share = np.bincount(levels) / levels.size
    share = share[share > 0]
    return float(-(share * np.log2(share)).sum()) * levels.size / 8


@given(st.dictionaries(names, arrays, max_size=6))
def test_arrays_come_back_bit_for_bit(given_arrays: dict[str, np.ndarray]) -> None:
    unpacked = unpack_arrays(*pack_arrays(given_arrays))
    assert list(unpacked) == list(given_arrays)
    for name, array in given_arrays.items():
        assert unpacked[name].dtype == array.dtype
        assert unpacked[name].shape == array.shape
        assert unpacked[name].tobytes() == array.tobytes()  # NaNs keep their bits too


def test_numpy_reads_what_is_written() -> None:
    codes = np.array([[1, 2], [3, 0xFFFFFFFF]], np.uint32)
    data, _ = pack_arrays({"g0.k.codes": codes, "scale": np.array([1.0, -2.0], np.float16)})
    with np.load(io.BytesIO(data), allow_pickle=False) as npz:
        assert npz["g0.k.codes"].tolist() == [[1, 2], [3, 0xFFFFFFFF]]
        # float16 1.0 is 0x3C00 and -2.0 is 0xC000: all low bytes, then all high bytes.
        assert npz["scale"].tolist() == [[0x00, 0x00], [0x3C, 0xC0]]


def test_only_16_and_32_bit_number_arrays_are_split_into_planes() -> None:
    _, specs = pack_arrays({dtype: np.zeros(3, dtype) for dtype in DTYPES})
    assert {spec.dtype: spec.planes for spec in specs} == {
        "uint8": False,
        "uint16": True,
        "uint32": False,
        "int32": False,
        "float16": True,
        "float32": True,
    }


@given(st.integers(1, 400), st.integers(0, 2**32), st.sampled_from([0.1, 0.5, 0.9]))
def test_words_come_back_from_sextets_bit_for_bit(triples: int, seed: int, constant: float) -> None:
    rng = np.random.default_rng(seed)
    sextets = np.where(rng.random(triples * 16) < constant, 35, rng.integers(0, 64, triples * 16))
    words = packed(sextets.astype(np.uint8), 6).reshape(triples, 3)
    data, (spec,) = pack_arrays({"codes": words})
    np.testing.assert_array_equal(unpack_arrays(data, [spec])["codes"], words, strict=True)


def test_three_bit_codes_are_stored_two_a_byte() -> None:
    words = np.array([0xE38C78E3, 0x78E38C78, 0x8C78E38C], np.uint32)  # 3, 4, 3, 4, 7, 0, 3, 4, four times
    data, (spec,) = pack_arrays({"codes": words})
    assert spec.sextets
    with np.load(io.BytesIO(data), allow_pickle=False) as npz:
        assert npz["codes"].tolist() == [[0o43, 0o43, 0o07, 0o43]] * 4
    assert unpack_arrays(data, [spec])["codes"].tolist() == [0xE38C78E3, 0x78E38C78, 0x8C78E38C]


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_only_codes_that_cross_bytes_are_spread(bits: int) -> None:
    words = packed(gaussian_levels(bits, 96 * 256), bits)
    _, (spec,) = pack_arrays({"codes": words})
    assert spec.sextets == (bits == 3)


@pytest.mark.parametrize("words", [[], [0] * 9, [7] * 9, list(range(256)), list(range(300))])
def test_tokens_and_empty_arrays_are_not_spread(words: list[int]) -> None:
    _, (spec,) = pack_arrays({"tokens": np.array(words, np.uint32)})
    assert not spec.sextets


@pytest.mark.parametrize("layers", [2, 24])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_a_block_is_stored_within_three_percent_of_the_entropy_of_its_codes(bits: int, layers: int) -> None:
    levels = gaussian_levels(bits, layers * 3 * 256 * 64)  # layers, KV heads, tokens, head_dim
    words = packed(levels, bits).reshape(layers, 3, 256, -1)
    scales = np.random.default_rng(2).normal(1, 0.1, (layers, 3, 256, 1)).astype(np.float16)
    alone = len(encode_object("block", {}, {"scale": scales}))
    stored = len(encode_object("block", {}, {"codes": words, "scale": scales}))
    assert stored <= 1.03 * (entropy_bytes(levels) + alone)


def test_arrays_and_their_planes_are_where_other_bytes_begin() -> None:
    data, specs = pack_arrays({"a": np.zeros(5, np.uint8), "b": np.array([1.0, 2.0], np.float16)})
    a, low, high = breaks(data, specs)
    assert a == 128 + 64  # the zip's header and numpy's
    assert (data[low:high], data[high : high + 2]) == (b"\x00\x00", b"\x3c\x40")


def test_a_description_without_sextets_is_read_as_before() -> None:
    codes = np.arange(6, dtype=np.uint32)
    data, _ = pack_arrays({"codes": codes})
    old = ArraySpec.parse(b'{"name": "codes", "dtype": "uint32", "shape": [6], "planes": false}')
    assert unpack_arrays(data, [old])["codes"].tolist() == [0, 1, 2, 3, 4, 5]


def test_codes_are_aligned_views_of_the_bytes_in_memory() -> None:
    data, specs = pack_arrays({"a": np.arange(5, dtype=np.uint8), "b.codes": np.arange(9, dtype=np.uint32)})
    whole = np.frombuffer(data, np.uint8)
    codes = unpack_arrays(data, specs)["b.codes"]
    offset = codes.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    assert np.shares_memory(codes, whole)
    assert offset % ALIGNMENT == 0


def test_equal_arrays_give_equal_bytes_in_any_memory_layout() -> None:
    array = np.arange(12, dtype=np.uint32).reshape(3, 4)
    big_endian_fortran = np.asfortranarray(array.astype(">u4"))
    assert pack_arrays({"a": array}) == pack_arrays({"a": big_endian_fortran})


@pytest.mark.parametrize("dtype", ["float64", "int64", "bool", "object", "complex64", "<U3"])
def test_other_dtypes_are_refused(dtype: str) -> None:
    with pytest.raises(ValueError, match="dtype"):
        pack_arrays({"a": np.zeros(2, dtype)})


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a\\b", ".hidden", "a" * 65, "ä"])
def test_names_that_are_not_plain_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        pack_arrays({name: np.zeros(2, np.uint8)})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "other"}, "not where it should be"),
        ({"dtype": "int32"}, "not int32"),
        ({"shape": (3, 2)}, "not uint32 of shape"),
        ({"shape": (2, 2)}, "not the size of its shape"),
        ({"shape": (1 << 39, 1 << 20)}, "said to take"),
        ({"planes": True}, "not uint8"),
    ],
)
def test_a_description_that_does_not_fit_is_damage(changes: dict[str, object], message: str) -> None:
    data, (spec,) = pack_arrays({"codes": np.arange(6, dtype=np.uint32).reshape(2, 3)})
    wrong = ArraySpec.model_validate(spec.model_dump() | changes)
    with pytest.raises(DamagedError, match=message):
        unpack_arrays(data, [wrong])


@pytest.mark.parametrize("shape", [[1 << 30, 1 << 30], [0, 1 << 39, 1 << 39], [1 << 39, 0, 1 << 21]])
def test_a_shape_that_no_array_can_have_is_damage(shape: list[int]) -> None:
    with pytest.raises(DamagedError, match="its shape is beyond what an array can have"):
        ArraySpec.parse(f'{{"name": "a", "dtype": "uint32", "shape": {shape}}}'.encode())
    with pytest.raises(ValueError, match=r"array is too big|Maximum allowed|dimension"):
        np.zeros((0, 1 << 39, 1 << 39), np.uint32)


def test_missing_additional_and_repeated_arrays_are_damage() -> None:
    data, (a, b) = pack_arrays({"a": np.zeros(2, np.uint32), "b": np.zeros(2, np.uint32)})
    with pytest.raises(DamagedError, match="its description has not"):
        unpack_arrays(data, [a])
    with pytest.raises(DamagedError, match="not where it should be"):
        unpack_arrays(data, [b, a])
    with pytest.raises(DamagedError, match="two arrays called a"):
        unpack_arrays(data, [a, a])
    with pytest.raises(DamagedError, match="array c is not where it should be"):
        unpack_arrays(data, [a, b, ArraySpec(name="c", dtype="uint8", shape=(1,))])


def test_a_sextet_of_seven_bits_is_damage() -> None:
    data, (spec,) = pack_arrays({"codes": np.array([0xE38C78E3, 0x78E38C78, 0x8C78E38C], np.uint32)})
    assert spec.sextets
    position = data.index(bytes([0o43, 0o43, 0o07, 0o43]))
    for wrong in (0x40, 0x80, 0xFF):
        changed = data[:position] + bytes([wrong]) + data[position + 1 :]
        with pytest.raises(DamagedError, match="array codes has more than six bits in a sextet"):
            unpack_arrays(changed, [spec])


def test_words_that_are_not_sextets_are_not_read_as_such() -> None:
    data, (plain,) = pack_arrays({"codes": np.arange(6, dtype=np.uint32)})
    with pytest.raises(DamagedError, match="not the size of its shape"):
        unpack_arrays(data, [plain.model_copy(update={"sextets": True})])
    data, (spec,) = pack_arrays({"codes": np.array([0xE38C78E3, 0x78E38C78, 0x8C78E38C], np.uint32)})
    with pytest.raises(DamagedError, match="not the size of its shape"):
        unpack_arrays(data, [spec.model_copy(update={"sextets": False})])


@pytest.mark.parametrize(
    "wrong", ['"shape": [4]', '"shape": [3], "planes": true', '"shape": [3], "dtype": "int32"']
)
def test_sextets_of_anything_but_triples_of_words_are_damage(wrong: str) -> None:
    with pytest.raises(DamagedError, match="sextets are a layout of triples of uint32"):
        ArraySpec.parse(f'{{"name": "a", "dtype": "uint32", "sextets": true, {wrong}}}'.encode())
