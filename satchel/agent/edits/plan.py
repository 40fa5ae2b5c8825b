"""Edits to what they make of the files that they are of. Reads files, and writes none.

Edits come from a model: they change only files that the model was shown, and make new ones only in a
directory that the caller names.
"""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from satchel.agent.edits.edit import FileEdit
from satchel.agent.edits.naming import NO_FILE, header_name
from satchel.agent.edits.place import MisfitError, excerpt, find_place
from satchel.agent.edits.text import Changes, OverlapError, Text
from satchel.agent.places import is_dir, is_there, real_path
from satchel.errors import SatchelError
from satchel.files import read_file
from satchel.sanitize import sanitize_line

MAX_BYTES = 4_000_000  # of a file that is edited
_GIT = ".git"
_UNENDED = "\\ No newline at end of file"


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of one file.

    Attributes:
        path: as it is shown: what it is known by, if that leads there from the directory worked in.
        target: where it is, without links.
        before: what it holds now; None: it is not there.
        after: what it is to hold; None: it is to be deleted.
    """

    path: str
    target: Path
    before: bytes | None
    after: bytes | None

    def diff(self) -> str:
        """As a unified diff, which is right for `patch -p1` and `git apply`."""
        old, new = (_lines(content) for content in (self.before, self.after))
        old_name = NO_FILE if self.before is None else header_name("a", self.path)
        new_name = NO_FILE if self.after is None else header_name("b", self.path)
        lines = difflib.unified_diff(old, new, old_name, new_name)
        return "".join(line if line.endswith("\n") else f"{line}\n{_UNENDED}\n" for line in lines)


@dataclass(frozen=True, slots=True)
class EditPlan:
    """What edits make of files, and what keeps them from being made: one line each."""

    changes: tuple[Change, ...]
    faults: tuple[str, ...]

    def diff(self) -> str:
        """All changes as one unified diff. It is a model's text: whoever shows it sanitizes it."""
        return "".join(change.diff() for change in self.changes)


def plan_edits(
    edits: Sequence[FileEdit], known: Mapping[str, Path | str], base: Path | None = None
) -> EditPlan:
    """What `edits` make of the files that are `known`, one after the other.

    A file may be named by the end of its path, if only one ends so. A hunk goes where `find_place` finds it;
    lines keep the ends that the file has, and a byte order mark and a missing last newline stay as they are.

    Args:
        known: where the files are, by the paths that the model knows them by; or why one is not edited.
        base: the directory worked in, where new files may be made; nowhere if not given. Never above it, in
            a `.git`, or through a link out of it.
    """
    planner = _Planner(known, base)
    for edit in edits:
        planner.take(edit)
    return EditPlan(tuple(planner.changes()), tuple(dict.fromkeys(planner.faults)))


def shown_path(path: str, target: Path, base: Path) -> str:
    """`path` if it leads to `target` from `base`, else where that is."""
    return path if real_path(base / path) == target else str(target)


class _FaultError(ValueError):
    """Why an edit cannot be made."""


@dataclass(slots=True)
class _File:
    """A file as the edits so far leave it."""

    path: str
    target: Path
    before: bytes | None
    text: Text | None  # None: it is not there
    hunks: int = 0  # how many were taken, fitting or not
    faults: list[str] = field(default_factory=list)


class _Planner:
    def __init__(self, known: Mapping[str, Path | str], base: Path | None) -> None:
        self.faults: list[str] = []
        self._known = known
        self._base = real_path(base) if base else None
        self._files: dict[Path, _File] = {}
        self._made: dict[str, _File] = {}  # the new ones, by the paths that edits name them by

    def changes(self) -> Iterator[Change]:
        for file in self._files.values():
            after = None if file.text is None else str(file.text).encode("utf-8", "replace")
            if after != file.before:
                yield Change(file.path, file.target, file.before, after)

    def take(self, edit: FileEdit) -> None:
        name = sanitize_line(edit.path) or "an edit that names no file"
        try:
            if edit.fault:
                raise _FaultError(edit.fault)
            self._make(edit, self._file(edit))
        except _FaultError as fault:
            self.faults.append(f"{name}: {fault}")

    def _make(self, edit: FileEdit, file: _File) -> None:
        if edit.creates or (file.before is None and file.text is None):
            self._create(edit, file)
        elif not edit.hunks and not edit.deletes:
            raise _FaultError("it changes no line")
        elif not self._change(edit, file):
            return
        if edit.deletes:
            if file.text is None or file.text.bodies:
                raise _FaultError("it deletes the file, and does not show all that is in it")
            file.text = None

    def _create(self, edit: FileEdit, file: _File) -> None:
        if file.text and file.text.bodies:
            raise _FaultError("it writes a new file, and the file is there already, and not empty")
        lines = [line for hunk in edit.hunks for line in hunk.new]
        if any(line for hunk in edit.hunks for line in hunk.old if line.strip()):
            raise _FaultError("it writes a new file, and takes lines from one")
        ends_so = not any(hunk.final_newline is False for hunk in edit.hunks)
        has_bom = bool(file.text and file.text.has_bom)
        file.text = Text(lines, ["\n"] * len(lines), has_bom, ends_so)

    def _change(self, edit: FileEdit, file: _File) -> bool:
        """Make all hunks of `edit`, or none and note why; whether it could."""
        text = file.text
        if text is None:
            raise _FaultError("the file was deleted by an edit before")
        changes, final_newline, fits = Changes(), text.final_newline, True
        for hunk in edit.hunks:
            file.hunks += 1
            try:
                place = find_place(text.bodies, hunk)
                changes.add(place.removed(hunk), place.inserted(hunk))
            except (MisfitError, OverlapError) as err:
                why = str(err) or "it changes lines that an earlier hunk changes"
                first = next(iter(hunk.old or hunk.new), "")
                name = sanitize_line(file.path)
                self.faults.append(f"{name}: hunk {file.hunks} ({excerpt(first)}) does not fit: {why}")
                fits = False
                continue
            if hunk.final_newline is not None and place.start + len(hunk.old) == len(text.bodies):
                final_newline = hunk.final_newline
        if fits:
            changes.apply(text)
            text.final_newline = final_newline
        return fits

    # -- which file ----------------------------------------------------------------------------------

    def _file(self, edit: FileEdit) -> _File:
        if edit.path in self._made:
            return self._made[edit.path]
        shown = self._shown(edit.path, exactly=edit.creates)
        if shown is not None:
            place = self._known[shown]
            if isinstance(place, str):
                raise _FaultError(place)
            return self._opened(shown, real_path(place))
        creates = edit.creates or (bool(edit.hunks) and not any(hunk.old for hunk in edit.hunks))
        if not creates or edit.deletes:
            raise _FaultError("it is none of the files in context")
        target = self._new_target(edit.path)
        file = self._files.setdefault(target, _File(edit.path, target, None, None))
        self._made[edit.path] = file
        return file

    def _opened(self, shown: str, target: Path) -> _File:
        if target not in self._files:
            before = _content(target)
            path = shown_path(shown, target, self._base) if self._base else shown
            self._files[target] = _File(path, target, before, Text.of(_decoded(before)))
        return self._files[target]

    def _shown(self, path: str, *, exactly: bool) -> str | None:
        """The known path that is meant by `path`."""
        known = self._known
        if not path:
            return next(iter(known)) if len(known) == 1 else None
        bare = path.removeprefix("./")
        for name in (path, bare, bare.removeprefix("a/"), bare.removeprefix("b/"), f"/{bare}"):
            if name in known:
                return name
        if exactly:
            return None
        last_word = path.split()[-1:]
        if last_word and last_word[0] in known:
            return last_word[0]
        places = [name for name, place in known.items() if str(place) == path]
        parts = PurePosixPath(bare).parts
        ends = [name for name in known if parts and PurePosixPath(name).parts[-len(parts) :] == parts]
        meant = places or ends
        return meant[0] if len(meant) == 1 else None

    def _new_target(self, path: str) -> Path:
        """Where a new file goes.

        Raises:
            _FaultError: not there.
        """
        if self._base is None:
            raise _FaultError("it is none of the files in context, and new files are not made")
        pure = PurePosixPath(path)
        is_outside = pure.is_absolute() or ".." in pure.parts or path.startswith("~")
        if is_outside or not pure.name or path.endswith("/") or not path.isprintable():
            raise _FaultError("a new file cannot have this path: only one below the directory worked in")
        place = self._base / pure
        target = real_path(place.parent) / place.name
        if not target.is_relative_to(self._base):
            raise _FaultError("a link on its path leads out of the directory worked in")
        _check_no_git(target.relative_to(self._base))
        above = next(each for each in target.parents if is_there(each))
        if is_there(target) or not is_dir(above):
            raise _FaultError("it is none of the files in context, and something is there already")
        return target


def _content(target: Path) -> bytes:
    """
    Raises:
        _FaultError: the file is not one to edit.
    """
    _check_no_git(target)
    try:
        if not stat.S_ISREG(target.stat().st_mode):
            raise _FaultError("it is not a file")
        content = read_file(target, MAX_BYTES)
    except FileNotFoundError:
        content = None
    except (OSError, SatchelError) as err:
        raise _FaultError(f"it cannot be read: {err}") from err
    if content is None:
        raise _FaultError("the file is not there any more")
    if not os.access(target, os.W_OK):
        raise _FaultError("it may not be written to")
    return content


def _decoded(content: bytes) -> str:
    try:
        text = content.decode()
    except UnicodeDecodeError as err:
        raise _FaultError("it is not UTF-8") from err
    if "\0" in text:
        raise _FaultError("it is binary")
    return text


def _check_no_git(path: Path) -> None:
    if any(part.casefold() == _GIT for part in path.parts):
        raise _FaultError("nothing is written in a .git directory")


def _lines(content: bytes | None) -> list[str]:
    parts = (content or b"").decode().split("\n")
    ended = [f"{part}\n" for part in parts[:-1]]
    return [*ended, parts[-1]] if parts[-1] else ended
