"""`satchel config …`: the settings, where they come from, and changing them in their file.

What takes long to import (the settings, the editor of TOML) is imported inside the commands that need it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from satchel.cli.options import AsJson, at_terminal, examples, report
from satchel.cli.schemas import print_json
from satchel.config import paths
from satchel.errors import NotFoundError, RefusedError, SatchelError, UsageError
from satchel.terminal.sanitize import sanitize

if TYPE_CHECKING:
    from satchel.config.settings import SettingInForce

config = typer.Typer(
    help="See and change the settings.",
    epilog=examples("satchel config show", "satchel config set temperature 0.3", "satchel config edit"),
)

Key = Annotated[str, typer.Argument(help="Such as max_tokens, sync.auto or models.NAME.")]
Value = bool | int | float | str | None

EDITORS = ("nano", "vi")  # where neither VISUAL nor EDITOR names one
WIDEST_SETTING = 34  # columns before the comments begin, unless a setting is longer


@dataclass(frozen=True, slots=True)
class SettingRecord:
    """A setting in force."""

    key: Annotated[str, "its name; a dot follows the table that it stands in"]
    value: Annotated[bool | int | float | str | None, "null: not set"]
    origin: Annotated[str, "`default`, `file` or `environment`"]
    default: Annotated[bool | int | float | str | None, "what it is where nothing sets it"]
    meaning: Annotated[str, "one line"]
    allowed: Annotated[str, "what its value may be"]
    variable: Annotated[str, "its name in the environment; empty: it has none"]


@dataclass(frozen=True, slots=True)
class SettingsRecord:
    """All settings in force."""

    file: Annotated[str, "the settings file, be it there or not"]
    settings: Annotated[list[SettingRecord], "in the order of the documentation"]


@dataclass(frozen=True, slots=True)
class SettingsFileRecord:
    """The settings file."""

    path: Annotated[str, "where it is, or belongs"]
    exists: Annotated[bool, "whether it is there"]


@dataclass(frozen=True, slots=True)
class UnsetRecord:
    """A setting that was taken out of the file."""

    key: Annotated[str, "its name"]
    changed: Annotated[bool, "whether it stood in the file"]


@config.command(
    "show",
    epilog=examples(
        "satchel config show",
        "satchel config show --origin  # with the file or the variable that sets each",
        "satchel config show --json",
    ),
)
def show(
    origin: Annotated[
        bool, typer.Option("--origin", help="Name the file or the variable that a value comes from.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Every setting in force, where it comes from, and what it means.

    The output is right as a settings file, too.
    """
    from satchel.config.settings import settings_in_force

    found = settings_in_force()
    if as_json:
        print_json(SettingsRecord(str(paths.config_file()), [_record(each) for each in found]))
        return
    lines = [(_as_toml(each), _comment(each, origin)) for each in found]
    width = max((len(left) for left, _ in lines if len(left) <= WIDEST_SETTING), default=0)
    for left, comment in lines:
        print(sanitize(f"{left:<{width}}  # {comment}"))


@config.command(
    "get",
    epilog=examples(
        "satchel config get model",
        "satchel config get sync  # all of a table",
        "satchel config get max_tokens --json",
    ),
)
def get(key: Key, as_json: AsJson = False) -> None:
    """The value of a setting, or of all settings in a table; an empty line if it is not set."""
    from satchel.config.settings import setting

    found = setting(key)
    if as_json:
        records = [_record(each) for each in found]
        print_json(records)
    elif [each.key for each in found] == [key]:
        print(sanitize(_as_text(_record(found[0]).value)))
    else:
        for each in found:
            print(sanitize(_as_toml(each)))


@config.command(
    "set",
    # So that `set seed -1` gets an answer about seeds, not about an option -1.
    context_settings={"ignore_unknown_options": True},
    epilog=examples(
        "satchel config set max_tokens 2000",
        "satchel config set max_store_size 20GB",
        "satchel config set sync.auto true",
        "satchel config set models.fast mlx-community/Qwen3-0.6B-4bit  # then: satchel chat --model fast",
    ),
)
def set_(
    key: Key,
    value: Annotated[str, typer.Argument(help="As one would say it: 0.3, true, 20GB, vi.")],
    as_json: AsJson = False,
) -> None:
    """Change a setting in the settings file. Comments and all else in it stay."""
    from satchel.config.settings import set_text_in_file

    done = set_text_in_file(key, value)
    if as_json:
        print_json(_record(done))
        return
    if done.origin == "environment":
        report(
            f"{key} is set in {paths.config_file()}, but {done.variable} in the environment goes before it"
        )
    else:
        report(f"{_as_toml(done)} in {paths.config_file()}")


@config.command(
    "unset", epilog=examples("satchel config unset temperature  # as the model's makers say again")
)
def unset(key: Key, as_json: AsJson = False) -> None:
    """Take a setting out of the settings file, so that its default holds again."""
    from satchel.config.settings import unset_in_file

    changed = unset_in_file(key)
    if as_json:
        print_json(UnsetRecord(key, changed))
    else:
        place = paths.config_file()
        report(f"{key} is no longer set in {place}" if changed else f"{key} was not set in {place}")


@config.command("path", epilog=examples("satchel config path", 'cat "$(satchel config path)"'))
def show_path(as_json: AsJson = False) -> None:
    """Where the settings file is, or belongs."""
    path = paths.config_file()
    if as_json:
        print_json(SettingsFileRecord(str(path), path.exists()))
        return
    print(sanitize(str(path)))
    if not path.exists():
        report("there is no such file yet: all settings are the defaults, or from the environment")


@config.command(
    "edit",
    epilog=examples("satchel config edit", "EDITOR=nano satchel config edit  # with an editor of choice"),
)
def edit() -> None:
    """Change the settings file in an editor: that of VISUAL or EDITOR.

    What was written is checked before it takes the place of the file. Without a terminal VISUAL or EDITOR
    must name the editor: it may be a program that asks nobody.
    """
    from satchel.config import settings_file
    from satchel.config.settings import check_text

    editor = _editor()
    settings_file.need_writable()
    before = settings_file.read_text()
    with tempfile.TemporaryDirectory(prefix="satchel-") as folder:
        draft = Path(folder) / "config.toml"
        draft.write_bytes((before or _template()).encode())
        began = draft.read_bytes()
        while True:
            _run(editor, draft)
            written = draft.read_bytes()
            if written == began:
                report("nothing has changed")
                return
            try:
                text = written.decode()
                check_text(text)
                break
            except UnicodeDecodeError as err:
                wrong = UsageError(f"what was written is not UTF-8: {err}")
            except UsageError as err:
                wrong = err
            _ask_for_more(wrong)
    if not settings_file.replace(before, text):
        kept = paths.config_file().with_name("config.toml.edited")
        from satchel.files import atomic_write

        atomic_write(kept, text.encode())
        raise SatchelError(f"{paths.config_file()} was changed meanwhile", f"what you wrote is in {kept}")
    report(f"changed {paths.config_file()}")


def _ask_for_more(wrong: UsageError) -> None:
    """Go on with an edited file that is wrong, or raise.

    Raises:
        UsageError: nobody can be asked.
        RefusedError: what was there is to stay.
    """
    if not at_terminal():
        raise wrong
    report(wrong.one_line())
    if not typer.confirm("Edit it again? (no: what was there stays)", default=True, err=True):
        raise RefusedError("the settings are as they were")


def _editor() -> list[str]:
    """
    Raises:
        UsageError: VISUAL or EDITOR is no command, or there is neither that nor a terminal.
        NotFoundError: there is no editor.
    """
    named = next((os.environ[each] for each in ("VISUAL", "EDITOR") if os.environ.get(each, "").strip()), "")
    try:
        editor = shlex.split(named)
    except ValueError as err:
        raise UsageError(f"the editor {named!r} is no command: {err}", "set VISUAL or EDITOR") from err
    if not (editor or at_terminal()):
        raise UsageError(
            "an editor needs a terminal", "`satchel config set KEY VALUE` changes a setting without"
        )
    if not editor:
        editor = [each for each in EDITORS if shutil.which(each)][:1]
    if not editor:
        raise NotFoundError("no editor was found", "set VISUAL or EDITOR to one")
    if shutil.which(editor[0]) is None:
        raise NotFoundError(f"the editor {editor[0]!r} is not there", "set VISUAL or EDITOR to one that is")
    return editor


def _run(editor: list[str], draft: Path) -> None:
    try:
        ended = subprocess.run([*editor, str(draft)], check=False).returncode
    except OSError as err:
        raise SatchelError(f"the editor cannot be run: {err.strerror or err}") from err
    if ended:
        raise SatchelError(f"the editor ended with {ended}", "the settings are as they were")
    if not draft.is_file():
        raise SatchelError("the editor left no file", "the settings are as they were")


def _template() -> str:
    """What a new settings file begins as: every setting with its default, each a comment."""
    from satchel.config.settings import settings_in_force

    lines = ["# The settings of Satchel. Take the # from those that you change.", ""]
    for each in settings_in_force():
        if not each.key.startswith("models."):
            lines.append(f"# {each.key} = {_literal(each.default)}  # {each.meaning}")
    lines += ["", "# [models]", '# "my-model" = "owner/repository, a folder or a GGUF file"']
    return "\n".join(lines) + "\n"


def _record(found: SettingInForce) -> SettingRecord:
    from satchel.config.secret_words import masked

    value = masked(found.value)
    assert value is None or isinstance(value, bool | int | float | str)
    return SettingRecord(
        key=found.key,
        value=value,
        origin=found.origin,
        default=found.default,
        meaning=found.meaning,
        allowed=found.allowed,
        variable=found.variable,
    )


def _as_toml(found: SettingInForce) -> str:
    """A line of TOML, which is a comment where the setting is not set."""
    value = _record(found).value
    table, dot, name = found.key.partition(".")
    key = f'{table}."{name}"' if table == "models" and "." in name else f"{table}{dot}{name}"
    return f"# {key} =" if value is None else f"{key} = {_literal(value)}"


def _literal(value: Value) -> str:
    import tomlkit

    return "" if value is None else tomlkit.item(value).as_string()


def _as_text(value: Value) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _comment(found: SettingInForce, with_place: bool) -> str:
    places = {"file": str(paths.config_file()), "environment": found.variable, "default": "default"}
    return f"{places[found.origin] if with_place else found.origin}: {found.meaning}"
