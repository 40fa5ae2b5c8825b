"""What deletes sessions, or what they have read, asks a person first, and says afterwards what it did."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import typer
from in_process import Run
from in_process import satchel as satchel

from satchel.cache_store.local import LocalStore
from satchel.cache_store.manifest import Message
from satchel.cache_store.sessions import save_snapshot
from satchel.cache_store.snapshot import Block, Snapshot
from satchel.sync.configuration import SyncConfig, save_config


@pytest.fixture
def store(satchel_home: Path) -> LocalStore:
    store = LocalStore(satchel_home)
    nothing = Snapshot({"none": True}, (), Block(0, 1, np.zeros(1, dtype=np.uint32), {}))
    for name in ("bruno", "dog"):
        words = [Message(role="user", content=name)]
        save_snapshot(store, nothing, words, name=name, model_name="embedded", profile_name="turbo4")
    return store


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The questions to a person who never agrees."""
    questions: list[str] = []

    def confirm(question: str, **more: object) -> bool:
        questions.append(question)
        return False

    monkeypatch.setattr(typer, "confirm", confirm)
    for module in ("options", "store"):
        monkeypatch.setattr(f"satchel.cli.{module}.at_terminal", lambda: True)
    return questions


def names(store: LocalStore) -> set[str]:
    return {head.name for head in store.heads().heads}


def test_a_person_is_asked_before_sessions_are_removed(
    satchel: Run, store: LocalStore, asked: list[str]
) -> None:
    done = satchel("sessions", "rm", "BRUNO", store.find("dog").session_id[:8])
    assert (done.returncode, done.stderr) == (6, "satchel: nothing was removed\n")
    assert asked == ["Remove 'bruno', 'dog'? It cannot be undone."]
    assert names(store) == {"bruno", "dog"}


def test_the_question_says_what_the_next_sync_does(
    satchel: Run, store: LocalStore, asked: list[str], tmp_path: Path
) -> None:
    save_config(SyncConfig(url=f"file://{tmp_path}", key_id="0" * 16, exclusive=True))
    satchel("sessions", "rm", "bruno")
    assert asked == [
        "Remove 'bruno'? It cannot be undone. "
        "The next sync removes it in the remote and on other machines, too."
    ]


def test_with_yes_nobody_is_asked_and_it_is_said(satchel: Run, store: LocalStore, asked: list[str]) -> None:
    done = satchel("sessions", "rm", "dog", "bruno", "--yes")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "removed 'dog', 'bruno'\n")
    assert (asked, names(store)) == ([], set())


def test_a_person_is_asked_before_a_context_is_pruned(
    satchel: Run, store: LocalStore, asked: list[str]
) -> None:
    done = satchel("store", "prune", "--max-size", "0")
    assert (done.returncode, done.stdout, done.stderr) == (6, "", "satchel: nothing was deleted\n")
    assert asked == [
        "Delete the context of 'bruno', 'dog'? Their words stay, and are read again when resumed."
    ]
    assert store.get_manifest(store.find("bruno").manifest).tail is not None


@pytest.mark.parametrize("more", [["--yes"], ["--dry-run"]])
def test_pruning_asks_nobody_who_said_yes_or_only_looks(
    satchel: Run, store: LocalStore, asked: list[str], more: list[str]
) -> None:
    done = satchel("store", "prune", "--max-size", "0", *more)
    assert (done.returncode, asked) == (0, [])
    assert f"bruno {'lost' if more == ['--yes'] else 'would lose'} its context" in done.stdout


def test_pruning_where_nothing_has_to_go_asks_nobody(
    satchel: Run, store: LocalStore, asked: list[str]
) -> None:
    assert satchel("store", "prune", "--max-size", "1GB").returncode == 0
    assert asked == []
