"""Which settings there are: kinds, limits, defaults and meanings. Knows nothing of where they come from.

What stands here is also what `satchel config show` and the documentation say of each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from satchel.config.fields import ALLOWED, flat
from satchel.config.profiles import DEFAULT_PROFILE, get_profile
from satchel.config.units import parse_size
from satchel.errors import UsageError


class SyncSettings(BaseModel):
    """The table `[sync]`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    auto: bool = Field(default=False, description="sync in the background after each turn")


class AgentSettings(BaseModel):
    """The table `[agent]`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    routing: bool = Field(default=True, description="take messages for searches and commands, too")
    when_unsure: Literal["chat", "ask"] = Field(
        default="chat", description="what an unsure decision becomes: an answer, or a question to you"
    )
    compact_at: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.85, description="share of the context above which compacting is offered"
    )
    answer_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.25, description="share of the context for what a page or command says"
    )


class SearchSettings(BaseModel):
    """The table `[search]`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    provider: Literal["ddgs", "searxng"] = Field(default="ddgs", description="who is asked")
    url: str = Field(default="", description="of the SearXNG server")
    results: Annotated[int, Field(ge=1, le=20)] = Field(
        default=5, description="pages that an answer rests on"
    )
    timeout_s: Annotated[float, Field(gt=0, le=120, allow_inf_nan=False)] = Field(
        default=10.0, description="seconds to wait for each page"
    )
    allow_loopback: bool = Field(default=False, description="fetch pages of this machine as well; for tests")


class ShellSettings(BaseModel):
    """The table `[shell]`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    approve: Literal["ask", "read-only"] = Field(
        default="ask", description="ask before each command; read-only: those that only read run unasked"
    )
    timeout_s: Annotated[float, Field(gt=0, le=86400, allow_inf_nan=False)] = Field(
        default=120.0, description="seconds that a command may take"
    )
    sandbox: bool = Field(default=False, description="commands get no network and may write to a /tmp alone")


class TerminalSettings(BaseModel):
    """The table `[terminal]`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    editing: Literal["emacs", "vi"] = Field(default="emacs", description="the keys of the chat's prompt")
    markdown: bool = Field(default=True, description="draw answers with headings, tables and colours")
    code_theme: str = Field(
        default="ansi_dark", description="colours of code: a Pygments style, or the terminal's own"
    )
    toolbar: bool = Field(default=True, description="a line below the prompt: model, context, speed, sync")


def _model_name(name: str) -> str:
    if name.lower() == "embedded" or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise ValueError("use letters, digits, `.`, `_` and `-`, and not `embedded`")
    return name


def _model_place(place: str) -> str:
    if not place.strip() or not place.isprintable():
        raise ValueError("write a hub name or a path, in quotes")
    return place


class Settings(BaseModel):
    """Every setting with its default. `max_tokens` and `prefill_step` count tokens."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    model: Annotated[str, Field(min_length=1)] = Field(
        default="embedded",
        description="what answers",
        json_schema_extra={ALLOWED: "embedded, a name, a hub name, an MLX folder or a GGUF file"},
    )
    kv_profile: str = Field(
        default=DEFAULT_PROFILE,
        description="how the context is held",
        json_schema_extra={ALLOWED: "a KV profile, such as turbo4"},
    )
    max_tokens: Annotated[int, Field(ge=1)] = Field(default=1024, description="longest answer, in tokens")
    temperature: Annotated[float, Field(ge=0, le=5, allow_inf_nan=False)] | None = Field(
        default=None, description="0 takes the likeliest token; unset: as the model's makers say"
    )
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = Field(
        default=None, description="share of the likeliest tokens; unset: as the model's makers say"
    )
    # MLX's seeds are 64 bits wide.
    seed: Annotated[int, Field(ge=0, lt=1 << 64)] | None = Field(
        default=None, description="makes answers repeatable; unset: each is new"
    )
    system_prompt: str = Field(default="", description="of new sessions; empty: the model's own")
    auto_save: bool = Field(default=True, description="save a chat after each turn")
    prefill_step: Annotated[int, Field(ge=1)] = Field(default=512, description="tokens read at a time")
    max_store_size: str = Field(
        default="",
        description="above it the oldest sessions keep words alone; empty: no limit",
        json_schema_extra={ALLOWED: "a size, such as 20GB"},
    )
    share_prefixes: bool = Field(default=True, description="load what another session read of the same text")
    checkpoint_blocks: Annotated[int, Field(ge=0, lt=1 << 20)] = Field(
        default=16, description="blocks between stored states of layers that cannot go back; 0: none"
    )
    sync: SyncSettings = SyncSettings()
    agent: AgentSettings = AgentSettings()
    search: SearchSettings = SearchSettings()
    shell: ShellSettings = ShellSettings()
    terminal: TerminalSettings = TerminalSettings()
    models: dict[
        Annotated[str, AfterValidator(_model_name)], Annotated[str, AfterValidator(_model_place)]
    ] = Field(
        default={},
        description="a name of yours for a model",
        json_schema_extra={ALLOWED: "a hub name, a folder or a GGUF file"},
    )

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

    @field_validator("models", mode="before")
    @classmethod
    def _unquoted(cls, models: object) -> object:
        """TOML takes `qwen3.5 = …`, without quotes, for a table `qwen3` with a name `5`."""
        return flat(models) if isinstance(models, Mapping) else models
