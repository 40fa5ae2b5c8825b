"""One zstd frame around the bytes of one object, opened within bounds. Knows nothing of what is inside."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise

import zstandard

from satchel.errors import DamagedError, SatchelError

# Stored/raw size at levels 1, 3, 6 (milliseconds to encode; to decode one object):
#   256 tokens of SmolLM2-135M at 4 bits, 1.7 MB    .937  .928  .925  (2, 3, 7; 1)
#   the same at 3 bits, 1.3 MB                      .934  .917  .923  (2, 2, 8; 1)
#   the same at 2 bits, 0.9 MB                      .950  .922  .917  (1, 2, 3; 1)
#   160 tokens of float16 window, 3.7 MB            .884  .868  .884  (8, 9, 7; 3)
#   the same in bfloat16                            .704  .720  .710  (9, 23, 49; 4)
# Codes take at most 1 % more than the entropy of their symbols at each; longer matches, another hash size or
# a window of one block change under 0.3 %. 3 is never far from the best.
LEVEL = 3

# Real state hardly compresses. Only small objects, where it costs nothing, may expand without limit.
FREE_BYTES = 64 << 20
MAX_RATIO = 64


def object_id(data: bytes) -> str:
    """SHA-256 (hex) of an object's stored bytes, which is its name."""
    return hashlib.sha256(data).hexdigest()


def compress(payload: bytes, max_bytes: int, breaks: Sequence[int] = ()) -> bytes:
    """`payload` as one zstd frame that declares its size.

    Args:
        breaks: ascending offsets where bytes of another kind begin. A zstd block has one Huffman table, and
            codes, low bytes and high bytes of floats each want their own: ending blocks there saves 1 to
            2 % of 30 layers and 2 to 7 % of 3, in the same time.

    Raises:
        SatchelError: `decompress` would refuse the result.
    """
    compressor = zstandard.ZstdCompressor(level=LEVEL).compressobj(size=len(payload))
    view, pieces = memoryview(payload), []
    for start, stop in pairwise([0, *breaks]):
        pieces += [compressor.compress(view[start:stop]), compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)]
    rest = view[breaks[-1] if breaks else 0 :]
    data = b"".join([*pieces, compressor.compress(rest), compressor.flush()])
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
