"""Files that are hostile or odd, sessions whose state is lost, and places that cannot be written to."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from in_process import Run
from mlx_lm.models.cache import load_prompt_cache
from small_talks import QUESTION, manifest_of, open_manager, say, small_model

from satchel.cache_store.local import LocalStore
from satchel.cache_store.manifest import (
    MAX_HEAD_BYTES,
    Head,
    Manifest,
    Message,
    TailRef,
    decode_head,
    encode_head,
)
from satchel.cache_store.sessions import open_session, save_snapshot
from satchel.cache_store.snapshot import Block, Snapshot
from satchel.config.profiles import get_profile
from satchel.config.settings import Settings
from satchel.engine import model as model_module
from satchel.engine.model import LoadedModel
from satchel.errors import DamagedError, SatchelError
from satchel.exchange.markdown import _messages, from_markdown
from satchel.exchange.prompt_caches import export_prompt_cache
from satchel.exchange.tensors import import_tensors, write_session
from satchel.exchange.transcript import from_json_text, from_jsonl
from satchel.exchange.words import export_words, import_words

HI = (Message(role="user", content="Hi"),)
LIST = '[{"role": "user", "content": "Hi"}]'
ADVICE = "resume it and say something: its words are read again, and saved with a new state"
NOT_A_LINE = "name is not a printable line"


@pytest.fixture
def store(satchel_home: Path) -> LocalStore:
    return LocalStore(satchel_home)


@pytest.fixture
def small(smollm: LoadedModel) -> LoadedModel:
    mx.random.seed(1)
    return small_model(smollm)


def stored(store: LocalStore, **names: str) -> Manifest:
    """A session with one block and a tail, of arrays that mean nothing."""

    def block(start: int, stop: int) -> Block:
        ids = np.arange(start, stop, dtype=np.uint32)
        return Block(start, stop, ids, {"x": np.full((1, stop - start), start, np.float16)}, {})

    snapshot = Snapshot({"model": {"weights": "w"}}, (block(0, 256),), block(256, 260))
    named = {"name": "bruno", "model_name": "embedded", "profile_name": "turbo4"} | names
    return save_snapshot(store, snapshot, HI, **named).manifest


def words_of(store: LocalStore, file: Path, format_name: str, model: str | None = None) -> str:
    """The name of the session that a file of words becomes."""
    return import_words(store, file, format_name, name=None, model=model, settings=Settings()).name


def lose_blocks(store: LocalStore, manifest: Manifest) -> None:
    for ref in manifest.blocks:
        store.block_path(ref.sha256).unlink()


# Names in files


def document(model: str, profile: str) -> str:
    fields = {"name": "n", "model": model, "profile": profile, "date": "d", "token_ids": []}
    return json.dumps({"format": "satchel-session", "version": 1, **fields, "messages": json.loads(LIST)})


def page(model: str, profile: str) -> str:
    matter = f'satchel: 1\nname: "n"\nmodel: {json.dumps(model)}\nprofile: {json.dumps(profile)}'
    return f"---\n{matter}\n---\n\n## User\n\nHi\n"


@pytest.mark.parametrize(("format_name", "write"), [("json", document), ("md", page)])
@pytest.mark.parametrize(
    ("model", "profile", "message"),
    [
        ("m" * 257, "p", "its model's name has 257 characters, and 256 can be"),
        ("m", "p" * 129, "its KV profile's name has 129 characters, and 128 can be"),
        ("a\nb", "p", f"its model's {NOT_A_LINE}"),
        ("m", "p\x1b[2J", f"its KV profile's {NOT_A_LINE}"),
        ("m\u202e", "p", f"its model's {NOT_A_LINE}"),
    ],
)
def test_a_file_names_its_model_and_profile_in_short_lines(
    store: LocalStore,
    tmp_path: Path,
    format_name: str,
    write: Callable[[str, str], str],
    model: str,
    profile: str,
    message: str,
) -> None:
    file = tmp_path / "talk"
    file.write_text(write(model, profile))
    with pytest.raises(DamagedError) as caught:
        words_of(store, file, format_name)
    assert str(caught.value) == f"talk cannot be imported: {message}"
    assert store.heads().total == 0


def test_the_longest_names_are_taken_and_a_given_model_makes_do_without(
    store: LocalStore, tmp_path: Path
) -> None:
    file = tmp_path / "talk"
    file.write_text(page("m" * 256, "p" * 128))
    manifest = open_session(store, words_of(store, file, "md")).manifest
    assert (manifest.model_name, manifest.profile_name) == ("m" * 256, "p" * 128)
    file.write_text(page("m" * 257, "p"))
    assert open_session(store, words_of(store, file, "md", "mine")).manifest.model_name == "mine"


def test_a_whole_session_has_the_same_bounds(store: LocalStore, tmp_path: Path) -> None:
    file, other = tmp_path / "s.safetensors", LocalStore(tmp_path / "other")
    write_session(file, store, stored(store, model_name="m" * 257))
    with pytest.raises(DamagedError, match="model's name has 257 characters, and 256 can be") as caught:
        import_tensors(other, file, None)
    assert caught.value.hint == "--model names another"
    assert import_tensors(other, file, None, "mine").tokens == 260


@pytest.mark.parametrize("field", ["name", "model", "profile", "date"])
def test_half_a_character_is_refused(store: LocalStore, tmp_path: Path, field: str) -> None:
    """JSON can name a surrogate without its other half, which no file can be written with."""
    file = tmp_path / "talk.md"
    file.write_text(f'---\nsatchel: 1\n{field}: "\\ud800"\n---\n\n## User\n\nHi\n')
    with pytest.raises(DamagedError, match="its front matter has a line"):
        words_of(store, file, "md")
    whole = f'---\nsatchel: 1\n{field}: "\\ud83d\\ude00"\n---\n\n## User\n\nHi\n'
    assert getattr(from_markdown(whole), field) == "\U0001f600"


def head_of(model_name: str) -> Head:
    manifest = Manifest.parse(
        json.dumps(
            {
                "session_id": "0" * 32,
                "name": "long",
                "generation": 1,
                "parent": None,
                "created_at": "2026-11-29T12:00:00Z",
                "model_name": model_name,
                "profile_name": "turbo4",
                "identity": {},
                "messages": json.loads(LIST),
                "blocks": [],
                "tail": None,
                "token_count": 0,
            }
        ).encode()
    )
    return Head.of(manifest, b"stored")


def test_a_head_that_could_not_be_read_is_not_written() -> None:
    room = MAX_HEAD_BYTES - len(encode_head(head_of("")))
    largest = encode_head(head_of("m" * room))
    assert len(largest) == MAX_HEAD_BYTES
    assert decode_head(largest, "0" * 32).model_name == "m" * room
    with pytest.raises(SatchelError, match="a head of 65537 bytes is beyond what the store takes"):
        encode_head(head_of("m" * (room + 1)))


def test_the_store_goes_on_after_a_head_too_large(store: LocalStore) -> None:
    with pytest.raises(SatchelError, match="is beyond what the store takes"):
        stored(store, model_name="m" * 70_000)
    assert store.heads().total == 0
    stored(store)
    assert [head.name for head in store.heads().heads] == ["bruno"]


# Messages


class _Counted(list[str]):
    """Lines that count how many of them are copied."""

    copied = 0

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        found = super().__getitem__(index)
        self.copied += len(found) if isinstance(index, slice) else 0
        return found


def test_no_line_of_markdown_is_copied_twice() -> None:
    lines = _Counted(["## User", "```verbatim", "Hi", "```"] * 1000)
    assert list(_messages(lines)) == [("user", "Hi")] * 1000
    assert lines.copied == 1000


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([{"type": "text", "text": "a"}], "a"),
        ([{"type": "text", "text": "a "}, {"type": "text", "text": "b"}], "a b"),
    ],
)
def test_content_in_parts_is_joined(content: object, expected: str) -> None:
    talk = from_json_text(json.dumps([{"role": "user", "content": content}]))
    assert [message.content for message in talk.messages] == [expected]


@pytest.mark.parametrize(
    "content",
    [
        None,
        7,
        {"type": "text", "text": "a"},
        [],
        ["a"],
        [{"type": "text"}],
        [{"type": "text", "text": None}],
        [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}],
    ],
)
def test_content_that_is_not_text_is_refused(content: object) -> None:
    values = [{"role": "user", "content": "Hi"}, {"role": "user", "content": content}]
    with pytest.raises(DamagedError) as caught:
        from_json_text(json.dumps(values))
    assert str(caught.value) == "message 2: its content is not text"


@pytest.mark.parametrize("value", ['{"content": "Hi"}', '{"role": null, "content": "Hi"}', "3", "[]"])
def test_a_message_without_a_role_is_refused(value: str) -> None:
    with pytest.raises(DamagedError) as caught:
        from_json_text(f"[{value}]")
    assert str(caught.value) == "message 1 has no role; system, user, assistant can be imported"


def test_a_line_for_fine_tuning_is_a_talk() -> None:
    line = f'{{"messages": {LIST}}}\n'
    assert from_jsonl(line).messages == HI
    with pytest.raises(DamagedError) as caught:
        from_jsonl(line * 3)
    assert str(caught.value) == "it holds 3 talks in 3 lines; a session is one, in its own file"


# Files that are none


@pytest.mark.parametrize(
    "args", [[], *(["--format", each] for each in ("md", "json", "safetensors", "mlx-lm"))]
)
def test_only_a_file_is_imported(satchel: Run, tmp_path: Path, args: list[str]) -> None:
    missing, pipe = tmp_path / "missing", tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, exit_code, line in (
        (missing, 3, f"there is no file {missing}"),
        (pipe, 4, f"{pipe} is not a file"),
        (tmp_path, 4, f"{tmp_path} is not a file"),
    ):
        result = satchel("sessions", "import", path, *args)
        assert (result.returncode, result.stdout, result.stderr) == (exit_code, "", f"satchel: {line}\n")


# Standard input


@pytest.mark.parametrize(
    ("text", "args"),
    [
        (LIST, []),
        (LIST, ["--format", "json"]),
        ('{"role": "user", "content": "Hi"}', []),
        (f'{{"messages": {LIST}}}', ["--format", "jsonl"]),
        ("---\nsatchel: 1\n---\n\n## User\n\nHi\n", []),
    ],
)
def test_words_come_from_standard_input(satchel: Run, store: LocalStore, text: str, args: list[str]) -> None:
    made = satchel("sessions", "import", "-", *args, stdin=text.encode())
    assert (made.returncode, made.stdout, made.stderr) == (0, "imported\n", "1 message; not read yet\n")
    assert open_session(store, "imported").manifest.messages == HI


@pytest.mark.parametrize(
    ("data", "args", "exit_code", "line"),
    [
        (b"", [], 4, "(standard input) is of no format that can be imported"),
        (b"\xff{", [], 4, "(standard input) is of no format that can be imported"),
        (
            b"[3]",
            [],
            4,
            "(standard input) cannot be imported: message 1 has no role; system, user, assistant",
        ),
        (
            b"\x02" + bytes(7) + b"{}",
            [],
            4,
            "a safetensors file is not read from standard input; name the file",
        ),
        (b"", ["--format", "safetensors"], 2, "safetensors is not read from standard input; name a file"),
        (b"", ["--format", "mlx-lm"], 2, "mlx-lm is not read from standard input; name a file"),
        (
            LIST.encode(),
            ["--tokens", "x"],
            2,
            "--tokens is for mlx-lm's prompt caches, and (standard input) is",
        ),
    ],
)
def test_what_cannot_be_read_from_standard_input_is_one_line(
    satchel: Run, data: bytes, args: list[str], exit_code: int, line: str
) -> None:
    result = satchel("sessions", "import", "-", *args, stdin=data)
    assert (result.returncode, result.stdout) == (exit_code, "")
    assert result.stderr.startswith(f"satchel: {line}")
    assert result.stderr.count("\n") == 1


def test_standard_input_has_a_bound(satchel: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("satchel.exchange.words.MAX_TEXT_BYTES", 40)
    result = satchel("sessions", "import", "-", stdin=LIST.encode() + b"  " * 40)
    assert result.stderr == "satchel: (standard input) has more than 40 bytes, too many for text\n"
    assert satchel("sessions", "import", "-", stdin=LIST.encode()).returncode == 0


# Exports of what is lost


@pytest.mark.parametrize("format_name", ["md", "json", "jsonl"])
def test_words_are_exported_where_the_disk_fails(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, format_name: str
) -> None:
    manifest = stored(store)

    def fail(*_: object) -> bytes:
        raise SatchelError("cannot read it: Input/output error")

    monkeypatch.setattr(LocalStore, "get_block", fail)
    text = export_words(store, manifest, format_name)
    assert "Hi" in text
    assert format_name != "json" or json.loads(text)["token_ids"] == []


def test_a_whole_session_is_not_exported_without_its_blocks(satchel: Run, store: LocalStore) -> None:
    manifest = stored(store)
    lose_blocks(store, manifest)
    result = satchel("sessions", "export", "bruno", "--format", "safetensors")
    assert (result.returncode, result.stdout) == (4, "")
    assert result.stderr.startswith("satchel: 'bruno' cannot be exported with its state: block ")
    assert result.stderr.endswith(f" is missing; {ADVICE}\n")


def test_a_prompt_cache_is_not_exported_without_its_blocks(
    satchel_home: Path, small: LoadedModel, tmp_path: Path
) -> None:
    manager = open_manager(satchel_home, small)
    session = manager.new()
    say(session, QUESTION)
    session.save("a")
    lose_blocks(manager.store, manifest_of(session))
    with pytest.raises(DamagedError, match="'a' cannot be exported with its state: block") as caught:
        export_prompt_cache(tmp_path / "out", manager, "a")
    assert caught.value.hint == ADVICE


def test_a_session_longer_than_the_model_takes_is_not_exported(
    store: LocalStore, satchel_home: Path, small: LoadedModel, tmp_path: Path
) -> None:
    """Before there is memory for as many tokens as a few bytes claim."""
    manager, claimed = open_manager(satchel_home, small), 1 << 46
    profile = get_profile("k4v4,sink=2,window=6")
    manifest = stored(store, profile_name=profile.name).model_copy(
        update={
            "session_id": "1" * 32,
            "name": "long",
            "parent": None,
            "identity": manager.identity(manager.factory.new(profile)),
            "blocks": (),
            "tail": TailRef(sha256="0" * 64, stored_bytes=9, start=0, stop=claimed),
            "token_count": claimed,
        }
    )
    store.commit(manifest, expected=None)
    with pytest.raises(DamagedError, match="its 70,368,744,177,664 tokens are more than the model takes"):
        export_prompt_cache(tmp_path / "out", manager, "long")


def test_a_file_is_not_written_into_a_folder_that_is_not_there(
    satchel: Run, store: LocalStore, tmp_path: Path
) -> None:
    stored(store)
    (tmp_path / "file").write_text("mine")
    for parent in (tmp_path / "none", tmp_path / "none" / "below", tmp_path / "file"):
        result = satchel("sessions", "export", "bruno", "--output", parent / "out.md")
        assert (result.returncode, result.stdout) == (3, "")
        assert result.stderr == f"satchel: there is no folder {parent} to write to\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "home"]


def test_an_exported_prompt_cache_comes_with_the_model_to_give_to_mlx_lm(
    satchel: Run,
    satchel_home: Path,
    small: LoadedModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session, file = open_manager(satchel_home, small).new(), tmp_path / "out.safetensors"
    say(session, "Hi", max_tokens=2)
    session.save("a")
    monkeypatch.setattr(model_module, "load_model", lambda *_: small)
    result = satchel("sessions", "export", "a", "--format", "mlx-lm", "--output", file)
    assert (result.returncode, result.stdout) == (0, "")
    assert result.stderr == f"mlx_lm takes it with --model {small.path}\nwritten to {file}\n"
    assert load_prompt_cache(str(file), return_metadata=True)[1]["model"] == str(small.path)
