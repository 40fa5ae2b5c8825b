"""Manifests and heads are checked when they are made and when they are read; names follow one rule."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import zstandard
from golden import reader

from satchel.cache_store.figures import TurnFigures, figures_until
from satchel.cache_store.manifest import (
    BlockRef,
    Head,
    Manifest,
    Message,
    TailRef,
    decode_head,
    decode_manifest,
    encode_head,
    encode_manifest,
)
from satchel.cache_store.names import name_key, validate_name
from satchel.errors import DamagedError, UsageError, VersionError

GOLDEN = Path(__file__).parent / "golden"
SESSION = "0123456789abcdef" * 2
WHEN = datetime(2026, 11, 28, 12, 30, tzinfo=UTC)


TALK = (
    Message(role="system", content="Be brief."),
    Message(role="user", content="Hello"),
    Message(role="assistant", content="Hi"),
    Message(role="user", content="Again"),
    Message(role="assistant", content="Hi"),
)
FIGURES = (
    TurnFigures(
        turn=1,
        tokens=600,
        held_bytes=5_000_000,
        exact_bytes=18_000_000,
        read_tokens=512,
        read_ms=4000,
        written_tokens=81,
        write_ms=10_000,
    ),
    TurnFigures(
        turn=2,
        tokens=601,
        held_bytes=5_000_100,
        exact_bytes=18_000_200,
        read_tokens=1,
        read_ms=0,
        written_tokens=1,
        write_ms=0,
    ),
)


def make_manifest(**changes: Any) -> Manifest:
    fields: dict[str, Any] = {
        "session_id": SESSION,
        "name": "café 笔记",
        "generation": 2,
        "parent": "c" * 64,
        "created_at": WHEN,
        "model_name": "embedded",
        "profile_name": "turbo4",
        "identity": {"weights": "d" * 64, "rope": {"theta": 100000.0, "traditional": False}},
        "messages": (
            Message(role="user", content="Hello\n\x1b[31mthere"),
            Message(role="assistant", content="Hi"),
        ),
        "blocks": (
            BlockRef(chain_key="1" * 64, sha256="a" * 64, stored_bytes=1000, start=0, stop=256),
            BlockRef(chain_key="2" * 64, sha256="b" * 64, stored_bytes=1100, start=256, stop=512),
        ),
        "tail": TailRef(sha256="e" * 64, stored_bytes=500, start=512, stop=600),
        "token_count": 600,
    }
    return Manifest(**(fields | changes))


def test_a_manifest_comes_back_equal_and_is_deterministic() -> None:
    manifest = make_manifest()
    assert decode_manifest(encode_manifest(manifest)) == manifest
    assert encode_manifest(manifest) == encode_manifest(make_manifest())


def test_the_golden_manifest_decodes_for_ever() -> None:
    assert decode_manifest((GOLDEN / "manifest-1.zst").read_bytes()) == make_manifest()


def test_the_golden_manifest_of_an_archive_decodes_for_ever() -> None:
    manifest = decode_manifest((GOLDEN / "manifest-2.zst").read_bytes())
    assert manifest == make_manifest(profile_name="turbo2,raised=0.7", archived_from="turbo4,window=256")
    assert manifest.archive_note == "archived from turbo4,window=256: lossy"


def test_the_golden_manifest_with_figures_decodes_for_ever() -> None:
    data = (GOLDEN / "manifest-3.zst").read_bytes()
    figures = decode_manifest(data).figures
    assert decode_manifest(data) == make_manifest(messages=TALK, figures=FIGURES)
    assert reader.decode_manifest(data)["figures"] == [each.model_dump() for each in FIGURES]
    assert (figures[0].prefill_tps, figures[0].decode_tps) == (128.0, 8.0)
    assert (figures[1].prefill_tps, figures[1].decode_tps) == (0.0, 0.0)


def test_figures_are_left_out_where_there_are_none() -> None:
    """So that earlier versions read the manifest."""
    assert "figures" not in make_manifest().stored()


@pytest.mark.parametrize("turns", [(2, 1), (1, 1), (1, 3), (0, 1)])
def test_figures_of_turns_that_are_not_there_are_damage(turns: tuple[int, ...]) -> None:
    listed = [FIGURES[0].model_dump() | {"turn": turn} for turn in turns]
    fields = make_manifest(messages=TALK).model_dump(mode="json") | {"figures": listed}
    with pytest.raises(DamagedError, match="its content is wrong"):
        decode_manifest(zstandard.compress(json.dumps(fields).encode()))


@pytest.mark.parametrize("changes", [{"read_ms": -1}, {"write_ms": 1.5}, {"tokens": 1 << 53}])
def test_figures_are_counts(changes: dict[str, Any]) -> None:
    listed = [FIGURES[0].model_dump() | changes]
    fields = make_manifest().model_dump(mode="json") | {"figures": listed}
    with pytest.raises(DamagedError, match="its content is wrong"):
        decode_manifest(zstandard.compress(json.dumps(fields).encode()))


def test_the_newest_figures_are_kept_and_those_that_are_gone_back_from_are_not() -> None:
    many = [FIGURES[0].model_copy(update={"turn": turn}) for turn in range(1, 1001)]
    kept = figures_until(many, 600)
    assert [each.turn for each in kept] == list(range(89, 601))
    words = make_manifest(messages=TALK, figures=FIGURES).words_alone()
    assert words.figures == FIGURES


def test_bytes_that_are_not_text_do_not_stop_a_save() -> None:
    manifest = make_manifest(messages=(Message(role="user", content="caf\udce9 \U0001f392"),))
    assert decode_manifest(encode_manifest(manifest)).messages[0].content == "caf? \U0001f392"


def test_words_alone_are_neither_lossy_nor_foreign() -> None:
    """They will be read exactly, into state of this machine's."""
    words = make_manifest(archived_from="turbo4", foreign=True, abandoned=("f" * 64,)).words_alone()
    assert words == make_manifest(blocks=(), tail=None, token_count=0, abandoned=("f" * 64,))
    assert words.archive_note is None


def test_a_manifest_of_a_transcript_alone() -> None:
    manifest = make_manifest(blocks=(), tail=None, token_count=0)
    assert decode_manifest(encode_manifest(manifest)).tail is None


@pytest.mark.parametrize(
    "changes",
    [
        {"session_id": "../../etc/passwd"},
        {"session_id": "A" * 32},
        {"name": "a/b"},
        {"generation": 0},
        {"parent": "c" * 63},
        {"token_count": 601},
        {"token_count": 0},
        {"blocks": ()},
        {"tail": {"sha256": "e" * 64, "stored_bytes": 500, "start": 511, "stop": 600}},
        {"tail": {"sha256": "e" * 64, "stored_bytes": -1, "start": 512, "stop": 600}},
        {"tail": {"sha256": "e" * 64, "stored_bytes": 500, "start": 512, "stop": 500}},
        {"messages": [{"role": "root", "content": ""}]},
        {"messages": [{"role": "user", "content": 3}]},
    ],
)
def test_a_manifest_with_a_wrong_field_is_damage(changes: dict[str, Any]) -> None:
    fields = make_manifest().model_dump(mode="json") | changes
    data = zstandard.compress(json.dumps(fields).encode())
    with pytest.raises(DamagedError, match=r"^manifest [0-9a-f]{12} is damaged: its content is "):
        decode_manifest(data)


@pytest.mark.parametrize(
    "changes", [{"format_version": 2}, {"format_version": 2, "blocks": 7}, {"unknown": 1}]
)
def test_a_manifest_of_another_version_is_not_damage(changes: dict[str, Any]) -> None:
    """Else an earlier save would stand in for it, and its blocks be deleted."""
    fields = make_manifest().model_dump(mode="json") | changes
    data = zstandard.compress(json.dumps(fields).encode())
    with pytest.raises(VersionError, match=r"^manifest [0-9a-f]{12} cannot be read: it was saved by another"):
        decode_manifest(data)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"[" * 100_000, b"\xff"])
def test_what_is_not_a_manifest_is_damage(content: bytes) -> None:
    with pytest.raises(DamagedError, match="is damaged"):
        decode_manifest(zstandard.compress(content))
    with pytest.raises(DamagedError, match="compressed frame"):
        decode_manifest(content)


def test_a_head_sums_up_its_manifest() -> None:
    head = Head.of(make_manifest(), b"0123456789")
    assert head == Head(
        session_id=SESSION,
        name="café 笔记",
        manifest="84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882",
        generation=2,
        updated_at=WHEN,
        model_name="embedded",
        profile_name="turbo4",
        turns=1,
        token_count=600,
        stored_bytes=2610,
        title="Hello [31mthere",
    )
    assert decode_head(encode_head(head), SESSION) == head


def test_a_long_first_question_makes_a_title_of_one_line() -> None:
    question = Message(role="user", content="word " * 40)
    title = Head.of(make_manifest(messages=(question,)), b"").title
    assert title == "word " * 15 + "word…"
    assert len(title) == 80


def test_a_head_of_another_session_is_damage() -> None:
    data = encode_head(Head.of(make_manifest(), b""))
    with pytest.raises(DamagedError, match="the head of session ffffffffffff belongs to 0123456789ab"):
        decode_head(data, "f" * 32)
    with pytest.raises(DamagedError, match="the head of session 0123456789ab is damaged"):
        decode_head(data[:-10], SESSION)


@pytest.mark.parametrize(
    "name",
    ["notes", "CON", "x" * 64, "🎒", "👩\u200d🚀 log", "2026-11-28", "a.b_c-d", "笔记", "नमस्ते", "❤\ufe0f"],
)
def test_names_that_are_accepted(name: str) -> None:
    assert validate_name(name) == name


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("", "is empty"),
        ("../x", "has '/' in it"),
        ("a/b", "has '/' in it"),
        ("a\\b", r"has '\\\\' in it"),
        ("x" * 300, "has 300 characters"),
        ("-rf", "starts with '-'"),
        (".hidden", "starts with '.'"),
        ("..", "starts with '.'"),
        (" a", "starts with ' '"),
        ("_x", "starts with '_'"),
        ("a ", "ends with a space"),
        ("a\nb", r"has '\\n' in it"),
        ("a\x00b", r"has '\\x00' in it"),
        ("a\x1b[2J", r"has '\\x1b' in it"),
        ("a\u202eb", r"has '\\u202e' in it"),
        ("a\u200bb", r"has '\\u200b' in it"),
        ("a\u00a0b", r"has '\\xa0' in it"),
        ("\ud800", r"has '\\ud800' in it"),
        ("a*b", r"has '\*' in it"),
        ("a:b", "has ':' in it"),
        ("\u0301a", r"starts with '\\u0301'"),
    ],
)
def test_names_that_are_refused(name: str, fault: str) -> None:
    with pytest.raises(UsageError, match=fault) as refused:
        validate_name(name)
    assert refused.value.one_line().isascii() and refused.value.one_line().isprintable()
    assert "1 to 64 letters" in refused.value.hint


def test_names_are_stored_composed_and_compared_without_case() -> None:
    assert validate_name("cafe\u0301") == "caf\u00e9"
    assert name_key("Straße") == name_key("STRASSE")
    assert name_key("CAFÉ") == name_key("café")
    assert name_key("a\u200db") == name_key("ab")
    assert name_key("notes") != name_key("note")
