"""What one command leaves for the next: the directory it ended in, and its exported variables.

The shell itself tells, in files beside its output. Knows nothing of what commands print or of how they end.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from pathlib import Path

from satchel.errors import NotFoundError

MAX_STATE_BYTES = 1 << 20  # of a directory and variables; a kernel passes hardly more to a process

# Satchel's own secrets, which no command needs.
SECRET_PREFIXES = ("SATCHEL_PASSPHRASE", "SATCHEL_RECOVERY_WORDS", "SATCHEL_S3_")

_PREVIOUS = "OLDPWD"
_CWD = "SATCHEL_SHELL_CWD"
_STATUS = "satchel_shell_status"
# What shells keep for themselves, and what is ours.
_NOT_CARRIED = {"_", "SHLVL", "PWD", _PREVIOUS, _CWD, _STATUS}
# Names as shells write them, and the functions that bash exports
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|BASH_FUNC_[^=\s]+%%")

_BEFORE, _AFTER = "before", "after"


class Surroundings:
    """The directory that commands start in, and the variables that they get."""

    def __init__(self, cwd: Path) -> None:
        self.cwd = cwd
        self._previous: str | None = None  # where `cd -` leads
        self._changes: dict[str, str | None] = {}  # None: commands have unset it

    def check_cwd(self) -> None:
        """Make sure that there is a directory to run in.

        Raises:
            NotFoundError: it is gone. The next command runs in what is left of the path to it.
        """
        if self.cwd.is_dir():
            return
        gone, self.cwd = self.cwd, next(path for path in self.cwd.parents if path.is_dir())
        raise NotFoundError(f"the directory {gone} is gone", f"commands run in {self.cwd} now")

    def environment(self) -> dict[str, str]:
        """The variables of the next command: Satchel's but for secrets, as commands have changed them."""
        places = {"PWD": str(self.cwd), _PREVIOUS: self._previous}
        changed = {**os.environ, **self._changes, **places}
        return {
            name: value
            for name, value in changed.items()
            if value is not None and not name.startswith(SECRET_PREFIXES)
        }

    def script(self, shell: str, command: str, notes: Path) -> str:
        """What `shell -c` is to run: `command`, and the surroundings before and after it put down in `notes`.

        Its exit code is the command's. A command that replaces the shell (exec), or that exits by itself and
        has an EXIT trap of its own, leaves nothing to learn.
        """
        for name in (_BEFORE, _AFTER):  # made here, so that the command's umask does not matter
            (notes / name).touch(mode=0o600)
        previous, cwd = self._previous, str(self.cwd)
        if shell == "fish":
            trail = f"set -g dirprev {_fish_quoted(previous or cwd)}; set -g __fish_cd_direction prev"
            return _fish_script(command, notes, trail if previous else "")
        start = ":"
        if shell == "zsh" and previous:  # which does not take OLDPWD from the environment
            away, back = (f"builtin cd -q {shlex.quote(place)}" for place in (previous, cwd))
            start = f"{away} 2>/dev/null && {{ {back} || exit; }}"
        return _posix_script(shell, command, notes, start)

    def learn(self, notes: Path) -> None:
        """Take over what the script of a command has noted down; nothing, if it did not come to it."""
        after = _read(notes / _AFTER)
        if after is None:
            return
        before = _read(notes / _BEFORE)
        cwd = Path(after.pop(_CWD))
        if cwd != self.cwd and cwd.is_absolute() and cwd.is_dir():
            old = (before or {}).get(_PREVIOUS)
            told = after.get(_PREVIOUS, old)
            self._previous = str(self.cwd) if told == old else told  # not all shells tell
            self.cwd = cwd
        if before is None:
            return
        # Only what the command itself changed: what the shell's start-up files set, they set again.
        changed = {name: value for name, value in after.items() if before.get(name) != value}
        gone = {name: None for name in before if name not in after}
        self._changes.update({name: value for name, value in (changed | gone).items() if _is_carried(name)})


def _is_carried(name: str) -> bool:
    return (
        name not in _NOT_CARRIED
        and not name.startswith(SECRET_PREFIXES)
        and _NAME.fullmatch(name) is not None
    )


def _read(path: Path) -> dict[str, str] | None:
    """The variables noted in `path`; None if they are not whole."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            data = file.read(MAX_STATE_BYTES + 1)
    except OSError:
        return None
    if not path.with_suffix(".whole").exists() or len(data) > MAX_STATE_BYTES:
        return None
    entries = (os.fsdecode(entry).partition("=") for entry in data.split(b"\0"))
    variables = {name: value for name, _, value in entries}
    # `pwd` ends its answer with a newline; the dot behind it keeps those that are the name's from being cut.
    variables[_CWD] = variables.get(_CWD, "").removesuffix(".").removesuffix("\n")
    return variables


def _open_at_once(path: str, flags: int) -> int:
    """An opener for what may stand in a note's place: it waits for no pipe, and follows no link."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def _posix_script(shell: str, command: str, notes: Path, start: str) -> str:
    builtin = "builtin" if shell in ("bash", "zsh") else "command"

    def note(name: str) -> str:
        file, whole = (shlex.quote(str(notes / name) + suffix) for suffix in ("", ".whole"))
        cwd = f'"{_CWD}=$({builtin} pwd -P; echo .)"'
        return f"/usr/bin/env -0 {cwd} >|{file} && : >|{whole} || :"

    # One compound command, which the shell reads as a whole, and an eval: a syntax error or a missing quote
    # reaches no further. Errors of the notes, and what `set -x` says of them, go nowhere.
    return "\n".join(
        [
            "{",
            start,
            f"{{ {note(_BEFORE)}; }} 2>/dev/null",
            f"trap {shlex.quote(f'{{ {note(_AFTER)}; }} 2>/dev/null')} EXIT",
            f"eval {shlex.quote(command)}",
            # Again, for commands that set an EXIT trap of their own.
            f"{{ {_STATUS}=$?; set +exv; {note(_AFTER)}; }} 2>/dev/null",
            f"exit ${_STATUS}",
            "}",
        ]
    )


def _fish_script(command: str, notes: Path, start: str) -> str:
    def note(name: str) -> str:
        file, whole = (_fish_quoted(str(notes / name) + suffix) for suffix in ("", ".whole"))
        cwd = f"{_CWD}=(builtin pwd -P | string collect -N)."
        return f"begin; /usr/bin/env -0 {cwd} >{file}; and true >{whole}; end 2>/dev/null"

    return "\n".join(
        [
            start,
            note(_BEFORE),
            f"function {_STATUS} --on-event fish_exit; {note(_AFTER)}; end",
            "true",
            f"eval {_fish_quoted(command)}",
        ]
    )


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
