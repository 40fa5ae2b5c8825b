"""The pages of help: each as it was last looked at, with examples that can be typed.

`python tests/test_help.py` writes the pages anew; what it changes is to be read before it is kept.
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from satchel import cli
from satchel.cli.app import COMMANDS, app
from satchel.cli.help import Row, first_sentence, page
from satchel.cli.program import Program

PAGES = Path(__file__).parent / "help"
# What --help may load of what is not Python's own.
MAY_LOAD = {"satchel", "typer", "annotated_doc", "shellingham"}


def program():
    made = get_command(app)
    assert isinstance(made, Program)
    return made


def commands(command=None, path=()):
    """Every command and group that is not hidden, with its path."""
    command = command or program()
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from commands(inner, (*path, name))


ALL = {" ".join(path): command for path, command in commands()}


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(os, "environ", os.environ.copy())  # which the flags of an example change


def help_of(path, satchel):
    shown = satchel(*path.split(), "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    return shown.stdout


@pytest.mark.parametrize("path", ALL)
def test_the_page_is_as_it_was_last_looked_at(path, satchel):
    shown = help_of(path, satchel)
    assert shown == (PAGES / f"{path or 'satchel'}.txt").read_text()
    assert max(map(len, shown.splitlines())) <= 80


def test_no_page_is_of_a_command_that_is_gone():
    assert {file.stem for file in PAGES.iterdir()} == {path or "satchel" for path in ALL}


@pytest.mark.parametrize("path", ALL)
def test_a_page_has_examples_that_parse(path):
    """The programs within them, such as `jq`, are not looked at."""
    examples = (ALL[path].epilog or "").splitlines()
    assert examples
    for line in examples:
        words = shlex.split(line, comments=True)
        assert "satchel" in " ".join(words)
        for start in (index for index, word in enumerate(words) if word == "satchel"):
            if "COMMAND" not in words:
                assert_parses(command_line(words[start + 1 :]))


def command_line(words):
    """Up to what the shell takes for itself."""
    ends = (index for index, word in enumerate(words) if word in ("|", "<", ">", "&&", ";"))
    return words[: next(ends, len(words))]


def assert_parses(args):
    context = None
    command, name = program(), "satchel"
    while True:
        context = command.make_context(name, list(args), parent=context)
        rest = [*context._protected_args, *context.args]
        if not (hasattr(command, "commands") and rest):
            return
        name, command, args = command.resolve_command(context, rest)


def test_a_wrong_example_would_be_noticed():
    with pytest.raises(Exception, match="No such option"):
        assert_parses(["ask", "--nonsense"])


def test_the_root_page_lists_every_command(satchel):
    shown = help_of("", satchel)
    for name, entry in COMMANDS.items():
        assert f"\n    {name} " in shown
        assert f"{entry.section.upper()}\n" in shown


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_what_help_and_version_load(flag):
    code = "import sys; from satchel.cli import run; run(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    bare = [sys.executable, "-c", "import sys; print(*sys.modules)"]
    before = subprocess.run(bare, capture_output=True, text=True, check=True).stdout.split()
    ran = subprocess.run([sys.executable, "-c", code, flag], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in ran.stderr.split()} - {
        name.partition(".")[0] for name in before
    }
    assert "satchel" in loaded
    assert loaded - set(sys.stdlib_module_names) - MAY_LOAD == set()


@pytest.mark.parametrize("width", [40, 60, 100])
def test_nothing_is_cut_or_wider_than_the_window(width):
    command = ALL["sessions archive"]
    context = command.make_context("satchel sessions archive", ["x"])
    shown = page(
        command, context, [("Near", [Row("a-term", "what it means " * 9)])], ["b c"] * 9, width, False
    )
    prose = [line for line in shown.splitlines() if not line.startswith(("    satchel", "    #"))]
    assert max(map(len, prose)) <= width
    words = " ".join(shown.split())
    assert "Make a stored session smaller by storing its context in fewer bits." in words
    assert "Lossy: answers may differ." in words
    assert "what it means " * 8 in words


def test_the_first_sentence_is_the_name_line():
    assert first_sentence("Says it. And more.") == "Says it."
    assert first_sentence("No end") == "No end"


@pytest.mark.parametrize(
    "args", [["-q", "sessions", "list"], ["sessions", "-q", "list"], ["sessions", "list", "-q"]]
)
def test_quiet_can_stand_anywhere_and_ends_with_the_command(args, satchel):
    done = satchel(*args)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "SATCHEL_QUIET" not in os.environ


def test_a_notice_is_there_without_it(satchel):
    assert satchel("sessions", "list").stderr == "no sessions are stored yet\n"


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["--model", "x", "--kv", "foo"], "no KV profile is called 'foo'; known are"),
        (["--kv=foo"], "no KV profile is called 'foo'; known are"),
        (["-q", "--kv", "foo"], "no KV profile is called 'foo'; known are"),
        (["--nonsense"], "there is no option --nonsense; `satchel --help` says more"),
        (["ask", "--modle", "x"], "there is no option --modle; did you mean --model?\n"),
        (["chat", "--json"], "there is no option --json; `satchel chat --help` says more\n"),
        (["ask", "--nonsense"], "there is no option --nonsense; `satchel ask --help` says more"),
        (
            ["--kv", "turbo4", "ask", "hi"],
            "--kv stands ahead of the command; put it behind: `satchel ask --kv turbo4",
        ),
        (
            ["--no-save", "--model=x", "ask"],
            "--no-save stands ahead of the command; put it behind: `satchel ask ",
        ),
        (["sesions"], "there is no command 'sesions'; did you mean 'sessions'?"),
        (["chat", "--max-tokens", "many"], "Invalid value for '--max-tokens': it is no whole number; "),
        (["sessions", "list", "--limit", "-1"], "Invalid value for '--limit': it is less than 0; "),
        (
            ["sessions", "export", "x", "--format", "doc"],
            "Invalid value for '--format': 'doc' is not one of 'md', ",
        ),
    ],
)
def test_options_of_chat_need_no_command_and_wrong_ones_say_where_to_look(args, line, satchel):
    done = satchel(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"satchel: {line}")
    assert done.stderr.count("\n") == 1


def test_a_group_alone_shows_its_page(satchel):
    done = satchel("sessions")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == satchel("sessions", "--help").stdout


def test_a_word_behind_an_options_value_may_be_called_as_a_command_is(satchel):
    assert satchel("--kv", "ask").stderr.startswith("satchel: no KV profile is called 'ask'")


if __name__ == "__main__":
    os.environ["COLUMNS"] = "80"
    PAGES.mkdir(exist_ok=True)
    for file in PAGES.glob("*.txt"):
        file.unlink()
    for path in ALL:
        with (PAGES / f"{path or 'satchel'}.txt").open("w") as file:
            sys.stdout = file
            cli.run([*path.split(), "--help"])
            sys.stdout = sys.__stdout__
