"""The chat's loops, with turns that only note what they were given."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator, Sequence

import pytest
from terminals import Typed

from satchel.agent.desk import Desk
from satchel.agent.events import Event, Notice, Quit, Switched
from satchel.agent.user import NO, YES, Choice, Nobody
from satchel.cache_store.manifest import Message
from satchel.config.settings import Settings
from satchel.errors import NetworkError, SatchelError
from satchel.terminal import chat as chat_module
from satchel.terminal.chat import Chat
from satchel.terminal.faults import fault_lines
from satchel.terminal.recap import recap


class Talk:
    """A session that is as full as it is said to be."""

    id, name, unsaved, reused_tokens, saved_manifest = "", None, False, 0, ""

    def __init__(self, fill: float = 0.0) -> None:
        self.fill = fill

    def overtaken_by(self) -> str | None:
        return None

    def take_notices(self) -> list[str]:
        return []


class Sent:
    """A sync that has nothing to do, and one that fails to be looked at once `broken`."""

    def __init__(self) -> None:
        self.finished = 0
        self.broken = False

    def finish(self, timeout_s: float | None) -> bool:
        self.finished += 1
        return True

    def take_lines(self) -> list[str]:
        return []

    def take_forks(self) -> list[object]:
        if self.broken:
            raise OSError("it is gone")
        return []


class Shown:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def turn(self, events: Iterator[Event]) -> None:
        for event in events:
            if isinstance(event, Notice):
                self.notice(event.text)

    def notice(self, text: str) -> None:
        self.lines.append(text)

    def error(self, text: str) -> None:
        self.lines.append(f"satchel: {text}")

    def fault(self, err: Exception) -> None:
        self.lines += fault_lines(err)


class Person(Nobody):
    """Answers with these choices; None is Ctrl-C."""

    def __init__(self, *answers: Choice | None) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, Choice]] = []

    def choose(self, question: str, choices: Sequence[Choice], default: Choice) -> Choice:
        self.asked.append((question, default))
        answer = self.answers.pop(0)
        if answer is None:
            raise KeyboardInterrupt
        return answer


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that turns were run with. `fill N` makes the context N % full, `fail` fails, as do others."""
    seen: list[str] = []

    def turn(desk: Desk, text: str, cancel: threading.Event) -> Iterator[Event]:
        seen.append(text)
        word, _, number = text.partition(" ")
        if word == "fill":
            desk.session.fill = int(number) / 100  # type: ignore[misc]
        elif text in ("fail", "?fail", "!fail"):
            raise NetworkError("it failed")
        elif text == "/compact":
            desk.session.fill = 0.1  # type: ignore[misc]
        elif text == "break":
            raise KeyError("what")
        elif text == "ask":
            desk.user.choose("sure?", (YES, NO), NO)
            yield Notice("not reached")
        elif text == "interrupt":
            signal.raise_signal(signal.SIGINT)
            yield Notice(f"cancelled: {cancel.is_set()}")
        elif text == "/new":
            desk.session = Talk(0.9)  # type: ignore[assignment]
            yield Switched(desk.session)
        elif text == "/quit":
            yield Quit()
        yield Notice(f"routing {desk.routing}")

    monkeypatch.setattr(chat_module, "run_turn", turn)
    return seen


def desk_of(user: Nobody | None = None, **chosen: object) -> Desk:
    settings = Settings.model_validate({"auto_save": False, **chosen})
    return Desk(None, Talk(), settings, None, user=user or Nobody())  # type: ignore[arg-type]


def talk_with(desk: Desk, *lines: str) -> list[str]:
    shown = Shown()
    Chat(desk, shown).with_person(Typed(*lines))  # type: ignore[arg-type]
    return shown.lines


def follow(desk: Desk, *lines: str) -> list[str]:
    shown = Shown()
    Chat(desk, shown).with_script(lines)  # type: ignore[arg-type]
    return shown.lines


@pytest.mark.parametrize("routing", [True, False])
def test_messages_of_a_person_are_routed_as_the_settings_say(turns: list[str], routing: bool) -> None:
    assert talk_with(desk_of(agent={"routing": routing}), "Hello") == [f"routing {routing}"]


def test_messages_of_a_script_are_messages(turns: list[str]) -> None:
    assert follow(desk_of(), "Hello\n") == ["routing False"]


def test_quit_ends_the_talk_and_what_follows_it_is_not_read(turns: list[str]) -> None:
    talk_with(desk_of(), "one", "/quit", "two")
    follow(desk_of(), "three", "/quit", "four")
    assert turns == ["one", "/quit", "three", "/quit"]


def test_compacting_is_offered_once_when_the_context_becomes_full(turns: list[str]) -> None:
    user = Person(NO, YES)
    talk_with(desk_of(user), "fill 84", "fill 85", "fill 90", "fill 10", "fill 86", "on")
    assert user.asked == [
        ("the context is 85% full: go on from a summary?", NO),
        ("the context is 86% full: go on from a summary?", NO),
    ]
    assert turns == ["fill 84", "fill 85", "fill 90", "fill 10", "fill 86", "/compact", "on"]


def test_another_session_that_is_full_is_offered_compacting_too(turns: list[str]) -> None:
    user = Person(NO, NO)
    talk_with(desk_of(user), "fill 90", "/new")
    assert len(user.asked) == 2


def test_ctrl_c_at_the_offer_compacts_nothing(turns: list[str]) -> None:
    talk_with(desk_of(Person(None)), "fill 99", "on")
    assert turns == ["fill 99", "on"]


def test_a_script_is_told_once_that_the_context_is_full(turns: list[str]) -> None:
    shown = follow(desk_of(agent={"compact_at": 0.5}), "fill 49", "fill 50", "fill 60")
    assert [line for line in shown if "full" in line] == [
        "the context is 50% full: /compact goes on from a summary"
    ]


def test_ctrl_c_at_a_question_ends_the_turn_and_the_talk_goes_on(turns: list[str]) -> None:
    assert talk_with(desk_of(Person(None)), "ask", "on") == ["stopped", "routing True"]


def test_ctrl_c_in_a_turn_is_the_turns(turns: list[str]) -> None:
    assert talk_with(desk_of(), "interrupt")[0] == "cancelled: True"


def test_a_search_or_command_that_fails_does_not_end_a_script_and_a_message_does(turns: list[str]) -> None:
    failed = "satchel: it failed"
    assert follow(desk_of(), "?fail", "!fail", "on") == [failed, failed, "routing False"]
    with pytest.raises(SatchelError, match="it failed"):
        follow(desk_of(), "fail", "never")
    assert turns[-1] == "fail"


def test_what_fails_for_a_person_is_shown_and_the_talk_goes_on(turns: list[str]) -> None:
    assert talk_with(desk_of(), "fail", "on") == ["satchel: it failed", "routing True"]


def test_a_fault_of_satchels_own_is_a_line_and_the_talk_goes_on(
    turns: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SATCHEL_DEBUG", raising=False)
    fault, after = talk_with(desk_of(), "break", "on")
    said = r"satchel: a fault of Satchel itself, KeyError at test_chat\.py:\d+: 'what'"
    assert re.fullmatch(said + "; SATCHEL_DEBUG=1 shows more", fault)
    assert after == "routing True"
    monkeypatch.setenv("SATCHEL_DEBUG", "1")
    shown = talk_with(desk_of(), "break", "on")
    assert shown[1] == "Traceback (most recent call last):"
    assert shown[-2:] == ["KeyError: 'what'", "routing True"]


def test_a_script_ends_with_a_fault_and_what_was_said_before_is_sent(turns: list[str]) -> None:
    desk = desk_of()
    desk.sync = sync = Sent()  # type: ignore[assignment]
    with pytest.raises(KeyError):
        Chat(desk, Shown()).with_script(["break"])  # type: ignore[arg-type]
    assert sync.finished == 1


def test_what_goes_wrong_between_two_turns_does_not_end_the_talk(turns: list[str]) -> None:
    desk = desk_of()
    desk.sync = sync = Sent()  # type: ignore[assignment]
    sync.broken = True
    assert "satchel: it is gone" in talk_with(desk, "on")
    assert turns == ["on"]


class Stored(Talk):
    """A stored talk, whose context is here or not."""

    id, name, saved_manifest = "1" * 32, "sums", "m0"

    def __init__(self, reused: int = 0, unread: int = 0, notices: Sequence[str] = ()) -> None:
        super().__init__()
        self.reused_tokens, self.unread_tokens, self.notices = reused, unread, list(notices)
        self.messages = [
            Message(role="user", content="Hello"),
            Message(role="assistant", content="Yes?"),
            Message(role="user", content="What is\x1b[2J one and one?"),
            Message(role="assistant", content="Two,\n\nand " + "so on " * 40),
        ]

    def take_notices(self) -> list[str]:
        taken, self.notices = self.notices, []
        return taken


SHOWN_LAST = ["> What is one and one?", "Two, and so on so on so on so on so on…"]


@pytest.mark.parametrize(
    ("talk", "lines"),
    [
        (Stored(reused=44), ["going on in sums: reused 44 tokens"]),
        (
            Stored(unread=5570, notices=["a block is damaged"]),
            [
                "a block is damaged",
                "going on in sums: its 5,570 tokens are read again with the next message",
            ],
        ),
        (
            Stored(notices=["only its words are stored: they are read with the next message"]),
            ["going on in sums: only its words are stored: they are read with the next message"],
        ),
        (Stored(), ["going on in sums"]),
    ],
)
def test_a_talk_that_goes_on_says_what_is_read_and_what_was_said_last(
    turns: list[str], monkeypatch: pytest.MonkeyPatch, talk: Stored, lines: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "41")
    desk = desk_of()
    desk.session = talk  # type: ignore[assignment]
    assert talk_with(desk) == lines + SHOWN_LAST


def test_a_script_is_not_told_what_was_said_last(turns: list[str]) -> None:
    desk = desk_of()
    desk.session = Stored(reused=44)  # type: ignore[assignment]
    assert follow(desk) == ["going on in sums: reused 44 tokens"]


def test_who_leaves_is_told_where_what_was_said_is(turns: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def turn(desk: Desk, text: str, cancel: threading.Event) -> Iterator[Event]:
        desk.session.saved_manifest = "m1"  # type: ignore[misc]
        yield from [Quit()] if text == "/quit" else []

    monkeypatch.setattr(chat_module, "run_turn", turn)
    for lines in (["Hello"], ["/quit"]):
        desk = desk_of()
        desk.session = Stored(reused=44)  # type: ignore[assignment]
        assert talk_with(desk, *lines)[-1] == "saved as sums; `satchel resume` goes on"
    assert not any("saved" in line for line in follow(desk, "more"))


@pytest.mark.parametrize(
    ("question", "line"), [("好" * 30, "> " + "好" * 3 + "…"), ("a" * 7, "> aaaaaaa"), ("a" * 8, "> aaaaaa…")]
)
def test_what_was_said_last_is_cut_by_columns(question: str, line: str) -> None:
    assert recap([Message(role="user", content=question)], 10) == [line]
    assert recap([Message(role="system", content="Be brief.")], 10) == []
