"""Fetches one large file, on from where it stopped. Knows nothing of models, or of who has the file.

The hub's own library begins a file anew after each interruption, and cannot be interrupted soon.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from satchel.errors import DamagedError, NetworkError, SatchelError
from satchel.files import sync

PART = ".satchel-part"
PIECE_BYTES = 1 << 20
TIMEOUT_S = 20.0
WAITS_S = (1.0, 2.0, 5.0, 10.0)  # between tries that brought nothing


def part_of(target: Path) -> Path:
    """Where what has come of `target` is kept until it is whole."""
    return target.with_name(target.name + PART)


def fetch_file(
    url: str,
    headers: Mapping[str, str],
    target: Path,
    size: int,
    sha256: str | None,
    progress: Callable[[int], None],
) -> None:
    """Fetch `url` as the file `target`, which is there when it is whole and checked.

    Args:
        headers: for the server of `url`; httpx keeps credentials from those that it redirects to.
        size: in bytes.
        sha256: hexadecimal, where it is known.
        progress: called with the bytes that have come since the last call.

    Raises:
        NetworkError: the server does not answer, or breaks off again and again; what came is kept.
        DamagedError: what came is not the file; it is deleted.
        SatchelError: another process fetches it.
        OSError: the disk refused; what came is kept.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = part_of(target)
    with _locked(part) as file:
        digest = _fetch(url, headers, file, size, progress)
        if sha256 is not None and digest != sha256:
            part.unlink()
            raise DamagedError(f"{url} came damaged", "try again")
        sync(part)
        part.replace(target)
        sync(target.parent)


@contextmanager
def _locked(part: Path) -> Iterator[IO[bytes]]:
    with os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            raise SatchelError("another process is fetching this model", "wait until it is done") from err
        yield file


def _fetch(
    url: str, headers: Mapping[str, str], file: IO[bytes], size: int, progress: Callable[[int], None]
) -> str:
    """Complete `file`; the SHA-256 of its content."""
    import httpx

    digest = hashlib.sha256()
    if os.fstat(file.fileno()).st_size > size:  # of something else
        file.truncate(0)
    while piece := file.read(PIECE_BYTES):
        digest.update(piece)
    waits = iter(WAITS_S)
    with httpx.Client(follow_redirects=True, timeout=TIMEOUT_S) as client:
        while (start := file.tell()) < size:
            reason = "it ended early"
            try:
                asked = {**headers, "Range": f"bytes={start}-", "Accept-Encoding": "identity"}
                with client.stream("GET", url, headers=asked) as response:
                    response.raise_for_status()
                    if response.status_code != httpx.codes.PARTIAL_CONTENT and start:
                        file.seek(0)  # the server begins anew, whatever it was asked
                        file.truncate()
                        digest = hashlib.sha256()
                    for piece in response.iter_bytes(PIECE_BYTES):
                        piece = piece[: size - file.tell()]
                        file.write(piece)
                        digest.update(piece)
                        progress(len(piece))
            except httpx.HTTPStatusError as err:
                status = err.response.status_code
                if status < httpx.codes.INTERNAL_SERVER_ERROR and status != httpx.codes.TOO_MANY_REQUESTS:
                    raise NetworkError(f"the server refuses {url} (status {status})") from err
                reason = f"status {status}"
            except (httpx.UnsupportedProtocol, httpx.TooManyRedirects) as err:
                raise NetworkError(f"the server sends {url} elsewhere ({err})") from err
            except httpx.HTTPError as err:
                reason = str(err) or type(err).__name__
            if file.tell() > start:
                waits = iter(WAITS_S)
            elif (wait_s := next(waits, None)) is not None:
                time.sleep(wait_s)
            else:
                raise NetworkError(
                    f"the download broke off again and again ({reason})",
                    "try again: it goes on where it stopped",
                )
    return digest.hexdigest()
