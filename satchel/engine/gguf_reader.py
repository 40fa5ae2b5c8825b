"""Reads a GGUF file's metadata and tensors. Knows nothing of models or of MLX.

The `gguf` package has a reader too, but it trusts the lengths written in a file (a damaged one keeps it
busy without end) and takes ten times as long over a large vocabulary. Its tables of types are used here.
Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from satchel.engine.model_names import NAMES
from satchel.errors import DamagedError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
MAX_ITEMS = 1 << 24  # of a list: a vocabulary, its scores, its merges
STRING, ARRAY = 8, 9
SCALARS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?"} | {
    10: "<u8",
    11: "<i8",
    12: "<f8",
}


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """`shape` is outermost axis first; `data` is uint8 (rows, bytes of a row), a view of the file."""

    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    data: np.ndarray


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """Everything in a file; tensor data stay on disk until they are touched."""

    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensor]


def read_gguf(path: Path) -> GGUFFile:
    """Parse the file at `path`; every length in it is checked against the file's size before it is used.

    Raises:
        DamagedError: not a GGUF file of a known version, cut short, or contradicting itself.
    """
    with path.open("rb") as file:
        if file.read(4) != MAGIC:
            raise DamagedError(f"{path.name} is not a GGUF file", NAMES)
        data = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    try:
        return _Cursor(data).read_file()
    except (ValueError, KeyError, struct.error) as err:  # UnicodeDecodeError is a ValueError
        raise DamagedError(f"{path.name} is a damaged or cut-short GGUF file ({err})") from err


class _Cursor:
    """A position in the bytes; every read checks that the bytes are there."""

    def __init__(self, data: np.ndarray) -> None:
        self.data = data
        self.offset = len(MAGIC)

    def read_file(self) -> GGUFFile:
        version, n_tensors, n_fields = self.unpack("<IQQ")
        if version not in VERSIONS:
            raise ValueError(f"version {version}, known are {VERSIONS}")
        metadata = {}
        for _ in range(n_fields):
            key = self.string()
            (kind,) = self.unpack("<I")
            metadata[key] = self.value(kind)
        infos = [self.tensor_info() for _ in range(n_tensors)]
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"alignment {alignment!r}")
        start = -(-self.offset // alignment) * alignment
        return GGUFFile(metadata, {info[0]: self.tensor(start, *info) for info in infos})

    def take(self, n_bytes: int) -> np.ndarray:
        end = self.offset + n_bytes
        if end > len(self.data):
            raise ValueError(f"it ends before byte {end}")
        taken = self.data[self.offset : end]
        self.offset = end
        return taken

    def unpack(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack(layout, self.take(struct.calcsize(layout)).tobytes())

    def string(self) -> str:
        (length,) = self.unpack("<Q")
        return self.take(length).tobytes().decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            return self.scalars(kind, 1)[0].item()
        item_kind, length = self.unpack("<IQ")
        if length > MAX_ITEMS:
            raise ValueError(f"a list of {length} items")
        if item_kind == STRING:
            return [self.string() for _ in range(length)]
        return self.scalars(item_kind, length).tolist()

    def scalars(self, kind: int, count: int) -> np.ndarray:
        if kind not in SCALARS:
            raise ValueError(f"value type {kind}")
        dtype = np.dtype(SCALARS[kind])
        return self.take(dtype.itemsize * count).view(dtype)

    def tensor_info(self) -> tuple[str, GGMLQuantizationType, tuple[int, ...], int]:
        name = self.string()
        (n_dims,) = self.unpack("<I")
        if not 1 <= n_dims <= MAX_DIMENSIONS:
            raise ValueError(f"tensor {name!r} has {n_dims} dimensions")
        shape = self.unpack(f"<{n_dims}Q")[::-1]  # GGUF writes the innermost axis first
        kind, offset = self.unpack("<IQ")
        return name, GGMLQuantizationType(kind), shape, offset

    def tensor(
        self, start: int, name: str, kind: GGMLQuantizationType, shape: tuple[int, ...], offset: int
    ) -> GGUFTensor:
        values_per_block, bytes_per_block = GGML_QUANT_SIZES[kind]
        *outer, row = shape
        n_rows = 1
        for size in outer:
            n_rows *= size
        if row % values_per_block or not row * n_rows:
            raise ValueError(f"tensor {name!r} of type {kind.name} has shape {shape}")
        row_bytes = row // values_per_block * bytes_per_block
        self.offset = start + offset
        return GGUFTensor(name, kind, shape, self.take(row_bytes * n_rows).reshape(n_rows, row_bytes))
