"""What a place for objects can do. Knows nothing of what they hold, or of where the place is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from satchel.errors import NetworkError

MAX_NAME_LENGTH = 256
OURS = "v1/"  # what all objects are below, in a place that may hold other things beside them
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)*")


class TransientError(NetworkError):
    """A failure that may pass: a dropped connection, a timeout, 429, 500, 503.

    `wait_s`: how long the remote asks to wait, if it says so.
    """

    def __init__(self, message: str, hint: str = "", wait_s: float | None = None) -> None:
        super().__init__(message, hint)
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class Stat:
    """An object's size in bytes, and age in seconds by the remote's own clock; None if that is not told."""

    size: int
    age_s: float | None


@dataclass(frozen=True, slots=True)
class Listed:
    """An object in a listing.

    Attributes:
        name: whole, not from the prefix on.
        size: in bytes.
        age_s: as of `Stat`.
        tag: another one whenever the object was put again; "" if the remote does not tell.
    """

    name: str
    size: int
    age_s: float | None
    tag: str = ""


class Remote(Protocol):
    """Objects by name. An object is there whole or not at all, whatever happens while it is put.

    Names are relative, of lower-case letters, digits, `.`, `_`, `-`, with `/` between parts: `check_name`.
    All methods can be called from several threads at once.

    Every method raises
        TransientError: it may work if it is tried again.
        NetworkError: the remote cannot be reached, or refuses (credentials, rights, quota).
        ValueError: the name breaks the rule (a fault of the caller).
    """

    def put(self, name: str, data: bytes) -> None:
        """Store an object, in place of any of this name."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Store an object unless there is one of this name; whether it was stored.

        Of several that race, one stores it. See `Probe.exclusive`: not every remote keeps that promise.
        """

    def get(self, name: str, max_bytes: int) -> bytes:
        """
        Raises:
            NotFoundError: there is no such object.
            DamagedError: it is larger than `max_bytes`.
        """

    def stat(self, name: str) -> Stat | None:
        """None if there is no such object."""

    def list(self, prefix: str) -> Iterator[Listed]:
        """The objects whose names start with `prefix`, which ends with `/` or is empty; in any order."""

    def delete(self, name: str) -> None:
        """Delete an object, if there is one."""


def check_name(name: str) -> str:
    """
    Raises:
        ValueError: `name` is not that of an object.
    """
    if len(name) > MAX_NAME_LENGTH or not _NAME.fullmatch(name):
        raise ValueError(f"{name[:MAX_NAME_LENGTH]!a} is no object's name")
    return name


def check_prefix(prefix: str) -> str:
    """
    Raises:
        ValueError: `prefix` is neither empty nor the first parts of an object's name with a `/` after them.
    """
    if prefix:
        check_name(prefix.removesuffix("/"))
        if not prefix.endswith("/"):
            raise ValueError(f"{prefix!a} does not end with /")
    return prefix
