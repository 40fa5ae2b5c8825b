"""One zstd frame around the bytes of one object, opened within bounds. Knows nothing of what is inside."""

from __future__ import annotations

import hashlib

import zstandard

from satchel.errors import DamagedError, SatchelError

# Stored/raw size at levels 1, 3, 6 (milliseconds to encode and to decode one object):
#   256 tokens of 4-bit codes, float16 scales and biases, 1.7 MB   .939  .923  .922  (3, 7, 5; 1.4)
#   the same at 2 bits, 0.9 MB                                     .832  .795  .799  (2, 2, 4; 0.8)
#   160 tokens of float16 window, 3.7 MB                           .884  .868  .884  (8, 9, 7; 3)
#   the same in bfloat16                                           .704  .720  .710  (9, 23, 49; 4)
# Gaussian data leaves nothing to find beyond the entropy of its symbols; 3 is never far from the best.
LEVEL = 3

# Real state hardly compresses. Only small objects, where it costs nothing, may expand without limit.
FREE_BYTES = 64 << 20
MAX_RATIO = 64


def object_id(data: bytes) -> str:
    """SHA-256 (hex) of an object's stored bytes, which is its name."""
    return hashlib.sha256(data).hexdigest()


def compress(payload: bytes, max_bytes: int) -> bytes:
    """`payload` as one zstd frame that declares its size.

    Raises:
        SatchelError: `decompress` would refuse the result.
    """
    data = zstandard.ZstdCompressor(level=LEVEL).compress(payload)
    if len(payload) > _bound(data, max_bytes):
        raise SatchelError(f"an object of {len(payload)} bytes is beyond what the store takes")
    return data


def decompress(data: bytes, max_bytes: int) -> bytes:
    """The payload of the frame `data`, whose declared size is checked before anything is allocated.

    Raises:
        DamagedError: not exactly one whole frame, or one that expands beyond `max_bytes` or `MAX_RATIO`.
    """
    try:
        size = zstandard.frame_content_size(data)
        if size < 0:
            raise DamagedError("its compressed frame does not say how large it is")
        if size > _bound(data, max_bytes):
            raise DamagedError(f"its {len(data)} bytes claim to expand to {size}")
        return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as err:
        raise DamagedError("its compressed frame is broken") from err


def _bound(data: bytes, max_bytes: int) -> int:
    return min(max_bytes, max(FREE_BYTES, MAX_RATIO * len(data)))
