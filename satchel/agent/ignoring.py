"""What git would ignore in a directory: .gitignore files, from the repository's root down.

Knows nothing of what files hold. A user's own excludes file (`core.excludesFile`) is not looked at.
"""

from __future__ import annotations

from pathlib import Path

from pathspec import GitIgnoreSpec

from satchel.agent.places import is_file, is_there
from satchel.errors import SatchelError
from satchel.files import is_link, read_file

GIT = ".git"
_NAME = ".gitignore"
_MAX_BYTES = 1 << 20


class Ignoring:
    """The rules for what is in `folder`: its own, and those of the directories above it.

    Args:
        folder: absolute and without links.
        above: the rules for the directory that it is in, or what holds there.

        file: where its own rules are, if not in its .gitignore.

    Attributes:
        faults: of the rules here and above that could not be read, one line each.
    """

    def __init__(self, folder: Path, above: Ignoring | None = None, file: Path | None = None) -> None:
        self.faults: list[str] = above.faults if above else []
        self._folder = folder
        self._above = above
        self._spec = self._read(file or folder / _NAME)

    @classmethod
    def of(cls, folder: Path) -> Ignoring:
        """The rules for `folder` in the repository that it is in.

        In no repository, or where the repository ignores `folder` itself, only its own rules count: whoever
        names a directory wants what is in it.
        """
        places = [folder, *folder.parents]
        root = next((place for place in places if is_there(place / GIT)), None)
        if root is None:
            return cls(folder)
        rules = cls(root, cls(root, file=root / GIT / "info" / "exclude"))
        for place in reversed(places[: places.index(root)]):
            if rules.ignores(place, is_dir=True):
                return cls(folder)
            rules = rules.below(place)
        return rules

    def below(self, folder: Path) -> Ignoring:
        """The rules for `folder`, a directory directly in this one."""
        return Ignoring(folder, self)

    def ignores(self, path: Path, *, is_dir: bool) -> bool:
        """Whether what is at `path`, somewhere in this directory, is ignored.

        As git does, the nearest file that says something of it decides. What is in an ignored directory is
        not asked after: a caller does not go there.
        """
        rules: Ignoring | None = self
        while rules is not None:
            if rules._spec is not None:
                name = path.relative_to(rules._folder).as_posix()
                said = rules._spec.check_file(f"{name}/" if is_dir else name).include
                if said is not None:
                    return said
            rules = rules._above
        return False

    def _read(self, file: Path) -> GitIgnoreSpec | None:
        """The rules in `file`, if there is such a file. Links are not followed, as git follows none there."""
        if not is_file(file) or is_link(file):
            return None
        try:
            data = read_file(file, _MAX_BYTES)
        except SatchelError as err:
            self.faults.append(f"{err}: its rules are not followed")
            return None
        # Names that are not UTF-8 reach us with surrogates for the bytes that are not.
        text = (data or b"").decode("utf-8", "surrogateescape").removeprefix("\ufeff")
        lines = [line for raw in text.split("\n") if (line := _usable(raw.removesuffix("\r")))]
        return GitIgnoreSpec.from_lines(lines) if lines else None


def _usable(line: str) -> str:
    """`line` if it holds a rule, as pathspec takes it; git passes over rules that say nothing, too."""
    if line.endswith("/**"):
        line = line[:-1]  # pathspec takes `a/**` for `a` itself, too; its `a/*` is all that is below
    try:
        GitIgnoreSpec.from_lines([line])
    except ValueError:
        return ""
    return line if line.strip() and not line.startswith("#") else ""
