"""Sessions on real models: what is kept between turns, saved, resumed, forked, and never got wrong."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from pydoc_data.topics import topics

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlx.utils import tree_map
from mlx_lm.models import llama, qwen3_5
from mlx_lm.tokenizer_utils import TokenizerWrapper
from state_parts import export_tail

from satchel.cache_store import loading
from satchel.cache_store.loading import load_snapshot
from satchel.cache_store.local import LocalStore
from satchel.cache_store.maintenance import remove
from satchel.cache_store.manifest import Manifest, Message
from satchel.config import profiles
from satchel.config.profiles import get_profile
from satchel.config.settings import Settings
from satchel.engine import calibration, generate
from satchel.engine.generate import Delta, Finished, Progress, Sampler
from satchel.engine.kv_state import KVFactory
from satchel.engine.model import LoadedModel
from satchel.engine.prompt import render
from satchel.errors import DamagedError, NotFoundError, SatchelError, UsageError
from satchel.session import ContextFullError, Session, SessionManager
from satchel.session import context as context_module
from satchel.session import session as session_module

TEXT = topics["assignment"]
END_OF_TURN = 2  # <|im_end|> in SmolLM2's vocabulary
ALL_CONTEXTS = (1, 3, 5, 127, 129, 192, 193, 255, 256, 257, 1000)
# The words alone, so that a context of one token is possible.
PLAIN = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
# As the templates of thinking models do: earlier answers lose what stands before </think>.
FORGETFUL = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'].split('</think>')[-1] }}<|im_end|>\n{% endfor %}<|im_start|>assistant{{ '\n' }}"
)
Event = Progress | Delta | Finished
Open = Callable[..., SessionManager]


# Models


def sharpened(model: nn.Module) -> nn.Module:
    """Random weights, larger than usual, so that what was read decides what is said."""
    model.update(tree_map(lambda weight: 2 * weight, model.parameters()))
    mx.eval(model.parameters())
    return model


def like(smollm: LoadedModel, name: str, model: nn.Module) -> LoadedModel:
    """`model` under SmolLM2's tokenizer."""
    return replace(
        smollm, name=name, model=sharpened(model), fingerprint=replace(smollm.fingerprint, weights=name)
    )


@pytest.fixture(scope="module")
def tiny(smollm: LoadedModel) -> LoadedModel:
    """A small random llama with a key bias like Qwen2.5's, for what does not depend on what is said."""
    mx.random.seed(1)
    args = llama.ModelArgs(
        model_type="llama",
        hidden_size=64,
        num_hidden_layers=2,
        intermediate_size=128,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        rms_norm_eps=1e-5,
        vocab_size=len(smollm.tokenizer),
        tie_word_embeddings=False,
        attention_bias=True,
    )
    model = llama.Model(args)
    for layer in model.layers:
        layer.self_attn.k_proj.bias *= 10
    return like(smollm, "tiny", model)


@pytest.fixture(scope="module")
def hybrid(smollm: LoadedModel) -> LoadedModel:
    """A small random model of the Qwen3.5 kind: recurrent layers, and one of full attention."""
    mx.random.seed(2)
    text_config = {
        "model_type": "qwen3_5_text",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "linear_num_value_heads": 2,
        "linear_num_key_heads": 1,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "vocab_size": len(smollm.tokenizer),
    }
    return like(smollm, "hybrid", qwen3_5.Model(qwen3_5.ModelArgs("qwen3_5", text_config)))


def with_template(model: LoadedModel, template: str) -> LoadedModel:
    """The same model with another chat template, and no stop token if it is `PLAIN`."""
    hugging_face = copy(model.tokenizer._tokenizer)
    hugging_face.chat_template = template
    tokenizer = TokenizerWrapper(hugging_face, type(model.tokenizer._detokenizer))
    tokenizer.eos_token_ids = [] if template == PLAIN else model.tokenizer.eos_token_ids
    return replace(model, tokenizer=tokenizer)


# Talking


@pytest.fixture
def open_manager(satchel_home: Path) -> Open:
    """Managers as new processes would make them: nothing is shared but the store and the weights."""

    def make(model: LoadedModel, profile: str = "turbo4", **chosen: object) -> SessionManager:
        chosen_settings = Settings.model_validate({"temperature": 0.0, **chosen})
        return SessionManager(LocalStore(satchel_home), model, get_profile(profile), chosen_settings)

    return make


@pytest.fixture(autouse=True)
def no_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts below are those of a device that queues nothing: an answer's last token is not read."""
    monkeypatch.setattr(generate, "queues_ahead", lambda device: False)


@pytest.fixture(autouse=True)
def no_check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Random models get the profile asked for, however much it costs them, and leave no figures behind."""
    monkeypatch.setattr(calibration, "MAX_KL", {})
    monkeypatch.setattr(calibration, "cache_dir", lambda: tmp_path / "figures")


@pytest.fixture
def last_token_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt is read but for its last token before the answer begins."""
    monkeypatch.setattr(generate, "LAST_CHUNK", 1)


def turn(session: Session, text: str, max_tokens: int = 6, *, stop_at: int | None = None) -> list[Event]:
    """All events of a turn, cancelled after the event number `stop_at`."""
    cancel, seen = threading.Event(), list[Event]()
    for event in session.reply(text, max_tokens=max_tokens, cancel=cancel):
        seen.append(event)
        if len(seen) == stop_at:
            cancel.set()
    return seen


def said(events: Iterable[Event]) -> list[int]:
    return [event.token_id for event in events if isinstance(event, Delta) and event.token_id is not None]


def say(session: Session, text: str, max_tokens: int = 6) -> list[int]:
    """The tokens of the answer."""
    return said(turn(session, text, max_tokens))


def replaying(token_ids: Iterable[int]) -> Sampler:
    """Chooses the given tokens, whatever the model says. One token is always computed ahead of its turn."""
    following = chain(token_ids, repeat(0))
    return lambda logprobs: mx.array([next(following)])


@contextmanager
def sampling(manager: SessionManager, sampler: Sampler) -> Iterator[None]:
    usual, manager.sampler = manager.sampler, sampler
    try:
        yield
    finally:
        manager.sampler = usual


def encode(model: LoadedModel, text: str) -> list[int]:
    return model.tokenizer.encode(text, add_special_tokens=False)


def cold(session: Session) -> Session:
    """A session with the same words that has read nothing, and will read all of it."""
    other = session.manager.new()
    other._reads_all = True
    other.messages = list(session.messages)
    return other


# What a session holds


def assert_state_is_of_its_tokens(session: Session) -> None:
    """That the KV state is the one that `token_ids` give; for the profile `exact` only."""
    model = session.manager.model.model
    fresh = KVFactory(model, session.manager.model.cache_dtype).new(session.profile)
    token_ids = session.token_ids
    expected = model(mx.array([[*token_ids, 7]]), cache=fresh.caches)[0, -1]
    got = model(mx.array([[7]]), cache=session._context.state.caches)[0, -1]
    session._context.state.trim(1)
    np.testing.assert_allclose(np.array(got), np.array(expected), atol=2e-3)


def assert_state_is_right(session: Session) -> None:
    """After a turn: what was read are the words, and the KV state is of what was read; for `exact` only."""
    *messages, _ = session.messages
    tokenizer = session.manager.model.tokenizer
    prompt = render(tokenizer, [message.model_dump() for message in messages])
    assert tokenizer.decode(session.token_ids).startswith(prompt)
    assert_state_is_of_its_tokens(session)


def assert_same_state(one: Session, other: Session) -> None:
    """Bit for bit."""
    assert one.token_ids == other.token_ids
    parts = [export_tail(session._context.state, 0, len(session.token_ids)) for session in (one, other)]
    assert parts[0].meta == parts[1].meta
    assert parts[0].arrays.keys() == parts[1].arrays.keys()
    for name, array in parts[0].arrays.items():
        np.testing.assert_array_equal(array, parts[1].arrays[name], strict=True)


def block_files(home: Path) -> dict[str, int]:
    """Names of stored blocks and tails, and their bytes."""
    return {path.name: path.stat().st_size for path in home.glob("v1/blocks/*/*")}


def manifest_of(session: Session) -> Manifest:
    store = session.manager.store
    return store.get_manifest(store.find(session.id).manifest)


# Resuming (E1 to E3, E5)


def resumed_and_uninterrupted(
    open_manager: Open, model: LoadedModel, profile: str, context: int, prompt: str, tokens: int
) -> tuple[list[int], list[int]]:
    """What follows `prompt`: its first `context` tokens read and saved by another session, and all by one."""
    stopped = open_manager(model, profile, prefill_step=context).new()
    events = turn(stopped, prompt, stop_at=1)
    assert isinstance(events[-1], Finished) and events[-1].read_tokens == context
    stopped.save("half read")

    resumed = open_manager(model, profile, prefill_step=context).open("half read")
    assert (resumed.notices, resumed.reused_tokens) == ([], context)
    assert_same_state(resumed, stopped)
    whole = open_manager(model, profile, prefill_step=context, share_prefixes=False).new()
    return say(resumed, prompt, tokens), say(whole, prompt, tokens)


def check_resume_at(open_manager: Open, smollm: LoadedModel, profile: str, context: int, tokens: int) -> None:
    plain = with_template(smollm, PLAIN)
    prompt = plain.tokenizer.decode(encode(plain, TEXT)[: context + 1])
    assert len(encode(plain, prompt)) == context + 1
    resumed, whole = resumed_and_uninterrupted(open_manager, plain, profile, context, prompt, tokens)
    assert resumed == whole
    assert len(whole) == tokens


@pytest.mark.usefixtures("last_token_alone")
@pytest.mark.parametrize(
    ("profile", "context"),
    [
        pytest.param("turbo4", 1, marks=pytest.mark.slow),
        ("turbo4", 452),
        pytest.param("exact", 256, marks=pytest.mark.slow),
    ],
)
def test_resume_continues_with_the_same_tokens(
    open_manager: Open, smollm: LoadedModel, profile: str, context: int
) -> None:
    check_resume_at(open_manager, smollm, profile, context, tokens=8)


@pytest.mark.slow
@pytest.mark.usefixtures("last_token_alone")
@pytest.mark.parametrize("context", ALL_CONTEXTS)
@pytest.mark.parametrize("profile", ["turbo4", "exact"])
def test_resume_continues_with_the_same_64_tokens(
    open_manager: Open, smollm: LoadedModel, profile: str, context: int
) -> None:
    check_resume_at(open_manager, smollm, profile, context, tokens=64)


@pytest.mark.parametrize(
    "profile",
    ["exact", "k8v4", "turbo4", "turbo3", "turbo2", "v-only", "k3v8", "affine4", "qjl4", "tq-prod3", "polar"],
)
def test_every_profile_is_resumed_exactly(open_manager: Open, tiny: LoadedModel, profile: str) -> None:
    resumed, whole = resumed_and_uninterrupted(open_manager, tiny, profile, 500, TEXT[:2500], tokens=80)
    assert resumed == whole


@pytest.mark.parametrize("context", [1, 40, 500])
@pytest.mark.parametrize("profile", ["turbo4", "exact"])
def test_a_model_with_recurrent_layers_is_resumed_exactly(
    open_manager: Open, hybrid: LoadedModel, profile: str, context: int
) -> None:
    prompt = TEXT[: 50 + 5 * context]
    resumed, whole = resumed_and_uninterrupted(open_manager, hybrid, profile, context, prompt, tokens=16)
    assert resumed == whole


@pytest.mark.usefixtures("last_token_alone")
@pytest.mark.parametrize("context", [pytest.param(40, marks=pytest.mark.slow), 520])
def test_a_model_with_sliding_windows_is_resumed_exactly(
    open_manager: Open, gemma: LoadedModel, context: int
) -> None:
    """On both sides of its window of 512 tokens. It is a base model without a chat template."""
    prompt = TEXT[: 5 * context]
    resumed, whole = resumed_and_uninterrupted(open_manager, gemma, "turbo4", context, prompt, tokens=4)
    assert resumed == whole


@pytest.mark.parametrize("profile", ["turbo4", "exact"])
@pytest.mark.parametrize("kind", ["tiny", "hybrid"])
def test_an_empty_session_is_saved_listed_resumed_and_talked_in(
    open_manager: Open, request: pytest.FixtureRequest, kind: str, profile: str
) -> None:
    model = request.getfixturevalue(kind)
    manager = open_manager(model, profile)
    manager.new().save("empty")
    (head,) = manager.store.heads().heads
    assert (head.name, head.turns, head.token_count, head.title) == ("empty", 0, 0, "")

    resumed = open_manager(model, profile).open("empty")
    assert (resumed.notices, resumed.reused_tokens, resumed.messages) == ([], 0, [])
    assert say(resumed, "Hello") == say(manager.new(), "Hello")
    resumed.save()
    again = open_manager(model, profile).open("empty")
    assert_same_state(again, resumed)
    assert again.messages == resumed.messages


def test_a_turning_mean_is_resumed_as_one(open_manager: Open, tiny: LoadedModel) -> None:
    session = open_manager(tiny).new()
    say(session, TEXT[:2500])
    session.save("talk")
    resumed = open_manager(tiny).open("talk")
    for each in (session, resumed):
        assert [cache.key_body.mean_turns for cache in each._context.state.caches] == [True, True]
    assert say(resumed, "And then?", 40) == say(session, "And then?", 40)


def test_what_was_stored_is_reused_and_only_new_tokens_are_read(
    open_manager: Open, tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_manager(tiny).new()
    with sampling(first.manager, replaying(encode(tiny, "It assigns names to values."))):
        say(first, TEXT[:3000], max_tokens=5)
    first.save("long")
    stored = first.manager.store.find("long").token_count
    assert stored == len(first.token_ids) > 600

    resumed = open_manager(tiny).open("long")
    assert resumed.reused_tokens == stored
    assert resumed.stats()["loaded"] == f"reused {stored} tokens"
    fed: list[int] = []
    monkeypatch.setattr(llama.Model, "__call__", counting(llama.Model.__call__, fed))
    events = turn(resumed, "And then?", max_tokens=5)
    new_text = "<|im_end|>\n<|im_start|>user\nAnd then?<|im_end|>\n<|im_start|>assistant\n"
    new_tokens = 1 + len(encode(tiny, new_text))  # the first answer's last token had not been read
    assert sum(fed) == new_tokens + 4
    assert isinstance(events[-1], Finished)
    stats = events[-1].stats
    assert (stats.prompt_tokens, stats.reused_tokens, stats.generated_tokens) == (new_tokens, stored, 5)
    assert str(resumed.stats()["last turn"]).startswith(f"read {new_tokens} tokens at ")


def counting(call: Callable[..., mx.array], fed: list[int]) -> Callable[..., mx.array]:
    def counted(model: nn.Module, inputs: mx.array, *args: object, **kwargs: object) -> mx.array:
        fed.append(inputs.size)
        return call(model, inputs, *args, **kwargs)

    return counted


# Rewritten histories (E6)


def think_and_answer(session: Session, thought: str, answer: str, question: str = "Why?") -> None:
    """A turn whose answer is given, as a thinking model would."""
    model = session.manager.model
    forced = [*encode(model, f"<think>{thought}</think>{answer}"), END_OF_TURN]
    with sampling(session.manager, replaying(forced)):
        assert say(session, question, max_tokens=len(forced)) == forced


def test_a_template_that_drops_thoughts_keeps_the_common_tokens_and_reads_the_rest(
    open_manager: Open, smollm: LoadedModel
) -> None:
    session = open_manager(with_template(smollm, FORGETFUL), "exact").new()
    think_and_answer(session, "Rain falls. " * 8, "It rains.")
    before = list(session.token_ids)
    kept = encode(smollm, "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n")
    assert before[: len(kept)] == kept

    from_cold = cold(session)
    events = turn(session, "Is that so?", max_tokens=12)
    assert isinstance(events[-1], Finished)
    assert events[-1].stats.reused_tokens == len(kept)
    assert said(events) == say(from_cold, "Is that so?", max_tokens=12)
    assert session.token_ids == from_cold.token_ids
    assert_state_is_of_its_tokens(session)


def test_going_back_over_a_block_then_saving_and_resuming_is_right(
    open_manager: Open, tiny: LoadedModel
) -> None:
    model = with_template(tiny, FORGETFUL)
    session = open_manager(model).new()
    say(session, TEXT[:1200], max_tokens=4)
    session.save("talk")
    shared = len(session.token_ids)
    think_and_answer(session, TEXT[1200:4200], "Done.")
    session.save()
    blocks = manifest_of(session).blocks
    assert shared < 512 <= blocks[-1].stop < len(session.token_ids)

    say(session, "Next?")
    assert len(session.token_ids) < 512
    session.save()
    assert [ref.stop for ref in manifest_of(session).blocks] == [256]
    resumed = open_manager(model).open("talk")
    assert resumed.notices == []
    assert_same_state(resumed, session)
    assert say(resumed, "And now?", 40) == say(session, "And now?", 40)


def test_a_state_that_cannot_go_back_is_read_from_the_last_message_on(
    open_manager: Open, hybrid: LoadedModel
) -> None:
    session = open_manager(with_template(hybrid, FORGETFUL)).new()
    think_and_answer(session, "Rain falls.", "It rains.")
    from_cold = cold(session)
    assert say(session, "Is that so?") == say(from_cold, "Is that so?")
    assert session.notices == ["this model's state cannot go back; 11 tokens are read again"]
    assert_same_state(session, from_cold)


# The limit of the context (E9)


def test_a_full_context_is_one_clear_line_and_leaves_the_session_as_it_is(
    open_manager: Open, tiny: LoadedModel
) -> None:
    session = open_manager(replace(tiny, context_length=100), "exact").new()
    say(session, "Hello")
    before = (list(session.messages), list(session.token_ids))
    with pytest.raises(ContextFullError) as full:
        turn(session, TEXT[:1000])
    tokens = len(encode(tiny, prompt_text(session, TEXT[:1000])))
    assert full.value.one_line() == (
        f"the context is full: this message would make {tokens} tokens, and the model takes 100; "
        "shorten it, or /compact the talk, or start a new session"
    )
    assert (session.messages, session.token_ids) == before
    say(session, "Short?")
    assert_state_is_right(session)


def prompt_text(session: Session, text: str) -> str:
    """The prompt that `text` makes after the messages of `session`."""
    messages = [*session.messages, Message(role="user", content=text)]
    return render(session.manager.model.tokenizer, [message.model_dump() for message in messages])


def cold_with(session: Session, messages: list[Message]) -> Session:
    other = session.manager.new()
    other.messages = list(messages)
    return other


@pytest.mark.parametrize("room", [1, 2, 9])
def test_an_answer_ends_where_the_context_does(open_manager: Open, tiny: LoadedModel, room: int) -> None:
    plain = with_template(tiny, PLAIN)
    limit = len(encode(plain, TEXT[:200])) + room
    session = open_manager(replace(plain, context_length=limit)).new()
    events = turn(session, TEXT[:200], max_tokens=50)
    assert isinstance(events[-1], Finished)
    assert (events[-1].stop_reason, len(said(events)), len(session.token_ids)) == ("length", room, limit - 1)
    with pytest.raises(ContextFullError):
        turn(session, "More.")
    session.save("full")
    assert session.manager.open("full").token_ids == session.token_ids


def test_a_message_that_fills_the_context_leaves_no_room_for_an_answer(
    open_manager: Open, tiny: LoadedModel
) -> None:
    plain = with_template(tiny, PLAIN)
    session = open_manager(replace(plain, context_length=len(encode(plain, TEXT[:200])))).new()
    with pytest.raises(ContextFullError):
        turn(session, TEXT[:200])
    assert (session.messages, session.token_ids) == ([], [])


# Damage (D1)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("which", ["block", "tail"])
@pytest.mark.parametrize("damage", [truncate, flip_a_bit, Path.unlink, make_directory])
def test_damaged_state_is_read_again_and_written_anew(
    open_manager: Open, tiny: LoadedModel, satchel_home: Path, damage: Callable[[Path], None], which: str
) -> None:
    session = open_manager(tiny).new()
    say(session, TEXT[:3000])
    session.save("talk")
    manifest = manifest_of(session)
    damaged = manifest.blocks[0] if which == "block" else manifest.tail
    assert damaged
    path = satchel_home / "v1" / "blocks" / damaged.sha256[:2] / damaged.sha256
    damage(path)

    opened = open_manager(tiny).open("talk")
    (notice,) = opened.notices
    assert notice.endswith(": the context is read again with the next message")
    assert damaged.sha256[:12] in notice
    assert (opened.messages, opened.token_ids, opened.reused_tokens) == (session.messages, [], 0)
    from_cold = cold(opened)
    assert say(opened, "And then?") == say(from_cold, "And then?")
    opened.save()
    again = open_manager(tiny).open("talk")
    assert again.notices == []
    assert_same_state(again, from_cold)


def test_a_damaged_block_is_written_again_under_its_own_name(
    open_manager: Open, tiny: LoadedModel, satchel_home: Path
) -> None:
    """The same tokens read in the same way make the same block: its damaged file must not be taken for it."""
    session = open_manager(tiny).new()
    turn(session, TEXT[:4000], stop_at=1)  # one chunk of the prompt
    session.save("talk")
    (ref,) = manifest_of(session).blocks
    path = satchel_home / "v1" / "blocks" / ref.sha256[:2] / ref.sha256
    whole = path.read_bytes()
    flip_a_bit(path)
    opened = open_manager(tiny).open("talk")
    turn(opened, TEXT[:4000], stop_at=1)
    opened.save()
    assert path.read_bytes() == whole
    assert open_manager(tiny).open("talk").token_ids == session.token_ids


def test_a_damaged_session_saved_before_it_is_read_again_keeps_its_words(
    open_manager: Open, tiny: LoadedModel, satchel_home: Path
) -> None:
    session = open_manager(tiny).new()
    say(session, TEXT[:3000])
    session.save("talk")
    for name in block_files(satchel_home):
        flip_a_bit(satchel_home / "v1" / "blocks" / name[:2] / name)
    open_manager(tiny).open("talk").save()
    again = open_manager(tiny).open("talk")
    assert (again.notices, again.messages, again.reused_tokens) == ([], session.messages, 0)
    assert say(again, "And then?") == say(cold(session), "And then?")


@pytest.mark.parametrize(
    ("damage", "error", "exit_code"),
    [(truncate, DamagedError, 4), (flip_a_bit, DamagedError, 4), (Path.unlink, NotFoundError, 3)],
)
def test_a_damaged_manifest_is_an_error(
    open_manager: Open,
    tiny: LoadedModel,
    satchel_home: Path,
    damage: Callable[[Path], None],
    error: type[DamagedError],
    exit_code: int,
) -> None:
    session = open_manager(tiny).new()
    session.save("talk")
    manifest_id = session.manager.store.find("talk").manifest
    damage(satchel_home / "v1" / "manifests" / manifest_id)
    with pytest.raises(error, match=f"manifest {manifest_id[:12]} is") as raised:
        open_manager(tiny).open("talk")
    assert raised.value.exit_code == exit_code


def test_a_damaged_manifest_gives_way_to_the_save_before_with_its_state(
    open_manager: Open, tiny: LoadedModel, satchel_home: Path
) -> None:
    session = open_manager(tiny).new()
    say(session, TEXT[:3000])
    session.save("talk")
    before = open_manager(tiny).open("talk")
    say(session, "And then?")
    session.save()
    manifest_id = session.manager.store.find("talk").manifest
    flip_a_bit(satchel_home / "v1" / "manifests" / manifest_id)

    opened = open_manager(tiny).open("talk")
    assert opened.notices == [
        f"manifest {manifest_id[:12]} is damaged: its SHA-256 is another: "
        "'talk' goes on from the save before, with 2 messages"
    ]
    assert opened.messages == before.messages == session.messages[:2]
    assert_same_state(opened, before)
    say(opened, "And now?")
    opened.save()
    again = open_manager(tiny).open("talk")
    assert (again.notices, again.id, again.messages) == ([], session.id, opened.messages)
    assert_same_state(again, opened)


# State of another model or another kind (D2)


@pytest.mark.parametrize(
    ("differing", "changed"),
    [
        ("model.weights", lambda m: replace(m, fingerprint=replace(m.fingerprint, weights="0" * 64))),
        (
            "model.architecture",
            lambda m: replace(m, fingerprint=replace(m.fingerprint, architecture="0" * 64)),
        ),
        ("model.tokenizer", lambda m: replace(m, fingerprint=replace(m.fingerprint, tokenizer="0" * 64))),
        ("model.template", lambda m: replace(m, fingerprint=replace(m.fingerprint, template="0" * 64))),
        ("kv.exact dtypes", lambda m: replace(m, cache_dtype=mx.bfloat16)),
        ("activations", lambda m: replace(m, dtype=mx.bfloat16)),
    ],
)
def test_state_of_another_kind_is_named_and_read_again(
    open_manager: Open,
    tiny: LoadedModel,
    differing: str,
    changed: Callable[[LoadedModel], LoadedModel],
) -> None:
    session = open_manager(tiny).new()
    say(session, TEXT[:3000])
    session.save("talk")
    opened = open_manager(changed(tiny)).open("talk")
    assert_misses(opened, session, differing)


@pytest.mark.parametrize("other", ["exact", "turbo3", "k8v4"])
def test_state_of_another_profile_is_named_and_read_again(
    open_manager: Open, tiny: LoadedModel, other: str
) -> None:
    session = open_manager(tiny).new()
    say(session, TEXT[:3000])
    session.save("talk")
    opened = open_manager(tiny, other).open("talk", get_profile(other))
    assert_misses(opened, session, "saved with another KV profile (turbo4): ")
    assert get_profile(opened.manager.store.find("talk").profile_name).asked == other


def test_a_profile_of_a_later_version_opens_with_its_words(open_manager: Open, tiny: LoadedModel) -> None:
    session = open_manager(tiny).new()
    session.profile = replace(session.profile, name="turbo9")
    say(session, TEXT[:3000])
    session.save("talk")
    opened = open_manager(tiny, "turbo3").open("talk")
    assert (opened.profile.asked, opened.messages) == ("turbo3", session.messages)
    assert_misses(opened, session, "saved with another KV profile (turbo9): ")


def assert_misses(opened: Session, session: Session, differing: str) -> None:
    """That `opened` has `session`'s words only, says why, answers right, and is saved as its own kind."""
    (notice,) = opened.notices
    assert notice.startswith("saved with another ")
    assert differing in notice
    assert notice.endswith(": the context is read again with the next message")
    assert (opened.messages, opened.token_ids, opened.reused_tokens) == (session.messages, [], 0)
    from_cold = cold(opened)
    assert say(opened, "And then?") == say(from_cold, "And then?")
    opened.save()
    again = opened.manager.open("talk", opened.profile)
    assert again.notices == []
    assert_same_state(again, from_cold)


def test_a_session_is_resumed_with_its_own_profile(open_manager: Open, tiny: LoadedModel) -> None:
    session = open_manager(tiny, "turbo2").new()
    say(session, "Hello")
    session.save("talk")
    opened = open_manager(tiny, "turbo4").open("talk")
    assert (opened.profile, opened.profile.asked, opened.notices) == (session.profile, "turbo2", [])
    assert len(opened.profile.raised) == 1  # half of two layers
    assert opened.reused_tokens == len(session.token_ids)


# Two at once (D6)


def test_the_second_to_save_goes_on_as_a_fork(open_manager: Open, tiny: LoadedModel) -> None:
    origin = open_manager(tiny).new()
    say(origin, TEXT[:3000])
    origin.save("talk")
    one, two = open_manager(tiny).open("talk"), open_manager(tiny).open("talk")
    say(one, "One?")
    say(two, "Two?")
    one.save()
    two.save()
    assert (one.notices, one.name) == ([], "talk")
    assert two.notices == ["another process has saved 'talk': this talk goes on as 'talk-2'"]
    assert (two.name, two.id != one.id) == ("talk-2", True)
    say(two, "Three?")
    two.save()
    for session, question in ((one, "One?"), (two, "Three?")):
        opened = open_manager(tiny).open(session.name)
        assert (opened.notices, opened.messages) == ([], session.messages)
        assert opened.messages[-2].content == question
        assert_same_state(opened, session)


def test_a_session_removed_by_another_process_is_saved_whole_again(
    open_manager: Open, tiny: LoadedModel
) -> None:
    session = open_manager(tiny).new()
    say(session, TEXT[:3000])
    session.save("talk")
    remove(session.manager.store, session.id)
    say(session, "Still there?")
    session.save()
    assert session.notices == ["another process has removed 'talk': this talk goes on as 'talk'"]
    assert_same_state(open_manager(tiny).open("talk"), session)


def test_a_session_renamed_elsewhere_goes_on_under_its_new_name(
    open_manager: Open, tiny: LoadedModel
) -> None:
    session = open_manager(tiny).new()
    say(session, "Hello")
    session.save("old")
    store = session.manager.store
    store.rename(session.id, "new")
    say(session, "And then?")
    session.save()
    assert (session.name, session.notices) == ("new", [])
    assert [(head.name, head.turns) for head in store.heads().heads] == [("new", 2)]


def test_a_fork_takes_the_name_asked_for(open_manager: Open, tiny: LoadedModel) -> None:
    open_manager(tiny).new().save("talk")
    one, two = open_manager(tiny).open("talk"), open_manager(tiny).open("talk")
    say(one, "Hello")
    one.save()
    two.save("other")
    assert two.notices == ["another process has saved 'talk': this talk goes on as 'other'"]
    assert two.name == "other"


def test_two_new_sessions_with_the_same_question_get_two_names(open_manager: Open, tiny: LoadedModel) -> None:
    sessions = [open_manager(tiny).new() for _ in range(6)]
    for session in sessions:
        session.messages = [Message(role="user", content="Hello")]
    start = threading.Barrier(len(sessions))

    def save(session: Session) -> None:
        start.wait()
        session.save()

    with ThreadPoolExecutor(len(sessions)) as pool:
        list(pool.map(save, sessions))
    assert sorted(str(session.name) for session in sessions) == [
        "Hello",
        *(f"Hello-{n}" for n in range(2, 7)),
    ]


# Turns that do not end


@pytest.mark.parametrize("stop_at", [2, 4])
def test_a_cancelled_answer_is_kept_as_far_as_it_went(
    open_manager: Open, tiny: LoadedModel, stop_at: int
) -> None:
    session = open_manager(with_template(tiny, FORGETFUL), "exact", prefill_step=512).new()
    say(session, "Hello")
    events = turn(session, "Go on.", max_tokens=20, stop_at=stop_at)
    assert len(said(events)) == stop_at
    assert isinstance(events[-1], Finished) and events[-1].stop_reason == "cancelled"
    answer = "".join(event.text for event in events if isinstance(event, Delta))
    assert session.messages[-2:] == [
        Message(role="user", content="Go on."),
        Message(role="assistant", content=answer),
    ]
    assert session.token_ids[1 - stop_at :] == said(events)[:-1]
    assert_state_is_of_its_tokens(session)
    say(session, "And now?")
    assert_state_is_right(session)


def test_a_turn_cancelled_while_reading_leaves_the_words_as_they_were(
    open_manager: Open, tiny: LoadedModel
) -> None:
    session = open_manager(tiny, "exact", prefill_step=64).new()
    say(session, "Hello")
    before = list(session.messages)
    events = turn(session, TEXT[:2000], stop_at=2)
    assert [event.done for event in events if isinstance(event, Progress)] == [64, 128]
    assert isinstance(events[-1], Finished) and events[-1].stop_reason == "cancelled"
    assert session.messages == before
    assert_state_is_of_its_tokens(session)
    session.save("half read")
    resumed = open_manager(tiny, "exact").open("half read")
    assert_same_state(resumed, session)
    say(resumed, "Something else.")
    assert_state_is_right(resumed)


@pytest.mark.parametrize("events_taken", [1, 3])
def test_a_turn_that_is_closed_early_does_not_count(
    open_manager: Open, tiny: LoadedModel, events_taken: int
) -> None:
    session = open_manager(tiny).new()
    say(session, "Hello")
    before = list(session.messages)
    events = session.reply("Go on.", max_tokens=20, cancel=threading.Event())
    for _ in range(events_taken):
        next(events)
    events.close()
    assert session.messages == before
    assert say(session, "And now?") == say(cold_with(session, before), "And now?")


def test_a_turn_that_is_left_hanging_does_not_count(open_manager: Open, tiny: LoadedModel) -> None:
    session = open_manager(tiny, "exact").new()
    hanging = session.reply("Go on.", max_tokens=20, cancel=threading.Event())
    for _ in range(3):
        next(hanging)
    session.save("talk")
    assert session.manager.open("talk").messages == []
    assert say(session, "And now?") == say(session.manager.new(), "And now?")
    hanging.close()
    say(session, "Well?")
    assert_state_is_right(session)


def test_an_error_within_a_turn_does_not_count(open_manager: Open, tiny: LoadedModel) -> None:
    session = open_manager(tiny).new()
    say(session, "Hello")
    before = list(session.messages)
    with sampling(session.manager, failing_after(3)), pytest.raises(MemoryError):
        turn(session, "Go on.", max_tokens=20)
    assert session.messages == before
    assert say(session, "And now?") == say(cold_with(session, before), "And now?")


def failing_after(tokens: int) -> Sampler:
    following = iter(range(10, 10 + tokens))

    def sampler(logprobs: mx.array) -> mx.array:
        for token_id in following:
            return mx.array([token_id])
        raise MemoryError

    return sampler


# Saving


def test_a_second_turn_writes_its_own_blocks_only(
    open_manager: Open, tiny: LoadedModel, satchel_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_manager(tiny).new()
    say(session, TEXT[:6000])
    session.save("talk")
    first, before = manifest_of(session), block_files(satchel_home)
    assert len(before) == len(first.blocks) + 1
    say(session, TEXT[6000:7500])
    put: list[bytes] = []
    monkeypatch.setattr(session.manager.store, "putting_blocks", noting(session.manager.store, put))
    session.save()
    second, after = manifest_of(session), block_files(satchel_home)
    added = {name: size for name, size in after.items() if name not in before}
    assert second.blocks[: len(first.blocks)] == first.blocks
    assert len(second.blocks) > len(first.blocks)
    assert len(added) == len(second.blocks) - len(first.blocks) + 1
    assert sorted(added.values()) == sorted(map(len, put))
    assert sum(added.values()) < sum(before.values())
    loaded = load_snapshot(session.manager.store, second)
    assert loaded and loaded.token_ids.tolist() == session.token_ids


def noting(
    store: LocalStore, put: list[bytes]
) -> Callable[[], AbstractContextManager[Callable[[bytes], str]]]:
    putting_blocks = store.putting_blocks

    @contextmanager
    def noted() -> Iterator[Callable[[bytes], str]]:
        with putting_blocks() as put_block:
            yield lambda data: put.append(data) or put_block(data)

    return noted


def test_saving_again_without_a_turn_adds_no_state(
    open_manager: Open, tiny: LoadedModel, satchel_home: Path
) -> None:
    session = open_manager(tiny).new()
    say(session, TEXT[:3000])
    session.save("talk")
    before = block_files(satchel_home)
    session.save()
    session.save("renamed")
    assert block_files(satchel_home) == before
    assert [head.name for head in session.manager.store.heads().heads] == ["renamed"]


def test_saving_changes_nothing_in_the_running_session(open_manager: Open, tiny: LoadedModel) -> None:
    saving, other = open_manager(tiny).new(), open_manager(tiny).new()
    for question in (TEXT[:2500], "Why?", TEXT[2500:4000], "How?"):
        assert say(saving, question, 20) == say(other, question, 20)
        saving.save()
        assert_same_state(saving, other)


def test_names(open_manager: Open, tiny: LoadedModel) -> None:
    manager = open_manager(tiny)
    sessions = [manager.new() for _ in range(5)]
    questions = (
        "What is a KV cache, and why is it so large?",
        "What is a KV cache, and why not?",
        "…!?",
        "",
        "What's in 'Ulysses', and what\u2019s not?",
    )
    for session, question in zip(sessions, questions, strict=True):
        session.messages = [Message(role="user", content=question)]
        session.save()
    assert [session.name for session in sessions] == [
        "What is a KV cache and",
        "What is a KV cache and-2",
        "chat",
        "chat-2",
        "Whats in Ulysses and whats not",
    ]
    sessions[0].save("kv")
    assert sessions[0].name == "kv"
    with pytest.raises(UsageError, match="there is a session called 'kv' already"):
        sessions[1].save("KV")
    with pytest.raises(UsageError, match="has '/' in it"):
        sessions[1].save("../kv")
    assert sessions[1].name == "What is a KV cache and-2"


def test_the_latest_session_is_opened_without_a_name(open_manager: Open, tiny: LoadedModel) -> None:
    manager = open_manager(tiny)
    for name in ("one", "two"):
        manager.new().save(name)
    assert manager.open(None).name == "two"
    assert manager.open("ONE").name == "one"


def test_a_system_prompt_begins_a_session_and_is_stored(open_manager: Open, tiny: LoadedModel) -> None:
    session = open_manager(tiny, system_prompt="Be brief.").new()
    say(session, "Hello")
    session.save("talk")
    assert tiny.tokenizer.decode(session.token_ids).startswith("<|im_start|>system\nBe brief.<|im_end|>\n")
    opened = open_manager(tiny).open("talk")
    assert opened.messages[0] == Message(role="system", content="Be brief.")


# Any talk

TURNS = st.lists(
    st.one_of(
        st.tuples(st.just("say"), st.integers(0, 3000), st.integers(1, 12)),
        st.tuples(st.just("think"), st.integers(0, 3000), st.integers(1, 60)),
        st.tuples(st.just("cancel"), st.integers(0, 3000), st.integers(1, 6)),
        st.tuples(st.just("close"), st.integers(0, 3000), st.integers(1, 6)),
        st.tuples(st.just("resume"), st.just(0), st.just(0)),
    ),
    min_size=2,
    max_size=8,
)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=TURNS, bits=st.sampled_from([2, 4, 16]))
def test_any_talk_is_saved_and_resumed_exactly(
    open_manager: Open,
    tiny: LoadedModel,
    monkeypatch: pytest.MonkeyPatch,
    turns: list[tuple[str, int, int]],
    bits: int,
) -> None:
    """Turns of every kind, in any order, each saved, with blocks and windows small enough to play a part."""
    for module in (session_module, context_module, loading):
        monkeypatch.setattr(module, "BLOCK_TOKENS", 8)
    monkeypatch.setattr(profiles, "OPTIONS", (*profiles.OPTIONS, "move"))
    profile = get_profile(f"k{bits}v{bits},sink=2,window=6,move=4")
    manager = open_manager(with_template(tiny, FORGETFUL), prefill_step=16)
    manager.profile = profile
    session = manager.new()
    session.save()
    for kind, start, count in turns:
        question = TEXT[start : start + 3 * count]
        match kind:
            case "say":
                turn(session, question, count)
            case "think":
                think_and_answer(session, TEXT[start : start + count], "So.", question)
            case "cancel":
                turn(session, question, 20, stop_at=count)
            case "close":
                unfinished = session.reply(question, max_tokens=20, cancel=threading.Event())
                for _ in range(count):
                    next(unfinished)
                unfinished.close()
            case "resume":
                session = manager.open(session.id, profile)
                assert session.notices == []
        assert {cache.offset for cache in session._context.state.caches} == {len(session.token_ids)}
        if profile.is_exact:
            assert_state_is_of_its_tokens(session)
        session.save()
        assert_same_state(manager.open(session.id, profile), session)
    remove(session.manager.store, session.id)


@pytest.mark.parametrize("place", ["head", "manifest"])
def test_a_running_talk_is_saved_beside_what_a_later_version_wrote(
    open_manager: Open, tiny: LoadedModel, satchel_home: Path, place: str
) -> None:
    session = open_manager(tiny).new()
    say(session, "Hello.")
    session.save("talk")
    store = session.manager.store
    if place == "head":
        path = satchel_home / "v1" / "heads" / f"{session.id}.json"
        later = path.read_bytes().replace(b"{", b'{"added_later":1,', 1)
    else:
        newer = store.rename(session.id, "renamed")
        path = satchel_home / "v1" / "manifests" / newer.manifest
        content = zstandard.ZstdDecompressor().decompress(path.read_bytes())
        later = zstandard.compress(content.replace(b'"format_version":1', b'"format_version":2'))
        head_path = satchel_home / "v1" / "heads" / f"{session.id}.json"
        name = hashlib.sha256(later).hexdigest()
        head_path.write_bytes(head_path.read_bytes().replace(newer.manifest.encode(), name.encode()))
        path = satchel_home / "v1" / "manifests" / name
    path.write_bytes(later)
    say(session, "Go on.")
    session.save()
    assert session.notices[0].endswith(f"this talk goes on as {session.name!r}")
    assert path.read_bytes() == later
    resumed = open_manager(tiny).open(session.id)
    assert (resumed.messages, resumed.notices) == (session.messages, [])


# What must not be lost on the way


def test_a_branch_of_what_is_not_to_be_saved_leaves_the_original_as_it_is(
    open_manager: Open, tiny: LoadedModel
) -> None:
    session = open_manager(tiny).new()
    say(session, "Hello.")
    session.save("talk")
    aside = open_manager(tiny, auto_save=False).open("talk")
    say(aside, "Not for the talk.")
    assert aside.branch("aside") == "aside"
    store = aside.manager.store
    turns = {head.name: head.turns for head in store.heads().heads}
    assert turns == {"talk": 1, "aside": 2}


def test_a_template_that_needs_a_question_takes_the_beginning_back_all_the_same(
    open_manager: Open, tiny: LoadedModel
) -> None:
    picky = (
        "{% if messages | selectattr('role', 'equalto', 'user') | list | length == 0 %}"
        "{{ raise_exception('nobody asked') }}{% endif %}"
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
        "{% endfor %}<|im_start|>assistant\n"
    )
    session = open_manager(with_template(tiny, picky), system_prompt="Be brief.").new()
    say(session, "Hello.")
    session.save()
    session.restore_turn(0)
    assert [message.role for message in session.messages] == ["system"]
    assert list(manifest_of(session).messages) == session.messages
    assert len(session.abandoned()) == 1


def test_means_that_are_fixed_anew_are_not_joined_with_stored_blocks(
    open_manager: Open, tiny: LoadedModel
) -> None:
    """After going back into a sink that is larger than a block."""
    manager = open_manager(tiny, "turbo4,sink=600", share_prefixes=False)
    session = manager.new()
    for start in (0, 1000, 2000, 3000):
        say(session, TEXT[start : start + 1000])
    session.save("talk")
    assert manifest_of(session).blocks
    session.restore_turn(1)
    for start in (5000, 6000, 7000, 8000):
        say(session, TEXT[start : start + 1000])
    session.save()
    resumed = manager.open("talk")
    assert resumed.notices == []
    assert_same_state(resumed, session)


def test_a_checkpoint_waits_for_its_block_to_settle(open_manager: Open, hybrid: LoadedModel) -> None:
    session = open_manager(hybrid, checkpoint_blocks=1).new()
    say(session, TEXT[:2300])
    session.save()
    assert 512 < len(session.token_ids) < 512 + 128
    say(session, TEXT[2300:3300])
    session.save()
    assert [(ref.stop, ref.checkpoint) for ref in manifest_of(session).blocks[:2]] == [
        (256, True),
        (512, True),
    ]


def test_a_save_whose_end_was_not_confirmed_is_gone_on_from_after_going_back(
    open_manager: Open, tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_manager(tiny).new()
    for text in ("One?", "Two?"):
        say(session, text)
    session.save("talk")
    commit = LocalStore.commit

    def unconfirmed(store: LocalStore, *args: object, **more: object) -> None:
        commit(store, *args, **more)
        raise SatchelError("cannot write heads: Input/output error")

    with monkeypatch.context() as patched, pytest.raises(SatchelError):
        patched.setattr(LocalStore, "commit", unconfirmed)
        session.restore_turn(1)
    say(session, "Another two?")
    session.save()
    assert (session.name, session.notices) == ("talk", [])
    assert [head.name for head in session.manager.store.heads().heads] == ["talk"]
    assert [len(manifest.questions) for manifest in session.abandoned()] == [2]
