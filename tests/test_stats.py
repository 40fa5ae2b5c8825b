"""The figures of turns: kept with a session wherever it goes, and drawn by `satchel stats`."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from in_process import Run
from machines import Machine
from small_talks import manifest_of, open_manager, say, small_model
from terminals import Terminal, environment  # noqa: F401
from test_local_store import snapshot

from satchel.agent.charts import column_chart, sparkline, takes_blocks
from satchel.agent.turns import charts, sums
from satchel.cache_store.figures import TurnFigures
from satchel.cache_store.local import LocalStore
from satchel.cache_store.manifest import Message
from satchel.cache_store.sessions import fork_session, open_session, save_snapshot
from satchel.cache_store.snapshot import Block, Snapshot
from satchel.config.profiles import get_profile
from satchel.engine.model import LoadedModel
from satchel.exchange.sharing import Origin, receive_session, seal_session
from satchel.exchange.tensors import import_tensors, write_session
from satchel.remotes.memory import MemoryRemote
from satchel.session import Session


@pytest.fixture(scope="module")
def small(smollm: LoadedModel) -> LoadedModel:
    return small_model(smollm)


def turn(number: int, **changes: int) -> TurnFigures:
    """Turn `number` of a talk that grows by 400 tokens each time."""
    fields = {
        "turn": number,
        "tokens": 400 * number,
        "held_bytes": 1_000_000 * number,
        "exact_bytes": 4_000_000 * number,
        "read_tokens": 240,
        "read_ms": 2000 * number,
        "written_tokens": 41,
        "write_ms": 5000,
    }
    return TurnFigures(**(fields | changes))


def store_talk(name: str, *figures: TurnFigures, turns: int = 4) -> LocalStore:
    """A session with these figures in the store that the commands use."""
    from satchel.config.paths import data_dir

    store = LocalStore(data_dir())
    words = [Message(role=("user", "assistant")[at % 2], content=str(at)) for at in range(2 * turns)]
    nothing = Snapshot({"none": True}, (), Block(0, 0, np.zeros(0, dtype=np.uint32), {}))
    save_snapshot(
        store,
        nothing,
        words,
        name=name,
        model_name="embedded",
        profile_name="turbo4,raised=0.3",
        figures=figures,
    )
    return store


# In a session


def test_each_turn_leaves_its_figures_in_the_manifest(tmp_path: Path, small: LoadedModel) -> None:
    session = open_manager(tmp_path, small).new()
    first, second = say(session, "Hello, what is this?"), say(session, "And that?")
    session.save("talk")
    one, two = manifest_of(session).figures
    assert (one.turn, two.turn) == (1, 2)
    assert (one.written_tokens, two.written_tokens) == (len(first), len(second))
    assert two.tokens == len(session.token_ids)
    assert one.tokens == one.read_tokens + one.written_tokens - 1  # the last one is not read yet
    state = session._context.state
    assert (two.held_bytes, two.exact_bytes) == (state.nbytes, 2 * 2 * 32 * two.tokens)  # one layer and head
    assert one.read_ms > 0


def test_they_go_on_where_a_session_is_resumed(tmp_path: Path, small: LoadedModel) -> None:
    session = open_manager(tmp_path, small).new()
    say(session, "One")
    session.save("talk")
    resumed = open_manager(tmp_path, small).open("talk")
    say(resumed, "Two")
    resumed.save()
    assert [each.turn for each in manifest_of(resumed).figures] == [1, 2]
    assert manifest_of(resumed).figures[0] == session.figures[0]


def test_going_back_takes_those_of_what_followed_and_returning_brings_them(
    tmp_path: Path, small: LoadedModel
) -> None:
    session = open_manager(tmp_path, small).new()
    for question in ("One", "Two", "Three"):
        say(session, question)
    session.save("talk")
    before = session.figures
    session.restore_turn(1)
    assert manifest_of(session).figures == before[:1]
    say(session, "Another two")
    session.save()
    assert [each.turn for each in session.figures] == [1, 2]
    assert session.figures[1] != before[1]
    session.restore_abandoned(session.abandoned()[-1])
    assert manifest_of(session).figures == before


def test_a_system_prompt_and_what_was_said_without_the_model_leave_them_at_their_turns(
    tmp_path: Path, small: LoadedModel
) -> None:
    session = open_manager(tmp_path, small).new()
    say(session, "One")
    session.note("!ls", "a file")
    session.set_system("Be brief.")
    say(session, "Three")
    session.save("talk")
    assert [each.turn for each in manifest_of(session).figures] == [1, 3]


def test_an_answer_that_is_given_up_leaves_none(tmp_path: Path, small: LoadedModel) -> None:
    session = open_manager(tmp_path, small).new()
    say(session, "One")
    events = session.reply("Two", max_tokens=5, cancel=threading.Event())
    next(events)
    events.close()
    assert [each.turn for each in session.figures] == [1]


def test_forks_archives_and_words_alone_keep_them(tmp_path: Path, small: LoadedModel) -> None:
    manager = open_manager(tmp_path, small)
    session = manager.new()
    say(session, "One " * 300)
    session.save("talk")
    figures = session.figures
    fork = fork_session(manager.store, open_session(manager.store, "talk"), "fork")
    assert fork.manifest.figures == figures
    session.branch("branch")
    assert manifest_of(session).figures == figures
    stored = Session(manager, manager.profile, open_session(manager.store, "talk"))
    archived = stored.archive(get_profile("k2v2,sink=2,window=6")).manifest
    assert archived.archived_from == "k4v4,sink=2,window=6"
    assert archived.figures == figures
    assert archived.words_alone().figures == figures


def test_another_machine_has_them_after_a_sync(tmp_path: Path) -> None:
    remote = MemoryRemote()
    one, two = Machine(tmp_path / "one", remote), Machine(tmp_path / "two", remote)
    saved = one.say("talk", "first", "second")
    save_snapshot(
        one.store,
        snapshot(16, 30),
        [*saved.manifest.messages, Message(role="user", content="third")],
        name="talk",
        model_name="embedded",
        profile_name="turbo4",
        base=saved,
        figures=[turn(1), turn(3)],
    )
    one.sync()
    two.sync()
    assert open_session(two.store, "talk").manifest.figures == (turn(1), turn(3))
    two.say("another", "first")
    two.sync()
    assert open_session(two.store, "talk").manifest.figures == (turn(1), turn(3))


def test_a_whole_session_as_a_file_has_them(tmp_path: Path, small: LoadedModel) -> None:
    session = open_manager(tmp_path / "a", small).new()
    say(session, "One")
    session.save("talk")
    store, other = session.manager.store, LocalStore(tmp_path / "b")
    tensors, sealed = tmp_path / "talk.safetensors", tmp_path / "talk.satchel"
    write_session(tensors, store, manifest_of(session))
    import_tensors(other, tensors, "tensors")
    assert open_session(other, "tensors").manifest.figures == session.figures
    key = seal_session(sealed, store, manifest_of(session))
    receive_session(other, Origin(str(sealed), is_link=False, key=key), key, name="sealed")
    assert open_session(other, "sealed").manifest.figures == session.figures


# Charts


def test_a_chart_has_a_bar_for_each_value() -> None:
    assert column_chart([1, 2, 4], 15, 2) == ["          ████", "▄▄▄▄ ████ ████"]
    assert column_chart([1, 2, 4], 6, 2) == ["    ██", "▄▄████"]
    assert column_chart([1, 2, 4], 3, 1, blocks=False) == [".##"]
    assert column_chart([0, 0.001, 8], 3, 1) == [" ▁█"]  # what is there has something to see


def test_a_fainter_bar_stands_behind() -> None:
    assert column_chart([1, 2], 2, 4, behind=[2, 4]) == [" ░", " ░", "░█", "██"]
    assert column_chart([1, 2], 2, 4, behind=[2, 4], blocks=False) == [" :", " :", ":#", "##"]


def test_neighbours_share_a_bar_where_there_are_many() -> None:
    assert column_chart([4, 4, 8, 8, 0, 0], 3, 1) == ["▄█"]
    assert sparkline(range(1, 513), 8) == "▁▂▃▄▅▆▇█"


def test_a_chart_of_nothing_is_empty() -> None:
    assert column_chart([], 10, 2) == ["", ""]
    assert column_chart([0, 0], 10, 1) == [""]


@pytest.mark.parametrize(
    ("encoding", "term", "takes"),
    [("utf-8", "xterm", True), ("UTF8", "xterm", True), ("ascii", "xterm", False), ("utf-8", "dumb", False)],
)
def test_blocks_are_for_terminals_that_have_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, encoding: str, term: str, takes: bool
) -> None:
    monkeypatch.setenv("TERM", term)
    with (tmp_path / "out").open("w", encoding=encoding) as out:
        assert takes_blocks(out) is takes


def test_sums_are_over_all_that_is_known() -> None:
    figures = [turn(1), turn(2), turn(3, written_tokens=1, write_ms=0, read_ms=0)]
    total = sums(figures)
    assert (total.turns, total.read_tokens, total.read_ms) == (3, 720, 6000)
    assert (total.written_tokens, total.write_ms) == (83, 10_000)
    assert (total.prefill_tps, total.decode_tps) == (120.0, 8.0)
    assert sums([]).decode_tps == 0.0


@pytest.mark.parametrize("width", [40, 57, 80, 200])
@pytest.mark.parametrize("turns", [1, 2, 13, 150, 512])
def test_no_chart_is_wider_than_the_window(width: int, turns: int) -> None:
    figures = [turn(number, tokens=10**6, held_bytes=10**12) for number in range(1, turns + 1)]
    for blocks in (True, False):
        assert max(map(len, charts(figures, width, blocks).split("\n"))) <= width


# The command

DRAWN = """\
bruno: 4 turns, embedded, turbo4
context: 1,600 tokens
    1,600 │               ████
          │          ████ ████
          │     ████ ████ ████
        0 │████ ████ ████ ████
KV: 4.0 MB █, in 16 bits 16.0 MB ░
  16.0 MB │               ░░░░
          │          ░░░░ ░░░░
          │     ░░░░ ░░░░ ░░░░
        0 │▂▂▂▂ ▄▄▄▄ ▆▆▆▆ ████
reading: 48 tokens/s over 960 tokens
    120/s │████
          │████
          │████ ████ ▃▃▃▃
        0 │████ ████ ████ ████
writing: 8.0 tokens/s over 164 tokens
    8.0/s │████ ████ ████ ████
          │████ ████ ████ ████
          │████ ████ ████ ████
        0 │████ ████ ████ ████
           turns 1 to 4
"""


@pytest.fixture(autouse=True)
def _a_terminal_with_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


def test_stats_draws_the_latest_session_turn_by_turn(satchel: Run) -> None:
    store_talk("anna", turn(1), turns=1)
    store_talk("bruno", *map(turn, range(1, 5)))
    shown = satchel("stats")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout == DRAWN
    assert satchel("stats", "anna").stdout.startswith("anna: 1 turn, embedded, turbo4\n")


def test_stats_on_a_real_terminal_take_its_width(environment: dict[str, str], satchel_home: Path) -> None:
    store_talk("bruno", *map(turn, range(1, 101)), turns=100)
    command = [sys.executable, "-m", "satchel", "stats"]
    terminal = Terminal(command, environment | {"SATCHEL_HOME": str(satchel_home)}, columns=50)
    assert terminal.exit_code() == 0
    lines = [line for line in terminal.lines() if line]
    assert (len(lines), max(map(len, lines))) == (22, 50)
    assert b"\x1b" not in terminal.raw


def test_stats_as_json(satchel: Run) -> None:
    store_talk("bruno", turn(1), turn(2))
    record = json.loads(satchel("stats", "bruno", "--json").stdout)
    assert (record["name"], record["model_name"], record["turns"]) == ("bruno", "embedded", 4)
    assert record["figures"][1] == {
        "turn": 2,
        "tokens": 800,
        "held_bytes": 2_000_000,
        "exact_bytes": 8_000_000,
        "read_tokens": 240,
        "read_ms": 4000,
        "written_tokens": 41,
        "write_ms": 5000,
        "prefill_tps": 60.0,
        "decode_tps": 8.0,
    }
    assert record["last"] == record["figures"][1]
    assert record["sums"]["prefill_tps"] == 80.0


def test_stats_of_a_session_without_any(satchel: Run) -> None:
    store_talk("bruno")
    shown = satchel("stats")
    assert (shown.returncode, shown.stdout) == (0, "")
    assert shown.stderr == "no figures are kept of 'bruno': its next answer has the first\n"
    assert json.loads(satchel("stats", "--json").stdout)["figures"] == []
    drawn = satchel("stats", "--png", "x.png")
    assert (drawn.returncode, Path("x.png").exists()) == (1, False)


def test_stats_of_all_sessions(satchel: Run) -> None:
    store_talk("bruno", turn(1), turn(2))
    store_talk("an old one")
    shown = satchel("stats", "--all")
    assert shown.stdout == (
        "SESSION     TURNS  CONTEXT      KV  16 BITS  READ  WRITTEN\n"
        "an old one      4        -       -        -     -        -\n"
        "bruno           4      800  2.0 MB   8.0 MB  80/s    8.0/s\n"
    )
    records = json.loads(satchel("stats", "--all", "--json").stdout)
    assert [record["last"] and record["last"]["turn"] for record in records] == [None, 2]


def test_stats_of_no_session(satchel: Run) -> None:
    assert satchel("stats", "--all").stderr == "no sessions are stored yet\n"
    assert satchel("stats", "--all", "--json").stdout == "[]\n"
    assert satchel("stats").returncode == 3


def test_stats_draws_a_picture(satchel: Run, tmp_path: Path) -> None:
    store_talk("bruno", *map(turn, range(1, 5)))
    picture = tmp_path / "b$x$.png"
    shown = satchel("stats", "--png", picture)
    assert (shown.returncode, shown.stderr) == (0, f"drawn in {picture}\n")
    assert shown.stdout == DRAWN
    data = picture.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(data[16:20]), int.from_bytes(data[20:24])) == (960, 1080)


def test_drawing_loads_no_mlx() -> None:
    code = "import sys, satchel.laboratory.turns_plot, satchel.cli.stats; print('mlx.core' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["--png", "x.jpg"], "satchel: the plot 'x.jpg' is no PNG file; name it something.png\n"),
        (["--all", "bruno"], "satchel: --all has neither a name nor a picture; leave it out"),
        (["--all", "--png", "x.png"], "satchel: --all has neither a name nor a picture; leave it out"),
    ],
)
def test_wrong_uses_of_stats_get_one_line(satchel: Run, args: list[str], line: str) -> None:
    shown = satchel("stats", *args)
    assert shown.returncode == 2
    assert shown.stderr.startswith(line)
    assert shown.stderr.count("\n") == 1


def test_a_picture_without_matplotlib_is_refused_in_one_line(
    satchel: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_talk("bruno", turn(1))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    shown = satchel("stats", "--png", "x.png")
    assert shown.stderr == "satchel: the plot needs matplotlib; `pip install matplotlib` brings it\n"
    assert (shown.returncode, shown.stdout) == (2, "")


def test_a_picture_that_cannot_be_written_is_an_error(satchel: Run, tmp_path: Path) -> None:
    store_talk("bruno", turn(1))
    place = tmp_path / "none" / "x.png"
    assert satchel("stats", "--png", place).stderr == (
        f"satchel: cannot write {place}: No such file or directory\n"
    )
