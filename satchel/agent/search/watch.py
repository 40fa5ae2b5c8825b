"""Cuts the connections of a request whose time is up. Knows nothing of what is asked, or how it is answered.

A client's time limits are for each read alone: a server that sends a byte now and then keeps within them.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from satchel.config.waits import POLL_S


class Watch:
    """Watches requests that are made with its `extensions`, in one thread, while it is entered.

    A connection that is being opened is not seen yet: its own time limit has to end that.

    Args:
        deadline: when time is up, as `time.monotonic()` counts it.
        gone: set when nobody waits any longer: time is up then, too.
    """

    def __init__(self, deadline: float, gone: threading.Event) -> None:
        self._deadline = deadline
        self._gone = gone
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        for opened in self._sockets:
            opened.close()

    @property
    def extensions(self) -> Mapping[str, Any]:
        """For the requests: https://www.python-httpx.org/advanced/extensions/#trace."""
        return {"trace": self._trace}

    @property
    def left_s(self) -> float:
        return 0.0 if self._gone.is_set() else max(self._deadline - time.monotonic(), 0.0)

    @property
    def is_over(self) -> bool:
        return self.left_s <= 0

    def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            # A second handle on the connection: TLS takes the first one over.
            opened = info["return_value"].get_extra_info("socket").dup()
            with self._lock:
                self._sockets.append(opened)

    def _run(self) -> None:
        while not self._done.wait(min(self.left_s, POLL_S) or POLL_S):
            if self.is_over:
                self._cut()

    def _cut(self) -> None:
        """Whoever reads from the connections reads their end."""
        with self._lock:
            for opened in self._sockets:
                with contextlib.suppress(OSError):
                    opened.shutdown(socket.SHUT_RDWR)
