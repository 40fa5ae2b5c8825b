"""Finds out by trying what a remote does. Knows nothing of what kind it is, but for synced folders."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from satchel.errors import NetworkError, NotFoundError
from satchel.remotes.directory import DirectoryRemote
from satchel.remotes.remote import Remote, TransientError
from satchel.remotes.retry import RetryingRemote

PREFIX = "v1/probe/"
MAX_BYTES = 1024
RACERS = 4

# A new object that seems older is dated by no clock that the age of others could be told by.
MAX_NEW_AGE_S = 600.0


@dataclass(frozen=True, slots=True)
class Probe:
    """
    Attributes:
        exclusive: of several machines that call `put_if_absent` with one name, one stores its object.
        ages: objects have ages.
        lines: what holds, and what is done where it does not, for the user.
    """

    exclusive: bool
    ages: bool
    lines: tuple[str, ...]


def probe(remote: Remote) -> Probe:
    """Try all that a `Remote` can do, on objects that are gone afterwards. `remote` must encrypt nothing.

    Raises:
        NetworkError: what cannot be done without does not work: writing, reading, listing, deleting.
    """
    with _new_names(remote) as (first, second):
        _check_writing(remote, first)
        ages = _has_ages(remote, first)
        lines = ["write, read, list: work"]
        if _folder(remote):
            exclusive = False
            lines.append(
                "conditional writes: not for a folder, which may be synced; machines that save at once fork"
            )
        else:
            exclusive, line = _try_conditions(remote, first, second)
            lines.append(line)
    for name in (first, second):
        if remote.stat(name) or any(listed.name == name for listed in remote.list(PREFIX)):
            raise NetworkError("deleting does not work: a deleted object is still there")
    lines[0] = "write, read, list, delete: work"
    lines.append(
        "ages of objects: told" if ages else "ages of objects: not told; nothing can be cleared away"
    )
    return Probe(exclusive, ages, tuple(lines))


def _check_writing(remote: Remote, name: str) -> None:
    content, later = secrets.token_bytes(64), secrets.token_bytes(48)
    if remote.stat(name):
        raise NetworkError("reading does not work: there is an object that nobody wrote")
    remote.put(name, content)
    if _read(remote, name) != content:
        raise NetworkError("reading does not work: an object is not what was written")
    sizes = [listed.size for listed in remote.list(PREFIX) if listed.name == name]
    if sizes != [len(content)]:
        raise NetworkError("listing does not work: a new object is not in the list, or not as it was written")
    remote.put(name, later)
    status = remote.stat(name)
    if _read(remote, name) != later or status is None or status.size != len(later):
        raise NetworkError("writing does not work: an object that was replaced is still the old one")


def _try_conditions(remote: Remote, taken: str, free: str) -> tuple[bool, str]:
    """Whether they hold, and the line about it."""
    fallback = "machines that save one session at once are both kept, as forks"
    before = _read(remote, taken)
    try:
        if remote.put_if_absent(taken, secrets.token_bytes(32)):
            return False, f"conditional writes: ignored by this remote; {fallback}"
        if _read(remote, taken) != before:
            return False, f"conditional writes: denied, but done; {fallback}"
        contents = [secrets.token_bytes(32) for _ in range(RACERS)]
        with ThreadPoolExecutor(RACERS) as pool:
            stored = list(pool.map(lambda content: remote.put_if_absent(free, content), contents))
    except TransientError:
        raise
    except NetworkError as err:
        return False, f"conditional writes: refused ({err}); {fallback}"
    if stored.count(True) != 1 or _read(remote, free) != contents[stored.index(True)]:
        return False, f"conditional writes: do not hold when several race; {fallback}"
    return True, "conditional writes: honoured"


def _has_ages(remote: Remote, name: str) -> bool:
    status = remote.stat(name)
    ages = [listed.age_s for listed in remote.list(PREFIX) if listed.name == name]
    ages.append(status.age_s if status else None)
    return all(age is not None and age <= MAX_NEW_AGE_S for age in ages)


def _read(remote: Remote, name: str) -> bytes | None:
    try:
        return remote.get(name, MAX_BYTES)
    except NotFoundError:
        return None


@contextlib.contextmanager
def _new_names(remote: Remote) -> Iterator[tuple[str, str]]:
    """Two names of no objects; those that have got them are deleted in the end.

    Raises:
        NetworkError: they cannot be deleted.
    """
    names = (PREFIX + secrets.token_hex(16), PREFIX + secrets.token_hex(16))
    try:
        yield names
    except BaseException:
        for name in names:
            with contextlib.suppress(NetworkError):  # the first failure says more
                remote.delete(name)
        raise
    for name in names:
        remote.delete(name)
    if folder := _folder(remote):
        folder.drop_empty_folder(PREFIX)


def _folder(remote: Remote) -> DirectoryRemote | None:
    while isinstance(remote, RetryingRemote):
        remote = remote.inner
    return remote if isinstance(remote, DirectoryRemote) else None
