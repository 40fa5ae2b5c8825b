"""What compression costs in quality: the protocol of `bench/kv.py`, 64 teacher-forced tokens at a time."""

from __future__ import annotations

import numpy as np
import pytest
from kv import caches_by_name, compare, log_probs, read
from mlx_lm.models.cache import make_prompt_cache

from satchel.config.profiles import get_profile
from satchel.engine.kv_state import KVFactory
from satchel.engine.model import LoadedModel

CHUNK = 64
LIMITS = {"turbo4": 0.003, "turbo3": 0.016, "turbo2": 0.09, "k8v4": 0.0006}  # mean KL in nats


def check(model: LoadedModel, token_ids: list[int], profiles: dict[str, float]) -> None:
    prefill = len(token_ids) * 3 // 4
    targets = np.array(token_ids[prefill + 1 :])
    exact = log_probs(model, lambda: make_prompt_cache(model.model), token_ids, prefill, CHUNK)
    for name, make in caches_by_name(model, list(profiles)).items():
        other = log_probs(model, make, token_ids, prefill, CHUNK)
        kl, _, top_1, perplexity_ratio = compare(exact, other, targets)
        assert 0 < kl <= profiles[name], f"{name}: KL {kl}"
        if name == "turbo4":
            assert top_1 >= 0.96
            assert perplexity_ratio == pytest.approx(1, abs=0.02)


def test_turbo4_is_as_good_as_exact_on_a_short_text(smollm: LoadedModel, pydoc: list[int]) -> None:
    check(smollm, pydoc[:640], {"turbo4": LIMITS["turbo4"]})


@pytest.mark.slow
def test_every_profile_keeps_to_its_limit(smollm: LoadedModel, pydoc: list[int]) -> None:
    check(smollm, pydoc[:2048], LIMITS)


@pytest.mark.slow
def test_biased_keys_keep_to_the_limit(qwen: LoadedModel) -> None:
    """Qwen2.5's key bias makes other 4-bit caches collapse."""
    check(qwen, pydoc_ids(qwen)[:1024], {"turbo4": 0.005})


def test_the_default_profile_holds_few_bits(smollm: LoadedModel, pydoc: list[int]) -> None:
    """4.5 bits in the body; 188 tokens of window, 4 of sink and the means come on top."""
    state = KVFactory(smollm.model, smollm.cache_dtype).new(get_profile("turbo4"))
    read(smollm, state.caches, pydoc[:512], 512)
    body_tokens = 512 - 4 - 188
    per_token = 30 * 3 * 64 * 2
    means = 30 * 2 * 3 * 64 * 32
    bits = 8 * sum(cache.nbytes for cache in state.caches)
    assert bits == per_token * (body_tokens * 4.5 + 192 * 16) + means


def pydoc_ids(model: LoadedModel) -> list[int]:
    from common import texts

    return texts(model, 2048)["pydoc"]


@pytest.fixture(scope="module")
def pydoc(smollm: LoadedModel) -> list[int]:
    return pydoc_ids(smollm)
