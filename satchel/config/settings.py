"""What the user chose: built-in defaults, under `config.toml`, under the environment, under flags.

A setting's key has a dot where it stands in a table of the file: `sync.auto` is `auto` below `[sync]`, and
`SATCHEL_SYNC_AUTO` in the environment. Knows nothing of which command reads a setting, and holds no secrets.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from satchel.config import paths
from satchel.config.profiles import DEFAULT_PROFILE, get_profile
from satchel.config.units import parse_size
from satchel.errors import UsageError
from satchel.files import atomic_write

ENV_PREFIX = "SATCHEL_"


class SyncSettings(BaseModel):
    """The table `[sync]`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    auto: bool = False  # sync in the background after each turn


class AgentSettings(BaseModel):
    """The table `[agent]`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    routing: bool = True  # take a person's messages for searches and commands, too
    when_unsure: Literal["chat", "ask"] = "chat"  # what an unsure decision becomes in the chat of a person
    compact_at: Annotated[float, Field(gt=0, le=1)] = 0.85  # of the context: above it, compacting is offered
    answer_share: Annotated[float, Field(gt=0, lt=1)] = 0.25  # of the context for what a page or command says


class SearchSettings(BaseModel):
    """The table `[search]`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    provider: Literal["ddgs", "searxng"] = "ddgs"
    url: str = ""  # of the SearXNG server
    results: Annotated[int, Field(ge=1, le=20)] = 5  # pages that an answer rests on
    timeout_s: Annotated[float, Field(gt=0, le=120, allow_inf_nan=False)] = 10.0  # for each answer
    allow_loopback: bool = False  # fetch pages of this machine as well; for tests


class ShellSettings(BaseModel):
    """The table `[shell]`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    approve: Literal["ask", "read-only"] = "ask"  # read-only: commands that only read run without asking
    timeout_s: Annotated[float, Field(gt=0, le=86400, allow_inf_nan=False)] = 120.0
    sandbox: bool = False  # no network, and every file read-only but for those of a /tmp of its own


class TerminalSettings(BaseModel):
    """The table `[terminal]`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    editing: Literal["emacs", "vi"] = "emacs"  # the keys of the chat's prompt
    markdown: bool = True  # answers on a terminal are drawn, with headings, tables and colours
    code_theme: str = "ansi_dark"  # colours of code: a Pygments style, or the terminal's own colours
    toolbar: bool = True  # a line below the prompt: model, context, speed, sync


class Settings(BaseModel):
    """Every setting with its default. `max_tokens` and `prefill_step` count tokens."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    model: Annotated[str, Field(min_length=1)] = "embedded"
    kv_profile: str = DEFAULT_PROFILE
    max_tokens: Annotated[int, Field(ge=1)] = 1024
    # None: as the model's makers recommend
    temperature: Annotated[float, Field(ge=0, le=5, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    seed: Annotated[int, Field(ge=0, lt=1 << 64)] | None = None  # MLX's are 64 bits wide
    system_prompt: str = ""  # empty: what the model's chat template says by itself
    auto_save: bool = True
    prefill_step: Annotated[int, Field(ge=1)] = 512
    # Such as 20GB; above it, the sessions used least recently keep their words alone
    max_store_size: str = ""
    share_prefixes: bool = True  # load what another session has read of the same beginning
    # Blocks of 256 tokens between two stored states of the layers that cannot go back; 0: none are stored
    checkpoint_blocks: Annotated[int, Field(ge=0, lt=1 << 20)] = 16
    sync: SyncSettings = SyncSettings()
    agent: AgentSettings = AgentSettings()
    search: SearchSettings = SearchSettings()
    shell: ShellSettings = ShellSettings()
    terminal: TerminalSettings = TerminalSettings()

    @field_validator("max_store_size")
    @classmethod
    def _is_a_size(cls, size: str) -> str:
        try:
            parse_size(size or "0")
        except UsageError as err:  # as pydantic wants it, to name the setting and where it stands
            raise ValueError(err.hint) from err
        return size

    @property
    def max_store_bytes(self) -> int | None:
        return parse_size(self.max_store_size) if self.max_store_size else None

    @field_validator("kv_profile")
    @classmethod
    def _is_a_profile(cls, name: str) -> str:
        get_profile(name)
        return name


def load_settings(overrides: Mapping[str, object | None] | None = None) -> Settings:
    """The settings in force. An override of None is one that was not given.

    Raises:
        UsageError: an unknown key or a wrong value; the message says where it stands and what is right.
    """
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    chosen = _from_file() | _from_environment() | _checked(_nested(given), "options")
    return Settings.model_validate(_nested(chosen))


def set_in_file(key: str, value: bool | int | float | str) -> None:
    """Change one setting in the settings file; the rest stays as it is written. The file is made if need be.

    Raises:
        UsageError: no such key, a wrong value, or the file is wrong already; nothing has changed.
        SatchelError: the disk refused; nothing has changed.
    """
    import tomlkit

    _checked(_nested({key: value}), "options")
    _from_file()
    document = tomlkit.parse(_file_text())
    table: Any = document
    *tables, name = key.split(".")
    for each in tables:
        table = table.setdefault(each, tomlkit.table())
    table[name] = value
    # A link, such as into a folder of dot files, stays one.
    atomic_write(paths.config_file().resolve(), tomlkit.dumps(document).encode())


# Settings by their dotted keys


def _keys(model: type[BaseModel] = Settings, prefix: str = "") -> Iterator[str]:
    """Every setting's key."""
    for name in model.model_fields:
        table = _table(model, name)
        yield from [prefix + name] if table is None else _keys(table, f"{prefix}{name}.")


def _table(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The fields of the table `name`, if it is one."""
    field = model.model_fields.get(name)
    kind = field.annotation if field else None
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _nested(settings: Mapping[str, object]) -> dict[str, object]:
    """As tables."""
    nested: dict[str, object] = {}
    for key, value in settings.items():
        table: Any = nested
        *tables, name = key.split(".")
        for each in tables:
            table = table.setdefault(each, {})
        table[name] = value
    return nested


def _flat(tables: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """By key, so that one source's settings replace another's one by one."""
    flat: dict[str, object] = {}
    for name, value in tables.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return flat


# Sources, each as settings by key


def _from_file() -> dict[str, object]:
    path = paths.config_file()
    try:
        table = tomllib.loads(_file_text())
    except (ValueError, RecursionError) as err:  # bytes, syntax, huge integers; deep nesting
        raise UsageError(f"{path} is not valid TOML: {err}") from err
    return _checked(table, str(path))


def _file_text() -> str:
    """What stands in the settings file; "" if there is none. Its line ends stay as they are.

    Raises:
        ValueError: it is not UTF-8.
        UsageError: it cannot be read.
    """
    path = paths.config_file()
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return ""
    except OSError as err:
        raise UsageError(f"{path} cannot be read: {err.strerror}") from err


def _from_environment() -> dict[str, object]:
    """The settings named in the environment, e.g. `SATCHEL_MAX_TOKENS`; an empty value is none."""
    texts = {key: os.environ.get(_variable(key), "") for key in _keys()}
    texts = {key: text for key, text in texts.items() if text}
    try:
        chosen = Settings.model_validate_strings(_nested(texts), strict=False)
    except ValidationError as err:
        raise _usage_error(err, "environment", name=_variable) from err
    return _flat(chosen.model_dump(exclude_unset=True))


def _variable(key: str) -> str:
    return ENV_PREFIX + key.upper().replace(".", "_")


def _checked(tables: Mapping[str, object], source: str) -> dict[str, object]:
    try:
        return _flat(Settings.model_validate(tables).model_dump(exclude_unset=True))
    except ValidationError as err:
        raise _usage_error(err, source) from err


def _usage_error(err: ValidationError, source: str, name: Callable[[str], str] = str) -> UsageError:
    """The first complaint as one line."""
    first = err.errors(include_url=False)[0]
    model: type[BaseModel] = Settings
    path = list(map(str, first["loc"]))
    tables = []
    while len(path) > 1 and (inner := _table(model, path[0])):
        tables.append(path.pop(0))
        model = inner
    key, *known = (".".join([*tables, field]) for field in (path[0], *model.model_fields))
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
        return UsageError(f"{source}: there is no setting {key!r}", hint)
    if table := _table(model, path[0]):
        hint = f"it is a table: write [{key}] and {', '.join(table.model_fields)} below it"
        return UsageError(f"{source}: {name(key)} is {_shown(first['input'])}", hint)
    return UsageError(f"{source}: {name(key)} is {_shown(first['input'])}", first["msg"])


def _shown(value: object) -> str:
    try:
        return repr(value)
    except ValueError:  # TOML's hexadecimal integers may be longer than Python prints
        return "a number of thousands of digits"
