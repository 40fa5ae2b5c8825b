"""One tree of errors. Each carries the exit code of its kind and, where it helps, what to do next."""

from __future__ import annotations

from pathlib import Path


class SatchelError(Exception):
    """Something the user can understand and act on: one line, no traceback."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def one_line(self) -> str:
        """The message and the hint as a single line."""
        text = f"{self}; {self.hint}" if self.hint else str(self)
        return " ".join(text.split())


class UsageError(SatchelError):
    """A wrong flag, name or value."""

    exit_code = 2


class NotFoundError(SatchelError):
    """A session, model or file that is not there."""

    exit_code = 3


class DamagedError(SatchelError):
    """Bytes that are not what was written, or that belong to something else."""

    exit_code = 4


class VersionError(SatchelError):
    """Whole bytes in a form that this version does not know: not to be read, nor taken for damage."""

    exit_code = 4


class NetworkError(SatchelError):
    """The network or a remote did not answer, or refused."""

    exit_code = 5


class RefusedError(SatchelError):
    """Refused by the user or by a safety rule."""

    exit_code = 6


def fault_of(err: Exception) -> SatchelError:
    """For an exception that nobody foresaw: where it was raised, and not what it met there."""
    trace, place = err.__traceback__, "an unknown place"
    while trace:
        place = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return SatchelError(f"a fault of Satchel itself, {type(err).__name__} at {place}")
