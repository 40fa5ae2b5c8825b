"""What is measured once for a model: where keys matter, and whether a profile costs it too much."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import tiny_models

from satchel.config.profiles import PROFILES, get_profile
from satchel.engine import calibration
from satchel.engine.calibration import Calibration, measure_kl, measure_sensitivity
from satchel.engine.kv_state import KVFactory
from satchel.engine.model import LoadedModel
from satchel.errors import UsageError

TOKENS = np.random.default_rng(3).integers(0, tiny_models.VOCABULARY, 200).tolist()
RAISED = "raised=17.18.20"  # where keys matter most in SmolLM2-135M


@pytest.fixture(autouse=True)
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    """The file of figures, in a cache directory of the test's own."""
    monkeypatch.setenv("SATCHEL_CACHE", str(tmp_path))

    def found() -> Path:
        (path,) = (tmp_path / "calibration").glob("*.json")
        return path

    return found


@pytest.fixture
def stranger(smollm: LoadedModel) -> LoadedModel:
    """A real model that is not taken on trust."""
    return replace(smollm, name="stranger")


def never(*args: object) -> list[float]:
    raise AssertionError("measured again")


def test_a_real_model_passes_and_its_figures_are_kept(
    stranger: LoadedModel, record: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    profile, notice = Calibration(stranger).choose(get_profile("turbo4"))
    assert (profile.name, profile.asked, notice) == (f"turbo4,{RAISED}", "turbo4", None)
    figures = json.loads(record().read_text())
    assert len(figures["sensitivity"]) == 30
    assert 0.0003 < figures["turbo4"][0] < 0.003

    monkeypatch.setattr(calibration, "measure_sensitivity", never)
    monkeypatch.setattr(calibration, "measure_kl", never)
    assert Calibration(stranger).choose(get_profile("turbo4")) == (profile, None)


def test_the_embedded_model_is_known_to_pass(smollm: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "measure_kl", never)
    profile, notice = Calibration(smollm).choose(get_profile("turbo4,window=256"))
    assert (profile.name, profile.window, notice) == (f"turbo4,window=256,{RAISED}", 256, None)


@pytest.mark.parametrize(
    ("costs", "asked", "chosen"),
    [
        ({"turbo2": 9.0, "turbo3": 0.0}, "turbo2", "turbo3"),
        ({"turbo2": 9.0, "turbo3": 9.0, "turbo4": 0.0}, "turbo2,boundary=1", "turbo4,boundary=1"),
        ({"turbo4": 9.0, "k8v4": float("inf")}, "turbo4", "exact"),
    ],
)
def test_the_next_safer_profile_is_taken_and_a_line_says_so(
    stranger: LoadedModel,
    monkeypatch: pytest.MonkeyPatch,
    costs: dict[str, float],
    asked: str,
    chosen: str,
) -> None:
    monkeypatch.setattr(
        calibration, "measure_sensitivity", lambda factory, ids: [float(i) for i in range(30)]
    )
    monkeypatch.setattr(
        calibration, "measure_kl", lambda factory, ids, profile: costs[profile.asked.partition(",")[0]]
    )
    profile, notice = Calibration(stranger).choose(get_profile(asked))
    assert profile.asked == chosen
    name, safer = asked.partition(",")[0], chosen.partition(",")[0]
    assert notice == f"{name} would cost this model too much quality: {safer} is used"


@pytest.mark.parametrize("name", ["k2v2", "tq-mse2", "exact", "v-only", "turbo4,raised=5"])
def test_what_was_spelt_out_is_not_checked(
    stranger: LoadedModel, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(calibration, "measure_kl", never)
    assert Calibration(stranger).choose(get_profile(name)) == (get_profile(name), None)


@pytest.mark.parametrize("content", ["", "[]", '{"sensitivity": 3}', '{"sensitivity": [1.0]}', "\x00", '{"a'])
def test_a_record_that_is_not_one_is_measured_anew(
    smollm: LoadedModel, record: Callable[[], Path], monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.setattr(
        calibration, "measure_sensitivity", lambda factory, ids: [float(i) for i in range(30)]
    )
    Calibration(smollm).choose(get_profile("turbo4"))
    record().write_text(content)
    profile, _ = Calibration(smollm).choose(get_profile("turbo4"))
    assert profile.raised == (27, 28, 29)
    assert json.loads(record().read_text())["sensitivity"][29] == 29.0


def test_sensitivity_grows_with_the_square_of_the_queries() -> None:
    model = tiny_models.tiny_llama(64)
    before = measure_sensitivity(KVFactory(model, mx.float16), TOKENS)
    last = model.layers[-1].self_attn.q_proj
    last.weight = last.weight * 3
    after = measure_sensitivity(KVFactory(model, mx.float16), TOKENS)
    assert after[-1] / before[-1] == pytest.approx(9, rel=1e-3)
    assert after[:-1] == before[:-1]


def test_kl_is_nothing_for_an_exact_cache_and_more_for_fewer_bits() -> None:
    factory = KVFactory(tiny_models.tiny_llama(64), mx.float16)
    exact, eight, two = (
        measure_kl(factory, TOKENS, replace(get_profile(name), window=16, move=16))
        for name in ("exact", "k8v8", "k2v2")
    )
    assert exact == pytest.approx(0, abs=1e-6)
    assert 0 < eight < two / 100


def test_the_most_sensitive_layers_are_raised() -> None:
    profile = PROFILES["turbo2"].for_model([3.0, 9.0, 1.0, 5.0, 2.0])
    assert (profile.name, profile.raised, profile.share) == ("turbo2,raised=1.3", (1, 3), 0.0)
    assert get_profile(profile.name) == profile
    assert [str(profile.for_layer(index, 5).keys) for index in range(5)] == [
        *("turbo2", "turbo3", "turbo2", "turbo3", "turbo2"),
    ]
    assert {str(profile.for_layer(index, 5).values) for index in range(5)} == {"turbo2"}


def test_a_codec_that_cannot_hold_the_models_vectors_is_refused() -> None:
    factory = KVFactory(tiny_models.tiny_llama(72), mx.float16)
    with pytest.raises(
        UsageError, match="polar does not fit this model: head_dim is 72: polar takes multiples"
    ):
        factory.new(get_profile("polar"))
