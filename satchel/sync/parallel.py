"""The same for many, several at a time. Knows nothing of what."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import TypeVar

from satchel.config.waits import POLL_S

# bench/sync.py at 50 Mbit/s and 40 ms a request, with 1, 2, 4, 8, 16 at once: sending 50 MB in 32 objects
# takes 12.6, 9.5, 8.8, 8.8, 9.0 s (8.2 is the line's own time), fetching them 11.1, 9.1, 8.8, 8.7, 8.7, and
# reading 200 entries 9.6, 5.6, 3.1, 1.6, 1.1. Not 16, since each holds its object several times over while it
# is encrypted.
AT_ONCE = 8

_T = TypeVar("_T")
_R = TypeVar("_R")


def in_parallel(act: Callable[[_T], _R], items: Collection[_T]) -> list[_R]:
    """`act` on each, in order. After the first failure, which is raised, no further one is begun.

    Whoever is interrupted does not wait for those that run, and nor does the end of the process, which an
    executor's threads would have wait for all that was asked for.
    """
    results: dict[int, _R] = {}
    failures: list[BaseException] = []
    waiting, guard = iter(enumerate(items)), threading.Lock()

    def work() -> None:
        while not failures:
            with guard:
                number, item = next(waiting, (-1, None))
            if number < 0:
                return
            try:
                results[number] = act(item)  # type: ignore[arg-type]
            except BaseException as err:  # noqa: BLE001 (raised where it is waited for)
                failures.append(err)

    workers = [threading.Thread(target=work, daemon=True) for _ in range(min(AT_ONCE, len(items)))]
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            while worker.is_alive():
                worker.join(POLL_S)
    except BaseException as err:
        failures.append(err)  # ends the workers
        raise
    if failures:
        raise failures[0]
    return [results[number] for number in range(len(items))]
