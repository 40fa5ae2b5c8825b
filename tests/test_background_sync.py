"""Syncing beside a chat, and bringing a session up to date before it is resumed; with fake syncers."""

from __future__ import annotations

import contextlib
import signal
import threading
from concurrent.futures import Future
from dataclasses import fields
from datetime import UTC, datetime

import pytest
from machines import Machine

from satchel.cache_store.local import LocalStore
from satchel.cache_store.manifest import Manifest, Message
from satchel.errors import DamagedError, NetworkError, NotFoundError, SatchelError
from satchel.remotes.memory import MemoryRemote
from satchel.remotes.remote import TransientError
from satchel.sync.background import BackgroundSync
from satchel.sync.report import Fork, SyncReport
from satchel.sync.resuming import bring_up_to_date
from satchel.sync.transfer import Progress

NOON = datetime(2026, 11, 30, 12, 3)
UNREACHABLE = TransientError("the remote cannot be reached: timed out")


class FakeSyncer:
    """Syncs as it is told, a call each: a report to give, an error to raise, or first one and then the other;
    with a gate, when it opens.
    """

    def __init__(
        self, *outcomes: SyncReport | Exception | tuple[SyncReport, Exception], gated: bool = False
    ) -> None:
        self.outcomes = list(outcomes)
        self.calls: list[tuple[str | None, bool]] = []
        self.threads: set[threading.Thread] = set()
        self.began = threading.Semaphore(0)  # once for each call
        self.gate = threading.Semaphore(0) if gated else None

    def sync(self, first: str | None, *, fetch_state: bool, report: SyncReport) -> SyncReport:
        self.calls.append((first, fetch_state))
        self.threads.add(threading.current_thread())
        self.began.release()
        if self.gate:
            assert self.gate.acquire(timeout=30)
        return give(self.outcomes.pop(0) if self.outcomes else SyncReport(), report)


def give(outcome: SyncReport | Exception | tuple[SyncReport, Exception], report: SyncReport) -> SyncReport:
    """Fill the report with the outcome, and raise what is in that."""
    for part in outcome if isinstance(outcome, tuple) else (outcome,):
        if isinstance(part, Exception):
            raise part
        for field in fields(part):
            setattr(report, field.name, getattr(part, field.name))
    return report


class Opened:
    """Opens the same syncer each time."""

    def __init__(self, syncer: FakeSyncer, *failures: Exception) -> None:
        self.syncer, self.failures, self.count = syncer, list(failures), 0

    def __call__(self) -> FakeSyncer:
        self.count += 1
        if self.failures:
            raise self.failures.pop(0)
        return self.syncer


def background(syncer: FakeSyncer, *failures: Exception) -> BackgroundSync:
    return BackgroundSync(Opened(syncer, *failures), now=lambda: NOON)


def run(sync: BackgroundSync, session_id: str = "a") -> list[str]:
    """The lines of one run."""
    sync.request(session_id)
    assert sync.finish(30)
    return sync.take_lines()


def test_nothing_happens_before_it_is_asked_for():
    opened = Opened(FakeSyncer())
    sync = BackgroundSync(opened)
    assert sync.finish(None)
    assert (opened.count, sync.state, sync.take_lines(), sync.take_forks()) == (0, "not synced yet", [], [])


def test_a_request_returns_at_once_and_the_words_of_all_are_synced_with_this_session_first():
    syncer = FakeSyncer(gated=True)
    sync = background(syncer)
    sync.request("a")
    assert syncer.began.acquire(timeout=30)
    assert sync.state == "syncing"
    syncer.gate.release()
    assert sync.finish(30)
    assert (syncer.calls, sync.state, sync.take_lines()) == ([("a", False)], "synced 12:03", [])
    (thread,) = syncer.threads
    assert thread.daemon and thread is not threading.main_thread()


def test_requests_while_one_runs_are_one_further_run_with_the_last_session_first():
    syncer = FakeSyncer(gated=True)
    sync = background(syncer)
    sync.request("a")
    assert syncer.began.acquire(timeout=30)
    for session_id in "bcd":
        sync.request(session_id)
    for _ in range(2):
        syncer.gate.release()
    assert sync.finish(30)
    assert syncer.calls == [("a", False), ("d", False)]
    assert len(syncer.threads) == 1


def test_the_syncer_is_opened_once_in_the_thread_of_the_runs():
    opened = Opened(FakeSyncer())
    sync = BackgroundSync(opened, now=lambda: NOON)
    assert (run(sync), run(sync), opened.count) == ([], [], 1)


def test_a_failure_is_told_once_while_it_lasts_and_when_it_is_over():
    sync = background(FakeSyncer(UNREACHABLE, TransientError("503"), UNREACHABLE, SyncReport(), UNREACHABLE))
    assert run(sync) == ["not synced: the remote cannot be reached: timed out"]
    assert sync.state == "not reachable"
    assert run(sync) == run(sync) == []
    assert run(sync) == ["synced again"]
    assert sync.state == "synced 12:03"
    assert run(sync) == ["not synced: the remote cannot be reached: timed out"]


def test_another_failure_is_another_line_but_not_the_same_with_another_object():
    refused = "the remote refuses v1/blocks/{}: access denied"
    first, second = (NetworkError(refused.format(digit * 64), "look at its rights") for digit in "ab")
    sync = background(FakeSyncer(UNREACHABLE, first, second, SatchelError("the disk is full")))
    assert len(run(sync)) == 1
    assert run(sync) == [
        f"not synced: the remote refuses v1/blocks/{'a' * 64}: access denied; look at its rights"
    ]
    assert run(sync) == []
    assert run(sync) == ["not synced: the disk is full"]
    assert sync.state == "not synced"


def test_what_was_not_foreseen_is_told_by_its_type_and_place_without_what_it_met():
    sync = background(FakeSyncer(KeyError("my secret words"), OSError(28, "No space left on device")))
    (line,) = run(sync)
    assert line.startswith("not synced: a fault of Satchel itself, KeyError at test_background_sync.py:")
    assert "secret" not in line
    assert run(sync) == ["not synced: OSError: [Errno 28] No space left on device"]
    assert run(sync) == ["synced again"]


def test_a_syncer_that_cannot_be_opened_is_opened_again_next_time():
    syncer = FakeSyncer()
    sync = background(syncer, SatchelError("the keychain is locked"))
    assert run(sync) == ["not synced: the keychain is locked"]
    assert run(sync) == ["synced again"]
    assert syncer.calls == [("a", False)]


@pytest.mark.parametrize(("error", "opened_times"), [(UNREACHABLE, 1), (NetworkError("credentials"), 2)])
def test_other_credentials_are_looked_for_unless_the_network_is_to_blame(error, opened_times):
    opened = Opened(FakeSyncer(error))
    sync = BackgroundSync(opened)
    run(sync)
    run(sync)
    assert opened.count == opened_times


def test_notices_and_forks_are_always_told_and_a_fault_once_while_it_lasts():
    fork = Fork("a", "talk", "f", "talk-2")
    notice = "'talk' has changed on another machine, too: what was said here goes on as 'talk-2'"
    broken = "other: object v1/blocks/ab is damaged"
    sync = background(
        FakeSyncer(
            SyncReport(forks=[fork], notices=[notice], faults=[broken]),
            SyncReport(notices=[notice], faults=[broken, "third: gone"]),
            SyncReport(),
            SyncReport(faults=[broken]),
        )
    )
    assert run(sync) == [notice, broken]
    assert run(sync) == [notice, "third: gone"]
    assert run(sync) == []
    assert run(sync) == [broken]
    assert (sync.take_forks(), sync.take_forks()) == ([fork], [])


def test_finish_says_when_it_is_not_over_and_waits_for_what_was_asked_for():
    syncer = FakeSyncer(gated=True)
    sync = background(syncer)
    sync.request("a")
    assert syncer.began.acquire(timeout=30)
    sync.request("b")
    assert not sync.finish(0.01)
    for _ in range(2):
        syncer.gate.release()
    assert sync.finish(None)
    assert syncer.calls == [("a", False), ("b", False)]


def test_ctrl_c_ends_the_wait_and_not_the_sync():
    syncer = FakeSyncer(gated=True)
    sync = background(syncer)
    sync.request("a")
    assert syncer.began.acquire(timeout=30)
    threading.Timer(0.05, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        sync.finish(None)
    assert sync.state == "syncing"
    syncer.gate.release()
    assert sync.finish(30)


def test_who_starts_a_sync_gets_its_outcome_with_the_state_of_all_and_no_lines():
    report = SyncReport(pushed=["talk"], notices=["a notice"], forks=[Fork("a", "talk", "f", "talk-2")])
    syncer = FakeSyncer(report, UNREACHABLE, UNREACHABLE, KeyError("x"))
    sync = background(syncer)
    assert sync.start("a").result(timeout=30) == report
    assert syncer.calls == [("a", True)]
    assert len(sync.take_forks()) == 1
    with pytest.raises(TransientError, match="timed out"):
        sync.start("").result(timeout=30)
    assert syncer.calls[-1] == (None, True)
    assert run(sync) == []  # it was told already
    with pytest.raises(SatchelError, match=r"KeyError at test_background_sync\.py"):
        sync.start("a").result(timeout=30)
    assert sync.finish(30)
    assert sync.take_lines() == []


def test_a_sync_that_nobody_waits_for_any_more_is_told_in_lines():
    syncer = FakeSyncer(SyncReport(notices=["a notice"]), gated=True)
    sync = background(syncer)
    started: Future[SyncReport] = sync.start("a")
    assert syncer.began.acquire(timeout=30)
    assert started.cancel()
    syncer.gate.release()
    assert sync.finish(30)
    assert sync.take_lines() == ["a notice"]


def test_a_system_that_refuses_a_thread_is_told(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    sync = background(FakeSyncer())
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        assert run(sync) == ["not synced: the system refuses a thread: can't start new thread"]
        with pytest.raises(SatchelError, match="refuses a thread"):
            sync.start("a").result(timeout=0)
    assert run(sync) == ["synced again"]


def test_what_a_sync_did_before_it_failed_is_told_and_its_forks_are_given():
    fork = Fork("1" * 32, "talk", "2" * 32, "talk-2")
    half = SyncReport(notices=["talk-2 is what was said here"], forks=[fork])
    sync = background(FakeSyncer((half, UNREACHABLE), (SyncReport(notices=["another"]), UNREACHABLE)))
    failed = "not synced: the remote cannot be reached: timed out"
    assert run(sync) == ["talk-2 is what was said here", failed]
    assert (sync.take_forks(), sync.state) == ([fork], "not reachable")
    assert run(sync) == ["another"]


def test_what_a_sync_did_before_it_failed_is_told_in_lines_where_somebody_waits_for_it_too():
    fork = Fork("1" * 32, "talk", "2" * 32, "talk-2")
    sync = background(FakeSyncer((SyncReport(notices=["a fork"], forks=[fork]), UNREACHABLE)))
    with pytest.raises(TransientError):
        sync.start("a").result(timeout=30)
    assert sync.finish(30)
    assert (sync.take_lines(), sync.take_forks()) == (["a fork"], [fork])


# Before a session is resumed


class FakeFetcher:
    """Fetches a session by committing it, after telling of progress, or raises."""

    def __init__(self, store, outcome=None, brings=None, gate=None):
        self.store, self.outcome, self.brings, self.gate = store, outcome or SyncReport(), brings, gate
        self.wanted = []
        self.ended = threading.Event()
        self.error = None

    def __call__(self, show):
        self.show = show
        return self

    def fetch(self, wanted, report):
        self.wanted.append(wanted)
        try:
            if self.gate:
                assert self.gate.wait(30)
            give(self.outcome, report)
            self.show(Progress("fetching", "talk", 1, 2))
            if self.brings:
                current = self.store.head(self.brings.session_id)
                self.store.commit(self.brings, current.manifest if current else None)
        except Exception as err:
            self.error = err
            raise
        finally:
            self.ended.set()
        return report


def manifest(name: str, number: int = 1, *, generation: int = 1) -> Manifest:
    return Manifest(
        session_id=f"{number:032x}",
        name=name,
        generation=generation,
        parent=None,
        created_at=datetime(2026, 11, number, generation, tzinfo=UTC),
        model_name="embedded",
        profile_name="turbo4",
        identity={},
        messages=(Message(role="user", content=name),),
        blocks=(),
        tail=None,
        token_count=0,
    )


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path)


def resume(store, wanted, fetcher, patience_s=30.0):
    """The name of the session found, its generation, the lines said, and the progress shown."""
    said, shown = [], []
    head = bring_up_to_date(store, wanted, fetcher, shown.append, said.append, patience_s)
    return head.name, head.generation, said, shown


def test_a_session_is_taken_as_the_remote_has_it(store):
    store.commit(manifest("talk"), None)
    fetcher = FakeFetcher(store, SyncReport(notices=["n"], faults=["f"]), manifest("talk", generation=2))
    assert resume(store, "talk", fetcher) == ("talk", 2, ["n", "f"], [Progress("fetching", "talk", 1, 2)])
    assert fetcher.wanted == ["talk"]


def test_a_session_that_is_not_here_is_fetched_by_its_name(store):
    name, generation, _, _ = resume(store, "talk", FakeFetcher(store, brings=manifest("talk")))
    assert (name, generation) == ("talk", 1)


def test_the_latest_of_all_machines_is_taken_where_none_is_named(store):
    store.commit(manifest("mine", 1), None)
    fetcher = FakeFetcher(store, brings=manifest("newer", 2))
    assert resume(store, None, fetcher)[0] == "newer"
    assert fetcher.wanted == [None]


def test_a_session_renamed_elsewhere_is_found_by_its_old_name(store):
    store.commit(manifest("old"), None)
    assert resume(store, "old", FakeFetcher(store, brings=manifest("new", generation=2)))[0] == "new"


@pytest.mark.parametrize("wanted", ["talk", None])
def test_without_the_remote_a_session_that_is_here_is_taken_as_it_is(store, wanted):
    store.commit(manifest("talk"), None)
    line = "not brought up to date: the remote cannot be reached: timed out"
    assert resume(store, wanted, FakeFetcher(store, UNREACHABLE)) == ("talk", 1, [line], [])


@pytest.mark.parametrize("wanted", ["talk", None])
def test_without_the_remote_a_session_that_is_not_here_is_a_network_error(store, wanted):
    with pytest.raises(NetworkError) as raised:
        resume(store, wanted, FakeFetcher(store, UNREACHABLE))
    assert (raised.value.exit_code, str(raised.value)) == (5, "the remote cannot be reached: timed out")


@pytest.mark.parametrize("here", [True, False])
def test_what_was_done_before_the_network_failed_is_told(store, here):
    if here:
        store.commit(manifest("talk"), None)
    fetcher, said = FakeFetcher(store, (SyncReport(notices=["a fork"]), UNREACHABLE)), []
    with contextlib.nullcontext() if here else pytest.raises(NetworkError):
        bring_up_to_date(store, "talk", fetcher, print, said.append)
    line = "not brought up to date: the remote cannot be reached: timed out"
    assert said == ([line, "a fork"] if here else ["a fork"])


def test_a_session_that_is_nowhere_is_not_found(store):
    with pytest.raises(NotFoundError, match="no session is saved yet"):
        resume(store, "talk", FakeFetcher(store))


def test_a_silent_remote_is_left_and_what_it_sends_later_is_not_taken(store):
    store.commit(manifest("talk"), None)
    gate = threading.Event()
    fetcher = FakeFetcher(store, brings=manifest("talk", generation=2), gate=gate)
    line = "not brought up to date: the remote has not answered for 0.01 s"
    assert resume(store, "talk", fetcher, patience_s=0.01) == ("talk", 1, [line], [])
    gate.set()
    assert fetcher.ended.wait(30)
    assert str(fetcher.error) == "nobody waits for it any more"
    assert store.find("talk").generation == 1


def test_words_that_come_after_the_talk_was_resumed_are_not_put_under_it(tmp_path):
    """With a real syncer, of a session without state: nothing is told of its transfer but the end."""
    reached, gate, raised = threading.Event(), threading.Event(), []

    class Slow(MemoryRemote):
        def get(self, name, max_bytes):
            data = super().get(name, max_bytes)
            if "manifests/" in name and threading.current_thread().name != "MainThread":
                reached.set()
                assert gate.wait(30)
            return data

    remote = Slow()
    here, there = (Machine(tmp_path / name, remote) for name in ("here", "there"))
    here.say("talk", "one")
    here.prune()
    here.sync()
    there.sync()
    there.say("talk", "two")
    there.prune()
    there.sync()

    class Watched:
        def __init__(self, show):
            here.syncer.progress = show

        def fetch(self, wanted, report):
            try:
                return here.syncer.fetch(wanted, report)
            except SatchelError as err:
                raised.append(str(err))
                raise
            finally:
                ended.set()

    ended, said = threading.Event(), []
    head = bring_up_to_date(here.store, "talk", Watched, lambda _: None, said.append, patience_s=0.2)
    assert reached.wait(30)
    assert said == ["not brought up to date: the remote has not answered for 0.2 s"]
    gate.set()
    assert ended.wait(30)
    assert raised == ["nobody waits for it any more"]
    assert here.store.head(head.session_id) == head
    here.syncer.progress = None
    assert here.syncer.fetch("talk").pulled == ["talk"]


def test_a_remote_that_has_answered_is_waited_for(store):
    store.commit(manifest("talk"), None)

    class Slow(FakeFetcher):
        def fetch(self, wanted, report):
            self.show(Progress("fetching", "talk", 0, 2))
            threading.Timer(0.3, gate.set).start()
            return super().fetch(wanted, report)

    gate = threading.Event()
    fetcher = Slow(store, brings=manifest("talk", generation=2), gate=gate)
    assert resume(store, "talk", fetcher, patience_s=0.01)[:3] == ("talk", 2, [])


def test_a_session_damaged_here_is_looked_for_in_the_remote(store):
    head = store.commit(manifest("talk"), None)
    store.head_path(head.session_id).write_text("x")
    with pytest.raises(DamagedError, match="there is no readable session called 'talk'"):
        resume(store, "talk", fetcher := FakeFetcher(store))
    assert fetcher.wanted == ["talk"]
