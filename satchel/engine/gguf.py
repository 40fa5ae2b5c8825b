"""Turns a GGUF file into an MLX model folder. Knows nothing of where models are kept or how they are run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from gguf.constants import GGMLQuantizationType as Kind
from gguf.quants import dequantize

from satchel.engine.gguf_config import ROPE_FACTORS, architecture_of, mlx_config, mlx_name
from satchel.engine.gguf_reader import GGUFFile, GGUFTensor, read_gguf
from satchel.engine.gguf_tokenizer import build_tokenizer, stop_token_ids, tokenizer_config
from satchel.errors import DamagedError, UsageError
from satchel.files import atomic_folder

GROUP = 32  # values in a block of Q4_0, Q4_1 and Q8_0, and MLX's group size for them
PACKED_BITS = {Kind.Q4_0: 4, Kind.Q4_1: 4, Kind.Q8_0: 8}
SHARD_BYTES = 2 << 30


def convert_gguf(source: Path, target: Path, progress: Callable[[int, int], None] | None = None) -> None:
    """Write the model in the GGUF file `source` as the MLX model folder `target`, whole or not at all.

    Q4_0, Q4_1 and Q8_0 matrices keep their bits (MLX's affine layout, group size 32: the same values to the
    last bit), F16, F32 and BF16 tensors their values. Every other type (K-quants, Q5_0, ...) is
    de-quantised to float16, so such a matrix takes 16 bits a weight on disk and in memory, two to five
    times what it takes in the GGUF file.

    Args:
        progress: called with the bytes of tensors that are converted, and of all.

    Raises:
        DamagedError: the file is no GGUF, is cut short, or contradicts itself.
        UsageError: an architecture, tokenizer or tensor type that is not supported; the hint lists those
            that are.
        OSError: the disk is full, ….
    """
    file = read_gguf(source)
    config = mlx_config(file)
    tokenizer = build_tokenizer(file.metadata)
    stops = stop_token_ids(file.metadata)
    with atomic_folder(target) as folder:
        for number, shard in enumerate(_shards(_mlx_tensors(file, config, progress)), 1):
            _save_shard(folder / f"model-{number:05}.safetensors", shard)
        if quantisation := _quantisation(file):
            config["quantization"] = quantisation
        _write_json(folder / "config.json", config | {"eos_token_id": stops})
        _write_json(folder / "tokenizer_config.json", tokenizer_config(file.metadata))
        (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")


def _quantisation(file: GGUFFile) -> dict[str, Any] | None:
    """The configuration's entry for mlx-lm: the commonest width, and by path the matrices of another."""
    architecture = architecture_of(file)
    bits = {
        mlx_name(architecture, tensor.name).removesuffix(".weight"): PACKED_BITS[tensor.kind]
        for tensor in file.tensors.values()
        if _is_packed(tensor)
    }
    if not bits:
        return None
    ((common, _),) = Counter(bits.values()).most_common(1)
    others = {path: {"group_size": GROUP, "bits": width} for path, width in bits.items() if width != common}
    return {"group_size": GROUP, "bits": common, **others}


def _is_packed(tensor: GGUFTensor) -> bool:
    return tensor.kind in PACKED_BITS and len(tensor.shape) == 2


def _mlx_tensors(
    file: GGUFFile, config: dict[str, Any], progress: Callable[[int, int], None] | None
) -> Iterator[tuple[str, mx.array]]:
    """mlx-lm's tensors by its names, one after the other."""
    architecture = architecture_of(file)
    done, total = 0, sum(tensor.data.nbytes for tensor in file.tensors.values())
    for tensor in file.tensors.values():
        if tensor.name == ROPE_FACTORS:  # in the configuration already
            continue
        name = mlx_name(architecture, tensor.name)
        if architecture == "llama" and ".q_proj." in name:
            tensor = _uninterleaved(tensor, config["num_attention_heads"])
        elif architecture == "llama" and ".k_proj." in name:
            tensor = _uninterleaved(tensor, config["num_key_value_heads"])
        if _is_packed(tensor):
            stem = name.removesuffix("weight")
            for leaf, array in zip(("weight", "scales", "biases"), pack(tensor), strict=True):
                yield stem + leaf, mx.array(array)
        else:
            yield name, _dense(tensor, plus_one=architecture == "gemma3" and "norm" in name)
        done += tensor.data.nbytes
        if progress is not None:
            progress(done, total)


def pack(tensor: GGUFTensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The matrix's blocks in MLX's affine layout: value = scale * code + bias, exactly as in the GGUF file.

    Returns:
        Codes (rows, columns * bits / 32) uint32, scales and biases (rows, columns / 32) float16.

    Raises:
        DamagedError: a scale or bias is not finite in float16.
    """
    rows, columns = tensor.shape
    header_bytes = 4 if tensor.kind == Kind.Q4_1 else 2
    blocks = tensor.data.reshape(rows, columns // GROUP, -1)
    header = np.ascontiguousarray(blocks[..., :header_bytes]).view(np.float16)  # (rows, groups, 1 or 2)
    body = blocks[..., header_bytes:]
    scales = header[..., 0]
    with np.errstate(over="ignore", invalid="ignore"):
        if tensor.kind == Kind.Q8_0:
            codes, biases = body ^ 0x80, scales * np.float16(-128)  # int8 + 128 as uint8
        else:
            # A block's byte i holds values i and i + 16; MLX's byte i holds values 2i and 2i + 1.
            values = np.concatenate([body & 0x0F, body >> 4], axis=-1)  # (rows, groups, 32)
            codes = values[..., 0::2] | values[..., 1::2] << 4
            biases = header[..., 1] if tensor.kind == Kind.Q4_1 else scales * np.float16(-8)
    if not (np.isfinite(scales).all() and np.isfinite(biases).all()):
        raise DamagedError(f"the GGUF file's tensor {tensor.name} has scales that are not finite")
    return np.ascontiguousarray(codes.reshape(rows, -1)).view("<u4"), scales, biases


def _uninterleaved(tensor: GGUFTensor, n_heads: int) -> GGUFTensor:
    """Undo llama.cpp's order of a llama model's query and key rows, which pairs channels i and i + d/2."""
    rows = tensor.shape[0] if len(tensor.shape) == 2 else tensor.shape[-1]
    if rows % (2 * n_heads):
        raise DamagedError(f"the GGUF file's tensor {tensor.name} has {rows} rows for {n_heads} heads")
    data = tensor.data.reshape(rows, -1)  # (rows, bytes); a bias has one value a row
    heads = data.reshape(n_heads, rows // n_heads // 2, 2, -1).swapaxes(1, 2)
    return GGUFTensor(tensor.name, tensor.kind, tensor.shape, heads.reshape(tensor.data.shape))


def _dense(tensor: GGUFTensor, plus_one: bool) -> mx.array:
    """The tensor's values as an array of its shape.

    Float32 becomes float16 where that loses nothing (norms and biases come from 16-bit models), so that a
    model's floats have one dtype. `plus_one`: the values are stored with one added, which is taken away,
    because mlx-lm's gemma3_text adds it again when it runs.
    """
    if tensor.kind == Kind.BF16:
        return mx.array(tensor.data.view(np.uint16).reshape(tensor.shape)).view(mx.bfloat16)
    if tensor.kind in (Kind.F16, Kind.F32):
        values: np.ndarray = tensor.data.view(np.float16 if tensor.kind == Kind.F16 else np.float32)
        values = values.reshape(tensor.shape)
    else:
        values = _dequantised(tensor)
    if plus_one:
        values = values - np.float32(1)
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    exact = tensor.kind != Kind.F32 or np.array_equal(half, values)
    return mx.array(half if exact else values)


def _dequantised(tensor: GGUFTensor) -> np.ndarray:
    try:
        return dequantize(tensor.data, tensor.kind).reshape(tensor.shape)
    except NotImplementedError as err:
        raise UsageError(
            f"the GGUF file's tensor {tensor.name} is of type {tensor.kind.name}, which has no reader here",
            "F32, F16, BF16, Q4_0 to Q8_0, the K-quants and the IQ-quants are read",
        ) from err


def _shards(tensors: Iterator[tuple[str, mx.array]]) -> Iterator[dict[str, mx.array]]:
    """Groups of tensors of about `SHARD_BYTES`, so that a large model never is in memory as a whole."""
    shard: dict[str, mx.array] = {}
    for name, array in tensors:
        shard[name] = array
        if sum(held.nbytes for held in shard.values()) >= SHARD_BYTES:
            yield shard
            shard = {}
    if shard:
        yield shard


def _save_shard(path: Path, shard: dict[str, mx.array]) -> None:
    try:
        mx.save_safetensors(str(path), shard, {"format": "mlx"})
    except RuntimeError as err:  # MLX's word for a full disk
        raise OSError(str(err)) from err


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
