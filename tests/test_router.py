"""What messages are taken for, by the read-out, by labels, and behind other messages."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import tiny_models

from satchel.agent.router import Intent, IntentRouter
from satchel.agent.routing import read_out
from satchel.agent.routing.asked import requests_in
from satchel.agent.routing.examples import BUILDING, HELD_OUT, load_examples
from satchel.agent.routing.fitting import fit, word_matrix
from satchel.agent.routing.intents import Decision
from satchel.agent.routing.plain import is_plain
from satchel.agent.routing.read_out import (
    ReadOut,
    file_name,
    find_read_out,
    load_read_out,
    resolved,
    save_read_out,
)
from satchel.agent.routing.words import WIDTH, cue_kinds, word_features
from satchel.agent.search.prompts import question_with_sources
from satchel.agent.search.sources import Found, Source
from satchel.agent.shell.report import question_with_output
from satchel.agent.shell.runner import CommandResult
from satchel.cache_store.manifest import Message
from satchel.engine.hidden import hidden_states, layer_count
from satchel.engine.model import LoadedModel
from satchel.errors import DamagedError, VersionError

SEARCH, SHELL, CHAT = Intent.SEARCH, Intent.SHELL, Intent.CHAT

UNSEEN = {
    SEARCH: (
        "weather in Helsinki tomorrow",
        "how much does a gram of silver cost today",
        "who won the rugby match yesterday?",
        "who is the current chancellor of Austria",
        "when does python 3.15 come out",
        "look up the newest release of neovim",
        "is the Prado open on Sundays",
        "苏州明天下雨吗",
        "现在的英镑汇率是多少",
        "搜一下最新的显卡评测",
    ),
    SHELL: (
        "list all markdown files in this folder",
        "how full is my disk",
        "kill whatever runs on port 4200",
        "unzip photos.zip into ~/Pictures",
        "git show the last commit",
        "which process is using so much memory",
        "install tmux with brew",
        "把 notes.txt 移动到桌面",
        "9000 端口被哪个进程占用了",
        "看看磁盘还剩多少空间",
    ),
    CHAT: (
        "what does chown do?",
        "how do I list the hidden files in a folder?",
        "explain the difference between a thread and a coroutine",
        "write a bash script that deletes old logs",
        "translate 'see you tomorrow' into Italian",
        "who wrote War and Peace",
        "tell me a joke about cats",
        "什么是虚拟内存",
        "写一首关于月亮的诗",
        "我今天有点难过",
    ),
}


def talk(*requests: str) -> list[Message]:
    """A talk of these requests, each with an answer that says nothing."""
    said = [Message(role="system", content="You are a helpful assistant.")]
    for request in requests:
        said += [Message(role="user", content=request), Message(role="assistant", content="Here you are.")]
    return said


@pytest.fixture(scope="module")
def router(smollm: LoadedModel) -> IntentRouter:
    return IntentRouter(smollm)


@pytest.fixture
def no_read_outs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of that of the shipped read-outs, holding only that of words; nothing was fitted."""
    (tmp_path / "words.safetensors").write_bytes((read_out.SHIPPED / "words.safetensors").read_bytes())
    monkeypatch.setattr(read_out, "SHIPPED", tmp_path)
    monkeypatch.setattr(read_out, "fitted_dir", lambda: tmp_path / "none")
    return tmp_path


@pytest.mark.parametrize(("message", "intent"), [(m, intent) for intent in UNSEEN for m in UNSEEN[intent]])
def test_a_request_is_taken_for_what_it_is_after(router: IntentRouter, message: str, intent: Intent) -> None:
    decision = router.route(message)
    assert decision.intent is intent, decision.why


def test_none_of_these_requests_was_fitted_to() -> None:
    built = {example.message for example in load_examples(BUILDING)}
    assert not built & {message for messages in UNSEEN.values() for message in messages}


@pytest.mark.parametrize(
    ("message", "earlier", "intent"),
    [
        ("and tomorrow?", ["weather in Bergen today"], SEARCH),
        ("and the day after?", ["weather in Bergen today", "and tomorrow?"], SEARCH),
        ("那杭州呢", ["今天北京天气怎么样"], SEARCH),
        ("now sort them by size", ["list the files in ~/Documents"], SHELL),
        ("只看最大的五个", ["列出这个目录的文件"], SHELL),
        ("and of Portugal?", ["what is the capital of Italy?"], CHAT),
        ("explain that", ["du -sh * | sort -h"], CHAT),
        ("thanks", ["weather in Bergen today"], CHAT),
        ("show me the git log", ["weather in Bergen today"], SHELL),
        ("who won the match last night?", ["list the files in ~/Documents"], SEARCH),
    ],
)
def test_what_was_asked_before_counts(
    router: IntentRouter, message: str, earlier: list[str], intent: Intent
) -> None:
    decision = router.route(message, talk(*earlier))
    assert decision.intent is intent, decision.why


def test_a_decision_says_why(router: IntentRouter) -> None:
    assert router.route("weather in Helsinki tomorrow").why.startswith("because of “weather”")
    assert (
        router.route("and tomorrow?", talk("weather in Bergen")).why == "it goes on from “weather in Bergen”"
    )


def test_nothing_is_a_message_and_odd_bytes_are_text(router: IntentRouter) -> None:
    assert router.route(" \n") == Decision(CHAT, 1.0, "nothing is asked", CHAT, SEARCH)
    assert router.route("list the files in \udcff here").intent is SHELL


def test_a_long_paste_does_not_hide_the_request(router: IntentRouter) -> None:
    assert (
        router.route("summarise this text: " + "The meadow was green and the sky was wide. " * 300).intent
        is CHAT
    )


def test_a_decision_below_the_threshold_is_unsure_and_a_chat() -> None:
    router = IntentRouter.__new__(IntentRouter)
    decision = router._decision(
        "x", "", np.array([0.44, 0.43, 0.13, 0.0]), np.array([0.44, 0.43, 0.13]), False
    )
    assert decision == Decision(CHAT, 0.44, "unsure: search 0.44, shell 0.43", SEARCH, SHELL)
    assert decision.unsure
    assert not Decision(SHELL, 0.51, "", SHELL, CHAT).unsure


def test_requests_with_sources_and_output_are_known_for_what_they_were() -> None:
    source = Source(number=1, title="T", url="https://example.org/", snippet="S", passages=("kill port 80",))
    result = CommandResult("ls", 0, "weather.txt\n", 0, False, False, 0.1)
    history = [
        *talk("what is a port?"),
        Message(role="user", content=question_with_sources("and in Oslo?", Found("oslo", (source,), ()))),
        Message(role="user", content=question_with_output("what is here?", result, "weather.txt")),
    ]
    assert requests_in(history) == [
        ("what is a port?", None),
        ("and in Oslo?", SEARCH),
        ("what is here?", SHELL),
    ]


def test_what_goes_on_is_after_what_was_asked_before() -> None:
    outcomes = np.array([0.1, 0.2, 0.1, 0.6])
    assert resolved(outcomes, [1.0, 0.0, 0.0]) == pytest.approx([0.7, 0.2, 0.1])
    assert resolved(outcomes, None) == pytest.approx([0.25, 0.5, 0.25])


def test_the_shipped_read_outs_fit_the_features(smollm: LoadedModel) -> None:
    own = find_read_out(file_name(smollm.fingerprint))
    assert own is not None and own.parent == read_out.SHIPPED
    assert load_read_out(own, layer_count(smollm)).hidden.shape == (2 * 576, 4)
    for path in read_out.SHIPPED.glob("*.safetensors"):
        assert path.stat().st_size < 200_000
        load_read_out(path, 0 if path.stem == "words" else 64)


def test_a_model_without_a_read_out_is_asked_for_labels(smollm: LoadedModel, no_read_outs: Path) -> None:
    router = IntentRouter(smollm)
    assert router.kind == "labels"
    assert router.route("weather in Helsinki tomorrow").intent is SEARCH
    assert router.route("unzip photos.zip into ~/Pictures").intent is SHELL
    assert router.route("tell me a joke about cats").intent is CHAT
    assert router.notices == []


def test_a_read_out_that_was_fitted_here_is_used(
    smollm: LoadedModel, no_read_outs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted = ReadOut(np.zeros((2 * 576, 4)), np.zeros((WIDTH, 4)), np.array([0.0, 9.0, 0.0, 0.0]), (1, 2))
    save_read_out(fitted, no_read_outs / "here" / f"{file_name(smollm.fingerprint)}.safetensors")
    monkeypatch.setattr(read_out, "fitted_dir", lambda: no_read_outs / "here")
    router = IntentRouter(smollm)
    assert (router.route("tell me a joke").intent, router.kind) == (SHELL, "read-out")


def test_a_damaged_read_out_is_told_in_one_line_and_labels_decide(
    smollm: LoadedModel, no_read_outs: Path
) -> None:
    path = no_read_outs / f"{file_name(smollm.fingerprint)}.safetensors"
    path.write_bytes(b"\x08\0\0\0\0\0\0\0not json")
    router = IntentRouter(smollm)
    assert router.route("list all markdown files in this folder").intent is SHELL
    assert router.kind == "labels"
    (line,) = router.notices
    assert line.startswith(f"the read-out {path.name} cannot be used (") and "\n" not in line


def test_a_read_out_of_another_width_is_not_used(smollm: LoadedModel, no_read_outs: Path) -> None:
    other = ReadOut(np.zeros((2 * 64, 4)), np.zeros((WIDTH, 4)), np.zeros(4), (1, 2))
    save_read_out(other, no_read_outs / f"{file_name(smollm.fingerprint)}.safetensors")
    router = IntentRouter(smollm)
    assert router.route("list all markdown files in this folder").intent is SHELL
    assert router.notices == [
        "the read-out takes 128 features, and the model has 1152: the model is asked for labels in its place"
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hidden": np.zeros((3, 4), np.float32)}, "weights for 3 features"),
        ({"hidden": np.zeros((0, 4), np.float32)}, "weights for 0 features"),
        ({"hidden": np.zeros((8, 5), np.float32)}, "its arrays are"),
        ({"words": np.zeros((7, 4), np.float16)}, "its arrays are"),
        ({"bias": np.array([0, 0, np.nan, 0], np.float32)}, "bias holds what are no finite floats"),
        ({"bias": np.zeros(4, np.int32)}, "bias holds what are no finite floats"),
        ({"more": np.zeros(1, np.float32)}, "its arrays are"),
        ({"layers": "[1]"}, "no two layers"),
        ({"layers": "[true, 1]"}, "no two layers"),
        ({"layers": "[1, 30]"}, "layers [1, 30] of 30"),
        ({"layers": "[[[["}, "cannot be used"),
    ],
)
def test_a_read_out_is_checked(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    from safetensors.numpy import save_file

    arrays = {
        "hidden": np.zeros((8, 4), np.float32),
        "words": np.zeros((WIDTH, 4), np.float16),
        "bias": np.zeros(4, np.float32),
    }
    meta = {"format": read_out.FORMAT, "features": read_out.features_digest(), "layers": "[1, 2]"}
    for name, value in change.items():
        (meta if isinstance(value, str) else arrays)[name] = value  # type: ignore[index]
    save_file(arrays, tmp_path / "r.safetensors", meta)
    with pytest.raises(DamagedError) as caught:
        load_read_out(tmp_path / "r.safetensors", 30)
    assert reason in str(caught.value)


def test_a_read_out_for_other_features_is_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.safetensors"
    save_read_out(ReadOut(np.zeros((0, 4)), np.ones((WIDTH, 4)), np.zeros(4), (0, 0)), path)
    assert load_read_out(path, 0).scores(np.full(WIDTH, 0.5, np.float32)).tolist() == [4096.0] * 4
    monkeypatch.setattr(read_out.reading, "AFTER", "?")
    with pytest.raises(VersionError):
        load_read_out(path, 0)


def test_words_are_features_and_the_middle_of_a_long_text_is_not() -> None:
    assert cue_kinds("Kill port 3000") >= {"act", "machine", "command", "first act", "number"}
    assert cue_kinds("今天天气") >= {"fresh", "topic", "chinese"}
    assert cue_kinds("cat ./a.txt") >= {"path", "file name"}
    assert np.array_equal(word_features("Show  FILES"), word_features("show files"))
    long = "a" * 500
    assert np.array_equal(word_features(f"show {long} files"), word_features(f"show {long}{long} files"))


def test_the_examples_are_many_and_none_stands_twice() -> None:
    examples = load_examples(BUILDING)
    assert len(examples) >= 900
    assert len({(example.history, example.message) for example in examples}) == len(examples)
    counts = Counter((example.label, example.language) for example in examples)
    assert min(counts.values()) >= 150 and set(counts) == {(i, lang) for i in Intent for lang in ("en", "zh")}


def test_a_table_that_is_no_table_of_examples_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_text(
        "label\tlanguage\thistory\tmessage\tsplit\nsearch\ten\t\tweather\tx\nplay\ten\t\tsong\tx\n"
    )
    with pytest.raises(DamagedError, match="line 3: 'play' is not a valid Intent"):
        load_examples(path)
    path.write_text("a,b\n")
    with pytest.raises(DamagedError, match="does not begin with the columns"):
        load_examples(path)


def test_a_fit_tells_unseen_requests_apart() -> None:
    examples = load_examples(BUILDING)[::4]
    fitted = fit(examples, word_matrix(examples))
    assert fitted.accuracy(examples) > 0.75  # 0.36 by chance
    scores = fitted.read_out.scores(word_features("weather in Oslo today"))
    assert int(scores.argmax()) == list(Intent).index(SEARCH)


def test_hidden_states_are_those_that_the_model_goes_on_from(smollm: LoadedModel) -> None:
    ids = smollm.tokenizer.encode("The sea is")
    kinds = [type(layer) for layer in smollm.model.layers]
    states = hidden_states(smollm, ids, [0, -1])
    assert states.shape == (2, len(ids), 576) and states.dtype == np.float32
    network = smollm.model.model
    logits = network.embed_tokens.as_linear(network.norm(mx.array(states[1:]).astype(smollm.dtype)))
    assert mx.allclose(logits, smollm.model(mx.array([ids])), atol=1e-3)
    assert [type(layer) for layer in smollm.model.layers] == kinds


@pytest.mark.parametrize(
    "make", ["tiny_gemma3", "tiny_qwen35", "tiny_gemma4", "tiny_nemotron", "tiny_biased"]
)
def test_all_kinds_of_layers_show_their_states(make: str, smollm: LoadedModel) -> None:
    from dataclasses import replace

    network = getattr(tiny_models, make)()
    model = replace(smollm, model=network)
    before = network(mx.array([[3, 1, 4, 1, 5]]))
    last = layer_count(model) - 1
    states = hidden_states(model, [3, 1, 4, 1, 5], [0, last])
    assert states.shape[:2] == (2, 5) and np.isfinite(states).all() and not np.array_equal(*states)
    assert mx.array_equal(network(mx.array([[3, 1, 4, 1, 5]])), before)


def test_metadata_of_the_shipped_read_outs_names_their_features() -> None:
    for path in read_out.SHIPPED.glob("*.safetensors"):
        data = path.read_bytes()
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        assert header["__metadata__"]["features"] == read_out.features_digest()


@pytest.mark.slow
def test_the_held_out_half_is_taken_for_what_it_is(router: IntentRouter) -> None:
    path = HELD_OUT if HELD_OUT.is_file() else Path(__file__).parent / "data" / HELD_OUT.name
    examples = load_examples(path)
    right = sum(
        router.route(e.message, talk(*(text for _, text in e.history))).intent is e.label for e in examples
    )
    assert right / len(examples) >= 0.90


@pytest.mark.parametrize(
    ("message", "files", "answered", "plain"),
    [
        ("Summarise README.md in one line", ["docs/README.md"], False, True),
        ("Summarise README.md in one line", [], True, False),
        ("rename the function in hello.py to main", ["hello.py"], False, True),
        ("rename ahello.py to b.py", ["hello.py"], False, False),
        ("把 hello.py里的函数改名", ["hello.py"], False, True),
        ("run hello.py", ["hello.py"], False, False),
        ("Fix the bug in this file", ["hello.py"], False, True),
        ("how big is this file", [], True, False),
        ("explain this code", [], True, True),
        ("explain this code", [], False, False),
        ("解释这段代码", [], True, True),
        ("列出这个文件夹里最大的五个文件", ["hello.py"], True, False),
        ("say A", [], False, True),
        ("say how warm it is in Oslo now", [], False, False),
        ("line one\nline two", [], False, True),
        ("search the web for this:\nlighthouse keepers", [], False, False),
        ("list the files here", ["hello.py"], True, False),
    ],
)
def test_what_is_about_the_talk_is_for_the_model(
    message: str, files: list[str], answered: bool, plain: bool
) -> None:
    assert is_plain(message, files, answered) is plain
