"""Brings a model folder from the Hugging Face hub. Knows nothing of what is in the folder."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from satchel.errors import NetworkError, NotFoundError

# No Python files: code that comes with a model is never run.
FILES = ("*.json", "model*.safetensors", "tokenizer.model", "*.tiktoken", "*.txt", "*.jsonl", "*.jinja")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_hub_name(name: str) -> bool:
    """Whether `name` has the form `owner/repository`."""
    return _NAME.fullmatch(name) is not None


def fetch_from_hub(name: str, report: Callable[[str], None]) -> Path:
    """The local folder of the model `name`; downloaded when it is not there yet, with the hub's own bars.

    A model that was downloaded before is used as it is, without asking the network.

    Raises:
        NetworkError: it is not here and the hub does not answer.
        NotFoundError: the hub has no such model, or does not give it to this user.
    """
    from httpx import HTTPError
    from huggingface_hub import errors as hub_errors
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=FILES, local_files_only=True))
    except hub_errors.LocalEntryNotFoundError:
        report(f"downloading {name} from the Hugging Face hub")
    except hub_errors.HFValidationError as err:
        raise NotFoundError(f"{name!r} is no name that the Hugging Face hub allows") from err
    try:
        return Path(snapshot_download(name, allow_patterns=FILES))
    except hub_errors.RepositoryNotFoundError as err:  # gated ones too
        raise NotFoundError(
            f"the Hugging Face hub has no model {name!r} that this user may read",
            "check the name; a gated model needs its licence accepted and `hf auth login`",
        ) from err
    except (
        hub_errors.LocalEntryNotFoundError,
        hub_errors.RevisionResolutionError,
        hub_errors.OfflineModeIsEnabled,
        HTTPError,  # hub errors with a status are a kind of it
    ) as err:
        raise NetworkError(
            f"{name} is not on this machine and the Hugging Face hub cannot be reached",
            "use `embedded`, a local MLX model folder or a GGUF file instead",
        ) from err
