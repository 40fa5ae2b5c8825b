"""The bar of long work: when it comes, what it says, and that it leaves nothing behind."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading

import pytest
from bundles import stored
from rich.console import Console
from terminals import Terminal, environment  # noqa: F401

from satchel.cache_store.local import LocalStore
from satchel.cache_store.maintenance import collect, remove
from satchel.cache_store.verify import verify
from satchel.terminal.progress import duration_text, progress_bar


class Screen(io.StringIO):
    """A terminal that keeps what is written."""

    def isatty(self):
        return True


class Work:
    """A bar on a terminal of `width` columns, by a clock that the test turns."""

    def __init__(self, label, total, unit, width=80):
        self.now_s = 0.0
        self.screen = Screen()
        self.width = width
        console = Console(file=self.screen, force_terminal=True, color_system=None, width=width)
        self.bar = progress_bar(label, total, unit, console, clock=lambda: self.now_s)

    def __enter__(self):
        self.bar.__enter__()
        return self

    def __exit__(self, *error):
        self.bar.__exit__(*error)

    def at(self, second, done, total=None, label=None):
        self.now_s = second
        self.bar.update(done, total, label)

    def line(self):
        """What the bar looks like now, whether it is shown or not, without the bar itself."""
        drawn = io.StringIO()
        Console(file=drawn, color_system=None, width=self.width).print(self.bar)
        return " ".join(drawn.getvalue().replace("━", "").replace("╸", "").replace("╺", "").split())

    @property
    def is_shown(self):
        return self.bar._live is not None


@pytest.fixture(autouse=True)
def _a_terminal_that_draws(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    for name in ("SATCHEL_QUIET", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


def test_a_line_has_how_far_it_is_the_rate_and_the_time_left():
    with Work("reading", 4000, "tokens") as work:
        work.at(2.0, 1000)
        assert work.line() == "reading 1,000/4,000 tokens 500/s 6 s left"
        work.now_s = 3.0  # nothing new is known, and yet time goes on
        assert work.line() == "reading 1,000/4,000 tokens 500/s 5 s left"
        work.now_s = 8.0  # the next thousand is overdue by four seconds
        assert work.line() == "reading 1,000/4,000 tokens 167/s 16 s left"


def test_bytes_are_shown_in_the_unit_of_their_total():
    with Work("downloading x", 98_000_000, "bytes") as work:
        work.at(10.0, 4_000_000)
        assert work.line() == "downloading x 4.0/98.0 MB 400.0 KB/s 3 min 55 s left"


def test_steps_have_no_rate():
    with Work("measuring", 20, "steps") as work:
        work.at(300.0, 1)
        assert work.line() == "measuring 1/20 1 h 35 min left"


def test_before_there_is_a_rate_the_time_that_went_by_is_shown():
    with Work("loading", 10, "steps") as work:
        work.now_s = 3.0
        assert work.line() == "loading 0/10 3 s"


def test_without_a_total_there_is_no_time_left():
    with Work("fetching", None, "bytes") as work:
        work.now_s = 3.0
        assert work.line() == "fetching 3 s"
        work.at(4.0, 2_000_000)
        assert work.line() == "fetching 2.0 MB 500.0 KB/s 4 s"


def test_the_rate_is_that_of_the_last_while():
    with Work("sending", 10**9, "bytes") as work:
        for second in range(1, 11):
            work.at(float(second), second * 10**6)  # a megabyte a second, for ten seconds
        for second in range(11, 41):
            work.at(float(second), 10**7 + (second - 10) * 10**7)  # then ten
        assert "10.0 MB/s" in work.line()


def test_other_work_begins_anew():
    with Work("sending a", 1000, "bytes") as work:
        work.at(2.0, 900)
        work.at(3.0, 100, 1000, "sending b")  # 100 bytes that no time is known of
        assert work.line() == "sending b 0.1/1.0 KB"
        work.at(4.0, 200)
        assert work.line() == "sending b 0.2/1.0 KB 100 bytes/s 8 s left"


def test_another_label_of_the_same_work_keeps_the_time_left():
    with Work("measuring", None, "steps") as work:
        work.at(1.0, 0, 5, "turbo4 on prose")
        work.at(11.0, 1, 5, "turbo3 on prose")
        assert work.line() == "turbo3 on prose 1/5 40 s left"


def test_a_label_cannot_drive_the_terminal():
    with Work("x\x1b[31m\nbr[b]y\u202e", 10, "steps") as work:
        assert work.line() == "x br[b]y⟨U+202E⟩ 0/10 0 s"


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (76, "downloading a model with a long… 1.0/10.0 GB 50.0 MB/s 3 min 0 s left"),
        (60, "downloading a model with a l… 1.0/10.0 GB 3 min 0 s left"),
        (40, "downloading a mode… 3 min 0 s left"),
        (20, "download…"),
        (3, "…"),
    ],
)
def test_what_a_narrow_window_has_no_room_for_is_left_out(width, line):
    with Work("downloading a model with a long name", 10**10, "bytes", width) as work:
        work.at(20.0, 10**9)
        assert work.line() == line


def test_wide_letters_are_counted_by_the_columns_they_take():
    with Work("模型" * 20, 10, "steps", 40) as work:
        work.at(9.0, 9)
        assert work.line() == "模型模型模型模型模… 9/10 1 s left"


def test_it_comes_after_half_a_second_and_is_erased_at_the_end():
    with Work("reading", 4000, "tokens") as work:
        work.at(0.5, 10)
        assert not work.is_shown
        work.at(0.6, 20)
        assert work.is_shown
        assert "reading" in work.screen.getvalue()
    assert work.screen.getvalue().endswith("\x1b[?25h\r\x1b[1A\x1b[2K")
    work.bar.update(30)  # from a thread that comes late
    assert not work.is_shown


def test_what_is_nearly_over_gets_none():
    with Work("reading", 1000, "tokens") as work:
        work.at(0.8, 600)  # 0.53 s are left
        assert not work.is_shown
        work.at(0.9, 1000)
        assert not work.is_shown
        work.at(1.0, 1000, 2000)  # there is more to do than was thought
        assert work.is_shown
    assert "reading" in work.screen.getvalue()


def test_a_bar_without_a_label_waits_for_one():
    with Work("", None, "bytes") as work:
        work.at(5.0, 0, 100)
        assert not work.is_shown
        work.at(6.0, 0, 100, "sending x")
        assert work.is_shown


def test_it_comes_without_any_update(environment):
    terminal = drawn(environment, "with progress_bar('loading'): time.sleep(2.2)\nprint('over')")
    terminal.wait_for("loading  1 s")
    assert terminal.exit_code() == 0
    assert [line for line in terminal.lines() if line] == ["over"]


def test_a_second_one_waits_until_the_first_is_gone():
    with Work("first", 1000, "steps") as first:
        first.at(1.0, 1)
        with Work("second", 1000, "steps") as second:
            second.at(1.0, 1)
            assert (first.is_shown, second.is_shown) == (True, False)
            first.bar.__exit__(None, None, None)
            second.at(2.0, 2)
            assert second.is_shown


@pytest.mark.parametrize("name", ["SATCHEL_QUIET", "TERM"])
def test_there_is_none_where_none_is_wanted_or_could_be_drawn(monkeypatch, name):
    monkeypatch.setenv(name, "dumb")
    with Work("reading", 1000, "tokens") as work:
        work.at(5.0, 10)
    assert work.screen.getvalue() == ""


def test_there_is_none_in_a_pipe_whatever_the_environment_says():
    code = "import time\nfrom satchel.terminal.progress import progress_bar\n"
    code += "with progress_bar('reading', 9) as bar: bar.update(1); time.sleep(.8); bar.update(2)"
    run = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"FORCE_COLOR": "1"}, capture_output=True, check=True
    )
    assert run.stdout + run.stderr == b""


def test_it_has_no_colour_where_none_is_wanted(environment):
    code = "with progress_bar('reading', 9) as bar: bar.update(1); time.sleep(1.5)"
    plain = drawn(environment | {"NO_COLOR": "1"}, code)
    assert plain.exit_code() == 0
    assert b"reading" in plain.raw
    assert b"m" not in plain.raw.replace(b"reading", b"").replace(b"min", b"")  # no SGR


def test_a_line_can_be_said_above_it(environment):
    code = "with progress_bar('loading') as bar:\n"
    code += "    time.sleep(1); bar.say('br[b]uno\\x1b[2J'); time.sleep(.5)"
    terminal = drawn(environment, code)
    assert terminal.exit_code() == 0
    assert [line for line in terminal.lines() if line] == ["br[b]uno"]


def test_the_cursor_is_back_after_a_signal(environment):
    code = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
    code += "with progress_bar('loading'): time.sleep(60)"
    terminal = drawn(environment, code)
    terminal.wait_for("loading")
    assert terminal.screen.cursor.hidden
    terminal.child.kill(signal.SIGTERM)
    assert terminal.exit_code() == 143
    assert not terminal.screen.cursor.hidden
    assert not [line for line in terminal.lines() if line]


def test_it_takes_updates_from_several_threads():
    with Work("sending", 4000, "steps") as work:
        work.at(1.0, 1)
        lock, done = threading.Lock(), [1]

        def step():
            for _ in range(500):
                with lock:
                    done[0] += 1
                    work.bar.update(done[0])

        threads = [threading.Thread(target=step) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert work.line().startswith("sending 2,001/4,000")


def test_who_checks_and_clears_a_store_tells_how_far_it_is(tmp_path):
    store, told = LocalStore(tmp_path), []
    stored(store, "bruno")
    stored(store, "gina", first_token=1000)
    verify(store, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]
    told.clear()
    remove(store, store.find("gina").session_id)
    stored(store, "anna", first_token=2000)
    store.delete_head(store.find("anna").session_id)
    done = collect(store, 0, progress=lambda done, total: told.append((done, total)))
    assert (done.blocks, done.manifests, told) == (3, 1, [(4, 4)])


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (3599.6, "1 h 0 min"), (7890, "2 h 11 min")],
)
def test_times_as_people_read_them(seconds, text):
    assert duration_text(seconds) == text


def drawn(environment, body):
    """A terminal in which `body` draws."""
    code = f"import sys, time\nfrom satchel.terminal.progress import progress_bar\n{body}"
    return Terminal([sys.executable, "-c", code], environment)
