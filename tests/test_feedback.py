"""Feedback is kept for its owner alone and survives damage; what is made of it is what mlx-lm reads."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import types
from pathlib import Path

import pytest

from satchel.agent import feedback
from satchel.agent.feedback import Dataset, keep_feedback, write_dataset
from satchel.cache_store.manifest import Message
from satchel.errors import SatchelError, UsageError


def talk(*contents: str, system: str = "") -> list[Message]:
    """A talk that begins with the user."""
    roles = ("user", "assistant")
    said = [Message(role=roles[index % 2], content=text) for index, text in enumerate(contents)]
    return [Message(role="system", content=system), *said] if system else said


def keep_many(count: int) -> None:
    for index in range(count):
        keep_feedback(talk(f"question {index}", f"answer {index}"), True, "", "m")


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def answers(folder: Path, name: str) -> list[str]:
    return [line["messages"][-1]["content"] for line in lines(folder / f"{name}.jsonl")]


def test_feedback_is_one_line_for_its_owner_alone(satchel_home: Path) -> None:
    keep_feedback(talk("2+2?", "4", system="Be brief."), True, " right \n", "tiny")
    keep_feedback(talk("你好", "\u2028再见"), False, "你好！", "tiny")
    path = satchel_home / "feedback.jsonl"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(satchel_home.stat().st_mode) == 0o700
    assert path.read_bytes().count(b"\n") == 2
    assert [json.loads(line) for line in path.read_bytes().split(b"\n")[:2]] == [
        {
            "good": True,
            "note": "right",
            "model": "tiny",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "2+2?"},
                {"role": "assistant", "content": "4"},
            ],
        },
        {
            "good": False,
            "note": "你好！",
            "model": "tiny",
            "messages": [{"role": "user", "content": "你好"}, {"role": "assistant", "content": "\u2028再见"}],
        },
    ]


def test_a_file_that_others_could_read_is_closed_to_them(satchel_home: Path) -> None:
    keep_many(1)
    path = satchel_home / "feedback.jsonl"
    path.chmod(0o644)
    keep_many(1)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_questions_without_an_answer_are_not_kept(satchel_home: Path) -> None:
    messages = [*talk("a", "A"), *talk("lost"), *talk("b", "B"), *talk("and then?")]
    keep_feedback(messages, True, "", "m")
    (kept,) = lines(satchel_home / "feedback.jsonl")
    assert [message["content"] for message in kept["messages"]] == ["a", "A", "b", "B"]


@pytest.mark.parametrize(
    "messages", [[], talk("hi"), talk(system="s"), talk("a", "A")[1:], [*talk("a", "A"), talk("", "more")[1]]]
)
def test_without_an_answer_to_a_question_there_is_nothing_to_judge(
    satchel_home: Path, messages: list[Message]
) -> None:
    with pytest.raises(UsageError, match="there is no answer yet"):
        keep_feedback(messages, True, "", "m")
    assert not (satchel_home / "feedback.jsonl").exists()


def test_text_that_cannot_be_encoded_is_kept_with_question_marks(satchel_home: Path) -> None:
    keep_feedback(talk("q", "a"), False, "caf\udce9", "m\udcff")
    (kept,) = lines(satchel_home / "feedback.jsonl")
    assert (kept["note"], kept["model"]) == ("caf?", "m?")


def test_of_a_talk_that_is_too_long_the_newest_is_kept(satchel_home: Path) -> None:
    exchanges = [text for index in range(5) for text in (f"{index}" * 150_000, f"answer {index}")]
    keep_feedback(talk(*exchanges, *["x" * 400_000, "last"], system="s"), True, "", "m")
    (kept,) = lines(satchel_home / "feedback.jsonl")
    assert [message["content"][:8] for message in kept["messages"]] == [
        *("s", "33333333", "answer 3", "44444444", "answer 4", "xxxxxxxx", "last")
    ]
    with pytest.raises(UsageError, match=r"are over 1\.0 MB"):
        keep_feedback(talk("q", "a" * (1 << 20)), True, "", "m")


def test_a_full_file_takes_no_more(satchel_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_many(1)
    path = satchel_home / "feedback.jsonl"
    before = path.read_bytes()
    monkeypatch.setattr(feedback, "MAX_FILE_BYTES", 2 * len(before) - 1)
    with pytest.raises(UsageError, match="is full"):
        keep_many(1)
    assert path.read_bytes() == before


def test_a_write_that_fails_leaves_the_file_as_it_was(
    satchel_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_many(1)
    path = satchel_home / "feedback.jsonl"
    before = path.read_bytes()

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(SatchelError, match="No space left on device"):
        keep_many(1)
    assert path.read_bytes() == before


def test_a_link_in_the_place_of_the_file_is_not_followed(satchel_home: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    satchel_home.mkdir()
    (satchel_home / "feedback.jsonl").symlink_to(victim)
    with pytest.raises(SatchelError, match="is not a file"):
        keep_many(1)
    assert victim.read_text() == "precious"


def test_damaged_lines_are_skipped_and_counted(satchel_home: Path, tmp_path: Path) -> None:
    keep_feedback(talk("a", "A"), True, "", "m")
    path = satchel_home / "feedback.jsonl"
    (whole,) = path.read_bytes().splitlines()
    extra = whole.replace(b'"good":true', b'"good":true,"stars":5')
    with path.open("ab") as file:
        file.write(b"\xff\xfe\n[]\n\nnull\n" + whole.replace(b"assistant", b"robot") + b"\n" + extra + b"\n")
        file.write(b"[" * 5000 + b"\n" + whole[:-20])  # a crash cut the last one off
    keep_feedback(talk("b", "B"), True, "", "m")
    made = write_dataset(tmp_path / "set")
    assert (made.train, made.valid, made.damaged_lines) == (1, 1, 7)
    assert {*answers(made.folder, "train"), *answers(made.folder, "valid")} == {"A", "B"}


def test_a_line_beyond_the_bound_is_damage(satchel_home: Path, tmp_path: Path) -> None:
    keep_many(1)
    with (satchel_home / "feedback.jsonl").open("ab") as file:
        file.write(b'{"good":true,"note":"","model":"m","messages":[{"role":"user","content":"q"},')
        file.write(b'{"role":"assistant","content":"' + b"a" * (1 << 20) + b'"}]}\n')
    assert write_dataset(tmp_path / "set").damaged_lines == 1


def test_good_answers_and_corrections_are_samples(satchel_home: Path, tmp_path: Path) -> None:
    keep_feedback(talk("capital of France?", "Paris"), True, "nice", "m")
    keep_feedback(talk("capital of Italy?", "Milan"), False, "Rome", "m")
    keep_feedback(talk("capital of Spain?", "Lisbon"), False, "", "m")
    keep_feedback(talk("capital of Chad?", " "), True, "", "m")
    made = write_dataset(tmp_path / "set")
    assert made == Dataset(
        tmp_path / "set", train=1, valid=1, test=0, corrected=1, left_out=2, damaged_lines=0
    )
    samples = lines(made.folder / "train.jsonl") + lines(made.folder / "valid.jsonl")
    assert sorted(samples, key=str) == [
        {
            "messages": [
                {"role": "user", "content": f"capital of {country}?"},
                {"role": "assistant", "content": city},
            ]
        }
        for country, city in (("France", "Paris"), ("Italy", "Rome"))
    ]
    assert made.lora_arguments() == f"--train --data {tmp_path}/set --batch-size 1 --mask-prompt"


def test_the_latest_judgement_of_an_answer_counts(satchel_home: Path, tmp_path: Path) -> None:
    keep_feedback(talk("a", "A"), True, "", "m")
    keep_feedback(talk("a", "A"), False, "", "m")
    keep_feedback(talk("b", "B"), False, "", "m")
    keep_feedback(talk("b", "B"), True, "", "m")
    made = write_dataset(tmp_path / "set")
    assert answers(made.folder, "train") == answers(made.folder, "valid") == ["B"]
    assert (made.train, made.valid, made.left_out) == (1, 1, 1)


def test_nothing_to_learn_from_is_said_and_nothing_is_written(satchel_home: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no feedback to learn from") as refused:
        write_dataset(tmp_path / "set")
    assert "/good" in refused.value.hint
    keep_feedback(talk("a", "A"), False, "", "m")
    with (satchel_home / "feedback.jsonl").open("ab") as file:
        file.write(b"broken\n")
    with pytest.raises(UsageError, match=r"\(1 line could not be read\)"):
        write_dataset(tmp_path / "set")
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize(
    ("count", "sizes", "batch"),
    [(1, (1, 1, 0), 1), (2, (1, 1, 0), 1), (19, (18, 1, 0), 1), (20, (16, 2, 2), 2), (50, (40, 5, 5), 4)],
)
def test_the_parts_share_nothing_and_are_of_these_sizes(
    satchel_home: Path, tmp_path: Path, count: int, sizes: tuple[int, int, int], batch: int
) -> None:
    keep_many(count)
    made = write_dataset(tmp_path / "set")
    assert (made.train, made.valid, made.test) == sizes
    names = ("train", "valid", "test")[: 3 if made.test else 2]
    parts = [answers(made.folder, name) for name in names]
    assert [len(part) for part in parts] == [size for size in sizes if size]
    assert sorted({answer for part in parts for answer in part}) == sorted(
        f"answer {i}" for i in range(count)
    )
    assert f"--batch-size {batch} " in made.lora_arguments()
    assert {stat.S_IMODE(path.stat().st_mode) for path in made.folder.iterdir()} == {0o600}


def test_equal_feedback_is_split_equally_and_another_seed_otherwise(
    satchel_home: Path, tmp_path: Path
) -> None:
    keep_many(30)
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_dataset(tmp_path / name, seed=seed)
    first, again, other = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "abc"
    )
    assert first == again
    assert first["valid.jsonl"] != other["valid.jsonl"]


def test_a_test_part_of_earlier_goes_when_there_is_none_now(satchel_home: Path, tmp_path: Path) -> None:
    keep_many(20)
    assert write_dataset(tmp_path / "set").test == 2
    (satchel_home / "feedback.jsonl").unlink()
    keep_many(2)
    write_dataset(tmp_path / "set")
    assert sorted(path.name for path in (tmp_path / "set").iterdir()) == ["train.jsonl", "valid.jsonl"]


def test_a_sample_keeps_what_the_trainer_does_not_cut(satchel_home: Path, tmp_path: Path) -> None:
    """The trainer cuts a sample's end, where the answer is: so its beginning has to be short."""
    old = [text for index in range(6) for text in (f"old {index} " + "word " * 200, "yes")]
    keep_feedback(talk(*old, "new?", "answer", system="Be brief."), True, "", "m")
    keep_feedback(talk("old", "yes", "new?", "其" * 1790, system="file " * 50), True, "", "m")
    made = write_dataset(tmp_path / "set")
    samples = lines(made.folder / "train.jsonl") + lines(made.folder / "valid.jsonl")
    begins = sorted([message["content"][:9].strip() for message in sample["messages"]] for sample in samples)
    fitting = [
        text for index in range(1, 6) for text in (f"old {index} wor", "yes")
    ]  # 352 of 1770 tokens each
    assert begins == [["Be brief.", *fitting, "new?", "answer"], ["new?", "其" * 9]]


def test_mlx_lm_loads_and_tokenizes_the_folder(satchel_home: Path, tmp_path: Path, smollm) -> None:
    from mlx_lm.tuner.datasets import CacheDataset, load_dataset
    from mlx_lm.tuner.trainer import iterate_batches

    keep_feedback(talk("2+2?", "5", system="Be brief."), False, "4, sûr; 四", "m")
    keep_many(23)
    made = write_dataset(tmp_path / "set")
    arguments = types.SimpleNamespace(data=str(made.folder), train=True, test=True, mask_prompt=True)
    parts = load_dataset(arguments, smollm.tokenizer)
    assert [len(part) for part in parts] == [20, 2, 2]
    assert [type(part).__name__ for part in parts] == ["ChatDataset"] * 3
    texts = []
    for part in parts:
        for index in range(len(part)):
            tokens, offset = part.process(part[index])
            texts.append(smollm.tokenizer.decode(tokens[offset:]))
    assert "4, sûr; 四<|im_end|>" in {text.strip() for text in texts}
    assert sum(text.startswith("answer ") for text in texts) == 23
    batches = list(iterate_batches(CacheDataset(parts[1]), batch_size=2, max_seq_length=2048))
    assert [batch[0].shape[0] for batch in batches] == [2]


def test_processes_that_keep_feedback_at_once_lose_none(satchel_home: Path) -> None:
    code = """if True:
        from satchel.agent.feedback import keep_feedback
        from satchel.cache_store.manifest import Message
        for index in range(10):
            talk = [Message(role="user", content=str(index)), Message(role="assistant", content="a" * 9000)]
            keep_feedback(talk, True, "", "m")
    """
    writers = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0]
    kept = lines(satchel_home / "feedback.jsonl")
    assert len(kept) == 30
    assert {len(entry["messages"][1]["content"]) for entry in kept} == {9000}
