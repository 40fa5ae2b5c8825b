"""What a talk has cost, and the energy that macOS counts."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable

import pytest

from satchel.agent import energy
from satchel.agent.meter import Meter
from satchel.engine.generate import Stats


def stats(prompt: int, reused: int, generated: int, first_s: float, decode_tps: float) -> Stats:
    prefill_tps = prompt / first_s if first_s else 0.0
    return Stats(prompt, reused, generated, prefill_tps, decode_tps, first_s, 1)


def test_a_meter_adds_up_tokens_and_seconds() -> None:
    meter = Meter(energy=lambda: None)
    meter.add(stats(1200, 0, 41, 2.0, 10.0))  # 40 tokens after the first at 10/s
    meter.add(stats(34, 1240, 21, 0.5, 5.0))
    assert meter.lines() == {
        "answers": "2",
        "read": "1,234 tokens in 2.5 s",
        "kept": "1,240 tokens that were not read again",
        "written": "62 tokens in 8.0 s",
    }


def test_answers_of_one_token_or_none_take_no_decode_time() -> None:
    meter = Meter(energy=lambda: None)
    meter.add(stats(10, 0, 1, 0.5, 0.0))
    meter.add(stats(10, 0, 0, 0.0, 0.0))
    assert meter.lines()["written"] == "1 token in 0.0 s"
    assert meter.lines()["read"] == "20 tokens in 0.5 s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (59.94, "59.9 s"),
        (59.96, "1 min 0 s"),
        (185.2, "3 min 5 s"),
        (3599.9, "1 h 0 min"),
        (7800, "2 h 10 min"),
    ],
)
def test_long_times_are_told_in_minutes_and_hours(seconds: float, text: str) -> None:
    meter = Meter(energy=lambda: None)
    meter.add(stats(1, 0, 1, seconds, 0.0))
    assert meter.lines()["read"] == f"1 token in {text}"


def test_energy_is_counted_from_when_the_meter_was_made() -> None:
    readings = iter([100.0, 1900.5])
    meter = Meter(energy=lambda: next(readings))
    assert meter.lines()["energy"] == "1,800.5 J (0.5001 Wh), without the GPU's"


def test_energy_that_cannot_be_read_any_more_is_left_out() -> None:
    readings = iter([100.0, None])
    assert "energy" not in Meter(energy=lambda: next(readings)).lines()


def test_the_struct_is_laid_out_as_in_the_header_of_macos() -> None:
    """sys/resource.h: 16 bytes of UUID and 35 times 8 bytes, of which ri_billed_energy is the 32nd."""
    assert ctypes.sizeof(energy._RusageInfoV4) == 296
    assert energy._RusageInfoV4.billed_energy.offset == 264
    assert energy._RusageInfoV4.billed_energy.size == 8
    assert energy._RusageInfoV4.logical_writes.offset == 232
    assert energy._RusageInfoV4.runnable_time.offset == 288


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS counts energy")
def test_elsewhere_than_on_macos_there_is_no_energy() -> None:
    assert energy.joules() is None


@pytest.mark.skipif(sys.platform != "darwin", reason="macOS alone counts energy")
def test_on_macos_energy_only_grows() -> None:
    before = energy.joules()
    if before is None:
        pytest.skip("this Mac counts no energy")
    assert energy.joules() >= before > 0  # type: ignore[operator]


class _Function:
    """Stands for `proc_pid_rusage`: takes attributes, and writes the struct as bytes, as the kernel does."""

    def __init__(self, returned: int, nanojoules: int) -> None:
        self.returned, self.nanojoules = returned, nanojoules
        self.asked: list[tuple[int, int]] = []

    def __call__(self, pid: int, flavor: int, buffer: object) -> int:
        self.asked.append((pid, flavor))
        address = ctypes.addressof(buffer._obj)  # type: ignore[attr-defined]
        ctypes.c_uint64.from_address(address + 264).value = self.nanojoules
        return self.returned


def on_a_mac(monkeypatch: pytest.MonkeyPatch, load: Callable[[str], object]) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(energy.ctypes, "CDLL", load)


def test_nanojoules_become_joules(monkeypatch: pytest.MonkeyPatch) -> None:
    function = _Function(0, 2_500_000_000)
    on_a_mac(monkeypatch, lambda path: type("Library", (), {"proc_pid_rusage": function}))
    assert energy.joules() == pytest.approx(2.5, rel=1e-12)
    assert function.asked == [(os.getpid(), 4)]


@pytest.mark.parametrize(("returned", "nanojoules"), [(-1, 7), (0, 0)])
def test_a_refusal_and_a_counter_that_does_not_count_are_no_energy(
    monkeypatch: pytest.MonkeyPatch, returned: int, nanojoules: int
) -> None:
    function = _Function(returned, nanojoules)
    on_a_mac(monkeypatch, lambda path: type("Library", (), {"proc_pid_rusage": function}))
    assert energy.joules() is None


def test_a_missing_library_or_function_is_no_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: str) -> object:
        raise OSError(f"dlopen({path}): no such file")

    on_a_mac(monkeypatch, missing)
    assert energy.joules() is None
    on_a_mac(monkeypatch, lambda path: object())
    assert energy.joules() is None
