"""Loads a model by name and says exactly what was loaded. Knows nothing of caches, text or sessions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten

from satchel.engine.device import Device, activation_dtype, cache_dtype, current_device, should_dequantise
from satchel.engine.digests import files_sha256, json_sha256
from satchel.engine.hub import Progress
from satchel.engine.model_files import TOKENIZER_FILES, context_length
from satchel.engine.model_folder import model_folder
from satchel.engine.model_names import full_name
from satchel.errors import DamagedError

if TYPE_CHECKING:
    import mlx.nn as nn
    from mlx_lm.tokenizer_utils import TokenizerWrapper

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

    `name` loads it again, on any machine that has it: of a short name it is what that stands for. `args` are
    mlx-lm's arguments of the model's class, `dtype` is that of the activations, `cache_dtype` the 16-bit one
    of exact KV, `context_length` the tokens the model was made for.
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


def load_model(
    name: str, progress: Callable[[str], None] | None = None, prepared: Progress | None = None
) -> LoadedModel:
    """Load the model called `name`.

    Args:
        name: `embedded`, an MLX model folder, a GGUF file, a hub name `owner/repository`, or a short name.
        progress: called with one line for each slow step (converting, downloading).
        prepared: called as a hub model comes or a GGUF file is converted, with the bytes done and all.

    Raises:
        NotFoundError: no such model, or a folder that holds none.
        NetworkError: a hub model that is not on this machine, and no network.
        UsageError: a kind of model that is not supported.
        DamagedError: files that cannot be read as what they claim to be.
        SatchelError: the cache directory cannot be used, or the disk is full.
    """
    name = full_name(name)
    path = model_folder(name, progress or (lambda line: None), prepared)
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
        context_length=context_length(config),
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
