"""What files held before edits changed them, so that these can be taken back. Knows nothing of edits."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from satchel.errors import DamagedError
from satchel.files import atomic_write, cannot_write, delete_file, list_dir, private_dir, read_file

_MANIFEST = "manifest.json"
_STATE = "state"
_NUMBER = re.compile(r"\d{6,}")
_MAX_MANIFEST_BYTES = 4 << 20
_MAX_STATE_BYTES = 64
_MAX_FILE_BYTES = 64 << 20

# Of a backup; one without any was interrupted, and so was whatever it is for.
APPLIED, UNDONE = "applied", "undone"

_Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class BackedUp(_Strict):
    """One file that edits change.

    Attributes:
        path: as it is shown.
        target: where it is.
        before, after: the digests of what it held and of what it is to hold; None: it was or is not there.
        mode: its permissions.
        folders: the directories that are made for it, the outermost first.
    """

    path: str
    target: str
    before: _Sha256 | None
    after: _Sha256 | None
    mode: Annotated[int, Field(ge=0, le=0o7777)]
    folders: Annotated[tuple[str, ...], Field(strict=False)] = ()


class Manifest(_Strict):
    """What a backup holds: file `n` is in the one called `n`."""

    version: Literal[1] = 1
    files: Annotated[tuple[BackedUp, ...], Field(strict=False)]


@dataclass(frozen=True, slots=True)
class Applied:
    """Edits that were made, and where what was before them is kept."""

    folder: Path
    files: tuple[BackedUp, ...]

    def before(self, index: int) -> bytes | None:
        """What file `index` held.

        Raises:
            SatchelError: the backup is not there, or damaged.
        """
        wanted = self.files[index].before
        if wanted is None:
            return None
        content = read_file(self.folder / str(index), _MAX_FILE_BYTES)
        if content is None or digest(content) != wanted:
            raise DamagedError(f"the backup {self.folder / str(index)} is missing or damaged")
        return content

    @property
    def state(self) -> str:
        """What became of it; "" if it was interrupted."""
        return (read_file(self.folder / _STATE, _MAX_STATE_BYTES) or b"").decode("ascii", "replace")

    def set_state(self, state: str) -> None:
        """
        Raises:
            SatchelError: the disk refused.
        """
        if state:
            atomic_write(self.folder / _STATE, state.encode())
        else:
            delete_file(self.folder / _STATE, durable=True)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def keep(backups: Path, files: Sequence[BackedUp], contents: Sequence[bytes | None]) -> Applied:
    """A new backup of `files`, durable, and without a state.

    Args:
        contents: what each of the files holds; None: it is not there.

    Raises:
        SatchelError: the disk refused.
    """
    folder = _new_folder(backups)
    for index, content in enumerate(contents):
        if content is not None:
            atomic_write(folder / str(index), content)
    manifest = Manifest(files=tuple(files)).model_dump_json(indent=1)
    atomic_write(folder / _MANIFEST, manifest.encode(), flush_drive=True)
    return Applied(folder, tuple(files))


def load_last(backups: Path) -> Applied | None:
    """The newest edits that were made and not taken back; None if there are none.

    Raises:
        SatchelError: they cannot be read.
    """
    return next((applied for applied in _newest_first(backups) if applied.state == APPLIED), None)


def interrupted(backups: Path) -> list[Applied]:
    """The backups of edits that were neither made nor taken back as a whole, the newest first.

    Raises:
        SatchelError: they cannot be read.
    """
    return [applied for applied in _newest_first(backups) if not applied.state]


def prune(backups: Path, kept: int) -> None:
    """Delete all backups but the newest `kept`.

    Raises:
        SatchelError: one cannot be deleted.
    """
    for folder in _folders(backups)[:-kept]:
        for file in list_dir(folder):
            delete_file(file)
        try:
            folder.rmdir()
        except OSError as err:
            raise cannot_write(folder, err) from err


def _newest_first(backups: Path) -> Iterator[Applied]:
    for folder in reversed(_folders(backups)):
        content = read_file(folder / _MANIFEST, _MAX_MANIFEST_BYTES)
        if content is None:
            continue  # it was not whole when it was interrupted, so nothing else was written
        try:
            yield Applied(folder, Manifest.model_validate_json(content).files)
        except ValidationError as err:
            raise DamagedError(f"the backup {folder} is damaged, or of another version") from err


def _folders(backups: Path) -> list[Path]:
    named = [path for path in list_dir(backups) if _NUMBER.fullmatch(path.name)]
    return sorted(named, key=lambda path: int(path.name))


def _new_folder(backups: Path) -> Path:
    private_dir(backups)
    folders = _folders(backups)
    folder = backups / f"{int(folders[-1].name) + 1 if folders else 1:06d}"
    try:
        folder.mkdir(mode=0o700)
    except OSError as err:
        raise cannot_write(folder, err) from err
    return folder
