"""One layer's cache against exact attention, on random keys and values."""

from __future__ import annotations

import gc
from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.generate import maybe_quantize_kv_cache

from satchel.config.profiles import Profile, get_profile
from satchel.engine import device, kv_cache
from satchel.engine.body import CodedBody
from satchel.engine.kv_cache import TurboQuantKVCache
from satchel.engine.rope_table import RopeTable

HEAD_DIMS = (64, 80, 96, 128, 256)
ALL_BITS = (2, 3, 4, 8, 16)


def gaussian(*shape: int, seed: int = 0) -> mx.array:
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def sequence(
    tokens: int, *, batch: int = 1, kv_heads: int = 2, group: int = 3, head_dim: int = 64, seed: int = 0
):
    """Queries, keys and values of `tokens` tokens."""
    heads = (kv_heads * group, kv_heads, kv_heads)
    return [gaussian(batch, n, tokens, head_dim, seed=seed + i) for i, n in enumerate(heads)]


def without_lift(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding attention as the fused one: the error of coded keys is not made up for (test_body.py)."""
    monkeypatch.setattr(CodedBody, "lift", lambda self, queries: None)


def new_cache(profile: str | Profile = "turbo4", rope: nn.Module | None = None) -> TurboQuantKVCache:
    profile = get_profile(profile) if isinstance(profile, str) else profile
    return TurboQuantKVCache(profile, mx.float16, RopeTable.of(rope))


def feed(
    cache: TurboQuantKVCache, x: list[mx.array], start: int, stop: int, mask: object = "causal"
) -> mx.array:
    """Append tokens [start, stop) of queries, keys and values `x`, and attend."""
    queries, keys, values = (part[:, :, start:stop] for part in x)
    cache.update_and_fetch(keys, values)
    out = cache.attend(queries, queries.shape[-1] ** -0.5, mask)
    mx.eval(out, cache.state)
    return out


def exact_attention(x: list[mx.array], start: int, stop: int, mask: np.ndarray | None = None) -> np.ndarray:
    """Attention of queries [start, stop) to all keys before them, in float64."""
    queries, keys, values = (np.array(part, dtype=np.float64) for part in x)
    group = queries.shape[1] // keys.shape[1]
    keys, values = (part[:, :, :stop].repeat(group, axis=1) for part in (keys, values))
    scores = queries[:, :, start:stop] @ keys.swapaxes(-1, -2) * queries.shape[-1] ** -0.5
    if mask is None:
        mask = np.arange(start, stop)[:, None] >= np.arange(stop)[None]
    scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ values


def relative_error(out: mx.array, expected: np.ndarray) -> float:
    return float(np.linalg.norm(np.array(out) - expected) / np.linalg.norm(expected))


def layout(cache: TurboQuantKVCache) -> tuple[int, int, int]:
    """Tokens in sink, body and window."""
    return cache.sink_tokens, cache.body_tokens, cache.exact_tokens - cache.sink_tokens


def attend_packed_and_dense(
    monkeypatch: pytest.MonkeyPatch, cache: TurboQuantKVCache, queries: mx.array, mask: object
) -> tuple[mx.array, mx.array]:
    """The same attention by both paths; the cache is full up to where nothing moves."""
    outs = []
    for limit in (queries.shape[2], 0):
        monkeypatch.setattr(kv_cache, "PACKED_QUERY_TOKENS", limit)
        outs.append(cache.attend(queries, queries.shape[-1] ** -0.5, mask))
    return outs[0], outs[1]


# -- against exact attention ---------------------------------------------------------------------------


@pytest.mark.parametrize("group", [1, 3, 7])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_eight_bits_are_close_to_exact_attention(group: int, head_dim: int):
    x, cache = sequence(300, group=group, head_dim=head_dim), new_cache("k8v8")
    assert relative_error(feed(cache, x, 0, 297), exact_attention(x, 0, 297)) < 0.001  # all exact yet
    assert layout(cache) == (4, 128, 165)
    for token in range(297, 300):
        out = feed(cache, x, token, token + 1, None)
        assert out.shape == (1, 2 * group, 1, head_dim)
        assert relative_error(out, exact_attention(x, token, token + 1)) < 0.008


@pytest.mark.parametrize(
    ("profile", "error"),
    [("k8v8", 0.0066), ("k8v4", 0.0758), ("turbo4", 0.107), ("turbo3", 0.215), ("turbo2", 0.41)],
)
def test_error_by_profile(profile: str, error: float):
    """The root of the summed squared errors of keys and values, times the body's share of the tokens."""
    x, cache = sequence(700, seed=3), new_cache(profile)
    feed(cache, x, 0, 690)
    measured = relative_error(feed(cache, x, 690, 700), exact_attention(x, 690, 700))
    assert measured == pytest.approx(error, rel=0.08)


def test_two_sequences_at_once_are_like_each_alone():
    x = sequence(260, batch=2)
    together = new_cache()
    feed(together, x, 0, 259)
    out = feed(together, x, 259, 260, None)
    for row in range(2):
        alone, own = new_cache(), [part[row : row + 1] for part in x]
        feed(alone, own, 0, 259)
        np.testing.assert_allclose(feed(alone, own, 259, 260, None)[0], out[row], atol=1e-5)


@pytest.mark.parametrize("profile", ["exact", "k16v4", "k4v16"])
def test_an_exact_side_is_exact(profile: str):
    x, cache = sequence(300), new_cache(profile)
    feed(cache, x, 0, 299)
    held = cache.arrays()
    for side, part in (("k", x[1]), ("v", x[2])):
        if f"{side}.x" in held:
            assert mx.array_equal(held[f"{side}.x"], part[:, :, 4 : 4 + cache.body_tokens].astype(mx.float16))
    assert ("k.x" in held, "v.x" in held) == (profile != "k4v16", profile != "k16v4")


# -- the packed and the dense path ---------------------------------------------------------------------


def masks(L: int, T: int, batch: int, heads: int) -> dict[str, mx.array | str | None]:
    """Masks of mlx-lm's kinds for the last `L` of `T` tokens; each hides some of sink, body and window."""
    causal = np.arange(T - L, T)[:, None] >= np.arange(T)[None]
    hidden = np.random.default_rng(5).random((batch, heads, L, T)) < 0.7
    hidden[..., -1] = True
    bias = np.random.default_rng(6).standard_normal((batch, heads, L, T)).astype(np.float32)
    return {
        "causal": "causal",
        "bool": mx.array(causal & hidden[0, 0]),
        "additive": mx.array(np.where(causal & hidden[0, 0], bias[0, 0], -np.inf).astype(np.float32)),
        "4-D": mx.array(hidden[:1, :1]),
        "per sequence": mx.array(hidden[:, :1]),
        "per head": mx.array(hidden),
        "additive per head": mx.array(bias),
    } | ({"none": None} if L == 1 else {})


@pytest.mark.parametrize("L", [1, 4])
@pytest.mark.parametrize("start", [-np.inf, np.inf], ids=["codes unpacked", "MLX's own matmul"])
@pytest.mark.parametrize("bits", ALL_BITS)
def test_packed_and_dense_attention_agree(monkeypatch: pytest.MonkeyPatch, bits: int, start: float, L: int):
    monkeypatch.setattr(device, "UNPACKING_STARTS_NS", start)
    without_lift(monkeypatch)
    rope = nn.RoPE(64)
    x = sequence(270, batch=2)
    x[1] = rope(x[1] + 5 * gaussian(2, 2, 1, 64, seed=9))  # turning means where keys are quantised
    cache = new_cache(f"k{bits}v{bits}", rope)
    feed(cache, x, 0, 270)
    if bits != 16:
        assert cache.key_body.mean_turns
    for name, mask in masks(L, 270, 2, 6).items():
        packed, dense = attend_packed_and_dense(monkeypatch, cache, x[0][:, :, -L:], mask)
        np.testing.assert_allclose(packed, dense, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("start", [-np.inf, np.inf], ids=["codes unpacked", "MLX's own matmul"])
def test_packed_and_dense_attention_agree_at_every_head_dim(
    monkeypatch: pytest.MonkeyPatch, bits: int, head_dim: int, start: float
):
    monkeypatch.setattr(device, "UNPACKING_STARTS_NS", start)
    without_lift(monkeypatch)
    x, cache = sequence(260, head_dim=head_dim), new_cache(f"k{bits}v{bits}")
    feed(cache, x, 0, 260)
    packed, dense = attend_packed_and_dense(monkeypatch, cache, x[0][:, :, -2:], "causal")
    np.testing.assert_allclose(packed, dense, atol=1e-4)


@pytest.mark.parametrize("L", [1, 2, 4, 5, 9])
def test_masks_hide_what_exact_attention_hides(L: int):
    x, cache = sequence(260), new_cache("k8v8")
    feed(cache, x, 0, 260 - L)
    mask = np.random.default_rng(1).random((L, 260)) < 0.5
    mask[:, -L:] &= np.tri(L, dtype=bool)
    mask[:, 7] = True
    out = feed(cache, x, 260 - L, 260, mx.array(mask))
    assert relative_error(out, exact_attention(x, 260 - L, 260, mask)) < 0.01


def test_fused_attention_serves_models_with_sink_logits():
    x, cache = sequence(260), new_cache("k8v8")
    feed(cache, x, 0, 260)
    logits = gaussian(6)
    out = cache.attend(x[0][:, :, -1:], 0.125, None, sinks=logits)
    expected = mx.fast.scaled_dot_product_attention(x[0][:, :, -1:], x[1], x[2], scale=0.125, sinks=logits)
    assert relative_error(out, np.array(expected)) < 0.01


# -- where the tokens are ------------------------------------------------------------------------------

LAYOUTS = {
    1: (1, 0, 0),
    3: (3, 0, 0),
    4: (4, 0, 0),
    5: (4, 0, 1),
    132: (4, 0, 128),
    195: (4, 0, 191),
    196: (4, 64, 128),
    197: (4, 64, 129),
    259: (4, 64, 191),
    260: (4, 128, 128),
    261: (4, 128, 129),
    324: (4, 192, 128),
}


def test_layout_token_by_token():
    x, cache = sequence(324, kv_heads=1, group=1, head_dim=32), new_cache()
    for token in range(324):
        feed(cache, x, token, token + 1, None)
        assert cache.offset == cache.size() == token + 1
        assert sum(layout(cache)) == token + 1
        assert layout(cache) == LAYOUTS.get(token + 1, layout(cache))
        assert token + 1 < 132 or 128 <= layout(cache)[2] < 192


@pytest.mark.parametrize(
    ("tokens", "expected"), [*LAYOUTS.items(), (512, (4, 320, 188)), (1000, (4, 832, 164))]
)
def test_layout_after_one_chunk(tokens: int, expected: tuple[int, int, int]):
    cache = new_cache()
    feed(cache, sequence(tokens, kv_heads=1, group=1, head_dim=32), 0, tokens)
    assert layout(cache) == expected


def test_layout_of_another_profile():
    cache = new_cache(replace(get_profile("k4v3"), sink=0, window=16, move=8))
    feed(cache, sequence(41, kv_heads=1, group=1, head_dim=32), 0, 41)
    assert layout(cache) == (0, 24, 17)


def test_later_tokens_never_change_what_the_body_holds():
    x, cache = sequence(700), new_cache()
    feed(cache, x, 0, 300)
    before = {name: array for name, array in cache.arrays().items() if "exact" not in name}
    tokens = cache.body_tokens
    for start in range(300, 700, 50):
        feed(cache, x, start, start + 50)
    for name, array in before.items():
        now = cache.arrays()[name]
        fixed = name.endswith(("mean", "gain", "noise"))
        assert mx.array_equal(now if fixed else now[:, :, :tokens], array), name


# -- the contract with mlx-lm --------------------------------------------------------------------------


def test_attributes_that_mlx_lm_asks_for():
    cache = new_cache()
    assert not hasattr(cache, "bits")
    assert not hasattr(cache, "to_quantized")
    assert cache.empty()
    assert cache.is_trimmable()
    assert (cache.offset, cache.size(), cache.nbytes, cache.state) == (0, 0, 0, [])
    assert cache.trim(3) == 0
    feed(cache, sequence(5), 0, 5)
    assert not cache.empty()
    assert cache.is_trimmable()
    assert (cache.offset, cache.size(), cache.attended) == (5, 5, 5)
    assert len(cache.state) == 2


def test_masks_are_those_of_an_exact_cache():
    cache = new_cache()
    feed(cache, sequence(5), 0, 5)
    assert cache.make_mask(1) is None
    assert cache.make_mask(3) == "causal"
    expected = np.arange(5, 7)[:, None] >= np.arange(7)[None]
    assert np.array_equal(np.array(cache.make_mask(2, return_array=True)), expected)
    windowed = expected & (np.arange(5, 7)[:, None] < np.arange(7)[None] + 3)
    assert np.array_equal(np.array(cache.make_mask(2, window_size=3)), windowed)


def test_the_quantiser_of_generate_leaves_the_cache_alone():
    caches = [new_cache(), new_cache()]
    feed(caches[1], sequence(300), 0, 300)
    held = list(caches)
    maybe_quantize_kv_cache(caches, quantized_kv_start=0, kv_group_size=64, kv_bits=4)
    assert caches == held
    assert layout(caches[1]) == (4, 128, 168)


def test_an_attention_that_does_not_know_the_cache_fails():
    keys, values = new_cache().update_and_fetch(*sequence(2)[1:])
    with pytest.raises(TypeError):
        mx.fast.scaled_dot_product_attention(gaussian(1, 6, 2, 64), keys, values, scale=1.0)


# -- memory --------------------------------------------------------------------------------------------


def nbytes_of(tokens: int, kv_heads: int, head_dim: int, k_bits: int, v_bits: int) -> int:
    """Exact tokens at 16 bits, body tokens at their bits with 16 bits a group of 64, and fixed when the body
    began, in float32: the means, and of keys the gains and the mean error of a coordinate.
    """
    exact = 4 + 128 + (tokens - 132) % 64
    row = sum(head_dim * bits // 8 + head_dim // 64 * 2 for bits in (k_bits, v_bits))
    return kv_heads * (exact * head_dim * 4 + (tokens - exact) * row + (3 * head_dim + 1) * 4)


@pytest.mark.parametrize(("k_bits", "v_bits"), [(4, 4), (3, 3), (2, 2), (8, 4)])
def test_nbytes_is_what_is_held(k_bits: int, v_bits: int):
    cache = new_cache(f"k{k_bits}v{v_bits}")
    feed(cache, sequence(1000), 0, 1000)
    assert cache.nbytes == sum(array.nbytes for array in cache.state)
    assert cache.nbytes == nbytes_of(1000, 2, 64, k_bits, v_bits)


@pytest.mark.parametrize("profile", ["turbo4", "turbo2", "v-only"])
@pytest.mark.parametrize("step", [1, 100, 1000])
def test_no_full_precision_copy_is_kept(profile: str, step: int):
    x = sequence(1000, kv_heads=4, group=1, head_dim=128)
    mx.eval(x)
    gc.collect()
    before = mx.get_active_memory()
    cache = new_cache(profile)
    for start in range(0, 1000, step):
        feed(cache, x, start, min(start + step, 1000))
    gc.collect()
    held = mx.get_active_memory() - before
    assert cache.nbytes <= held <= cache.nbytes + 16_384 * len(cache.state)  # allocations are whole pages


def test_trimming_gives_the_memory_back():
    x, cache = sequence(1000, kv_heads=4, group=1, head_dim=128), new_cache()
    feed(cache, x, 0, 1000)
    before, reported = mx.get_active_memory(), cache.nbytes
    cache.trim(700)
    mx.eval(cache.state)
    gc.collect()
    given_back = reported - cache.nbytes
    assert given_back > 0
    assert before - mx.get_active_memory() >= given_back - 16_384 * len(cache.state)


# -- trimming ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "expected", "after_100_more"),
    [
        (0, (4, 128, 168), (4, 256, 140)),
        (1, (4, 128, 167), (4, 256, 139)),
        (168, (4, 128, 0), (4, 128, 100)),  # the whole window
        (169, (4, 127, 0), (4, 127, 100)),
        (295, (4, 1, 0), (4, 1, 100)),
        (296, (4, 0, 0), (4, 0, 100)),  # the whole body
        (298, (2, 0, 0), (4, 0, 98)),
        (300, (0, 0, 0), (4, 0, 96)),
        (1000, (0, 0, 0), (4, 0, 96)),
    ],
)
def test_trim_then_append(n: int, expected: tuple[int, int, int], after_100_more: tuple[int, int, int]):
    x, cache = sequence(300), new_cache("k8v8")
    feed(cache, x, 0, 300)
    assert cache.trim(n) == min(n, 300)
    kept = 300 - min(n, 300)
    assert layout(cache) == expected
    assert cache.offset == kept
    assert cache.empty() == (kept == 0)
    if kept == 0:
        assert cache.state == []
    other = sequence(100, seed=50)
    x = [mx.concatenate([part[:, :, :kept], more], axis=2) for part, more in zip(x, other, strict=True)]
    out = feed(cache, x, kept, kept + 100)
    assert layout(cache) == after_100_more
    assert relative_error(out, exact_attention(x, kept, kept + 100)) < 0.01
    out = cache.attend(x[0][:, :, -1:], 0.125, None)
    assert relative_error(out, exact_attention(x, kept + 99, kept + 100)) < 0.01


def test_trimmed_tokens_read_again_give_the_same_attention():
    x, cache, whole = sequence(400), new_cache("k8v8"), new_cache("k8v8")
    feed(whole, x, 0, 400)
    feed(cache, x, 0, 400)
    cache.trim(150)
    feed(cache, x, 250, 400)
    np.testing.assert_allclose(
        cache.attend(x[0][:, :, -1:], 0.125, None), whole.attend(x[0][:, :, -1:], 0.125, None), atol=2e-3
    )


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 90), st.integers(0, 120)), min_size=1, max_size=8))
def test_any_sequence_of_appends_and_trims_keeps_the_tokens(steps: list[tuple[int, int]]):
    profile = replace(get_profile("k8v8"), sink=2, window=24, move=8)
    x, cache = sequence(720, kv_heads=1, group=1, head_dim=32), new_cache(profile)
    for appended, trimmed in steps:
        start = cache.offset
        out = feed(cache, x, start, start + appended)
        assert relative_error(out, exact_attention(x, start, start + appended)) < 0.03
        assert sum(layout(cache)) == cache.offset == start + appended
        cache.trim(trimmed)
        assert sum(layout(cache)) == cache.offset == max(0, start + appended - trimmed)
        assert cache.key_body.tokens == cache.value_body.tokens
        assert cache.empty() == (cache.offset == 0)


def test_a_cache_without_sink_trimmed_into_its_body_is_not_empty():
    x, cache = sequence(300), new_cache("k8v8,sink=0")
    feed(cache, x, 0, 300)
    cache.trim(250)
    assert layout(cache) == (0, 50, 0)
    assert not cache.empty()
    assert relative_error(feed(cache, x, 50, 51, None), exact_attention(x, 50, 51)) < 0.01


# -- hard inputs ---------------------------------------------------------------------------------------


def offset_keys(rope: nn.Module | None) -> list[mx.array]:
    """Keys with a large offset per channel, as a key bias makes them, before the rotary embedding."""
    x = sequence(600)
    x[1] = x[1] + 20 * gaussian(1, 2, 1, 64, seed=9)
    if rope is not None:
        x[0], x[1] = rope(x[0]), rope(x[1])
    return x


@pytest.mark.parametrize(
    ("seen_rope", "turns", "low", "high"),
    [(True, True, 0.02, 0.12), (False, False, 0.3, 2)],
    ids=["turned", "plain"],
)
def test_the_turned_mean_saves_keys_with_large_offsets(seen_rope: bool, turns: bool, low: float, high: float):
    rope = nn.RoPE(64)
    x, cache = offset_keys(rope), new_cache("turbo4", rope if seen_rope else None)
    feed(cache, x, 0, 599)
    assert cache.key_body.mean_turns is turns
    error = relative_error(feed(cache, x, 599, 600, None), exact_attention(x, 599, 600))
    assert low < error < high


def test_means_are_fixed_by_the_first_tokens_after_the_sink():
    rope, x = nn.RoPE(64), offset_keys(None)
    cache = new_cache("turbo4", rope)
    feed(cache, [x[0], rope(x[1]), x[2]], 0, 300)
    np.testing.assert_allclose(cache.arrays()["k.mean"], x[1][:, :, 4:300].mean(2, keepdims=True), atol=0.02)
    np.testing.assert_allclose(cache.arrays()["v.mean"], x[2][:, :, 4:300].mean(2, keepdims=True), atol=1e-3)
    before = cache.arrays()["k.mean"]
    feed(cache, [x[0], rope(x[1]), x[2]], 300, 600)
    assert mx.array_equal(cache.arrays()["k.mean"], before)


def test_the_plain_mean_is_taken_where_offsets_do_not_turn():
    x, cache = offset_keys(None), new_cache("turbo4", nn.RoPE(64))
    feed(cache, x, 0, 599)
    assert not cache.key_body.mean_turns
    assert relative_error(feed(cache, x, 599, 600, None), exact_attention(x, 599, 600)) < 0.12


@pytest.mark.parametrize("size", [0.0, 1e-4, 200.0])
def test_zero_tiny_and_large_keys_and_values(size: float):
    x = sequence(300)
    x[1], x[2] = x[1] * min(size, 1.0), x[2] * size
    cache = new_cache("k8v8")
    feed(cache, x, 0, 299)
    out, expected = feed(cache, x, 299, 300, None), exact_attention(x, 299, 300)
    assert np.abs(np.array(out) - expected).max() <= 0.005 * size


def test_one_huge_token_does_not_spoil_the_others():
    x = sequence(300)
    x[1][:, :, 50], x[2][:, :, 50] = 300 * x[1][:, :, 50], 300 * x[2][:, :, 50]
    cache = new_cache("k8v8")
    feed(cache, x, 0, 299)
    mask = np.ones((1, 300), bool)
    mask[0, 50] = False
    out = feed(cache, x, 299, 300, mx.array(mask))
    assert relative_error(out, exact_attention(x, 299, 300, mask)) < 0.03


@pytest.mark.parametrize("offset", [0, 30])
def test_a_model_in_bfloat16_loses_no_more_than_bfloat16_holds(offset: float) -> None:
    """Large key means make large scores, which 8 bits of mantissa could not tell apart."""
    x = sequence(400)
    x[1] = x[1] + offset * gaussian(1, 2, 1, 64, seed=9)
    cache = TurboQuantKVCache(get_profile("turbo4"), mx.bfloat16)
    feed(cache, [part.astype(mx.bfloat16) for part in x], 0, 399)
    queries, keys, values = (part[:, :, 399:].astype(mx.bfloat16) for part in x)
    cache.update_and_fetch(keys, values)
    held = cache._dense(mx.float32)
    out = cache.attend(queries, 0.125, None)
    expected = mx.fast.scaled_dot_product_attention(queries.astype(mx.float32), *held, scale=0.125)
    assert out.dtype == mx.bfloat16
    assert relative_error(out.astype(mx.float32), np.array(expected)) < 2**-8
