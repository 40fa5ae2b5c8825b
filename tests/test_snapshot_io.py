"""States out to plain arrays and back: bit for bit, or a ValueError."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from functools import cache, partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import tiny_models
from mlx.utils import tree_flatten
from state_parts import export_block, export_tail, restore

from satchel.config.profiles import get_profile
from satchel.engine.checkpoint import current_state
from satchel.engine.kv_state import KVFactory, KVState
from satchel.engine.part_layout import Part, basis_of
from satchel.engine.restorer import Restorer
from satchel.engine.snapshot_io import Exporter, NonFiniteError, settled_tokens

BLOCK = 256
CONTEXTS = (1, 3, 5, 127, 129, 192, 193, 255, 256, 257, 1000)
PROFILES = ("turbo4", "k8v4", "v-only", "k4v16", "exact")
CODECS = (
    "turbo2", "turbo3", "turbo8", "affine2/32", "affine3/64", "affine4/32", "affine8/128",
    "tq-mse1", "tq-mse2", "tq-mse3", "tq-mse4", "tq-prod2", "tq-prod3", "tq-prod4",
    "qjl1", "qjl3+qjl3", "qjl8+turbo3", "polar", "exact+tq-prod3", "tq-mse3+exact",
)  # fmt: skip
FAMILIES = ("affine3/64", "tq-mse3", "tq-prod3", "qjl3+qjl3", "polar")  # one of each kind of codec
MODELS = {
    "llama": tiny_models.tiny_llama,
    "four layers": partial(tiny_models.tiny_llama, layers=4),
    "biased": tiny_models.tiny_biased,
    "gemma3": tiny_models.tiny_gemma3,
    "qwen35": tiny_models.tiny_qwen35,
    "nemotron": tiny_models.tiny_nemotron,
}
TOKENS = np.random.default_rng(2).integers(0, tiny_models.VOCABULARY, 1100).tolist()


@cache
def factory(model: str, dtype: mx.Dtype = mx.float16) -> KVFactory:
    return KVFactory(MODELS[model](), dtype)


def read(model: nn.Module, state: KVState, start: int, stop: int, chunk: int = 512) -> mx.array:
    """Read tokens [start, stop) in chunks; the last token's logits."""
    logits = mx.zeros(0)
    for first in range(start, stop, chunk):
        logits = model(mx.array([TOKENS[first : min(first + chunk, stop)]]), cache=state.caches)[0, -1]
        mx.eval(logits, [cache.state for cache in state.caches])
    return logits


def read_state(model: str, profile: str, tokens: int) -> KVState:
    state = factory(model).new(get_profile(profile))
    read(factory(model).model, state, 0, tokens)
    return state


def fed_state(profile: str, x: mx.array, dtype: mx.Dtype = mx.float16) -> KVState:
    """A state whose layers all hold keys and values `x` (1, 2, T, 64), 300 tokens at a time."""
    state = factory("llama", dtype).new(get_profile(profile))
    for layer in state.caches:
        for start in range(0, x.shape[2], 300):
            new = x[:, :, start : start + 300].astype(dtype)
            layer.update_and_fetch(new, new)
            if hasattr(layer, "attend"):
                layer.attend(mx.zeros((1, 6, new.shape[2], 64)), 1.0, None)
    return state


def export(state: KVState, tokens: int) -> list[Part]:
    settled, exporter = settled_tokens(state) // BLOCK * BLOCK, Exporter(state)
    blocks = [exporter.block(start, start + BLOCK) for start in range(0, settled, BLOCK)]
    return [*blocks, exporter.tail(settled, tokens)]


def travelled(part: Part) -> Part:
    """As a store gives it back: meta through JSON, arrays read-only copies."""
    arrays = {name: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape) for name, x in part.arrays.items()}
    return Part(part.start, part.stop, arrays, json.loads(json.dumps(part.meta)))


def restored(model: str, profile: str, parts: list[Part]) -> KVState:
    state = factory(model).new(get_profile(profile))
    restore(state, [travelled(part) for part in parts])
    return state


def held(state: KVState) -> Iterator[tuple[str, Any]]:
    """Every array and number of the state by name, without what no later token looks at."""
    for index, layer in enumerate(state.caches):
        if hasattr(layer, "arrays"):
            tree = {**layer.arrays(), "turns": getattr(layer.key_body, "mean_turns", None)}
        elif type(layer).__name__ == "KVCache" and not layer.empty():
            tree = dict(zip("kv", layer.keys_and_values(), strict=True))
        else:
            tree = current_state(layer)
        yield f"{index}.offset", getattr(layer, "offset", None)
        yield from ((f"{index}.{name}", value) for name, value in tree_flatten(tree))


def assert_same(state: KVState, other: KVState) -> None:
    one, two = dict(held(state)), dict(held(other))
    assert one.keys() == two.keys()
    for name, value in one.items():
        if isinstance(value, mx.array):
            assert value.dtype == two[name].dtype, name
            assert mx.array_equal(value, two[name]), name
        else:
            assert value == two[name], name


# -- there and back ------------------------------------------------------------------------------------


def assert_resumes(model: str, profile: str, tokens: int) -> None:
    """Restored arrays are those that were exported, and 8 more tokens have the very same logits."""
    state = read_state(model, profile, tokens)
    resumed = restored(model, profile, export(state, tokens))
    assert_same(state, resumed)
    for position in range(tokens, tokens + 8):
        expected, actual = (
            read(factory(model).model, each, position, position + 1) for each in (state, resumed)
        )
        assert mx.array_equal(expected, actual), position
    assert_same(state, resumed)


@pytest.mark.parametrize("tokens", CONTEXTS)
def test_resume_is_bit_exact_at_every_length(tokens: int):
    assert_resumes("llama", "turbo4", tokens)


@pytest.mark.parametrize("tokens", [1, 193, 600])
@pytest.mark.parametrize("model", ["biased", "gemma3", "qwen35", "nemotron"])
def test_resume_is_bit_exact_with_every_model(model: str, tokens: int):
    assert_resumes(model, "turbo4", tokens)


@pytest.mark.parametrize(("model", "tokens"), [("llama", 5), ("llama", 257), ("llama", 600), ("gemma3", 500)])
@pytest.mark.parametrize("profile", PROFILES)
def test_resume_is_bit_exact_with_every_profile(model: str, profile: str, tokens: int):
    assert_resumes(model, profile, tokens)


@pytest.mark.parametrize("profile", CODECS)
def test_resume_is_bit_exact_with_every_codec(profile: str):
    assert_resumes("llama", profile, 500)


@pytest.mark.parametrize("profile", ["turbo2", "k4v3,boundary=1", "polar,boundary=1", "k4v4,raised=0.2"])
@pytest.mark.parametrize("tokens", [5, 600])
def test_layers_of_one_state_may_have_different_codecs(profile: str, tokens: int):
    assert_resumes("four layers", profile, tokens)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", CONTEXTS)
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("model", MODELS)
def test_resume_is_bit_exact_with_every_model_profile_and_length(model: str, profile: str, tokens: int):
    assert_resumes(model, profile, tokens)


@pytest.mark.parametrize("model", MODELS)
def test_an_empty_state_is_an_empty_state(model: str):
    state = factory(model).new(get_profile("turbo4"))
    part = export_tail(state, 0, 0)
    assert part.arrays == {}
    resumed = restored(model, "turbo4", [part])
    assert all(layer.empty() for layer in resumed.caches)
    expected, actual = (read(factory(model).model, each, 0, 5) for each in (state, resumed))
    assert mx.array_equal(expected, actual)


@pytest.mark.parametrize(
    ("profile", "rows"),
    [
        ("turbo4", []),  # its grids are float16 always
        ("affine4", ["scale", "bias"]),
        ("tq-mse3", ["scale"]),
        ("tq-prod3", ["norm", "residual"]),
        ("qjl3+qjl3", ["norm"]),
        ("polar", ["radius"]),
    ],
)
def test_bfloat16_travels_bit_for_bit(profile: str, rows: list[str]):
    state = fed_state(profile, mx.random.normal((1, 2, 600, 64)), mx.bfloat16)
    parts = export(state, 600)
    assert {name for part in parts for name in part.meta["dtypes"]} == {
        f"g0.{side}.{name}" for side in "kv" for name in ["sink", "window", *rows]
    }
    assert all(part.arrays[name].dtype == np.uint16 for part in parts for name in part.meta["dtypes"])
    resumed = factory("llama", mx.bfloat16).new(get_profile(profile))
    restore(resumed, [travelled(part) for part in parts])
    assert_same(state, resumed)


def test_bfloat16_of_an_exact_state_travels_bit_for_bit():
    state = fed_state("exact", mx.random.normal((1, 2, 600, 64)), mx.bfloat16)
    for layer in state.seen:  # as a model in bfloat16 leaves them
        layer.keys, layer.values = layer.keys.astype(mx.bfloat16), layer.values.astype(mx.bfloat16)
    parts = export(state, 600)
    assert {name for part in parts for name in part.meta["dtypes"]} == {"g0.k.x", "g0.v.x"}
    assert all(array.dtype == np.uint16 for part in parts for array in part.arrays.values())
    resumed = factory("llama", mx.bfloat16).new(get_profile("exact"))
    restore(resumed, [travelled(part) for part in parts])
    assert_same(state, resumed)
    factory.cache_clear()  # its `seen` were changed


def test_layers_of_different_shapes_are_grouped_apart():
    made = factory("llama")
    state, resumed = made.new(get_profile("turbo4")), made.new(get_profile("turbo4"))
    shapes = [(1, 2, 400, 64), (1, 1, 400, 128)]
    for states in (state.caches, state.seen):
        for layer, shape in zip(states, shapes, strict=True):
            layer.trim(1000)
            x = mx.random.normal(shape)
            layer.update_and_fetch(x, x)
            layer.attend(mx.zeros(shape), 1.0, None)
    resumed.seen = state.seen
    parts = export(state, 400)
    assert [part.meta["groups"] for part in parts] == [[[0], [1]]] * 2
    restore(resumed, [travelled(part) for part in parts])
    assert_same(state, resumed)
    factory.cache_clear()  # its `seen` were changed


# -- parts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "tokens", "settled"),
    [
        ("turbo4", 195, 0),
        ("turbo4", 196, 68),
        ("turbo4", 1000, 836),
        ("exact", 195, 195),
        ("v-only", 1000, 836),
    ],
)
def test_settled_tokens(profile: str, tokens: int, settled: int):
    assert settled_tokens(read_state("llama", profile, tokens)) == settled


def test_turning_means_travel():
    state = read_state("biased", "turbo4", 600)
    assert [layer.key_body.mean_turns for layer in state.caches] == [True, True]
    parts = export(state, 600)
    assert parts[0].arrays["g0.k.turns"].tolist() == [1, 1]
    assert parts[0].arrays["g0.v.turns"].tolist() == [0, 0]
    resumed = restored("biased", "turbo4", parts)
    assert [layer.key_body.mean_turns for layer in resumed.caches] == [True, True]


def test_arrays_of_a_part():
    """Two layers, two KV heads of 64 at 4 bits: 8 words and one grid a token."""
    first, second, third, tail = export(read_state("llama", "turbo4", 1000), 1000)
    per_token = {"codes": ((2, 2, 256, 8), "uint32"), "grid": ((2, 2, 256, 1), "float16")}
    shapes = {name: (array.shape, array.dtype.name) for name, array in second.arrays.items()}
    assert shapes == {f"g0.{side}.{name}": like for side in "kv" for name, like in per_token.items()}
    assert (first.start, first.stop, third.start, third.stop) == (0, 256, 512, 768)
    assert set(first.arrays) - set(second.arrays) == {
        *(f"g0.{side}.{name}" for side in "kv" for name in ("sink", "mean", "turns")),
        *("g0.k.gain", "g0.k.noise"),
    }
    assert first.arrays["g0.k.sink"].shape == (2, 2, 4, 64)
    assert first.arrays["g0.k.codes"].shape == (2, 2, 252, 8)
    assert first.arrays["g0.k.mean"].shape == (2, 2, 1, 64)
    assert first.arrays["g0.k.gain"].shape == (2, 2, 1, 64)
    assert first.arrays["g0.k.noise"].shape == (2, 2, 1, 1)
    assert (tail.start, tail.stop) == (768, 1000)
    assert tail.arrays["g0.k.codes"].shape == (2, 2, 68, 8)
    assert tail.arrays["g0.k.window"].shape == (2, 2, 164, 64)
    assert tail.meta["groups"] == second.meta["groups"] == [[0, 1]]


@pytest.mark.parametrize(
    ("profile", "arrays"),
    [
        ("turbo3", {"codes": (6, "uint32"), "grid": (1, "float16")}),
        ("affine3/32", {"codes": (6, "uint32"), "scale": (2, "float16"), "bias": (2, "float16")}),
        ("tq-mse3", {"codes": (24, "uint8"), "scale": (1, "float16")}),
        (
            "tq-prod3",
            {
                "codes": (16, "uint8"),
                "signs": (8, "uint8"),
                "norm": (1, "float16"),
                "residual": (1, "float16"),
            },
        ),
        ("qjl3+qjl3", {"signs": (24, "uint8"), "norm": (1, "float16")}),
        ("polar", {"codes": (23, "uint8"), "radius": (4, "float16")}),
    ],
)
def test_arrays_of_each_codec(profile: str, arrays: dict[str, tuple[int, str]]):
    _, second, _ = export(read_state("four layers", profile + ",raised=9", 720), 720)
    shapes = {name: (array.shape, array.dtype.name) for name, array in second.arrays.items()}
    assert shapes == {
        f"g0.{side}.{name}": ((4, 2, 256, width), dtype)
        for side in "kv"
        for name, (width, dtype) in arrays.items()
    }


@pytest.mark.parametrize(
    ("model", "profile"),
    [
        *(("llama", profile) for profile in ("turbo4", "v-only", "exact", "tq-prod3", "polar")),
        ("gemma3", "turbo4"),
        *(pytest.param("llama", profile, marks=pytest.mark.slow) for profile in ("turbo3", "qjl2")),
        *(pytest.param("gemma3", profile, marks=pytest.mark.slow) for profile in ("exact", "tq-prod3")),
    ],
)
def test_a_block_is_the_same_whenever_it_is_exported(model: str, profile: str):
    state, blocks = factory(model).new(get_profile(profile)), []
    for start in range(0, 1000, 40):  # as turns would: every settled block is exported at once
        read(factory(model).model, state, start, start + 40)
        while (len(blocks) + 1) * BLOCK <= settled_tokens(state):
            blocks.append(export_block(state, len(blocks) * BLOCK, (len(blocks) + 1) * BLOCK))
    assert len(blocks) == 3
    for block in blocks:
        late = export_block(state, block.start, block.stop)
        assert late.meta == block.meta
        assert late.arrays.keys() == block.arrays.keys()
        assert all(np.array_equal(late.arrays[name], array) for name, array in block.arrays.items())
    resumed = restored(model, profile, [*blocks, export_tail(state, 768, 1000)])
    assert_same(state, resumed)


@pytest.mark.parametrize("kept", [2, 4, 5, 300, 700, 900])
def test_a_trimmed_state_travels_too(kept: int):
    state = read_state("llama", "turbo4", 1000)
    assert state.trim(1000 - kept)
    resumed = restored("llama", "turbo4", export(state, kept))
    assert_same(state, resumed)
    model = factory("llama").model
    for start, stop in ((kept, kept + 1), (kept + 1, kept + 200)):
        assert mx.array_equal(read(model, state, start, stop), read(model, resumed, start, stop))
    assert_same(state, resumed)


@pytest.mark.parametrize("profile", ["turbo4", "k4v3,boundary=1", "turbo2", "k2v2,boundary=1,sink=0"])
def test_a_tail_without_body_tokens_goes_with_its_blocks(profile: str):
    """Layers of different codecs look alike in it."""
    state = read_state("four layers", profile, 1000)
    assert state.trim(1000 - 256)
    block, tail = export(state, 256)
    assert (block.start, block.stop, tail.start, tail.stop) == (0, 256, 256, 256)
    assert_same(state, restored("four layers", profile, [block, tail]))


@pytest.mark.parametrize("profile", ["tq-mse3", "tq-prod2", "qjl4", "polar", "affine3/32"])
@pytest.mark.parametrize("kept", [2, 100, 300])
def test_a_trimmed_state_of_every_codec_travels_too(profile: str, kept: int):
    state = read_state("llama", profile, 500)
    assert state.trim(500 - kept)
    assert_same(state, restored("llama", profile, export(state, kept)))


def test_a_restored_state_holds_what_it_reports():
    parts = export(read_state("llama", "turbo4", 1000), 1000)
    factory("llama")
    before = mx.get_active_memory()
    state = restored("llama", "turbo4", parts)
    arrays = [array for layer in state.caches for array in layer.state]
    assert mx.get_active_memory() - before <= state.nbytes + 16_384 * len(arrays)


def test_arrays_of_a_part_lie_as_they_are_stacked():
    """A window whose axes the model has swapped is stored like any other."""
    state = factory("llama").new(get_profile("turbo4"))
    x = mx.random.normal((1, 300, 2, 64)).astype(mx.float16).swapaxes(1, 2)
    for layer in state.caches:
        layer.update_and_fetch(x, x)
    assert not np.array(state.caches[0].keys, copy=False).flags.c_contiguous
    (part,) = export(state, 300)
    assert all(array.flags.c_contiguous for array in part.arrays.values())
    assert np.array_equal(part.arrays["g0.k.window"][1], np.array(x[0, :, 4:]))


# -- exporters -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["turbo4", "exact"])
@pytest.mark.parametrize("model", ["llama", "gemma3", "qwen35"])
def test_an_exporter_shows_the_state_as_it_was(model: str, profile: str):
    """Though tokens are written in place into the arrays that it looks at."""
    state = read_state(model, profile, 590)
    read(factory(model).model, state, 590, 600, chunk=1)
    expected, exporter = export(state, 600), Exporter(state)
    read(factory(model).model, state, 600, 640, chunk=1)
    for layer in state.caches:
        if layer.is_trimmable():
            layer.trim(600)
    read(factory(model).model, state, 600, 700)
    stop = expected[-1].start
    parts = [*(exporter.block(part.start, part.stop) for part in expected[:-1]), exporter.tail(stop, 600)]
    for part, other in zip(parts, expected, strict=True):
        assert part.meta == other.meta
        assert list(part.arrays) == list(other.arrays)
        assert all(np.array_equal(array, other.arrays[name]) for name, array in part.arrays.items())


def test_exporting_changes_nothing_in_the_state():
    state, other = read_state("gemma3", "turbo4", 600), read_state("gemma3", "turbo4", 600)
    export(state, 600)
    assert_same(state, other)
    assert mx.array_equal(
        *(read(factory("gemma3").model, each, 600, 650, chunk=1) for each in (state, other))
    )


def test_a_state_travels_through_many_threads_in_any_order():
    state = read_state("llama", "turbo4", 1100)
    exporter, stop = Exporter(state), 1100
    with ThreadPoolExecutor(4) as pool:
        blocks = list(pool.map(lambda start: exporter.block(start, start + BLOCK), [768, 0, 512, 256]))
    last = blocks[0].stop if settled_tokens(state) >= 1024 else 768
    blocks = [block for block in blocks if block.stop <= last]
    resumed = factory("llama").new(get_profile("turbo4"))
    restorer = Restorer(resumed, stop, travelled(exporter.tail(last, stop)))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda part: restorer.add(travelled(part)), blocks))
    restorer.finish()
    assert restorer.checkpoint is None
    assert_same(state, resumed)


def test_blocks_that_are_missing_doubled_or_overlap_are_refused():
    first, second, tail = good_parts("llama")
    for blocks in ([], [first], [second], [first, first], [first, second, second]):
        restorer = Restorer(factory("llama").new(get_profile("turbo4")), 800, tail)
        with pytest.raises(ValueError, match="saved parts"):
            [restorer.add(block) for block in blocks]
            restorer.finish()


def test_restoring_takes_the_memory_of_the_state_and_of_one_part_once():
    state = fed_state("turbo4", mx.random.normal((1, 2, 6000, 64)))
    parts = [travelled(part) for part in export(state, 6000)]
    resumed = factory("llama").new(get_profile("turbo4"))
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    tracemalloc.start()
    restore(resumed, parts)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert state.nbytes > 2_000_000
    assert mx.get_peak_memory() - before < 1.1 * state.nbytes
    assert peak < 200_000


def test_exporting_takes_the_memory_of_one_part():
    state = fed_state("turbo4", mx.random.normal((1, 2, 6000, 64)))
    mx.eval([layer.state for layer in state.caches])
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    tracemalloc.start()
    exporter = Exporter(state)
    sizes = [
        sum(array.nbytes for array in exporter.block(start, start + BLOCK).arrays.values())
        for start in range(0, 5120, BLOCK)
    ]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert mx.get_peak_memory() - before < 100_000
    assert peak < 2 * max(sizes) + 200_000


# -- blocks alone --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "profile",
    [
        *("turbo4", "v-only", "exact", "turbo4,sink=0", "turbo3,sink=300", "turbo4,window=1"),
        *(pytest.param(name, marks=[] if name in FAMILIES else pytest.mark.slow) for name in CODECS),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("k8v4", "k4v16", "exact+turbo4")),
    ],
)
def test_blocks_alone_are_the_state_that_the_others_were_trimmed_to(profile: str):
    """It goes on, is trimmed and is saved like one that was never saved."""
    model = factory("llama").model
    state = read_state("llama", profile, 720)
    first, second, *_ = export(state, 720)
    resumed = restored("llama", profile, [first, second])
    assert state.trim(720 - 512)
    assert_same(state, resumed)
    if profile != "exact":
        layer = resumed.caches[0]
        assert (layer.offset, layer.body_stop, layer.exact_tokens) == (512, 512, layer.profile.sink)
    for stop in (513, 600, 601, 800):
        start = resumed.caches[0].offset
        logits = [read(model, each, start, stop, chunk=100) for each in (state, resumed)]
        assert mx.array_equal(*logits), stop
    assert_same(state, restored("llama", profile, export(resumed, 800)))
    for each in (state, resumed):
        assert each.trim(400)
    assert_same(state, resumed)
    assert mx.array_equal(*(read(model, each, 400, 430) for each in (state, resumed)))


@pytest.mark.parametrize("profile", ["turbo4", "k8v4,sink=0", "exact"])
def test_a_state_of_blocks_alone_is_saved_and_trimmed_before_it_goes_on(profile: str):
    first, second, *_ = export(read_state("llama", profile, 1000), 1000)
    resumed = restored("llama", profile, [first, second])
    assert settled_tokens(resumed) == 512
    again = export(resumed, 512)
    assert [(part.start, part.stop) for part in again] == [(0, 256), (256, 512), (512, 512)]
    for block, other in zip(again, (first, second), strict=False):
        assert block.meta == other.meta
        assert all(np.array_equal(block.arrays[name], array) for name, array in other.arrays.items())
    assert_same(resumed, restored("llama", profile, again))
    assert resumed.trim(100)
    assert_same(resumed, restored("llama", profile, export(resumed, 412)))


@pytest.mark.parametrize(("profile", "error"), [("k8v8", 0.02), ("turbo4", 0.3)])
def test_a_state_of_blocks_alone_is_as_close_to_the_exact_one_as_its_codec(profile: str, error: float):
    """Random weights make more of an error than trained ones; four bits are 16 times the step of eight."""
    resumed = restored("llama", profile, export(read_state("llama", profile, 800), 800)[:2])
    exact = read_state("llama", "exact", 512)
    for start, stop in ((512, 513), (513, 560), (560, 561)):
        logits, like = (read(factory("llama").model, each, start, stop) for each in (resumed, exact))
        assert mx.linalg.norm(logits - like) < error * mx.linalg.norm(like), start


@pytest.mark.parametrize("model", ["gemma3", "qwen35", "nemotron"])
def test_blocks_without_a_checkpoint_are_not_the_state_of_every_model(model: str):
    refuse(model, lambda parts: parts[:-1])


def test_blocks_of_tokens_that_are_all_kept_exactly_are_no_state():
    """Their codes would be made with another mean than those of the blocks that follow."""
    profile = "turbo4,sink=300"
    first, *_ = export(read_state("llama", profile, 800), 800)
    with pytest.raises(ValueError, match="256 tokens of the saved blocks have no codes"):
        restored("llama", profile, [first])


# -- bases ---------------------------------------------------------------------------------------------


def test_the_basis_is_a_digest_of_what_was_fixed_first():
    parts = export(read_state("llama", "turbo4", 1000), 1000)
    fixed = ["gain", "mean", "noise", "turns"]
    digest = hashlib.sha256()
    for name in [*(f"g0.k.{name}" for name in fixed), "g0.v.mean", "g0.v.turns"]:
        array = parts[0].arrays[name]
        digest.update(f"{name} {array.nbytes}\n".encode() + array.tobytes())
    assert {part.meta["basis"] for part in parts} == {digest.hexdigest()}
    assert basis_of(parts[1].arrays) == ""


@pytest.mark.parametrize(
    ("profile", "tokens"), [("exact", 1000), ("turbo4", 100), ("polar", 1000), ("affine4", 1000)]
)
def test_states_without_means_have_no_basis(profile: str, tokens: int):
    assert {part.meta["basis"] for part in export(read_state("llama", profile, tokens), tokens)} == {""}


def test_parts_whose_codes_have_other_means_do_not_go_together():
    """The tokens differ in the first body tokens, by which the means are found."""
    state = factory("llama").new(get_profile("turbo4"))
    factory("llama").model(mx.array([TOKENS[:800][::-1]]), cache=state.caches)
    first, second, tail = good_parts("llama")
    other_first, other_second, other_tail = export(state, 800)
    for parts in (
        [other_first, second, tail],
        [first, other_second, tail],
        [first, second, other_tail],
        [first, other_second],
    ):
        with pytest.raises(ValueError, match="different means"):
            restored("llama", "turbo4", parts)


@pytest.mark.parametrize("name", ["g0.k.mean", "g0.k.gain", "g0.k.noise", "g0.v.mean"])
@pytest.mark.parametrize("part", [0, 2])
def test_means_that_are_not_the_bases_are_refused(part: int, name: str):
    changed = good_parts("llama")[part].arrays[name].copy()
    changed.reshape(-1)[0] += 1
    refuse("llama", lambda parts: parts[part].arrays.update({name: changed}))


# -- values that are not finite ------------------------------------------------------------------------


QUICK = [(profile, np.nan) for profile in FAMILIES]


@pytest.mark.parametrize(
    ("profile", "bad"),
    [
        *((profile, bad) for profile in ("turbo4", "exact") for bad in (np.nan, np.inf, -np.inf)),
        *(
            pytest.param(profile, bad, marks=[] if (profile, bad) in QUICK else pytest.mark.slow)
            for profile in CODECS
            for bad in (np.nan, np.inf, -np.inf)
        ),
    ],
)
@pytest.mark.parametrize("token", [2, 100, 400, 599], ids=["sink", "first body", "later body", "window"])
def test_what_is_not_finite_is_not_saved(profile: str, token: int, bad: float):
    x = np.random.default_rng(1).standard_normal((1, 2, 600, 64)).astype(np.float32)
    x[0, 1, token, 63] = bad
    with pytest.raises(NonFiniteError):
        export(fed_state(profile, mx.array(x)), 600)


@pytest.mark.parametrize(
    ("profile", "saved"),
    [
        ("exact", True),
        ("turbo4", True),
        ("affine4", True),
        ("tq-mse4", False),
        ("tq-prod4", False),
        ("qjl4+exact", False),
        ("polar", False),
    ],
)
def test_what_is_too_large_for_its_norms_is_not_saved(profile: str, saved: bool):
    """60,000 is a float16, and the norm of 64, or of 16, such coordinates is none."""
    x = np.random.default_rng(1).standard_normal((1, 2, 600, 64)).astype(np.float32)
    x[:, :, 400] = 60_000
    state = fed_state(profile, mx.array(x))
    if saved:
        parts = export(state, 600)
        assert all(np.isfinite(array).all() for part in parts for array in part.arrays.values())
    else:
        with pytest.raises(NonFiniteError, match="infinite or not numbers"):
            export(state, 600)


# -- hostile parts -------------------------------------------------------------------------------------

Change = Callable[[list[Part]], object]  # in place, or to the list it returns


@cache
def good_parts(model: str, profile: str = "turbo4") -> list[Part]:
    """Two blocks and a tail."""
    return export(read_state(model, profile, 800), 800)


def refuse(model: str, change: Change, profile: str = "turbo4") -> None:
    parts = [
        Part(part.start, part.stop, dict(part.arrays), deepcopy(dict(part.meta)))
        for part in good_parts(model, profile)
    ]
    changed = change(parts)
    parts = changed if isinstance(changed, list) else parts
    with pytest.raises(ValueError):
        restore(factory(model).new(get_profile(profile)), parts)


def each_array(
    part: int, new: Callable[[np.ndarray], Any], profile: str = "turbo4"
) -> list[tuple[str, Change]]:
    """A change for every array of a part of the llama state."""

    def change(name: str) -> Change:
        return lambda parts: parts[part].arrays.update({name: new(parts[part].arrays[name])})

    return [(name, change(name)) for name in good_parts("llama", profile)[part].arrays]


RESHAPES: dict[str, Callable[[np.ndarray], Any]] = {
    "a layer less": lambda x: x[:1],
    "a layer more": lambda x: np.concatenate([x, x[:1]]),
    "a head less": lambda x: x[:, :1] if x.ndim > 1 else x[:1],
    "a head more": lambda x: np.concatenate([x, x[:, :1]], axis=1) if x.ndim > 1 else x[None],
    "a token less": lambda x: x[:, :, :-1] if x.ndim > 2 else x[:0],
    "a token more": lambda x: np.concatenate([x, x[:, :, :1]], axis=2) if x.ndim > 2 else x[None, None],
    "narrower": lambda x: x[..., :-1],
    "wider": lambda x: np.concatenate([x, x[..., :1]], axis=-1),
    "flat": lambda x: x.reshape(-1, 1, 1),
    "empty": lambda x: x[:0],
    "a scalar": lambda x: x.reshape(-1)[0].reshape(()),
    "nothing": lambda x: None,
    "a list": lambda x: x.tolist(),
    "text": lambda x: np.full(x.shape, "x"),
    "objects": lambda x: np.full(x.shape, None),
    "float64": lambda x: x.astype(np.float64),
    "int64": lambda x: x.astype(np.int64),
    "complex": lambda x: x.astype(np.complex64),
    "the other endianness": lambda x: x.astype(x.dtype.newbyteorder()) if x.itemsize > 1 else x[:0],
    "times": lambda x: np.zeros(x.shape, "datetime64[s]"),
    "records": lambda x: np.zeros(x.shape, [("a", "i4")]),
}


@pytest.mark.parametrize("reshape", RESHAPES.values(), ids=RESHAPES.keys())
@pytest.mark.parametrize("part", [0, 1, 2])
def test_arrays_of_wrong_shape_or_dtype_are_refused(part: int, reshape: Callable[[np.ndarray], Any]):
    for _, change in each_array(part, reshape):
        refuse("llama", change)


@pytest.mark.parametrize("reshape", RESHAPES.values(), ids=RESHAPES.keys())
@pytest.mark.parametrize("profile", ["tq-prod3+affine3/32", "qjl2+polar", "tq-mse3+exact"])
def test_rows_of_wrong_shape_or_dtype_are_refused(profile: str, reshape: Callable[[np.ndarray], Any]):
    for _, change in each_array(1, reshape, profile):
        refuse("llama", change, profile)


@pytest.mark.parametrize("profile", ["turbo4", "tq-prod3+affine3/32", "qjl2+polar", "exact"])
def test_arrays_missing_everywhere_are_refused(profile: str):
    for name in {name for part in good_parts("llama", profile) for name in part.arrays}:
        refuse(
            "llama",
            lambda parts, name=name: [part.arrays.pop(name, None) for part in parts] and None,
            profile,
        )


@pytest.mark.parametrize("part", [0, 1, 2])
def test_missing_arrays_are_refused(part: int):
    for name in good_parts("llama")[part].arrays:
        refuse("llama", lambda parts, name=name: without(parts[part].arrays, name))


@pytest.mark.parametrize("name", ["g0.k.mean", "g0.v.turns", "g0.k.gain", "g0.k.noise"])
def test_a_missing_mean_is_refused(name: str):
    refuse("llama", lambda parts: [without(part.arrays, name) for part in (parts[0], parts[2])] and None)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "int32", "float16", "float32"])
def test_arrays_of_another_plain_dtype_are_refused(dtype: str):
    for part, names in (
        (0, ["k.sink", "v.codes"]),
        (1, ["k.codes", "v.grid"]),
        (2, ["v.window", "k.mean", "k.gain", "k.noise"]),
    ):
        for name in names:
            array = good_parts("llama")[part].arrays[f"g0.{name}"]
            if array.dtype != dtype:
                with np.errstate(over="ignore", invalid="ignore"):
                    changed = array.astype(dtype)
                refuse(
                    "llama", lambda parts, p=part, n=name, x=changed: parts[p].arrays.update({f"g0.{n}": x})
                )


def without(held: Any, name: str) -> None:
    del held[name]


def set_everywhere(key: str, value: object) -> Change:
    return lambda parts: [replace(part, meta=dict(part.meta) | {key: value}) for part in parts]


def drop_everywhere(key: str) -> Change:
    return lambda parts: [
        replace(part, meta={k: v for k, v in part.meta.items() if k != key}) for part in parts
    ]


@pytest.mark.parametrize(
    "groups",
    [
        None, 5, "01", {}, [], [[]], [0, 1], [[0]], [[0, 0]], [[1, 1]], [[0, 1, 1]], [[0, 1], [0, 1]],
        [[0, 1], [0]],
        [[0, 2]], [[0, -1]], [[-2, -1]], [["0", "1"]], [[0.0, 1.0]], [[None, 1]], [[0, 10**30]], [[[0], [1]]],
        [[0], [1]], [[], [0, 1]], {"0": [0, 1]}, [[0, 1, 2, 3, 4, 5, 6, 7]],
    ],
    ids=str,
)  # fmt: skip
def test_groups_that_are_not_this_models_are_refused(groups: object):
    refuse("llama", set_everywhere("groups", groups))


@pytest.mark.parametrize("model", ["llama", "gemma3", "qwen35"])
@pytest.mark.parametrize(
    "change",
    [
        *(drop_everywhere(key) for key in ("groups", "layers", "dtypes", "basis")),
        *(set_everywhere("basis", value) for value in (None, "", "0" * 64, [])),
        *(
            set_everywhere(key, value)
            for key in ("layers", "dtypes")
            for value in (None, 3, [1], {"0": None}, {"x": []}, {"99": []}, {"-1": []}, {"0": {"array": "x"}})
            if not (key == "dtypes" and isinstance(value, dict))
        ),
        lambda parts: parts[0].meta.update({"groups": []}),
        lambda parts: parts[::-1],
        lambda parts: parts[1:],
        lambda parts: [parts[0], parts[0], *parts[1:]],
        lambda parts: [*parts, parts[-1]],
        lambda parts: [parts[1], parts[0], parts[2]],
        lambda parts: [*parts[:-1], replace(parts[-1], stop=799)],
        lambda parts: [*parts[:-1], replace(parts[-1], stop=0)],
        lambda parts: [*parts[:-1], replace(parts[-1], arrays={})],
        lambda parts: [replace(part, arrays={}) for part in parts],
    ],
)  # fmt: skip
def test_parts_that_do_not_make_a_state_are_refused(model: str, change: Change):
    refuse(model, change)


def layer_trees(model: str) -> dict[str, Any]:
    return deepcopy(good_parts(model)[-1].meta["layers"])


def nested(depth: int) -> list[Any]:
    tree: list[Any] = []
    for _ in range(depth):
        tree = [tree]
    return tree


@pytest.mark.parametrize("model", ["gemma3", "qwen35"])
@pytest.mark.parametrize(
    "value",
    [None, "x", 10**30, -1, 1.5, True, [], {}, {"array": 3}, {"array": None}, nested(900)],
    ids=lambda v: str(v)[:12],
)
def test_layer_states_built_otherwise_are_refused(model: str, value: object):
    """Every leaf of the first layer's state is replaced in turn, and the whole."""
    tree = layer_trees(model)["0"]
    branches = [tree, *(item for item in tree if isinstance(item, list))]
    for branch in branches:
        for number, leaf in enumerate(branch):
            if leaf != value:
                branch[number] = value
                changed = layer_trees(model) | {"0": tree}
                refuse(model, lambda parts, new=changed: parts[-1].meta.update({"layers": new}))
                branch[number] = leaf
    refuse(model, lambda parts: parts[-1].meta["layers"].update({"0": value}))


@pytest.mark.parametrize("model", ["gemma3", "qwen35"])
@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_layer_arrays_of_another_shape_are_refused(model: str, axis: int):
    for name, array in good_parts(model)[-1].arrays.items():
        if name.startswith("L") and axis < array.ndim:
            shorter = np.take(array, range(array.shape[axis] - 1), axis)
            refuse(model, lambda parts, n=name, x=shorter: parts[-1].arrays.update({n: x}))


def test_a_compressed_layer_cannot_come_as_a_whole_state():
    def change(parts: list[Part]) -> None:
        for part in parts:
            part.meta["groups"] = [[2]]
            part.arrays.update({name: x[:1] for name, x in part.arrays.items() if name.startswith("g")})
        parts[-1].meta["layers"]["5"] = parts[-1].meta["layers"]["0"]

    refuse("gemma3", change)


def test_parts_of_another_profile_or_model_are_refused():
    for model, profile in (
        ("llama", "turbo3"),
        ("llama", "exact"),
        ("llama", "v-only"),
        ("llama", "affine4"),
        ("llama", "tq-mse4"),
        ("llama", "polar"),
        ("gemma3", "turbo4"),
        ("qwen35", "turbo4"),
    ):
        parts = export(read_state(model, profile, 300), 300)
        with pytest.raises(ValueError, match="saved"):
            restore(factory("llama").new(get_profile("turbo4")), parts)


def test_a_mean_that_turns_is_refused_where_no_rope_is_known() -> None:
    """Without the table it would be taken for a plain mean, and every score would be wrong."""
    factory = KVFactory(tiny_models.tiny_llama(64), mx.float16)
    state, empty = factory.new(get_profile("k4v4")), factory.new(get_profile("k4v4"))
    factory.model(mx.array([TOKENS[:300]]), cache=state.caches)
    part = export_tail(state, 0, 300)
    for layer in empty.caches:
        layer.key_body.rope = None
    turns = {name: np.ones_like(array) for name, array in part.arrays.items() if name.endswith("k.turns")}
    assert turns
    with pytest.raises(ValueError, match="saved mean turns with the position"):
        restore(empty, [Part(0, 300, {**part.arrays, **turns}, part.meta)])
