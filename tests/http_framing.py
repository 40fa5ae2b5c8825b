"""HTTP/1.1 messages as they come in at a socket: where each ends, its bytes unchanged. Knows no S3."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

PIECE_BYTES = 64 * 1024


class Stream:
    """What comes in at a socket, as HTTP/1.1 frames it."""

    def __init__(self, sock: socket.socket, carry: Callable[[int], None] = lambda count: None) -> None:
        self._sock, self._carry = sock, carry
        self._buffer = bytearray()

    def read_until(self, mark: bytes) -> bytes:
        """Up to the end of the first `mark`. All methods raise EOFError where the stream ends before."""
        while (at := self._buffer.find(mark)) < 0:
            self._more()
        return self._take(at + len(mark))

    def read(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._more()
        return self._take(count)

    def read_rest(self) -> bytes:
        with contextlib.suppress(EOFError):
            while True:
                self._more()
        return self._take(len(self._buffer))

    def read_chunks(self) -> bytes:
        """A body of chunks as it came: sizes, data and trailers."""
        chunks = []
        while True:
            chunks.append(size_line := self.read_until(b"\r\n"))
            if size := int(size_line.split(b";")[0], 16):
                chunks.append(self.read(size + 2))
                continue
            while chunks[-1] != b"\r\n":
                chunks.append(self.read_until(b"\r\n"))
            return b"".join(chunks)

    def _more(self) -> None:
        piece = self._sock.recv(PIECE_BYTES)
        if not piece:
            raise EOFError("the connection was closed")
        self._carry(len(piece))
        self._buffer += piece

    def _take(self, count: int) -> bytes:
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken


class Body:
    """A request's body as it is framed, read once it is asked for."""

    def __init__(self, stream: Stream, headers: Mapping[str, str], before: Callable[[], None]) -> None:
        """`before` is called ahead of the first reading."""
        self._stream, self._before = stream, before
        self._chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        self._left = int(headers.get("content-length", 0))
        self._read = b""

    def whole(self) -> bytes:
        if self._chunked:
            self._before()
            self._read, self._chunked = self._stream.read_chunks(), False
        self._read_on(self._left)
        return self._read

    def half(self) -> bytes:
        """The first half. None of the second is read, unless it has been or the length is not known ahead."""
        if self._chunked:
            self.whole()
        half = (len(self._read) + self._left) // 2
        self._read_on(max(half - len(self._read), 0))
        return self._read[:half]

    def _read_on(self, count: int) -> None:
        if count:
            if not self._read:
                self._before()
            self._read += self._stream.read(count)
            self._left -= count


@dataclass(frozen=True, slots=True)
class Reply:
    """`last`: the connection ends with it."""

    status: int
    head: bytes
    body: bytes
    last: bool


def read_reply(stream: Stream, method: str) -> Reply:
    status = 100
    while 100 <= status < 200:
        head = stream.read_until(b"\r\n\r\n")
        (version, code, *_), headers = parse_head(head)
        status = int(code)
    last = version != "HTTP/1.1" or "close" in headers.get("connection", "").lower()
    if method == "HEAD" or status in (204, 304):
        return Reply(status, head, b"", last)
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return Reply(status, head, stream.read_chunks(), last)
    if "content-length" in headers:
        return Reply(status, head, stream.read(int(headers["content-length"])), last)
    return Reply(status, head, stream.read_rest(), last=True)


def parse_head(head: bytes) -> tuple[list[str], dict[str, str]]:
    """The words of the first line, and the headers by lower-case name."""
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    named = (line.partition(":") for line in lines)
    return first.split(" ", 2), {name.lower(): value.strip() for name, _, value in named}
