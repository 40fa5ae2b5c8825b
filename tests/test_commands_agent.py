"""The slash commands that reach into sessions, files and tools, each on real ones, without any terminal."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.models.cache import load_prompt_cache
from small_talks import PROFILE, open_manager, say, small_model

from satchel.agent.commands import run_command
from satchel.agent.commands.leaving import LEAVING
from satchel.agent.context import ContextFile, split_files, with_files
from satchel.agent.desk import Desk
from satchel.agent.events import (
    Diff,
    Event,
    Failed,
    Notice,
    Output,
    PrefillProgress,
    Quit,
    Switched,
    TextDelta,
    TurnDone,
)
from satchel.agent.toolbox import Toolbox
from satchel.agent.user import Choice, Nobody
from satchel.cache_store.local import LocalStore
from satchel.cache_store.manifest import Message
from satchel.cache_store.sessions import open_session
from satchel.config.settings import Settings
from satchel.engine.model import LoadedModel
from satchel.errors import NetworkError, NotFoundError, RefusedError, SatchelError, UsageError
from satchel.exchange import sharing
from satchel.exchange.tensors import import_tensors
from satchel.exchange.words import read_text
from satchel.remotes.memory import MemoryRemote
from satchel.session import SessionManager
from satchel.session.summary import HEADING

NAMED = "# how to greet\ngreeting = 'hello'\nprint(greeting)\n"
CHANGED = "# how to greet\ngreeting = 'good morning'\nprint(greeting)\n"
EDIT = """So:

greet.py
```python
<<<<<<< SEARCH
greeting = 'hello'
=======
greeting = 'good morning'
>>>>>>> REPLACE
```
"""


class Person(Nobody):
    """Answers questions with the letters of `keys`, in their order, and notes what was asked."""

    def __init__(self, keys: str = "") -> None:
        self.keys, self.asked = list(keys), []  # type: ignore[var-annotated]

    def choose(self, question: str, choices: Sequence[Choice], default: Choice) -> Choice:
        self.asked.append((question, default.key))
        key = self.keys.pop(0)
        if key == "^":
            raise KeyboardInterrupt
        return next(choice for choice in choices if choice.key == key)


@pytest.fixture(scope="module")
def small(smollm: LoadedModel) -> LoadedModel:
    return small_model(smollm)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where commands run, with two files."""
    place = tmp_path / "work"
    (place / "sub").mkdir(parents=True)
    (place / "greet.py").write_text(NAMED)
    (place / "sub" / "notes.txt").write_text("buy milk\n")
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def desk(satchel_home: Path, folder: Path, small: LoadedModel) -> Desk:
    manager = open_manager(satchel_home, small)
    settings = Settings(temperature=0.0, max_tokens=12)
    return Desk(manager, manager.new(), settings, Toolbox(small, settings), Person())


def run(desk: Desk, line: str) -> list[Event]:
    return list(run_command(desk, line))


def told(events: Sequence[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Notice)]


def output(events: Sequence[Event]) -> str:
    (shown,) = [event.text for event in events if isinstance(event, Output)]
    return shown


def answers(desk: Desk, *contents: str) -> None:
    """Put questions and answers into the talk."""
    for number, content in enumerate(contents):
        desk.session.note(f"Question {number}?", content)


# Files


def test_add_puts_files_before_the_talk_and_reads_them_at_once(desk: Desk) -> None:
    events = run(desk, "/add greet.py sub/*.txt")
    assert output(events) == (
        "   TOKENS  FILE\n       20  greet.py\n        3  sub/notes.txt\n       23  in 2 files"
    )
    files = (ContextFile("greet.py", NAMED), ContextFile("sub/notes.txt", "buy milk\n"))
    assert desk.session.system == with_files("", files)
    (last,) = [event for event in events if isinstance(event, PrefillProgress)][-1:]
    assert last.done == last.total == len(desk.session.token_ids) > 23
    read = len(desk.session.token_ids)
    say(desk.session, "Hi")
    assert desk.session.stats()["last turn"].split(", ")[1] == f"reused {read}"  # type: ignore[attr-defined]


def test_paths_are_meant_from_where_cd_led(desk: Desk) -> None:
    list(desk.tools.shell.run("cd sub", threading.Event()))
    run(desk, "/add notes.txt")
    assert split_files(desk.session.system)[1] == (ContextFile("notes.txt", "buy milk\n"),)


def test_a_path_with_spaces_stands_in_quotes(desk: Desk, folder: Path) -> None:
    (folder / "my file.txt").write_text("one\n")
    run(desk, "/add 'my file.txt'")
    assert split_files(desk.session.system)[1] == (ContextFile("my file.txt", "one\n"),)
    with pytest.raises(UsageError, match="a quote is not closed"):
        run(desk, "/add 'my file.txt")


def test_a_file_that_is_added_again_is_read_as_it_is_now(desk: Desk, folder: Path) -> None:
    run(desk, "/add greet.py sub")
    assert told(run(desk, "/add greet.py")) == ["the talk has them already, just as they are"]
    (folder / "greet.py").write_text(CHANGED)
    run(desk, "/add greet.py")
    assert split_files(desk.session.system)[1] == (
        ContextFile("greet.py", CHANGED),
        ContextFile("sub/notes.txt", "buy milk\n"),
    )


def test_what_is_no_text_is_named_and_left_out(desk: Desk, folder: Path) -> None:
    (folder / "image").write_bytes(b"\x89PNG\r\n\0")
    events = run(desk, "/add image greet.py")
    assert told(events) == ["image: binary"]
    assert [file.path for file in split_files(desk.session.system)[1]] == ["greet.py"]
    with pytest.raises(UsageError, match="none of these files can be read into the talk"):
        run(desk, "/add image")
    with pytest.raises(NotFoundError):
        run(desk, "/add nothing-here.txt")


def test_files_that_do_not_fit_are_refused_with_their_tokens(desk: Desk, folder: Path) -> None:
    (folder / "long.txt").write_text("word\n" * 5000)
    desk.session.set_system("Be brief.")
    with pytest.raises(UsageError) as raised:
        run(desk, "/add long.txt")
    # "Be brief." takes 3 tokens and what stands around it 8; 12 are kept for an answer: 8192 - 23 are free.
    assert raised.value.one_line() == (
        "this file takes 10,021 tokens, and 8,169 are free in the model's 8,192; "
        "add fewer of them, or /drop others"
    )
    assert desk.session.system == "Be brief."


def test_ctrl_c_ends_reading_and_keeps_the_files(desk: Desk, folder: Path) -> None:
    (folder / "long.txt").write_text("word\n" * 1000)
    events = run_command(desk, "/add long.txt")
    for event in events:
        if isinstance(event, PrefillProgress):
            desk.cancel.set()
            break
    assert told(list(events)) == ["stopped; what was not read yet is read with the next message"]
    assert 0 < len(desk.session.token_ids) < 1000
    assert [file.path for file in split_files(desk.session.system)[1]] == ["long.txt"]


def test_files_lists_what_there_is_with_its_tokens(desk: Desk) -> None:
    assert told(run(desk, "/files")) == ["there are no files in the talk; /add puts some there"]
    run(desk, "/add greet.py")
    desk.session.note(with_files("What is this?", [ContextFile("other.txt", "buy milk\n")]), "A list.")
    assert run(desk, "/files") == [
        Output("   TOKENS  FILE\n       20  greet.py"),
        Notice("in messages:"),
        Output("   TOKENS  FILE\n        3  other.txt"),
    ]


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        ("greet.py", ["sub/notes.txt"]),
        ("./greet.py", ["sub/notes.txt"]),
        ("sub/", ["greet.py"]),
        ("*.txt greet.py", []),
        ("*", []),
    ],
)
def test_drop_takes_files_out(desk: Desk, wanted: str, left: list[str]) -> None:
    desk.session.set_system("Be brief.")
    run(desk, "/add greet.py sub")
    run(desk, f"/drop {wanted}")
    prompt, files = split_files(desk.session.system)
    assert (prompt, [file.path for file in files]) == ("Be brief.", left)


def test_drop_says_what_it_cannot_take_out(desk: Desk) -> None:
    run(desk, "/add greet.py")
    assert told(run(desk, "/drop greet.py")) == ["dropped greet.py: 20 tokens"]
    with pytest.raises(UsageError, match="there are no files in the talk"):
        run(desk, "/drop greet.py")
    desk.session.note(with_files("What is this?", [ContextFile("other.txt", "buy milk\n")]), "A list.")
    with pytest.raises(UsageError, match=r"other\.txt came with a message, and stays in it"):
        run(desk, "/drop other.txt")
    with pytest.raises(UsageError, match=r"there is no greet\.py in the talk"):
        run(desk, "/drop greet.py")


def test_one_file_that_is_not_there_keeps_the_others_out(desk: Desk) -> None:
    with pytest.raises(NotFoundError) as caught:
        run(desk, "/add greet.py missing.py")
    assert caught.value.one_line() == "there is no file 'missing.py'; none of the others was taken"
    assert not split_files(desk.session.system)[1]


# Changes


@pytest.fixture
def proposed(desk: Desk) -> Desk:
    """A talk with a file in its context whose last answer changes it."""
    run(desk, "/add greet.py")
    answers(desk, EDIT)
    return desk


def test_apply_shows_the_diff_and_asks_first(proposed: Desk, folder: Path) -> None:
    proposed.user = Person("n")
    assert run(proposed, "/apply") == [
        Diff(
            "--- a/greet.py\n+++ b/greet.py\n@@ -1,3 +1,3 @@\n # how to greet\n"
            "-greeting = 'hello'\n+greeting = 'good morning'\n print(greeting)\n"
        ),
        Notice("nothing was changed"),
    ]
    assert proposed.user.asked == [("change greet.py?", "n")]
    assert (folder / "greet.py").read_text() == NAMED


def test_apply_changes_the_file_and_what_the_talk_has_of_it(proposed: Desk, folder: Path) -> None:
    proposed.user = Person("y")
    assert told(run(proposed, "/apply")) == [
        "changed greet.py; /undo takes it back",
        "the talk has the files as they are now, and is read again from there with the next message",
    ]
    assert (folder / "greet.py").read_text() == CHANGED
    assert split_files(proposed.session.system)[1] == (ContextFile("greet.py", CHANGED),)


def test_undo_shows_and_takes_back_what_apply_did(proposed: Desk, folder: Path) -> None:
    proposed.user = Person("y")
    run(proposed, "/apply")
    shown, *rest = run(proposed, "/undo")
    assert isinstance(shown, Diff)
    assert "-greeting = 'good morning'\n+greeting = 'hello'\n" in shown.text
    assert told(rest)[0] == "taken back: greet.py"
    assert (folder / "greet.py").read_text() == NAMED
    assert split_files(proposed.session.system)[1] == (ContextFile("greet.py", NAMED),)
    with pytest.raises(UsageError, match="nothing that could be taken back"):
        run(proposed, "/undo")


def test_undo_refuses_where_the_file_was_changed_since(proposed: Desk, folder: Path) -> None:
    proposed.user = Person("y")
    run(proposed, "/apply")
    (folder / "greet.py").write_text("mine\n")
    with pytest.raises(RefusedError, match=r"greet\.py was changed since"):
        run(proposed, "/undo")
    assert (folder / "greet.py").read_text() == "mine\n"


def test_undo_of_what_another_talk_changed_is_asked_about(proposed: Desk, folder: Path) -> None:
    proposed.user = Person("yny")
    run(proposed, "/apply")
    proposed.tools = Toolbox(proposed.tools.model, proposed.settings)  # as in a new process
    assert told(run(proposed, "/undo")) == ["nothing was changed"]
    assert proposed.user.asked[1:] == [("this was changed in another talk: take it back?", "n")]
    assert (folder / "greet.py").read_text() == CHANGED
    run(proposed, "/undo")
    assert (folder / "greet.py").read_text() == NAMED


def test_an_edit_that_does_not_fit_is_told_exactly_and_changes_nothing(desk: Desk, folder: Path) -> None:
    run(desk, "/add greet.py")
    other = EDIT.replace("greeting = 'hello'", "greeting = 'hi'").removeprefix("So:\n")
    answers(desk, EDIT + other)
    events = run(desk, "/apply")
    (fault,) = [event.text for event in events if isinstance(event, Failed)]
    assert fault.startswith("greet.py: hunk ")
    assert told(events) == ["nothing was changed: all of it has to fit"]
    assert (folder / "greet.py").read_text() == NAMED


def test_files_that_the_model_was_not_shown_are_not_changed(desk: Desk, folder: Path) -> None:
    answers(desk, EDIT)
    events = run(desk, "/apply")
    (fault,) = [event.text for event in events if isinstance(event, Failed)]
    assert fault == "greet.py: it is none of the files in context"
    assert (folder / "greet.py").read_text() == NAMED


def test_a_new_file_is_made_and_taken_back(desk: Desk, folder: Path) -> None:
    answers(desk, "new/hi.txt\n```\n<<<<<<< SEARCH\n=======\nhi\n>>>>>>> REPLACE\n```\n")
    desk.user = Person("y")
    assert told(run(desk, "/apply")) == ["changed new/hi.txt; /undo takes it back"]
    assert (folder / "new" / "hi.txt").read_text() == "hi\n"
    assert told(run(desk, "/undo")) == ["taken back: new/hi.txt"]
    assert not (folder / "new").exists()


def test_ctrl_c_at_the_question_changes_nothing(proposed: Desk, folder: Path) -> None:
    proposed.user = Person("^")
    assert told(run(proposed, "/apply")) == ["nothing was changed"]
    assert (folder / "greet.py").read_text() == NAMED


def test_the_file_that_was_added_is_changed_wherever_cd_led_since(proposed: Desk, folder: Path) -> None:
    (folder / "sub" / "greet.py").write_text("another\n")
    list(proposed.tools.shell.run("cd sub", threading.Event()))
    proposed.user = Person("y")
    run(proposed, "/apply")
    assert (folder / "greet.py").read_text() == CHANGED
    assert (folder / "sub" / "greet.py").read_text() == "another\n"


def test_a_file_that_was_changed_since_is_still_the_one_that_was_added(
    proposed: Desk, folder: Path, tmp_path: Path
) -> None:
    (folder / "greet.py").write_text(NAMED + "# more\n")
    other = tmp_path / "other"
    other.mkdir()
    (other / "greet.py").write_text(NAMED)
    list(proposed.tools.shell.run(f"cd {other}", threading.Event()))
    proposed.user = Person("y")
    assert told(run(proposed, "/apply"))[0] == f"changed {folder}/greet.py; /undo takes it back"
    assert proposed.user.asked == [(f"change {folder}/greet.py?", "n")]
    assert (folder / "greet.py").read_text() == CHANGED + "# more\n"
    assert (other / "greet.py").read_text() == NAMED
    assert split_files(proposed.session.system)[1] == (ContextFile("greet.py", CHANGED + "# more\n"),)
    assert told(run(proposed, "/undo"))[0] == f"taken back: {folder}/greet.py"
    assert split_files(proposed.session.system)[1] == (ContextFile("greet.py", NAMED + "# more\n"),)


def test_a_file_of_an_earlier_run_that_cannot_be_told_from_another_is_not_changed(
    proposed: Desk, folder: Path, tmp_path: Path
) -> None:
    proposed.tools = Toolbox(proposed.tools.model, proposed.settings)  # as in a new process
    (folder / "greet.py").write_text(NAMED + "# more\n")
    other = tmp_path / "other"
    other.mkdir()
    (other / "greet.py").write_text(NAMED.replace("how", "when"))
    list(proposed.tools.shell.run(f"cd {other}", threading.Event()))
    (fault,) = [event.text for event in run(proposed, "/apply") if isinstance(event, Failed)]
    assert fault == (
        "greet.py: it was put into the talk elsewhere, and where is not known any more: /add it again"
    )


def test_a_file_of_an_earlier_run_is_changed_where_the_talk_goes_on(proposed: Desk, folder: Path) -> None:
    proposed.tools = Toolbox(proposed.tools.model, proposed.settings)
    (folder / "greet.py").write_text(NAMED + "# more\n")
    proposed.user = Person("y")
    run(proposed, "/apply")
    assert (folder / "greet.py").read_text() == CHANGED + "# more\n"


@pytest.mark.parametrize("path", ["{outside}/greet.py", "../outside/greet.py", "link"])
def test_a_message_puts_no_file_outside_into_reach(desk: Desk, folder: Path, path: str) -> None:
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / "greet.py").write_text(NAMED)
    (folder / "link").symlink_to(outside / "greet.py")
    path = path.replace("{outside}", str(outside))
    said = with_files("Change it.", [ContextFile(path, NAMED)])
    desk.session.note(said, EDIT.replace("greet.py", path))
    desk.user = Person("y")
    (fault,) = [event.text for event in run(desk, "/apply") if isinstance(event, Failed)]
    assert fault.endswith(": it is outside of the directory worked in: /add it, if it is to be changed")
    assert (outside / "greet.py").read_text() == NAMED


def test_a_file_outside_that_was_added_is_changed(desk: Desk, folder: Path) -> None:
    outside = folder.parent / "outside.py"
    outside.write_text(NAMED)
    run(desk, "/add ../outside.py")
    answers(desk, EDIT.replace("greet.py", str(outside)))
    desk.user = Person("yy")
    desk.tools = Toolbox(desk.tools.model, desk.settings)  # also by another run
    run(desk, "/apply")
    assert desk.user.asked == [(f"change {outside}?", "n")]
    assert outside.read_text() == CHANGED


def test_a_summary_puts_no_file_into_reach(desk: Desk, folder: Path) -> None:
    answers(desk, EDIT)
    quoted = with_files("Said last:", [ContextFile("greet.py", NAMED)])
    desk.session.messages.append(Message(role="system", content=f"{HEADING}{quoted}"))
    (fault,) = [event.text for event in run(desk, "/apply") if isinstance(event, Failed)]
    assert fault == "greet.py: it is none of the files in context"
    assert told(run(desk, "/files")) == ["there are no files in the talk; /add puts some there"]


def test_answers_without_changes_say_so(desk: Desk) -> None:
    with pytest.raises(UsageError, match="there is no answer yet"):
        run(desk, "/apply")
    answers(desk, "The sky is blue.")
    with pytest.raises(UsageError, match="the last answer changes no file"):
        run(desk, "/apply")


# Sessions and copies


def test_rename_changes_the_stored_name_and_the_talk_goes_on(desk: Desk) -> None:
    with pytest.raises(UsageError) as raised:
        run(desk, "/rename trip")
    assert raised.value.one_line() == "this talk is not stored yet; /save trip stores it under that name"
    say(desk.session, "One?")
    run(desk, "/save first")
    assert told(run(desk, "/rename trip to Norway")) == ["this talk goes on as 'trip to Norway'"]
    store = desk.manager.store
    assert [head.name for head in store.heads(9).heads] == ["trip to Norway"]
    say(desk.session, "Two?")
    run(desk, "/save")
    head = store.find("trip to Norway")
    assert (head.session_id, head.turns) == (desk.session.id, 2)


def test_rename_keeps_to_the_words_that_may_be_stored(desk: Desk) -> None:
    say(desk.session, "One?")
    run(desk, "/save first")
    desk.settings = desk.settings.model_copy(update={"auto_save": False})
    say(desk.session, "Secret?")
    run(desk, "/rename second")
    assert desk.session.name == "second"
    assert open_session(desk.manager.store, "second").manifest.questions == ["One?"]
    assert desk.session.turns() == ["One?", "Secret?"]


def test_clear_leaves_the_talk_in_the_store(desk: Desk) -> None:
    say(desk.session, "One?")
    events = run(desk, "/clear")
    assert told(events) == ["a new session; the talk before stays stored as One: /load One goes back"]
    assert desk.session.turns() == []
    assert events[0] == Switched(desk.session)
    run(desk, "/load One")
    assert desk.session.turns() == ["One?"]


def test_export_alone_shows_markdown(desk: Desk) -> None:
    with pytest.raises(UsageError, match="nothing was said yet"):
        run(desk, "/export")
    answers(desk, "It is blue.")
    assert output(run(desk, "/export")).endswith("## User\n\nQuestion 0?\n\n## Assistant\n\nIt is blue.\n")


@pytest.mark.parametrize("name", ["talk.md", "talk.json", "talk.jsonl", "TALK.MD"])
def test_export_writes_the_words_even_of_a_talk_that_is_not_stored(
    desk: Desk, folder: Path, name: str
) -> None:
    desk.settings = desk.settings.model_copy(update={"auto_save": False})
    answers(desk, "It is blue.")
    assert told(run(desk, f"/export {name}")) == [f"written to {folder / name}"]
    assert "It is blue." in read_text(folder / name)
    assert desk.session.id == ""


def test_export_of_everything_is_what_import_takes(desk: Desk, folder: Path, tmp_path: Path) -> None:
    say(desk.session, "One?")
    run(desk, "/export talk.safetensors")
    store = LocalStore(tmp_path / "other")
    made = import_tensors(store, folder / "talk.safetensors", None)
    assert made.tokens == len(desk.session.token_ids)
    assert open_session(store, made.name).manifest.questions == ["One?"]


def test_export_of_a_prompt_cache_is_what_mlx_lm_takes(desk: Desk, folder: Path, small: LoadedModel) -> None:
    say(desk.session, "One?")
    events = run(desk, "/export talk.mlx-lm.safetensors")
    assert told(events)[1] == f"mlx_lm takes it with --model {small.path}"
    (cache,) = load_prompt_cache(str(folder / "talk.mlx-lm.safetensors"))
    assert cache.offset == len(desk.session.token_ids)


def test_export_replaces_a_file_only_if_told_to(desk: Desk, folder: Path) -> None:
    answers(desk, "It is blue.")
    (folder / "talk.md").write_text("mine\n")
    desk.user = Person("n^y")
    for _ in range(2):
        assert told(run(desk, "/export talk.md")) == [f"{folder / 'talk.md'} stays as it is"]
        assert (folder / "talk.md").read_text() == "mine\n"
    assert desk.user.asked[0] == (f"replace {folder / 'talk.md'}?", "n")
    run(desk, "/export talk.md")
    assert "It is blue." in (folder / "talk.md").read_text()


@pytest.mark.parametrize(
    ("name", "error", "complaint"),
    [
        ("talk.doc", UsageError, "the name 'talk.doc' does not say what to write"),
        ("none/talk.md", NotFoundError, "there is no folder"),
    ],
)
def test_export_says_what_it_cannot_write(
    desk: Desk, name: str, error: type[SatchelError], complaint: str
) -> None:
    answers(desk, "It is blue.")
    with pytest.raises(error, match=complaint):
        run(desk, f"/export {name}")


class Bucket(MemoryRemote):
    """Makes addresses that nobody answers."""

    def __init__(self) -> None:
        super().__init__()
        self.lasting_s: list[int] = []

    def put_file(self, name: str, path: Path) -> None:
        self.put(name, path.read_bytes())

    def presigned_url(self, name: str, seconds: int) -> str:
        self.lasting_s.append(seconds)
        return f"https://bucket.test/{name}"


def test_share_makes_a_link_to_a_sealed_copy(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = Bucket()
    monkeypatch.setattr(sharing, "open_link_remote", lambda name: bucket)
    say(desk.session, "One?")
    events = run(desk, "/share 2h")
    assert told(events) == ["whoever has the link can read the session, for 2h"]
    address, _, key = output(events).partition("#")
    (stored,) = bucket.list("v1/shares/")
    assert (address, bucket.lasting_s) == (f"https://bucket.test/{stored.name}", [7200])
    (tmp_path / "sealed").write_bytes(bucket.get(stored.name, 1 << 30))
    origin = sharing.parse_origin(f"{tmp_path / 'sealed'}#{key}")
    assert origin.key is not None
    other = LocalStore(tmp_path / "other")
    made = sharing.receive_session(other, origin, origin.key)
    assert open_session(other, made.name).manifest.questions == ["One?"]


def test_share_needs_a_bucket_and_a_time_that_links_can_have(desk: Desk) -> None:
    say(desk.session, "One?")
    with pytest.raises(NotFoundError, match="a link needs a bucket") as unnamed:
        run(desk, "/share")
    assert "`satchel share NAME --output FILE` seals" in unnamed.value.hint
    run(desk, "/save our dog")
    with pytest.raises(NotFoundError) as raised:
        run(desk, "/share")
    assert raised.value.one_line() == (
        "a link needs a bucket; `satchel sync setup` sets one up, or "
        "`satchel share 'our dog' --output 'our dog.satchel'` seals the talk into a file"
    )
    with pytest.raises(UsageError, match="a link cannot last for 30d"):
        run(desk, "/share 30d")


def test_what_is_not_to_be_stored_is_not_stored_to_be_shared(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "open_link_remote", lambda name: Bucket())
    desk.settings = desk.settings.model_copy(update={"auto_save": False})
    say(desk.session, "One?")
    with pytest.raises(UsageError, match="this talk is not stored"):
        run(desk, "/share")
    assert desk.session.id == ""


# The talk


def test_undo_turn_takes_the_last_message_back_and_keeps_it(desk: Desk) -> None:
    with pytest.raises(UsageError, match="nothing was said yet"):
        run(desk, "/undo-turn")
    for text in ("One?", "Two?"):
        say(desk.session, text)
    assert told(run(desk, "/undo-turn")) == ["taken back: Two?; /restore lists what was left behind"]
    assert desk.session.turns() == ["One?"]
    assert "the last: Two?" in output(run(desk, "/restore"))
    assert "last turn" not in output(run(desk, "/stats"))
    run(desk, "/undo-turn")
    assert desk.session.turns() == []


def test_btw_leaves_no_trace(desk: Desk) -> None:
    say(desk.session, "One?")
    before = (list(desk.session.messages), list(desk.session.token_ids))
    events = run(desk, "/btw What is idempotent?")
    assert isinstance(events[-1], TurnDone)
    assert any(isinstance(event, TextDelta) and event.text for event in events)
    assert (desk.session.messages, desk.session.token_ids) == before


def test_compact_goes_on_from_a_summary(desk: Desk) -> None:
    with pytest.raises(UsageError, match="there is nothing to compact yet"):
        run(desk, "/compact")
    answers(desk, "It is blue. " * 20)
    with pytest.raises(UsageError, match="there is too little to compact"):
        run(desk, "/compact")
    assert [message.role for message in desk.session.messages] == ["user", "assistant"]
    answers(desk, "It is blue. " * 80)
    assert told(run(desk, "/compact"))[-1].startswith("the model goes on from this summary: 0 tokens became ")
    roles = ["user", "assistant", "user", "assistant", "system"]
    assert [message.role for message in desk.session.messages] == roles


def test_retry_answers_the_last_message_again(desk: Desk) -> None:
    say(desk.session, "One?")
    events = run(desk, "/retry")
    assert isinstance(events[-1], TurnDone)
    assert desk.session.turns() == ["One?"]
    assert len(desk.session.abandoned()) == 1


def test_loop_takes_as_many_turns_as_it_was_told(desk: Desk) -> None:
    events = run(desk, "/loop 3 /files")
    none = "there are no files in the talk; /add puts some there"
    assert told(events) == ["turn 1 of 3", none, "turn 2 of 3", none, "turn 3 of 3", none]


def test_loop_asks_the_model_again_and_again(desk: Desk) -> None:
    events = run(desk, "/loop 2 Tell me a joke.")
    assert desk.session.turns() == ["Tell me a joke."] * 2
    assert sum(isinstance(event, TurnDone) for event in events) == 2


def test_loop_ends_with_ctrl_c_while_it_waits(desk: Desk) -> None:
    events = []
    for event in run_command(desk, "/loop 1h /files"):
        events.append(event)
        if event == Notice("the next turn comes in 3600 s; /stop or Ctrl-C ends the loop"):
            desk.cancel.set()
    assert told(events)[-1] == "the loop ended after 1 turn"


def test_a_turn_that_fails_is_told_and_the_loop_goes_on(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> None:
        raise NetworkError("no network")

    monkeypatch.setattr(desk.manager.store, "heads", fails)
    events = run(desk, "/loop 2 /sessions")
    assert events == [
        Notice("turn 1 of 2"),
        Failed("no network"),
        Notice("turn 2 of 2"),
        Failed("no network"),
    ]


def test_a_loop_of_what_cannot_be_run_ends_at_once(desk: Desk) -> None:
    with pytest.raises(UsageError, match="a loop cannot repeat /loop"):
        run(desk, "/loop 2 /loop 2 hello")
    with pytest.raises(UsageError, match="there is no command /zzz"):
        run(desk, "/loop 2 /zzz")
    with pytest.raises(UsageError, match="there is no prompt to ask again"):
        run(desk, "/loop 5 30s")


def test_quit_ends_a_loop(desk: Desk) -> None:
    assert run(desk, "/loop 3 /quit") == [Notice("turn 1 of 3"), Quit()]


# The model


def test_system_sets_the_prompt_and_leaves_the_files(desk: Desk) -> None:
    run(desk, "/add greet.py")
    files = (ContextFile("greet.py", NAMED),)
    assert run(desk, "/system") == [Notice("there is no system prompt; the chat template may have one")]
    assert run(desk, "/system Answer in\nFrench.") == [Notice("the system prompt is set")]
    assert split_files(desk.session.system) == ("Answer in\nFrench.", files)
    assert run(desk, "/system") == [Output("Answer in\nFrench.")]
    answers(desk, "Oui.")
    assert run(desk, "/system -") == [
        Notice("there is no system prompt any more; what was said is read again with the next message")
    ]
    assert split_files(desk.session.system) == ("", files)


def test_profile_goes_on_with_the_same_talk(desk: Desk) -> None:
    assert output(run(desk, "/profile")).splitlines()[0] == f"KV profile  {PROFILE}"
    say(desk.session, "One?")
    run(desk, "/save")
    events = run(desk, "/profile exact")
    assert events[-2:] == [Switched(desk.session), Notice("the KV profile is exact now")]
    assert (desk.session.turns(), desk.session.profile.asked) == (["One?"], "exact")
    assert desk.session.take_notices() == [
        f"saved with another KV profile ({PROFILE}): the context is read again with the next message"
    ]
    assert desk.settings.kv_profile == "exact"
    assert desk.manager.new().profile.asked == "exact"
    say(desk.session, "Two?")
    run(desk, "/save")
    assert desk.manager.store.find(desk.session.id).turns == 2
    assert told(run(desk, "/profile exact")) == ["the KV profile is exact already"]


def test_a_profile_that_is_not_known_changes_nothing(desk: Desk) -> None:
    before = desk.session
    with pytest.raises(UsageError, match="no KV profile is called 'turbo9'"):
        run(desk, "/profile turbo9")
    assert desk.session is before


def test_what_could_not_be_saved_goes_on_in_another_profile(desk: Desk) -> None:
    say(desk.session, "One?")
    run(desk, "/save")
    say(desk.session, "Two?")
    run(desk, "/profile exact")
    assert desk.session.turns() == ["One?", "Two?"]
    assert desk.session.unsaved


def test_what_is_not_to_be_stored_goes_on_in_another_profile(desk: Desk) -> None:
    desk.settings = desk.settings.model_copy(update={"auto_save": False})
    say(desk.session, "One?")
    run(desk, "/profile exact")
    assert desk.session.turns() == ["One?"]
    assert desk.session.take_notices() == ["what was said is read again with the next message"]
    assert desk.manager.store.heads(9).total == 0


def other_model(desk: Desk, home: Path) -> Callable[[Settings], SessionManager]:
    """Loads the same weights as another model."""
    model = desk.manager.model

    def load(settings: Settings) -> SessionManager:
        if settings.model != "other":
            raise NotFoundError(f"there is no model {settings.model}")
        fingerprint = replace(model.fingerprint, weights="other")
        return open_manager(home, replace(model, name="other", fingerprint=fingerprint))

    return load


def test_model_goes_on_with_the_same_talk(desk: Desk, satchel_home: Path) -> None:
    assert output(run(desk, "/model")).splitlines()[0] == "model     small"
    desk.open_manager = other_model(desk, satchel_home)
    say(desk.session, "One?")
    run(desk, "/save")
    meter = desk.tools.meter
    events = run(desk, "/model other")
    assert events[-2:] == [Switched(desk.session), Notice("the model is other now")]
    assert (desk.session.turns(), desk.session.manager.model.name) == (["One?"], "other")
    assert desk.session.take_notices() == [
        "saved with another model.weights: the context is read again with the next message"
    ]
    assert (desk.settings.model, desk.tools.model.name, desk.tools.meter) == ("other", "other", meter)
    assert desk.manager is desk.session.manager


def test_a_model_that_cannot_be_loaded_leaves_all_as_it_was(desk: Desk, satchel_home: Path) -> None:
    with pytest.raises(UsageError, match="no other model can be loaded here"):
        run(desk, "/model other")
    desk.open_manager = other_model(desk, satchel_home)
    before = (desk.session, desk.manager, desk.settings, desk.tools)
    with pytest.raises(NotFoundError, match="there is no model nobody/nothing"):
        run(desk, "/model nobody/nothing")
    assert (desk.session, desk.manager, desk.settings, desk.tools) == before
    assert told(run(desk, "/model small")) == ["the model is small already"]


def test_bench_compares_the_profile_with_the_exact_cache(desk: Desk) -> None:
    events = run(desk, "/bench")
    head, ours, exact = output(events).splitlines()
    assert head.split() == ["KV", "PROFILE", "PREFILL", "DECODE", "KV"]
    assert [line.split()[0] for line in (ours, exact)] == [PROFILE, "exact"]
    # 288 tokens of 32 key and 32 value coordinates, in the activations' 32 bits; the last one is not read.
    assert exact.split()[-2:] == ["0.13", "MB"]
    assert desk.session.token_ids == []


def test_ctrl_c_ends_a_bench(desk: Desk) -> None:
    desk.cancel.set()
    assert told(run(desk, "/bench")) == ["stopped"]


def test_cost_shows_what_the_meter_has_counted(desk: Desk) -> None:
    run(desk, "/btw Why?")
    lines = output(run(desk, "/cost")).splitlines()
    assert lines[0] == "answers  1"
    assert lines[3].startswith("written  12 tokens in ")


# Tools and feedback


def test_tools_says_what_there_is_and_how_it_is_set(desk: Desk, folder: Path) -> None:
    desk.routing = True
    desk.settings = Settings.model_validate({"shell": {"approve": "read-only", "timeout_s": 30.0}})
    shown = dict(line.split(maxsplit=1) for line in output(run(desk, "/tools")).splitlines())
    assert list(shown) == ["routing", "search", "shell", "directory", "approval", "sandbox"]
    assert shown["routing"].startswith("on: ")
    assert shown["directory"] == str(folder)
    assert shown["approval"].startswith("read-only: ")
    assert shown["shell"].endswith(", at most 30 s a command")


def test_tools_says_why_one_cannot_be_used(desk: Desk) -> None:
    settings = Settings.model_validate({"search": {"provider": "searxng"}})
    desk.settings, desk.tools = settings, Toolbox(desk.manager.model, settings)
    shown = output(run(desk, "/tools"))
    assert "search     searxng: not usable: " in shown


@pytest.mark.parametrize(("line", "turn"), [("/search who?", "search_turn"), ("/shell what?", "shell_turn")])
def test_search_and_shell_are_turns_of_their_own(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, line: str, turn: str
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        f"satchel.agent.agent.{turn}", lambda *args, **how: asked.append(args) or [Notice("done")]
    )
    assert run(desk, line) == [Notice("done")]
    assert asked == [(desk, line.split(maxsplit=1)[1])]


def test_feedback_becomes_a_training_set(desk: Desk, folder: Path, small: LoadedModel) -> None:
    with pytest.raises(UsageError, match="there is no answer yet that could be judged"):
        run(desk, "/good")
    answers(desk, "It is blue.")
    assert told(run(desk, "/good short")) == [
        "kept, on this machine alone; /improve makes a training set of what was kept"
    ]
    answers(desk, "Sydney.")
    assert told(run(desk, "/bad")) == [
        "kept, on this machine alone; /bad with the better answer behind it can be learned from"
    ]
    run(desk, "/bad Canberra.")
    events = run(desk, "/improve 'my set'")
    assert told(events) == [
        f"written to {folder / 'my set'}: 1 sample to train, 1 to validate",
        "that is too little to train with yet: about 50 samples are a start",
    ]
    assert output(events) == (
        f"mlx_lm.lora --model {small.path} --train --data '{folder / 'my set'}' --batch-size 1 --mask-prompt"
    )
    samples = [
        json.loads((folder / "my set" / f"{part}.jsonl").read_text())["messages"][-1]["content"]
        for part in ("train", "valid")
    ]
    assert sorted(samples) == ["Canberra.", "It is blue."]


def test_improve_without_feedback_says_how_to_give_some(desk: Desk) -> None:
    with pytest.raises(UsageError) as raised:
        run(desk, "/improve")
    assert raised.value.one_line() == (
        "there is no feedback to learn from; say /good to good answers, and /bad with the better answer to "
        "bad ones"
    )


# Leaving


def test_notices_of_the_save_before_leaving_are_told(desk: Desk) -> None:
    say(desk.session, "One?")
    desk.session.notices.append("a line of the talk that is left")
    assert told(run(desk, "/new")) == ["a line of the talk that is left", "a new session"]


def test_who_was_told_by_a_command_is_not_told_again_elsewhere(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(name: str | None = None) -> None:
        raise SatchelError("the disk is full")

    desk.session.messages.append(Message(role="user", content="One?"))
    monkeypatch.setattr(desk.session, "save", full)
    (failed,) = run(desk, "/quit")
    assert isinstance(failed, Failed)
    assert LEAVING.may_leave(desk) is None
