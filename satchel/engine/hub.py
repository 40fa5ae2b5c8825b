"""Brings a model folder from the Hugging Face hub. Knows nothing of what is in the folder."""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from satchel.config.units import size_text
from satchel.engine.hub_transfer import fetch_file, part_of
from satchel.errors import DamagedError, NetworkError, NotFoundError, SatchelError

# No Python files: code that comes with a model is never run.
FILES = ("*.json", "model*.safetensors", "tokenizer.model", "*.tiktoken", "*.txt", "*.jsonl", "*.jinja")
LARGE_BYTES = 5_000_000  # of a file that is worth a download that can go on
SPARE_BYTES = 200_000_000  # of the disk, that stay free after a download
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EIO)

Progress = Callable[[int, int], None]  # bytes that have come, and all that were missing


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository; `blob` is where the hub's cache keeps its content."""

    path: str
    size: int
    blob: Path
    sha256: str | None

    @property
    def left_bytes(self) -> int:
        """What has not come yet."""
        if self.blob.exists():
            return 0
        part = part_of(self.blob)
        return self.size - min(part.stat().st_size if part.exists() else 0, self.size)


@dataclass(frozen=True, slots=True)
class Plan:
    """What fetching a model means."""

    name: str
    commit: str
    files: tuple[HubFile, ...]

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def left_bytes(self) -> int:
        """What is not here yet, in whole or in part."""
        return sum(file.left_bytes for file in self.files)


def is_hub_name(name: str) -> bool:
    """Whether `name` has the form `owner/repository`."""
    return _NAME.fullmatch(name) is not None


def cached_folder(name: str) -> Path | None:
    """The local folder of the model `name`, if it came as a whole before. Asks no network."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, allow_patterns=FILES, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    except HFValidationError as err:
        raise NotFoundError(f"{name!r} is no name that the Hugging Face hub allows") from err
    return folder if is_whole(folder) else None


def is_whole(folder: Path) -> bool:
    """Whether all the weights' files that the folder's index names are there, or any where it has none.

    The library counts a folder as a whole where a configuration alone was fetched.
    """
    try:
        index = json.loads((folder / "model.safetensors.index.json").read_bytes())
        return all((folder / file).is_file() for file in set(index["weight_map"].values()))
    except FileNotFoundError:
        return (folder / "config.json").is_file() and any(folder.glob("model*.safetensors"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False  # to be fetched again


def plan_download(name: str) -> Plan:
    """Ask the hub how much there is to fetch.

    Raises:
        NetworkError: the hub does not answer.
        NotFoundError: the hub has no such model, or does not give it to this user.
        DamagedError: what it says makes no sense.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.file_download import repo_folder_name
    from huggingface_hub.hf_api import RepoFile
    from huggingface_hub.utils import filter_repo_objects

    blobs = Path(HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type="model") / "blobs"
    with _hub_errors(name):
        commit = HfApi().model_info(name).sha
        if not _is_digest(commit, 40):
            raise ValueError(f"commit {str(commit)[:80]!r}")
        tree = HfApi().list_repo_tree(name, recursive=True, revision=commit)
        found = [each for each in tree if isinstance(each, RepoFile)]
        wanted = filter_repo_objects(found, allow_patterns=list(FILES), key=lambda each: each.path)
        files = tuple(_hub_file(each, blobs) for each in wanted)
    return Plan(name, str(commit), files)


def _hub_file(file: Any, blobs: Path) -> HubFile:
    """What the server says becomes names of files, so nothing of it is taken on trust.

    Raises:
        ValueError: a path out of the folder, a digest that is none, or a size below nothing.
    """
    sha256 = file.lfs.sha256 if file.lfs else None
    size = file.lfs.size if file.lfs else file.size
    is_digest = _is_digest(sha256, 64) if file.lfs else _is_digest(file.blob_id, 40)
    parts = file.path.split("/")
    is_inside = not {"", ".", ".."} & set(parts) and "\\" not in file.path and file.path.isprintable()
    if not is_digest or not is_inside or type(size) is not int or size < 0:
        raise ValueError(f"file {file.path[:80]!r}")
    return HubFile(file.path, size, blobs / (sha256 or file.blob_id), sha256)


def _is_digest(text: object, digits: int) -> bool:
    return isinstance(text, str) and re.fullmatch(rf"[0-9a-f]{{{digits}}}", text) is not None


def fetch_from_hub(
    name: str,
    report: Callable[[str], None],
    progress: Progress | None = None,
    check: Callable[[Path], None] | None = None,
    plan: Plan | None = None,
) -> Path:
    """The local folder of the model `name`; downloaded when it is not there yet, from where it stopped on.

    A model that was downloaded before is used as it is, without asking the network.

    Args:
        report: called with one line for each step.
        progress: called as bytes come, with those that have come and all that were missing.
        check: called with a folder that has the model's configuration, before anything large is fetched.
        plan: what `plan_download` said, if it was asked already.

    Raises:
        NetworkError: it is not here and the hub does not answer.
        NotFoundError: the hub has no such model, or does not give it to this user, or it is no MLX model.
        DamagedError: what came is not what was promised, or makes no sense.
        SatchelError: the disk is full, or not ours.
    """
    if (folder := cached_folder(name)) is not None:
        return folder
    report(f"downloading {name} from the Hugging Face hub")
    plan = plan or plan_download(name)
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import RemoteEntryNotFoundError

    with _hub_errors(name):
        try:
            config = hf_hub_download(name, "config.json", tqdm_class=NoBar)
        except RemoteEntryNotFoundError as err:
            raise NotFoundError(
                f"{name} on the Hugging Face hub has no config.json, so it is no MLX model",
                "fetch its .gguf file, if it has one, and name that",
            ) from err
        if check is not None:
            check(Path(config).parent)
        _need_room(plan)
        _fetch_large_files(plan, progress)
        # The rest, and the names of what is here: the library takes a content that it finds.
        return Path(snapshot_download(name, allow_patterns=FILES, tqdm_class=NoBar))


def _fetch_large_files(plan: Plan, progress: Progress | None) -> None:
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    total, done = plan.left_bytes, 0

    def count(new_bytes: int) -> None:
        nonlocal done
        done += new_bytes
        if progress is not None:
            progress(min(done, total), total)

    for file in plan.files:
        if file.size >= LARGE_BYTES and file.left_bytes:
            url = hf_hub_url(plan.name, file.path, revision=plan.commit)
            fetch_file(url, build_hf_headers(), file.blob, file.size, file.sha256, count)


def _need_room(plan: Plan) -> None:
    from huggingface_hub.constants import HF_HUB_CACHE

    place = Path(HF_HUB_CACHE)
    existing = next((folder for folder in (place, *place.parents) if folder.is_dir()), Path("/"))
    free = shutil.disk_usage(existing).free
    if plan.left_bytes + SPARE_BYTES > free:
        raise SatchelError(
            f"{plan.name} takes {size_text(plan.left_bytes)} more, and {place} has {size_text(free)} free",
            "free some space, or set HF_HOME to another disk",
        )


@contextmanager
def _hub_errors(name: str) -> Iterator[None]:
    """What the hub's library raises in our own words, and nothing of what it would write."""
    from huggingface_hub import errors as theirs
    from huggingface_hub.utils import logging

    # The HTTP library is httpx or one like it, by version; its errors are the base of the hub's own.
    logging.set_verbosity_error()
    http_errors = theirs.HfHubHTTPError.__bases__
    try:
        yield
    except theirs.HFValidationError as err:
        raise NotFoundError(f"{name!r} is no name that the Hugging Face hub allows") from err
    except (*http_errors, theirs.RevisionResolutionError, ConnectionError) as err:
        causes = (err, err.__cause__)
        if any(isinstance(each, theirs.RepositoryNotFoundError) for each in causes):  # gated ones too
            raise NotFoundError(
                f"the Hugging Face hub has no model {name!r} that this user may read",
                "check the name; a gated model needs its licence accepted and `hf auth login`",
            ) from err
        if isinstance(err, OSError) and err.errno in _DISK:
            raise SatchelError(
                f"{name} cannot be kept: {err.strerror}", "HF_HOME names the place where models are kept"
            ) from err
        raise NetworkError(
            f"{name} is not on this machine and the Hugging Face hub cannot be reached",
            "use `embedded`, a local MLX model folder or a GGUF file instead",
        ) from err
    except (ValueError, TypeError, KeyError, AttributeError) as err:  # answers of a form nobody expects
        raise DamagedError(f"what the hub says of {name} makes no sense ({str(err)[:200]})") from err


class NoBar:
    """In place of the bars that the hub's library draws; counts and shows nothing."""

    def __init__(self, *items: Any, **options: Any) -> None:
        self.items = items[0] if items else options.get("iterable", ())
        self.total, self.n = options.get("total"), options.get("initial") or 0
        self.format_dict: dict[str, Any] = {"rate": None, "elapsed": 0.0}

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def update(self, n: float | None = 1) -> None:
        self.n += int(n or 0)

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *values, **options: None  # refresh, close, set_description, …
