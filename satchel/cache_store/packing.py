"""Arrays as an npz (an uncompressed zip of .npy members) and back. Knows nothing of what the arrays mean.

`np.load(io.BytesIO(data), allow_pickle=False)` reads what is written here. Our own reader is stricter and
takes nothing from the file on trust: the caller says which members come, in which order, of which type and
shape, and every header is compared with the one expected. So there is no object array, no path, no
duplicate and no size to be believed, and an array is a view of the bytes that are already in memory.
"""

from __future__ import annotations

import io
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from satchel.cache_store.record import Record
from satchel.errors import DamagedError

ALIGNMENT = 64  # bytes; array data starts at a multiple of it, so that views can be used as they are

DTypeName = Literal["uint8", "uint16", "uint32", "int32", "float16", "float32"]
DTYPES: dict[str, np.dtype] = {
    name: np.dtype(name).newbyteorder("<")
    for name in ("uint8", "uint16", "uint32", "int32", "float16", "float32")
}

# A float's high byte (sign, exponent) compresses, its low byte is noise. Interleaved, zstd cannot tell them
# apart; as two planes it can. Measured with zstd 3, stored/raw size, interleaved -> planes: float16 values
# .921 -> .855, bfloat16 values (uint16) .781 -> .718, float16 scales .877 -> .769, float32 .928 -> .860.
PLANAR = frozenset({"uint16", "float16", "float32"})

# Words are spread as sextets only where that takes their entropy below this part of what it is as bytes.
# Triples of words at even distances stand for the array: 12 KB tell the entropy to 0.3 %.
SEXTETS_GAIN = 0.99
SAMPLE_TRIPLES = 1024

# numpy multiplies the dimensions of an array without elements too, leaving zeros out, and refuses what does
# not fit 63 bits.
MAX_SHAPE_BYTES = 1 << 62

# APPNOTE.TXT 4.3.7, 4.3.12 and 4.3.16
_ZIP_LOCAL_HEADER = struct.Struct("<4sHHHHHLLLHH")
_ZIP_ENTRY = struct.Struct("<4sHHHHHHLLLHHHHHLL")
_ZIP_END = struct.Struct("<4sHHHHLLH")
_ZIP_STORED = 0
# Version 2.0, no flags, dated 1 January 1980: the same content is the same block.
_ZIP_FIXED = (20, 0, _ZIP_STORED, 0, 1 << 5 | 1)
_ZIP_MADE_BY = 3 << 8 | 20  # Unix
_ZIP_MODE = 0o600 << 16
_ZIP_PADDING_ID = 0xD935  # the extra field that Android's zipalign pads with
_NPY_MAGIC = b"\x93NUMPY\x01\x00"


class ArraySpec(Record):
    """What the meta JSON says about one array: enough to check the member before touching its data.

    An array is stored as it is; as `planes`, uint8 (itemsize, size): byte 0 of every element, then byte 1,
    and so on; or as `sextets`, uint8 (bytes / 3, 4): each the next 6 bits of the little-endian bit stream.

    Sextets are for packed 3-bit codes. zstd's Huffman coder sees bytes, and does best where each holds whole
    codes. At 2, 4 and 8 bits they do so already; 3-bit codes cross bytes, and as sextets lie two a byte. The
    keys of one block (256 tokens of SmolLM2-135M), zstd 3, stored bytes / zero-order entropy of the codes:

        bits                                    2       3       4       8
        as they are packed                  1.007   1.059   1.005   1.006
        planes of the words' bytes          1.007   1.059   1.005   1.006
        planes of every third byte              -   1.014       -       -
        one code a byte                     1.263   1.216   1.093   1.006
        whole codes a byte                  1.007   1.006   1.005   1.006
        the same, each channel's in turn    0.981   0.994   0.996   1.006

    One code a byte makes zstd find matches that cost more than they save. The last row gains on keys and
    loses 1.0 to 1.6 % on values: equal tokens have equal values in the first layer, which zstd finds as the
    codes are.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}$")]
    dtype: DTypeName
    shape: Annotated[tuple[Annotated[int, Field(ge=0, lt=1 << 40)], ...], Field(max_length=8, strict=False)]
    planes: bool = False
    sextets: bool = False

    @model_validator(mode="after")
    def _countable(self) -> Self:
        if math.prod(max(size, 1) for size in self.shape) * DTYPES[self.dtype].itemsize >= MAX_SHAPE_BYTES:
            raise ValueError("its shape is beyond what an array can have")
        return self

    @model_validator(mode="after")
    def _one_layout(self) -> Self:
        if self.sextets and (self.planes or self.dtype != "uint32" or math.prod(self.shape) % 3):
            raise ValueError("sextets are a layout of triples of uint32, and not of planes")
        return self

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize

    @property
    def member(self) -> tuple[np.dtype, tuple[int, ...]]:
        """Type and shape of the npz member that holds the array."""
        itemsize = DTYPES[self.dtype].itemsize
        if self.planes:
            return np.dtype(np.uint8), (itemsize, self.nbytes // itemsize)
        if self.sextets:
            return np.dtype(np.uint8), (self.nbytes // 3, 4)
        return DTYPES[self.dtype], self.shape


def pack_arrays(arrays: Mapping[str, np.ndarray]) -> tuple[bytes, list[ArraySpec]]:
    """The npz bytes of `arrays`, and the specs that `unpack_arrays` needs. Equal arrays give equal bytes.

    Raises:
        ValueError: a name or a dtype that the format has not (a fault of the caller).
    """
    # Put together here and not by `zipfile`, which copies each array three times.
    pieces: list[bytes | memoryview] = []
    directory, specs, offset = [], [], 0
    for name, array in arrays.items():
        spec = _spec(name, array)
        stored = _laid_out(array, spec)
        header, file_name = _npy_header(stored.dtype, stored.shape), f"{name}.npy".encode()
        content = stored.reshape(-1).view(np.uint8).data
        size, crc = len(header) + len(content), zlib.crc32(content, zlib.crc32(header))
        padding = _padding(offset + _ZIP_LOCAL_HEADER.size + len(file_name))
        of_file = (*_ZIP_FIXED, crc, size, size, len(file_name), len(padding))
        pieces += [_ZIP_LOCAL_HEADER.pack(b"PK\x03\x04", *of_file) + file_name + padding + header, content]
        entry = _ZIP_ENTRY.pack(b"PK\x01\x02", _ZIP_MADE_BY, *of_file, 0, 0, 0, _ZIP_MODE, offset)
        directory.append(entry + file_name + padding)
        offset += len(pieces[-2]) + len(content)
        specs.append(spec)
    entries, count = b"".join(directory), len(directory)
    end = _ZIP_END.pack(b"PK\x05\x06", 0, 0, count, count, len(entries), offset, 0)
    return b"".join([*pieces, entries, end]), specs


def _laid_out(array: np.ndarray, spec: ArraySpec) -> np.ndarray:
    """What is stored of `array`: the npz member that `spec` describes, contiguous."""
    stored = np.asarray(array, dtype=DTYPES[spec.dtype], order="C")
    if spec.planes:
        elements = stored.reshape(-1).view(np.uint8).reshape(stored.size, stored.itemsize)
        return np.ascontiguousarray(elements.T)  # (itemsize, size)
    return _spread_sextets(stored.reshape(-1).view(np.uint8)) if spec.sextets else stored


def unpack_arrays(data: bytes | memoryview, specs: Sequence[ArraySpec]) -> dict[str, np.ndarray]:
    """The arrays that `specs` describe, which must be the members of the npz, in that order.

    Arrays are read-only views of `data` unless they were stored as planes or sextets.

    Raises:
        DamagedError: the npz is not what the specs say.
    """
    declared_bytes = sum(spec.nbytes for spec in specs)
    if declared_bytes > len(data):
        raise DamagedError(f"its arrays are said to take {declared_bytes} bytes of {len(data)}")
    arrays: dict[str, np.ndarray] = {}
    view, offset = memoryview(data), 0
    for spec in specs:
        if spec.name in arrays:
            raise DamagedError(f"it has two arrays called {spec.name}")
        try:
            arrays[spec.name], offset = _read_member(view, offset, spec)
        except struct.error as err:
            raise DamagedError(f"it ends within array {spec.name}") from err
    if bytes(view[offset : offset + 4]) not in (b"PK\x01\x02", b"PK\x05\x06"):
        raise DamagedError("it holds an array that its description has not")
    return arrays


def breaks(data: bytes, specs: Sequence[ArraySpec]) -> list[int]:
    """Where in the npz bytes of another kind begin: at every array, and at every plane of one."""
    view, offset, found = memoryview(data), 0, []
    for spec in specs:
        start, offset = _find_member(view, offset, spec)
        planes = spec.member[1][0] if spec.planes else 1
        found += [start + spec.nbytes // planes * plane for plane in range(planes)]
    return found


def _find_member(view: memoryview, offset: int, spec: ArraySpec) -> tuple[int, int]:
    """Where the data of the array at `offset` starts, and where it ends."""
    signature, _, flags, method, _, _, _, stored, size, name_bytes, extra_bytes = (
        _ZIP_LOCAL_HEADER.unpack_from(view, offset)
    )
    offset += _ZIP_LOCAL_HEADER.size
    name = bytes(view[offset : offset + name_bytes])
    if signature != b"PK\x03\x04" or name != f"{spec.name}.npy".encode():
        raise DamagedError(f"array {spec.name} is not where it should be")
    if flags or method != _ZIP_STORED or stored != size:
        raise DamagedError(f"array {spec.name} is compressed or encrypted")
    offset += name_bytes + extra_bytes

    dtype, shape = spec.member
    (header_bytes,) = struct.unpack_from("<H", view, offset + len(_NPY_MAGIC))
    start = offset + len(_NPY_MAGIC) + 2 + header_bytes
    stop = start + math.prod(shape) * dtype.itemsize
    if stop - offset != size or stop > len(view):
        raise DamagedError(f"array {spec.name} has {size} bytes, which is not the size of its shape")
    # Compared, not parsed: numpy's reader evaluates the header's text and raises errors of many kinds.
    if _without_padding(view[offset:start]) != _without_padding(_npy_header(dtype, shape)):
        raise DamagedError(f"array {spec.name} is not {dtype.name} of shape {shape}")

    return start, stop


def _read_member(view: memoryview, offset: int, spec: ArraySpec) -> tuple[np.ndarray, int]:
    """The array at `offset`, and the offset after it."""
    start, stop = _find_member(view, offset, spec)
    dtype, shape = spec.member
    array = np.frombuffer(view[start:stop], dtype).reshape(shape)
    if spec.planes:
        array = _join_planes(array, spec)
    elif spec.sextets:
        array = _join_sextets(array, spec)
    return array, stop


def _spec(name: str, array: np.ndarray) -> ArraySpec:
    """The description of `array` in the layout that zstd makes least of."""
    dtype = array.dtype.name
    layout = {"planes": dtype in PLANAR, "sextets": dtype == "uint32" and _better_as_sextets(array)}
    return ArraySpec.model_validate({"name": name, "dtype": dtype, "shape": array.shape, **layout})


def _better_as_sextets(words: np.ndarray) -> bool:
    if not words.size or words.size % 3:
        return False
    triples = np.asarray(words, dtype=DTYPES["uint32"], order="C").reshape(-1, 3)
    sample = triples[:: -(-len(triples) // SAMPLE_TRIPLES)].reshape(-1).view(np.uint8)
    return entropy_bits(_spread_sextets(sample)) < SEXTETS_GAIN * entropy_bits(sample)


def entropy_bits(symbols: np.ndarray) -> float:
    """What an ideal coder that knows how often each uint8 occurs, and nothing else, needs for all of them."""
    counts = np.bincount(symbols.reshape(-1))
    counts = counts[counts > 0]
    return float((counts * np.log2(counts.sum() / counts)).sum())


def _spread_sextets(stream: np.ndarray) -> np.ndarray:
    """(n,) uint8, n a multiple of 3, to (n / 3, 4) uint8 below 64 that hold the same bits in turn."""
    first, second, third = (stream[index::3] for index in range(3))
    sextets = np.empty((first.size, 4), np.uint8)
    sextets[:, 0] = first & 0x3F
    sextets[:, 1] = first >> 6 | second << 2 & 0x3F
    sextets[:, 2] = second >> 4 | third << 4 & 0x3F
    sextets[:, 3] = third >> 2
    return sextets


def _join_sextets(sextets: np.ndarray, spec: ArraySpec) -> np.ndarray:
    if sextets.size and sextets.max() > 0x3F:
        raise DamagedError(f"array {spec.name} has more than six bits in a sextet")
    joined = np.empty((len(sextets), 3), np.uint8)
    joined[:, 0] = sextets[:, 0] | sextets[:, 1] << 6
    joined[:, 1] = sextets[:, 1] >> 2 | sextets[:, 2] << 4
    joined[:, 2] = sextets[:, 2] >> 4 | sextets[:, 3] << 2
    return joined.reshape(-1).view(DTYPES[spec.dtype]).reshape(spec.shape)


def _join_planes(planes: np.ndarray, spec: ArraySpec) -> np.ndarray:
    itemsize, count = planes.shape
    joined = np.empty((count, itemsize), np.uint8)
    for index, plane in enumerate(planes):  # eight times faster than one transposed copy
        joined[:, index] = plane
    return joined.reshape(-1).view(DTYPES[spec.dtype]).reshape(spec.shape)


@lru_cache(maxsize=1024)
def _npy_header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    fields = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, fields)
    return buffer.getvalue()


def _without_padding(header: bytes | memoryview) -> tuple[bytes, bytes]:
    """Magic and text of a .npy header. The spaces at its end vary with numpy's version."""
    header = bytes(header)
    return header[: len(_NPY_MAGIC)], header[len(_NPY_MAGIC) + 2 :].rstrip(b" \n")


def _padding(offset: int) -> bytes:
    """An extra field that makes the member's data, after `offset` and the field itself, start aligned."""
    length = -(offset + 4) % ALIGNMENT
    return struct.pack("<HH", _ZIP_PADDING_ID, length) + bytes(length)
