"""What a model's configuration says of its layers' states. Knows nothing of files, MLX, or memory to spare.

Which layers keep what is mlx-lm's choice, by architecture: the rules here follow its `make_cache` methods (a
test builds its classes and compares). An architecture without a rule counts as full attention in all layers,
and its shape says that it is a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from satchel.engine.fit import Shape
from satchel.engine.model_files import LARGEST_COUNT, context_length
from satchel.errors import DamagedError

MOST_LAYERS = 4096
REMAPPED = {"mistral": "llama", "iquestcoder": "llama", "kimi_k2": "deepseek_v3", "gemma4_unified": "gemma4"}
# Every layer attends to all tokens, by the function that the compressed cache serves.
PLAIN = {
    *("apertus", "bailing_moe", "cohere", "dots1", "ernie4_5", "ernie4_5_moe"),
    *("exaone", "gemma", "glm4", "glm4_moe", "granite", "granitemoe"),
    *("helium", "hunyuan_v1_dense", "internlm2", "internlm3", "mimo", "minicpm"),
    *("mixtral", "olmo2", "olmoe", "phi3", "phimoe", "qwen2"),
    *("qwen2_moe", "qwen2_vl", "qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_moe"),
    *("seed_oss", "smollm3", "stablelm", "starcoder2", "telechat3"),
}

Fields = dict[str, Any]


def shape_from_config(config: Mapping[str, Any], weights_bytes: int, parameters: int = 0) -> Shape:
    """The shape of a model with the `config.json` given.

    Raises:
        DamagedError: a count is missing, or is none.
    """
    text = config.get("text_config")
    merged = _Config({**config, **text} if isinstance(text, Mapping) else config)
    architecture = str(config.get("model_type", "unknown"))
    kind = REMAPPED.get(architecture, architecture).removesuffix("_text")
    rule = _RULES.get(kind)
    fields: Fields = _attention(merged, kind)
    if rule is not None:
        fields |= rule(merged)
    elif kind not in PLAIN:
        fields |= {"is_guess": True}
    return Shape(architecture=architecture, weights_bytes=weights_bytes, parameters=parameters, **fields)


class _Config:
    """A configuration whose values are checked as they are read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def count(self, *names: str, default: int | None = None, most: int = LARGEST_COUNT) -> int:
        """The first of `names` that is there, a whole number from 1 on."""
        for name in names:
            value = self.values.get(name)
            if value is not None:
                if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= most:
                    raise DamagedError(f"the model's configuration says {name} is {str(value)[:40]!r}")
                return value
        if default is None:
            raise DamagedError(f"the model's configuration has no {names[0]}")
        return default

    def fraction(self, name: str, default: float) -> float:
        rope = self.values.get("rope_parameters")
        value = self.values.get(name, rope.get(name) if isinstance(rope, Mapping) else None)
        return float(value) if isinstance(value, int | float) and 0 < value <= 1 else default

    def names(self, name: str) -> list[str]:
        """A list with a name for each layer, or nothing."""
        value = self.values.get(name)
        if isinstance(value, str):
            value = list(value)
        return [str(each) for each in value][: self.layers] if isinstance(value, list) else []

    @property
    def layers(self) -> int:
        return self.count("num_hidden_layers", "n_layer", "n_layers", "num_layers", most=MOST_LAYERS)


def _attention(config: _Config, kind: str) -> Fields:
    """Full attention in every layer, by the names that nearly all configurations share."""
    defaults = _DEFAULTS.get(kind, {})
    config = _Config({**defaults, **config.values})
    heads = config.count("num_attention_heads", "n_head", "n_heads")
    # Some heads are not hidden_size / heads wide, and some models name no hidden_size then.
    head_dim = (
        config.count("head_dim")
        if config.values.get("head_dim") is not None
        else max(config.count("hidden_size", "n_embd", "dim") // heads, 1)
    )
    return {
        "layers": config.layers,
        "full_layers": config.layers,
        "n_kv_heads": config.count("num_key_value_heads", "n_kv_heads", default=heads),
        "head_dim": head_dim,
        "value_dim": head_dim,
        "rope_dims": int(head_dim * config.fraction("partial_rotary_factor", 1.0)),
        "context_length": context_length(config.values),
    }


# What mlx-lm's classes take where a configuration is silent.
_DEFAULTS: dict[str, Fields] = {
    "gemma3": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
    | {"num_hidden_layers": 26, "max_position_embeddings": 32768},
    "gpt_oss": {"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64},
}


def _windows(full_layers: int, config: _Config, window: int, **changes: int) -> Fields:
    """Full attention in some layers, a sliding window in the others; heads alike unless `changes` say so."""
    return {
        "full_layers": full_layers,
        "window_layers": config.layers - full_layers,
        "window": window,
        **changes,
    }


def _alike(rule: Callable[[_Config], Fields], kind: str) -> Callable[[_Config], Fields]:
    """The rule, with the heads of windows as those of full attention."""

    def with_heads(config: _Config) -> Fields:
        shared = _attention(config, kind)
        heads = {"window_kv_heads": shared["n_kv_heads"], "window_head_dim": shared["head_dim"]}
        return heads | rule(_Config({**_DEFAULTS.get(kind, {}), **config.values}))

    return with_heads


def _by_layer_types(config: _Config) -> Fields:
    types = config.names("layer_types")
    if "sliding_attention" not in types:
        return {}
    return _windows(types.count("full_attention"), config, config.count("sliding_window"))


def _gpt_oss(config: _Config) -> Fields:
    types = config.names("layer_types") or ["sliding_attention", "full_attention"] * config.layers
    full = types[: config.layers].count("full_attention")
    return _windows(full, config, config.count("sliding_window", default=128))


def _every(default_pattern: int, default_window: int) -> Callable[[_Config], Fields]:
    """Full attention in each `sliding_window_pattern`-th layer."""

    def rule(config: _Config) -> Fields:
        pattern = config.count("sliding_window_pattern", default=default_pattern)
        window = config.count("sliding_window", default=default_window)
        return _windows(config.layers // pattern, config, window)

    return rule


def _gemma4(config: _Config) -> Fields:
    """Layers of full attention have heads of their own size; the last layers may use others' keys."""
    has_shared = bool(config.values.get("num_kv_shared_layers"))
    kept = config.layers - (config.count("num_kv_shared_layers", most=config.layers) if has_shared else 0)
    types = config.names("layer_types")
    pattern = config.count("sliding_window_pattern", default=5)
    full = types[:kept].count("full_attention") if types else kept // pattern
    head_dim = config.count("head_dim", default=256)
    kv_heads = config.count("num_key_value_heads", default=1)
    global_heads = kv_heads
    if config.values.get("attention_k_eq_v"):
        global_heads = config.count("num_global_key_value_heads", default=kv_heads)
    global_dim = config.count("global_head_dim", default=head_dim)
    return {
        "full_layers": full,
        "n_kv_heads": global_heads,
        "head_dim": global_dim,
        "value_dim": global_dim,
        "rope_dims": global_dim,
        "window_layers": kept - full,
        "window": config.count("sliding_window", default=512),
        "window_kv_heads": kv_heads,
        "window_head_dim": head_dim,
        "compresses": not has_shared,
    }


def _gated_delta(config: _Config) -> Fields:
    """Qwen 3.5: in three layers of four a matrix a head, and the inputs of a short convolution."""
    full = config.layers // config.count("full_attention_interval", default=4)
    recurrent = config.layers - full
    key_heads, value_heads = config.count("linear_num_key_heads"), config.count("linear_num_value_heads")
    key_dim, value_dim = config.count("linear_key_head_dim"), config.count("linear_value_head_dim")
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    return {
        "full_layers": full,
        "recurrent_values": recurrent * value_heads * value_dim * key_dim,
        "conv_values": recurrent * (config.count("linear_conv_kernel_dim", default=4) - 1) * channels,
        "rope_dims": int(_attention(config, "")["head_dim"] * config.fraction("partial_rotary_factor", 0.25)),
    }


def _lfm2(config: _Config) -> Fields:
    """Short convolutions beside full attention."""
    indexes = config.values.get("full_attn_idxs")
    types = config.names("layer_types")
    full = len(indexes[: config.layers]) if isinstance(indexes, list) else types.count("full_attention")
    inputs = (config.count("conv_L_cache") - 1) * config.count("hidden_size")
    return {"full_layers": full, "conv_values": (config.layers - full) * inputs}


def _granite_hybrid(config: _Config) -> Fields:
    """Mamba 2 layers beside full attention without rotary embedding."""
    types = config.names("layer_types")
    full, mamba = types.count("attention"), types.count("mamba")
    heads, head_dim = config.count("mamba_n_heads"), config.count("mamba_d_head")
    state = config.count("mamba_d_state")
    channels = heads * head_dim + 2 * config.count("mamba_n_groups", default=1) * state
    return {
        "full_layers": full,
        "recurrent_values": mamba * heads * head_dim * state,
        "conv_values": mamba * (config.count("mamba_d_conv", default=4) - 1) * channels,
    }


def _latents(config: _Config) -> Fields:
    """Latent attention that keeps one vector and one rotated key a token, which is never compressed."""
    rank, rope = config.count("kv_lora_rank"), config.count("qk_rope_head_dim")
    return {"n_kv_heads": 1, "head_dim": rank, "value_dim": rope, "rope_dims": rope, "compresses": False}


def _no_compression(config: _Config) -> Fields:
    return {"compresses": False}


_RULES: dict[str, Callable[[_Config], Fields]] = {
    "llama": _alike(_by_layer_types, "llama"),
    "ministral3": _alike(_by_layer_types, "ministral3"),
    "mistral3": _alike(_by_layer_types, "mistral3"),
    "olmo3": _alike(_by_layer_types, "olmo3"),
    "gpt_oss": _alike(_gpt_oss, "gpt_oss"),
    "gemma2": _no_compression,
    "gemma3": _alike(_every(6, 512), "gemma3"),
    "gemma4": _gemma4,
    "cohere2": _alike(_every(4, 4096), "cohere2"),
    "qwen3_next": _gated_delta,
    "qwen3_5": _gated_delta,
    "qwen3_5_moe": _gated_delta,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2,
    "granitemoehybrid": _granite_hybrid,
    "deepseek_v3": _latents,
    "glm4_moe_lite": _latents,
}
