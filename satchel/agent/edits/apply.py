"""Makes planned changes to files, all of them or none, and takes them back. Knows nothing of models.

What the files held is backed up before the first is written. A kill in between leaves a backup without a
state, which `recover` finds.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from satchel.agent.edits.backup import (
    APPLIED,
    UNDONE,
    Applied,
    BackedUp,
    digest,
    interrupted,
    keep,
    load_last,
    prune,
)
from satchel.agent.edits.plan import EditPlan
from satchel.agent.places import is_there, real_path
from satchel.cache_store.lock import FileLock
from satchel.errors import RefusedError, SatchelError, UsageError
from satchel.files import atomic_file, delete_file, read_file, sync

KEPT_BACKUPS = 100
_LOCK_TIMEOUT_S = 10
_MAX_BYTES = 64 << 20

__all__ = ["Applied", "apply_plan", "load_last", "recover", "undo"]


@dataclass(frozen=True, slots=True)
class _Step:
    """One file from what it holds to what it is to hold; None: it is not there.

    Attributes:
        folders: the directories that are only there for it.
    """

    path: str
    target: Path
    now: bytes | None
    then: bytes | None
    mode: int
    folders: tuple[Path, ...] = ()

    def reversed(self) -> _Step:
        return _Step(self.path, self.target, self.then, self.now, self.mode, self.folders)

    def is_due(self) -> bool:
        """Whether the file holds what it is to be changed from."""
        return real_path(self.target.parent) == self.target.parent and _content(self.target) == self.now

    def make(self) -> None:
        """
        Raises:
            OSError, SatchelError: the disk refused; the file is as it was.
        """
        if self.then is None:
            delete_file(self.target, durable=True)
            self.tidy()
            return
        for folder in self.folders:
            folder.mkdir(exist_ok=True)
            sync(folder.parent)
        with atomic_file(self.target) as work:
            work.write_bytes(self.then)
            work.chmod(self.mode)

    def tidy(self) -> None:
        """Remove the directories that were made for the file, where nothing is in them."""
        for folder in reversed(self.folders):
            with contextlib.suppress(OSError):
                folder.rmdir()


def apply_plan(plan: EditPlan, backups: Path) -> Applied:
    """Make all changes of `plan`. Files keep their permissions.

    Args:
        backups: the directory where what the files held is kept.

    Raises:
        UsageError: there is nothing to change.
        RefusedError: the plan has faults, or a file has changed since; nothing was changed.
        SatchelError: the disk refused; nothing was changed, unless it says so.
    """
    if plan.faults:
        raise RefusedError(f"the edits do not all fit: {plan.faults[0]}", "nothing was changed")
    if not plan.changes:
        raise UsageError("the edits change nothing")
    with _lock(backups):
        steps = [
            _Step(
                change.path,
                change.target,
                change.before,
                change.after,
                _mode(change.target),
                _missing_folders(change.target),
            )
            for change in plan.changes
        ]
        _check_due(steps)
        applied = keep(backups, [_backed_up(step) for step in steps], [step.now for step in steps])
        try:
            _make_all(steps)
        except BaseException:
            # Where not all could be put back, it stays an interrupted one.
            if all(step.is_due() for step in steps):
                applied.set_state(UNDONE)
            raise
        applied.set_state(APPLIED)
        prune(backups, KEPT_BACKUPS)
    return applied


def undo(applied: Applied) -> tuple[str, ...]:
    """Take `applied` back: all files hold what they held before. Returns their paths as shown.

    Raises:
        RefusedError: a file has changed since, or it was taken back already; nothing was changed.
        SatchelError: the disk refused, or the backup is damaged; nothing was changed, unless it says so.
    """
    with _lock(applied.folder.parent):
        if applied.state != APPLIED:
            raise RefusedError("these edits were taken back already")
        steps = _steps_back(applied)
        changed = [
            step.path
            for step, file in zip(steps, applied.files, strict=True)
            if _digest(step.now) != file.after
        ]
        if changed:
            raise RefusedError(f"changed since it was edited: {', '.join(changed)}", "nothing was undone")
        _take_back(applied, steps)
    return tuple(file.path for file in applied.files)


def recover(backups: Path) -> tuple[str, ...]:
    """Take back what was interrupted in the middle. Returns a line for each file that was put back or could
    not be, because it has changed since.

    Raises:
        SatchelError: the disk refused, or a backup is damaged.
    """
    told: list[str] = []
    if not backups.is_dir():
        return ()
    with _lock(backups):
        for applied in interrupted(backups):
            steps = []
            for step, file in zip(_steps_back(applied), applied.files, strict=True):
                if step.now == step.then:
                    continue
                if _digest(step.now) == file.after:
                    steps.append(step)
                    told.append(f"{file.path}: an interrupted edit was taken back")
                else:
                    told.append(f"{file.path}: changed since an interrupted edit; see {applied.folder}")
            _take_back(applied, steps)
    return tuple(told)


def _take_back(applied: Applied, steps: Sequence[_Step]) -> None:
    applied.set_state("")  # interrupted, it is found and taken back all the same
    try:
        _make_all(list(reversed(steps)))
    except BaseException:
        if all(step.is_due() for step in steps):
            applied.set_state(APPLIED)
        raise
    applied.set_state(UNDONE)


def _make_all(steps: Sequence[_Step]) -> None:
    """Make `steps`, or none of them.

    Raises:
        SatchelError: one could not be made; those before it are put back, or named if they could not be.
    """
    made: list[_Step] = []
    try:
        for step in steps:
            _check_due([step])
            made.append(step)
            step.make()
    except BaseException as err:
        left = [step.path for step in reversed(made) if not _put_back(step)]
        if left:
            raise SatchelError(f"could not put back what was there before: {', '.join(left)}") from err
        if isinstance(err, OSError):
            path = made[-1].path
            raise SatchelError(f"cannot write {path}: {err.strerror or err}", "nothing was changed") from err
        raise


def _put_back(step: _Step) -> bool:
    """Undo a step that was made, or was about to be; whether the file is as it was."""
    try:
        if not step.is_due():
            step.reversed().make()
        elif step.now is None:
            step.tidy()
    except (OSError, SatchelError):
        return False
    return True


def _check_due(steps: Sequence[_Step]) -> None:
    changed = [step.path for step in steps if not step.is_due()]
    if changed:
        raise RefusedError(f"changed since it was read: {', '.join(changed)}", "nothing was changed")


def _steps_back(applied: Applied) -> list[_Step]:
    return [
        _Step(
            file.path,
            Path(file.target),
            _content(Path(file.target)),
            applied.before(index),
            file.mode,
            tuple(map(Path, file.folders)),
        )
        for index, file in enumerate(applied.files)
    ]


def _backed_up(step: _Step) -> BackedUp:
    return BackedUp(
        path=step.path,
        target=str(step.target),
        before=_digest(step.now),
        after=_digest(step.then),
        mode=step.mode,
        folders=tuple(map(str, step.folders)),
    )


def _content(target: Path) -> bytes | None:
    return read_file(target, _MAX_BYTES)


def _digest(content: bytes | None) -> str | None:
    return None if content is None else digest(content)


def _mode(target: Path) -> int:
    """The permissions of a file, or those that a new one gets."""
    try:
        return stat.S_IMODE(target.stat().st_mode)
    except OSError:
        # The only way to ask; meanwhile, files of other threads are private rather than public.
        mask = os.umask(0o077)
        os.umask(mask)
        return 0o666 & ~mask


def _missing_folders(target: Path) -> tuple[Path, ...]:
    """The directories that have to be made for a file, the outermost first."""
    return tuple(folder for folder in reversed(target.parents) if not is_there(folder))


def _lock(backups: Path) -> FileLock:
    return FileLock(backups / "lock", _LOCK_TIMEOUT_S)
