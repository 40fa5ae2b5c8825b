"""Paths, wildcards and directories to the texts of the files they name. Knows nothing of models."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from satchel.agent.attached import ContextFile
from satchel.agent.ignoring import GIT, Ignoring
from satchel.agent.places import full_path, is_dir, is_there, leads_somewhere, real_path
from satchel.agent.wildcards import Wildcards, has_wildcards
from satchel.errors import NotFoundError, SatchelError, UsageError
from satchel.files import read_file
from satchel.sanitize import sanitize_line

MAX_FILE_BYTES = 1_000_000
MAX_TOTAL_BYTES = 8_000_000  # far more than any model here reads
MAX_VISITED = 200_000  # files and directories, ignored ones not counted
_MAX_SKIPPED = 20  # lines

_BOM = "\ufeff"


@dataclass(frozen=True, slots=True)
class Collected:
    """Files to read, and what was left out: one line each, "name: reason".

    Attributes:
        places: where each of the files is, without links.
    """

    files: tuple[ContextFile, ...]
    skipped: tuple[str, ...]
    places: Mapping[ContextFile, Path]


class Allowance:
    """How many files and directories may be looked at, in one walk after the other."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.left = most

    def take(self) -> None:
        """
        Raises:
            UsageError: that is one too many.
        """
        self.left -= 1
        if self.left < 0:
            raise UsageError(
                f"there are more than {self._most:,} files and directories to look through",
                "name a directory further down",
            )


def collect(wanted: Sequence[str], base: Path) -> Collected:
    """Read the files that `wanted` names, in its order, and those of one directory by their names' order.

    A path that exists is taken as it is, whatever characters are in it; else it may hold wildcards (`*`, `?`,
    `[a-z]`, `**`). Directories are walked, and wildcards found, without what .gitignore names and without
    following links; what is named itself is taken even so. What is no text in UTF-8 is left out and told, and
    so is what is larger than `MAX_FILE_BYTES`; nothing but regular files is ever opened.

    Args:
        wanted: paths, absolute or relative to `base`; `~` is the home directory.
        base: what paths are shown relative to, where they are below it.

    Raises:
        NotFoundError: one of them names nothing.
        UsageError: they hold more than `MAX_TOTAL_BYTES`, or there are more than `MAX_VISITED` to look at.
    """
    collector = _Collector(base)
    for each in wanted:
        try:
            collector.add(each)
        except NotFoundError as err:
            if len(wanted) > 1:
                err.hint = "; ".join(filter(None, (err.hint, "none of the others was taken")))
            raise
    return Collected(tuple(collector.files.values()), tuple(_told(collector.skipped)), dict(collector.places))


def names_a_file(pattern: str, base: Path, seen: Allowance) -> bool:
    """Whether a path with wildcards names any file that `collect` would look at; no, if there is none among
    what may be `seen`, where every name in a directory counts.
    """
    try:
        return seen.left > 0 and any(True for _ in _Walk(base, seen, seen).matching(pattern))
    except UsageError:
        return False


class _Collector:
    def __init__(self, base: Path) -> None:
        self.files: dict[str, ContextFile] = {}  # by path as shown
        self.places: dict[ContextFile, Path] = {}
        self.skipped: dict[str, str] = {}  # path as shown: why
        self._base = real_path(base)
        self._bytes = 0
        self._visits = Allowance(MAX_VISITED)

    def add(self, wanted: str) -> None:
        path = full_path(wanted, self._base)
        walk = _Walk(self._base, self._visits)
        if wanted and is_dir(path):
            found, nothing = walk.all_in(real_path(path)), "there is nothing to read in"
        elif wanted and is_there(path):
            self._take(Path(path))
            return
        elif has_wildcards(wanted):
            found, nothing = walk.matching(wanted), "no file matches"
        else:
            raise NotFoundError(f"there is no file {sanitize_line(wanted)!r}")
        hits = list(found)
        for each in hits:
            self._take(each)
        self.skipped |= {self._shown(each): reason for each, reason in walk.skipped.items()}
        self.skipped |= dict(fault.split(": ", 1) for fault in walk.faults)
        if not hits and not walk.skipped:
            hint = "what .gitignore names is left out, unless it is named itself"
            raise NotFoundError(f"{nothing} {sanitize_line(wanted)!r}", hint)

    def _take(self, path: Path) -> None:
        path = real_path(path.parent) / path.name
        shown = self._shown(path)
        if shown in self.files:
            return
        text = _read(path)
        if isinstance(text, _Reason):
            self.skipped[shown] = text
            return
        self._bytes += len(text)
        if self._bytes > MAX_TOTAL_BYTES:
            raise UsageError(
                f"these files hold more than {MAX_TOTAL_BYTES // 10**6} MB of text",
                "name fewer, or a directory further down",
            )
        self.files[shown] = file = ContextFile(shown, text)
        self.places[file] = real_path(path)

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self._base) if path.is_relative_to(self._base) else path)


class _Reason(str):
    """Why a file has no text for us."""

    __slots__ = ()


def _read(path: Path) -> str | _Reason:
    try:
        str(path).encode()
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return _Reason("not a file")
        if status.st_size > MAX_FILE_BYTES:
            return _Reason(f"larger than {MAX_FILE_BYTES // 10**6} MB")
        content = read_file(path, MAX_FILE_BYTES) or b""
        return _Reason("binary") if b"\0" in content else content.decode().removeprefix(_BOM)
    except UnicodeEncodeError:
        return _Reason("its name is not UTF-8")
    except UnicodeDecodeError:
        return _Reason("binary, or a text not in UTF-8")
    except OSError as err:
        return _Reason("a link to nothing" if path.is_symlink() else err.strerror or str(err))
    except SatchelError as err:
        cause = err.__cause__
        return _Reason(cause.strerror if isinstance(cause, OSError) and cause.strerror else err.one_line())


class _Walk:
    """Goes through a directory, by name, as .gitignore files let it.

    Args:
        visits: for what is looked at, and is neither ignored nor of another name than asked for.
        seen: for every name.

    Attributes:
        skipped: what could not be looked into, and why.
        faults: of the .gitignore files, one line each.
    """

    def __init__(self, base: Path, visits: Allowance, seen: Allowance | None = None) -> None:
        self.skipped: dict[Path, _Reason] = {}
        self.faults: list[str] = []
        self._base = base
        self._visits = visits
        self._seen = seen

    def all_in(self, folder: Path) -> Iterator[Path]:
        return self._files(folder, lambda path: True, lambda path: True)

    def matching(self, pattern: str) -> Iterator[Path]:
        """The files that a path with wildcards names."""
        parts = Path(full_path(pattern, self._base)).parts
        fixed = next((index for index, part in enumerate(parts) if has_wildcards(part)), len(parts))
        root = real_path(Path(*parts[:fixed]))
        wildcards = Wildcards(parts[fixed:])

        def under(path: Path) -> tuple[str, ...]:
            return path.parts[len(root.parts) :]

        if not is_dir(root):
            return iter(())
        return self._files(
            root, lambda path: wildcards.match(under(path)), lambda path: wildcards.may_hold(under(path))
        )

    def _files(
        self, root: Path, takes: Callable[[Path], bool], enters: Callable[[Path], bool]
    ) -> Iterator[Path]:
        """The regular files below `root` that it `takes`, of the directories that it `enters`.

        Links are not followed: what they lead to in `root` comes by its own name.
        """
        rules = Ignoring.of(root)
        self.faults = rules.faults
        waiting: list[tuple[Path, Ignoring | None]] = [(root, rules)]  # with its rules: a directory
        while waiting:
            path, rules_here = waiting.pop()
            if rules_here is None:
                yield path
                continue
            for entry in reversed(self._entries(path)):
                if self._seen:
                    self._seen.take()
                child, folder = path / entry.name, entry.is_dir(follow_symlinks=False)
                if not (enters if folder else takes)(child) or rules_here.ignores(child, is_dir=folder):
                    continue
                self._visits.take()
                if folder:
                    waiting.append((child, rules_here.below(child)))
                elif entry.is_file(follow_symlinks=False):
                    waiting.append((child, None))
                elif reason := _why_not(child, entry, root):
                    self.skipped[child] = reason

    def _entries(self, folder: Path) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                return sorted((each for each in entries if each.name != GIT), key=lambda each: each.name)
        except OSError as err:
            self.skipped[folder] = _Reason(err.strerror or str(err))
            return []


def _why_not(path: Path, entry: os.DirEntry[str], root: Path) -> _Reason | None:
    """Why what is no regular file is not read; None if it comes by another name."""
    if not entry.is_symlink():
        return _Reason("not a file")
    if not leads_somewhere(path):
        return _Reason("a link to nothing")
    inside = real_path(path).is_relative_to(root)
    return None if inside else _Reason("a link to outside of the directory")


def _told(skipped: dict[str, str]) -> Iterator[str]:
    """A line for each, or, of very many, for each reason."""
    if len(skipped) <= _MAX_SKIPPED:
        yield from (f"{sanitize_line(name)}: {reason}" for name, reason in sorted(skipped.items()))
        return
    reasons = Counter(skipped.values())
    for reason, count in sorted(reasons.items()):
        first = sanitize_line(min(name for name, why in skipped.items() if why == reason))
        yield f"{first}{f' and {count - 1} more' if count > 1 else ''}: {reason}"
