"""Loads a model by name and says exactly what was loaded. Knows nothing of caches, text or sessions."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten

from satchel.config.paths import MAX_SHOWN, cache_access, cache_dir, expand
from satchel.engine.device import Device, activation_dtype, cache_dtype, current_device, should_dequantise
from satchel.engine.digests import file_sha256, files_sha256, json_sha256
from satchel.engine.embedded import GGUF_SHA256, find_embedded_gguf
from satchel.engine.hub import fetch_from_hub, is_hub_name
from satchel.errors import DamagedError, NotFoundError, UsageError

if TYPE_CHECKING:
    import mlx.nn as nn
    from mlx_lm.tokenizer_utils import TokenizerWrapper

EMBEDDED = "embedded"
NAMES = "name `embedded`, an MLX model folder, a GGUF file, or a hub model as owner/repository"
CONVERTER = 1  # raise it when `convert_gguf` writes something else, so that old conversions are made again
FALLBACK_CONTEXT = 4096  # tokens, for a configuration that names no length
TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "*.tiktoken",
)
# What a configuration says beside the computation: names, versions, and what the other digests cover.
NOT_ARCHITECTURE = {
    *("_name_or_path", "transformers_version", "architectures", "torch_dtype", "dtype", "use_cache"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "quantization_config"),
}


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """SHA-256 digests, hexadecimal, of all that decides which tokens and which KV state come out."""

    weights: str
    architecture: str
    tokenizer: str
    template: str


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run.

    `args` are mlx-lm's arguments of the model's class, `dtype` is that of the activations, `cache_dtype` the
    16-bit one of exact KV, `context_length` the tokens the model was made for.
    """

    name: str
    path: Path
    model: nn.Module = field(repr=False)
    tokenizer: TokenizerWrapper = field(repr=False)
    config: dict[str, Any] = field(repr=False)
    args: Any = field(repr=False)
    fingerprint: Fingerprint
    dtype: mx.Dtype
    cache_dtype: mx.Dtype
    device: Device
    context_length: int


def load_model(name: str, progress: Callable[[str], None] | None = None) -> LoadedModel:
    """Load the model called `name`.

    Args:
        name: `embedded`, an MLX model folder, a GGUF file, or a hub name `owner/repository`.
        progress: called with one line for each slow step (converting, downloading).

    Raises:
        NotFoundError: no such model, or a folder that holds none.
        NetworkError: a hub model that is not on this machine, and no network.
        UsageError: a kind of model that is not supported.
        DamagedError: files that cannot be read as what they claim to be.
        SatchelError: the cache directory cannot be used.
    """
    try:
        path = _model_folder(name, progress or (lambda line: None))
    except OSError as err:
        raise NotFoundError(
            f"the model {name[:MAX_SHOWN]!r} cannot be read: {err.strerror or err}", NAMES
        ) from err
    _check_supported(path)
    import mlx_lm.utils
    from mlx_lm.tokenizer_utils import load as load_tokenizer

    device = current_device()
    mlx_lm.utils.maybe_set_recommended_wired_limit()  # on Metal: keeps the weights resident
    try:
        model, config = mlx_lm.utils.load_model(path, lazy=True)
        dtype = _prepare_weights(model, device)
        tokenizer = load_tokenizer(
            path, {"trust_remote_code": False}, eos_token_ids=config.get("eos_token_id")
        )
        mx.eval(model.parameters())
        fingerprint = _fingerprint(path, config, tokenizer)
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, OSError) as err:
        # What mlx-lm, MLX and transformers raise for files that contradict themselves or are cut short.
        reason = " ".join(str(err).split())[:200]
        raise DamagedError(f"the model in {path} cannot be loaded ({reason})") from err
    return LoadedModel(
        name=name,
        path=path,
        model=model,
        tokenizer=tokenizer,
        config=config,
        args=model.args,
        fingerprint=fingerprint,
        dtype=dtype,
        cache_dtype=cache_dtype(dtype),
        device=device,
        context_length=_context_length(config),
    )


def _model_folder(name: str, report: Callable[[str], None]) -> Path:
    """The MLX model folder that `name` stands for, made or fetched where needed."""
    if name == EMBEDDED:
        source = find_embedded_gguf()
        if source is None:
            raise NotFoundError("the embedded model is not installed", "run `satchel model pull embedded`")
        return _converted(source, GGUF_SHA256, report)
    path = expand(name)
    if path.is_dir():
        return path
    if path.is_file():
        return _converted(path, file_sha256(path), report)
    if is_hub_name(name):
        return fetch_from_hub(name, report)
    raise NotFoundError(f"there is no model {name!r}", NAMES)


@cache_access()
def _converted(source: Path, digest: str, report: Callable[[str], None]) -> Path:
    """The model folder made of a GGUF file whose SHA-256 is `digest`; made at the first call, then found."""
    target = cache_dir() / "models" / f"{digest[:32]}-{CONVERTER}"
    if not target.is_dir():
        from satchel.engine.gguf import convert_gguf

        report(f"converting {source.name} for MLX, once")
        convert_gguf(source, target)
    return target


def _check_supported(path: Path) -> None:
    """Refuse what is no model folder, or one mlx-lm has no class for, in one line that names the reason."""
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError as err:
        raise NotFoundError(f"{path} has no config.json, so it is no MLX model folder") from err
    except OSError as err:
        raise DamagedError(f"{path / 'config.json'} cannot be read: {err.strerror or err}") from err
    except (ValueError, RecursionError) as err:
        raise DamagedError(f"{path / 'config.json'} is not JSON ({err})") from err
    model_type = config.get("model_type") if isinstance(config, dict) else None
    if not isinstance(model_type, str):
        raise DamagedError(f"{path / 'config.json'} names no model_type")
    if "model_file" in config:
        raise UsageError(f"the model in {path} wants to run its own Python code, which is never done")
    if not any(path.glob("model*.safetensors")):
        raise NotFoundError(f"{path} has no model*.safetensors files")
    from mlx_lm.utils import MODEL_REMAPPING

    module = MODEL_REMAPPING.get(model_type, model_type)
    if not module.isidentifier() or importlib.util.find_spec(f"mlx_lm.models.{module}") is None:
        raise UsageError(
            f"mlx-lm has no model type {model_type!r}", "a newer mlx-lm may; `embedded` always works"
        )


def _prepare_weights(model: nn.Module, device: Device) -> mx.Dtype:
    """Bring the weights into the form the device is fast with and begin to load them; the activations' dtype.

    On a CPU all floats become float32, before de-quantising so that nothing is rounded to 16 bits on the way.
    """
    from mlx_lm.utils import dequantize_model, get_total_parameters

    dtype = activation_dtype(device, _floating_dtype(model))
    if device.kind == "cpu":
        model.set_dtype(dtype)
        if should_dequantise(device, get_total_parameters(model) * dtype.size):
            dequantize_model(model)
            model.set_dtype(dtype)  # the formats without float scales de-quantise to bfloat16
    mx.async_eval(model.parameters())  # runs while the tokenizer is loaded
    return dtype


def _floating_dtype(model: nn.Module) -> mx.Dtype:
    """The dtype of most floating values; of packed matrices, those are the scales."""
    values: Counter[mx.Dtype] = Counter()
    for _, array in cast("list[tuple[str, mx.array]]", tree_flatten(model.parameters())):
        if mx.issubdtype(array.dtype, mx.floating):
            values[array.dtype] += array.size
    return values.most_common(1)[0][0]


def _fingerprint(path: Path, config: dict[str, Any], tokenizer: TokenizerWrapper) -> Fingerprint:
    tokenizer_files = {file for pattern in TOKENIZER_FILES for file in path.glob(pattern) if file.is_file()}
    return Fingerprint(
        weights=files_sha256(list(path.glob("model*.safetensors"))),
        architecture=json_sha256({key: config[key] for key in config if key not in NOT_ARCHITECTURE}),
        tokenizer=files_sha256(list(tokenizer_files)),
        template=json_sha256(tokenizer.chat_template),
    )


def _context_length(config: dict[str, Any]) -> int:
    """Tokens; multimodal models keep the text model's configuration one level down."""
    text = config.get("text_config") or {}
    length = config.get("max_position_embeddings") or text.get("max_position_embeddings")
    return length if isinstance(length, int) and length > 0 else FALLBACK_CONTEXT
