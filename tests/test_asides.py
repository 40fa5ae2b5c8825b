"""What is asked beside a talk, read ahead of it, or summarised of it."""

import threading
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
import tiny_models
from small_talks import QUESTION, manifest_of, open_manager, say, small_model

from satchel.cache_store.local import LocalStore
from satchel.cache_store.manifest import Message
from satchel.config.paths import cache_dir
from satchel.config.profiles import get_profile
from satchel.engine.fork import fork
from satchel.engine.generate import Delta, Finished
from satchel.engine.kv_state import KVFactory
from satchel.errors import SatchelError, UsageError
from satchel.session import ContextFullError, SessionManager
from satchel.session.preamble import STORE, Preamble
from satchel.session.summary import HEADING, as_read

NEVER = threading.Event()


@pytest.fixture(scope="module")
def small(smollm):
    return small_model(smollm)


@pytest.fixture
def manager(tmp_path, small):
    return open_manager(tmp_path, small)


def tokens(events):
    return [event.token_id for event in events if isinstance(event, Delta)]


def text(events):
    return "".join(event.text for event in events if isinstance(event, Delta))


def user(words):
    return Message(role="user", content=words)


def assistant(words):
    return Message(role="assistant", content=words)


def system(words):
    return Message(role="system", content=words)


# -- forks


@pytest.mark.parametrize("kind", ["tiny_biased", "tiny_gemma3", "tiny_qwen35", "tiny_nemotron"])
@pytest.mark.parametrize("profile", ["exact", "k4v4,sink=2,window=6"])
def test_what_a_fork_reads_the_state_it_came_from_knows_nothing_of(kind, profile):
    model = getattr(tiny_models, kind)()
    ids = np.random.default_rng(5).integers(0, tiny_models.VOCABULARY, 120)
    factory = KVFactory(model, mx.float16)

    def read(state, some):
        return np.array(model(mx.array([some.tolist()]), cache=state.caches)[0, -1].astype(mx.float32))

    alone, forked = factory.new(get_profile(profile)), factory.new(get_profile(profile))
    for state in (alone, forked):
        read(state, ids[:40])
    twin = fork(forked)
    aside = read(twin, ids[60:100])
    assert np.array_equal(read(alone, ids[40:60]), read(forked, ids[40:60]))
    assert not np.array_equal(read(twin, ids[40:60]), read(forked, ids[40:60]))
    again = factory.new(get_profile(profile))
    read(again, ids[:40])
    assert np.array_equal(read(again, ids[60:100]), aside)


# -- aside


def test_an_aside_leaves_no_trace(tmp_path, manager, small):
    asked, plain = manager.new(), open_manager(tmp_path / "plain", small).new()
    say(asked, QUESTION)
    say(plain, QUESTION)
    before = list(asked.token_ids)
    events = list(asked.aside("What is that?", max_tokens=40, cancel=NEVER))
    assert len(tokens(events)) == 40
    assert isinstance(events[-1], Finished)
    assert asked.token_ids == before
    assert [message.content for message in asked.messages if message.role == "user"] == [QUESTION]
    assert say(asked, "And then?") == say(plain, "And then?")
    asked.save()
    assert "What is that?" not in [message.content for message in manifest_of(asked).messages]


def test_an_aside_knows_what_was_said(smollm, tmp_path):
    session = open_manager(tmp_path, smollm).new()
    session.messages = [user("My cat is called Bruno."), assistant("Bruno is a fine name for a cat.")]
    assert "Bruno" in text(session.aside("What is my cat called?", max_tokens=12, cancel=NEVER))
    assert session.token_ids == []


def test_an_aside_that_does_not_fit_is_told(tmp_path, small):
    session = open_manager(tmp_path, replace(small, context_length=60)).new()
    with pytest.raises(ContextFullError, match="the context is full: this message would make"):
        list(session.aside(QUESTION, max_tokens=4, cancel=NEVER))


# -- reading ahead


def test_what_was_read_ahead_is_not_read_again(exactly, tmp_path):
    session = exactly.new()
    session.set_system(QUESTION)
    progress = list(session.read_ahead(NEVER))
    read = len(session.token_ids)
    assert progress[-1].done == progress[-1].total == read > 256
    answer = say(session, "And then?")
    assert answer == cold_answer_of(session, "And then?", tmp_path)
    assert session._last_stats.reused_tokens == read
    assert list(session.read_ahead(NEVER))[-1].done < 12  # what stands before every next message


@pytest.fixture
def exactly(tmp_path, small):
    """Codes depend a little on where the chunks end in which they were read."""
    return exact_manager(tmp_path, small)


def exact_manager(home, model):
    manager = open_manager(home, model)
    return SessionManager(manager.store, model, get_profile("exact"), manager.settings)


def cold_answer_of(session, question, tmp_path):
    """What one answers that has read nothing ahead."""
    cold = exact_manager(tmp_path / "cold", session.manager.model).new()
    cold.messages = session.messages[:-2]
    return say(cold, question)


def test_a_session_that_was_read_ahead_is_saved_and_shared(manager):
    session = manager.new()
    session.set_system(QUESTION)
    list(session.read_ahead(NEVER))
    session.save("docs")
    resumed = manager.open("docs")
    assert resumed.token_ids == session.token_ids
    other = manager.new()
    other.set_system(QUESTION)
    say(other, "Who?")
    assert other.reused_tokens == len(session.token_ids) // 256 * 256
    assert other.take_notices() == [
        f"{other.reused_tokens:,} tokens come from 'docs', and are not read again"
    ]


def test_reading_ahead_that_is_stopped_keeps_what_was_read(exactly, tmp_path):
    exactly.settings = exactly.settings.model_copy(update={"prefill_step": 64})
    session, cancel = exactly.new(), threading.Event()
    session.set_system(QUESTION)
    for progress in session.read_ahead(cancel):
        if progress.done >= 128:
            cancel.set()
    assert len(session.token_ids) == 128
    assert say(session, "And then?") == cold_answer_of(session, "And then?", tmp_path)


# -- summaries


def test_a_talk_goes_on_from_its_summary_and_keeps_all_that_was_said(exactly, tmp_path):
    session = exactly.new()
    session.set_system("Be brief.")
    say(session, QUESTION)
    say(session, "Second?")
    said = list(session.messages)
    summary = text(session.compact(max_tokens=20, cancel=NEVER))
    assert session.messages[:-1] == said
    last = session.messages[-1]
    assert (last.role, last.content.startswith(HEADING + summary.strip())) == ("system", True)
    assert f"User: Second?\n\nAssistant: {said[-1].content}" in last.content
    assert session.token_ids == []
    answer = say(session, "Third?")
    fresh = exact_manager(tmp_path / "fresh", exactly.model).new()
    fresh.set_system(f"Be brief.\n\n{last.content}")
    assert answer == say(fresh, "Third?")
    session.save("long")
    resumed = exactly.open("long")
    assert resumed.messages == session.messages
    assert say(resumed, "Fourth?") == say(session, "Fourth?")


def test_a_summary_can_be_taken_back(manager):
    session = manager.new()
    say(session, "First?")
    say(session, "Second?")
    said = list(session.messages)
    list(session.compact(max_tokens=8, cancel=NEVER))
    session.restore_turn(2)
    assert session.messages == said
    with pytest.raises(UsageError, match="turn 2 is the last one"):
        session.restore_turn(2)


def test_a_summary_that_is_stopped_changes_nothing(manager):
    session, cancel = manager.new(), threading.Event()
    say(session, "First?")
    before = list(session.messages)
    for event in session.compact(max_tokens=50, cancel=cancel):
        if isinstance(event, Delta):
            cancel.set()
    assert session.messages == before


def test_there_must_be_something_to_summarise(manager):
    session = manager.new()
    with pytest.raises(UsageError, match="there is nothing to compact yet"):
        list(session.compact(max_tokens=8, cancel=NEVER))
    say(session, "First?")
    list(session.compact(max_tokens=8, cancel=NEVER))
    with pytest.raises(UsageError, match="there is nothing to compact yet"):
        list(session.compact(max_tokens=8, cancel=NEVER))


def test_a_talk_that_fills_the_context_is_summarised_but_for_its_end(tmp_path, small):
    session = open_manager(tmp_path, replace(small, context_length=480)).new()
    session.messages = [
        *(user("Where were we?"), assistant("At the beginning.")),
        *(user("w " * 400), assistant("Very long.")),
    ]
    events = list(session.compact(max_tokens=16, cancel=NEVER))
    assert events[-1].stats.prompt_tokens < 200
    assert "Assistant: Very long." in session.messages[-1].content


def test_what_a_summary_does_not_know_it_repeats(tmp_path, small):
    session = open_manager(tmp_path, replace(small, context_length=440)).new()
    session.messages = [
        *(user("First?"), assistant("One.")),
        *(user("Second? " + "w " * 150), assistant("Two.")),
        *(user("Third? " + "w " * 150), assistant("Three.")),
        *(user("Fourth? " + "w " * 150), assistant("Four.")),
    ]
    list(session.compact(max_tokens=16, cancel=NEVER))
    kept = session.messages[-1].content
    summarised = [word for word in ("One.", "Two.", "Three.", "Four.") if f"Assistant: {word}" not in kept]
    assert summarised in (["One.", "Two."], ["One.", "Two.", "Three."])
    assert "User: Fourth?" in kept


def test_an_empty_summary_changes_nothing(manager, monkeypatch):
    session = manager.new()
    say(session, "First?")
    before = list(session.messages)
    monkeypatch.setattr(
        "satchel.session.session.generate", lambda *args, **how: iter([Finished("stop", None, 0)])
    )
    with pytest.raises(SatchelError, match="the model wrote no summary, and nothing has changed"):
        list(session.compact(max_tokens=8, cancel=NEVER))
    assert session.messages == before


def test_only_a_summary_after_the_first_message_restarts_what_is_read():
    said = [user("a"), assistant("b")]
    summary = system(HEADING + "s")
    assert as_read([*said, summary, user("c")]) == [summary, user("c")]
    merged = system(f"p\n\n{HEADING}s")
    assert as_read([system("p"), *said, summary, user("c"), summary]) == [merged]
    for kept in ([summary, *said], [*said, system("note"), user("c")], []):
        assert as_read(kept) == kept


# -- what a model reads once


def examples(smollm):
    pairs = [("France", "Paris"), ("Spain", "Madrid"), ("Italy", "Rome")] * 8
    talk = [each for q, a in pairs for each in (user(q), assistant(a))]
    return [system("Name the capital."), *talk]


def test_examples_are_read_once_and_kept(smollm, tmp_path, monkeypatch):
    monkeypatch.setenv("SATCHEL_CACHE", str(tmp_path / "cache"))
    preamble = Preamble(smollm, examples(smollm))
    answer = text(preamble.answer("Spain", max_tokens=4, cancel=NEVER))
    assert answer == "Madrid"
    store = LocalStore(cache_dir() / STORE)
    (head,) = store.heads(9).heads
    again = Preamble(smollm, examples(smollm))
    events = list(again.answer("Spain", max_tokens=4, cancel=NEVER))
    assert text(events) == answer
    assert events[-1].stats.reused_tokens >= head.token_count > 200
    assert (
        text(again.answer("France", max_tokens=4, cancel=NEVER)) == "Paris"
    )  # nothing of the question before


def test_answers_are_compared_by_their_likelihood(smollm, tmp_path, monkeypatch):
    monkeypatch.setenv("SATCHEL_CACHE", str(tmp_path / "cache"))
    preamble = Preamble(smollm, examples(smollm))
    likely = np.exp(preamble.log_probabilities("Spain", ["Paris", "Madrid", "Rome"]))
    assert likely.argmax() == 1
    assert 0.5 < likely.sum() < 1
    # Answers that begin alike are told apart by what follows.
    longer = preamble.log_probabilities("Spain", ["Madrid", "Madrid and Seville", "Rome"])
    assert longer[0] > longer[1] + 2
    assert longer[0] <= np.log(likely[1]) + 1e-3


@pytest.mark.slow
def test_damaged_examples_are_read_again(smollm, tmp_path, monkeypatch):
    monkeypatch.setenv("SATCHEL_CACHE", str(tmp_path / "cache"))
    text(Preamble(smollm, examples(smollm)).answer("Spain", max_tokens=4, cancel=NEVER))
    for path in (cache_dir() / STORE).rglob("*"):
        if path.is_file() and not path.name.startswith("index.db"):
            path.write_bytes(path.read_bytes()[:50])
    again = Preamble(smollm, examples(smollm))
    assert text(again.answer("Spain", max_tokens=4, cancel=NEVER)) == "Madrid"
    third = Preamble(smollm, examples(smollm))
    assert list(third.prepare(NEVER)) == []  # they are kept again


def test_reading_examples_can_be_stopped_and_gone_on_with(smollm, tmp_path, monkeypatch):
    monkeypatch.setenv("SATCHEL_CACHE", str(tmp_path / "cache"))
    preamble, cancel = Preamble(smollm, examples(smollm) * 3), threading.Event()
    for _ in preamble.answer("Spain", max_tokens=4, cancel=cancel):
        cancel.set()
    assert list((cache_dir() / STORE).rglob("heads/*")) == []
    events = list(preamble.answer("Spain", max_tokens=4, cancel=NEVER))
    assert isinstance(events[-1], Finished)
    assert len(list((cache_dir() / STORE).rglob("heads/*"))) == 1


def test_only_the_newest_examples_are_kept(small, tmp_path, monkeypatch):
    monkeypatch.setenv("SATCHEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("satchel.session.preamble.KEPT", 2)
    for number in range(3):
        list(Preamble(small, [system(f"Number {number}.")]).prepare(NEVER))
    heads = LocalStore(cache_dir() / STORE).heads().heads
    words = [
        LocalStore(cache_dir() / STORE).get_manifest(head.manifest).messages[0].content for head in heads
    ]
    assert sorted(words) == ["Number 1.", "Number 2."]
