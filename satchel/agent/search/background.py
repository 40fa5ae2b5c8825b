"""Work beside the one who waits for it, who may leave. Knows nothing of what the work is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, TypeVar

from satchel.config.waits import POLL_S

_T = TypeVar("_T")


def begun(work: Callable[[], _T]) -> Future[_T]:
    """`work`, begun in a thread that the end of the process does not wait for, as it would for a pool's."""
    future: Future[_T] = Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as err:  # noqa: BLE001 (raised where it is waited for)
            future.set_exception(err)
        else:
            future.set_result(result)

    threading.Thread(target=run, daemon=True).start()
    return future


def awaited(futures: Collection[Future[Any]], deadline: float, cancel: threading.Event) -> bool:
    """Wait until all are done, `cancel` is set, or `time.monotonic()` is `deadline`; whether all are done."""
    waiting = set(futures)
    while waiting and not cancel.is_set() and (left := deadline - time.monotonic()) > 0:
        waiting -= wait(waiting, min(left, POLL_S), FIRST_COMPLETED).done
    return not waiting
