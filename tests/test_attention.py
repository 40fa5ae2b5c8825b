"""A model's attention arrives in our caches, or the model keeps exact ones and the state says so."""

from __future__ import annotations

import hashlib
import json

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import tiny_models
from mlx_lm.models import llama
from mlx_lm.models.base import scaled_dot_product_attention as mlx_lm_attention
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache, make_prompt_cache

from satchel.config.profiles import CodecSpec, get_profile
from satchel.engine.attention import NAME, dispatch_attention, route_attention
from satchel.engine.codecs.random_matrices import dense_rotation
from satchel.engine.codecs.registry import codec_for
from satchel.engine.kv_cache import TurboQuantKVCache
from satchel.engine.kv_state import KVFactory, KVState
from satchel.engine.model import LoadedModel


def new_state(model: nn.Module, profile: str = "turbo4") -> KVState:
    return KVFactory(model, mx.float16).new(get_profile(profile))


def tokens(count: int, vocabulary: int = tiny_models.VOCABULARY) -> mx.array:
    return mx.array(np.random.default_rng(4).integers(0, vocabulary, (1, count)))


def logits_of(model: nn.Module, caches: list[object], token_ids: mx.array, chunk: int = 100) -> mx.array:
    """The next-token logits after each token, (tokens, vocabulary)."""
    outs = []
    for start in range(0, token_ids.shape[1], chunk):
        outs.append(model(token_ids[:, start : start + chunk], cache=caches)[0])
        mx.eval(outs[-1], [cache.state for cache in caches])
    return mx.concatenate(outs)


def kinds(state: KVState) -> list[type]:
    return [type(cache) for cache in state.caches]


def compressed(state: KVState) -> list[TurboQuantKVCache]:
    return [cache for cache in state.caches if isinstance(cache, TurboQuantKVCache)]


# -- a real model --------------------------------------------------------------------------------------


def test_every_layer_of_a_real_model_attends_in_our_caches(smollm: LoadedModel):
    state = KVFactory(smollm.model, smollm.cache_dtype).new(get_profile("turbo4"))
    assert kinds(state) == [TurboQuantKVCache] * 30
    assert state.notice is None
    token_ids = mx.array([smollm.tokenizer.encode("The keys and values of a long text. " * 30)[:230]])
    logits_of(smollm.model, state.caches, token_ids, chunk=229)
    assert {(cache.offset, cache.attended, cache.body_tokens) for cache in compressed(state)} == {
        (230, 230, 64)
    }


def test_compression_hardly_changes_a_real_models_predictions(smollm: LoadedModel):
    text = "A cache keeps what was read, so that it need not be read again. " * 10
    text += "The rain in Spain stays mainly in the plain, or so the song says. " * 8
    token_ids = mx.array([smollm.tokenizer.encode(text)[:240]])
    assert token_ids.size == 240
    exact = logits_of(smollm.model, make_prompt_cache(smollm.model), token_ids, chunk=232)[-8:]
    state = KVFactory(smollm.model, smollm.cache_dtype).new(get_profile("turbo4"))
    logits = mx.concatenate(
        [
            logits_of(smollm.model, state.caches, token_ids[:, :232]),
            logits_of(smollm.model, state.caches, token_ids[:, 232:], chunk=1),
        ]
    )[-8:]
    log_p, log_q = (x - mx.logsumexp(x, -1, keepdims=True) for x in (exact, logits))
    divergence = (mx.exp(log_p) * (log_p - log_q)).sum(-1).mean().item()
    assert 1e-7 < divergence < 0.003  # not the exact cache by mistake, and as close as the profile promises


def test_other_caches_give_the_same_logits_through_the_dispatcher(
    monkeypatch: pytest.MonkeyPatch, smollm: LoadedModel
):
    token_ids = tokens(12, 1000)
    monkeypatch.setattr(llama, NAME, mlx_lm_attention)
    before = logits_of(smollm.model, make_prompt_cache(smollm.model), token_ids)
    assert route_attention(smollm.model) == ["mlx_lm.models.llama"]
    assert getattr(llama, NAME) is dispatch_attention
    assert mx.array_equal(logits_of(smollm.model, make_prompt_cache(smollm.model), token_ids), before)


def test_routing_twice_is_routing_once(smollm: LoadedModel):
    assert route_attention(smollm.model) == route_attention(smollm.model) == ["mlx_lm.models.llama"]
    assert getattr(llama, NAME) is dispatch_attention


# -- kinds of models -----------------------------------------------------------------------------------

R, A, Q, K = RotatingKVCache, ArraysCache, TurboQuantKVCache, KVCache


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (tiny_models.tiny_llama(), [Q, Q]),
        (
            tiny_models.tiny_llama(layer_types=["sliding_attention", "full_attention"], sliding_window=32),
            [R, Q],
        ),
        (tiny_models.tiny_gemma3(), [R, R, Q, R, R, Q]),
        (tiny_models.tiny_qwen35(), [A, A, A, Q, A, A, A, Q]),
        (tiny_models.tiny_nemotron(), [A, Q, A]),
    ],
    ids=["llama", "llama with a sliding window", "gemma 3", "qwen 3.5", "nemotron"],
)
def test_full_attention_layers_are_compressed_and_no_others(model: nn.Module, expected: list[type]):
    state = new_state(model)
    assert kinds(state) == expected
    assert state.notice is None
    token_ids = tokens(400)
    exact = logits_of(model, make_prompt_cache(model), token_ids)
    logits = logits_of(model, state.caches, token_ids)
    decoded = logits_of(model, state.caches, token_ids[:, :3], chunk=1)
    assert all(cache.attended == cache.offset == 403 for cache in compressed(state))
    assert all(cache.body_tokens == 256 for cache in compressed(state))
    assert mx.isfinite(decoded).all().item()
    error = (mx.linalg.norm(logits - exact) / mx.linalg.norm(exact)).item()
    assert 1e-4 < error < 0.085


@pytest.mark.parametrize("head_dim", [80, 96, 128, 256])
def test_models_of_other_head_dims(head_dim: int):
    model = tiny_models.tiny_llama(head_dim)
    token_ids = tokens(300)
    exact = logits_of(model, make_prompt_cache(model), token_ids)
    logits = logits_of(model, new_state(model, "k8v8").caches, token_ids, chunk=75)
    assert (mx.linalg.norm(logits - exact) / mx.linalg.norm(exact)).item() < 0.005


def test_boundaries_of_the_context_do_not_matter_to_a_hybrid():
    """Chunks of one token and of many leave the same kinds of state and nearly the same logits."""
    model, token_ids = tiny_models.tiny_qwen35(), tokens(200)
    one, many = (
        logits_of(model, new_state(model, "k8v8").caches, token_ids, chunk)[-1] for chunk in (1, 200)
    )
    np.testing.assert_allclose(one, many, atol=0.05)


# -- models that cannot be served ----------------------------------------------------------------------


def test_a_model_that_bypasses_the_dispatcher_gets_exact_caches_and_a_notice():
    model = tiny_models.BypassModel()
    state = new_state(model)
    assert kinds(state) == [KVCache, KVCache]
    assert state.notice == "this model's attention cannot use a compressed cache; its KV is kept exactly"
    expected = logits_of(model, make_prompt_cache(model), tokens(20))
    assert mx.array_equal(logits_of(model, state.caches, tokens(20)), expected)


def test_a_model_whose_layers_share_keys_gets_exact_caches_and_a_notice():
    model = tiny_models.tiny_gemma4()
    state = new_state(model)
    assert kinds(state) == [R, K, R, K]
    assert state.notice is not None
    assert mx.isfinite(logits_of(model, state.caches, tokens(20))).all().item()


def test_a_model_without_full_attention_gets_exact_caches_and_a_notice():
    state = new_state(tiny_models.SlidingModel())
    assert kinds(state) == [R, R]
    assert state.notice == "this model has no full-attention layer to compress; its state is kept exactly"


def test_the_exact_profile_needs_no_notice():
    state = new_state(tiny_models.tiny_llama(), "exact")
    assert kinds(state) == [KVCache, KVCache]
    assert state.notice is None


# -- the state of a whole model ------------------------------------------------------------------------


def test_layers_with_equal_embeddings_share_one_table():
    state = new_state(tiny_models.tiny_llama(layers=3))
    assert len(state.rope_tables) == 1
    assert {id(cache.key_body.rope) for cache in compressed(state)} == {id(state.rope_tables[0])}


def test_state_bytes_are_those_of_caches_and_tables():
    model = tiny_models.tiny_llama()
    state = new_state(model)
    assert state.nbytes == 0
    logits_of(model, state.caches, tokens(400))
    tables = sum(table.nbytes for table in state.rope_tables)
    assert tables == 1024 * 64 * 4
    assert state.nbytes == tables + sum(array.nbytes for cache in state.caches for array in cache.state)


@pytest.mark.parametrize("n", [1, 150, 399, 400])
def test_trim_takes_every_layer_back(n: int):
    model = tiny_models.tiny_llama()
    state = new_state(model)
    logits_of(model, state.caches, tokens(400))
    assert state.trim(n)
    assert [cache.offset for cache in state.caches] == [400 - n] * 2


@pytest.mark.parametrize(
    "model", [tiny_models.tiny_gemma3(), tiny_models.tiny_qwen35()], ids=["gemma", "qwen"]
)
def test_a_state_that_cannot_go_back_is_left_as_it_was(model: nn.Module):
    state = new_state(model)
    logits_of(model, state.caches, tokens(100))
    before = [cache.offset for cache in state.caches if hasattr(cache, "offset")]
    assert state.trim(0)
    assert not state.trim(1)
    assert [cache.offset for cache in state.caches if hasattr(cache, "offset")] == before


def identity_of(model: nn.Module, profile: str) -> dict[str, object]:
    return new_state(model, profile).identity()


def test_identity_names_the_constants_of_the_codecs_in_use():
    model = tiny_models.tiny_llama(80)
    constants = {
        name: identity_of(model, name)["codec constants"]
        for name in ("turbo4", "k4v2", "v-only", "affine4", "tq-mse3+polar", "k4v4,boundary=1", "exact")
    }
    assert {name: sorted(held) for name, held in constants.items()} == {
        "turbo4": ["turbo4@80"],
        "k4v2": ["turbo2@80", "turbo4@80"],
        "v-only": ["turbo3@80"],
        "affine4": ["affine4/64@80"],
        "tq-mse3+polar": ["polar@80", "tq-mse3@80"],
        "k4v4,boundary=1": ["turbo8@80"],  # both layers are at the boundary
        "exact": [],
    }
    # 96 signs, padded from 80: the first of those that never change.
    signs = hashlib.sha256(b"signs 12\n" + bytes.fromhex("13a5e8b33e872c2efdaf935c")).hexdigest()
    assert constants["turbo4"]["turbo4@80"] == constants["v-only"]["turbo3@80"] == signs
    assert constants["affine4"]["affine4/64@80"] == hashlib.sha256(b"").hexdigest()  # it has none
    rotation = dense_rotation(80).astype("<f4").tobytes()
    levels = codec_for(CodecSpec("tq-mse", 3), 80, mx.float16).constants()["levels"]
    expected = hashlib.sha256(b"levels 32\n" + levels + b"rotation 25600\n" + rotation)
    assert constants["tq-mse3+polar"]["tq-mse3@80"] == expected.hexdigest()


def test_identity_differs_with_all_that_decides_how_tokens_are_held():
    model, dtype = tiny_models.tiny_llama(), mx.bfloat16
    base = identity_of(model, "turbo4")
    assert identity_of(model, "k4v4") == base  # another name for the same
    names = ["turbo3", "k8v4", "exact", "affine4", "affine4/32", "tq-mse4", "k4v4,sink=5", "k4v4,window=64"]
    names += ["k4v4,boundary=1", "k4v4,raised=0", "k4v4,recurrent=8"]
    others = [identity_of(model, name) for name in names]
    others.append(KVFactory(model, dtype).new(get_profile("turbo4")).identity())
    others.append(identity_of(tiny_models.tiny_llama(128), "turbo4"))
    others.append(identity_of(tiny_models.tiny_llama(layers=3), "turbo4"))
    assert all(other != base for other in others)
    assert len({json.dumps(other) for other in others}) == len(others)
