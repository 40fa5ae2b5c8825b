"""What the user chose: built-in defaults, under `config.toml`, under the environment, under flags.

A setting's key has a dot where it stands in a table of the file: `sync.auto` is `auto` below `[sync]`, and
`SATCHEL_SYNC_AUTO` in the environment. Knows nothing of which command reads a setting, and holds no secrets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from satchel.config import paths, settings_file
from satchel.config.complaints import ENVIRONMENT, TYPED, near, placed, unknown_key, usage_error
from satchel.config.fields import allowed, field_of, flat, nested, open_tables, setting_keys, split_key
from satchel.config.known import SearchSettings as SearchSettings
from satchel.config.known import Settings
from satchel.config.secret_words import refuse_secrets
from satchel.errors import NotFoundError, UsageError
from satchel.sanitize import encodable

ENV_PREFIX = "SATCHEL_"

# Variables of ours that are no settings: names, or what they begin with.
OTHER_VARIABLES = (
    "HOME",
    "CONFIG",
    "CACHE",
    "QUIET",
    "DEBUG",
    "PASSPHRASE",
    "RECOVERY_WORDS",
    "S3_",
    "TEST_",
    "SHELL_CWD",
)
# Options that are not called as their setting is.
OTHER_OPTIONS = {
    "kv_profile": "kv",
    "system_prompt": "system",
    "search.results": "results",
    "search.provider": "provider",
    "shell.timeout_s": "timeout",
}

# So like a setting's must an unknown variable of ours be to be a setting spelt wrong.
LIKENESS = 0.8

Origin = Literal["default", "file", "environment"]


@dataclass(frozen=True, slots=True)
class SettingInForce:
    """A setting as it is.

    Attributes:
        key: such as `sync.auto`.
        value: None where it is not set.
        origin: where its value comes from.
        default: None where it has none.
        meaning: one line.
        allowed: what may be its value, in words.
        variable: its name in the environment; "" if it has none.
    """

    key: str
    value: bool | int | float | str | None
    origin: Origin
    default: bool | int | float | str | None
    meaning: str
    allowed: str
    variable: str


def load_settings(overrides: Mapping[str, object | None] | None = None) -> Settings:
    """The settings in force. An override of None is one that was not given.

    Raises:
        UsageError: an unknown key or a wrong value; the message says where it stands and what is right.
    """
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    chosen = _from_file() | _from_environment() | _checked(nested(Settings, given), TYPED, name=_option)
    return Settings.model_validate(nested(Settings, chosen))


def settings_in_force() -> list[SettingInForce]:
    """Every setting, in the order of the documentation, with where it comes from and what it means.

    Raises:
        UsageError: as `load_settings`.
    """
    in_file, in_environment = _from_file(), _from_environment()
    entries = [key for key in in_file if key.split(".")[0] in open_tables(Settings)]
    return [_in_force(key, in_file, in_environment) for key in (*setting_keys(Settings), *sorted(entries))]


def known_keys() -> list[str]:
    """The keys of all settings but of those in tables whose names users choose."""
    return list(setting_keys(Settings))


def variable(key: str) -> str:
    """A setting's name in the environment; "" if it has none."""
    return "" if key.split(".")[0] in open_tables(Settings) else ENV_PREFIX + key.upper().replace(".", "_")


def stray_variables() -> list[str]:
    """Variables of the environment that begin as ours do and mean nothing."""
    ours = {variable(key) for key in setting_keys(Settings)}
    tables = tuple(ENV_PREFIX + name.upper() for name in Settings.model_fields)
    found = [name for name in os.environ if name.startswith(ENV_PREFIX) and name not in ours]
    others = tuple(ENV_PREFIX + name for name in OTHER_VARIABLES)
    return sorted(name for name in found if not name.startswith(others) and name not in tables)


def set_in_file(key: str, value: bool | int | float | str) -> None:
    """Change one setting in the settings file; the rest stays as it is written. The file is made if need be.

    Raises:
        UsageError: no such key, a wrong value, or the file is wrong already; nothing has changed.
        SatchelError: the file is read-only, or the disk refused; nothing has changed.
    """
    _checked(nested(Settings, {key: value}), TYPED, may_hold_secrets=False)
    _from_file()

    def edit(document: Any) -> None:
        import tomlkit

        if found := settings_file.locate(document, key):
            table, name = found
            table[name] = value
            return
        table = document
        *tables, name = split_key(Settings, key)
        for each in tables:
            table = table.setdefault(each, tomlkit.table())
        table[name] = value

    def check(before: settings_file.Tables, after: settings_file.Tables) -> None:
        if _checked_file(after) != _checked_file(before) | {key: value}:
            raise settings_file.cannot_change()

    settings_file.change(edit, check)


def set_text_in_file(key: str, text: str) -> SettingInForce:
    """As `set_in_file`, with the value as one types it: `0.3`, `true`, `20GB`.

    Returns:
        The setting in force, which one in the environment decides all the same.

    Raises:
        UsageError, SatchelError: as `set_in_file`.
    """
    refuse_secrets({key: text}, set(setting_keys(Settings)), TYPED)
    if text != encodable(text):  # bytes of another encoding than the locale's
        raise UsageError(f"{key} is not UTF-8", "type it in a terminal, and with a locale, of UTF-8")
    given = nested(Settings, {key: text})
    try:
        chosen = flat(Settings.model_validate_strings(given, strict=False).model_dump(exclude_unset=True))
    except ValidationError as err:
        raise usage_error(err, Settings, TYPED) from err
    value: Any = chosen[key]
    if isinstance(value, float) and value.is_integer() and re.fullmatch(r"[+-]?\d{1,15}", text.strip()):
        value = int(value)  # stays as it was typed
    set_in_file(key, value)
    return _in_force(key, _from_file(), _from_environment())


def unset_in_file(key: str) -> bool:
    """Take a setting, be it an unknown one, out of the settings file; whether it stood there.

    Raises:
        UsageError: there is no such setting, nor does the file have it; or the file is no TOML.
        SatchelError: the file is read-only, or the disk refused; nothing has changed.
    """
    if settings_file.locate(settings_file.parse(settings_file.read_text()), key) is None:
        if field_of(Settings, key) is None:
            raise unknown_key(Settings, key, TYPED)
        return False

    def edit(document: Any) -> None:
        found = settings_file.locate(document, key)
        if found is not None:  # else another process was faster
            table, name = found
            del table[name]

    settings_file.change(edit, lambda before, after: None)
    return True


def setting(key: str) -> list[SettingInForce]:
    """The setting `key`, or those of the table `key`.

    Raises:
        NotFoundError: a name that `[models]` does not have.
        UsageError: there is no such setting; or as `load_settings`.
    """
    found = [each for each in settings_in_force() if each.key == key or each.key.startswith(f"{key}.")]
    if not found and field_of(Settings, key) is None:
        raise unknown_key(Settings, key, TYPED)
    if not found and key not in open_tables(Settings):
        raise NotFoundError(f"the settings have no {key}", f"`satchel config set {key} VALUE` adds it")
    return found


def check_text(text: str) -> None:
    """Whether `text` would be right as the settings file.

    Raises:
        UsageError: it is not; says what is wrong.
    """
    _checked_file(settings_file.parse(text))


def _in_force(
    key: str, in_file: Mapping[str, object], in_environment: Mapping[str, object]
) -> SettingInForce:
    field = field_of(Settings, key)
    assert field is not None
    is_entry = key.split(".")[0] in open_tables(Settings)
    default: Any = None if is_entry else field.default
    value, origin = default, "default"
    for source, name in ((in_file, "file"), (in_environment, "environment")):
        if key in source:
            value, origin = source[key], name
    return SettingInForce(
        key=key,
        value=value,
        origin=origin,  # type: ignore[arg-type]
        default=default,
        meaning=field.description or "",
        allowed=allowed(field),
        variable=variable(key),
    )


# Sources, each as settings by key


def _from_file() -> dict[str, object]:
    return _checked_file(settings_file.parse(settings_file.read_text()))


def _checked_file(tables: Mapping[str, object]) -> dict[str, object]:
    return _checked(tables, str(paths.config_file()), may_hold_secrets=False)


def _from_environment() -> dict[str, object]:
    """The settings named in the environment, e.g. `SATCHEL_MAX_TOKENS`; an empty value is none."""
    keys = {variable(key): key for key in setting_keys(Settings)}
    for name in stray_variables():
        if found := near(
            name.removeprefix(ENV_PREFIX).upper(), [each.removeprefix(ENV_PREFIX) for each in keys], LIKENESS
        ):
            raise UsageError(
                f"{ENVIRONMENT}: there is no setting {name!r}", f"did you mean {ENV_PREFIX}{found}?"
            )
    texts = {key: text for name, key in keys.items() if (text := os.environ.get(name, ""))}
    try:
        chosen = Settings.model_validate_strings(nested(Settings, texts), strict=False)
    except ValidationError as err:
        raise usage_error(err, Settings, ENVIRONMENT, name=variable) from err
    except UsageError as err:
        raise _placed(err, ENVIRONMENT) from err
    return flat(chosen.model_dump(exclude_unset=True))


def _option(key: str) -> str:
    """The option that gives a setting on the command line."""
    return f"--{OTHER_OPTIONS.get(key, key.replace('_', '-'))}"


def _checked(
    tables: Mapping[str, object],
    source: str,
    *,
    may_hold_secrets: bool = True,
    name: Callable[[str], str] = str,
) -> dict[str, object]:
    if not may_hold_secrets:
        refuse_secrets(flat(tables), set(setting_keys(Settings)), source)
    try:
        return flat(Settings.model_validate(tables).model_dump(exclude_unset=True))
    except ValidationError as err:
        raise usage_error(err, Settings, source, name) from err
    except UsageError as err:
        raise _placed(err, source) from err


def _placed(err: UsageError, source: str) -> UsageError:
    """A complaint of a KV profile's, with where it stands."""
    return UsageError(f"{placed(source)}{err}", err.hint)
