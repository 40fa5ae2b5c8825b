"""File operations that are watched, refused, or cut short by the death of the process.

Knows nothing of what is written. Only what Python itself does counts: SQLite writes in C, unseen from here.
As a program, it runs Satchel's command line and dies at a step below a directory:

    python faults.py DIRECTORY STEP COMMAND…
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BY_PATH = ("replace", "rename", "unlink", "remove", "mkdir", "rmdir", "link", "symlink", "truncate", "utime")
BY_DESCRIPTOR = ("fsync", "ftruncate")
GIVES_BACK = {"unlink", "remove", "rmdir"}  # what a full disk allows


@dataclass(frozen=True, slots=True)
class Step:
    """`kind` is the system call's name; `half` stands for a write with half of its bytes written.

    `source`: where what comes to `path` was before.
    """

    kind: str
    path: str
    source: str = ""


class Disk:
    """Sees every step below `root` before it is taken, and lets it pass."""

    def __init__(self, root: Path) -> None:
        self.root = os.path.realpath(root)
        self.steps: list[Step] = []
        self._one_at_a_time = threading.Lock()

    def step(self, kind: str, path: str, source: str = "") -> None:
        """
        Raises:
            OSError: the operation fails.
        """
        with self._one_at_a_time:
            self.steps.append(step := Step(kind, path, source))
            self.meets(step, len(self.steps))

    def meets(self, step: Step, number: int) -> None:
        """What happens at step `number`, counted from 1."""

    def write(self, put: Callable[[memoryview], int | None], data: memoryview, path: str) -> int | None:
        """Write in two halves, each a step: the process can die between them."""
        half = len(data) // 2
        self.step("write", path)
        written = put(data[:half]) or 0
        self.step("half", path)
        return written if written < half else half + (put(data[half:]) or 0)


class Dying(Disk):
    """Kills the process as `kill -9` does, ahead of step `at`."""

    def __init__(self, root: Path, at: int) -> None:
        super().__init__(root)
        self._at = at

    def meets(self, step: Step, number: int) -> None:
        if number == self._at:
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()


class Refusing(Disk):
    """Fails at step `at` and ever after; a full disk still deletes, a read-only one does not."""

    def __init__(self, root: Path, at: int, code: int) -> None:
        super().__init__(root)
        self._at, self._code = at, code
        self._allowed = set() if code == errno.EROFS else GIVES_BACK

    def meets(self, step: Step, number: int) -> None:
        if number >= self._at and step.kind not in self._allowed:
            raise OSError(self._code, os.strerror(self._code), step.path)


class Full(Disk):
    """Has room for `room` bytes more; a write that needs more is cut off, and the next one fails."""

    def __init__(self, root: Path, room: int) -> None:
        super().__init__(root)
        self._room = room

    def write(self, put: Callable[[memoryview], int | None], data: memoryview, path: str) -> int | None:
        with self._one_at_a_time:
            if data and not self._room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            written = put(data[: self._room]) or 0
            self._room -= written
            return written


@contextlib.contextmanager
def watched(disk: Disk) -> Iterator[None]:
    """Within the block all file operations of this process that are below `disk.root` go by `disk`."""
    watch = _Watch(disk)
    real = {name: getattr(os, name) for name in (*BY_PATH, *BY_DESCRIPTOR)}
    real_open, real_io_open = os.open, io.open
    try:
        for name in BY_PATH:
            setattr(os, name, watch.path_call(name, real[name]))
        for name in BY_DESCRIPTOR:
            setattr(os, name, watch.descriptor_call(name, real[name]))
        os.open = watch.os_open(real_open)
        io.open = builtins.open = watch.io_open(real_io_open)
        yield
    finally:
        for name, call in real.items():
            setattr(os, name, call)
        os.open = real_open
        io.open = builtins.open = real_io_open


def dies(disk: Disk, act: Callable[[], object]) -> bool:
    """Whether a process that does `act`, forked from this one, was killed by `disk`.

    Raises:
        AssertionError: it ended otherwise than by being killed or by coming to its end.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with watched(disk):
                act()
            code = 0
        except BaseException:  # noqa: BLE001 (a fork must never come back to the test)
            traceback.print_exc()
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed or status == 0, f"the process ended with {status:#x}"
    return killed


class _Watch:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._opened: dict[int, str] = {}  # descriptors of what is below the root

    def path_call(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            # The last path is the one that changes: `replace(source, target)`.
            paths = [path for path in args if isinstance(path, str | bytes | os.PathLike)]
            place = self._place(paths[-1], kwargs.get("dir_fd")) if paths else None
            if place:
                self._disk.step(name, place, os.fsdecode(paths[0]) if len(paths) > 1 else "")
            return real(*args, **kwargs)

        return call

    def descriptor_call(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(descriptor: int, *args: Any) -> Any:
            place = self._opened.get(descriptor)
            if place is None:
                return real(descriptor, *args)
            self._disk.step(name, place)
            # A process that is killed loses nothing that it wrote: what fsync is for need not be waited for.
            return None if name == "fsync" else real(descriptor, *args)

        return call

    def os_open(self, real: Callable[..., int]) -> Callable[..., int]:
        def call(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            place = self._place(path, dir_fd)
            if place and flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR | os.O_TRUNC):
                self._disk.step("open", place)
            descriptor = real(path, flags, mode, dir_fd=dir_fd)
            self._note(descriptor, place)
            return descriptor

        return call

    def io_open(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(
            file: Any,
            mode: str = "r",
            buffering: int = -1,
            encoding: str | None = None,
            errors: str | None = None,
            newline: str | None = None,
            closefd: bool = True,
            opener: Callable[[str, int], int] | None = None,
        ) -> Any:
            place = self._opened.get(file) if isinstance(file, int) else self._place(file, None)
            if place is None or not set(mode) & set("wax+"):
                return real(file, mode, buffering, encoding, errors, newline, closefd, opener)
            if not isinstance(file, int):
                self._disk.step("open", place)
            raw = _WatchedFile(self._disk, place, file, mode.translate({ord("b"): "", ord("t"): ""}), closefd)
            self._note(raw.fileno(), place)
            if buffering == 0:
                return raw
            buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)

        return call

    def _place(self, path: Any, directory: int | None) -> str | None:
        """Where `path` is, if that is below the root. A descriptor in place of a path is of no interest."""
        if isinstance(path, int):
            return None
        name = os.fsdecode(path)
        if directory is not None:
            above = self._opened.get(directory)
            return None if above is None else os.path.join(above, name)  # noqa: PTH118
        name = os.path.abspath(name)  # noqa: PTH100
        return name if f"{name}/".startswith(f"{self._disk.root}/") else None

    def _note(self, descriptor: int, place: str | None) -> None:
        if place:
            self._opened[descriptor] = place
        else:
            self._opened.pop(descriptor, None)


class _WatchedFile(io.FileIO):
    def __init__(self, disk: Disk, place: str, file: Any, mode: str, closefd: bool) -> None:
        super().__init__(file, mode, closefd)
        self._disk, self._place = disk, place

    def write(self, data: Any) -> int | None:  # type: ignore[override]
        return self._disk.write(super().write, memoryview(data).cast("B"), self._place)


def _main(root: str, at: str, *command: str) -> int:
    from satchel.cli import run

    with watched(Dying(Path(root), int(at))):
        return run(list(command))


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
