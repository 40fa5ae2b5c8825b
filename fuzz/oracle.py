"""What no input may do, however it was made. Knows no parser and no fuzzer.

Everything here works on the process as a whole and stays: use it in a process of its own.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from satchel.errors import SatchelError

MEMORY_BYTES = 512 << 20  # more than the process has when it begins
SECONDS = 2.0  # of processor time for one input

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Audit events (https://docs.python.org/3/library/audit_events.html) that change files, and how many of their
# first arguments are paths.
_CHANGES = {
    "os.chmod": 1, "os.chown": 1, "os.link": 2, "os.mkdir": 1, "os.remove": 1, "os.removexattr": 1,
    "os.rename": 2, "os.rmdir": 1, "os.setxattr": 1, "os.symlink": 2, "os.truncate": 1, "os.utime": 1,
    "shutil.rmtree": 1, "shutil.move": 2, "shutil.copyfile": 2, "shutil.unpack_archive": 2,
    "sqlite3.connect": 1,
}  # fmt: skip
_FORBIDDEN = ("pickle.find_class", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn",
              "os.kill", "os.chdir", "os.putenv", "socket.", "ctypes.dlopen", "urllib.")  # fmt: skip


class FaultFound(BaseException):
    """An input did what no input may do. Not an `Exception`, so that nothing on the way catches it."""


class Watch:
    """Sees every file that Python code opens or changes, while a guard is on.

    `accepted` counts the guards in which nothing was raised.
    """

    def __init__(self) -> None:
        self.accepted = 0
        self._on = False
        self._root: Path | None = None
        self._seen: list[str] = []
        sys.addaudithook(self._hook)

    @contextmanager
    def guard(self, allowed: tuple[type[Exception], ...] = (), root: Path | None = None) -> Iterator[None]:
        """Run what must raise nothing but `SatchelError` or `allowed`, which end here.

        Args:
            root: where files may be changed; None: nowhere.

        Raises:
            FaultFound: a file elsewhere was changed, or it took too long.
            Exception: any other that came out.
        """
        self._root, self._seen, self._on = (root.resolve() if root else None), [], True
        started = time.process_time()
        try:
            yield
            self.accepted += 1
        except (SatchelError, *allowed):
            pass
        finally:
            self._on = False
        seconds = time.process_time() - started
        if self._seen:
            raise FaultFound(f"it did {self._seen[0]}")
        if seconds > SECONDS:
            raise FaultFound(f"it took {seconds:.1f} s")

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._on:
            return
        paths: tuple[Any, ...]
        followed = event == "sqlite3.connect"  # a link, if it is one; other calls take the link itself
        if event == "open":
            path, mode, flags = args
            changing = bool(flags & _WRITING) or (isinstance(mode, str) and set(mode) & set("wax+"))
            paths = (path,) if changing else ()
            followed = not flags & (os.O_EXCL | os.O_NOFOLLOW)
        elif event in _CHANGES:
            paths = args[: _CHANGES[event]]
            if event == "os.symlink":
                paths = paths[1:]
        elif event.startswith(_FORBIDDEN):
            self._refuse(f"{event} {args!r}"[:300])
        else:
            return
        for path in paths:
            if not self._inside(path, followed):
                self._refuse(f"{event} of {path!r}")

    def _refuse(self, what: str) -> NoReturn:
        """Stop what is about to be done; it counts, even where somebody catches this."""
        self._seen.append(what)
        raise FaultFound(f"it did {what}")

    def _inside(self, path: Any, followed: bool) -> bool:
        """Whether what would be changed is in the root."""
        if isinstance(path, int) or path == ":memory:":  # a descriptor, judged when it was opened; no file
            return True
        if self._root is None:
            return False
        place = Path(os.fsdecode(path))
        real = place.resolve() if followed else place.parent.resolve() / place.name
        return real.is_relative_to(self._root)


def limit_memory() -> None:
    """Let the process have `MEMORY_BYTES` more than now. Only Linux keeps to it."""
    if sys.platform == "linux":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, -1))
