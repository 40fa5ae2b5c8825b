"""The MLX model folder that a name stands for, found, made or fetched. Knows nothing of how one is loaded."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from satchel.config.paths import MAX_SHOWN, cache_access, cache_dir, expand
from satchel.engine.digests import file_sha256
from satchel.engine.embedded import GGUF_SHA256, find_embedded_gguf
from satchel.engine.hub import Progress, fetch_from_hub, is_hub_name
from satchel.engine.model_files import read_config
from satchel.engine.model_names import EMBEDDED, NAMES, near_names, users_names
from satchel.errors import DamagedError, NotFoundError, UsageError

CONVERTER = 1  # raise it when `convert_gguf` writes something else, so that old conversions are made again
GGUF_MAGIC = b"GGUF"


def model_folder(name: str, report: Callable[[str], None], prepared: Progress | None = None) -> Path:
    """The folder of the model called `name`, in a form that mlx-lm knows; made or fetched where needed.

    Args:
        name: as `model_names.full_name` returns it.
        report: called with one line for each slow step. What is no model is refused without a line.
        prepared: called as a hub model comes or a GGUF file is converted, with the bytes done and all.

    Raises:
        NotFoundError, NetworkError, UsageError, DamagedError, SatchelError: as `load_model`.
    """
    try:
        path = _find(name, report, prepared)
    except OSError as err:
        raise NotFoundError(
            f"the model {name[:MAX_SHOWN]!r} cannot be read: {err.strerror or err}", NAMES
        ) from err
    check_supported(path)
    if not any(path.glob("model*.safetensors")):
        raise NotFoundError(f"{path} has no model*.safetensors files")
    return path


def _find(name: str, report: Callable[[str], None], prepared: Progress | None) -> Path:
    if name == EMBEDDED:
        source = find_embedded_gguf()
        if source is None:
            raise NotFoundError("the embedded model is not installed", "run `satchel model pull embedded`")
        return _converted(source, GGUF_SHA256, report, prepared)
    path = expand(name)
    if path.is_dir():
        return path
    if path.is_file():
        return _converted(path, gguf_sha256(path), report, prepared)
    if is_hub_name(name):
        return fetch_from_hub(name, report, prepared, check_supported)
    near = near_names(name, users_names())
    raise NotFoundError(f"there is no model {name!r}", f"did you mean {near[0]}?" if near else NAMES)


def gguf_sha256(path: Path) -> str:
    """The digest of a GGUF file; what is none is refused before gigabytes of it are read.

    Raises:
        DamagedError: it does not begin as a GGUF file does.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        if file.read(len(GGUF_MAGIC)) != GGUF_MAGIC:
            raise DamagedError(f"{path.name} is not a GGUF file", NAMES)
    return file_sha256(path)


def conversion_of(digest: str) -> Path:
    """Where the model folder made of the GGUF file with the SHA-256 `digest` is, once it is made."""
    return conversions() / f"{digest[:32]}-{CONVERTER}"


def conversions() -> Path:
    return cache_dir() / "models"


def is_conversion(folder: Path) -> bool:
    """Whether it is where `conversion_of` puts something: such a folder is ours to delete."""
    is_there = folder.absolute().parent.resolve() == conversions().resolve()
    return is_there and re.fullmatch(r"[0-9a-f]{32}-\d+", folder.name) is not None


@cache_access()
def _converted(source: Path, digest: str, report: Callable[[str], None], prepared: Progress | None) -> Path:
    """The model folder made of a GGUF file whose SHA-256 is `digest`; made at the first call, then found."""
    target = conversion_of(digest)
    if not target.is_dir():
        from satchel.engine.gguf import convert_gguf
        from satchel.engine.gguf_config import mlx_config
        from satchel.engine.gguf_reader import read_gguf

        mlx_config(read_gguf(source))  # refuses what is not supported, before anything is said
        report(f"converting {source.name} for MLX, once")
        convert_gguf(source, target, prepared)
    return target


def check_supported(folder: Path) -> None:
    """Refuse what is no model folder, or one mlx-lm has no class for, in one line that names the reason.

    Only its configuration is looked at.

    Raises:
        NotFoundError, DamagedError: there is no configuration, or none that can be read.
        UsageError: a kind of model that is not supported.
    """
    try:
        config = read_config(folder)
    except OSError as err:
        raise DamagedError(f"{folder / 'config.json'} cannot be read: {err.strerror or err}") from err
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise DamagedError(f"{folder / 'config.json'} names no model_type")
    if "model_file" in config:
        raise UsageError(f"the model in {folder} wants to run its own Python code, which is never done")
    if not _has_class(model_type):
        raise UsageError(
            f"mlx-lm has no model type {model_type!r}", "a newer mlx-lm may; `embedded` always works"
        )


def _has_class(model_type: str) -> bool:
    from mlx_lm.utils import MODEL_REMAPPING

    remapping: Mapping[str, Any] = MODEL_REMAPPING
    module = str(remapping.get(model_type, model_type))
    return module.isidentifier() and importlib.util.find_spec(f"mlx_lm.models.{module}") is not None
