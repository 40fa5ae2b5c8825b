"""What the user chose: built-in defaults, under `config.toml`, under the environment, under flags.

Knows nothing of which command reads a setting, and holds no secrets.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable, Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from satchel.config import paths
from satchel.config.profiles import DEFAULT_PROFILE, get_profile
from satchel.config.units import parse_size
from satchel.errors import UsageError

ENV_PREFIX = "SATCHEL_"


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
    chosen = _from_file() | _from_environment() | _checked(given, "options")
    return Settings.model_validate(chosen)


def _from_file() -> dict[str, object]:
    path = paths.config_file()
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as err:  # bytes, syntax, huge integers; deep nesting
        raise UsageError(f"{path} is not valid TOML: {err}") from err
    except OSError as err:
        raise UsageError(f"{path} cannot be read: {err.strerror}") from err
    return _checked(table, str(path))


def _from_environment() -> dict[str, object]:
    """The settings named in the environment, e.g. `SATCHEL_MAX_TOKENS`; an empty value is none."""
    texts = {key: os.environ.get(ENV_PREFIX + key.upper(), "") for key in Settings.model_fields}
    texts = {key: text for key, text in texts.items() if text}
    try:
        return Settings.model_validate_strings(texts, strict=False).model_dump(exclude_unset=True)
    except ValidationError as err:
        raise _usage_error(err, "environment", name=lambda key: ENV_PREFIX + key.upper()) from err


def _checked(values: Mapping[str, object], source: str) -> dict[str, object]:
    try:
        return Settings.model_validate(values).model_dump(exclude_unset=True)
    except ValidationError as err:
        raise _usage_error(err, source) from err


def _usage_error(err: ValidationError, source: str, name: Callable[[str], str] = str) -> UsageError:
    """The first complaint as one line."""
    first = err.errors(include_url=False)[0]
    key = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, Settings.model_fields, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(Settings.model_fields)}"
        return UsageError(f"{source}: there is no setting {key!r}", hint)
    return UsageError(f"{source}: {name(key)} is {_shown(first['input'])}", first["msg"])


def _shown(value: object) -> str:
    try:
        return repr(value)
    except ValueError:  # TOML's hexadecimal integers may be longer than Python prints
        return "a number of thousands of digits"
