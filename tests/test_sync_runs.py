"""Machines that talk, sync, are killed and meet, at random: in the end all have all that was ever said.

A run follows from its seed, but for what threads and processes make of it. To run one again, or others:

    SATCHEL_TEST_SEEDS=17,300-599 pytest tests/test_sync_runs.py
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from machines import KEYS
from s3_proxy import Fault, Faults, Request, S3Proxy
from s3_servers import S3Server, moto, rclone  # noqa: F401
from sync_machine import Act, Outcome, Place, Processes, Words, state_of

from satchel.cache_store.loading import load_snapshot
from satchel.cache_store.local import LocalStore
from satchel.cache_store.maintenance import collect
from satchel.cache_store.manifest import Manifest
from satchel.cache_store.uses import head_marks
from satchel.cache_store.verify import verify
from satchel.sync.decide import Step
from satchel.sync.syncer import Direction, SyncReport

SEEDS = "SATCHEL_TEST_SEEDS"
ALL = range(300)
ALWAYS = 8  # of these, the first are no slow tests

NAMES = ("ant", "bee", "cat")
MAX_ROUNDS = 6  # of syncs without faults, in which all is to come to rest
TALKING = ("say", "fork")  # acts that tell what was said, and in which session

AT_REST = {Step.NOTHING, Step.FETCH_DROPPED}

BUCKET = "runs"


def _seeds() -> list[object]:
    if asked := os.environ.get(SEEDS):
        ranges = [(each.partition("-")[0], each.partition("-")[2]) for each in asked.split(",")]
        return [seed for first, last in ranges for seed in range(int(first), int(last or first) + 1)]
    slow = [pytest.param(seed, marks=pytest.mark.slow) for seed in ALL[ALWAYS:]]
    return [*ALL[:ALWAYS], *slow]


@dataclass(frozen=True, slots=True)
class Talk:
    """A session as a machine has it.

    Attributes:
        id: of its manifest.
        said: its words.
        branches: those that were left behind, each with all before it, that are no beginning of these.
    """

    name: str
    id: str
    manifest: Manifest
    said: Words
    branches: frozenset[Words]

    @property
    def turns(self) -> frozenset[Words]:
        """Each turn, with all that was said before it."""
        return frozenset(
            words[:end] for words in (self.said, *self.branches) for end in range(1, len(words) + 1)
        )


class Weather:
    """What befalls requests in one run; `dying` is the id of a process that is killed at a request."""

    def __init__(self, seed: int, rate: float) -> None:
        self._faults = Faults(seed, rate)
        self._seen = 0
        self._one_at_a_time = threading.Lock()
        self.calm = False
        self.dying: tuple[int, int] | None = None  # a process, and how many requests it has left
        self.dies_when_done = False  # the upstream does the last one

    def decide(self, request: Request, body: Callable[[], bytes]) -> Fault | None:
        with self._one_at_a_time:
            self._seen += 1
            number, dying = self._seen, self.dying
            if dying:
                self.dying = (dying[0], dying[1] - 1) if dying[1] else None
        if dying and not dying[1]:
            if self.dies_when_done:
                body()
            with contextlib.suppress(ProcessLookupError):  # it left this request behind when it ended
                os.kill(dying[0], signal.SIGKILL)
            return None if self.dies_when_done else Fault.DROP
        return None if self.calm else self._faults.decide(replace(request, number=number), body)


@dataclass(slots=True)
class Machine:
    home: Path
    store: LocalStore

    def talks(self) -> dict[str, Talk]:
        """By the sessions' ids."""
        found = {}
        for session_id in head_marks(self.store):
            head = self.store.head(session_id)
            assert head is not None
            manifest = self.store.get_manifest(head.manifest)
            said = tuple(manifest.questions)
            left = (tuple(self.store.get_manifest(each).questions) for each in manifest.abandoned)
            branches = frozenset(words for words in left if words != said[: len(words)])
            found[session_id] = Talk(head.name, head.manifest, manifest, said, branches)
        return found


class Run:
    """One run.

    Attributes:
        trace: what was done.
        required: for each turn, with what was said before it, the sessions in which nobody removed it.
        forks: sessions that a sync made, each with the one that it was, if that is known.
    """

    def __init__(
        self,
        seed: int,
        root: Path,
        place: Place,
        processes: Processes,
        weather: Weather | None,
        machines: int,
    ) -> None:
        self.seed, self.root, self.place = seed, root, place
        self.processes, self.weather = processes, weather
        self.machines = [
            Machine(root / f"machine-{number}", LocalStore(root / f"machine-{number}"))
            for number in range(machines)
        ]
        self.trace: list[str] = []
        self.required: dict[Words, set[str]] = defaultdict(set)
        self.forks: dict[str, str | None] = {}
        self._known: set[str] = set()
        self._session_of: dict[str, str] = {}  # by manifests' ids
        self._words = self._killed = 0
        self._chance = random.Random()

    # -- what is done ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """All have a session in common."""
        self._do(self._act(self.machines[0], "say", name=NAMES[0], words=("begun",)))
        for machine in self.machines:
            self._do(self._act(machine, "sync"))

    def step(self, number: int) -> None:
        self._chance = chance = random.Random(f"{self.seed}/{number}")
        choices = {
            self._say: 4,
            self._say_everywhere: 3,
            self._say_and_die: 1,
            self._go_back: 2.5,
            self._rename: 1.5,
            self._fork: 1,
            self._remove: 1.2,
            self._sync: 5,
            self._sync_and_die: 5,
            self._meet: 3,
            self._sync_while_talking: 2.5,
            self._sync_while_shrinking: 1,
            self._shrink: 1,
            self._clean_remote: 1,
            self._forget: 0.5,
        }
        [do] = chance.choices(list(choices), list(choices.values()))
        do(chance.choice(self.machines))

    def _say(self, machine: Machine) -> None:
        self._do(self._saying(machine))

    def _say_everywhere(self, machine: Machine) -> None:
        """Each machine goes its own way, and often all sync at once then."""
        name = self._one_of(machine)
        self._do(*(self._saying(each, name) for each in self.machines))
        if self._chance.random() < 0.5:
            self._meet(machine)

    def _say_and_die(self, machine: Machine) -> None:
        self._do(replace(self._saying(machine), dies_at=self._chance.randint(1, 60)))

    def _saying(self, machine: Machine, name: str | None = None) -> Act:
        if name is None and self._chance.random() < 0.7:
            name = self._one_of(machine)
        words = []
        for _ in range(self._chance.randint(1, 3)):
            self._words += 1
            words.append(f"w{self._words}")
        return self._act(machine, "say", name=name or self._chance.choice(NAMES), words=tuple(words))

    def _go_back(self, machine: Machine) -> None:
        long = [talk for talk in machine.talks().values() if len(talk.said) > 1]
        if long:
            talk = self._chance.choice(sorted(long, key=lambda talk: talk.name))
            turns = self._chance.randint(1, len(talk.said) - 1)
            self._do(self._act(machine, "go_back", name=talk.name, turns=turns))

    def _rename(self, machine: Machine) -> None:
        if name := self._one_of(machine):
            self._do(self._act(machine, "rename", name=name, new_name=self._chance.choice(NAMES)))

    def _fork(self, machine: Machine) -> None:
        if name := self._one_of(machine):
            self._do(self._act(machine, "fork", name=name))

    def _remove(self, machine: Machine) -> None:
        if name := self._one_of(machine):
            self._do(self._act(machine, "remove", name=name))

    def _sync(self, machine: Machine) -> None:
        self._do(self._syncing(machine))

    def _sync_and_die(self, machine: Machine) -> None:
        chance, syncing = self._chance, self._syncing(machine)
        if self.weather and chance.random() < 0.5:
            left = chance.randint(0, chance.choice((3, 12, 40)))
            self.weather.dies_when_done = chance.random() < 0.5
            self._do(syncing, dies_at_request=left)
        else:
            self._do(replace(syncing, dies_at=chance.randint(1, chance.choice((8, 30, 150)))))

    def _syncing(self, machine: Machine) -> Act:
        chance = self._chance
        if chance.random() < 0.15:
            return self._act(machine, "fetch", name=chance.choice((None, *NAMES)))
        [direction] = chance.choices(list(Direction), (3, 1, 1))
        return self._act(machine, "sync", direction=direction, fetch_state=chance.random() < 0.75)

    def _meet(self, _: Machine) -> None:
        """All sync at once."""
        self._do(*(self._act(machine, "sync") for machine in self.machines))

    def _sync_while_talking(self, machine: Machine) -> None:
        self._do(self._syncing(machine), self._saying(machine))

    def _sync_while_shrinking(self, machine: Machine) -> None:
        self._do(self._syncing(machine), self._shrinking(machine))

    def _shrink(self, machine: Machine) -> None:
        self._do(self._shrinking(machine))

    def _shrinking(self, machine: Machine) -> Act:
        return self._act(machine, "shrink", max_bytes=self._chance.choice((1, 4000, 1 << 20)))

    def _clean_remote(self, machine: Machine) -> None:
        self._do(self._act(machine, "clean_remote"))

    def _forget(self, machine: Machine) -> None:
        """The machine loses what it remembers of the remote."""
        self.trace.append(f"{machine.home.name}: loses its records")
        shutil.rmtree(machine.home / "sync" / KEYS.id / "sessions", ignore_errors=True)

    def _one_of(self, machine: Machine) -> str | None:
        names = sorted(talk.name for talk in machine.talks().values())
        return self._chance.choice(names) if names else None

    def _act(self, machine: Machine, act: str, /, **options: object) -> Act:
        return Act(act, machine.home, self.place, self.root, options)

    def _do(self, *acts: Act, dies_at_request: int | None = None) -> list[Outcome]:
        """Do all at once, and note what came of it."""
        machines = {machine.home: machine for machine in self.machines}
        before = {act.home: machines[act.home].talks() for act in acts}
        for act in acts:
            dies = f", dies at step {act.dies_at}" if act.dies_at else ""
            dies += f", dies at request {dies_at_request}" if dies_at_request is not None else ""
            self.trace.append(f"{act.home.name}: {act.name} {act.options}{dies}")

        def begun(pids: list[int]) -> None:
            assert self.weather and dies_at_request is not None
            self.weather.dying = (pids[0], dies_at_request)

        outcomes = self.processes.do(*acts, begun=None if dies_at_request is None else begun)
        if self.weather:
            self.weather.dying = None
        for act, outcome in zip(acts, outcomes, strict=True):
            self.trace.append(f"    {act.home.name}: {_shown(outcome)}")
            self._killed += outcome.killed
            if act.name in TALKING:
                for session_id, said in outcome.told:
                    self._known.add(session_id)
                    self._require(session_id, [said[:end] for end in range(1, len(said) + 1)])
        for act in acts:
            after = machines[act.home].talks()
            if act.name == "remove":
                self._note_removal(before[act.home], after)
            elif act.name in TALKING and len(acts) == 1:
                self._note_changes(before[act.home], after)
            self._note_forks(after)
        for machine in self.machines:
            self.trace.append(f"    {machine.home.name} has {_listed(machine)}")
        return outcomes

    # -- what is to come of it -----------------------------------------------------------------------------

    def _note_changes(self, before: dict[str, Talk], after: dict[str, Talk]) -> None:
        """What the user said more in is wanted, all of it. Who was killed may have saved, too."""
        for session_id, talk in after.items():
            old = before.get(session_id)
            if old is None or not talk.turns <= old.turns:
                self._known.add(session_id)
                self._require(session_id, talk.turns)

    def _note_removal(self, before: dict[str, Talk], after: dict[str, Talk]) -> None:
        for session_id in before.keys() - after.keys():
            for turn in before[session_id].turns:
                for holder in list(self.required[turn]):
                    elsewhere = holder in after and turn in after[holder].turns
                    # A fork that a sync made may hold what was said in another session.
                    if holder == session_id or (session_id in self.forks and not elsewhere):
                        self.required[turn].discard(holder)

    def _note_forks(self, talks: dict[str, Talk]) -> None:
        for session_id, talk in talks.items():
            if session_id not in self._known:
                self._known.add(session_id)
                self.forks[session_id] = self._session_of.get(talk.manifest.parent or "")
                self._require(session_id, talk.turns)
        for session_id, talk in talks.items():
            self._session_of.setdefault(talk.id, session_id)

    def _require(self, session_id: str, turns: Iterable[Words]) -> None:
        for turn in turns:
            self.required[turn].add(session_id)

    def end(self) -> None:
        """Without faults all machines come to have the same, whole, and all that they should."""
        if self.weather:
            self.weather.calm = True
        self._settle()
        first, *others = self.machines
        for other in others:
            assert _by_words(other) == _by_words(first)
        for machine in self.machines:
            self._check_state(machine)
            self._check_turns(machine)
        self._check_forks(first)
        collected = self._do(self._act(first, "clean_remote"))[0]
        assert not collected.error and not collected.told[0].faults, collected
        # All that is needed is still there: another machine can join.
        newcomer = Machine(self.root / "newcomer", LocalStore(self.root / "newcomer"))
        self.machines.append(newcomer)
        _, report = self._synced(newcomer)
        assert not report.forks and not report.pushed, report
        assert _by_words(newcomer) == _by_words(first)
        self._check_state(newcomer)
        assert _with_state(newcomer) >= set().union(*map(_with_state, self.machines))

    def _settle(self) -> None:
        for _ in range(MAX_ROUNDS):
            changed = False
            for machine in self.machines:
                before = machine.talks()
                after, report = self._synced(machine)
                changed |= before != after or bool(report.pushed or report.pulled or report.removed)
            if not changed and all(map(self._is_in_sync, self.machines)):
                return
        raise AssertionError(f"still not at rest after {MAX_ROUNDS} rounds")

    def _is_in_sync(self, machine: Machine) -> bool:
        [outcome] = self._do(self._act(machine, "status"))
        assert outcome.error is None, outcome
        return {status.state for status in outcome.told[0]} <= AT_REST

    def _synced(self, machine: Machine) -> tuple[dict[str, Talk], SyncReport]:
        [outcome] = self._do(self._act(machine, "sync"))
        assert outcome.error is None and not outcome.told[0].faults, outcome
        return machine.talks(), outcome.told[0]

    def _check_state(self, machine: Machine) -> None:
        collect(machine.store, grace_s=0)
        assert verify(machine.store, read_data=True).faults == ()
        talks = machine.talks()
        assert machine.store.heads().faults == {}
        assert {head.session_id: head.name for head in machine.store.heads().heads} == {
            session_id: talk.name for session_id, talk in talks.items()
        }
        for talk in talks.values():
            whole = load_snapshot(machine.store, talk.manifest)
            if whole is not None:
                right = state_of(talk.said)
                np.testing.assert_array_equal(whole.token_ids, right.token_ids)
                for got, want in zip((*whole.blocks, whole.tail), (*right.blocks, right.tail), strict=True):
                    assert list(got.arrays) == list(want.arrays)
                    np.testing.assert_array_equal(got.arrays["g0.k.codes"], want.arrays["g0.k.codes"])

    def _check_turns(self, machine: Machine) -> None:
        there = frozenset().union(*(talk.turns for talk in machine.talks().values()))
        lost = [turn for turn, holders in self.required.items() if holders and turn not in there]
        assert lost == [], f"{machine.home.name} has not what was said"

    def _check_forks(self, machine: Machine) -> None:
        """Each fork that a sync made has something that its origin has not, nor that one's other forks.

        Who is killed in the midst of it leaves the fork and the session as it was, and may go on with both.
        Where entries can stand side by side, others may make a fork of what a machine goes on with meanwhile.
        """
        if not self.place.exclusive:
            return
        talks = machine.talks()
        families = defaultdict(list)
        for session_id in talks.keys() & self.forks.keys():
            if origin := self.forks[session_id]:
                families[origin].append(session_id)
        copies = [
            f"{talks[fork].name} is a copy of {talks[other].name}"
            for origin, forks in families.items()
            for fork in forks
            for other in {*forks, origin} & talks.keys() - {fork}
            if talks[fork].turns <= talks[other].turns
        ]
        assert len(copies) <= self._killed, copies


def _by_words(machine: Machine) -> dict[str, object]:
    """What is to be the same on all machines."""
    return {session_id: (talk.name, talk.said, talk.branches) for session_id, talk in machine.talks().items()}


def _with_state(machine: Machine) -> set[str]:
    return {session_id for session_id, talk in machine.talks().items() if talk.manifest.tail}


def _shown(outcome: Outcome) -> str:
    how = "killed" if outcome.killed else outcome.error or "done"
    return f"{how}: {outcome.told}"


def _listed(machine: Machine) -> str:
    def shown(session_id: str, talk: Talk) -> str:
        state = "" if talk.manifest.tail else " (words)"
        left = "".join(f" [{' '.join(words)}]" for words in sorted(talk.branches))
        return f"{talk.name} {session_id[:6]}/{talk.id[:6]}{state}: {' '.join(talk.said)}{left}"

    talks = sorted(machine.talks().items(), key=lambda item: item[1].name)
    return "; ".join(shown(session_id, talk) for session_id, talk in talks)


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with Processes() as program:
        yield program


@pytest.fixture(scope="module")
def proxy(moto: S3Server) -> Iterator[S3Proxy]:
    moto.make_bucket(BUCKET)
    with S3Proxy(moto.endpoint, delay_s=0.02) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def lax_proxy(rclone: S3Server) -> Iterator[S3Proxy]:
    rclone.make_bucket(BUCKET)
    with S3Proxy(rclone.endpoint, delay_s=0.02) as proxy:
        yield proxy


@pytest.mark.parametrize("seed", _seeds())
def test_all_that_was_said_is_everywhere_in_the_end(
    seed: int,
    tmp_path: Path,
    processes: Processes,
    request: pytest.FixtureRequest,
) -> None:
    chance = random.Random(seed)
    kind = chance.choices(("moto", "rclone", "directory", "synced directory"), (6, 2, 1, 1))[0]
    machines = chance.choices((2, 3), (4, 1))[0]
    weather: Weather | None = None
    if kind in ("moto", "rclone"):
        server: S3Server = request.getfixturevalue(kind)
        proxy: S3Proxy = request.getfixturevalue("proxy" if kind == "moto" else "lax_proxy")
        weather = Weather(seed, rate=chance.choice((0, 0.05, 0.15, 0.4, 0.7)))
        proxy.rules = [weather]
        proxy.requests.clear()
        place = Place(kind == "moto", None, proxy.url, BUCKET, f"run-{seed}", server.credentials)
    else:
        (tmp_path / "remote").mkdir()
        place = Place(kind == "directory", tmp_path / "remote")
    run = Run(seed, tmp_path, place, processes, weather, machines)
    try:
        run.begin()
        for number in range(chance.randint(12, 22)):
            run.step(number)
        run.end()
    except BaseException:
        print("\n".join([f"run {seed}: {machines} machines, {kind}", *run.trace]))
        print(f"again: {SEEDS}={seed} pytest tests/test_sync_runs.py")
        raise
