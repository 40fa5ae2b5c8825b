"""The 8-bit option for recurrent state: what it rounds, that it is stored as held, and what it costs."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import tiny_models
from hypothesis import given
from hypothesis import strategies as st
from state_parts import export_tail, restore

from satchel.config.profiles import get_profile
from satchel.engine.kv_state import KVFactory, KVState
from satchel.engine.part_layout import Part
from satchel.engine.recurrent import from_bytes, rounded, to_bytes
from satchel.engine.snapshot_io import NonFiniteError

TOKENS = np.random.default_rng(3).integers(0, tiny_models.VOCABULARY, 140).tolist()
EIGHT = "turbo4,recurrent=8"


def test_a_row_is_rounded_to_steps_of_a_power_of_two() -> None:
    levels, steps = to_bytes(mx.array([[1.0, -0.3, 0.004, 0.0], [0.0, 0.0, 0.0, 0.0]]))
    assert steps.tolist() == [[1 / 64], [0.0]]  # 127 steps of 1/128 would not reach 1
    assert levels.tolist() == [[192, 109, 128, 128], [128, 128, 128, 128]]
    assert from_bytes(levels, steps, mx.float32).tolist() == [[1.0, -19 / 64, 0.0, 0.0], [0.0] * 4]


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@given(seed=st.integers(0, 2**16), size=st.sampled_from([1e-3, 1.0, 300.0]))
def test_rounding_twice_is_rounding_once(dtype: mx.Dtype, seed: int, size: float) -> None:
    x = mx.array(np.random.default_rng(seed).normal(0, size, (3, 16)).astype(np.float32)).astype(dtype)
    once = rounded(x)
    assert once.dtype == dtype
    assert mx.array_equal(rounded(once), once)
    largest = mx.abs(x).max(-1, keepdims=True)
    assert (mx.abs(once.astype(mx.float32) - x.astype(mx.float32)) <= largest / 127 * 1.001).all()


@pytest.fixture(scope="module")
def factory() -> KVFactory:
    return KVFactory(tiny_models.tiny_qwen35(), mx.float16)


def read(factory: KVFactory, state: KVState, token_ids: list[int]) -> np.ndarray:
    logits = factory.model(mx.array([token_ids]), cache=state.caches)[0]
    return np.array(logits - mx.logsumexp(logits, -1, keepdims=True))


def saved(state: KVState) -> Part:
    state.round_recurrent()
    return export_tail(state, 0, 100)


def test_a_resumed_state_goes_on_as_the_saved_one_does(factory: KVFactory) -> None:
    state, resumed = factory.new(get_profile(EIGHT)), factory.new(get_profile(EIGHT))
    read(factory, state, TOKENS[:100])
    restore(resumed, [saved(state)])
    assert np.array_equal(read(factory, resumed, TOKENS[100:]), read(factory, state, TOKENS[100:]))


def test_the_state_takes_a_quarter_of_the_bytes_and_little_is_lost(factory: KVFactory) -> None:
    """The matrices are float32 here; the few last inputs beside them stay as they are."""
    log_probs, sizes = {}, {}
    for name in ("turbo4", EIGHT):
        state = factory.new(get_profile(name))
        read(factory, state, TOKENS[:100])
        part = saved(state)
        matrices = [array for key, array in part.arrays.items() if key.startswith("L") and array.ndim == 4]
        sizes[name] = sum(array.nbytes for array in matrices)
        log_probs[name] = read(factory, state, TOKENS[100:])
    exact, eight = log_probs["turbo4"], log_probs[EIGHT]
    width = 32
    assert sizes[EIGHT] == sizes["turbo4"] / 4 * (1 + 4 / width)
    kl = (np.exp(exact) * (exact - eight)).sum(-1).mean()
    assert 0 < kl < 1e-4


def test_exact_is_the_default(factory: KVFactory) -> None:
    state = factory.new(get_profile("turbo4"))
    read(factory, state, TOKENS[:100])
    before = [np.array(array) for array in state.caches[0].cache]
    state.round_recurrent()
    assert all(
        np.array_equal(old, np.array(new)) for old, new in zip(before, state.caches[0].cache, strict=True)
    )


def test_a_state_that_is_not_finite_is_refused(factory: KVFactory) -> None:
    state = factory.new(get_profile(EIGHT))
    read(factory, state, TOKENS[:100])
    state.caches[0].cache[1] = state.caches[0].cache[1] * mx.array(np.nan)
    with pytest.raises(NonFiniteError):
        saved(state)


@pytest.mark.parametrize(("name", "shape"), [("levels", (1, 2, 3, 32)), ("steps", (1, 2, 3, 1))])
def test_levels_and_steps_of_another_shape_are_refused(
    factory: KVFactory, name: str, shape: tuple[int, ...]
) -> None:
    state = factory.new(get_profile(EIGHT))
    read(factory, state, TOKENS[:100])
    part = saved(state)
    key = next(key for key in part.arrays if key.endswith(name))
    arrays = {**part.arrays, key: np.zeros(shape, part.arrays[key].dtype)}
    with pytest.raises(ValueError, match="a saved array is"):
        restore(factory.new(get_profile(EIGHT)), [Part(0, 100, arrays, part.meta)])
