"""What a model folder or GGUF file holds, by its configuration and headers. Reads no weights."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from satchel.errors import DamagedError, NotFoundError

WEIGHTS = "model*.safetensors"
TOKENIZER_FILES = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json"),
    *("vocab*", "merges.txt", "*.tiktoken"),
)
MAX_CONFIG_BYTES = 32 << 20
MAX_HEADER_BYTES = 100_000_000  # as the safetensors library has it
MAX_DIMENSIONS = 16
LARGEST_COUNT = 1 << 32  # of anything in a configuration
FALLBACK_CONTEXT = 4096  # tokens, for a configuration that names no length
PACKED = ("weight", "scales", "biases")
GGUF_PACKED_BITS = {"Q4_0": 5, "Q4_1": 5, "Q8_0": 9}  # with a 16-bit scale and bias for each 32 values
HALF_BITS = 16  # what every other type becomes


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model on disk.

    Attributes:
        config: mlx-lm's `config.json`, also of a GGUF file.
        stored_bytes: of the files as they are.
        weights_bytes: of the weights in MLX's form.
        parameters: of all tensors, a packed matrix's counted unpacked; 0 where headers cannot be read.
        quantisation: such as `4 bits, groups of 64`, `Q4_1`, `bfloat16`.
    """

    config: Mapping[str, Any]
    stored_bytes: int
    weights_bytes: int
    parameters: int
    quantisation: str


def read_model_files(path: Path) -> ModelFiles:
    """What is at `path`, a folder or a GGUF file.

    Raises:
        NotFoundError: nothing, or no model.
        DamagedError: a file that is not what it claims to be.
        UsageError: a GGUF file of a kind that is not supported.
    """
    try:
        return _read_folder(path) if path.is_dir() else _read_gguf_file(path)
    except FileNotFoundError as err:
        raise NotFoundError(f"there is no model in {path}") from err
    except OSError as err:
        raise DamagedError(f"{path} cannot be read: {err.strerror or err}") from err


def read_config(folder: Path) -> Mapping[str, Any]:
    """The folder's `config.json`.

    Raises:
        NotFoundError: there is none.
        DamagedError: it is no JSON object.
        OSError: it cannot be read.
    """
    path = folder / "config.json"
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise DamagedError(f"{path} is too large for a model's configuration")
        config = json.loads(path.read_bytes())
    except FileNotFoundError as err:
        raise NotFoundError(f"{folder} has no config.json, so it is no MLX model folder") from err
    except (ValueError, RecursionError) as err:
        raise DamagedError(f"{path} is not JSON ({err})") from err
    if not isinstance(config, dict):
        raise DamagedError(f"{path} names no model_type")
    return config


def has_tokenizer(folder: Path) -> bool:
    """Whether any of the files is there that a tokenizer is made of."""
    return any(True for pattern in TOKENIZER_FILES for _ in folder.glob(pattern))


def context_length(config: Mapping[str, Any]) -> int:
    """Tokens; multimodal models keep the text model's configuration one level down."""
    text = config.get("text_config")
    inner = text.get("max_position_embeddings") if isinstance(text, Mapping) else None
    length = config.get("max_position_embeddings") or inner
    return length if type(length) is int and 0 < length <= LARGEST_COUNT else FALLBACK_CONTEXT


def _read_folder(folder: Path) -> ModelFiles:
    config = read_config(folder)
    weights = sorted(folder.glob(WEIGHTS))
    if not weights:
        raise NotFoundError(f"{folder} has no {WEIGHTS} files")
    stored = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    tensors: dict[str, tuple[str, int]] = {}
    for path in weights:
        tensors |= _tensor_sizes(path)
    return ModelFiles(
        config=config,
        stored_bytes=stored,
        weights_bytes=sum(path.stat().st_size for path in weights),
        parameters=_parameters(tensors, _group_size(config)),
        quantisation=_quantisation(config, tensors),
    )


def _tensor_sizes(path: Path) -> dict[str, tuple[str, int]]:
    """Each tensor's dtype and number of elements, from a safetensors file's header."""
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else MAX_HEADER_BYTES + 1
        stored = path.stat().st_size
        if length > min(MAX_HEADER_BYTES, stored):
            raise DamagedError(f"{path} is no safetensors file, or cut short")
        try:
            header = json.loads(file.read(length))
            return {
                name: (str(tensor["dtype"]), _elements(name, tensor["shape"], stored))
                for name, tensor in header.items()
                if name != "__metadata__"
            }
        except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as err:
            raise DamagedError(f"{path} has a header that cannot be read ({str(err)[:200]})") from err


def _elements(name: str, shape: Sequence[int], stored_bytes: int) -> int:
    """
    Raises:
        ValueError: it is no shape, or that of a tensor for which the file is too small at a bit a value.
    """
    count = 1
    for size in shape[:MAX_DIMENSIONS]:
        count *= size if type(size) is int and size >= 0 else stored_bytes * 8 + 1
    if count > stored_bytes * 8 or len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"the tensor {name[:80]!r} is larger than the file")
    return count


def _parameters(tensors: Mapping[str, tuple[str, int]], group: int) -> int:
    """A packed matrix has as many values as its scales have groups."""
    total = 0
    for name, (_, size) in tensors.items():
        stem, _, leaf = name.rpartition(".")
        is_packed = leaf in PACKED and f"{stem}.scales" in tensors
        if is_packed:
            total += size * group if leaf == "scales" else 0
        else:
            total += size
    return total


def _group_size(config: Mapping[str, Any]) -> int:
    quantisation = config.get("quantization")
    group = quantisation.get("group_size") if isinstance(quantisation, Mapping) else None
    return group if isinstance(group, int) and group > 0 else 64


def _quantisation(config: Mapping[str, Any], tensors: Mapping[str, tuple[str, int]]) -> str:
    entry = config.get("quantization")
    if isinstance(entry, Mapping) and isinstance(entry.get("bits"), int):
        bits, mode = entry["bits"], entry.get("mode", "affine")
        mixed = any(isinstance(each, Mapping) and each.get("bits", bits) != bits for each in entry.values())
        name = f"{bits} bits" if mode == "affine" else str(mode)
        return f"{name}{' mixed' if mixed else ''}, groups of {_group_size(config)}"
    sizes: dict[str, int] = {}
    for dtype, size in tensors.values():
        sizes[dtype] = sizes.get(dtype, 0) + size
    names = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
    dtype = max(sizes, key=lambda each: sizes[each], default="")
    return names.get(dtype, dtype)


def _read_gguf_file(path: Path) -> ModelFiles:
    from satchel.engine.gguf_config import ROPE_FACTORS, mlx_config
    from satchel.engine.gguf_reader import read_gguf

    file = read_gguf(path)
    config = mlx_config(file)
    weights_bits, parameters = 0, 0
    by_kind: dict[str, int] = {}
    for tensor in file.tensors.values():
        if tensor.name == ROPE_FACTORS:
            continue
        size = math.prod(tensor.shape)
        kind = tensor.kind.name
        packed = GGUF_PACKED_BITS.get(kind) if len(tensor.shape) == 2 else None
        weights_bits += size * (packed or HALF_BITS)
        parameters += size
        by_kind[kind] = by_kind.get(kind, 0) + size
    return ModelFiles(
        config=config,
        stored_bytes=path.stat().st_size,
        weights_bytes=weights_bits // 8,
        parameters=parameters,
        quantisation=max(by_kind, key=lambda kind: by_kind[kind], default=""),
    )
