"""Objects in this process, gone with it. Knows nothing of disks and networks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import count

from satchel.errors import DamagedError, NotFoundError
from satchel.remotes.remote import Listed, Stat, check_name, check_prefix


class MemoryRemote:
    """A `Remote` that keeps every promise.

    Args:
        now: its clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._objects: dict[
            str, tuple[bytes, float, str]
        ] = {}  # with the time of each one's making, and its tag
        self._tags = count(1)
        self._one_at_a_time = threading.Lock()

    def put(self, name: str, data: bytes) -> None:
        self._objects[check_name(name)] = (bytes(data), self._now(), str(next(self._tags)))

    def put_if_absent(self, name: str, data: bytes) -> bool:
        check_name(name)
        with self._one_at_a_time:
            if name in self._objects:
                return False
            self.put(name, data)
            return True

    def get(self, name: str, max_bytes: int) -> bytes:
        if (found := self._objects.get(check_name(name))) is None:
            raise NotFoundError(f"there is no object {name}")
        data, _, _ = found
        if len(data) > max_bytes:
            raise DamagedError(f"object {name} has {len(data)} bytes where at most {max_bytes} are right")
        return data

    def stat(self, name: str) -> Stat | None:
        if (found := self._objects.get(check_name(name))) is None:
            return None
        data, made, _ = found
        return Stat(len(data), self._now() - made)

    def list(self, prefix: str) -> Iterator[Listed]:
        check_prefix(prefix)
        for name, (data, made, tag) in tuple(self._objects.items()):
            if name.startswith(prefix):
                yield Listed(name, len(data), self._now() - made, tag)

    def delete(self, name: str) -> None:
        self._objects.pop(check_name(name), None)
