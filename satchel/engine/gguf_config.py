"""What a GGUF file's metadata and tensor names mean to mlx-lm. Knows nothing of tensor data or tokenizers.

Key names: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; the gemma3 constants are those of
llama.cpp's loader, because the file does not hold them.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from satchel.engine.gguf_reader import GGUFFile
from satchel.errors import DamagedError, UsageError

MODEL_TYPES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}
GEMMA3_27B_LAYERS = 62  # the one size whose attention scale is not head_dim ** -0.5

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK_BY_ARCHITECTURE = {
    "gemma3": {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
}
ROPE_FACTORS = "rope_freqs.weight"


def architecture_of(file: GGUFFile) -> str:
    """The file's architecture.

    Raises:
        UsageError: it is none of `MODEL_TYPES`.
    """
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in MODEL_TYPES:
        raise UsageError(
            f"the GGUF file's architecture is {str(name)[:40]!r}", f"supported are {', '.join(MODEL_TYPES)}"
        )
    return name


def mlx_name(architecture: str, name: str) -> str:
    """mlx-lm's name of the tensor called `name` in a GGUF file of this architecture.

    Raises:
        UsageError: the model has a part that mlx-lm's class of this architecture has not.
    """
    blocks = _BLOCK | _BLOCK_BY_ARCHITECTURE.get(architecture, {})
    if match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name):
        layer, part, leaf = match.groups()
        if part in blocks:
            return f"model.layers.{layer}.{blocks[part]}.{leaf}"
    elif match := re.fullmatch(r"(\w+)\.(weight|bias)", name):
        part, leaf = match.groups()
        if part in _TOP:
            return f"{_TOP[part]}.{leaf}"
    raise UsageError(f"the GGUF file has a tensor {name!r}, which a plain {architecture} model has not")


def mlx_config(file: GGUFFile) -> dict[str, Any]:
    """mlx-lm's `config.json` for the model, without quantisation.

    Raises:
        UsageError: an architecture or RoPE scaling that is not supported.
        DamagedError: a field is missing.
    """
    architecture = architecture_of(file)
    fields = _Fields(file, architecture)
    n_heads = fields.integer("attention.head_count")
    hidden = fields.integer("embedding_length")
    head_dim = fields.integer("attention.key_length", hidden // max(n_heads, 1))
    config: dict[str, Any] = {
        "model_type": MODEL_TYPES[architecture],
        "hidden_size": hidden,
        "num_hidden_layers": fields.integer("block_count"),
        "intermediate_size": fields.integer("feed_forward_length"),
        "num_attention_heads": n_heads,
        "num_key_value_heads": fields.integer("attention.head_count_kv", n_heads),
        "head_dim": head_dim,
        "rms_norm_eps": _shortest_float32(fields.number("attention.layer_norm_rms_epsilon")),
        "vocab_size": _vocab_size(file),
        "max_position_embeddings": fields.integer("context_length"),
        "rope_theta": _shortest_float32(fields.number("rope.freq_base", 10_000.0)),
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }
    if fields.integer("rope.dimension_count", head_dim) != head_dim:
        raise UsageError(
            f"the GGUF file rotates a part of each head only, which its {architecture} class cannot"
        )
    if scaling := _rope_scaling(file, fields, config):
        config["rope_scaling"] = scaling
    if architecture == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    if architecture == "gemma3":
        is_27b = config["num_hidden_layers"] == GEMMA3_27B_LAYERS
        config |= {
            "sliding_window": fields.integer("attention.sliding_window"),
            "sliding_window_pattern": fields.integer("attention.sliding_window_pattern", 6),
            "rope_local_base_freq": fields.number("rope.freq_base_swa", 10_000.0),
            "query_pre_attn_scalar": hidden // n_heads if is_27b else head_dim,
        }
    return config


class _Fields:
    """The architecture's own metadata fields, checked for type."""

    def __init__(self, file: GGUFFile, architecture: str) -> None:
        self.metadata = file.metadata
        self.prefix = architecture

    def number(self, name: str, default: float | None = None) -> float:
        value = self.metadata.get(f"{self.prefix}.{name}", default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise DamagedError(f"the GGUF file's field {self.prefix}.{name} is {value!r}, not a number")
        return float(value)

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.number(name, default)
        if value < 1 or value != int(value):
            raise DamagedError(f"the GGUF file's field {self.prefix}.{name} is {value!r}, not a count")
        return int(value)


def _vocab_size(file: GGUFFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise DamagedError("the GGUF file has no token_embd.weight tensor")
    return embedding.shape[0]


def _shortest_float32(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-05, where the file gives 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _rope_scaling(file: GGUFFile, fields: _Fields, config: dict[str, Any]) -> dict[str, Any] | None:
    kind = fields.metadata.get(f"{fields.prefix}.rope.scaling.type", "none")
    if ROPE_FACTORS in file.tensors:
        return _llama3_scaling(file, config)
    if kind == "none":
        return None
    scaling: dict[str, Any] = {"rope_type": kind, "factor": fields.number("rope.scaling.factor")}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = fields.integer("rope.scaling.original_context_length")
    elif kind != "linear":
        raise UsageError(
            f"the GGUF file's RoPE scaling is {kind!r}", "supported are none, linear, yarn, llama3"
        )
    return scaling


def _llama3_scaling(file: GGUFFile, config: dict[str, Any]) -> dict[str, Any]:
    """Llama 3's scaling, which GGUF keeps as one factor per frequency; checked against its formula."""
    factors = file.tensors[ROPE_FACTORS].data.reshape(-1).view(np.float32)
    scaling = {"rope_type": "llama3", "factor": float(factors.max()), "low_freq_factor": 1.0}
    scaling |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    half = config["head_dim"] // 2
    wavelengths = 2 * np.pi * config["rope_theta"] ** (np.arange(half) / half)
    smooth = np.clip((8192 / wavelengths - 1.0) / (4.0 - 1.0), 0, 1)
    expected = 1 / ((1 - smooth) / factors.max() + smooth)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-3):
        raise UsageError(
            "the GGUF file's RoPE factors are not Llama 3's", "supported are none, linear, yarn, llama3"
        )
    return scaling
