"""Acts on machines that sync; in processes of their own where they are to be killed or to meet.

What is said in a turn is one word, and the state of a talk follows from its words. Knows nothing of which
acts are done, or of what should come of them. As a program it forks those processes: it has no threads, and
holds none of the sockets that whoever starts it has.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from faults import Dying, watched
from machines import KEYS, TURN_TOKENS, Machine
from test_local_store import BLOCK, IDENTITY

from satchel.cache_store.local import HeadMovedError, LocalStore
from satchel.cache_store.maintenance import collect, prune
from satchel.cache_store.manifest import Message
from satchel.cache_store.sessions import Saved, fork_session, open_session, save_snapshot
from satchel.cache_store.snapshot import Block, Snapshot
from satchel.errors import SatchelError
from satchel.remotes.directory import DirectoryRemote
from satchel.remotes.remote import Remote
from satchel.remotes.retry import RetryingRemote
from satchel.remotes.s3 import Credentials, S3Remote
from satchel.sync.collect import collect_remote

HASTE = 200  # as many times shorter are pauses before another attempt

Words = tuple[str, ...]
Tell = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Place:
    """A remote: a directory, or a prefix of a bucket."""

    exclusive: bool
    directory: Path | None = None
    endpoint: str = ""
    bucket: str = ""
    prefix: str = ""
    credentials: Credentials | None = None


@dataclass(frozen=True, slots=True)
class Act:
    """
    Attributes:
        name: of a function below.
        dies_at: the process is killed ahead of this step of its file operations below `watched`; never at 0.
    """

    name: str
    home: Path
    place: Place
    watched: Path
    options: dict[str, Any] = field(default_factory=dict)
    dies_at: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    Attributes:
        told: what was done until the end.
        error: the error of ours that ended it.
    """

    told: list[Any]
    killed: bool
    error: str | None = None


class Processes:
    """Within the block it does acts in other processes than the caller's."""

    def __enter__(self) -> Self:
        self._program = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Threads of a library would not survive the forks.
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._program.stdin and self._program.stdout
        self._program.stdin.close()
        self._program.wait()
        self._program.stdout.close()

    def do(self, *acts: Act, begun: Callable[[list[int]], None] | None = None) -> list[Outcome]:
        """Do all at once.

        Args:
            begun: called with the ids of processes that can be killed, one for each act, before they begin.

        Raises:
            AssertionError: a process ended otherwise than by being killed or by an error of ours.
        """
        forks = begun is not None or len(acts) > 1 or acts[0].dies_at > 0
        self._send((acts, forks))
        if forks:
            pids = self._receive()
            if begun:
                begun(pids)
            self._send("go")
        outcomes: list[Outcome] = []
        for frames, status in self._receive():
            told, ended = [], {}
            for frame in frames:
                if isinstance(frame, dict):
                    ended = frame
                else:
                    told.append(frame[0])
            assert "crash" not in ended, ended["crash"]
            killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            assert killed or status == 0, f"a process ended with {status:#x}"
            outcomes.append(Outcome(told, killed, ended.get("error")))
        return outcomes

    def _send(self, message: object) -> None:
        assert self._program.stdin
        pickle.dump(message, self._program.stdin)
        self._program.stdin.flush()

    def _receive(self) -> Any:
        assert self._program.stdout
        return pickle.load(self._program.stdout)


# -- acts --------------------------------------------------------------------------------------------------


def say(machine: Machine, tell: Tell, name: str, words: Words) -> None:
    """A talk of these turns, in the session of this name if there is one. What is saved is told."""
    store = machine.store
    saved = open_session(store, name) if machine.has(name) else None
    for word in words:
        said = (*(saved.manifest.questions if saved else ()), word)
        try:
            saved = _save(store, name, said, saved)
        except HeadMovedError:  # as a chat does then
            saved = _save(store, name, said, None)
        tell((saved.head.session_id, said))


def go_back(machine: Machine, tell: Tell, name: str, turns: int) -> None:
    saved = open_session(machine.store, name)
    words = saved.manifest.questions[:turns]
    tell((_save(machine.store, name, words, saved, back=True).head.session_id, tuple(words)))


def rename(machine: Machine, tell: Tell, name: str, new_name: str) -> None:
    machine.store.rename(machine.store.session_id(name), new_name)


def fork(machine: Machine, tell: Tell, name: str) -> None:
    store = machine.store
    saved = open_session(store, name)
    forked = fork_session(store, saved, store.free_name(name), abandoned=saved.manifest.abandoned)
    tell((forked.head.session_id, tuple(forked.manifest.questions)))


def remove(machine: Machine, tell: Tell, name: str) -> None:
    machine.remove(name)


def sync(machine: Machine, tell: Tell, **options: Any) -> None:
    tell(machine.sync(**options))


def fetch(machine: Machine, tell: Tell, name: str | None) -> None:
    tell(machine.syncer.fetch(name))


def status(machine: Machine, tell: Tell) -> None:
    tell(machine.syncer.status())


def shrink(machine: Machine, tell: Tell, max_bytes: int) -> None:
    """Prune, and collect what is left, however young."""
    tell([each.name for each in prune(machine.store, max_bytes).sessions])
    tell(collect(machine.store, grace_s=0))


def clean_remote(machine: Machine, tell: Tell) -> None:
    """Collect in the remote, however young: nobody else may use it."""
    tell(collect_remote(machine.remote, KEYS, grace_s=0))


_ACTS = {
    act.__name__: act
    for act in (say, go_back, rename, fork, remove, sync, fetch, status, shrink, clean_remote)
}


def _save(
    store: LocalStore, name: str, words: Sequence[str], base: Saved | None, back: bool = False
) -> Saved:
    with store.locked():  # a name that is free stays so
        kept = base.manifest.blocks if base and not back else ()
        return save_snapshot(
            store,
            state_of(words, kept[-1].stop if kept else 0),
            [Message(role="user", content=word) for word in words],
            name=base.head.name if base else store.free_name(name),
            model_name="embedded",
            profile_name="turbo4",
            base=base,
            kept=kept,
        )


def state_of(words: Sequence[str], start: int = 0) -> Snapshot:
    """The state that a talk of these words has, from token `start` on."""
    digests = b"".join(hashlib.sha256(word.encode()).digest() + word.encode()[-8:].rjust(8) for word in words)
    tokens = np.frombuffer(digests, np.uint32)
    assert len(tokens) == len(words) * TURN_TOKENS

    def block(first: int, stop: int) -> Block:
        part = tokens[first:stop]
        codes = part[None, :, None] * np.arange(1, 9, dtype=np.uint32)  # (1, tokens, 8)
        return Block(first, stop, part, {"g0.k.codes": codes}, {"layers": [0]})

    last = len(tokens) - len(tokens) % BLOCK
    blocks = tuple(block(at, at + BLOCK) for at in range(start, last, BLOCK))
    return Snapshot(IDENTITY, blocks, block(last, len(tokens)))


# -- the program -------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=2)
def open_place(place: Place, connects: bool) -> Remote:
    """The remote, which is one for processes that are forked, and one that has connections already."""
    if place.directory:
        return DirectoryRemote(place.directory)
    remote = S3Remote(place.bucket, place.prefix, place.endpoint, None, place.credentials)
    return RetryingRemote(remote, sleep=lambda seconds: time.sleep(seconds / HASTE))


def _main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    gc.freeze()  # forks are spared copies

    def answer(message: object) -> None:
        pickle.dump(message, answers)
        answers.flush()

    while True:
        acts: Sequence[Act]
        try:
            acts, forks = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        if not forks:
            frames: list[Any] = []
            _do(acts[0], open_place(acts[0].place, connects=True), frames.append)
            answer([(frames, 0)])
            continue
        gate, opens_gate = os.pipe()
        begun = [_begin(act, open_place(act.place, connects=False), gate, opens_gate) for act in acts]
        os.close(gate)
        answer([pid for pid, _ in begun])
        pickle.load(sys.stdin.buffer)
        os.close(opens_gate)
        answer([(_frames(told), os.waitpid(pid, 0)[1]) for pid, told in begun])


def _do(act: Act, remote: Remote, tell: Tell) -> None:
    """Tells in tuples what the act does, and what ends it, if something does."""
    try:
        with watched(Dying(act.watched, act.dies_at)):  # which also spares waiting for the drive
            machine = Machine(act.home, remote, act.place.exclusive)
            _ACTS[act.name](machine, lambda what: tell((what,)), **act.options)
    except SatchelError as err:
        tell({"error": f"{type(err).__name__}: {err.one_line()}"})
    except BaseException:  # noqa: BLE001 (a fork must never come back to the loop)
        tell({"crash": f"{act}\n{traceback.format_exc()}"})


def _begin(act: Act, remote: Remote, gate: int, opens_gate: int) -> tuple[int, int]:
    """A process that does `act` once the gate opens: its id, and where to read what it tells."""
    told, tells = os.pipe()
    pid = os.fork()
    if pid:
        os.close(tells)
        return pid, told

    def tell(frame: object) -> None:
        data = memoryview(pickle.dumps(frame))
        while data:
            data = data[os.write(tells, data) :]

    os.close(opens_gate)
    os.read(gate, 1)
    _do(act, remote, tell)
    os._exit(0)


def _frames(told: int) -> list[Any]:
    """What a process told until it ended."""
    frames = []
    with os.fdopen(told, "rb") as file, contextlib.suppress(EOFError, pickle.UnpicklingError):
        while True:
            frames.append(pickle.load(file))
    return frames


if __name__ == "__main__":
    # What it pickles is to be known by this name on the other side.
    import sync_machine

    sync_machine._main()
