"""Arrays come back from the npz exactly, and anyone with numpy can read it."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from satchel.cache_store.packing import ALIGNMENT, ArraySpec, pack_arrays, unpack_arrays
from satchel.errors import DamagedError

DTYPES = ("uint8", "uint16", "uint32", "int32", "float16", "float32")
arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=7))
)
names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,20}", fullmatch=True)


@given(st.dictionaries(names, arrays, max_size=6))
def test_arrays_come_back_bit_for_bit(packed: dict[str, np.ndarray]) -> None:
    unpacked = unpack_arrays(*pack_arrays(packed))
    assert list(unpacked) == list(packed)
    for name, array in packed.items():
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
        ({"shape": (1 << 39, 1 << 39)}, "said to take"),
        ({"planes": True}, "not uint8"),
    ],
)
def test_a_description_that_does_not_fit_is_damage(changes: dict[str, object], message: str) -> None:
    data, (spec,) = pack_arrays({"codes": np.arange(6, dtype=np.uint32).reshape(2, 3)})
    wrong = ArraySpec.model_validate(spec.model_dump() | changes)
    with pytest.raises(DamagedError, match=message):
        unpack_arrays(data, [wrong])


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
