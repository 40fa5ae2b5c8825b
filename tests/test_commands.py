"""The slash commands: how they are parsed and explained, and what the plain ones answer and refuse."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from satchel.agent.commands import COMMANDS, find_command, is_command, run_command
from satchel.agent.commands.help import page
from satchel.agent.desk import Desk
from satchel.agent.events import Event, Failed, Notice, Output, Quit, Switched
from satchel.agent.prompts import question_with_input
from satchel.cache_store.figures import TurnFigures
from satchel.cache_store.local import LocalStore
from satchel.cache_store.manifest import Manifest, Message, TailRef
from satchel.config.settings import Settings
from satchel.errors import NotFoundError, SatchelError, UsageError

PAGE_FILE = Path(__file__).parent.parent / "docs" / "commands.md"


@dataclass
class Talk:
    """What the commands ask of a session, without a model."""

    id: str = "0123abcd"
    name: str | None = None
    saves: list[str | None] = field(default_factory=list)
    unsaved: bool = False
    fails: bool = False
    figures: tuple[TurnFigures, ...] = ()

    def save(self, name: str | None = None) -> None:
        self.saves.append(name)
        if self.fails:
            raise SatchelError("no space left")
        self.name, self.unsaved = name or self.name, False

    def take_notices(self) -> list[str]:
        return []

    def stats(self) -> dict[str, object]:
        return {"model": "embedded", "saved context": "reused 398 tokens"}


class Sessions:
    """What the commands ask of the session manager, on a real store."""

    def __init__(self, store: LocalStore) -> None:
        self.store = store

    def new(self) -> Talk:
        return Talk(id="new")

    def open(self, name: str) -> Talk:
        if name != "bruno":
            raise NotFoundError(f"no session is called {name!r}")
        return Talk(id="stored", name=name)


def manifest(session_id: str, *, title: str, **fields: Any) -> Manifest:
    question, answer = Message(role="user", content=title), Message(role="assistant", content="So.")
    return Manifest(
        session_id=session_id * 32,
        generation=1,
        parent=None,
        model_name="embedded",
        profile_name="turbo4",
        identity={},
        messages=(question, answer) * 2,
        blocks=(),
        tail=TailRef(sha256="0" * 64, stored_bytes=2_640_000, start=0, stop=12_345),
        token_count=12_345,
        **fields,
    )


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


@pytest.fixture
def desk(store: LocalStore) -> Desk:
    return Desk(Sessions(store), Talk(), Settings(), None)  # type: ignore[arg-type]


def run(desk: Desk, line: str) -> list[Event]:
    return list(run_command(desk, line))


# Parsing


@pytest.mark.parametrize("line", ["/save", "/save bruno", "/", "/x", "/HELP", "/load\tbruno", "/undo-turn"])
def test_a_slash_and_a_word_is_a_command(line: str) -> None:
    assert is_command(line)


@pytest.mark.parametrize("line", ["hello", "/etc/hosts is what?", "//", " /save", "", "1/2", "a\n/save"])
def test_paths_and_other_text_are_messages(line: str) -> None:
    assert not is_command(line)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("/sav", "there is no command /sav; did you mean /save?"),
        ("/session", "there is no command /session; did you mean /sessions?"),
        ("/sess", "there is no command /sess; did you mean /sessions?"),
        ("/sahre", "there is no command /sahre; did you mean /share?"),
        ("/b", "there is no command /b; did you mean /btw, /branch, /bench or /bad?"),
        ("/s", "there is no command /s; /help lists the commands"),
        ("/zzz", "there is no command /zzz; /help lists the commands"),
        ("/", "there is no command /; /help lists the commands"),
        ("/load", "/load needs <name>"),
        ("/add", "/add needs <path…>"),
        ("/quit now", "/quit takes no argument"),
        ("/help sav", "there is no command /sav; did you mean /save?"),
    ],
)
def test_a_wrong_command_is_one_line_that_says_what_is_right(desk: Desk, line: str, complaint: str) -> None:
    with pytest.raises(UsageError) as raised:
        run(desk, line)
    assert raised.value.one_line() == complaint


def test_the_table_has_every_command() -> None:
    wanted = """agent raw search shell btw loop stop branch restore add drop files apply undo save load new
        sessions rename export share sync model system profile auto tools compact clear retry undo-turn stats
        cost bench good bad improve help quit"""
    assert sorted(command.name for command in COMMANDS) == sorted(wanted.split())


def test_what_the_table_says_of_each_command_is_right_in_itself() -> None:
    kinds = {"session", "path", "file-in-context", "model", "profile", "command", ""}
    for command in COMMANDS:
        assert command.complete in kinds
        assert command.args or not command.complete
        assert not command.help.endswith("."), command.name
        assert command.more == "" or command.more.endswith("."), command.name
        for example in command.examples:
            assert find_command(example[1:].split()[0]) is command
            assert command.args, "what takes no argument needs no example"


def test_the_table_loads_nothing_that_takes_long() -> None:
    code = "import sys, satchel.agent.commands; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    heavy = {"mlx", "mlx_lm", "transformers", "httpx", "ddgs", "trafilatura", "tree_sitter", "rich", "boto3"}
    assert not heavy & set(loaded.split())


# Help


def test_help_names_every_command_below_its_heading(desk: Desk) -> None:
    (shown,) = run(desk, "/help")
    assert isinstance(shown, Output)
    lines = shown.text.splitlines()
    assert lines[0] == "The talk:"
    assert "  /save [name]                        save this session, under a name if one is given" in lines
    assert [line.split()[0] for line in lines if line.startswith("  /")] == [
        f"/{command.name}" for command in COMMANDS
    ]
    headings = [line for line in lines if line and not line.startswith(" ")]
    assert headings == [
        "The talk:",
        "Sessions:",
        "Searching and running commands:",
        "Files and changes:",
        "The model:",
        "Feedback:",
        "Help:",
        "Before a message:",
    ]
    assert lines[-3].split()[0] == "!command"


@pytest.mark.parametrize("line", ["/help system", "/help /system"])
def test_help_explains_one_command(desk: Desk, line: str) -> None:
    assert run(desk, line) == [
        Output(
            "/system [text]\n"
            "  set the system prompt; - for none; alone, show it\n"
            "  Files in the context stay there.\n"
            "examples:\n"
            "  /system Answer in French.\n"
            "  /system -"
        )
    ]


def test_help_of_an_alias_explains_its_command(desk: Desk) -> None:
    assert run(desk, "/help exit") == [Output("/quit\n  leave (also /exit, Ctrl-D)\n  the same: /exit")]


def test_the_page_of_the_docs_is_what_the_table_says() -> None:
    how = (
        "python -c 'from satchel.agent.commands.help import page; print(page(), end=\"\")' > docs/commands.md"
    )
    assert PAGE_FILE.read_text(encoding="utf-8") == page(), how
    assert (
        "\n## Feedback\n\n### `/good [note]`\n\nKeep the last answer as a good one. Feedback stays" in page()
    )


# Sessions


def test_save_without_a_name_keeps_the_name(desk: Desk) -> None:
    assert run(desk, "/save") == [Notice("saved as 0123abcd")]
    assert desk.session.saves == [None]


def test_save_with_a_name_may_hold_spaces(desk: Desk) -> None:
    assert run(desk, "/save  my dog ") == [Notice("saved as my dog")]
    assert desk.session.saves == ["my dog"]


def test_load_switches_to_the_stored_session(desk: Desk) -> None:
    assert run(desk, "/load bruno") == [Switched(Talk(id="stored", name="bruno"))]
    assert desk.session.id == "stored"


def test_load_of_an_unknown_name_says_so(desk: Desk) -> None:
    with pytest.raises(NotFoundError, match="no session is called 'x'"):
        run(desk, "/load x")
    assert desk.session.id == "0123abcd"


def test_new_switches_to_an_empty_session(desk: Desk) -> None:
    assert run(desk, "/new") == [Switched(Talk(id="new")), Notice("a new session")]
    assert desk.session.id == "new"


def test_clear_says_where_the_talk_before_is(desk: Desk) -> None:
    desk.session.name = "bruno"
    assert run(desk, "/clear") == [
        Switched(Talk(id="new")),
        Notice("a new session; the talk before stays stored as bruno: /load bruno goes back"),
    ]


@pytest.mark.parametrize("line", ["/quit", "/exit", "/QUIT"])
def test_quit_and_its_alias(desk: Desk, line: str) -> None:
    assert run(desk, line) == [Quit()]


@pytest.mark.parametrize("line", ["/load bruno", "/new", "/clear", "/quit"])
def test_what_is_unsaved_is_saved_before_the_talk_is_left(desk: Desk, line: str) -> None:
    talk = desk.session
    talk.unsaved = True
    assert not any(isinstance(event, Failed) for event in run(desk, line))
    assert talk.saves == [None]


@pytest.mark.parametrize(("line", "last"), [("/new", Notice("a new session")), ("/quit", Quit())])
def test_who_would_lose_words_is_told_once(desk: Desk, line: str, last: Event) -> None:
    talk = desk.session
    talk.unsaved = talk.fails = True
    assert run(desk, line) == [
        Failed("no space left; what was said last is not saved: leave again to lose it")
    ]
    assert desk.session is talk
    assert run(desk, line)[-1] == last


def test_a_talk_that_is_not_to_be_saved_is_left_without_a_word(desk: Desk) -> None:
    desk.settings = Settings(auto_save=False)
    desk.session.unsaved = desk.session.fails = True
    assert run(desk, "/quit") == [Quit()]
    assert desk.session.saves == []


def test_stats_says_how_much_was_reused(desk: Desk) -> None:
    assert run(desk, "/stats") == [Output("model          embedded\nsaved context  reused 398 tokens")]


def test_stats_draws_how_the_talk_developed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.session.figures = tuple(  # type: ignore[assignment]
        TurnFigures(
            turn=turn,
            tokens=400 * turn,
            held_bytes=10**6 * turn,
            exact_bytes=4 * 10**6 * turn,
            read_tokens=240 // turn,
            read_ms=2000,
            written_tokens=41,
            write_ms=5000,
        )
        for turn in (1, 2, 4)
    )
    monkeypatch.setenv("TERM", "dumb")
    assert run(desk, "/stats") == [
        Output(
            "model              embedded\n"
            "saved context      reused 398 tokens\n"
            "context, by turn   .##  400 to 1,600 tokens\n"
            "KV state, by turn  .##  1.0 to 4.0 MB\n"
            "reading, by turn   ##.  120 to 30 tokens/s\n"
            "writing, by turn   ###  8.0 to 8.0 tokens/s"
        )
    ]


def test_no_sessions_are_listed_as_none(desk: Desk) -> None:
    assert run(desk, "/sessions") == [Notice("no sessions are stored yet")]


def test_sessions_are_listed_with_the_newest_first(desk: Desk, store: LocalStore) -> None:
    local = datetime.now().astimezone().tzinfo
    for stored in (
        manifest("a", name="old", title="狗 and 猫", created_at=datetime(2026, 11, 28, 9, 0, tzinfo=local)),
        manifest("b", name="bruno", title="My dog", created_at=datetime(2026, 11, 29, 16, 54, tzinfo=local)),
    ):
        store.commit(stored, expected=None)
    (table,) = run(desk, "/sessions")
    assert isinstance(table, Output)
    assert table.text.splitlines() == [
        "SAVED             TURNS   TOKENS       SIZE  NAME  TITLE",
        "2026-11-29 16:54      2   12,345     2.6 MB  bruno  My dog",
        "2026-11-28 09:00      2   12,345     2.6 MB  old  狗 and 猫",
    ]


# Routing and approval


def test_agent_and_raw_turn_routing_on_and_off(desk: Desk) -> None:
    assert run(desk, "/agent") == [Notice("messages may become searches and commands now; /raw ends that")]
    assert desk.routing
    assert run(desk, "/raw") == [Notice("messages go to the model as they are now; /agent ends that")]
    assert not desk.routing


def test_auto_changes_what_is_asked_about_for_this_talk(desk: Desk) -> None:
    before = desk.settings
    assert run(desk, "/auto") == [Notice("ask: every command that the model proposes is asked about")]
    assert run(desk, "/auto read-only") == [
        Notice("read-only: commands that only read run without asking; all others are asked about")
    ]
    assert desk.settings.shell.approve == "read-only"
    assert desk.settings.shell.timeout_s == before.shell.timeout_s
    assert before.shell.approve == "ask"
    run(desk, "/auto ask")
    assert desk.settings == before


def test_auto_has_no_other_mode(desk: Desk) -> None:
    with pytest.raises(UsageError) as raised:
        run(desk, "/auto yes")
    assert raised.value.one_line() == "there is no approval mode 'yes'; there are ask and read-only"
    assert desk.settings.shell.approve == "ask"


def test_stop_alone_says_that_no_loop_runs(desk: Desk) -> None:
    assert run(desk, "/stop") == [Notice("no loop is running")]


# Piped input


@pytest.mark.parametrize(
    ("question", "given", "message"),
    [
        ("why?", "", "why?"),
        ("", "a log\n", "a log"),
        ("", " \n", ""),
        ("why?", "\n", "why?"),
        (" why? ", "  line 1\nline 2\n", "Input:\n\n  line 1\nline 2\n\nwhy?"),
    ],
)
def test_piped_input_joins_the_question(question: str, given: str, message: str) -> None:
    assert question_with_input(question, given) == message
