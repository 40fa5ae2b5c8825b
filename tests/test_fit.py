"""What memory a model takes is foretold from its configuration, as the caches then hold it."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import tiny_models
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache, make_prompt_cache
from mlx_lm.utils import MODEL_REMAPPING

from satchel.config.profiles import CODEC_BITS, PROFILES, CodecSpec, get_profile
from satchel.engine import kv_sizes
from satchel.engine.body import new_key_body, new_value_body
from satchel.engine.device import Device
from satchel.engine.fit import (
    Shape,
    kv_bytes,
    kv_bytes_per_token,
    longest_context,
    needed_bytes,
    on_device,
    reserve_bytes,
    shape_of,
)
from satchel.engine.kv_state import KVFactory, KVState
from satchel.engine.model import LoadedModel
from satchel.engine.model_names import named_models
from satchel.engine.shapes import shape_from_config
from satchel.errors import DamagedError, NotFoundError

GIB = 1 << 30
# A model of eight full-attention layers among 32, as Qwen 3.5 9B has them.
HYBRID = Shape(
    architecture="qwen3_5",
    layers=32,
    full_layers=8,
    n_kv_heads=4,
    head_dim=256,
    value_dim=256,
    context_length=262_144,
    weights_bytes=6_000_000_000,
)
PROFILES_MEASURED = (*PROFILES, "affine4/32", "turbo4,sink=0,window=64,boundary=1", "tq-mse4", "qjl4")


def read(model: nn.Module, state: KVState, tokens: int) -> None:
    """In chunks, and the last one alone: mlx-lm trims a sliding window then."""
    ids = np.random.default_rng(5).integers(0, tiny_models.VOCABULARY, tokens).tolist()
    for start in range(0, tokens - 1, 128):
        stop = min(start + 128, tokens - 1)
        mx.eval(model(mx.array([ids[start:stop]]), cache=state.caches))
    mx.eval(model(mx.array([ids[-1:]]), cache=state.caches), [cache.state for cache in state.caches])


def table_bytes(state: KVState) -> int:
    return sum(table.nbytes for table in state.rope_tables)


def foretold_table(shape: Shape, profile: str, tokens: int) -> int:
    without = replace(shape, rope_dims=0)
    chosen = get_profile(profile)
    return kv_bytes(shape, chosen, tokens) - kv_bytes(without, chosen, tokens)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 112, 128, 192, 256])
def test_rows_take_what_the_codecs_say(head_dim: int) -> None:
    specs = [CodecSpec.parse(f"affine{bits}/{group}") for bits in (2, 3, 4, 8) for group in (32, 64, 128)]
    specs += [
        CodecSpec(codec, bits)
        for codec, choice in CODEC_BITS.items()
        if codec != "affine"
        for bits in choice or (0,)
    ]
    for spec in specs:
        body = new_value_body(spec, mx.bfloat16)
        rows = sum(dtype.size * width for dtype, width in body.layout(head_dim).values())
        assert kv_sizes.row_bytes(spec, head_dim) == rows, spec
        for is_keys, made in ((False, body), (True, new_key_body(spec, mx.bfloat16))):
            fixed = sum(dtype.size * width for dtype, width in made.fixed_layout(head_dim).values())
            assert kv_sizes.fixed_bytes(spec, head_dim, is_keys) == fixed, spec


def test_a_codec_that_cannot_hold_the_vectors_is_refused() -> None:
    with pytest.raises(ValueError, match="head_dim is 40: polar takes multiples of 16"):
        kv_sizes.row_bytes(CodecSpec("polar"), 40)


def assert_foretold(shape: Shape, state: KVState, profile: str, tokens: int) -> None:
    """To the byte; the rotary table is as long as foretold where a mean turns with the position."""
    assert kv_bytes(shape, get_profile(profile), tokens) - foretold_table(shape, profile, tokens) == (
        state.nbytes - table_bytes(state)
    )
    assert table_bytes(state) in (0, foretold_table(shape, profile, tokens))


def test_smollm2_holds_what_was_foretold(smollm: LoadedModel) -> None:
    shape = on_device(shape_of(smollm.path), smollm.device)
    state = KVFactory(smollm.model, smollm.cache_dtype).new(PROFILES["turbo4"])
    read(smollm.model, state, 200)
    assert_foretold(shape, state, "turbo4", 200)


@pytest.mark.parametrize(
    ("profile", "tokens"),
    # Nothing in the body, the first move to it, and more positions than the rotary table begins with.
    [*((profile, tokens) for profile in PROFILES_MEASURED for tokens in (3, 196)), ("turbo4", 1100)],
)
def test_every_profile_holds_what_was_foretold(profile: str, tokens: int) -> None:
    model = eight_layers()
    shape = replace(shape_from_config({**asdict(model.args)}, 0), float_bytes=4)
    state = KVFactory(model, mx.float16).new(get_profile(profile))
    read(model, state, tokens)
    assert_foretold(shape, state, profile, tokens)


@cache
def eight_layers() -> nn.Module:
    return tiny_models.tiny_llama(layers=8, head_dim=80)


def test_a_token_of_smollm2_takes_what_its_layers_say(smollm: LoadedModel) -> None:
    shape = shape_of(smollm.path)
    assert shape.parameters == 134_515_008
    assert (shape.full_layers, shape.n_kv_heads, shape.head_dim) == (30, 3, 64)
    assert shape.context_length == 8192
    # 30 layers, 3 heads, keys and values of 64 coordinates in 16 bits.
    assert kv_bytes_per_token(shape, PROFILES["exact"]) == 30 * 3 * 2 * 64 * 2
    # 4 bits and a 16-bit grid for each 64; three layers have keys of 8; and a row of the rotation.
    assert kv_bytes_per_token(shape, PROFILES["turbo4"]) == (30 * 2 * 34 + 3 * 32) * 3 + 256


def tiny(module: str, builder: Any) -> tuple[nn.Module, Shape]:
    model = builder()
    config = {"model_type": module, **asdict(model.args)}
    return model, replace(shape_from_config(config, 0), float_bytes=4)


TINY: Mapping[str, Any] = {
    "llama": tiny_models.tiny_llama,
    "gemma3_text": tiny_models.tiny_gemma3,
    "qwen3_5": tiny_models.tiny_qwen35,
    "qwen3_next": lambda: tiny_models.tiny("qwen3_next"),
    "lfm2": lambda: tiny_models.tiny("lfm2"),
    "granitemoehybrid": lambda: tiny_models.tiny("granitemoehybrid"),
    "gpt_oss": lambda: tiny_models.tiny("gpt_oss"),
    "deepseek_v3": lambda: tiny_models.tiny("deepseek_v3"),
    "gemma2": lambda: tiny_models.tiny("gemma2"),
    "gemma4_text": tiny_models.tiny_gemma4,
}


@pytest.mark.parametrize("profile", ["exact", "turbo4"])
@pytest.mark.parametrize("module", TINY)
def test_every_kind_of_state_is_foretold(module: str, profile: str) -> None:
    model, shape = tiny(module, TINY[module])
    assert not shape.is_guess
    state = KVFactory(model, mx.float16).new(get_profile(profile))
    read(model, state, 400)
    held = state.nbytes - table_bytes(state)
    without_table = kv_bytes(replace(shape, rope_dims=0), get_profile(profile), 400)
    assert without_table == pytest.approx(held, rel=0.02)


@pytest.mark.parametrize("name", named_models())
def test_a_named_models_layers_are_those_of_its_class(name: str) -> None:
    model = named_models()[name]
    config = tiny_models.COMMON | tiny_models.MODULES.get(model.config["model_type"], {}) | dict(model.config)
    config |= {"decoder_sparse_step": 1, "mlp_only_layers": []}
    config |= {"vocab_size": 64, "hidden_size": 64, "shared_expert_intermediate_size": 32}
    kind = MODEL_REMAPPING.get(config["model_type"], config["model_type"])
    module = import_module(f"mlx_lm.models.{kind}")
    if "text_config" in module.ModelArgs.__dataclass_fields__:
        config = {"model_type": kind, "text_config": {**config, "model_type": kind}}
    caches = make_prompt_cache(module.Model(module.ModelArgs.from_dict(config)))  # no weight is computed
    shape = model.shape()
    assert not shape.is_guess
    assert sum(type(cache) is KVCache for cache in caches) == shape.full_layers
    assert sum(type(cache) is RotatingKVCache for cache in caches) == shape.window_layers
    assert (shape.recurrent_bytes > 0) == any(type(cache) is ArraysCache for cache in caches)
    assert all(cache.max_size == shape.window for cache in caches if type(cache) is RotatingKVCache)


def test_the_larger_test_models_are_as_they_are_known(test_models_dir: Path) -> None:
    gemma = shape_of(test_models_dir / "gemma3-270m.gguf")
    assert (gemma.full_layers, gemma.window_layers, gemma.window, gemma.head_dim) == (3, 15, 512, 256)
    qwen = shape_of(test_models_dir / "qwen25-0.5b.gguf")
    assert (qwen.full_layers, qwen.n_kv_heads, qwen.head_dim, qwen.context_length) == (24, 2, 64, 32768)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma", "qwen"])
def test_the_larger_test_models_hold_what_was_foretold(name: str, request: pytest.FixtureRequest) -> None:
    model: LoadedModel = request.getfixturevalue(name)
    shape, profile = on_device(shape_of(model.path), model.device), PROFILES["turbo4"]
    state = KVFactory(model.model, model.cache_dtype).new(profile)
    read(model.model, state, 400)
    assert_foretold(shape, state, "turbo4", 400)


def test_the_longest_context_just_fits() -> None:
    profile = PROFILES["turbo4"]
    longest = longest_context(HYBRID, profile, 12 * GIB)
    room = 12 * GIB - reserve_bytes(12 * GIB)
    assert needed_bytes(HYBRID, profile, longest) <= room < needed_bytes(HYBRID, profile, longest + 256)
    assert longest_context(HYBRID, profile, 64 * GIB) == 262_144
    assert longest_context(HYBRID, profile, 7 * GIB) == 0


def test_compressed_contexts_are_longer() -> None:
    longest = [
        longest_context(HYBRID, PROFILES[name], 10 * GIB) for name in ("exact", "k8v4", "turbo4", "turbo2")
    ]
    assert longest == sorted(longest)
    assert longest[-1] > 2 * longest[0] > 0


def test_a_quarter_of_the_memory_stays_and_at_least_a_gigabyte_and_a_half() -> None:
    assert reserve_bytes(32 * GIB) == 8 * GIB
    assert reserve_bytes(4 * GIB) == 1_500_000_000


def test_a_cpu_holds_dense_weights_that_fit_in_half_of_its_memory() -> None:
    shape = replace(HYBRID, parameters=1_000_000_000, weights_bytes=562_500_000)
    assert on_device(shape, Device("metal", None, 16 * GIB)) == shape
    dense = on_device(shape, Device("cpu", None, 16 * GIB))
    assert (dense.weights_bytes, dense.float_bytes) == (4_000_000_000, 4)
    packed = on_device(shape, Device("cpu", None, 6 * GIB))
    assert (packed.weights_bytes, packed.float_bytes) == (562_500_000, 4)


def test_an_unknown_architecture_is_a_guess() -> None:
    shape = shape_from_config(
        {"model_type": "new_thing", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 256}, 0
    )
    assert shape.is_guess
    assert (shape.full_layers, shape.n_kv_heads, shape.head_dim, shape.context_length) == (2, 4, 64, 4096)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": "many"}, "says num_hidden_layers is 'many'"),
        ({"num_hidden_layers": -1}, "says num_hidden_layers is '-1'"),
        ({"num_attention_heads": True}, "says num_attention_heads is 'True'"),
        ({"head_dim": 1 << 40}, "says head_dim is"),
        ({"num_hidden_layers": 1 << 31}, "says num_hidden_layers is"),
        ({"model_type": "gemma4", "num_kv_shared_layers": "x"}, "says num_kv_shared_layers is 'x'"),
        ({"model_type": "gemma4", "num_kv_shared_layers": 3}, "says num_kv_shared_layers is '3'"),
        ({"hidden_size": None}, "has no hidden_size"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_named(change: dict[str, Any], message: str) -> None:
    config = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 256}
    with pytest.raises(DamagedError, match=message):
        shape_from_config(config | change, 0)


def test_a_context_without_end_is_not_believed() -> None:
    config = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 256}
    assert shape_from_config(config | {"max_position_embeddings": 1 << 70}, 0).context_length == 4096
    assert shape_from_config(config | {"max_position_embeddings": True}, 0).context_length == 4096


def test_a_pattern_longer_than_the_model_has_windows_only() -> None:
    config = {"model_type": "gemma4", "num_hidden_layers": 7, "num_attention_heads": 4, "hidden_size": 256}
    shape = shape_from_config(config | {"sliding_window_pattern": 1 << 31}, 0)
    assert (shape.full_layers, shape.window_layers) == (0, 7)


@pytest.mark.parametrize(
    "shape", [[1 << 62, 1 << 62], [-5, 7], [1.5, 7], ["a"], [1 << 60] * 200_000, "ab", [True]]
)
def test_a_header_that_lies_about_sizes_is_damaged(tmp_path: Path, shape: Any) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    header = json.dumps({"a": {"dtype": "F16", "shape": shape, "data_offsets": [0, 8]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    with pytest.raises(DamagedError, match="the tensor 'a' is larger than the file"):
        shape_of(tmp_path)


def test_what_is_no_model_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"has no config\.json"):
        shape_of(tmp_path)
    with pytest.raises(NotFoundError, match="there is no model in"):
        shape_of(tmp_path / "missing")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(DamagedError, match="is not JSON"):
        shape_of(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(NotFoundError, match="has no model"):
        shape_of(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 16)
    with pytest.raises(DamagedError, match="is no safetensors file"):
        shape_of(tmp_path)
    (tmp_path / "text.gguf").write_text("hello")
    with pytest.raises(DamagedError, match="is not a GGUF file"):
        shape_of(tmp_path / "text.gguf")
