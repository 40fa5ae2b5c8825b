"""Reading a prompt and writing an answer: what is streamed, counted, held, and when it ends."""

from __future__ import annotations

import gc
import threading
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import chain, repeat

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import tiny_llama

from satchel.config.profiles import PROFILES
from satchel.engine import generate as generate_module
from satchel.engine.generate import Delta, Finished, Progress, Sampler, generate
from satchel.engine.kv_state import KVFactory, KVState
from satchel.engine.model import LoadedModel
from satchel.engine.sampling import Sampling

END_OF_TURN = 2  # <|im_end|>
GREEDY = Sampling().sampler()
Event = Progress | Delta | Finished


@pytest.fixture(scope="module")
def tiny(smollm: LoadedModel) -> LoadedModel:
    """A small random model with SmolLM2's tokenizer, for what does not depend on what is said."""
    return replace(smollm, name="tiny", model=tiny_llama(layers=1, vocabulary=len(smollm.tokenizer)))


def new_state(model: LoadedModel) -> KVState:
    return KVFactory(model.model, model.cache_dtype).new(PROFILES["turbo4"])


def encode(model: LoadedModel, text: str) -> list[int]:
    return model.tokenizer.encode(text, add_special_tokens=False)


def replaying(token_ids: Iterable[int]) -> Sampler:
    """Chooses the given tokens, whatever the model says. One token is always computed ahead of its turn."""
    following = chain(token_ids, repeat(0))
    return lambda logprobs: mx.array([next(following)])


def run(
    model: LoadedModel,
    prompt: list[int],
    sampler: Sampler = GREEDY,
    *,
    state: KVState | None = None,
    max_tokens: int = 64,
    cancel: threading.Event | None = None,
    prefill_step: int = 512,
    reused_tokens: int = 0,
    stops: Collection[int] = (),
) -> Iterator[Event]:
    return generate(
        model,
        state or new_state(model),
        prompt,
        max_tokens=max_tokens,
        sampler=sampler,
        cancel=cancel or threading.Event(),
        prefill_step=prefill_step,
        reused_tokens=reused_tokens,
        stops=stops,
    )


def spoken(events: Iterable[Event]) -> list[Delta]:
    return [event for event in events if isinstance(event, Delta)]


def text_of(events: Iterable[Event]) -> str:
    return "".join(delta.text for delta in spoken(events))


def held_tokens(state: KVState) -> int:
    (offset,) = {cache.offset for cache in state.caches}
    return offset


def finished(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    assert sum(isinstance(event, Finished) for event in events) == 1
    return events[-1]


# What is said


def test_the_embedded_model_knows_the_capital_of_france(smollm: LoadedModel) -> None:
    prompt = encode(
        smollm, "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    events = list(run(smollm, prompt))
    assert text_of(events) == "The capital of France is Paris."
    assert spoken(events)[-1] == Delta(END_OF_TURN, "")
    assert finished(events).stop_reason == "stop"


def test_greedy_takes_the_likeliest_token() -> None:
    assert GREEDY(mx.array([[-3.0, -0.1, -2.0]])).item() == 1


def test_a_narrow_nucleus_takes_the_likeliest_token() -> None:
    logprobs = mx.log(mx.array([[0.3, 0.4, 0.3]]))
    assert {Sampling(1.0, top_p=0.1).sampler()(logprobs).item() for _ in range(20)} == {1}


@pytest.mark.parametrize(
    "sampling",
    [Sampling(1e-300), Sampling(1e-40), Sampling(1.0, top_p=1e-300), Sampling(1e-300, top_p=1e-300)],
)
def test_the_tiniest_temperature_or_nucleus_takes_the_likeliest_token(sampling: Sampling) -> None:
    logprobs = mx.log(mx.array([[0.3, 0.4, 0.3]]))
    assert {sampling.sampler()(logprobs).item() for _ in range(20)} == {1}


def test_a_seed_makes_sampling_repeat_itself() -> None:
    logprobs = mx.log(mx.full((1, 1000), 1e-3))

    def drawn(seed: int) -> list[int]:
        sampler = Sampling(1.0, seed=seed).sampler()
        return [sampler(logprobs).item() for _ in range(8)]

    assert drawn(1) == drawn(1) != drawn(2)


# The stream


@pytest.mark.parametrize(
    "text", ["naïve café", "读一本书，然后离开。", "🦊 and 👩‍👩‍👧 and 🇫🇷", "a\n\n  b\t\n", "1024 + 1 = 1025"]
)
def test_the_stream_is_the_text_of_its_tokens(tiny: LoadedModel, text: str) -> None:
    token_ids = [*encode(tiny, text), END_OF_TURN]
    events = list(run(tiny, [1], replaying(token_ids)))
    assert [delta.token_id for delta in spoken(events)] == token_ids
    assert text_of(events) == text
    assert not any("\ufffd" in delta.text for delta in spoken(events))


@settings(deadline=None, max_examples=30)
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"], max_codepoint=0x3FFFF), min_size=1, max_size=8))
def test_any_text_is_streamed_whole(tiny: LoadedModel, text: str) -> None:
    """Character by character, as the tokenizer would not choose. mlx-lm drops a first space."""
    token_ids = [token_id for char in text for token_id in encode(tiny, char)]
    events = list(run(tiny, [1], replaying([*token_ids, END_OF_TURN])))
    assert text_of(events) == tiny.tokenizer.decode(token_ids).removeprefix(" ")


def test_a_character_is_shown_with_its_last_token(tiny: LoadedModel) -> None:
    fox = encode(tiny, "🦊")
    assert len(fox) > 1
    deltas = spoken(run(tiny, [1], replaying([*fox, END_OF_TURN])))
    assert [delta.text for delta in deltas] == [*[""] * (len(fox) - 1), "🦊", ""]


def test_what_is_left_of_a_character_is_shown_after_the_last_token(tiny: LoadedModel) -> None:
    half = encode(tiny, "🦊")[:-1]
    events = list(run(tiny, [1], replaying(half), max_tokens=len(half)))
    assert spoken(events)[-1] == Delta(None, "\ufffd")
    assert text_of(events) == tiny.tokenizer.decode(half) == "\ufffd"
    assert finished(events).read_tokens == len(half)  # the prompt's token, and all but the last of the answer


def test_a_space_at_the_end_is_not_lost(tiny: LoadedModel) -> None:
    token_ids = [*encode(tiny, "Hi"), *encode(tiny, " ")]
    assert text_of(run(tiny, [1], replaying(token_ids), max_tokens=2)) == "Hi "


@pytest.mark.parametrize("ahead", [False, True])
def test_the_end_of_turn_is_not_shown(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    """It is read where the device had the next step queued."""
    monkeypatch.setattr(generate_module, "queues_ahead", lambda device: ahead)
    state = new_state(tiny)
    events = list(run(tiny, [1, 5], replaying([*encode(tiny, "Hi"), END_OF_TURN, 7, 8]), state=state))
    assert text_of(events) == "Hi"
    assert [delta.token_id for delta in spoken(events)] == [*encode(tiny, "Hi"), END_OF_TURN]
    assert finished(events).stop_reason == "stop"
    assert held_tokens(state) == finished(events).read_tokens == 3 + ahead


# Where it ends


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("max_tokens", [1, 2, 7])
def test_max_tokens_is_exact(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch, max_tokens: int, ahead: bool
) -> None:
    monkeypatch.setattr(generate_module, "queues_ahead", lambda device: ahead)
    state = new_state(tiny)
    events = list(run(tiny, [1, 5, 6], replaying(range(10, 30)), state=state, max_tokens=max_tokens))
    assert [delta.token_id for delta in spoken(events)] == list(range(10, 10 + max_tokens))
    assert finished(events).stop_reason == "length"
    assert held_tokens(state) == finished(events).read_tokens == 2 + max_tokens + (ahead and max_tokens > 1)


def test_a_prompt_is_read_in_chunks_and_the_last_one_with_the_answer(tiny: LoadedModel) -> None:
    events = list(run(tiny, list(range(10, 20)), prefill_step=4, max_tokens=1))
    assert events[:2] == [Progress(4, 10), Progress(6, 10)]
    assert isinstance(events[2], Delta)
    assert finished(events).read_tokens == 10


@pytest.mark.parametrize(
    ("stops", "read"),
    [
        ((), [4, 6]),
        ([6], [4, 6]),
        ([9], [4, 8, 9]),  # within what is otherwise read with the answer
        ({2, 5}, [2, 5, 6]),
        ([7, 1, 7, 3], [1, 3, 7]),
        ([0, -3, 10, 11, 500], [4, 6]),
    ],
)
def test_reading_stops_where_it_is_asked_to(
    tiny: LoadedModel, stops: Collection[int], read: list[int]
) -> None:
    """The state has read just as many tokens at each."""
    state, seen, held = new_state(tiny), list[Event](), list[int]()
    prompt = list(range(10, 20))
    for event in run(tiny, prompt, state=state, prefill_step=4, max_tokens=1, stops=stops):
        seen.append(event)
        if isinstance(event, Progress):
            held.append(held_tokens(state))
    assert [event for event in seen if isinstance(event, Progress)] == [Progress(done, 10) for done in read]
    assert held == read
    assert finished(seen).read_tokens == 10


def test_stops_do_not_change_the_answer(smollm: LoadedModel) -> None:
    prompt = encode(
        smollm, "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    events = list(run(smollm, prompt, stops=[len(prompt) - 1, len(prompt) - 3]))
    assert events[:2] == [Progress(len(prompt) - 3, len(prompt)), Progress(len(prompt) - 1, len(prompt))]
    assert text_of(events) == "The capital of France is Paris."


def test_cancel_ends_reading_at_the_chunk(tiny: LoadedModel) -> None:
    cancel, state, seen = threading.Event(), new_state(tiny), list[Event]()
    for event in run(tiny, list(range(10, 30)), state=state, prefill_step=4, cancel=cancel):
        seen.append(event)
        if event == Progress(8, 20):
            cancel.set()
    assert seen[:-1] == [Progress(4, 20), Progress(8, 20)]
    assert finished(seen).stop_reason == "cancelled"
    assert held_tokens(state) == finished(seen).read_tokens == 8
    assert (finished(seen).stats.generated_tokens, finished(seen).stats.prefill_tps) == (0, 0.0)


def test_cancel_ends_the_answer_within_a_token(tiny: LoadedModel) -> None:
    cancel, state, seen = threading.Event(), new_state(tiny), list[Event]()
    for event in run(tiny, [1, 5], replaying(range(10, 30)), state=state, cancel=cancel):
        seen.append(event)
        if len(spoken(seen)) == 3:
            cancel.set()
    assert [delta.token_id for delta in spoken(seen)] == [10, 11, 12]
    assert finished(seen).stop_reason == "cancelled"
    assert held_tokens(state) == finished(seen).read_tokens == 4


def test_a_stop_token_wins_over_a_cancel(tiny: LoadedModel) -> None:
    cancel = threading.Event()
    cancel.set()
    events = list(run(tiny, [1], replaying([END_OF_TURN]), cancel=cancel))
    assert finished(events).stop_reason == "stop"


# Figures


def test_stats_count_what_was_read_kept_and_written(tiny: LoadedModel) -> None:
    events = list(run(tiny, list(range(10, 50)), replaying(range(10, 30)), max_tokens=8, reused_tokens=123))
    stats = finished(events).stats
    assert (stats.prompt_tokens, stats.reused_tokens, stats.generated_tokens) == (40, 123, 8)
    assert stats.prefill_tps == pytest.approx(40 / stats.first_token_s)
    assert stats.first_token_s > 0
    assert stats.decode_tps > 0


def test_one_token_has_no_decode_speed(tiny: LoadedModel) -> None:
    assert finished(list(run(tiny, [1, 5], max_tokens=1))).stats.decode_tps == 0.0


def test_peak_memory_is_this_turns(smollm: LoadedModel) -> None:
    weights = sum(array.nbytes for array in _arrays(smollm.model.parameters()))
    gc.collect()
    held = mx.get_active_memory()  # the weights, and whatever else these tests have loaded
    peak = finished(list(run(smollm, [1, 5], max_tokens=1))).stats.peak_memory_bytes
    assert weights <= held < peak < held + weights


def _arrays(tree: object) -> Iterator[mx.array]:
    if isinstance(tree, mx.array):
        yield tree
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from _arrays(item)
    elif isinstance(tree, list):
        for item in tree:
            yield from _arrays(item)
