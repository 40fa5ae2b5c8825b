"""Every kind of layer state in mlx-lm's models: resumed exactly, compressed closely or kept exactly."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache, partial
from pydoc_data.topics import topics
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import tiny_models
from mlx_lm.models.base import scaled_dot_product_attention
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    RotatingKVCache,
    make_prompt_cache,
)
from state_parts import export_block, export_tail, restore
from tiny_models import tiny, tiny_llama

from satchel.cache_store.snapshot import BLOCK_TOKENS
from satchel.config.profiles import get_profile
from satchel.engine.attention import dispatch_attention
from satchel.engine.kv_cache import TurboQuantKVCache
from satchel.engine.kv_state import KVFactory, KVState
from satchel.engine.model import LoadedModel
from satchel.engine.part_layout import Part
from satchel.engine.snapshot_io import settled_tokens

C, K, R, A, L, Q = ChunkedKVCache, KVCache, RotatingKVCache, ArraysCache, CacheList, TurboQuantKVCache
CHUNK, CONTEXT, ANSWER = 64, 300, 24
TOKENS = np.random.default_rng(3).integers(0, tiny_models.VOCABULARY, 600).tolist()
CANNOT = "this model's attention cannot use a compressed cache; its KV is kept exactly"
NOTHING = "this model has no full-attention layer to compress; its state is kept exactly"

# Name to builder and the caches of the profile turbo4.
COMPRESSED: dict[str, tuple[Callable[[], nn.Module], list[type]]] = {
    "llama, 80 a head, 1 query head": (partial(tiny_llama, 80, group=1), [Q, Q]),
    "llama, 96 a head, 7 query heads": (partial(tiny_llama, 96, group=7), [Q, Q]),
    "llama, 256 a head, 3 query heads": (partial(tiny_llama, 256, group=3), [Q, Q]),
    "llama with a sliding window": (
        partial(tiny_llama, layer_types=["sliding_attention", "full_attention"], sliding_window=32),
        [R, Q],
    ),
    "biased keys": (tiny_models.tiny_biased, [Q, Q]),
    "gemma 3": (tiny_models.tiny_gemma3, [R, R, Q, R, R, Q]),
    "qwen 3.5": (tiny_models.tiny_qwen35, [A, A, A, Q, A, A, A, Q]),
    "qwen 3 next": (partial(tiny, "qwen3_next"), [A, Q, A, Q]),
    "nemotron h": (tiny_models.tiny_nemotron, [A, Q, A]),
    "lfm2": (partial(tiny, "lfm2"), [A, Q, A, Q]),
    "granite 4": (partial(tiny, "granitemoehybrid"), [A, Q, A, Q]),
    "attention sinks": (partial(tiny, "gpt_oss"), [R, Q, R, Q]),
    "values smaller than keys": (partial(tiny, "mimo_v2_flash"), [Q, R, Q, R]),
    "chunked attention": (partial(tiny, "llama4"), [C, C, C, Q]),
    # Latent attention whose keys and values are written out per head before they are cached.
    "deepseek 2": (partial(tiny, "deepseek_v2"), [Q, Q, Q, Q]),
    "minicpm 3": (partial(tiny, "minicpm3"), [Q, Q, Q, Q]),
}
# Name to builder, caches and notice.
EXACT: dict[str, tuple[Callable[[], nn.Module], list[type], str]] = {
    # Latent attention that caches latents: one vector is key and value.
    "deepseek 3": (partial(tiny, "deepseek_v3"), [K, K, K, K], CANNOT),
    "mistral 4": (partial(tiny, "mistral4"), [K, K, K, K], CANNOT),
    "kimi linear": (partial(tiny, "kimi_linear"), [A, K, A, K], CANNOT),
    "deepseek 3.2": (partial(tiny, "deepseek_v32"), [L, L, L, L], NOTHING),
    "longcat": (partial(tiny, "longcat_flash"), [L, L], NOTHING),
    # Other ways to attend than by the name that is replaced.
    "soft-capped scores": (partial(tiny, "gemma2"), [K, K, K, K], CANNOT),
    "MLX's kernel called directly": (partial(tiny, "plamo2"), [A, K, A, K], CANNOT),
    "keys used by later layers": (partial(tiny, "afm7"), [K, K], CANNOT),
    "layers that shared keys cross": (tiny_models.tiny_gemma4, [R, K, R, K], CANNOT),
    "layers run twice": (partial(tiny, "iquestloopcoder"), [K, K, K, K, R, R, R, R], CANNOT),
    # No plain cache.
    "mamba 2": (partial(tiny, "mamba2"), [A, A, A, A], NOTHING),
    "falcon h1": (partial(tiny, "falcon_h1"), [L, L, L, L], NOTHING),
    "baichuan m1": (partial(tiny, "baichuan_m1"), [L, L, L, L], NOTHING),
}
BUILDERS = {name: kind[0] for name, kind in (COMPRESSED | EXACT).items()}


@cache
def factory(name: str) -> KVFactory:
    return KVFactory(BUILDERS[name](), mx.float16)


def read(model: nn.Module, caches: list[Any], token_ids: list[int], chunk: int = CHUNK) -> mx.array:
    """The logits after each token, (tokens, vocabulary)."""
    outs = []
    for start in range(0, len(token_ids), chunk):
        outs.append(model(mx.array([token_ids[start : start + chunk]]), cache=caches)[0])
        mx.eval(outs[-1], [cache.state for cache in caches])
    return mx.concatenate(outs)


def answer(model: nn.Module, caches: list[Any], logits: mx.array) -> tuple[list[int], mx.array]:
    """The likeliest tokens that follow `logits`, and the logits after each."""
    chosen, outs = [], []
    for _ in range(ANSWER):
        chosen.append(int(mx.argmax(logits)))
        outs.append(read(model, caches, chosen[-1:]))
        logits = outs[-1][-1]
    return chosen, mx.concatenate(outs)


def exported(state: KVState, tokens: int) -> list[Part]:
    """As a session saves and a store gives back: settled blocks and the tail, with JSON between."""
    settled = settled_tokens(state) // BLOCK_TOKENS * BLOCK_TOKENS
    parts = [export_block(state, start, start + BLOCK_TOKENS) for start in range(0, settled, BLOCK_TOKENS)]
    parts.append(export_tail(state, settled, tokens))
    return [replace(part, meta=json.loads(json.dumps(dict(part.meta)))) for part in parts]


def assert_resumes_exactly(made: KVFactory, profile: str, token_ids: list[int]) -> KVState:
    """A state saved after `token_ids` and loaded goes on bit for bit as one that was never saved."""
    state, resumed = made.new(get_profile(profile)), made.new(get_profile(profile))
    last = read(made.model, state.caches, token_ids)[-1]
    restore(resumed, exported(state, len(token_ids)))
    expected, expected_logits = answer(made.model, state.caches, last)
    actual, logits = answer(made.model, resumed.caches, last)
    assert actual == expected
    assert mx.array_equal(logits, expected_logits)
    return resumed


def relative_errors(logits: mx.array, exact: mx.array) -> np.ndarray:
    """One for each token."""
    return np.array(mx.linalg.norm(logits - exact, axis=-1) / mx.linalg.norm(exact, axis=-1))


def compressed(state: KVState) -> list[TurboQuantKVCache]:
    return [cache for cache in state.caches if isinstance(cache, TurboQuantKVCache)]


# -- every kind ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["turbo4", "exact"])
@pytest.mark.parametrize("name", BUILDERS)
def test_a_resumed_state_goes_on_as_one_that_never_stopped(name: str, profile: str):
    state = assert_resumes_exactly(factory(name), profile, TOKENS[:CONTEXT])
    assert {(cache.offset, cache.attended, cache.body_tokens) for cache in compressed(state)} in (
        set(),
        {(CONTEXT + ANSWER, CONTEXT + ANSWER, 192)},
    )


@pytest.mark.parametrize("name", COMPRESSED)
def test_full_attention_runs_in_compressed_caches_close_to_exact_ones(name: str):
    made, kinds = factory(name), COMPRESSED[name][1]
    typical = {}
    for profile in ("turbo4", "k8v8"):
        state, exact_caches = made.new(get_profile(profile)), make_prompt_cache(made.model)
        assert [type(cache) for cache in state.caches] == kinds
        assert state.notice is None
        for start, stop, chunk in ((0, CONTEXT, CHUNK), (CONTEXT, CONTEXT + ANSWER, 1)):
            exact = read(made.model, exact_caches, TOKENS[start:stop], chunk)
            errors = relative_errors(read(made.model, state.caches, TOKENS[start:stop], chunk), exact)
            # Random weights: at a few tokens, near ties in the attention fall the other way.
            assert np.quantile(errors, 0.9) < (0.04 if profile == "k8v8" else 0.6)
        assert all(cache.attended == cache.offset == CONTEXT + ANSWER for cache in compressed(state))
        typical[profile] = float(np.median(errors))
    assert typical["k8v8"] < 0.012
    assert (
        10 < typical["turbo4"] / typical["k8v8"] < 30
    )  # four bits are 16 times the step, and no more is lost


@pytest.mark.parametrize("name", EXACT)
def test_models_that_cannot_be_compressed_are_exact_and_say_so(name: str):
    made, (_, kinds, notice) = factory(name), EXACT[name]
    state = made.new(get_profile("turbo4"))
    assert [type(cache) for cache in state.caches] == kinds
    assert state.notice == notice
    exact_caches = make_prompt_cache(made.model)
    for start, stop, chunk in ((0, CONTEXT, CHUNK), (CONTEXT, CONTEXT + ANSWER, 1)):
        exact = read(made.model, exact_caches, TOKENS[start:stop], chunk)
        assert mx.isfinite(exact).all().item()
        assert mx.array_equal(read(made.model, state.caches, TOKENS[start:stop], chunk), exact)


# -- going back ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [30, 150])
@pytest.mark.parametrize(
    ("name", "goes_back"),
    [
        ("llama, 80 a head, 1 query head", True),
        ("deepseek 2", True),
        ("deepseek 3", True),
        ("deepseek 3.2", True),
        ("mistral 4", True),
        ("longcat", True),
        ("soft-capped scores", True),
        ("keys used by later layers", True),
        ("chunked attention", False),  # mlx-lm's cache says that it can
        ("gemma 3", False),
        ("qwen 3.5", False),
        ("falcon h1", False),
    ],
)
def test_a_state_goes_back_to_what_it_was_or_says_that_it_cannot(name: str, goes_back: bool, n: int):
    made, stop = factory(name), 340
    state = made.new(get_profile("exact"))
    read(made.model, state.caches, TOKENS[:CONTEXT])
    read(made.model, state.caches, TOKENS[CONTEXT:stop], 1)  # chunked layers forget what is behind a chunk
    assert state.trim(n) == goes_back
    if goes_back:
        fresh = made.new(get_profile("exact"))
        read(made.model, fresh.caches, TOKENS[: stop - n])
        expected, actual = (read(made.model, each.caches, TOKENS[stop - n : stop]) for each in (fresh, state))
        np.testing.assert_allclose(actual, expected, atol=1e-4)


# -- real models ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["turbo4", pytest.param("exact", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "tokens"), [pytest.param("qwen", 300, marks=pytest.mark.slow), ("gemma", 600)]
)  # past Gemma's window of 512
def test_real_models_go_on_as_if_they_had_never_stopped(
    request: pytest.FixtureRequest, name: str, tokens: int, profile: str
):
    loaded: LoadedModel = request.getfixturevalue(name)
    token_ids = loaded.tokenizer.encode(topics["assignment"])[:tokens]
    assert len(token_ids) == tokens
    made = KVFactory(loaded.model, loaded.cache_dtype)
    resumed = assert_resumes_exactly(made, profile, token_ids)
    assert resumed.notice is None
    full = Q if profile == "turbo4" else K
    assert [type(cache) for cache in resumed.caches] == (
        [full] * 24 if name == "qwen" else [*[R] * 5, full] * 3
    )
    assert all(cache.attended == tokens + ANSWER for cache in compressed(resumed))


# -- attention to something else -----------------------------------------------------------------------


def test_a_compressed_cache_serves_its_own_keys_and_values_only():
    own, other = (TurboQuantKVCache(get_profile("turbo4"), mx.float16) for _ in range(2))
    x = mx.ones((1, 1, 2, 64))
    keys, values = own.update_and_fetch(x, x)
    other_keys, other_values = other.update_and_fetch(x, x)
    attend = partial(dispatch_attention, cache=own, scale=1.0, mask="causal")
    assert attend(x, keys, values).shape == (1, 1, 2, 64)
    for wrong in (
        (keys, keys),
        (x, x),
        (keys, x),
        (x, values),
        (other_keys, other_values),
        (keys, other_values),
    ):
        with pytest.raises(TypeError, match="its compressed cache"):
            attend(x, *wrong)


class LatentDecoding(tiny_models.BypassModel):
    """Attends to keys and values when it reads, and to keys alone, as both, when it writes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [LatentAttention() for _ in self.layers]


class LatentAttention(tiny_models.BypassAttention):
    def __call__(self, x: mx.array, cache: Any) -> mx.array:
        queries, keys, values = (part[:, None] for part in mx.split(self.qkv(x), 3, -1))
        keys, values = cache.update_and_fetch(keys, values)
        if x.shape[1] == 1:
            values = keys
        mask = "causal" if x.shape[1] > 1 else None
        return scaled_dot_product_attention(queries, keys, values, cache=cache, scale=0.125, mask=mask)[:, 0]


def test_a_model_that_attends_otherwise_when_it_writes_is_kept_exactly():
    model = LatentDecoding()
    state = KVFactory(model, mx.float16).new(get_profile("turbo4"))
    assert state.notice == CANNOT
    assert mx.isfinite(read(model, state.caches, TOKENS[:10], 1)).all().item()


# -- states of caches within caches --------------------------------------------------------------------


@cache
def saved(name: str) -> list[Part]:
    state = factory(name).new(get_profile("turbo4"))
    read(factory(name).model, state.caches, TOKENS[:CONTEXT])
    return exported(state, CONTEXT)


def assert_refused(name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """That a state whose layers' JSON was changed is not loaded."""
    *blocks, tail = saved(name)
    layers = deepcopy(tail.meta["layers"])
    change(layers)
    parts = [*blocks, replace(tail, meta={**tail.meta, "layers": layers})]
    with pytest.raises(ValueError):
        restore(factory(name).new(get_profile("turbo4")), parts)


WRONG_TREES = [
    # state of layer 0: [[state of the first cache, its class], [state of the second, its class]]
    ("deepseek 3.2", [0, 1], "ArraysCache"),
    ("deepseek 3.2", [1, 1], "ArraysCache"),
    ("deepseek 3.2", [0, 1], "make_prompt_cache"),
    ("deepseek 3.2", [0, 0, 2], CONTEXT + 1),
    ("deepseek 3.2", [1, 0, 2], CONTEXT - 1),
    ("falcon h1", [0, 1], "KVCache"),
    ("falcon h1", [1, 0, 2], 10**6),
    ("chunked attention", [2], CONTEXT + 1),  # offset
    ("chunked attention", [3], 32),  # chunk size
    ("chunked attention", [4], CONTEXT + 1),  # position of the first token held
]


@pytest.mark.parametrize(("name", "path", "value"), WRONG_TREES, ids=str)
def test_states_of_other_classes_or_lengths_are_refused(name: str, path: list[int], value: object):
    def change(layers: dict[str, Any]) -> None:
        branch = layers["0"]
        for step in path[:-1]:
            branch = branch[step]
        assert type(branch[path[-1]]) is type(value)
        branch[path[-1]] = value

    assert_refused(name, change)


def test_a_state_of_token_ids_resumes():
    """Longcat's n-gram embedding keeps the last tokens as int64."""
    assert_resumes_exactly(KVFactory(tiny("longcat_flash_ngram"), mx.float16), "turbo4", TOKENS[:CONTEXT])


def test_a_kind_of_cache_that_cannot_be_loaded_is_refused():
    """DeepSeek 4.1 has a cache of its own, which cannot be set."""
    made = KVFactory(tiny("deepseek_v41"), mx.float16)
    state = made.new(get_profile("turbo4"))
    read(made.model, state.caches, TOKENS[:CONTEXT])
    parts = exported(state, CONTEXT)
    with pytest.raises(ValueError):
        restore(made.new(get_profile("turbo4")), parts)
