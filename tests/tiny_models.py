"""Small models of mlx-lm's own classes with random weights, one of each kind of layer state."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map
from mlx_lm.models import gemma3_text, gemma4_text, llama, nemotron_h, qwen3_5
from mlx_lm.models.cache import RotatingKVCache

VOCABULARY = 97

# What the configurations of most models of mlx-lm share. Every token takes all experts: a choice among them
# would turn the least change of a cache into another expert.
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 2,
    "num_local_experts": 2,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "n_routed_experts": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 1,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "sliding_window": 64,
    "rms_norm_eps": 1e-5,
    "norm_eps": 1e-5,
    "layernorm_epsilon": 1e-5,
    "rope_theta": 10_000.0,
    "max_position_embeddings": 4096,
    "attention_bias": False,
    "tie_word_embeddings": True,
}
YARN = {
    "type": "yarn",
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 1024,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
    "rope_theta": 10_000.0,
}
MAMBA = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_ssm": 64,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "mamba_expand": 1,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}
KIMI_LINEAR = {
    "kda_layers": [1, 3],
    "full_attn_layers": [2, 4],
    "num_heads": 4,
    "head_dim": 32,
    "short_conv_kernel_size": 4,
}
LONGCAT = {
    "num_layers": 2,
    "ffn_hidden_size": 64,
    "expert_ffn_hidden_size": 32,
    "moe_topk": 2,
    "zero_expert_num": 1,
    "zero_expert_type": "identity",
    "attention_method": "MLA",
    "mla_scale_q_lora": True,
    "mla_scale_kv_lora": True,
}
# A module of mlx_lm.models, and what its configuration needs beside `COMMON`.
MODULES: dict[str, dict[str, Any]] = {
    # recurrent layers beside attention
    "qwen3_next": {
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 2,
        "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 32,
        "mlp_only_layers": [],
        "partial_rotary_factor": 0.5,
    },
    "lfm2": {
        "full_attn_idxs": [1, 3],
        "conv_bias": True,
        "conv_L_cache": 3,
        "block_dim": 64,
        "block_ff_dim": 64,
        "block_multiple_of": 32,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
    },
    "granitemoehybrid": MAMBA
    | {
        "layer_types": ["mamba", "attention"] * 2,
        "shared_intermediate_size": 64,
        "embedding_multiplier": 1.0,
        "attention_multiplier": 0.125,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
    },
    "falcon_h1": MAMBA,
    "baichuan_m1": {"sliding_window_layers": [1, 3], "conv_window": 2, "tie_word_embeddings": False},
    "mamba2": {
        "num_heads": 4,
        "state_size": 16,
        "conv_kernel": 4,
        "n_groups": 1,
        "use_bias": False,
        "use_conv_bias": True,
        "layer_norm_epsilon": 1e-5,
        "time_step_limit": [0.001, 100.0],
        "time_step_rank": 8,
    },
    # latent attention
    "deepseek_v2": {"rope_scaling": YARN, "topk_method": "greedy"},
    "deepseek_v3": {},
    "deepseek_v32": {"index_n_heads": 2, "index_head_dim": 32, "index_topk": 64},
    "deepseek_v41": {},
    "minicpm3": {
        "rope_scaling": {
            "type": "longrope",
            "original_max_position_embeddings": 1024,
            "short_factor": [1.0] * 8,
            "long_factor": [1.0] * 8,
        },
        "dim_model_base": 64,
        "scale_depth": 1.0,
        "scale_emb": 1.0,
    },
    "mistral4": {"rope_parameters": YARN},
    "kimi_linear": {
        "linear_attn_config": KIMI_LINEAR,
        "model_max_length": 4096,
        "first_k_dense_replace": 4,
    },
    "longcat_flash": LONGCAT,
    "longcat_flash_ngram": LONGCAT | {"ngram_vocab_size_ratio": 2, "emb_neighbor_num": 2, "emb_split_num": 2},
    # logits of attention sinks; keys and values of different sizes
    "gpt_oss": {},
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [0, 1, 0, 1],
        "moe_layer_freq": [0] * 4,
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": True,
        "sliding_window_size": 64,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "swa_rope_theta": 10_000.0,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2,
        "swa_head_dim": 32,
        "swa_v_head_dim": 16,
        "v_head_dim": 16,
        "partial_rotary_factor": 0.5,
    },
    # attention in chunks, soft-capped attention, layers that share keys, MLX's kernel called directly
    "llama4": {
        "attention_chunk_size": 64,
        "interleave_moe_layer_step": 1,
        "intermediate_size_mlp": 64,
        "num_local_experts": 1,
        "num_experts_per_tok": 1,
        "rope_scaling": None,
        "use_qk_norm": True,
    },
    "gemma2": {},
    "afm7": {
        "hidden_dim": 64,
        "num_layers": 4,
        "num_kv_reuse_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
    },
    "iquestloopcoder": {},
    "plamo2": {},
}


def tiny(module: str) -> nn.Module:
    """A model of a module in `MODULES`."""
    kind = import_module(f"mlx_lm.models.{module}")
    config = {**COMMON, "model_type": module, **MODULES[module]}
    if "text_config" in kind.ModelArgs.__dataclass_fields__:
        config = {"model_type": module, "text_config": config}
    return _random(kind.Model, kind.ModelArgs.from_dict(config))


def tiny_llama(
    head_dim: int = 64,
    layers: int = 2,
    kv_heads: int = 2,
    vocabulary: int = VOCABULARY,
    group: int = 3,
    **changes: Any,
) -> nn.Module:
    """Full attention in every layer, `group` query heads a KV head."""
    args = llama.ModelArgs(
        model_type="llama",
        hidden_size=48,
        num_hidden_layers=layers,
        intermediate_size=64,
        num_attention_heads=group * kv_heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=1e-5,
        vocab_size=vocabulary,
        **changes,
    )
    return _random(llama.Model, args)


def tiny_biased() -> nn.Module:
    """Keys with a large bias, as Qwen2.5 has them: it turns with the position."""
    model = tiny_llama(attention_bias=True)
    for layer in model.layers:
        layer.self_attn.k_proj.bias = mx.random.normal(layer.self_attn.k_proj.bias.shape) * 8
    mx.eval(model.parameters())
    return model


def tiny_gemma3(sliding_window: int = 64) -> nn.Module:
    """Sliding windows in layers 0, 1, 3 and 4; full attention in 2 and 5."""
    args = gemma3_text.ModelArgs(
        model_type="gemma3_text",
        hidden_size=48,
        num_hidden_layers=6,
        intermediate_size=64,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        vocab_size=VOCABULARY,
        query_pre_attn_scalar=64,
        sliding_window=sliding_window,
        sliding_window_pattern=3,
    )
    return _random(gemma3_text.Model, args)


def tiny_qwen35() -> nn.Module:
    """Recurrent layers, and full attention in layers 3 and 7, as Qwen3.5 has them."""
    text = {
        "model_type": "qwen3_5_text",
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": VOCABULARY,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "full_attention_interval": 4,
    }
    return _random(qwen3_5.Model, qwen3_5.ModelArgs(model_type="qwen3_5", text_config=text))


def tiny_gemma4() -> nn.Module:
    """Layers 4 and 5 use the keys and values of layers 2 and 3: four caches for six layers."""
    args = gemma4_text.ModelArgs(
        hidden_size=48,
        num_hidden_layers=6,
        intermediate_size=64,
        num_attention_heads=2,
        head_dim=64,
        global_head_dim=64,
        vocab_size=VOCABULARY,
        vocab_size_per_layer_input=VOCABULARY,
        hidden_size_per_layer_input=16,
        num_kv_shared_layers=2,
        sliding_window=64,
        sliding_window_pattern=2,
    )
    return _random(gemma4_text.Model, args)


def tiny_nemotron() -> nn.Module:
    """Mamba, MLP and attention layers: three caches for five layers."""
    args = nemotron_h.ModelArgs(
        model_type="nemotron_h",
        vocab_size=VOCABULARY,
        hidden_size=48,
        intermediate_size=64,
        max_position_embeddings=4096,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_bias=False,
        mamba_num_heads=4,
        mamba_head_dim=16,
        mamba_proj_bias=False,
        ssm_state_size=32,
        conv_kernel=4,
        n_groups=1,
        mlp_bias=False,
        layer_norm_epsilon=1e-5,
        use_bias=False,
        use_conv_bias=True,
        hybrid_override_pattern=["M", "-", "*", "-", "M"],
        head_dim=64,
    )
    return _random(nemotron_h.Model, args)


class BypassModel(nn.Module):
    """Its attention calls MLX's fused kernel itself, so no dispatcher of ours can serve it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 64)
        self.layers = [BypassAttention() for _ in range(2)]

    def __call__(self, inputs: mx.array, cache: list[Any] | None = None) -> mx.array:
        h = self.embed(inputs)
        for layer, layer_cache in zip(self.layers, cache or [None] * 2, strict=True):
            h = h + layer(h, layer_cache)
        return self.embed.as_linear(h)


class SlidingModel(BypassModel):
    """No layer has full attention."""

    def make_cache(self) -> list[RotatingKVCache]:
        return [RotatingKVCache(max_size=32) for _ in self.layers]


class BypassAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(64, 3 * 64)

    def __call__(self, x: mx.array, cache: Any) -> mx.array:
        queries, keys, values = (part[:, None] for part in mx.split(self.qkv(x), 3, -1))
        keys, values = cache.update_and_fetch(keys, values)
        mask = "causal" if x.shape[1] > 1 else None
        return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=0.125, mask=mask)[:, 0]


def _random(kind: Callable[[Any], nn.Module], args: Any) -> nn.Module:
    """Weights of a fixed seed, large enough for attention to tell tokens apart."""
    mx.random.seed(7)  # some vectors keep what the model starts with, such as the decay of recurrent layers
    model = kind(args)
    mx.random.seed(11)
    model.update(tree_map(lambda x: mx.random.normal(x.shape) * 0.2 if x.ndim > 1 else x, model.parameters()))
    mx.eval(model.parameters())
    return model.eval()
