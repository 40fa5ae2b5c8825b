"""Every codec in one layer's cache: attention over its rows, the bytes it holds, and what its error costs."""

from __future__ import annotations

import gc

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from test_kv_cache import (
    attend_packed_and_dense,
    exact_attention,
    feed,
    gaussian,
    layout,
    new_cache,
    sequence,
    without_lift,
)

from satchel.config.profiles import CODEC_BITS, EXACT, CodecSpec
from satchel.engine.body import MAX_LIFT, CodedBody, ExactBody, new_key_body, new_value_body
from satchel.engine.codecs.affine import AffineCodec
from satchel.engine.codecs.polar import PolarCodec
from satchel.engine.codecs.qjl import QJLCodec
from satchel.engine.codecs.registry import CODECS, codec_for
from satchel.engine.codecs.tq import TQMseCodec, TQProdCodec
from satchel.engine.codecs.turbo import TurboCodec
from satchel.engine.kv_cache import TurboQuantKVCache
from satchel.engine.rope_table import RopeTable

# Bytes of a vector of 64 coordinates: codes, then scales, biases, norms, radii or a grid of 16 bits each.
ROW_BYTES = {
    "exact": 128,
    "turbo2": 16 + 2,
    "turbo3": 24 + 2,
    "turbo4": 32 + 2,
    "turbo8": 64 + 2,
    "affine2/32": 16 + 8,
    "affine3/32": 24 + 8,
    "affine4/32": 32 + 8,
    "affine8/32": 64 + 8,
    "affine2/64": 16 + 4,
    "affine3/64": 24 + 4,
    "affine4/64": 32 + 4,
    "affine8/64": 64 + 4,
    "affine4/128": 32 + 4,
    "tq-mse1": 8 + 2,
    "tq-mse2": 16 + 2,
    "tq-mse3": 24 + 2,
    "tq-mse4": 32 + 2,
    "tq-prod2": 16 + 4,
    "tq-prod3": 24 + 4,
    "tq-prod4": 32 + 4,
    "qjl1": 8 + 2,
    "qjl2": 16 + 2,
    "qjl3": 24 + 2,
    "qjl4": 32 + 2,
    "qjl8": 64 + 2,
    "polar": 23 + 8,
}
FIXED = ("mean", "gain", "noise")
# In float32: the mean, and of keys each channel's gain and the mean squared error of a coordinate.
FIXED_BYTES = {("turbo", "k"): (64 + 64 + 1) * 4, ("turbo", "v"): 64 * 4}
every_spec = pytest.mark.parametrize("spec", ROW_BYTES)


def rows(cache: TurboQuantKVCache, side: str) -> dict[str, mx.array]:
    """What a body holds by token."""
    body = cache.key_body if side == "k" else cache.value_body
    return {name: array for name, array in body.arrays().items() if name not in FIXED}


def reference(cache: TurboQuantKVCache, queries: mx.array) -> np.ndarray:
    """Causal attention of the last tokens in float64 to the keys and values that codes stand for.

    Scores of exact tokens are lower by v |q / gain|^2 / 2, where v is the mean squared error of a coordinate
    of the keys as they are coded: as much as the error of those raises their exponentials on average.
    """
    L, head_dim = queries.shape[2:]
    group = queries.shape[1] // cache.keys.shape[1]
    keys, values = (np.array(x, dtype=np.float64).repeat(group, axis=1) for x in cache._dense(mx.float32))
    q = np.array(queries, dtype=np.float64) * head_dim**-0.5
    scores = q @ keys.swapaxes(-1, -2)
    if (noise := cache.arrays().get("k.noise")) is not None:
        exact = np.r_[0 : cache.sink_tokens, cache.body_stop : cache.offset]
        scaled = q / np.array(cache.arrays()["k.gain"]).repeat(group, axis=1)
        lift = np.array(noise).repeat(group, axis=1) * (scaled * scaled).sum(-1, keepdims=True) / 2
        scores[..., exact] -= np.minimum(lift, MAX_LIFT)
    scores = np.where(np.tri(L, cache.offset, cache.offset - L, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ values


# -- attention -----------------------------------------------------------------------------------------


def test_every_codec_is_here():
    assert {CodecSpec.parse(name).codec for name in ROW_BYTES} == set(CODEC_BITS) == {"exact", *CODECS}


@every_spec
@pytest.mark.parametrize("L", [1, 4])
def test_packed_and_dense_attention_agree(monkeypatch: pytest.MonkeyPatch, spec: str, L: int):
    rope, x = nn.RoPE(64), sequence(270, batch=2)
    x[1] = rope(x[1] + 2 * gaussian(2, 2, 1, 64, seed=9))
    cache = new_cache(f"{spec}+{spec}", rope)
    feed(cache, x, 0, 270)
    assert layout(cache) == (4, 128, 138)
    queries = x[0][:, :, -L:]
    np.testing.assert_allclose(
        cache.attend(queries, 0.125, "causal"), reference(cache, queries), atol=1e-4, err_msg="lifted"
    )
    without_lift(monkeypatch)
    packed, dense = attend_packed_and_dense(monkeypatch, cache, queries, "causal")
    np.testing.assert_allclose(packed, dense, atol=1e-4)


@pytest.mark.parametrize("name", ["turbo2+affine3/32", "qjl4", "exact+polar", "tq-prod3+exact"])
def test_keys_and_values_may_have_different_codecs(name: str):
    x, cache = sequence(270), new_cache(name)
    feed(cache, x, 0, 270)
    queries = x[0][:, :, -2:]
    np.testing.assert_allclose(
        cache.attend(queries, 0.125, "causal"), reference(cache, queries), atol=1e-4, err_msg=name
    )


@pytest.mark.parametrize(
    ("name", "keys", "values"),
    [  # squared errors as in test_codecs.py; the step of affine is the range of 64 Gaussians in 2**bits
        ("affine4", 0.0083, 0.0083),
        ("affine8", 0.0083 / 17**2, 0.0083 / 17**2),
        ("tq-mse4", 0.00913, 0.00913),
        ("tq-mse2", 0.1166, 0.1166),
        ("tq-prod4+exact", np.pi / 2 * 0.0334, 0),
        ("exact+tq-prod4", 0, np.pi / 2 * 0.0334),
        ("polar", 0.0321, 0.0321),
        ("qjl8+exact", np.pi / 2 / 8, 0),
    ],
)
def test_attention_errs_by_its_codecs_errors(name: str, keys: float, values: float):
    """The squares add up, times the body's share of the tokens: 512 of 690."""
    x, cache = sequence(700, seed=3), new_cache(name)
    feed(cache, x, 0, 690)
    assert layout(cache) == (4, 512, 174)
    expected = exact_attention(x, 690, 700)
    error = np.linalg.norm(np.array(feed(cache, x, 690, 700)) - expected) / np.linalg.norm(expected)
    assert error == pytest.approx(((keys + values) * 512 / 690) ** 0.5, rel=0.14)


# -- bytes ---------------------------------------------------------------------------------------------


@every_spec
def test_bytes_are_those_of_the_layout(spec: str):
    cache = new_cache(f"{spec}+{spec}")
    feed(cache, sequence(300), 0, 300)
    assert layout(cache) == (4, 128, 168)
    exact, coded, codec = 172 * 64 * 2, 128 * ROW_BYTES[spec], CodecSpec.parse(spec).codec
    sides = sum(exact + coded + FIXED_BYTES.get((codec, side), 0) for side in "kv")
    assert cache.nbytes == 2 * sides  # two heads
    for side, body in (("k", cache.key_body), ("v", cache.value_body)):
        like = {name: (array.dtype, array.shape) for name, array in rows(cache, side).items()}
        assert like == {name: (dtype, (1, 2, 128, n)) for name, (dtype, n) in body.layout(64).items()}
        fixed = {name: body.arrays()[name] for name in FIXED if name in body.arrays()}
        like = {name: (array.dtype, array.shape) for name, array in fixed.items()}
        assert like == {name: (dtype, (1, 2, 1, n)) for name, (dtype, n) in body.fixed_layout(64).items()}


@every_spec
def test_no_full_precision_copy_is_kept(spec: str):
    x = sequence(700, kv_heads=4, group=1, head_dim=128)
    mx.eval(x)
    if spec != "exact":
        codec_for(CodecSpec.parse(spec), 128, mx.float16)  # its tables are for all layers
    gc.collect()
    before = mx.get_active_memory()
    cache = new_cache(f"{spec}+{spec}")
    feed(cache, x, 0, 690)
    for token in range(690, 700):
        feed(cache, x, token, token + 1, None)
    gc.collect()
    held = mx.get_active_memory() - before
    assert cache.nbytes <= held <= cache.nbytes + 16_384 * len(cache.state)  # allocations are whole pages
    assert cache.body_tokens == 512  # 512 kB in 16 bits, on each side


# -- appending and trimming ----------------------------------------------------------------------------


@every_spec
def test_trimmed_tokens_read_again_make_the_same_rows(spec: str):
    x, cache = sequence(300), new_cache(f"{spec}+{spec}")
    feed(cache, x, 0, 300)
    before = {side: rows(cache, side) for side in "kv"}
    assert cache.trim(200) == 200
    assert layout(cache) == (4, 96, 0)
    for side, held in before.items():
        for name, array in rows(cache, side).items():
            assert mx.array_equal(array, held[name][:, :, :96]), name
    feed(cache, x, 100, 300)
    assert layout(cache) == (4, 160, 136)
    for side, held in before.items():
        for name, array in rows(cache, side).items():
            assert mx.array_equal(array[:, :, :96], held[name][:, :, :96]), name
            # A product of matrices may round otherwise for another number of rows.
            same = (array[:, :, 96:128] == held[name][:, :, 96:]).astype(mx.float32).mean().item()
            assert same >= 0.99, name
    queries = x[0][:, :, -1:]
    np.testing.assert_allclose(cache.attend(queries, 0.125, None), reference(cache, queries), atol=1e-4)


@every_spec
def test_a_cache_trimmed_to_nothing_starts_anew(spec: str):
    x, cache, fresh = sequence(300), new_cache(f"{spec}+{spec}"), new_cache(f"{spec}+{spec}")
    feed(cache, [3 * part + 1 for part in x], 0, 300)
    cache.trim(300)
    assert (cache.empty(), cache.state, cache.body_tokens) == (True, [], 0)
    feed(cache, x, 0, 300)
    feed(fresh, x, 0, 300)
    for name, array in fresh.arrays().items():
        assert mx.array_equal(cache.arrays()[name], array), name


# -- the weight of coded keys --------------------------------------------------------------------------


def body_mass(x: list[mx.array], name: str) -> tuple[np.ndarray, np.ndarray]:
    """The softmax weight of all body tokens together, by a cache and exact, for the queries of 8 tokens."""
    tokens = x[0].shape[2]
    inside = np.zeros(x[2].shape, np.float32)
    inside[:, :, 4 : 4 + (tokens - 8 - 132) // 64 * 64] = 1
    x = [x[0], x[1], mx.array(inside)]
    cache = new_cache(name)
    feed(cache, x, 0, tokens - 8)
    assert mx.array_equal(cache.arrays()["v.x"], mx.ones_like(cache.arrays()["v.x"]))
    return np.array(feed(cache, x, tokens - 8, tokens))[..., 0], exact_attention(x, tokens - 8, tokens)[
        ..., 0
    ]


@pytest.mark.parametrize(
    ("bits", "size", "lacking", "left"),
    [(2, 1, 0.0103, 0.0012), (2, 2, 0.039, 0.008), (3, 2, 0.0098, 0.003)],
)
def test_coded_keys_weigh_on_average_what_exact_ones_do(
    monkeypatch: pytest.MonkeyPatch, bits: int, size: float, lacking: float, left: float
):
    """A coded key is its vector's expectation: by Jensen's inequality the exponential of its score lacks."""
    x = sequence(700, batch=4, kv_heads=4, group=4)
    x[0] = x[0] * size
    lifted, exact = body_mass(x, f"k{bits}v16")
    assert abs((lifted - exact).mean()) < left
    without_lift(monkeypatch)
    plain, _ = body_mass(x, f"k{bits}v16")
    assert (exact - plain).mean() == pytest.approx(lacking, rel=0.15)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_the_noise_is_the_mean_squared_error_of_the_first_coded_keys(bits: int):
    x, cache = sequence(300), new_cache(f"k{bits}v{bits}")
    x[1] = x[1] * mx.array([1.0, 3.0])[None, :, None, None]  # the heads apart
    feed(cache, x, 0, 300)
    arrays = cache.arrays()
    error = (cache.key_body.dense(4, mx.float32) - x[1][:, :, 4:132]) * arrays["k.gain"]
    assert arrays["k.noise"].shape == (1, 2, 1, 1)
    # The exact keys are held in float16.
    np.testing.assert_allclose(arrays["k.noise"], mx.square(error).mean((2, 3), keepdims=True), rtol=0.02)
    assert (arrays["k.noise"][0, 1] / arrays["k.noise"][0, 0]).item() == pytest.approx(9, rel=0.1)
    assert "v.noise" not in arrays


def test_the_lift_is_half_the_noise_times_the_querys_square():
    body = CodedBody(CodecSpec("turbo", 2), mx.float16, None, is_keys=True)
    body.load({"codes": mx.zeros((1, 2, 1, 4), mx.uint32), "noise": mx.array([0.1, 2.0]).reshape(1, 2, 1, 1)})
    queries = mx.array([[3.0, 4.0], [1.0, 0.0]]).reshape(1, 2, 1, 2)
    assert body.lift(queries).tolist() == [[[[1.25]], [[1.0]]]]
    assert body.lift(3 * queries).tolist() == [[[[MAX_LIFT]], [[MAX_LIFT]]]]  # 11.25 and 9: of rare tokens


@pytest.mark.parametrize("spec", ["exact", "affine4/64", "tq-mse4", "tq-prod4", "qjl4", "polar"])
def test_codecs_without_a_fitted_mean_have_no_lift(spec: str):
    body = new_key_body(CodecSpec.parse(spec), mx.float16)
    body.append(gaussian(1, 2, 20, 64), 0, 20)
    assert body.lift(gaussian(1, 2, 1, 64)) is None
    assert body.fixed_layout(64) == {}


@pytest.mark.parametrize("turning", [True, False])
def test_sensitivity_is_of_what_is_left_without_the_mean(turning: bool):
    rope, offset = nn.RoPE(64), 20 * gaussian(1, 2, 1, 64, seed=9)
    x = rope(gaussian(1, 2, 50, 64) + offset, offset=4) if turning else gaussian(1, 2, 50, 64) + offset
    body = new_key_body(CodecSpec("turbo", 8), mx.float16, RopeTable.of(rope))
    queries = gaussian(1, 2, 30, 64, seed=1)
    sensitivity = body.sensitivity(queries, x, 4)
    assert (body.tokens, body.arrays()) == (0, {})
    assert sensitivity.item() == pytest.approx(64 * (1 - 1 / 50), rel=0.1)  # |q|^2 by the variance
    assert body.sensitivity(3 * queries, x, 4).item() == pytest.approx(9 * sensitivity.item(), rel=1e-4)
    body.append(mx.concatenate([gaussian(1, 2, 4, 64), x], axis=2), 4, 50)
    assert body.mean_turns is turning
    np.testing.assert_allclose(body.dense(4, mx.float32), x, atol=0.05)


def test_gains_bring_channels_together_and_leave_less_error():
    """With gains of sigma^-1/2 the squared error is E[sigma]^2 / E[sigma^2] of what it is without."""
    sigma = mx.array([1.0] * 32 + [6.0] * 32)
    x, body = gaussian(1, 1, 400, 64) * sigma, new_key_body(CodecSpec("turbo", 4), mx.float16)
    body.append(x, 0, 400)
    gain = np.array(body.arrays()["gain"])[0, 0, 0]
    assert gain[:32].mean() / gain[32:].mean() == pytest.approx(6**0.5, rel=0.05)
    assert np.log(gain).mean() == pytest.approx(0, abs=1e-5)
    values = new_value_body(CodecSpec("turbo", 4), mx.float16)  # without gains
    values.append(x, 0, 400)
    assert sorted(values.arrays()) == ["codes", "grid", "mean"]
    error, without = (mx.square(b.dense(0, mx.float32) - x).mean().item() for b in (body, values))
    assert error / without == pytest.approx(3.5**2 / 18.5, rel=0.1)


def test_a_channel_that_never_moves_and_a_head_of_zeros_have_finite_gains():
    x = gaussian(1, 2, 100, 64) * mx.array([1.0, 0.0])[None, :, None, None]
    x[..., 5] = 0
    body = new_key_body(CodecSpec("turbo", 4), mx.float16)
    body.append(x, 0, 100)
    assert mx.isfinite(body.arrays()["gain"]).all()
    dense = body.dense(0, mx.float32)
    assert mx.array_equal(dense[:, 1], x[:, 1])
    assert mx.square(dense - x)[:, 0].mean().item() < 0.012


# -- kinds of bodies -----------------------------------------------------------------------------------


@every_spec
def test_a_body_loads_what_another_holds(spec: str):
    rope, x = nn.RoPE(64), sequence(300)
    x[1] = rope(x[1] + 5 * gaussian(1, 2, 1, 64, seed=9))
    cache, other = (new_cache(f"{spec}+{spec}", rope) for _ in range(2))
    feed(cache, x, 0, 300)
    for body, loaded in ((cache.key_body, other.key_body), (cache.value_body, other.value_body)):
        loaded.layout(64)
        loaded.load(body.arrays())
        loaded.mean_turns = body.mean_turns
        assert loaded.tokens == body.tokens == 128
        assert mx.array_equal(loaded.dense(4, mx.float32), body.dense(4, mx.float32))
    assert cache.key_body.mean_turns is (CodecSpec.parse(spec).codec == "turbo")


@every_spec
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_of_what_is_not_finite_say_so(spec: str, bad: float):
    x = np.array(gaussian(1, 2, 20, 64))
    x[0, 1, 15, 60] = bad
    body = new_value_body(CodecSpec.parse(spec), mx.float16)
    body.append(mx.array(x[:, :, :15]), 0, 10)
    body.append(mx.array(x), 10, 5)
    assert all(map(all_finite, body.arrays().values()))
    body.append(mx.array(x), 15, 5)
    assert not all(map(all_finite, body.arrays().values()))


def all_finite(array: mx.array) -> bool:
    return not mx.issubdtype(array.dtype, mx.floating) or bool(mx.isfinite(array).all())


def test_exact_keys_and_values_have_a_body_of_their_own():
    body = new_value_body(EXACT, mx.bfloat16)
    assert isinstance(body, ExactBody)
    assert body.layout(64) == {"x": (mx.bfloat16, 64)}


# -- the registry --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ("turbo3", TurboCodec),
        ("affine3/32", AffineCodec),
        ("tq-mse3", TQMseCodec),
        ("tq-prod3", TQProdCodec),
        ("qjl3", QJLCodec),
        ("polar", PolarCodec),
    ],
)
def test_names_lead_to_codecs(spec: str, kind: type):
    codec = codec_for(CodecSpec.parse(spec), 64, mx.bfloat16)
    assert type(codec) is kind
    assert getattr(codec, "bits", 3) == 3
    assert getattr(codec, "group_size", 32) == 32
    assert getattr(codec, "dtype", mx.bfloat16) == mx.bfloat16
    assert codec.head_dim == 64


def test_a_codec_is_made_once_for_all_layers_that_are_alike():
    spec = CodecSpec.parse("tq-mse3")
    first = codec_for(spec, 64, mx.float16)
    assert codec_for(CodecSpec("tq-mse", 3), 64, mx.float16) is first
    others = [
        codec_for(spec, 80, mx.float16),
        codec_for(spec, 64, mx.bfloat16),
        codec_for(CodecSpec("tq-mse", 2), 64, mx.float16),
    ]
    assert all(other is not first for other in others)


@every_spec
def test_every_spec_has_a_codec(spec: str):
    if spec != "exact":
        codec = codec_for(CodecSpec.parse(spec), 64, mx.float16)
        assert sum(dtype.size * width for dtype, width in codec.layout().values()) == ROW_BYTES[spec]


def test_a_head_dim_that_a_codec_cannot_hold_is_refused():
    with pytest.raises(ValueError, match="head_dim is 72: polar takes multiples of 16"):
        codec_for(CodecSpec("polar"), 72, mx.float16)
