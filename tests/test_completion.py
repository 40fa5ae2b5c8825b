"""What Tab offers at the chat's prompt."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from satchel.agent.context import ContextFile, with_files
from satchel.agent.desk import Desk
from satchel.cache_store.local import LocalStore
from satchel.cache_store.manifest import Manifest, Message
from satchel.config.settings import Settings
from satchel.terminal.completion import TalkCompleter


def save(store: LocalStore, number: int, name: str, model_name: str = "embedded") -> None:
    manifest = Manifest(
        session_id=f"{number:032x}",
        name=name,
        generation=1,
        parent=None,
        created_at=datetime(2026, 11, 28, tzinfo=UTC),
        model_name=model_name,
        profile_name="turbo4",
        identity={},
        messages=(Message(role="user", content="Hello"),),
        blocks=(),
        tail=None,
        token_count=0,
    )
    store.commit(manifest, expected=None)


@pytest.fixture
def completer(tmp_path: Path) -> TalkCompleter:
    store = LocalStore(tmp_path / "home")
    save(store, 1, "my dog")
    save(store, 2, "my cat", "owner/small")
    (tmp_path / "here" / "src").mkdir(parents=True)
    for name in ("src/agent.py", "src/.hidden", "setup.py", "sp ace.txt", "s\x1bx"):
        (tmp_path / "here" / name).write_text("")
    files = [ContextFile("src/agent.py", ""), ContextFile("README.md", "")]
    session = SimpleNamespace(messages=[Message(role="system", content=with_files("", files))])
    tools = SimpleNamespace(cwd=tmp_path / "here")
    settings = Settings.model_validate({"models": {"mine": "owner/mine"}})
    completer = TalkCompleter(store, settings)
    completer.desk = Desk(None, session, settings, tools)  # type: ignore[arg-type]
    return completer


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("/he", ["/help"]),
        ("/load my", ["my cat", "my dog"]),
        ("/load x", []),
        ("/model emb", ["embedded"]),
        ("/model own", ["owner/small"]),
        ("/model mine", ["mine"]),
        ("/model qwen3.5-9", ["qwen3.5-9b"]),
        ("/profile turbo", ["turbo2", "turbo3", "turbo4"]),
        ("/help bra", ["branch"]),
        ("/drop ", ["README.md", "src/agent.py"]),
        ("/add s", ["setup.py", "src/"]),
        ("/add setup.py src/", ["agent.py"]),
        ("/add src/.", [".hidden"]),
        ("/add nowhere/", []),
        ("/add ~nosuchuser/", []),
        ("/btw s", []),
        ("/nonsense s", []),
        ("What is in @sr", ["src/"]),
        ("@src/a", ["agent.py"]),
        ("ann@s", []),
        ("What", []),
        ("!ls s", []),
        ("", []),
    ],
)
def test_what_is_typed_is_completed(completer: TalkCompleter, typed: str, offered: list[str]) -> None:
    found = completer.get_completions(Document(typed), CompleteEvent())
    assert sorted(completion.text for completion in found) == offered


def test_what_is_replaced_is_what_was_typed_of_it(completer: TalkCompleter) -> None:
    (found,) = completer.get_completions(Document("/add setup.py src/ag"), CompleteEvent())
    assert (found.text, found.start_position) == ("agent.py", -2)


def test_the_store_is_asked_once_a_message(completer: TalkCompleter, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, heads = [], LocalStore.heads
    monkeypatch.setattr(LocalStore, "heads", lambda *args: asked.append(1) or heads(*args))
    for typed in ("/", "/load ", "/load m", "/load my"):
        list(completer.get_completions(Document(typed), CompleteEvent()))
    assert asked == [1]
    for typed in ("/", "/load m"):
        list(completer.get_completions(Document(typed), CompleteEvent()))
    assert asked == [1, 1]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("/he", ["/help"]), ("/load my c", ["my cat"]), ("/drop ", []), ("/add READM", ["README.md"])],
)
def test_what_needs_no_model_is_completed_while_it_loads(
    completer: TalkCompleter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, typed: str, offered: list[str]
) -> None:
    completer.desk = None
    (tmp_path / "README.md").write_text("")
    monkeypatch.chdir(tmp_path)
    found = completer.get_completions(Document(typed), CompleteEvent())
    assert [completion.text for completion in found] == offered
