"""Numbers of 1 to 8 bits packed into bytes, and the values they stand for. Knows nothing of codecs.

A row is a little-endian bit stream: number i takes bits [i * bits, (i + 1) * bits), so eight numbers fill
`bits` bytes and a row ends with at most seven unused bits. Everything stays on the device.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np


def packed_bytes(count: int, bits: int) -> int:
    """How many bytes a row of `count` numbers takes."""
    return -(-count * bits // 8)


def pack(numbers: mx.array, bits: int) -> mx.array:
    """(..., count) unsigned integers below 2**bits to (..., packed_bytes(count, bits)) uint8."""
    count = numbers.shape[-1]
    octets = _padded(numbers.astype(mx.uint32), 8)  # (..., octets, 8)
    columns = []
    for byte in range(bits):  # of the `bits` bytes that eight numbers fill
        first, end = 8 * byte // bits, -(-8 * (byte + 1) // bits)
        shifts = mx.arange(first * bits - 8 * byte, end * bits - 8 * byte, bits)
        begun = octets[..., first:end] >> mx.maximum(-shifts, 0).astype(mx.uint32)
        columns.append((begun << mx.maximum(shifts, 0).astype(mx.uint32)).sum(-1))
    packed = mx.stack(columns, -1).astype(mx.uint8)  # keeps the low eight bits of each sum
    return packed.reshape(*numbers.shape[:-1], -1)[..., : packed_bytes(count, bits)]


def unpack(packed: mx.array, bits: int, count: int) -> mx.array:
    """The opposite of `pack`: (..., count) uint8."""
    octets = _padded(packed, bits).astype(mx.uint16)  # (..., octets, bits)
    columns = []
    for number in range(8):
        byte, shift = divmod(number * bits, 8)
        column = octets[..., byte] >> shift
        if shift + bits > 8:  # it ends in the next byte
            column = column | octets[..., byte + 1] << (8 - shift)
        columns.append(column & (2**bits - 1))
    return mx.stack(columns, -1).astype(mx.uint8).reshape(*packed.shape[:-1], -1)[..., :count]


class Lookup:
    """values[number] for packed numbers, a byte at a time where bytes hold whole numbers."""

    def __init__(self, values: np.ndarray, bits: int, count: int) -> None:
        """`values` (2**bits,) float; rows hold `count` numbers."""
        self._bits = bits
        self._count = count
        values = values.astype(np.float32)
        if 8 % bits == 0:
            every_byte = np.arange(256)[:, None] >> np.arange(0, 8, bits) & 2**bits - 1
            values = values[every_byte]  # (256, numbers in a byte)
        self._values = mx.array(values)

    def __call__(self, packed: mx.array) -> mx.array:
        """(..., bytes) uint8 to (..., count) float32."""
        if self._values.ndim == 1:
            return self._values[unpack(packed, self._bits, self._count)]
        return self._values[packed].reshape(*packed.shape[:-1], -1)[..., : self._count]


def _padded(x: mx.array, group: int) -> mx.array:
    """(..., n) to (..., groups, group), zeros at the end."""
    missing = -x.shape[-1] % group
    if missing:
        x = mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])
    return x.reshape(*x.shape[:-1], -1, group)
