"""What /loop is told, and how it waits."""

from __future__ import annotations

import threading
import time

import pytest

from satchel.agent.loop import Loop, parse_loop, wait
from satchel.errors import UsageError


@pytest.mark.parametrize(
    ("argument", "loop"),
    [
        ("5 30s check the log", Loop(5, 30.0, "check the log")),
        ("10m what changed?", Loop(None, 600.0, "what changed?")),
        ("3 tell me a joke", Loop(3, 0.0, "tell me a joke")),
        ("what changed?", Loop(None, 600.0, "what changed?")),
        ("  2   1.5h  看看日志  ", Loop(2, 5400.0, "看看日志")),
        ("1h30m x", Loop(None, 5400.0, "x")),
        ("4 0s again", Loop(4, 0.0, "again")),
        ("10m 3 facts about cats", Loop(None, 600.0, "3 facts about cats")),
        ("1 5 facts", Loop(1, 0.0, "5 facts")),
        ("3d prints, why?", Loop(None, 600.0, "3d prints, why?")),
        ("5minutes of silence", Loop(None, 600.0, "5minutes of silence")),
        ("2 two\nlines", Loop(2, 0.0, "two\nlines")),
        ("٣ jokes", Loop(None, 600.0, "٣ jokes")),
        ("1000 24h x", Loop(1000, 86400.0, "x")),
    ],
)
def test_a_loop_is_a_number_an_interval_and_a_prompt(argument: str, loop: Loop) -> None:
    assert parse_loop(argument) == loop


@pytest.mark.parametrize(
    "argument", ["", "   ", "5", "30s", "5 30s", "0 x", "1001 x", "999999999 x", "3 25h x"]
)
def test_a_loop_without_a_prompt_or_beyond_its_bounds_is_refused(argument: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_loop(argument)
    assert "[number] [interval] prompt" in refused.value.one_line()


def test_a_loop_without_an_end_cannot_be_without_a_pause() -> None:
    with pytest.raises(UsageError, match="an interval of 0s is not possible here: 1s to 24h are"):
        parse_loop("0s x")


def test_a_wait_ends_at_its_time_or_at_once_when_cancelled() -> None:
    cancel = threading.Event()
    assert wait(0.01, cancel) is False
    assert wait(0.25, cancel) is False  # over several looks
    before = time.monotonic()
    timer = threading.Timer(0.05, cancel.set)
    timer.start()
    assert wait(600, cancel) is True
    assert time.monotonic() - before < 300
    timer.join()
    assert wait(600, cancel) is True
    assert wait(0, cancel) is True
