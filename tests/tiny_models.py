"""Small models of mlx-lm's own classes with random weights, one of each kind of layer state."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map
from mlx_lm.models import gemma3_text, gemma4_text, llama, nemotron_h, qwen3_5
from mlx_lm.models.cache import RotatingKVCache

VOCABULARY = 97


def tiny_llama(
    head_dim: int = 64, layers: int = 2, kv_heads: int = 2, vocabulary: int = VOCABULARY, **changes: Any
) -> nn.Module:
    """Full attention in every layer, three query heads a KV head."""
    args = llama.ModelArgs(
        model_type="llama",
        hidden_size=48,
        num_hidden_layers=layers,
        intermediate_size=64,
        num_attention_heads=3 * kv_heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=1e-5,
        vocab_size=vocabulary,
        **changes,
    )
    return _random(llama.Model(args))


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
    return _random(gemma3_text.Model(args))


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
    return _random(qwen3_5.Model(qwen3_5.ModelArgs(model_type="qwen3_5", text_config=text)))


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
    return _random(gemma4_text.Model(args))


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
    return _random(nemotron_h.Model(args))


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


def _random(model: nn.Module) -> nn.Module:
    """Weights of a fixed seed, large enough for attention to tell tokens apart."""
    mx.random.seed(11)
    model.update(tree_map(lambda x: mx.random.normal(x.shape) * 0.2 if x.ndim > 1 else x, model.parameters()))
    mx.eval(model.parameters())
    return model.eval()
