"""Sessions to files and back: words in three formats, whole sessions, and mlx-lm's prompt caches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from pydoc_data.topics import topics

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_process import Completed
from mlx_lm.models import llama
from mlx_lm.models.cache import (
    KVCache,
    RotatingKVCache,
    load_prompt_cache,
    make_prompt_cache,
    save_prompt_cache,
)
from mlx_lm.tokenizer_utils import TokenizerWrapper
from safetensors.numpy import save_file

from satchel.cache_store.loading import load_snapshot
from satchel.cache_store.local import LocalStore
from satchel.cache_store.manifest import Manifest, Message
from satchel.cache_store.sessions import open_session, save_snapshot
from satchel.cache_store.snapshot import Block, Snapshot, canonical_json
from satchel.config.profiles import get_profile
from satchel.config.settings import Settings
from satchel.engine import model as model_module
from satchel.engine.generate import Delta
from satchel.engine.model import LoadedModel
from satchel.engine.prompt_cache import open_prompt_cache
from satchel.errors import DamagedError, NotFoundError, UsageError, VersionError
from satchel.exchange import tensors, token_ids
from satchel.exchange.chat_text import parse_messages
from satchel.exchange.endings import format_of
from satchel.exchange.markdown import from_markdown, to_markdown
from satchel.exchange.prompt_caches import export_prompt_cache, import_prompt_cache
from satchel.exchange.tensors import import_tensors, write_session
from satchel.exchange.token_ids import check_token_ids, find_token_ids
from satchel.exchange.transcript import Transcript, from_json_text, from_jsonl, to_json, to_jsonl
from satchel.exchange.words import export_words, import_words, read_token_ids, recognise
from satchel.session import Session, SessionManager

TALK = (
    Message(role="system", content="Be brief."),
    Message(role="user", content="Say `a` & \u201cb\u201d"),
    Message(role="assistant", content="a\nb"),
)
SYSTEM = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
)
QUESTION = "Name the capital of France, and the river that flows through it."
LONG = topics["assignment"]
TOKENS = 230  # of a longer context: more than are kept exactly


def talk(**fields: object) -> Transcript:
    return replace(Transcript(TALK, "bruno", "embedded", "turbo4", "2026-11-29T12:00:00+00:00", 9), **fields)


# Words as text


def test_markdown_has_a_heading_for_each_message() -> None:
    assert to_markdown(talk()) == (
        '---\nsatchel: 1\nname: "bruno"\nmodel: "embedded"\nprofile: "turbo4"\n'
        'date: "2026-11-29T12:00:00+00:00"\ntokens: 9\n---\n\n'
        "## System\n\nBe brief.\n\n## User\n\nSay `a` & \u201cb\u201d\n\n## Assistant\n\na\nb\n"
    )


@pytest.mark.parametrize(
    ("content", "body"),
    [
        ("```python\nx = 1\n```\nand", "```python\nx = 1\n```\nand"),
        ("```\nnever closed", "````verbatim\n```\nnever closed\n````"),
        ("see\n## User\nthere", "```verbatim\nsee\n## User\nthere\n```"),
        ("<!-- hidden", "```verbatim\n<!-- hidden\n```"),
        (" indented", "```verbatim\n indented\n```"),
        ("", "```verbatim\n\n```"),
        ("a\x1b[31m", "```verbatim\na\x1b[31m\n```"),
    ],
)
def test_markdown_fences_only_what_would_not_come_back(content: str, body: str) -> None:
    written = to_markdown(Transcript((Message(role="user", content=content),)))
    assert written.split("---\n")[2] == f"\n## User\n\n{body}\n"


lines = st.sampled_from(
    [
        "",
        "a",
        " ",
        "## User",
        "## Assistant",
        "```",
        "```verbatim",
        "````",
        "~~~",
        "---",
        "<b>",
        "\r",
        "\u2028",
    ]
)
contents = st.one_of(st.text(), st.lists(lines, max_size=6).map("\n".join))
roles = st.sampled_from(["system", "user", "assistant"])
messages = st.lists(st.builds(Message, role=roles, content=contents), min_size=1, max_size=4).map(tuple)


@given(messages, st.text(max_size=20))
def test_words_come_back_from_every_format(said: tuple[Message, ...], name: str) -> None:
    transcript = Transcript(said, name, "m", "p", "d", 2, (1, 2))
    assert from_json_text(to_json(transcript)) == transcript
    assert from_markdown(to_markdown(transcript)) == replace(transcript, token_count=0, token_ids=())
    assert from_jsonl(to_jsonl(transcript)).messages == said


def test_json_is_one_document() -> None:
    assert json.loads(to_json(talk(token_ids=(5, 7)))) == {
        "format": "satchel-session",
        "version": 1,
        "name": "bruno",
        "model": "embedded",
        "profile": "turbo4",
        "date": "2026-11-29T12:00:00+00:00",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Say `a` & \u201cb\u201d"},
            {"role": "assistant", "content": "a\nb"},
        ],
        "token_ids": [5, 7],
    }


def test_jsonl_is_a_message_a_line() -> None:
    assert to_jsonl(talk()).split("\n") == [
        '{"role": "system", "content": "Be brief."}',
        '{"role": "user", "content": "Say `a` & \u201cb\u201d"}',
        '{"role": "assistant", "content": "a\\nb"}',
        "",
    ]


@pytest.mark.parametrize(
    "text",
    [
        '[{"role": "user", "content": "Hi", "name": "x"}]',
        '{"model": "gpt", "messages": [{"role": "user", "content": "Hi"}]}',
    ],
)
def test_message_lists_of_others_are_read(text: str) -> None:
    assert from_json_text(text).messages == (Message(role="user", content="Hi"),)


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (
            from_jsonl,
            '{"role": "user", "content": "Hi"}\n{"role": "tool", "content": "1"}',
            "message 2 has the role 'tool'; system, user, assistant can be imported",
        ),
        (
            from_json_text,
            '[{"role": "user", "content": [{"type": "image"}]}]',
            "message 1: its content is not text",
        ),
        (from_json_text, '[{"role": "assistant", "content": null}]', "message 1: its content is not text"),
        (from_json_text, "[3]", "message 1 has no role; system"),
        (from_json_text, "[]", "it holds no messages"),
        (from_json_text, '"text"', "it is neither a session nor a list of messages"),
        (from_json_text, "[" * 100_000, "it is not JSON"),
        (from_jsonl, '{"role": "user", "content": "Hi"}\n{"role": ', "line 2: it is not JSON"),
        (from_json_text, to_json(talk()).replace('"Be', '7, "Be'), "it is not JSON"),
        (from_markdown, "# A page\n", "it has no front matter"),
        (from_markdown, to_markdown(talk()).replace("## System", "words"), "it has 'words' where a message"),
        (from_markdown, "---\nsatchel: 1\n---\n\n## User\n\n```verbatim\nHi\n", "a message has no end"),
    ],
)
def test_what_is_no_talk_is_refused_in_one_line(
    read: Callable[[str], Transcript], text: str, message: str
) -> None:
    with pytest.raises(DamagedError) as caught:
        read(text)
    assert str(caught.value).startswith(message)
    assert "\n" not in caught.value.one_line()


@pytest.mark.parametrize(
    ("text", "format_name"),
    [
        (to_markdown(talk()), "md"),
        (to_json(talk()), "json"),
        (to_json(talk())[:-9], "json"),
        (to_jsonl(talk()), "jsonl"),
        (to_jsonl(Transcript(TALK[:1])), "jsonl"),
        ('\ufeff[{"role": "user", "content": "Hi"}]', "json"),
        ('{"messages": []}', "json"),
    ],
)
def test_a_format_is_recognised_by_its_content(tmp_path: Path, text: str, format_name: str) -> None:
    file = tmp_path / "file.txt"
    file.write_text(text, encoding="utf-8")
    assert recognise(file) == format_name


def test_other_files_are_not_recognised(tmp_path: Path) -> None:
    for number, data in enumerate((b"", b"words", b"\xff\xfe{", b"\x00" * 64)):
        file = tmp_path / str(number)
        file.write_bytes(data)
        with pytest.raises(DamagedError, match="is of no format that can be imported"):
            recognise(file)
    with pytest.raises(NotFoundError, match="there is no file"):
        recognise(tmp_path / "none")
    with pytest.raises(DamagedError, match="is not a file"):
        recognise(tmp_path)


def test_imported_words_are_a_session_to_go_on_with(tmp_path: Path, satchel_home: Path) -> None:
    store, file = LocalStore(satchel_home), tmp_path / "from elsewhere.json"
    file.write_text(to_json(talk()), encoding="utf-8")
    names = [
        import_words(store, file, "json", name=None, model=None, settings=Settings()).name for _ in range(2)
    ]
    file.write_text(to_jsonl(talk()), encoding="utf-8")
    names.append(import_words(store, file, "jsonl", name=None, model="other", settings=Settings()).name)
    assert names == ["bruno", "bruno-2", "from elsewhere"]
    manifests = [open_session(store, name).manifest for name in names]
    assert [manifest.messages for manifest in manifests] == [TALK] * 3
    assert [manifest.model_name for manifest in manifests] == ["embedded", "embedded", "other"]
    assert [manifest.token_count for manifest in manifests] == [0, 0, 0]
    with pytest.raises(UsageError, match="there is a session called 'bruno' already"):
        import_words(store, file, "jsonl", name="bruno", model=None, settings=Settings())


@pytest.mark.parametrize("text", ["[1, 2,\n 30]", "1 2 30\n", "1,2,30"])
def test_token_ids_are_read_from_lists_and_from_text(tmp_path: Path, text: str) -> None:
    file = tmp_path / "ids"
    file.write_text(text)
    assert read_token_ids(file) == [1, 2, 30]


@pytest.mark.parametrize("text", ["", "[1, -2]", "1.5", "one", "[99999999999]"])
def test_what_is_no_list_of_token_ids_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "ids"
    file.write_text(text)
    with pytest.raises(DamagedError, match="ids is no list of token ids"):
        read_token_ids(file)


# Whole sessions


def stored_session(store: LocalStore, tokens: int = 520) -> Manifest:
    """A session with two blocks and a tail, of arrays that mean nothing."""
    rng = np.random.default_rng(7)

    def block(start: int, stop: int, checkpoint: bool = False) -> Block:
        arrays = {
            "g0.k.codes": rng.integers(0, 1 << 32, (2, 1, stop - start, 8), np.uint32),
            "g0.k.grid": rng.integers(0, 1 << 16, (2, 1, stop - start, 1), np.uint16),
            "g0.v.window": rng.standard_normal((2, 1, 3, 4)).astype(np.float16),
            "empty": np.zeros((2, 0, 4), np.float32),
        }
        ids = rng.integers(0, 49152, stop - start, np.uint32)
        return Block(start, stop, ids, arrays, {"groups": [[0, 1]], "dtypes": {}}, checkpoint)

    blocks = (block(0, 256), block(256, 512, checkpoint=True))
    snapshot = Snapshot({"model": {"weights": "w"}}, blocks, block(512, tokens))
    return save_snapshot(
        store,
        snapshot,
        TALK,
        name="bruno",
        model_name="embedded",
        profile_name="turbo4",
        archived_from="turbo4",
    ).manifest


def test_a_whole_session_comes_back_bit_for_bit(tmp_path: Path) -> None:
    store, other, file = LocalStore(tmp_path / "a"), LocalStore(tmp_path / "b"), tmp_path / "s.safetensors"
    manifest = stored_session(store)
    write_session(file, store, manifest)
    assert recognise(file) == "safetensors"
    made = import_tensors(other, file, None)
    assert (made.name, made.messages, made.tokens) == ("bruno", 3, 520)

    back = open_session(other, "bruno").manifest
    assert back.messages == manifest.messages
    assert back.identity == manifest.identity
    assert back.archived_from == "turbo4"
    assert [ref.chain_key for ref in back.blocks] == [ref.chain_key for ref in manifest.blocks]
    assert [ref.sha256 for ref in back.blocks] == [ref.sha256 for ref in manifest.blocks]
    assert [ref.checkpoint for ref in back.blocks] == [False, True]
    before, after = load_snapshot(store, manifest), load_snapshot(other, back)
    assert before is not None and after is not None
    for old, new in zip((*before.blocks, before.tail), (*after.blocks, after.tail), strict=True):
        assert (old.start, old.stop, old.meta) == (new.start, new.stop, new.meta)
        assert old.arrays.keys() == new.arrays.keys()
        for name in old.arrays:
            np.testing.assert_array_equal(old.arrays[name], new.arrays[name], strict=True)


def test_a_session_without_state_comes_back_as_words(tmp_path: Path) -> None:
    store, file = LocalStore(tmp_path / "a"), tmp_path / "s.safetensors"
    manifest = stored_session(store).words_alone()
    write_session(file, store, manifest)
    assert import_tensors(store, file, "again").tokens == 0
    assert open_session(store, "again").manifest.messages == TALK


def test_words_of_a_stored_session_are_exported(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    manifest = stored_session(store)
    document = json.loads(export_words(store, manifest, "json"))
    assert len(document["token_ids"]) == 520
    assert document["messages"][2] == {"role": "assistant", "content": "a\nb"}
    assert "\ntokens: 520\n" in export_words(store, manifest, "md")
    assert len(export_words(store, manifest, "jsonl").split("\n")) == 4


def test_words_are_exported_where_the_state_is_lost(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    manifest = stored_session(store)
    for path in tmp_path.glob("v1/blocks/*/*"):
        path.unlink()
    document = json.loads(export_words(store, manifest, "json"))
    assert (document["token_ids"], len(document["messages"])) == ([], 3)
    with pytest.raises(DamagedError, match=r"cannot be exported with its state: block .* is missing"):
        write_session(tmp_path / "s.safetensors", store, manifest)


def test_a_damaged_file_is_no_session(tmp_path: Path) -> None:
    """A bit flipped anywhere, and a file that was cut short."""
    store, other, file = LocalStore(tmp_path / "a"), LocalStore(tmp_path / "b"), tmp_path / "s.safetensors"
    write_session(file, store, stored_session(store))
    whole, broken = file.read_bytes(), tmp_path / "broken.safetensors"
    for at in [*range(0, len(whole), len(whole) // 150), len(whole) - 1]:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        broken.write_bytes(damaged)
        with pytest.raises(DamagedError):
            import_tensors(other, broken, None)
    for length in (0, 7, 8, 9, 1000, len(whole) - 1):
        broken.write_bytes(whole[:length])
        with pytest.raises(DamagedError):
            import_tensors(other, broken, None)
    assert not list((tmp_path / "b").glob("v1/heads/*.json"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2, "objects": 7}, "it has version 2 and this Satchel reads 1"),
        ({"manifest": {"format_version": 2}}, "it was saved by another version of Satchel (format 2, not 1)"),
        ({"colour": "red"}, "it was saved by another version of Satchel (colour is not known)"),
    ],
)
def test_a_whole_file_of_another_version_is_not_called_damaged(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    store, file = LocalStore(tmp_path), tmp_path / "s.safetensors"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensors, "canonical_json", lambda value: canonical_json(value | changes))
        write_session(file, store, stored_session(store))
    with pytest.raises(VersionError) as caught:
        import_tensors(store, file, None)
    assert str(caught.value) == f"s.safetensors cannot be imported: {message}"


@pytest.mark.parametrize("format_name", ["json", "md"])
def test_words_of_another_version_are_not_called_damaged(tmp_path: Path, format_name: str) -> None:
    store, file = LocalStore(tmp_path), tmp_path / "talk"
    text = {
        "json": to_json(talk()).replace(": 1,", ": 2,"),
        "md": to_markdown(talk()).replace("l: 1", "l: 2"),
    }[format_name]
    file.write_text(text)
    with pytest.raises(VersionError) as caught:
        import_words(store, file, format_name, name=None, model=None, settings=Settings())
    assert str(caught.value) == "talk cannot be imported: it has version 2 and this Satchel reads 1"


@pytest.mark.parametrize("name", ["../x", "tokens"])
def test_arrays_with_names_that_no_session_has_are_refused(tmp_path: Path, name: str) -> None:
    store, file = LocalStore(tmp_path / "a"), tmp_path / "s.safetensors"
    manifest = stored_session(store)
    snapshot = load_snapshot(store, manifest)
    assert snapshot is not None
    hostile = Block(512, 520, snapshot.tail.token_ids, {name: np.zeros(8, np.uint32)}, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensors, "load_snapshot", lambda *_: replace(snapshot, tail=hostile))
        write_session(file, store, manifest)
    with pytest.raises(DamagedError):
        import_tensors(store, file, None)
    assert [head.name for head in store.heads().heads] == ["bruno"]


def test_a_file_of_other_arrays_is_no_session(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    for metadata in ({}, {"satchel": "{}"}, {"satchel": "[" * 10_000}):
        save_file({"tail/x": np.zeros(3, np.float64)}, file, metadata)
        with pytest.raises(DamagedError):
            import_tensors(LocalStore(tmp_path), file, None)


# Prompt caches


def chat_ids(model: LoadedModel, question: str) -> list[int]:
    """The tokens that `mlx_lm.cache_prompt` reads: the question's message, without its end."""
    ids: list[int] = model.tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=False, continue_final_message=True
    )
    return ids


def read(model: LoadedModel, ids: list[int]) -> list[KVCache]:
    caches = make_prompt_cache(model.model)
    mx.eval(model.model(mx.array([ids]), cache=caches))
    return caches


def narrow(caches: list[KVCache], dtype: mx.Dtype) -> list[KVCache]:
    return [KVCache.from_state((c.keys.astype(dtype), c.values.astype(dtype), c.offset)) for c in caches]


@pytest.fixture(scope="module")
def ids(smollm: LoadedModel) -> list[int]:
    return chat_ids(smollm, QUESTION)


@pytest.fixture(scope="module")
def caches(smollm: LoadedModel, ids: list[int]) -> list[KVCache]:
    return read(smollm, ids)


@pytest.fixture
def manager(smollm: LoadedModel, satchel_home: Path) -> SessionManager:
    return SessionManager(
        LocalStore(satchel_home), smollm, get_profile("turbo4"), Settings(temperature=0.0, seed=1)
    )


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(held: list[object], **metadata: str) -> Path:
        file = tmp_path / "prompt.safetensors"
        save_prompt_cache(str(file), held, metadata)
        return file

    return write


def say(session: Session, text: str, tokens: int = 8) -> list[int | None]:
    events = session.reply(text, max_tokens=tokens, cancel=threading.Event())
    return [event.token_id for event in events if isinstance(event, Delta)]


QUICK_KINDS = ((mx.float32, None), (mx.bfloat16, 4), (mx.float16, 2))


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        pytest.param(dtype, bits, marks=[] if (dtype, bits) in QUICK_KINDS else pytest.mark.slow)
        for dtype in (mx.float32, mx.float16, mx.bfloat16)
        for bits in (None, 8, 4, 2)
    ],
)
def test_token_ids_are_found_by_the_first_layers_values(
    smollm: LoadedModel, ids: list[int], caches: list[KVCache], write, dtype: mx.Dtype, bits: int | None
) -> None:
    held = narrow(caches, dtype)
    source = open_prompt_cache(write([c.to_quantized(64, bits) for c in held] if bits else held))
    assert recognise(source.path) == "mlx-lm"
    assert source.tokens == len(ids)
    assert find_token_ids(smollm, source) == ids
    check_token_ids(smollm, source, ids)


@pytest.mark.parametrize("dtype", [pytest.param(mx.float32, marks=pytest.mark.slow), mx.float16])
def test_an_imported_cache_goes_on_like_a_session_that_read_the_same(
    manager: SessionManager, ids: list[int], caches: list[KVCache], write, dtype: mx.Dtype
) -> None:
    made = import_prompt_cache(manager, write(narrow(caches, dtype)), name=None, token_ids=None)
    assert (made.name, made.messages, made.tokens, made.notices) == ("prompt", 1, len(ids), ())
    imported, fresh = manager.open("prompt"), manager.new()
    assert imported.messages == [Message(role="user", content=QUESTION)]
    assert (imported.token_ids, imported.notices) == (ids, [])
    fresh.messages = list(imported.messages)
    answer = say(imported, "Only the names.")
    assert imported._last_stats is not None
    assert imported._last_stats.reused_tokens == len(ids)
    assert answer == say(fresh, "Only the names.")
    assert len(answer) == 8


def test_a_longer_cache_comes_back_out_as_it_went_in(
    manager: SessionManager, smollm: LoadedModel, write, tmp_path: Path
) -> None:
    """Exactly where our cache is exact, and within the profile's error in the body."""
    ids = chat_ids(smollm, LONG)[:TOKENS]
    held = narrow(read(smollm, ids), mx.float16)
    import_prompt_cache(manager, write(held, token_ids=json.dumps(ids)), name="long", token_ids=None)
    file = tmp_path / "out.safetensors"
    export_prompt_cache(file, manager, "long")
    back, metadata = load_prompt_cache(str(file), return_metadata=True)
    assert json.loads(metadata["token_ids"]) == ids
    assert metadata["tokenizer_config"] == "{}"
    assert {cache.offset for cache in back} == {TOKENS}
    for old, new in zip(held, back, strict=True):
        for before, after in ((old.keys, new.keys), (old.values, new.values)):
            assert after.dtype == mx.float16
            x, y = np.array(before)[:, :, :TOKENS], np.array(after)
            np.testing.assert_array_equal(x[:, :, :4], y[:, :, :4])
            np.testing.assert_array_equal(x[:, :, -128:], y[:, :, -128:])
            error = np.linalg.norm((x - y).astype(np.float32)) / np.linalg.norm(x.astype(np.float32))
            assert 0.001 < error < 0.15
    assert import_prompt_cache(manager, file, name="again", token_ids=None).tokens == TOKENS


def test_given_token_ids_are_checked(
    smollm: LoadedModel, ids: list[int], caches: list[KVCache], write
) -> None:
    source = open_prompt_cache(write(caches))
    with pytest.raises(DamagedError, match=f"holds {len(ids)} tokens, and {len(ids) - 1} token ids were"):
        check_token_ids(smollm, source, ids[1:])
    with pytest.raises(DamagedError, match="not of this model's vocabulary"):
        check_token_ids(smollm, source, [49152, *ids[1:]])
    with pytest.raises(DamagedError, match=r"token 3 of prompt\.safetensors is not the given 77"):
        check_token_ids(smollm, source, [*ids[:3], 77, *ids[4:]])
    with pytest.raises(DamagedError, match="its keys and values are not this model's"):
        check_token_ids(smollm, source, [*ids[1:], 0])


def test_another_models_cache_is_refused(
    smollm: LoadedModel, ids: list[int], caches: list[KVCache], write
) -> None:
    mx.random.seed(3)
    foreign = [
        KVCache.from_state((mx.random.normal(c.keys.shape), mx.random.normal(c.values.shape), c.offset))
        for c in caches
    ]
    source = open_prompt_cache(write(foreign, model="somebody/other"))
    for look in (lambda: find_token_ids(smollm, source), lambda: check_token_ids(smollm, source, ids)):
        with pytest.raises(DamagedError, match="its keys and values are not this model's") as caught:
            look()
        assert "the file names 'somebody/other'" in caught.value.hint


def test_other_weights_above_the_first_layer_are_noticed(
    smollm: LoadedModel, caches: list[KVCache], write
) -> None:
    source = open_prompt_cache(write([*caches[:3], caches[4], caches[3], *caches[5:]]))
    with pytest.raises(DamagedError, match="not this model's in layer 3"):
        find_token_ids(smollm, source)


@pytest.fixture
def tiny(smollm: LoadedModel) -> LoadedModel:
    """A small random model in which tokens 4 and 5 are all but one and the same."""
    mx.random.seed(1)
    args = llama.ModelArgs(
        model_type="llama",
        hidden_size=64,
        num_hidden_layers=2,
        intermediate_size=64,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=64,
        rms_norm_eps=1e-5,
        vocab_size=1000,
        tie_word_embeddings=True,
    )
    model = llama.Model(args)
    weight = model.model.embed_tokens.weight
    weight[5] = weight[4] + 1e-4 * weight[6]
    mx.eval(model.parameters())
    return replace(smollm, name="tiny", model=model, args=args)


@pytest.mark.parametrize("step", [2048, 5])
def test_tokens_that_cannot_be_told_apart_must_be_named(
    tiny: LoadedModel, write, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Also where the second nearest was the nearest of those seen before."""
    monkeypatch.setattr(token_ids, "VOCABULARY_STEP", step)
    source = open_prompt_cache(write(read(tiny, [7, 8, 5])))
    with pytest.raises(UsageError, match=r"token 2 of prompt\.safetensors could be 5 or 4") as caught:
        find_token_ids(tiny, source)
    assert "--tokens" in caught.value.hint
    check_token_ids(tiny, source, [7, 8, 5])
    assert find_token_ids(tiny, open_prompt_cache(write(read(tiny, [7, 999, 6])))) == [7, 999, 6]


def test_a_cache_of_other_shapes_is_refused(manager: SessionManager, tiny: LoadedModel, write) -> None:
    file = write(read(tiny, [7, 8, 6]))
    with pytest.raises(DamagedError, match=r"the layers in prompt\.safetensors are not those of this model"):
        import_prompt_cache(manager, file, name=None, token_ids=None)


def test_a_text_that_is_no_talk_becomes_one_message(
    manager: SessionManager, smollm: LoadedModel, write
) -> None:
    ids = smollm.tokenizer.encode("Once upon a time, there was a satchel.")
    made = import_prompt_cache(manager, write(read(smollm, ids)), name="story", token_ids=ids)
    assert (made.messages, made.tokens) == (1, 0)
    assert made.notices == (
        "its text is not a talk as this model has them: it is one message now, to be read again",
    )
    words = Message(role="user", content="Once upon a time, there was a satchel.")
    assert open_session(manager.store, "story").manifest.messages == (words,)


def earlier_layout(path: Path, held: list[object], numbers: tuple[int, ...]) -> Path:
    """As mlx-lm wrote before the offset was among the arrays: without padding, each cache's strings first."""
    arrays, metadata = {}, {"1.model": "embedded"}
    for index, cache in enumerate(held):
        for side, array in enumerate((cache.keys, cache.values)):
            if numbers:
                parts = {f"{index}.{side}.{place}": part for place, part in enumerate(array)}
            else:
                parts = {f"{index}.{side}": array[:, :, : cache.offset]}
            arrays |= parts
        if numbers:
            metadata |= {f"0.{index}.{place}": str(number) for place, number in enumerate(numbers)}
        else:
            metadata[f"0.{index}"] = ""
        metadata[f"2.{index}"] = type(cache).__name__
    mx.save_safetensors(str(path), arrays, metadata)
    return path


def test_the_layout_of_earlier_versions_is_read(
    smollm: LoadedModel, ids: list[int], caches: list[KVCache], tmp_path: Path
) -> None:
    dense = open_prompt_cache(earlier_layout(tmp_path / "a.safetensors", caches, ()))
    codes = [cache.to_quantized(32, 8) for cache in caches]
    quantised = earlier_layout(tmp_path / "b.safetensors", codes, (256, len(ids), 32, 8))
    for source in (dense, open_prompt_cache(quantised)):
        assert (source.tokens, dict(source.metadata)) == (len(ids), {"model": "embedded"})
        check_token_ids(smollm, source, ids)


def header_of(caches: list[KVCache], **changes: object) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Arrays and metadata of a file with one layer, three tokens, and `changes`."""
    arrays: dict[str, object] = {
        "0.0": np.zeros((1, 1, 4, 8), np.float16),
        "0.1": np.zeros((1, 1, 4, 8), np.float16),
        "0.2": np.array(3, np.int32),
    }
    metadata = {"1.0": "KVCache", "2.0": "", "2.1.0": "0.2", "2.1.1": "scalar"}
    for name, value in changes.items():
        place = name.removeprefix("at_").replace("_", ".")
        if isinstance(value, str):
            metadata[place] = value
        elif value is None:
            arrays.pop(place, None)
            metadata.pop(place, None)
        else:
            arrays[place] = value
    return arrays, metadata  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"at_1_0": "RotatingKVCache"}, "it holds a RotatingKVCache, and only KVCache and QuantizedKVCache"),
        ({"at_1_0": None}, "it names no caches"),
        ({"at_1_0": "os.system"}, "it names no caches"),
        ({"at_0_2": None}, "it has no number 0.2"),
        ({"at_0_2": np.array(5, np.int32)}, "layer 0 has 4 and 4 rows for 5 tokens"),
        ({"at_0_2": np.array(-1, np.int32)}, "layer 0 has 4 and 4 rows for -1 tokens"),
        ({"at_0_2": np.array(0, np.int32)}, "its layers hold no tokens"),
        ({"at_0_1": None}, "it has no array 0.1"),
        ({"at_0_1": np.zeros((1, 2, 4, 8), np.float16)}, "layer 0 has 4 and 4 rows"),
        ({"at_0_1": np.zeros((2, 1, 4, 8), np.float16)}, r"array 0.1 is F16 \[2, 1, 4, 8\]"),
        ({"at_0_1": np.zeros((1, 1, 4, 8), np.float64)}, r"array 0.1 is F64"),
        ({"at_1_0": "QuantizedKVCache"}, "it has no number 0.3"),
        ({"at_1_1": "KVCache"}, "it has no array 1.0"),
    ],
)
def test_a_header_at_odds_with_itself_is_refused(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    file = tmp_path / "x.safetensors"
    arrays, metadata = header_of([], **changes)
    save_file(arrays, file, metadata)
    with pytest.raises(DamagedError, match=message) as caught:
        open_prompt_cache(file)
    assert "\n" not in caught.value.one_line()


def test_a_whole_header_is_read(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    save_file(*header_of([])[:1], file, header_of([])[1])
    assert open_prompt_cache(file).tokens == 3


def test_values_that_are_no_numbers_are_refused(
    smollm: LoadedModel, manager: SessionManager, ids: list[int], caches: list[KVCache], write
) -> None:
    held = narrow(caches, mx.float32)
    held[0].values[0, 0, 1, 2] = float("nan")
    with pytest.raises(DamagedError, match="holds values that are infinite or not numbers"):
        find_token_ids(smollm, open_prompt_cache(write(held)))
    held = narrow(caches, mx.float32)
    held[7].keys[0, 0, 33, 2] = float("inf")
    with pytest.raises(DamagedError, match="holds values that are infinite or not numbers"):
        import_prompt_cache(manager, write(held), name=None, token_ids=ids)


def test_sliding_windows_are_refused_by_name(manager: SessionManager, write) -> None:
    window = RotatingKVCache(max_size=8)
    window.update_and_fetch(mx.zeros((1, 3, 4, 64)), mx.zeros((1, 3, 4, 64)))
    with pytest.raises(DamagedError, match="it holds a RotatingKVCache") as caught:
        import_prompt_cache(manager, write([window]), name=None, token_ids=None)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("length", [0, 8, 200, 5000, -1])
def test_a_prompt_cache_cut_short_is_refused(
    manager: SessionManager, caches: list[KVCache], write, length: int
) -> None:
    file = write(caches)
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(DamagedError, match="not a whole safetensors file"):
        import_prompt_cache(manager, file, name=None, token_ids=None)


def test_a_session_without_state_has_no_prompt_cache(manager: SessionManager, tmp_path: Path) -> None:
    file = tmp_path / "talk.jsonl"
    file.write_text(to_jsonl(talk()))
    import_words(manager.store, file, "jsonl", name="words", model=None, settings=Settings())
    with pytest.raises(NotFoundError, match="'words' has no state to export"):
        export_prompt_cache(tmp_path / "out", manager, "words")


# The text of a cache


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SYSTEM + "<|im_start|>user\nHi <a", [("user", "Hi <a")]),
        (SYSTEM + "<|im_start|>user\nHi<|im_end|>\n", [("user", "Hi")]),
        (SYSTEM + "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", [("user", "Hi")]),
        (
            SYSTEM + "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYo <",
            [("user", "Hi"), ("assistant", "Yo <")],
        ),
        (
            "<|im_start|>system\nBe x.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\nYo<|im_end|>\n<|im_start|>user\nMore\n<|im_end|>",
            [("system", "Be x."), ("user", "Hi"), ("assistant", "Yo"), ("user", "More\n")],
        ),
        ("plain text", None),
        ("", None),
        ("<|im_start|>system\nBe x.<|im_end|>\n", None),
        (SYSTEM + "<|im_start|>user\nHi<|im_end|>\n<|im_start|>tool\n3<|im_end|>\n", None),
    ],
)
def test_messages_are_parsed_by_the_models_own_template(
    smollm: LoadedModel, text: str, expected: list[tuple[str, str]] | None
) -> None:
    parsed = parse_messages(smollm.tokenizer, text)
    assert (parsed and [(message.role, message.content) for message in parsed]) == expected


# As those of thinking models that are asked not to: a new answer begins with an empty thought.
THINKING = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}<|im_start|>assistant\n<think>\n\n</think>{{ '\n\n' }}"
)


@pytest.mark.parametrize(
    ("template", "text", "words"),
    [
        (
            THINKING,
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nYo",
            ["Hi", "Yo"],
        ),
        (
            THINKING,
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
            ["Hi"],
        ),
        (None, "User: Hi\n\nAssistant: Yo\n\nUser: More", ["Hi", "Yo", "More"]),
        (None, "System: Be x.\n\nUser: Hi\n\nAssistant:", ["Be x.", "Hi"]),
    ],
)
def test_other_templates_are_parsed_as_well(
    smollm: LoadedModel, template: str | None, text: str, words: list[str]
) -> None:
    hugging_face = copy(smollm.tokenizer._tokenizer)
    hugging_face.chat_template = template
    tokenizer = TokenizerWrapper(hugging_face, type(smollm.tokenizer._detokenizer))
    bos = "" if template else tokenizer.bos_token
    parsed = parse_messages(tokenizer, bos + text)
    assert parsed is not None
    assert [message.content for message in parsed] == words


# The command line


@pytest.fixture
def satchel_code(tmp_path: Path) -> Callable[..., Completed]:
    """Code that runs the command line, in a process of its own."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SATCHEL_")}
    if cache := os.environ.get("SATCHEL_CACHE"):
        kept["SATCHEL_CACHE"] = cache
    environment = kept | {"SATCHEL_HOME": str(tmp_path / "home")}

    def run(code: str, *args: object) -> Completed:
        command = [sys.executable, "-c", code, *map(str, args)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)

    return run


def test_sessions_are_exported_and_imported_by_command(satchel, tmp_path: Path) -> None:
    stored_session(LocalStore(tmp_path / "home"))
    file = tmp_path / "out.safetensors"
    assert satchel("sessions", "export", "bruno", "--format", "safetensors", "--output", file).returncode == 0
    made = satchel("sessions", "import", file)
    assert (made.stdout, made.stderr) == ("bruno-2\n", "3 messages; 520 tokens\n")
    shown = satchel("sessions", "export", "bruno-2").stdout
    assert shown.startswith('---\nsatchel: 1\nname: "bruno-2"\n')
    (tmp_path / "talk.md").write_text(shown)
    made = satchel("sessions", "import", tmp_path / "talk.md", "--name", "words")
    assert (made.stdout, made.stderr) == ("words\n", "3 messages; not read yet\n")
    assert satchel("sessions", "export", "words", "--format", "jsonl").stdout == to_jsonl(talk())


def test_a_files_ending_says_what_is_exported_unless_the_format_is_named(satchel, tmp_path: Path) -> None:
    stored_session(LocalStore(tmp_path / "home"))
    for name, more, begins in (
        ("talk.JSON", (), b'{\n  "format": "satchel-session"'),
        ("talk.jsonl", (), b'{"role": "'),
        ("talk.md", (), b"---\nsatchel: 1\n"),
        ("talk.txt", ("--format", "md"), b"---\nsatchel: 1\n"),
        ("other.md", ("--format", "jsonl"), b'{"role": "'),
    ):
        done = satchel("sessions", "export", "bruno", "--output", tmp_path / name, *more)
        assert (done.returncode, done.stderr.splitlines()[-1]) == (0, f"written to {tmp_path / name}")
        assert (tmp_path / name).read_bytes().startswith(begins)
    whole = tmp_path / "talk.safetensors"
    assert satchel("sessions", "export", "bruno", "--output", whole).returncode == 0
    assert recognise(whole) == "safetensors"
    refused = satchel("sessions", "export", "bruno", "--output", tmp_path / "talk.doc")
    assert (refused.returncode, refused.stderr) == (
        2,
        "satchel: the name 'talk.doc' does not say what to write; it ends with .md, .json or .jsonl (the "
        "words), .safetensors (everything), or .mlx-lm.safetensors (a prompt cache for mlx-lm); "
        "--format says it, too\n",
    )
    assert not (tmp_path / "talk.doc").exists()


def test_the_longest_ending_counts() -> None:
    assert format_of("a.mlx-lm.safetensors") == "mlx-lm"
    assert format_of("a.safetensors") == "safetensors"


def test_a_file_is_replaced_only_when_asked(satchel, tmp_path: Path) -> None:
    stored_session(LocalStore(tmp_path / "home"))
    file = tmp_path / "out.md"
    file.write_text("mine")
    refused = satchel("sessions", "export", "bruno", "--output", file)
    assert (refused.returncode, file.read_text()) == (6, "mine")
    assert refused.stderr == f"satchel: there is a file {file}; --force replaces it\n"
    assert satchel("sessions", "export", "bruno", "--output", file, "--force").returncode == 0
    assert file.read_text().startswith("---\nsatchel: 1\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "out.md"]


@pytest.mark.parametrize(
    ("data", "args", "exit_code", "line"),
    [
        (b"words", [], 4, "file is of no format that can be imported"),
        (b'{"role": "tool", "content": ""}', [], 4, "file cannot be imported: message 1 has the role 'tool'"),
        (b'[{"role": "user", "content": "Hi"}]', ["--name", "a/b"], 2, "the session name 'a/b' has '/'"),
        (b'[{"role": "user", "content": "Hi"}]', ["--tokens", "x"], 2, "--tokens is for mlx-lm's prompt"),
        (
            b'[{"role": "user", "content": "Hi"}]',
            ["--format", "safetensors"],
            4,
            "file cannot be imported: it",
        ),
        (None, [], 3, "there is no file"),
    ],
)
def test_what_cannot_be_imported_is_one_line(
    satchel, tmp_path: Path, data: bytes | None, args: list[str], exit_code: int, line: str
) -> None:
    file = tmp_path / "file"
    if data is not None:
        file.write_bytes(data)
    result = satchel("sessions", "import", file, *args)
    assert (result.returncode, result.stdout) == (exit_code, "")
    assert result.stderr.startswith(f"satchel: {line}")
    assert result.stderr.count("\n") == 1


def test_exchange_without_a_model_imports_no_mlx(satchel_code, tmp_path: Path) -> None:
    stored_session(LocalStore(tmp_path / "home"))
    file = tmp_path / "out.safetensors"
    code = "import sys; from satchel.cli import run; run(sys.argv[1:]); print('mlx' in sys.modules)"
    export = ("sessions", "export", "bruno", "--format", "safetensors", "--output", file)
    exported = satchel_code(code, *export)
    assert exported.stdout == "False\n"
    assert satchel_code(code, "sessions", "import", file).stdout == "bruno-2\nFalse\n"


def test_a_prompt_cache_goes_in_and_out_by_command(
    satchel,
    smollm: LoadedModel,
    ids: list[int],
    caches: list[KVCache],
    write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_module, "load_model", lambda *_: smollm)
    file, tokens, out = write(caches), tmp_path / "ids.txt", tmp_path / "out.safetensors"
    tokens.write_text(" ".join(map(str, ids)))
    made = satchel("sessions", "import", file, "--tokens", tokens, "--name", "cached")
    assert (made.stdout, made.stderr) == ("cached\n", f"1 message; {len(ids)} tokens\n")
    result = satchel("sessions", "export", "cached", "--format", "mlx-lm", "--output", out)
    said = f"mlx_lm takes it with --model {smollm.path}\nwritten to {out}\n"
    assert (result.returncode, result.stderr) == (0, said)
    back, metadata = load_prompt_cache(str(out), return_metadata=True)
    assert metadata["model"] == str(smollm.path)
    np.testing.assert_array_equal(
        np.array(back[9].keys), np.array(caches[9].keys[:, :, : len(ids)].astype(mx.float16))
    )


def test_times_in_exports_are_those_of_the_save(tmp_path: Path) -> None:
    manifest = stored_session(LocalStore(tmp_path)).model_copy(
        update={"created_at": datetime(2026, 11, 29, 12, tzinfo=UTC)}
    )
    assert '\ndate: "2026-11-29T12:00:00+00:00"\n' in export_words(LocalStore(tmp_path), manifest, "md")
