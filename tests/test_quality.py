"""What compression costs in quality, by the protocol of `satchel bench kv`, 16 tokens at a time."""

from __future__ import annotations

import pytest

from satchel.config.profiles import get_profile
from satchel.engine.kv_state import KVFactory
from satchel.engine.model import LoadedModel
from satchel.laboratory.caches import caches_by_name, read
from satchel.laboratory.quality import Reference, quality
from satchel.laboratory.texts import token_ids as text_ids

CHUNK = 16  # the most that takes the packed path, as single tokens do
LIMITS = {"turbo4": 0.0015, "turbo3": 0.008, "turbo2": 0.04, "k8v4": 0.0006}  # mean KL in nats


def check(model: LoadedModel, token_ids: list[int], profiles: dict[str, float]) -> None:
    reference = Reference.of(model, "pydoc", token_ids, CHUNK)
    for name, candidate in caches_by_name(model, list(profiles)).items():
        found = quality(model, candidate, reference)
        assert 0 < found.kl_mean <= profiles[name], f"{name}: KL {found.kl_mean}"
        if name == "turbo4":
            assert found.top_1 >= 0.96
            assert found.perplexity_ratio == pytest.approx(1, abs=0.02)


def test_turbo4_is_as_good_as_exact_on_a_short_text(smollm: LoadedModel, pydoc: list[int]) -> None:
    check(smollm, pydoc[:640], {"turbo4": LIMITS["turbo4"], "turbo2": LIMITS["turbo2"]})


@pytest.mark.slow
def test_every_profile_keeps_to_its_limit(smollm: LoadedModel, pydoc: list[int]) -> None:
    check(smollm, pydoc[:2048], LIMITS)


@pytest.mark.slow
def test_biased_keys_keep_to_the_limit(qwen: LoadedModel) -> None:
    """Qwen2.5's key bias makes other 4-bit caches collapse."""
    check(qwen, pydoc_ids(qwen)[:1024], {"turbo4": 0.003, "turbo3": 0.018, "turbo2": 0.09})


def test_the_default_profile_holds_few_bits(smollm: LoadedModel, pydoc: list[int]) -> None:
    """4.25 bits in the body, and 8.25 in the keys of an eighth of the layers; 188 tokens of window, 4 of sink
    and what is fixed once come on top.
    """
    state = KVFactory(smollm.model, smollm.cache_dtype).new(get_profile("turbo4"))
    read(smollm, state.caches, pydoc[:512], 512)
    heads, raised_heads = 30 * 3, 3 * 3  # 3 of 30 layers
    body = (512 - 4 - 188) * 64 * ((2 * heads - raised_heads) * 4.25 + raised_heads * 8.25)
    exact = (4 + 188) * 64 * 2 * heads * 16
    fixed = heads * (3 * 64 + 1) * 32  # two means, the keys' gains, and the mean error of a coordinate
    assert 8 * sum(cache.nbytes for cache in state.caches) == body + exact + fixed


def pydoc_ids(model: LoadedModel) -> list[int]:
    return text_ids(model, "pydoc", 2048)


@pytest.fixture(scope="module")
def pydoc(smollm: LoadedModel) -> list[int]:
    return pydoc_ids(smollm)
