"""What the user thought of answers, kept on this machine, and a training set made of it.

Knows nothing of sessions, and of training only what `mlx_lm.lora` reads.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from pydantic import Field

from satchel.cache_store.lock import FileLock
from satchel.cache_store.manifest import Message
from satchel.cache_store.record import Record
from satchel.cache_store.snapshot import canonical_json
from satchel.config.paths import data_dir
from satchel.config.units import size_text
from satchel.errors import DamagedError, UsageError, VersionError
from satchel.files import atomic_write, cannot_write, delete_file, read_file, sync

FILE_NAME = "feedback.jsonl"
MAX_FILE_BYTES = 64 << 20
MAX_ENTRY_BYTES = 1 << 20
LOCK_S = 5.0

# `mlx_lm.lora` cuts every sample to its first 2048 tokens unless told otherwise, and the answer comes last.
SAMPLE_TOKENS = 1800
LORA_BATCH = 4  # its default, and neither part of the set may hold fewer samples than a batch
TESTED_FROM = 20  # samples, of which a tenth can be spared for a test

Exchange = tuple[Message, Message]  # a question and its answer


class Feedback(Record):
    """One line of the file: a talk up to the answer that is judged, and what was thought of that."""

    good: bool
    note: str
    model: str
    messages: Annotated[tuple[Message, ...], Field(strict=False)]


@dataclass(frozen=True, slots=True)
class Dataset:
    """What was written: samples in `train`, `valid` and `test`; 0 in `test` where there is none.

    Attributes:
        corrected: samples whose answer is the user's own.
        left_out: judged answers that make no sample: bad without a correction, or empty.
        damaged_lines: lines of the feedback that could not be read.
    """

    folder: Path
    train: int
    valid: int
    test: int
    corrected: int
    left_out: int
    damaged_lines: int

    def lora_arguments(self) -> str:
        """What `mlx_lm.lora` is to be called with, but for the model, quoted for a shell."""
        batch = min(LORA_BATCH, *(part for part in (self.train, self.valid, self.test) if part))
        return f"--train --data {shlex.quote(str(self.folder))} --batch-size {batch} --mask-prompt"


def feedback_file() -> Path:
    return data_dir() / FILE_NAME


def keep_feedback(messages: Sequence[Message], good: bool, note: str, model_name: str) -> None:
    """Keep what the user thought of the last answer in `messages`, durably, in a file for its owner alone.

    Messages after that answer, and questions that were never answered, are not kept; of a talk that is too
    long the oldest exchanges are not, either.

    Args:
        note: what the user said of it; of a bad answer, the better one.

    Raises:
        UsageError: there is no answer to a question yet, or that is too long, or the file is full.
        SatchelError: the file cannot be written; it is as it was.
    """
    system, exchanges = _taken_apart(messages)
    answers = [message for message in messages if message.role == "assistant"]
    if not exchanges or exchanges[-1][1] is not answers[-1]:
        raise UsageError("there is no answer yet that could be judged")
    note = Message(role="user", content=note.strip()).content  # which makes it encodable
    model = Message(role="user", content=model_name).content
    while True:
        talk = (*system, *(message for exchange in exchanges for message in exchange))
        line = canonical_json(Feedback(good=good, note=note, model=model, messages=talk).stored()) + b"\n"
        if len(line) <= MAX_ENTRY_BYTES:
            break
        if len(exchanges) == 1:
            raise UsageError(f"this answer, its question and the note are over {size_text(MAX_ENTRY_BYTES)}")
        exchanges = exchanges[(len(exchanges) + 1) // 2 :]
    _append(feedback_file(), line)


def write_dataset(folder: Path, seed: int = 0) -> Dataset:
    """Write the feedback as `train.jsonl`, `valid.jsonl` and, of 20 samples on, `test.jsonl` in `folder`.

    One sample a line, `{"messages": [...]}`, as `mlx_lm.lora --data FOLDER` takes it. A good answer is a
    sample; a bad one is where the user's note says what it should have been, with the note for an answer. The
    latest judgement of an answer counts. A tenth each goes to `valid` and `test`, but one sample at least to
    `valid`: the only one, if there is just one, to both `train` and `valid`. Equal feedback and `seed` give
    equal files, and what is added later moves few samples from one to another.

    Raises:
        UsageError: there is nothing to learn from; `folder` is as it was.
        SatchelError: the feedback cannot be read, or the folder not written.
    """
    entries, damaged_lines = _read(feedback_file())
    latest = {entry.messages: entry for entry in entries}.values()
    samples: dict[bytes, bool] = {}  # JSON of a sample: whether its answer is the user's
    left_out = 0
    for entry in latest:
        if sample := _sample(entry):
            samples[sample] = not entry.good
        else:
            left_out += 1
    if not samples:
        raise UsageError(
            "there is no feedback to learn from" + (f" ({_lines(damaged_lines)})" if damaged_lines else ""),
            "say /good to good answers, and /bad with the better answer to bad ones",
        )
    order = sorted(samples, key=lambda sample: hashlib.sha256(b"%d|" % seed + sample).digest())
    tenth = len(order) // 10
    n_valid, n_test = max(1, tenth), tenth if len(order) >= TESTED_FROM else 0
    parts = {
        "train": order[n_valid + n_test :] or order,
        "valid": order[:n_valid],
        "test": order[n_valid : n_valid + n_test],
    }
    for name, part in parts.items():
        if part:
            atomic_write(folder / f"{name}.jsonl", b"".join(sample + b"\n" for sample in part))
        else:
            delete_file(folder / f"{name}.jsonl")  # of a time when there were more
    return Dataset(
        folder=folder,
        train=len(parts["train"]),
        valid=n_valid,
        test=n_test,
        corrected=sum(samples.values()),
        left_out=left_out,
        damaged_lines=damaged_lines,
    )


def _taken_apart(messages: Iterable[Message]) -> tuple[list[Message], list[Exchange]]:
    """The system message, if there is one, and every question with its answer: what all templates take."""
    talk = list(messages)
    system = talk[:1] if talk and talk[0].role == "system" else []
    return system, [
        (question, answer)
        for question, answer in pairwise(talk)
        if question.role == "user" and answer.role == "assistant"
    ]


def _append(path: Path, line: bytes) -> None:
    """Add `line`, whole or not at all, in a line of its own even after one that a crash cut off."""
    with FileLock(path, LOCK_S):  # makes the file, too, and refuses links and the like
        try:
            with path.open("r+b", buffering=0) as file:
                os.fchmod(file.fileno(), 0o600)  # whatever an editor or a copy has made of it
                size = file.seek(0, os.SEEK_END)
                if size:
                    file.seek(size - 1)
                    line = line if file.read(1) == b"\n" else b"\n" + line
                if size + len(line) > MAX_FILE_BYTES:
                    raise UsageError(
                        f"{path} is full: it holds at most {size_text(MAX_FILE_BYTES)}", "move it away"
                    )
                try:
                    rest = memoryview(line)
                    while rest:
                        rest = rest[file.write(rest) :]
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(size)
                    raise
            sync(path.parent)
        except OSError as err:
            raise cannot_write(path, err) from err


def _read(path: Path) -> tuple[list[Feedback], int]:
    """All feedback that can be read, in order, and how many lines could not be."""
    entries, damaged_lines = [], 0
    for line in (read_file(path, MAX_FILE_BYTES) or b"").split(b"\n"):
        if not line.strip():
            continue
        try:
            if len(line) > MAX_ENTRY_BYTES:
                raise DamagedError("too long for an entry")
            entries.append(Feedback.parse(line))
        except (DamagedError, VersionError):
            damaged_lines += 1
    return entries, damaged_lines


def _sample(entry: Feedback) -> bytes | None:
    """A line for the training set without its end, in ASCII: `mlx_lm` reads it in the user's encoding."""
    system, exchanges = _taken_apart(entry.messages)
    if not exchanges:
        return None
    question, said = exchanges[-1]
    better = said.content if entry.good else entry.note
    if not better.strip():
        return None
    last = (question, Message(role="assistant", content=better))
    messages = _newest(system, exchanges[:-1], last)
    return json.dumps({"messages": [message.model_dump() for message in messages]}).encode()


def _newest(system: list[Message], earlier: list[Exchange], last: Exchange) -> list[Message]:
    """As much of a talk as a sample has room for: `last`, the system message, then what is newest."""
    room = SAMPLE_TOKENS - _about_tokens(last)
    if _about_tokens(system) > room:
        system = []
    room -= _about_tokens(system)
    start = len(earlier)
    while start and (room := room - _about_tokens(earlier[start - 1])) >= 0:
        start -= 1
    return [*system, *(message for exchange in (*earlier[start:], last) for message in exchange)]


def _about_tokens(messages: Iterable[Message]) -> int:
    """A rough upper bound without a tokenizer: three ASCII characters a token, others one each."""
    total = 0
    for message in messages:
        n_ascii = sum(char.isascii() for char in message.content)
        total += 8 + n_ascii // 3 + len(message.content) - n_ascii
    return total


def _lines(count: int) -> str:
    return "1 line could not be read" if count == 1 else f"{count} lines could not be read"
