"""An answer's text to the edits in it: unified diffs and SEARCH/REPLACE blocks. Knows nothing of files.

The text is a model's: whatever it is, nothing here raises. An edit that is cut off or says what cannot be
done is an edit with a fault, so that those beside it are not made without it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from satchel.agent.edits.edit import FileEdit, Hunk, Kind, Line, replacing
from satchel.agent.edits.naming import (
    NO_FILE,
    git_paths,
    header_path,
    named_above,
    named_in_fence,
    without_prefixes,
)

_SEARCH = re.compile(r"^(\s*)<{5,9} ?SEARCH>?\s*$")
_DIVIDER = re.compile(r"^\s*={5,9}\s*$")
_REPLACE = re.compile(r"^\s*>{5,9} ?REPLACE\s*$")
_FENCE = re.compile(r"^([ \t]*)(`{3,}|~{3,})(.*)$")
_HUNK = re.compile(r"^@@(?:\s+-(\d{1,9})(?:,(\d{1,9}))?\s+\+(\d{1,9})(?:,(\d{1,9}))?\s+@@)?")
_GIT = "diff --git "
_DIFF_LANGUAGES = ("diff", "patch", "udiff")
_LINES_ABOVE = 3  # how far above an edit its file's name may stand
_PREFIXES = " +-"
_CUT_OFF = "the answer ends within it"


def parse_edits(answer: str) -> list[FileEdit]:
    """The edits in `answer`, in its order; one for each SEARCH/REPLACE block, and for each file of a diff.

    A diff may stand between fences or not, and its line numbers may be wrong or missing. Of a diff between
    fences the file's name may stand above it instead of in it.
    """
    return _Reader(answer).edits()


@dataclass(slots=True)
class _Fence:
    """An open fence. Its content is indented as it is, and its file's name may stand with it."""

    indent: str
    marks: str
    info: str
    path: str

    def is_closed_by(self, line: str) -> bool:
        match = _FENCE.match(line)
        return bool(match and match[2].startswith(self.marks) and not match[3].strip())


@dataclass(slots=True)
class _Reader:
    """Goes through an answer's lines once."""

    answer: str
    _lines: list[str] = field(default_factory=list)
    _at: int = 0
    _fence: _Fence | None = None
    _path: str = ""  # of the last edit
    _after_edit: int = 0  # the line behind it

    def edits(self) -> list[FileEdit]:
        self._lines = [line.removesuffix("\r") for line in self.answer.split("\n")]
        found: list[FileEdit] = []
        while self._at < len(self._lines):
            edit = self._edit()
            if edit is None:
                self._turn_fence()
                self._at += 1
                continue
            found.append(edit)
            self._path, self._after_edit = edit.path, self._at
        return found

    def _edit(self) -> FileEdit | None:
        """The edit that begins at this line, which is then behind it; None if none does."""
        if _SEARCH.match(self._lines[self._at]):
            return self._block()
        if self._line().startswith(_GIT) or self._is_header():
            return self._diff()
        if self._begins_hunks():
            path = self._fence.path if self._fence else self._named_above()
            return self._ended(FileEdit(path or self._path, self._hunks()))
        return None

    def _begins_hunks(self) -> bool:
        """Whether hunks stand here without the names of files: by a heading, or by what the fence says."""
        line = self._line()
        heading = _HUNK.match(line)
        if not self._fence:
            return bool(heading and heading[1])
        language = self._fence.info.split()[:1]
        is_diff = bool(language) and language[0].lower() in _DIFF_LANGUAGES
        return bool(heading) or (is_diff and bool(line.strip()) and line[0] in _PREFIXES)

    # -- fences --------------------------------------------------------------------------------------

    def _turn_fence(self) -> None:
        """Note whether a fence opens or closes here."""
        line = self._lines[self._at]
        if self._fence:
            if self._fence.is_closed_by(line):
                self._fence = None
        elif match := _FENCE.match(line):
            path = named_in_fence(match[3]) or self._named_above()
            self._fence = _Fence(match[1], match[2], match[3], path)

    def _line(self, ahead: int = 0) -> str:
        """This line, or one `ahead`, without the indentation of its fence; "" behind the last."""
        at = self._at + ahead
        if at >= len(self._lines):
            return ""
        return self._lines[at].removeprefix(self._fence.indent if self._fence else "")

    def _named_above(self) -> str:
        """The name of a file in the lines above this one, or the last edit's if nothing stands between."""
        for at in range(self._at - 1, max(self._at - 1 - _LINES_ABOVE, -1), -1):
            if at < self._after_edit:
                return self._path
            line = self._lines[at]
            fence = _FENCE.match(line)
            if fence and (path := named_in_fence(fence[3])):
                return path
            if line.strip() and not fence:
                return named_above(line) or self._path
        return self._path

    # -- SEARCH/REPLACE blocks -----------------------------------------------------------------------

    def _block(self) -> FileEdit:
        """One block, whose markers stand in lines of their own; what is between them may hold fences."""
        opening = _SEARCH.match(self._lines[self._at])
        assert opening is not None
        path, indent = self._named_above(), opening[1]
        if self._fence and not path:
            path = self._fence.path
        parts: list[list[str]] = [[]]
        self._at += 1
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if _SEARCH.match(line):
                break
            self._at += 1
            if _REPLACE.match(line) and len(parts) == 2:
                old, new = parts
                return FileEdit(path, (replacing(old, new),), creates=not any(text.strip() for text in old))
            if _DIVIDER.match(line) and len(parts) == 1:
                parts.append([])
            else:
                parts[-1].append(line.removeprefix(indent))
        missing = ">>>>>>> REPLACE" if len(parts) == 2 else "======="
        return FileEdit(path, fault=f"the block has no line `{missing}`")

    # -- unified diffs -------------------------------------------------------------------------------

    def _is_header(self, ahead: int = 0) -> bool:
        """Whether the names of a diff's files stand here, which could be a removed and an added line, too."""
        old, new = self._line(ahead), self._line(ahead + 1)
        if not (old.startswith("--- ") and new.startswith("+++ ")):
            return False
        if self._line(ahead + 2).startswith("@@"):
            return True
        return old[4:].startswith(("a/", NO_FILE)) and new[4:].startswith(("b/", NO_FILE))

    def _diff(self) -> FileEdit:
        """The diff of one file."""
        edit, named = FileEdit(""), None
        if self._line().startswith(_GIT):
            named = git_paths(self._line()[len(_GIT) :])
            self._at += 1
            edit = self._extended(FileEdit(named[1] if named else ""))
        if not self._is_header():
            if not (edit.creates or edit.deletes or edit.fault):
                edit = replace(edit, fault="it changes no line")
            return edit
        old, new = without_prefixes(header_path(self._line()[4:]), header_path(self._line(1)[4:]))
        self._at += 2
        fault = edit.fault
        if NO_FILE not in (old, new) and old != new:
            fault = f"it renames {old} to {new}, which is not done"
        path = new if new != NO_FILE else old
        hunks = self._hunks()
        if not hunks and not edit.creates and NO_FILE not in (old, new):
            fault = fault or "it changes no line"
        creates, deletes = edit.creates or old == NO_FILE, edit.deletes or new == NO_FILE
        return self._ended(FileEdit(path, hunks, creates, deletes, fault))

    def _extended(self, edit: FileEdit) -> FileEdit:
        """What the lines behind a `diff --git` say of the file as a whole."""
        while self._at < len(self._lines):
            line = self._line()
            if line.startswith("new file mode"):
                edit = replace(edit, creates=True)
            elif line.startswith("deleted file mode"):
                edit = replace(edit, deletes=True)
            elif line.startswith(("rename ", "copy ")):
                edit = replace(edit, fault="it renames or copies a file, which is not done")
            elif line.startswith(("GIT binary patch", "Binary files ")):
                edit = replace(edit, fault="it changes a binary file")
            elif not line.startswith(("index ", "old mode", "new mode", "similarity ", "dissimilarity ")):
                break
            self._at += 1
        return edit

    def _ended(self, edit: FileEdit) -> FileEdit:
        """`edit`, with a fault where the answer ends before the fence that it is in."""
        if self._fence and self._at >= len(self._lines) and not edit.fault:
            return replace(edit, fault=_CUT_OFF)
        return edit

    def _hunks(self) -> tuple[Hunk, ...]:
        """The hunks from here on: up to the next file, the fence's end, or what is no line of a diff."""
        hunks: list[Hunk] = []
        while self._at < len(self._lines) and not self._is_end():
            heading = _HUNK.match(self._line())
            if not heading and not self._line().strip():
                if not (self._fence or _HUNK.match(self._line(1))):
                    break
                self._at += 1
                continue
            if heading:
                self._at += 1
            elif not self._fence and self._line()[0] not in _PREFIXES:
                break
            groups = heading.groups() if heading else (None,) * 4
            if hunk := self._hunk([int(group) if group else None for group in groups]):
                hunks.append(hunk)
        return tuple(hunks)

    def _is_end(self) -> bool:
        if self._fence and self._fence.is_closed_by(self._lines[self._at]):
            return True
        return self._line().startswith(_GIT) or self._is_header() or bool(_SEARCH.match(self._line()))

    def _hunk(self, numbers: list[int | None]) -> Hunk | None:
        """The lines of one hunk; None if there are none."""
        old_start, old_count, new_start, new_count = numbers
        old_lines = 1 if old_count is None else old_count
        new_lines = 1 if new_count is None else new_count
        body = _Body()
        while self._at < len(self._lines) and not self._is_end() and not self._line().startswith("@@"):
            line = self._line()
            is_whole = new_start is not None and body.old >= old_lines and body.new >= new_lines
            # Outside of fences the answer's own words follow, perhaps as a list with dashes.
            if not self._fence and not line and (is_whole or self._line(1)[:1] not in tuple(_PREFIXES)):
                break
            if not body.add(line, is_fenced=self._fence is not None):
                break
            self._at += 1
        return body.hunk(old_start, inserts=old_count == 0)


@dataclass(slots=True)
class _Body:
    """The lines of a hunk as they come."""

    lines: list[Line] = field(default_factory=list)
    old: int = 0  # how many were in the file before
    new: int = 0
    _blank: int = 0  # how many of the last are blank in the answer, too, and may not belong to the hunk
    _unended: set[Kind] = field(default_factory=set)

    def add(self, line: str, *, is_fenced: bool) -> bool:
        """Take a line; whether it is one of a hunk's."""
        if line.startswith("\\"):
            if self.lines:
                self._unended.add(self.lines[-1].kind)
            return True
        if line and line[0] in _PREFIXES:
            kind, text = Kind(line[0]), line[1:]
        elif not line or is_fenced:  # models forget the space before a line that stays
            kind, text = Kind.KEPT, line
        else:
            return False
        self.lines.append(Line(kind, text))
        self.old += kind is not Kind.ADDED
        self.new += kind is not Kind.REMOVED
        self._blank = 0 if line else self._blank + 1
        return True

    def hunk(self, line: int | None, *, inserts: bool) -> Hunk | None:
        lines = self.lines[: len(self.lines) - self._blank]
        if not lines:
            return None
        final_newline = None
        if Kind.ADDED in self._unended:
            final_newline = False
        elif self._unended == {Kind.REMOVED}:
            final_newline = True
        return Hunk(tuple(lines), line, final_newline, inserts)
