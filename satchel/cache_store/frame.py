"""One zstd frame around the bytes of one object, opened within bounds. Knows nothing of what is inside."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise

import zstandard

from satchel.errors import DamagedError, SatchelError

# Stored/raw size and, in brackets, MB/s of one x86 core to compress, with `breaks`, at levels -1, 1, 3, 6:
#   256 tokens of SmolLM2-135M at 4 bits, 1.6 MB   .982 (1401)  .929 (663)  .928 (576)  .927 (407)
#   the same at 3 bits, 1.3 MB                    1.255 (1251)  .908 (567)  .907 (391)  .906 (221)
#   the same at 2 bits, 0.9 MB                     .968 (1485)  .908 (694)  .907 (503)  .906 (273)
#   its tail with a float16 window, 4.8 MB         .989 (1986)  .858 (998)  .857 (744)  .857 (518)
# Beside it, packing does 1300 MB/s (500 at 3 bits) and SHA-256 1000. Codes take at most 1 % more than the
# entropy of their symbols from level 1 on, which finds it with Huffman codes; levels below have none. Longer
# matches, another hash size or a window of one block change under 0.3 %.
LEVEL = 1

# Real state hardly compresses. Only small objects, where it costs nothing, may expand without limit. With the
# copy that joining planes takes, a file has to have 32 MB before it can ask for 512.
FREE_BYTES = 64 << 20
MAX_RATIO = 8


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
