"""The slash commands: what they answer, what they refuse, and what they change."""

from dataclasses import dataclass, field
from datetime import datetime

import pytest

from satchel.agent.commands import COMMANDS, Desk, Quit, SwitchTo, is_command, run_command
from satchel.agent.events import Notice
from satchel.agent.prompts import question_with_input
from satchel.cache_store.local import LocalStore
from satchel.cache_store.manifest import Manifest, Message, TailRef
from satchel.errors import NotFoundError, UsageError


@dataclass
class Talk:
    """What the commands ask of a session, without a model."""

    id: str = "0123abcd"
    name: str | None = None
    saves: list = field(default_factory=list)

    def save(self, name=None):
        self.saves.append(name)
        self.name = name or self.name

    def stats(self):
        return {"model": "embedded", "saved context": "reused 398 tokens"}


class Sessions:
    """What the commands ask of the session manager, on a real store."""

    def __init__(self, store):
        self.store = store

    def new(self):
        return Talk(id="new")

    def open(self, name):
        if name != "bruno":
            raise NotFoundError(f"no session is called {name!r}")
        return Talk(id="stored", name=name)


def manifest(session_id, *, title, **fields):
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
def store(tmp_path):
    return LocalStore(tmp_path)


@pytest.fixture
def desk(store):
    return Desk(Sessions(store), Talk())


def run(desk, line):
    return list(run_command(desk, line))


@pytest.mark.parametrize("line", ["/save", "/save bruno", "/", "/x", "/HELP", "/load\tbruno"])
def test_a_slash_and_a_word_is_a_command(line):
    assert is_command(line)


@pytest.mark.parametrize("line", ["hello", "/etc/hosts is what?", "//", " /save", "", "1/2", "a\n/save"])
def test_paths_and_other_text_are_messages(line):
    assert not is_command(line)


def test_save_without_a_name_keeps_the_name(desk):
    assert run(desk, "/save") == [Notice("saved as 0123abcd")]
    assert desk.session.saves == [None]


def test_save_with_a_name_may_hold_spaces(desk):
    assert run(desk, "/save  my dog ") == [Notice("saved as my dog")]
    assert desk.session.saves == ["my dog"]


def test_load_switches_to_the_stored_session(desk):
    assert run(desk, "/load bruno") == [SwitchTo(Talk(id="stored", name="bruno"))]


def test_load_of_an_unknown_name_says_so(desk):
    with pytest.raises(NotFoundError, match="no session is called 'x'"):
        run(desk, "/load x")


def test_new_switches_to_an_empty_session(desk):
    assert run(desk, "/new") == [SwitchTo(Talk(id="new")), Notice("a new session")]


@pytest.mark.parametrize("line", ["/quit", "/exit", "/QUIT"])
def test_quit_and_its_alias(desk, line):
    assert run(desk, line) == [Quit()]


def test_stats_says_how_much_was_reused(desk):
    assert run(desk, "/stats") == ["model          embedded\nsaved context  reused 398 tokens"]


def test_help_names_every_command(desk):
    (text,) = run(desk, "/help")
    assert text.splitlines()[0] == "/save [name]     save this session, under a name if one is given"
    assert [line.split()[0] for line in text.splitlines()] == [f"/{command.name}" for command in COMMANDS]


def test_no_sessions_are_listed_as_none(desk):
    assert run(desk, "/sessions") == [Notice("no sessions are stored yet")]


def test_sessions_are_listed_with_the_newest_first(desk, store):
    local = datetime.now().astimezone().tzinfo
    for stored in (
        manifest("a", name="old", title="狗 and 猫", created_at=datetime(2026, 11, 28, 9, 0, tzinfo=local)),
        manifest("b", name="bruno", title="My dog", created_at=datetime(2026, 11, 29, 16, 54, tzinfo=local)),
    ):
        store.commit(stored, expected=None)
    (table,) = run(desk, "/sessions")
    assert table.splitlines() == [
        "SAVED             TURNS   TOKENS       SIZE  NAME  TITLE",
        "2026-11-29 16:54      2   12,345     2.6 MB  bruno  My dog",
        "2026-11-28 09:00      2   12,345     2.6 MB  old  狗 and 猫",
    ]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("/sav", "there is no command /sav; did you mean /save?"),
        ("/session", "there is no command /session; did you mean /sessions?"),
        ("/zzz", "there is no command /zzz; /help lists the commands"),
        ("/", "there is no command /; /help lists the commands"),
        ("/load", "/load needs <name>"),
        ("/quit now", "/quit takes no argument"),
    ],
)
def test_a_wrong_command_is_one_line_that_says_what_is_right(desk, line, complaint):
    with pytest.raises(UsageError) as raised:
        run(desk, line)
    assert raised.value.one_line() == complaint


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
def test_piped_input_joins_the_question(question, given, message):
    assert question_with_input(question, given) == message
