"""A chat with sync set up: when it syncs, what it shows of that, and where a running talk goes on."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_talks import open_manager, say, small_model

from satchel.agent.commands import is_command, run_command
from satchel.agent.desk import Desk
from satchel.agent.events import Event, Failed, Notice, Output
from satchel.cache_store.local import LocalStore
from satchel.cache_store.maintenance import remove
from satchel.cache_store.manifest import Message
from satchel.cache_store.sessions import fork_session, open_session
from satchel.config.settings import Settings
from satchel.engine.model import LoadedModel
from satchel.errors import SatchelError, UsageError
from satchel.remotes.directory import DirectoryRemote
from satchel.remotes.memory import MemoryRemote
from satchel.session import Session, SessionManager
from satchel.sync.configuration import SyncConfig, save_config
from satchel.sync.keys import KEY_OBJECT, Keys, RootKey, make_key_object
from satchel.sync.records import SyncRecords
from satchel.sync.report import Fork, SyncReport
from satchel.sync.secrets import save_root
from satchel.sync.syncer import Syncer
from satchel.terminal import chat as chat_module
from satchel.terminal.chat import Chat

AUTO = Settings.model_validate({"sync": {"auto": True}})
FORK = Fork("1" * 32, "talk", "2" * 32, "talk-2")


# The loop, with a session and a sync that only note what is asked of them


class Talk:
    """A session that saves each turn as another manifest."""

    reused_tokens = unread_tokens = 0
    messages = ()
    fill = 0.0
    figures = ()

    def __init__(self, log: list[str], session_id: str = "1" * 32, saves: int = 0) -> None:
        self.log, self.id, self.saves = log, session_id, saves
        self.name: str | None = None
        self.unsaved = False
        self.newer: str | None = None
        self.notices: list[str] = []

    def overtaken_by(self) -> str | None:
        return self.newer

    @property
    def saved_manifest(self) -> str:
        return f"{self.id[0]}.{self.saves}" if self.saves else ""

    def save(self, name: str | None = None) -> None:
        self.saves += 1
        self.name = name or self.name
        self.unsaved = False

    def follow(self, fork_id: str) -> bool:
        self.log.append(f"followed {fork_id[0]}")
        self.id = fork_id
        return True

    def stats(self) -> dict[str, object]:
        return {"session": "talk"}

    def take_notices(self) -> list[str]:
        taken, self.notices = self.notices, []
        return taken


class Sync:
    """What the chat asks of a `BackgroundSync`."""

    state = "synced 12:03"

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.lines: list[str] = []
        self.forks: list[Fork] = []
        self.finishes: list[bool | type[BaseException]] = []
        self.outcome: Future[SyncReport] = Future()

    def request(self, session_id: str) -> None:
        self.log.append(f"requested {session_id[0]}")

    def start(self, session_id: str) -> Future[SyncReport]:
        self.log.append(f"started {session_id[:1]}")
        return self.outcome

    def take_lines(self) -> list[str]:
        taken, self.lines = self.lines, []
        return taken

    def take_forks(self) -> list[Fork]:
        taken, self.forks = self.forks, []
        return taken

    def finish(self, timeout_s: float | None) -> bool:
        self.log.append(f"finish {timeout_s}")
        result = self.finishes.pop(0) if self.finishes else True
        if isinstance(result, type):
            raise result
        return result


class Shown:
    """A renderer that notes what is shown."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def turn(self, events: Iterator[Event | str]) -> None:
        for event in events:
            match event:
                case str(text) | Output(text):
                    self.log.append(text)
                case Notice(text):
                    self.notice(text)
                case Failed(text):
                    self.error(text)

    def notice(self, text: str) -> None:
        self.log.append(f"notice: {text}")

    def error(self, text: str) -> None:
        self.log.append(f"error: {text}")


class Typed:
    """A prompt at which these lines are typed, and then Ctrl-D."""

    def __init__(self, log: list[str], *lines: str) -> None:
        self.log, self.lines = log, list(lines)

    def read(self) -> str:
        self.log.append("prompt")
        if not self.lines:
            raise EOFError
        return self.lines.pop(0)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens, in order. In a turn a line comes from the sync, and `fail` fails."""

    def turn(desk: Desk, text: str, cancel: threading.Event) -> Iterator[Event | str]:
        desk.cancel = cancel
        if is_command(text):
            yield from run_command(desk, text)
            return
        yield f"answer to {text}"
        if text == "fail":
            raise SatchelError("the model fell over")
        if desk.settings.auto_save:
            desk.session.save()
        yield "end"

    monkeypatch.setattr(chat_module, "run_turn", turn)
    return []


def desk_of(talk: Talk, sync: Sync | None = None, settings: Settings = AUTO) -> Desk:
    return Desk(None, talk, settings, None, sync=sync)


def talk_with(log: list[str], sync: Sync | None, *lines: str, settings: Settings = AUTO) -> list[str]:
    Chat(desk_of(Talk(log), sync, settings), Shown(log)).with_person(Typed(log, *lines))
    return log


def test_each_turn_that_was_saved_is_synced_and_the_last_is_waited_for(log):
    assert talk_with(log, Sync(log), "one", "/stats") == [
        "prompt",
        "answer to one",
        "end",
        "requested 1",
        "prompt",
        "session  talk\nsync     synced 12:03",
        "prompt",
        "finish 0.3",
    ]


@pytest.mark.parametrize("chosen", [{}, {"sync": {"auto": True}, "auto_save": False}])
def test_without_auto_sync_or_saving_nothing_is_synced(log, chosen):
    shown = talk_with(log, Sync(log), "one", settings=Settings.model_validate(chosen))
    assert shown == ["prompt", "answer to one", "end", "prompt", "finish 0.3"]


def test_without_sync_set_up_nothing_is_waited_for(log):
    assert talk_with(log, None, "one") == ["prompt", "answer to one", "end", "prompt"]


def test_lines_of_a_sync_stand_before_the_next_prompt_and_not_in_an_answer(log):
    class Chatty(Sync):
        def request(self, session_id: str) -> None:
            super().request(session_id)
            self.lines.append("not synced: no network")

    sync = Chatty(log)
    sync.lines = ["synced again"]
    assert talk_with(log, sync, "one") == [
        "notice: synced again",
        "prompt",
        "answer to one",
        "end",
        "requested 1",
        "notice: not synced: no network",
        "prompt",
        "finish 0.3",
    ]


def test_a_fork_of_the_running_talk_is_followed_and_others_are_not(log):
    sync = Sync(log)
    sync.forks = [Fork("3" * 32, "other", "4" * 32, "other-2"), FORK]
    shown = talk_with(log, sync)
    assert shown[0] == "followed 2"
    assert [line for line in shown if line.startswith("followed")] == ["followed 2"]


def test_a_talk_that_has_gone_on_elsewhere_is_told_of_once(log, monkeypatch):
    monkeypatch.setattr(Talk, "overtaken_by", lambda talk: "2.9")
    monkeypatch.setattr(Talk, "name", property(lambda talk: "bruno", lambda talk, name: None), raising=False)
    shown = talk_with(log, Sync(log), "one", "two")
    assert [line for line in shown if "gone on" in line] == [
        "notice: 'bruno' has gone on elsewhere: /load bruno goes on from there; what is said here becomes a "
        "session of its own"
    ]


def test_a_long_last_sync_says_so_and_its_lines_are_shown(log):
    sync = Sync(log)
    sync.finishes = [False, True]
    shown = talk_with(log, sync)
    assert shown == [
        "prompt",
        "finish 0.3",
        "notice: sending what was said last; Ctrl-C leaves now",
        "finish None",
    ]


@pytest.mark.parametrize("finishes", [[KeyboardInterrupt], [False, KeyboardInterrupt]])
def test_ctrl_c_leaves_without_waiting(log, finishes):
    sync = Sync(log)
    sync.finishes = list(finishes)
    sync.lines = []
    assert talk_with(log, sync)[-1] == "notice: what was not sent is sent by the next sync"


def test_a_script_syncs_its_turns_and_waits_at_the_end(log):
    Chat(desk_of(Talk(log), Sync(log)), Shown(log)).with_script(["one\n", "two\n"])
    turns = [line for text in ("one", "two") for line in (f"answer to {text}", "end", "requested 1")]
    assert log == [*turns, "finish 0.3"]


def test_a_script_that_fails_still_sends_the_turns_before(log):
    with pytest.raises(SatchelError, match="fell over"):
        Chat(desk_of(Talk(log), Sync(log)), Shown(log)).with_script(["one\n", "fail\n"])
    assert log == ["answer to one", "end", "requested 1", "answer to fail", "finish 0.3"]


@pytest.mark.parametrize("lines", [["one\n"], ["one\n", "fail\n"]])
def test_a_script_does_not_wait_for_ever_and_says_so(log, lines):
    sync = Sync(log)
    sync.finishes = [False, False]
    with contextlib.suppress(SatchelError):
        Chat(desk_of(Talk(log), sync), Shown(log)).with_script(lines)
    assert log[-4:] == [
        "finish 0.3",
        "notice: sending what was said last; Ctrl-C leaves now",
        "finish 60.0",
        "notice: what was not sent is sent by the next sync",
    ]


def test_what_leaving_a_session_saves_is_synced_before_the_next_one_begins(log):
    talk = Talk(log)
    talk.unsaved = True
    desk = desk_of(talk, Sync(log))
    desk.manager = SimpleNamespace(open=lambda name: Talk(log, "2" * 32, saves=1))
    Chat(desk, Shown(log)).with_person(Typed(log, "/load other", "two"))
    assert log == [
        "prompt",
        "requested 1",
        "prompt",
        "answer to two",
        "end",
        "requested 2",
        "prompt",
        "finish 0.3",
    ]


# /sync


def run(desk: Desk) -> list[str]:
    return [outcome.text for outcome in run_command(desk, "/sync") if isinstance(outcome, Notice)]


def test_sync_tells_what_it_did():
    log: list[str] = []
    sync = Sync(log)
    report = SyncReport(["a", "b"], ["c"], ["d"], [FORK], ["a notice"], ["a fault"], 1_200_000, 300_000)
    sync.outcome.set_result(report)
    assert run(desk_of(Talk(log), sync)) == [
        "a notice",
        "a fault",
        "sent a, b (1.2 MB); received c (300.0 KB); removed d",
    ]
    assert log == ["started 1"]


def test_sync_says_when_nothing_was_new():
    sync = Sync([])
    sync.outcome.set_result(SyncReport())
    assert run(desk_of(Talk([]), sync)) == ["everything is in sync"]


def test_sync_shows_why_it_could_not():
    sync = Sync([])
    sync.outcome.set_exception(SatchelError("no network"))
    with pytest.raises(SatchelError, match="no network"):
        run(desk_of(Talk([]), sync))


def test_ctrl_c_leaves_a_sync_to_the_background():
    sync = Sync([])
    desk = desk_of(Talk([]), sync)
    desk.cancel.set()
    assert run(desk) == ["syncing; Ctrl-C goes back to the talk", "the sync goes on in the background"]
    assert sync.outcome.cancelled()


def test_sync_that_is_not_set_up_names_the_command_that_does_it():
    with pytest.raises(UsageError) as raised:
        run(desk_of(Talk([])))
    assert raised.value.one_line() == (
        "sync is not set up; `satchel sync setup` does it; then start the chat again"
    )


def test_a_fork_that_a_sync_command_makes_is_followed_before_the_next_prompt(log):
    sync = Sync(log)
    sync.outcome.set_result(SyncReport(forks=[FORK], notices=["'talk' goes on as 'talk-2'"]))
    sync.forks = []

    class Late(Typed):
        def read(self) -> str:
            if self.lines:
                sync.forks = [FORK]
            return super().read()

    Chat(desk_of(Talk(log), sync), Shown(log)).with_person(Late(log, "/sync"))
    assert log == [
        "prompt",
        "started 1",
        "notice: 'talk' goes on as 'talk-2'",
        "notice: everything is in sync",
        "followed 2",
        "prompt",
        "finish 0.3",
    ]


def test_the_cancelling_of_a_command_is_the_chats(log):
    """Ctrl-C in /sync reaches it."""
    sync = Sync(log)

    class Pressing(Shown):
        def notice(self, text: str) -> None:
            super().notice(text)
            if text.startswith("syncing"):
                signal.raise_signal(signal.SIGINT)

    Chat(desk_of(Talk(log), sync), Pressing(log)).with_person(Typed(log, "/sync"))
    assert "notice: the sync goes on in the background" in log


# Two machines and a real sync


@pytest.fixture(scope="module")
def small(smollm: LoadedModel) -> LoadedModel:
    return small_model(smollm)


KEYS = Keys.of(RootKey(bytes(range(32))))


class Machine:
    """A home with a manager of its own, as a process on another machine would have."""

    def __init__(self, home: Path, remote: MemoryRemote, model: LoadedModel) -> None:
        self.home = home
        self.manager: SessionManager = open_manager(home, model)
        self.remote = remote

    def sync(self) -> SyncReport:
        """As another process would."""
        records = SyncRecords(self.home / "sync" / KEYS.id)
        return Syncer(LocalStore(self.home), self.remote, KEYS, records, exclusive=True).sync()


@pytest.fixture
def machines(tmp_path: Path, small: LoadedModel) -> tuple[Machine, Machine]:
    remote = MemoryRemote()
    return Machine(tmp_path / "one", remote, small), Machine(tmp_path / "two", remote, small)


def diverged(machines: tuple[Machine, Machine]) -> tuple[Session, SyncReport]:
    """A talk that runs on the first machine, and a sync there after it went on on both."""
    one, two = machines
    talk = one.manager.new()
    say(talk, "Hello")
    talk.save("talk")
    one.sync()
    two.sync()
    elsewhere = two.manager.open("talk")
    say(elsewhere, "Two?")
    elsewhere.save()
    two.sync()
    say(talk, "One?")
    talk.save()
    return talk, one.sync()


def questions(machine: Machine) -> dict[str, list[str]]:
    """What was asked in each session."""
    store = machine.manager.store
    return {
        head.name: open_session(store, head.session_id).manifest.questions for head in store.heads().heads
    }


def test_a_running_talk_goes_on_as_the_fork_that_a_sync_made_of_it(machines):
    talk, report = diverged(machines)
    (fork,) = report.forks
    assert talk.follow(fork.fork_id)
    assert (talk.name, talk.id) == ("talk-2", fork.fork_id)
    assert talk.take_notices() == ["this talk goes on as 'talk-2'"]
    say(talk, "Three?")
    talk.save()
    assert talk.take_notices() == []
    assert questions(machines[0]) == {"talk": ["Hello", "Two?"], "talk-2": ["Hello", "One?", "Three?"]}
    opened = machines[0].manager.open("talk-2")
    assert (opened.token_ids, opened.notices) == (talk.token_ids, [])
    for machine in (*machines, *machines):
        machine.sync()
    assert questions(machines[0]) == questions(machines[1])


def test_a_talk_knows_when_a_sync_has_brought_what_was_said_elsewhere(machines):
    one, two = machines
    talk = one.manager.new()
    say(talk, "Hello")
    talk.save("talk")
    one.sync()
    two.sync()
    assert talk.overtaken_by() is None
    elsewhere = two.manager.open("talk")
    say(elsewhere, "Two?")
    elsewhere.save()
    two.sync()
    one.sync()
    assert talk.overtaken_by() == elsewhere.saved_manifest
    one.manager.store.rename(talk.id, "renamed")
    assert talk.overtaken_by() == one.manager.store.find("renamed").manifest


def test_a_save_finds_the_fork_of_a_sync_that_nobody_told_of(machines):
    talk, report = diverged(machines)
    say(talk, "Three?")
    talk.save()
    assert talk.take_notices() == ["this talk goes on as 'talk-2'"]
    assert talk.id == report.forks[0].fork_id
    assert questions(machines[0]) == {"talk": ["Hello", "Two?"], "talk-2": ["Hello", "One?", "Three?"]}


def test_a_talk_that_was_removed_elsewhere_goes_on_as_its_fork(machines):
    one, two = machines
    talk = one.manager.new()
    say(talk, "Hello")
    talk.save("talk")
    one.sync()
    two.sync()
    session_id = two.manager.store.session_id("talk")
    SyncRecords(two.home / "sync" / KEYS.id).note_removals([session_id])
    remove(two.manager.store, session_id)
    two.sync()
    say(talk, "One?")
    talk.save()
    (fork,) = one.sync().forks
    say(talk, "Two?")
    talk.save()
    assert (talk.id, talk.take_notices()) == (fork.fork_id, [f"this talk goes on as {fork.fork_name!r}"])
    assert questions(one) == {fork.fork_name: ["Hello", "One?", "Two?"]}


def test_a_fork_that_holds_what_was_not_said_here_is_left_alone(machines):
    talk, report = diverged(machines)
    fork_id = report.forks[0].fork_id
    store = machines[0].manager.store
    other = machines[0].manager.open(fork_id)
    say(other, "Another?")
    other.save()
    before = talk.id
    assert not talk.follow(fork_id)
    assert (talk.id, talk.take_notices()) == (before, [])
    say(talk, "Three?")
    talk.save()
    assert talk.take_notices() == ["another process has saved 'talk': this talk goes on as 'talk-3'"]
    assert questions(machines[0]) == {
        "talk": ["Hello", "Two?"],
        "talk-2": ["Hello", "One?", "Another?"],
        "talk-3": ["Hello", "One?", "Three?"],
    }
    assert store.find("talk-2").turns == 3


def test_a_fork_that_is_gone_again_is_not_followed(machines):
    talk, report = diverged(machines)
    remove(machines[0].manager.store, report.forks[0].fork_id)
    assert not talk.follow(report.forks[0].fork_id)
    say(talk, "Three?")
    talk.save()
    assert questions(machines[0]) == {"talk": ["Hello", "Two?"], "talk-2": ["Hello", "One?", "Three?"]}


def test_a_fork_that_the_user_made_is_not_followed(machines):
    one, _ = machines
    talk = one.manager.new()
    say(talk, "Hello")
    talk.save("talk")
    store = one.manager.store
    fork_session(store, open_session(store, "talk"), "mine")
    other = one.manager.open("talk")
    say(other, "Other?")
    other.save()
    say(talk, "One?")
    talk.save()
    assert talk.take_notices() == ["another process has saved 'talk': this talk goes on as 'talk-2'"]
    assert store.find("mine").turns == 1


def test_what_was_gone_back_from_is_followed_too(machines):
    talk, report = diverged(machines)
    talk.restore_turn(1)
    assert talk.id == report.forks[0].fork_id
    assert questions(machines[0]) == {"talk": ["Hello", "Two?"], "talk-2": ["Hello"]}
    assert [each.questions for each in talk.abandoned()] == [["Hello", "One?"]]


# The commands


@pytest.fixture
def remote_dir(tmp_path: Path) -> Path:
    (place := tmp_path / "nas").mkdir()
    DirectoryRemote(place).put(KEY_OBJECT, make_key_object(RootKey(bytes(range(32))), None))
    return place


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch, remote_dir: Path) -> Callable[[Path], Path]:
    """Sets a home up to sync with a directory."""

    def configure(home: Path) -> Path:
        monkeypatch.setenv("SATCHEL_HOME", str(home))
        root = RootKey(bytes(range(32)))
        save_root(root, KEYS.id)
        save_config(SyncConfig(url=remote_dir.as_uri(), key_id=KEYS.id, exclusive=True))
        return home

    return configure


def satchel(home: Path, *args: str, stdin: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "satchel", *args, "--max-tokens", "2"],
        env=os.environ | {"SATCHEL_HOME": str(home)} | more,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_talk_is_sent_after_its_turn_and_resumed_on_a_second_machine(
    tmp_path, configured, remote_dir, smollm
):
    one, two = (configured(tmp_path / name) for name in ("one", "two"))
    talked = satchel(one, "chat", stdin="Hello\n/save talk\n", SATCHEL_SYNC_AUTO="true")
    assert (talked.returncode, "not synced" in talked.stderr) == (0, False)
    assert LocalStore(two).heads().total == 0

    resumed = satchel(two, "resume", "talk", stdin="/stats\n")
    tokens = LocalStore(one).find("talk").token_count
    assert f"going on in talk: reused {tokens} tokens" in resumed.stderr
    assert "\nsync          not synced yet\n" in resumed.stdout
    assert LocalStore(two).find("talk") == LocalStore(one).find("talk")

    remote_dir.rename(tmp_path / "gone")
    without = satchel(two, "resume", stdin="/sync\n")
    assert without.returncode == 5
    assert f"not brought up to date: {remote_dir} is not there" in without.stderr
    assert f"satchel: {remote_dir} is not there" in without.stderr
    offline = satchel(two, "resume", "--offline", stdin="/quit\n")
    assert (offline.returncode, "is not there" in offline.stderr) == (0, False)


def test_a_session_that_is_not_here_needs_the_remote(tmp_path, configured, remote_dir):
    home = configured(tmp_path / "one")
    assert satchel(home, "resume", "talk").returncode == 3
    shutil.rmtree(remote_dir)
    missed = satchel(home, "resume", "talk")
    assert (missed.returncode, missed.stdout, missed.stderr.count("\n")) == (5, "", 1)
    assert missed.stderr.startswith(f"satchel: {remote_dir} is not there")
    offline = satchel(home, "resume", "talk", "--offline")
    assert (offline.returncode, offline.stderr) == (3, "satchel: no session is saved yet\n")


# What a chat may import


@pytest.mark.parametrize("command", [("chat",), ("resume", "talk"), ("resume", "talk", "--offline")])
def test_a_chat_without_sync_imports_nothing_of_it(tmp_path, command, small):
    manager = open_manager(tmp_path, small)
    session = manager.new()
    session.messages = [Message(role="user", content="Hello"), Message(role="assistant", content="Hello")]
    session.save("talk")
    code = "import sys; from satchel.cli import run; run(sys.argv[1:]); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, *command, "--model", "embedded", "--max-tokens", "2"],
        env=os.environ | {"SATCHEL_HOME": str(tmp_path)},
        input="Hello\n/sync\n",
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "satchel: sync is not set up" in done.stderr
    loaded = done.stdout.split()
    assert "satchel.terminal.chat" in loaded
    heavy = ("satchel.sync.syncer", "satchel.sync.background", "boto3", "keyring", "cryptography")
    assert [name for name in heavy if name in loaded] == []
