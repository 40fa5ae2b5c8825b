"""What is behind a web address, into a file: bounded, and resumed where the connection drops.

Knows nothing of what it fetches. Addresses are as good as passwords here: errors name their host alone.
"""

from __future__ import annotations

import itertools
import random
import socket
import ssl
import time
from collections.abc import Callable
from typing import IO

import httpx

from satchel.config.units import size_text
from satchel.errors import DamagedError, NetworkError, NotFoundError, UsageError

Progress = Callable[[int, int], None]  # bytes so far, and of all; not called where that is not known

ROOM_BYTES = 8 << 20  # are looked for at a time where a server does not tell how much it sends
TIMEOUTS = httpx.Timeout(30.0, connect=10.0)  # between two pieces; to connect
WAITS_S = (0.5, 2.0, 8.0)  # before the second attempt, the third, …
MAX_PORT = 65535
EXPIRED = "the link has expired or is wrong"
ASK = "ask for a new one"


def download(
    address: str,
    file: IO[bytes],
    max_bytes: int,
    check_room: Callable[[int], None],
    progress: Progress | None = None,
) -> None:
    """Write what is behind `address` (`http:` or `https:`) to `file`, from its start on.

    Redirections are not followed: a signed address is for one host.

    Args:
        check_room: is called with the size, where the server tells it, before anything is written; else with
            `ROOM_BYTES`, each time before so many are.

    Raises:
        UsageError: it is no such address.
        NotFoundError: there is nothing any more.
        NetworkError: the server refused, or did not answer, or not to the end, several times.
        DamagedError: it is larger than `max_bytes`.
    """
    transfer = _Transfer(_checked(address), file, max_bytes, check_room, progress)
    # No compression: whatever takes a few bytes from the server takes as few here.
    with httpx.Client(timeout=TIMEOUTS, headers={"Accept-Encoding": "identity"}) as client:
        for attempt in itertools.count():
            try:
                transfer.attempt(client)
                return
            except _DroppedError as err:
                # Where there never was a connection, there is hardly one soon, and nobody sees the waiting.
                hopeless = isinstance(err, _UnreachedError) and not transfer.has_begun
                waits = WAITS_S[:1] if hopeless else WAITS_S
                if attempt == len(waits):
                    raise
                time.sleep(waits[attempt] * random.uniform(0.5, 1.0))  # noqa: S311  (no secret)


class _DroppedError(NetworkError):
    """What may go better when it is tried again."""


class _UnreachedError(_DroppedError):
    """There was no connection."""


class _Transfer:
    """
    Attributes:
        has_begun: the server has answered once.
    """

    def __init__(
        self,
        url: httpx.URL,
        file: IO[bytes],
        max_bytes: int,
        check_room: Callable[[int], None],
        progress: Progress | None,
    ) -> None:
        self._url = url
        self._host = url.netloc.decode()  # with the port, if one is named
        self._file = file
        self._max_bytes = max_bytes
        self._check_room = check_room
        self._progress = progress
        self._done_bytes = 0
        self.has_begun = False
        self._room_bytes = 0  # of the file, of what was there and what there is room for

    def attempt(self, client: httpx.Client) -> None:
        """Fetch what is not there yet.

        Raises:
            _DroppedError: it broke off; what came is kept.
            NotFoundError, NetworkError, DamagedError: as `download`.
        """
        wanted = {"Range": f"bytes={self._done_bytes}-"} if self._done_bytes else {}
        try:
            with client.stream("GET", self._url, headers=wanted) as response:
                self.has_begun = True
                self._check_status(response.status_code)
                total_bytes = self._begin(response)
                for piece in response.iter_raw():  # as it comes, so that none is lost
                    self._take(piece, total_bytes)
        except (httpx.ConnectError, httpx.ConnectTimeout) as err:
            raise self._unreached(err) from err
        except httpx.TransportError as err:
            raise _DroppedError(f"cannot fetch from {self._host}: {_reason(err)}", "try again later") from err

    def _unreached(self, err: httpx.TransportError) -> _UnreachedError:
        cause = _system_error(err)
        if isinstance(err, httpx.ConnectTimeout):
            return _UnreachedError(f"{self._host} did not answer in time", "try again later")
        if isinstance(cause, socket.gaierror):
            return _UnreachedError(f"there is no host {self._url.host}, or no network", "check the link")
        if isinstance(cause, ssl.SSLError):
            return _UnreachedError(f"there is no trusted connection to {self._host}", "check the link")
        return _UnreachedError(f"cannot fetch from {self._host}: {_reason(err)}", "try again later")

    def _check_status(self, status: int) -> None:
        if status in (200, 206):
            return
        if status in (404, 410):
            raise NotFoundError("there is nothing behind the link any more", ASK)
        if status in (400, 401, 403):
            raise NetworkError(EXPIRED, ASK)
        if 300 <= status < 400:
            raise NetworkError(f"{self._host} sends the link elsewhere, where it is not followed", ASK)
        kind = _DroppedError if status in (408, 429) or status >= 500 else NetworkError
        raise kind(f"{self._host} answered with status {status}", "try again later")

    def _begin(self, response: httpx.Response) -> int | None:
        """Where to go on, by what the server says it sends; the size of all, if that is known."""
        if response.status_code == 206:
            part = response.headers.get("Content-Range", "")
            if not part.startswith(f"bytes {self._done_bytes}-"):
                raise NetworkError(f"{self._host} sent another part than was asked for")
        else:
            self._done_bytes = 0
        self._file.seek(self._done_bytes)
        self._file.truncate()
        self._room_bytes = self._done_bytes
        length = response.headers.get("Content-Length", "")
        if "Transfer-Encoding" in response.headers or not (length.isascii() and length.isdecimal()):
            return None
        total_bytes = self._done_bytes + int(length[:20])
        self._check_bound(total_bytes)
        self._check_room(total_bytes - self._done_bytes)
        self._room_bytes = total_bytes
        return total_bytes

    def _take(self, piece: bytes, total_bytes: int | None) -> None:
        self._check_bound(self._done_bytes + len(piece))
        while self._done_bytes + len(piece) > self._room_bytes:
            self._check_room(ROOM_BYTES)
            self._room_bytes += ROOM_BYTES
        self._file.write(piece)
        self._done_bytes += len(piece)
        if self._progress and total_bytes:
            self._progress(self._done_bytes, total_bytes)

    def _check_bound(self, size: int) -> None:
        if size > self._max_bytes:
            raise DamagedError(f"what is behind the link has more than {size_text(self._max_bytes)}")


def _reason(err: httpx.TransportError) -> str:
    """Without the system's number."""
    cause = _system_error(err)
    return (cause and cause.strerror) or str(err) or type(err).__name__


def _system_error(err: BaseException) -> OSError | None:
    cause: BaseException | None = err
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    return cause


def _checked(address: str) -> httpx.URL:
    """
    Raises:
        UsageError: it is no web address; does not repeat it.
    """
    try:
        url = httpx.URL(address)
    except httpx.InvalidURL:
        url = httpx.URL("")
    port = 1 if url.port is None else url.port
    if url.scheme not in ("http", "https") or not url.host or not 1 <= port <= MAX_PORT:
        # Not `from` the error: that one holds the address.
        raise UsageError("that is no link to a session", "links begin with https:// or http://")
    return url
