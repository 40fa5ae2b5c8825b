"""A response's body within bounds of size and time. Knows nothing of what it holds or who sent it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator

import httpx

ACCEPT_ENCODING = "gzip"
MAX_MEMBERS = 100  # of a gzip file
_ZLIB_OR_GZIP = zlib.MAX_WBITS | 32
_MEMBER = b"\x1f"  # how each begins


class BodyError(Exception):
    """What is wrong with a body, in words that follow its host's name and a colon."""


def read_body(response: httpx.Response, *, max_bytes: int, is_over: Callable[[], bool]) -> bytes:
    """The decoded body of `response`, which is being streamed.

    What it unpacks to is counted while it is unpacked: a small body that becomes a huge one does not.

    Args:
        is_over: whether there is no time left; asked between two pieces, and at the end.

    Raises:
        BodyError: it is larger than `max_bytes`, packed wrongly or in a way that was not asked for, cut
            short, or not done in time.
        httpx.HTTPError: the connection broke.
    """
    body = bytearray()
    for piece in _decoded(response, max_bytes):
        body += piece
        if len(body) > max_bytes:
            raise BodyError(f"larger than {max_bytes / 1e6:g} MB")
        if is_over():
            raise BodyError("not there in time")
    if is_over():  # the connection may have been cut for that, which looks like its end
        raise BodyError("not there in time")
    return bytes(body)


def _decoded(response: httpx.Response, max_bytes: int) -> Iterator[bytes]:
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        yield from response.iter_raw()
    elif encoding in ("gzip", "x-gzip", "deflate"):
        yield from _unpacked(response.iter_raw(), max_bytes)
    else:
        raise BodyError("packed in a way that is not known here")


def _unpacked(packed: Iterable[bytes], max_bytes: int) -> Iterator[bytes]:
    """The members of a gzip file (RFC 1952, section 2.2), one behind the other, without what follows them."""
    members, packed_bytes = 0, 0
    member = None
    for piece in packed:
        packed_bytes += len(piece)
        if packed_bytes > max_bytes:
            raise BodyError(f"larger than {max_bytes / 1e6:g} MB")
        while piece:
            if member is None:
                if members and not piece.startswith(_MEMBER):
                    return
                members += 1
                if members > MAX_MEMBERS:
                    raise BodyError("packed in too many parts")
                member = zlib.decompressobj(_ZLIB_OR_GZIP)
            try:
                yield member.decompress(piece, max_bytes + 1)
            except zlib.error as err:
                raise BodyError("packed wrongly") from err
            piece = member.unused_data
            if member.eof:
                member = None
        yield b""
    if member is not None:
        raise BodyError("cut short")
