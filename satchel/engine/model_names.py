"""Short names for models, from a table that the package brings and users extend. Knows nothing of what is on
this machine, and asks no network.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from satchel.engine.fit import Shape

EMBEDDED = "embedded"
# What can be named, as a hint.
NAMES = (
    "name `embedded`, a short name (`satchel model list --known`), an MLX model folder, a GGUF file, or a "
    "hub model as owner/repository"
)


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model that a short name stands for.

    Attributes:
        repository: its name on the Hugging Face hub, `owner/repository`.
        parameters: all of them, roughly.
        download_bytes: of its files.
        is_measured: `download_bytes` is what others list for the repository; else parameters by bits.
        licence: of the weights.
        about: one line, for choosing.
        config: what of its configuration decides its memory.
    """

    name: str
    repository: str
    parameters: int
    download_bytes: int
    is_measured: bool
    licence: str
    about: str
    config: Mapping[str, Any] = field(repr=False)

    def shape(self) -> Shape:
        """Its shape, before it is on this machine."""
        from satchel.engine.shapes import shape_from_config

        return shape_from_config(self.config, self.download_bytes, self.parameters)


@cache
def named_models() -> Mapping[str, NamedModel]:
    """The package's own table, by name, the smallest first."""
    text = (files("satchel.engine") / "data" / "models.toml").read_text(encoding="utf-8")
    models = [_from_table(name, table) for name, table in tomllib.loads(text).items()]
    models.sort(key=lambda model: (model.download_bytes, model.name))
    return MappingProxyType({model.name: model for model in models})


def resolve(name: str, extra: Mapping[str, str] | None = None) -> str:
    """What the short name `name` stands for: a hub name, or what a user's table says; else `name` as it is.

    Upper and lower case are the same. A user's own name goes before one of the package's.
    """
    key = name.strip().lower()
    own = {each.lower(): target for each, target in (extra or {}).items()}
    target = own.get(key, name)  # which may be one of ours
    known = named_models().get(target.strip().lower())
    return known.repository if known else target


def full_name(name: str) -> str:
    """What a model is loaded by: `resolve` with the user's table, but a file or folder goes before our names.

    Raises:
        UsageError: the settings are wrong.
    """
    if name == EMBEDDED:
        return name
    own = users_names()
    target = resolve(name, own)
    is_own = name.strip().lower() in {each.lower() for each in own}
    return name if not is_own and target != name and Path(name).exists() else target


def users_names() -> Mapping[str, str]:
    """The table `[models]` of the user's settings.

    Raises:
        UsageError: the settings are wrong.
    """
    from satchel.config.settings import load_settings

    return load_settings().models


def name_of(repository: str, extra: Mapping[str, str] | None = None) -> str | None:
    """The short name of what `resolve` returns, if there is one."""
    own = {target: name for name, target in (extra or {}).items()}
    ours = {model.repository: name for name, model in named_models().items()}
    return own.get(repository) or ours.get(repository)


def near_names(name: str, extra: Mapping[str, str] | None = None) -> list[str]:
    """Known names like `name`, at most three, the nearest first."""
    known = list(dict.fromkeys([*(extra or {}), *named_models(), EMBEDDED]))
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.strip().lower(), by_lower, n=3, cutoff=0.65)
    return [by_lower[each] for each in near]


def _from_table(name: str, table: Mapping[str, Any]) -> NamedModel:
    return NamedModel(
        name=name,
        repository=table["repository"],
        parameters=int(table["billions"] * 1e9),
        download_bytes=int(table["gigabytes"] * 1e9),
        is_measured=table.get("measured", False),
        licence=table["licence"],
        about=table["about"],
        config=table["config"],
    )
