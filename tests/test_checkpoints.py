"""Going back to a checkpoint: layers that are not kept token by token are again what they were."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import copy, deepcopy
from functools import cache, partial
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import tiny_models
from mlx.utils import tree_flatten
from state_parts import restore

from satchel.config.profiles import get_profile
from satchel.engine.checkpoint import Checkpoint, KeptArray, current_state, host_view
from satchel.engine.kv_cache import TurboQuantKVCache
from satchel.engine.kv_state import KVFactory, KVState
from satchel.engine.part_layout import Part
from satchel.engine.recurrent import rounded
from satchel.engine.restorer import Restorer
from satchel.engine.snapshot_io import Exporter, NonFiniteError

BLOCK = 256
TOKENS = np.random.default_rng(5).integers(0, tiny_models.VOCABULARY, 1200).tolist()
MODELS: dict[str, Callable[[], Any]] = {
    "llama": tiny_models.tiny_llama,
    "gemma 3": tiny_models.tiny_gemma3,  # sliding windows of 64
    "qwen 3.5": tiny_models.tiny_qwen35,  # recurrent
    "nemotron h": tiny_models.tiny_nemotron,
    "lfm2": partial(tiny_models.tiny, "lfm2"),
    "llama 4": partial(tiny_models.tiny, "llama4"),  # chunks of 64
    "gpt-oss": partial(tiny_models.tiny, "gpt_oss"),
    "falcon h1": partial(tiny_models.tiny, "falcon_h1"),  # lists of a recurrent cache and a full one
    "mamba 2": partial(tiny_models.tiny, "mamba2"),
}
HYBRIDS = [name for name in MODELS if name != "llama"]
WITH_BLOCKS = [name for name in HYBRIDS if name not in ("falcon h1", "mamba 2")]
# The checkpoint's token, how many are read at once after it, and how many in all: past the end of a window
# or a chunk, from before and from after its first one.
LATER = [(20, 1, 60), (20, 64, 80), (130, 1, 12), (130, 64, 80)]


def cases(models: list[str], everywhere: str, elsewhere: dict[str, tuple[str, ...]]) -> list[Any]:
    """Models with profiles: the one for all of them, others for some, and for all where there is time."""
    return [
        pytest.param(model, profile, marks=[] if model in quick else pytest.mark.slow)
        for profile, quick in {everywhere: models, **elsewhere}.items()
        for model in models
    ]


@cache
def factory(model: str) -> KVFactory:
    return KVFactory(MODELS[model](), mx.float16)


def new(model: str, profile: str) -> KVState:
    return factory(model).new(get_profile(profile))


def read(model: str, state: KVState, start: int, stop: int, chunk: int = 64) -> mx.array:
    """Read tokens [start, stop) in chunks; the logits after each."""
    outs = []
    for first in range(start, stop, chunk):
        token_ids = mx.array([TOKENS[first : min(first + chunk, stop)]])
        outs.append(factory(model).model(token_ids, cache=state.caches)[0])
        mx.eval(outs[-1], [layer.state for layer in state.caches])
    return mx.concatenate(outs)


def leaves(tree: Any) -> list[np.ndarray]:
    """Copies of all arrays of a checkpoint's layers, in order."""
    if isinstance(tree, KeptArray):
        return [array.copy() for array in tree.arrays.values()]
    if isinstance(tree, dict):
        return [leaf for item in tree.values() for leaf in leaves(item)]
    return [leaf for item in tree for leaf in leaves(item)] if isinstance(tree, list) else []


def held(state: KVState) -> dict[str, Any]:
    """Every array and number of the state, without what no later token looks at."""
    found: dict[str, Any] = {}
    for index, layer in enumerate(state.caches):
        if isinstance(layer, TurboQuantKVCache):
            tree: Any = layer.arrays()
        elif type(layer).__name__ == "CacheList":
            tree = [_used(inner) for inner in layer.caches]
        else:
            tree = _used(layer)
        found |= {f"{index}.{name}": value for name, value in tree_flatten(tree)}
        found[f"{index}.offset"] = getattr(layer, "offset", None)
    return found


def _used(layer: Any) -> Any:
    growing = type(layer).__name__ in ("KVCache", "ChunkedKVCache") and not layer.empty()
    return layer.keys_and_values() if growing else current_state(layer)


def assert_same(state: KVState, other: KVState, atol: float = 0.0) -> None:
    one, two = held(state), held(other)
    assert one.keys() == two.keys()
    for name, value in one.items():
        if isinstance(value, mx.array):
            assert value.shape == two[name].shape, name
            assert mx.allclose(value, two[name], rtol=0, atol=atol), name
        else:
            assert value == two[name], name


def travelled(part: Part) -> Part:
    """As a store gives it back: meta through JSON, arrays read-only copies."""
    arrays = {name: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape) for name, x in part.arrays.items()}
    return Part(part.start, part.stop, arrays, json.loads(json.dumps(part.meta)))


# -- in memory -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_only_states_with_layers_that_are_whole_need_checkpoints(model: str):
    state = new(model, "turbo4")
    assert state.needs_checkpoints == (model != "llama")
    read(model, state, 0, 100)
    checkpoint = state.checkpoint(100)
    kept = [type(layer).__name__ in ("TurboQuantKVCache", "KVCache") for layer in state.caches]
    assert [index in checkpoint.layers for index in range(len(kept))] == [not flag for flag in kept]


@pytest.mark.parametrize(("first", "chunk", "more"), LATER)
@pytest.mark.parametrize("model", HYBRIDS)
def test_what_is_read_later_changes_no_checkpoint(model: str, first: int, chunk: int, more: int):
    """Single tokens are written into a window, or behind it, in place."""
    state = new(model, "exact")
    read(model, state, 0, first)
    read(model, state, first, first + 3, chunk=1)
    checkpoint = state.checkpoint(first + 3)
    before = leaves(dict(checkpoint.layers))
    assert before
    read(model, state, first + 3, first + more, chunk)
    after = leaves(dict(checkpoint.layers))
    assert all(np.array_equal(old, now) for old, now in zip(before, after, strict=True))


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16, mx.int64])
def test_a_view_keeps_the_values_of_now(dtype: mx.Dtype):
    x = mx.arange(12).reshape(3, 4).astype(dtype)
    view = host_view(x)
    expected = view.copy()
    x[1:2] = mx.ones((1, 4), dtype)
    mx.eval(x)
    assert np.array_equal(view, expected)
    assert not np.array_equal(host_view(x), expected)


def test_a_view_is_the_arrays_own_memory():
    x = mx.zeros((1000, 1000))
    mx.eval(x)
    before = mx.get_active_memory()
    view = host_view(x)
    assert mx.get_active_memory() == before
    assert view.ctypes.data == np.array(x, copy=False).ctypes.data


@pytest.mark.parametrize(("first", "chunk", "more"), LATER)
@pytest.mark.parametrize("model", MODELS)
def test_a_state_goes_on_from_a_checkpoint_as_one_that_read_no_more(
    model: str, first: int, chunk: int, more: int
):
    """Twice from the same checkpoint: what the first time wrote in place is not in it."""
    state, fresh = new(model, "exact"), new(model, "exact")
    for each in (state, fresh):
        read(model, each, 0, first)
    checkpoint = state.checkpoint(first)
    read(model, state, first, first + more, chunk)
    again = first + min(8 * chunk, 40)
    expected = read(model, fresh, first, again, chunk)
    for _ in range(2):
        state.rewind(checkpoint)
        np.testing.assert_allclose(read(model, state, first, again, chunk), expected, atol=1e-5)
        assert_same(state, fresh, atol=1e-5)


@pytest.mark.parametrize("model", HYBRIDS)
def test_a_compressed_state_goes_back_too(model: str):
    """The window is not refilled from codes, so its full-attention layers are as after a trim."""
    state, fresh = new(model, "k8v8"), new(model, "k8v8")
    for each in (state, fresh):
        read(model, each, 0, 250)
    checkpoint = state.checkpoint(250)
    read(model, state, 250, 330)
    state.rewind(checkpoint)
    logits, expected = (read(model, each, 250, 290) for each in (state, fresh))
    assert mx.linalg.norm(logits - expected) < 0.03 * mx.linalg.norm(expected)


def test_a_checkpoint_of_an_eight_bit_profile_is_rounded_as_it_is_stored():
    state = new("qwen 3.5", "turbo4,recurrent=8")
    read("qwen 3.5", state, 0, 100)
    inputs, matrix = state.caches[0].cache
    checkpoint = state.checkpoint(100)
    assert mx.array_equal(state.caches[0].cache[1], matrix)  # the state itself is not
    (kept_inputs, kept_matrix), *_ = checkpoint.layers[0]
    assert set(kept_inputs.arrays) == {""}
    dtypes = {name: array.dtype.name for name, array in kept_matrix.arrays.items()}
    assert dtypes == {"levels": "uint8", "steps": "float32"}
    read("qwen 3.5", state, 100, 200)
    state.rewind(checkpoint)
    assert mx.array_equal(state.caches[0].cache[0], inputs)
    assert mx.array_equal(state.caches[0].cache[1], rounded(matrix))


def test_checkpoints_of_other_layers_or_of_more_tokens_are_refused():
    state, same = new("gemma 3", "turbo4"), new("gemma 3", "turbo4")
    for each in (state, same):
        read("gemma 3", each, 0, 100)
    checkpoint = state.checkpoint(100)
    for each in (state, same):
        read("gemma 3", each, 100, 150)
    for wrong in (
        Checkpoint(151, checkpoint.layers),
        Checkpoint(100, {}),
        Checkpoint(100, {**checkpoint.layers, 2: checkpoint.layers[0]}),
        Checkpoint(100, {index: tree for index, tree in checkpoint.layers.items() if index}),
    ):
        with pytest.raises(ValueError, match="checkpoint"):
            state.rewind(wrong)
    assert_same(state, same)


# -- in parts ------------------------------------------------------------------------------------------


@cache
def saved(model: str, profile: str = "turbo4") -> tuple[KVState, list[Part], dict[int, Checkpoint]]:
    """A state of 1,000 tokens; its blocks, each with a checkpoint, and its tail, with one of token 900."""
    state = new(model, profile)
    checkpoints = {}
    for start, stop in ((0, 256), (256, 512), (512, 768), (768, 900), (900, 1000)):
        read(model, state, start, stop)
        checkpoints[stop] = state.checkpoint(stop)
    state.round_recurrent()
    exporter = Exporter(state)
    blocks = [exporter.block(stop - BLOCK, stop, checkpoints[stop]) for stop in (256, 512, 768)]
    parts = [*blocks, exporter.tail(768, 1000, checkpoints[900])]
    return state, [travelled(part) for part in parts], checkpoints


@pytest.mark.parametrize(
    ("model", "profile"),
    cases(WITH_BLOCKS, "turbo4", {"exact": ("gemma 3", "lfm2"), "turbo2,recurrent=8": ("nemotron h",)}),
)
def test_blocks_that_end_with_a_checkpoint_are_the_state_that_was_there(model: str, profile: str):
    """Bit for bit what the whole state goes back to, however it goes on."""
    _, parts, checkpoints = saved(model, profile)
    for count in (1, 3):
        stop = count * BLOCK
        whole, resumed = new(model, profile), new(model, profile)
        restore(whole, parts)
        assert restore(resumed, parts[:count]) is None
        whole.rewind(checkpoints[stop])
        assert_same(whole, resumed)
        for start, end in ((stop, stop + 1), (stop + 1, stop + 70)):
            assert mx.array_equal(*(read(model, each, start, end) for each in (whole, resumed)))
        assert_same(whole, resumed)


@pytest.mark.parametrize(
    "model",
    # the slowest; others here are recurrent as well
    [pytest.param(name, marks=pytest.mark.slow if name == "qwen 3.5" else []) for name in WITH_BLOCKS],
)
def test_an_exact_state_of_blocks_goes_on_as_one_that_read_as_much(model: str):
    _, parts, _ = saved(model, "exact")
    resumed, fresh = new(model, "exact"), new(model, "exact")
    restore(resumed, parts[:2])
    read(model, fresh, 0, 512)
    for start, stop, chunk in ((512, 513, 1), (513, 600, 64), (600, 640, 1)):
        logits, expected = (read(model, each, start, stop, chunk) for each in (resumed, fresh))
        np.testing.assert_allclose(logits, expected, atol=1e-5)
    assert_same(resumed, fresh, atol=1e-5)


@pytest.mark.parametrize(("model", "profile"), cases(WITH_BLOCKS, "turbo4", {"exact": ("gemma 3",)}))
def test_blocks_that_end_without_one_are_not(model: str, profile: str):
    state, parts, _ = saved(model, profile)
    bare = Exporter(state).block(256, 512)
    assert "layers" not in bare.meta
    assert not any(name.startswith("L") for name in bare.arrays)
    restore(new(model, profile), [parts[0], bare, *parts[2:]])
    with pytest.raises(ValueError, match="does not cover this model's layers"):
        restore(new(model, profile), [parts[0], bare])


def test_a_model_without_such_layers_has_no_checkpoint_to_store():
    state = new("llama", "turbo4")
    read("llama", state, 0, 1000)
    exporter = Exporter(state)
    assert set(exporter.block(0, 256).meta) == {"groups", "basis", "dtypes"}
    assert set(exporter.tail(768, 1000).meta) == {"groups", "basis", "layers", "dtypes"}


@pytest.mark.parametrize(
    ("model", "profile"),
    cases(HYBRIDS, "turbo4", {"exact": ("gemma 3",), "turbo4,recurrent=8": ("qwen 3.5", "falcon h1")}),
)
def test_the_tails_checkpoint_comes_back(model: str, profile: str):
    state, resumed = new(model, profile), new(model, profile)
    read(model, state, 0, 90)
    checkpoint = state.checkpoint(90)
    read(model, state, 90, 130)
    state.round_recurrent()
    tail = travelled(Exporter(state).tail(0, 130, checkpoint))
    assert tail.meta["checkpoint"]["offset"] == 90
    found = restore(resumed, [tail])
    assert_same(state, resumed)
    assert found is not None
    assert found.offset == 90
    pairs = list(zip(leaves(dict(checkpoint.layers)), leaves(dict(found.layers)), strict=True))
    assert pairs
    assert all(old.dtype == new.dtype and np.array_equal(old, new) for old, new in pairs)
    state.rewind(checkpoint)
    resumed.rewind(found)
    assert mx.array_equal(*(read(model, each, 90, 140) for each in (state, resumed)))


@pytest.mark.parametrize("model", ["gemma 3", "gpt-oss"])
def test_a_sliding_window_is_kept_without_what_is_out_of_reach(model: str):
    state, again = new(model, "exact"), new(model, "exact")
    read(model, state, 0, 200)
    sliding = [layer for layer in state.caches if type(layer).__name__ == "RotatingKVCache"]
    assert {layer.keys.shape[2] for layer in sliding} != {64}
    part = travelled(Exporter(state).tail(0, 200))
    assert {array.shape[2] for name, array in part.arrays.items() if name.startswith("L")} == {64}
    restore(again, [part])
    for start, stop in ((200, 201), (201, 240), (240, 241)):
        assert mx.array_equal(*(read(model, each, start, stop) for each in (state, again)))


def test_the_checkpoint_is_there_once_the_state_is():
    _, parts, _ = saved("gemma 3")
    restorer = Restorer(new("gemma 3", "turbo4"), 1000, parts[-1])
    for part in parts[-2::-1]:
        restorer.add(part)
    assert restorer.checkpoint is None
    restorer.finish()
    assert restorer.checkpoint is not None
    assert restorer.checkpoint.offset == 900


def test_bfloat16_of_a_checkpoint_travels_bit_for_bit():
    state, resumed = new("gemma 3", "turbo4"), new("gemma 3", "turbo4")
    sliding = [index for index, layer in enumerate(state.caches) if type(layer).__name__ == "RotatingKVCache"]
    x = mx.random.normal((1, 1, 70, 64)).astype(mx.bfloat16)
    for index, layer in enumerate(state.caches):
        layer.update_and_fetch(x + index, x - index)
    resumed.seen = [copy(layer) for layer in state.seen]
    for index in sliding:  # as a model in bfloat16 leaves them
        window = resumed.seen[index]
        window.keys, window.values = window.keys.astype(mx.bfloat16), window.values.astype(mx.bfloat16)
    tail = travelled(Exporter(state).tail(0, 70, state.checkpoint(70)))
    assert tail.arrays["C000.0"].dtype == np.uint16
    assert tail.meta["dtypes"]["C000.0"] == tail.meta["dtypes"]["L000.0"] == "bfloat16"
    found = restore(resumed, [tail])
    assert_same(state, resumed)
    assert found is not None
    resumed.rewind(found)
    assert resumed.caches[0].keys.dtype == mx.bfloat16
    assert_same(state, resumed)


def test_a_checkpoint_that_is_not_finite_is_not_saved():
    state = new("qwen 3.5", "turbo4")
    read("qwen 3.5", state, 0, 300)
    good = state.caches[0].cache[1]
    state.caches[0].cache[1] = good * mx.array(np.inf)
    checkpoint = state.checkpoint(128)
    state.caches[0].cache[1] = good
    exporter = Exporter(state)
    exporter.block(0, 128)
    exporter.tail(0, 300)
    for export in (lambda: exporter.block(0, 128, checkpoint), lambda: exporter.tail(0, 300, checkpoint)):
        with pytest.raises(NonFiniteError):
            export()


def test_a_checkpoint_of_another_token_is_none_of_the_block():
    state, _, checkpoints = saved("gemma 3")
    with pytest.raises(ValueError, match="a checkpoint of 900 tokens for a block that ends at 768"):
        Exporter(state).block(512, 768, checkpoints[900])


HOSTILE: dict[str, Callable[[dict[str, Any]], object]] = {
    "no offset": lambda stored: stored.pop("offset"),
    "no layers": lambda stored: stored.pop("layers"),
    "negative": lambda stored: stored.update(offset=-1),
    "beyond the tokens": lambda stored: stored.update(offset=1001),
    "of another token": lambda stored: stored.update(offset=899),
    "a float": lambda stored: stored.update(offset=900.0),
    "true": lambda stored: stored.update(offset=True),
    "layers missing": lambda stored: stored["layers"].pop("0"),
    "layers too many": lambda stored: stored["layers"].update({"2": stored["layers"]["0"]}),
    "no tree": lambda stored: stored["layers"].update({"0": None}),
    "another array": lambda stored: stored["layers"]["0"][0].update(array="g0.k.codes"),
    "no array": lambda stored: stored["layers"]["0"][0].update(array="C999"),
    "a number": lambda stored: stored["layers"]["0"].__setitem__(5, 10**6),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE.keys())
def test_checkpoints_that_are_not_this_models_are_refused(change: Callable[[dict[str, Any]], object]):
    _, (*blocks, tail), _ = saved("gemma 3")
    stored = deepcopy(tail.meta["checkpoint"])
    change(stored)
    changed = Part(tail.start, tail.stop, tail.arrays, {**tail.meta, "checkpoint": stored})
    with pytest.raises(ValueError):
        restore(new("gemma 3", "turbo4"), [*blocks, changed])


@pytest.mark.parametrize("value", [3, "x", [], [1], {}], ids=str)
def test_something_else_is_no_checkpoint(value: object):
    _, (*blocks, tail), _ = saved("gemma 3")
    changed = Part(tail.start, tail.stop, tail.arrays, {**tail.meta, "checkpoint": value})
    with pytest.raises(ValueError):
        restore(new("gemma 3", "turbo4"), [*blocks, changed])
