"""The chat's loops, with turns that only note what they were given."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence

import pytest
from terminals import Typed

from satchel.agent.desk import Desk
from satchel.agent.events import Event, Notice, Quit, Switched
from satchel.agent.user import NO, YES, Choice, Nobody
from satchel.config.settings import Settings
from satchel.errors import NetworkError, SatchelError
from satchel.terminal import chat as chat_module
from satchel.terminal.chat import Chat


class Talk:
    """A session that is as full as it is said to be."""

    id, name, unsaved, reused_tokens, saved_manifest = "", None, False, 0, ""

    def __init__(self, fill: float = 0.0) -> None:
        self.fill = fill

    def take_notices(self) -> list[str]:
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
