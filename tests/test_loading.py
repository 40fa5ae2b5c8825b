"""What is loaded in one thread and used in another, and what becomes of the process that loads."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from functools import cache

import pytest

from satchel.engine.handover import evaluate_everything
from satchel.errors import NotFoundError
from satchel.terminal.loading import Loading

import mlx.core as mx  # isort: skip  (behind the engine, which brings a fast BLAS)


class Holder:
    """Keeps arrays in all kinds of places."""

    def __init__(self) -> None:
        self.attribute = mx.arange(3) + 1
        inner = mx.arange(3) + 2
        self.closure = lambda: inner
        self.nested = [{"key": (mx.arange(3) + 3,)}]
        self.memoised()

    @staticmethod
    @cache
    def memoised() -> mx.array:
        return mx.arange(3) + 4


def in_thread(work: object) -> None:
    thread = threading.Thread(target=work)  # type: ignore[arg-type]
    thread.start()
    thread.join()


def test_what_a_thread_has_computed_can_be_used_in_another() -> None:
    held: list[Holder] = []

    def work() -> None:
        held.append(Holder())
        evaluate_everything()

    in_thread(work)
    (holder,) = held
    arrays = [holder.attribute, holder.closure(), holder.nested[0]["key"][0], Holder.memoised()]
    assert [(array + 1).tolist() for array in arrays] == [[2, 3, 4], [3, 4, 5], [4, 5, 6], [5, 6, 7]]


def test_without_that_it_cannot() -> None:
    """What makes the evaluation needed: if this fails, it is not any more."""
    held: list[mx.array] = []
    in_thread(lambda: held.append(mx.arange(3) + 1))
    with pytest.raises(RuntimeError, match="Stream"):
        held[0].tolist()
    held.clear()
    gc.collect()


def test_a_result_an_error_and_the_last_line_come_out_of_the_thread() -> None:
    def work(tell: object) -> int:
        tell("converting a model")  # type: ignore[operator]
        return 3

    def fail(tell: object) -> int:
        raise NotFoundError("nothing is there")

    with Loading("a model", work) as loading:
        assert loading.label == "loading a model"
        loading.start()
        assert loading.wait(10)
        assert (loading.result(), loading.label) == (3, "converting a model")
    with Loading("a model", fail) as loading:
        loading.start()
        assert loading.wait(10)
        with pytest.raises(NotFoundError, match="nothing is there"):
            loading.result()


@pytest.mark.parametrize(
    ("ending", "code"), [("pass", 0), ("sys.exit(143)", 143), ("raise KeyboardInterrupt", 130)]
)
def test_leaving_does_not_wait_for_what_is_being_loaded(ending: str, code: int) -> None:
    program = (
        "import sys, threading, time\n"
        "from satchel.terminal.loading import Loading\n"
        "with Loading('a model', lambda tell: time.sleep(600)) as loading:\n"
        "    loading.start(); print('left')\n"
        f"    {ending}\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (code, b"left\n", b"")


def test_an_error_right_after_mlx_was_imported_in_the_thread_does_not_crash_the_end() -> None:
    program = (
        "from satchel.terminal.loading import Loading\n"
        "def work(tell):\n"
        "    import satchel.engine, mlx.core as mx, mlx.nn as nn\n"
        "    mx.eval(mx.compile(nn.silu)(mx.arange(8)))\n"
        "    raise ValueError\n"
        "with Loading('a model', work) as loading:\n"
        "    loading.start(); loading.wait(60)\n"
    )
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, b"")
