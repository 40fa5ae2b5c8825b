"""Tries again what may work the next time. Knows nothing of the remote inside."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from satchel.errors import DamagedError, NetworkError, NotFoundError
from satchel.remotes.remote import Listed, Remote, Stat, TransientError

ATTEMPTS = 5
FIRST_PAUSE_S = 0.5
MAX_ASKED_PAUSE_S = 30.0  # as long as this a remote is waited for if it asks for it
MAX_LISTED = 1_000_000  # objects, all of which are held in memory: some hundred MB

Result = TypeVar("Result")


class RetryingRemote:
    """A `Remote` that meets each `TransientError` of another one with a pause and a new attempt.

    Of `ATTEMPTS` in all, the last one's error is raised. Pauses are random, up to a bound that begins with
    `FIRST_PAUSE_S` and doubles each time, so that machines which failed together do not come back together.

    Args:
        sleep: waits for so many seconds.
    """

    def __init__(self, inner: Remote, sleep: Callable[[float], None] = time.sleep) -> None:
        self.inner = inner
        self._sleep = sleep
        self._random = random.SystemRandom()  # has no seed that two machines could have in common

    def put(self, name: str, data: bytes) -> None:
        self._try(lambda: self.inner.put(name, data))

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Where the answer to an attempt was lost and a later one finds an object: whether that is `data`."""
        attempts = 0

        def attempt() -> bool:
            nonlocal attempts
            attempts += 1
            return self.inner.put_if_absent(name, data)

        return self._try(attempt) or (attempts > 1 and self._holds(name, data))

    def get(self, name: str, max_bytes: int) -> bytes:
        return self._try(lambda: self.inner.get(name, max_bytes))

    def stat(self, name: str) -> Stat | None:
        return self._try(lambda: self.inner.stat(name))

    def list(self, prefix: str) -> Iterator[Listed]:
        """Begins again where it fails half-way, so nothing is yielded until all is known.

        Raises:
            NetworkError: as of `Remote`; also if there are more than `MAX_LISTED`.
        """
        yield from self._try(lambda: self._listed(prefix))

    def delete(self, name: str) -> None:
        self._try(lambda: self.inner.delete(name))

    def _listed(self, prefix: str) -> tuple[Listed, ...]:
        listed = tuple(itertools.islice(self.inner.list(prefix), MAX_LISTED + 1))
        if len(listed) > MAX_LISTED:
            raise NetworkError(f"the remote lists more than {MAX_LISTED:,} objects, which is not right")
        return listed

    def _holds(self, name: str, data: bytes) -> bool:
        try:
            return self.get(name, len(data)) == data
        except (NotFoundError, DamagedError):  # deleted by now; larger
            return False

    def _try(self, act: Callable[[], Result]) -> Result:
        for attempt in range(1, ATTEMPTS):
            try:
                return act()
            except TransientError as err:
                self._sleep(self._pause_s(attempt, err.wait_s))
        try:
            return act()
        except TransientError as err:
            raise TransientError(f"{err} (tried {ATTEMPTS} times)", err.hint, err.wait_s) from err

    def _pause_s(self, attempt: int, asked_s: float | None) -> float:
        # "Full jitter": https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
        pause_s = self._random.uniform(0, FIRST_PAUSE_S * 2 ** (attempt - 1))
        return pause_s + min(asked_s or 0.0, MAX_ASKED_PAUSE_S)
