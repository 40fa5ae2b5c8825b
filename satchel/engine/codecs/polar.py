"""PolarQuant (arXiv 2502.02617): angles of a recursive polar transform. Knows nothing of tokens or caches."""

from __future__ import annotations

import math
from collections.abc import Mapping

import mlx.core as mx
import numpy as np

from satchel.engine.codebook import POLAR_LEVELS, POLAR_OFFSETS
from satchel.engine.codecs.base import Rows
from satchel.engine.codecs.bits import pack, packed_bytes, unpack
from satchel.engine.codecs.rotated import RotatedCodec, little_endian

BLOCK = 16  # coordinates that share a radius
SECTORS, SECTOR_BITS = 16, 4  # of the angle of two coordinates, in [0, 2 pi)
ANGLE_BITS = 2  # of the angle of two radii, in [0, pi / 2]


class PolarCodec(RotatedCodec):
    """Four levels of polar coordinates over blocks of 16 rotated coordinates: 3.875 bits a coordinate.

    Level 1 turns pairs of coordinates into radii and angles, and each further level pairs of radii into half
    as many. Kept are the angles, 8 of 4 bits and 4 + 2 + 1 of 2 bits a block, and the last radius.
    """

    def __init__(self, head_dim: int, dtype: mx.Dtype) -> None:
        """`dtype` is that of the radii; the paper's is float16.

        Raises:
            ValueError: head_dim is no multiple of 16.
        """
        if head_dim <= 0 or head_dim % BLOCK:
            raise ValueError(f"head_dim is {head_dim}: polar takes multiples of {BLOCK}")
        super().__init__(head_dim, dtype)
        self._sectors = head_dim // 2
        self._angles = [head_dim >> level for level in POLAR_LEVELS]  # how many of each level
        self._tables = [_directions((np.arange(SECTORS) + 0.5) * (2 * math.pi / SECTORS))]
        self._borders = []  # three a level: tangents of the angles between two codes
        for level in POLAR_LEVELS:
            near, far = POLAR_OFFSETS[level]
            self._tables.append(_directions(math.pi / 4 + np.array([-far, -near, near, far])))
            middle = (near + far) / 2
            self._borders.append([math.tan(math.pi / 4 + x) for x in (-middle, 0, middle)])
        self._factors = [mx.array(table) for table in self._tables]

    def encode(self, x: mx.array) -> dict[str, mx.array]:
        across, up = _pairs(self.rotate(x))
        turns = mx.arctan2(up, across) * (SECTORS / (2 * math.pi))  # in [-8, 8]
        sectors = mx.remainder(mx.floor(turns), SECTORS).astype(mx.uint8)
        angles = []
        for low, middle, high in self._borders:
            across, up = _pairs(_hypotenuse(across, up))
            beyond = [(up > across * border).astype(mx.uint8) for border in (low, middle, high)]
            angles.append(beyond[0] + beyond[1] + beyond[2])
        radii = _hypotenuse(across, up)
        packed = [pack(sectors, SECTOR_BITS), pack(mx.concatenate(angles, -1), ANGLE_BITS)]
        return {"codes": mx.concatenate(packed, -1), "radius": radii.astype(self.dtype)}

    def decode_rotated(self, rows: Rows) -> mx.array:
        codes, sector_bytes = rows["codes"], packed_bytes(self._sectors, SECTOR_BITS)
        angles = unpack(codes[..., sector_bytes:], ANGLE_BITS, sum(self._angles))
        numbers = [
            unpack(codes[..., :sector_bytes], SECTOR_BITS, self._sectors),
            *mx.split(angles, np.cumsum(self._angles)[:-1].tolist(), axis=-1),
        ]
        radii = rows["radius"].astype(mx.float32)
        for factors, level in zip(reversed(self._factors), reversed(numbers), strict=True):
            radii = (radii[..., None] * factors[level]).flatten(-2)  # each becomes two
        return radii

    def layout(self) -> dict[str, tuple[mx.Dtype, int]]:
        width = packed_bytes(self._sectors, SECTOR_BITS) + packed_bytes(sum(self._angles), ANGLE_BITS)
        return {"codes": (mx.uint8, width), "radius": (self.dtype, self.head_dim // BLOCK)}

    def constants(self) -> Mapping[str, bytes]:
        return {**super().constants(), "directions": little_endian(np.concatenate(self._tables))}


def _directions(angles: np.ndarray) -> np.ndarray:
    """Cosine and sine, (angles, 2) float32."""
    return np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32)


def _pairs(x: mx.array) -> tuple[mx.array, mx.array]:
    """(..., 2 n) to the even and the odd numbers, (..., n) each."""
    return x[..., 0::2], x[..., 1::2]


def _hypotenuse(a: mx.array, b: mx.array) -> mx.array:
    return mx.sqrt(a * a + b * b)
