"""The settings file as text: read, and changed so that its comments stay. Knows nothing of which settings
there are.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from satchel.config import paths
from satchel.errors import SatchelError, UsageError
from satchel.files import atomic_write, cannot_write, private_dir, read_file

MAX_BYTES = 1 << 20
MAX_DEPTH = 20  # tables in tables
BOM = "\ufeff"  # some editors begin a file with it; TOML has none
EDIT = "`satchel config edit` opens it"
TRIES = 3  # of changing a file that somebody else changes, too

Tables = Mapping[str, Any]


def read_text() -> str:
    """What stands in the settings file; "" if there is none. Its line ends stay as they are.

    Raises:
        UsageError: it cannot be read, is no file, or is not UTF-8.
    """
    path = paths.config_file()
    if path == Path(os.devnull):
        return ""
    try:
        data = read_file(path, MAX_BYTES)
    except SatchelError as err:
        raise UsageError(str(err), err.hint or "SATCHEL_CONFIG names another file for the settings") from err
    try:
        return (data or b"").decode("utf-8")
    except UnicodeDecodeError as err:
        raise UsageError(f"{path} is not valid TOML: {err}", "write it in UTF-8") from err


def parse(text: str) -> dict[str, Any]:
    """
    Raises:
        UsageError: it is no TOML, and says where it goes wrong; or it is too large or nested too deeply.
    """
    path = paths.config_file()
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise UsageError(f"{path} would have more than {MAX_BYTES:,} bytes", "keep long texts in other files")
    try:
        tables = tomllib.loads(text.removeprefix(BOM))
    except (ValueError, RecursionError) as err:  # syntax, huge integers; deep nesting
        raise UsageError(f"{path} is not valid TOML: {err}", EDIT) from err
    level: list[Any] = [tables]
    for _ in range(MAX_DEPTH):
        level = [inner for table in level for inner in table.values() if isinstance(inner, dict)]
    if level:
        raise UsageError(f"{path} has tables in more than {MAX_DEPTH} tables", EDIT)
    return tables


def change(edit: Callable[[Any], None], check: Callable[[Tables, Tables], None]) -> None:
    """Change the file; the rest stays as it is written. It is made if need be, for its owner alone.

    Args:
        edit: gets the document as tomlkit has it.
        check: gets what the file says, and will say, and raises where one is not right.

    Raises:
        UsageError: the file is wrong already; nothing has changed.
        SatchelError: the disk refused, or somebody else changes it all the time; nothing has changed.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    with _locked():
        for _ in range(TRIES):
            text = read_text()
            before = parse(text)
            mark = BOM if text.startswith(BOM) else ""
            try:
                document = tomlkit.parse(text.removeprefix(BOM))
                edit(document)
                changed = tomlkit.dumps(document)
                check(before, parse(changed))
            except (TOMLKitError, TypeError, KeyError) as err:
                raise cannot_change() from err
            if replace(text, mark + changed):
                return
    raise SatchelError(f"{paths.config_file()} is changed by somebody else all the time", "try again")


def replace(before: str, text: str) -> bool:
    """Put `text` in place of the file's content, if that still is `before`; whether it was.

    A link, such as into a folder of dot files, stays one, and a file keeps its mode.

    Raises:
        SatchelError: the file is read-only, or the disk refused; nothing has changed.
    """
    mode = need_writable()
    if read_text() != before:
        return False
    if text != before:
        target = paths.config_file().resolve()
        atomic_write(target, text.encode())
        if mode is not None:
            with contextlib.suppress(OSError):
                target.chmod(mode & 0o777)
    return True


def need_writable() -> int | None:
    """The file's mode; None if there is none yet.

    Raises:
        SatchelError: the file is not to be changed.
    """
    path = paths.config_file()
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    except OSError as err:
        raise cannot_write(path, err) from err
    if not stat.S_ISREG(status.st_mode):
        raise SatchelError(f"{path} is no file", "SATCHEL_CONFIG names another one for the settings")
    # The file is replaced, not written to, which its own mode would not prevent.
    if not status.st_mode & 0o222 or not os.access(path, os.W_OK):
        raise SatchelError(f"{path} is read-only", "change it where it comes from, or make it writable")
    return status.st_mode


def cannot_change() -> SatchelError:
    return SatchelError(f"{paths.config_file()} is written in a way that cannot be changed here", EDIT)


def locate(tables: Any, key: str) -> tuple[Any, str] | None:
    """The table that holds the setting of a dotted key, and its name there, however the file writes it."""
    for name in tables:
        if name == key:
            return tables, name
        inner = tables[name]
        if key.startswith(f"{name}.") and isinstance(inner, Mapping):
            found = locate(inner, key[len(name) + 1 :])
            if found is not None:
                return found
    return None


@contextmanager
def _locked() -> Iterator[None]:
    """One change at a time: a lock on the file's directory, where the file system has locks."""
    folder = paths.config_file().parent
    try:
        private_dir(folder)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as err:
        raise cannot_write(paths.config_file(), err) from err
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
