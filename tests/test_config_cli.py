"""`satchel config` as it is typed: what it prints, what it changes, and the way out of wrong files."""

import json
import os
import sys
import tomllib
from pathlib import Path

import pexpect
import pytest

from satchel.config.settings import Settings, known_keys, load_settings, variable
from satchel.config.table import table

DOCS = Path(__file__).parent.parent / "docs" / "configuration.md"


@pytest.fixture(autouse=True)
def file(satchel_home, monkeypatch):
    """The settings file, which is not there yet; no setting and no editor in the environment."""
    for key in known_keys():
        monkeypatch.delenv(variable(key), raising=False)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.delenv("EDITOR", raising=False)
    return satchel_home / "config.toml"


@pytest.fixture
def editor(tmp_path, monkeypatch):
    """Makes an editor that runs some lines of Python with the file's path as `path`; names it in EDITOR."""

    def make(*lines: str) -> None:
        script = tmp_path / "an editor.py"
        script.write_text("\n".join(("import sys, pathlib", "path = pathlib.Path(sys.argv[1])", *lines)))
        monkeypatch.setenv("EDITOR", f"{sys.executable} '{script}'")

    return make


def written(file: Path, text: str) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return file


# Showing


def test_what_is_shown_is_right_as_a_settings_file(satchel, file, monkeypatch):
    written(file, "seed = 7\nsystem_prompt = '''Two\nlines # no comment'''\n[models]\nqwen3.5-9b = 'a/b'\n")
    monkeypatch.setenv("SATCHEL_MAX_TOKENS", "20")
    shown = satchel("config", "show")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert Settings.model_validate(tomllib.loads(shown.stdout)) == load_settings()
    lines = shown.stdout.splitlines()
    assert "seed = 7                           # file: makes answers repeatable; unset: each is new" in lines
    assert "max_tokens = 20                    # environment: longest answer, in tokens" in lines
    assert "sync.auto = false                  # default: sync in the background after each turn" in lines
    assert 'models."qwen3.5-9b" = "a/b"        # file: a name of yours for a model' in lines
    assert len(lines) == len(known_keys()) + 1


def test_the_place_of_each_is_shown_when_asked_for(satchel, file, monkeypatch):
    written(file, "seed = 7\n")
    monkeypatch.setenv("SATCHEL_MAX_TOKENS", "20")
    shown = satchel("config", "show", "--origin").stdout
    assert f"# {file}: makes answers repeatable" in shown
    assert "# SATCHEL_MAX_TOKENS: longest answer" in shown
    assert "# default: what answers" in shown


def test_all_settings_as_json(satchel, file, monkeypatch):
    monkeypatch.setenv("SATCHEL_SYNC_AUTO", "true")
    found = json.loads(satchel("config", "show", "--json").stdout)
    assert found["file"] == str(file)
    assert [each["key"] for each in found["settings"]] == known_keys()
    assert next(each for each in found["settings"] if each["key"] == "sync.auto") == {
        "key": "sync.auto",
        "value": True,
        "origin": "environment",
        "default": False,
        "meaning": "sync in the background after each turn",
        "allowed": "true or false",
        "variable": "SATCHEL_SYNC_AUTO",
    }


@pytest.mark.parametrize(
    ("key", "printed"),
    [
        ("max_tokens", "1024\n"),
        ("auto_save", "true\n"),
        ("temperature", "\n"),
        ("search.timeout_s", "10.0\n"),
        ("terminal", 'terminal.editing = "emacs"\nterminal.markdown = true\n'),
        ("models", ""),
    ],
)
def test_one_setting_is_printed_alone(satchel, key, printed):
    got = satchel("config", "get", key)
    assert (got.returncode, got.stderr) == (0, "")
    assert got.stdout.startswith(printed)
    assert got.stdout == printed or key == "terminal"


@pytest.mark.parametrize(
    ("key", "code", "said"),
    [
        ("max_token", 2, "satchel: there is no setting 'max_token'; did you mean max_tokens?\n"),
        (
            "models.x",
            3,
            "satchel: the settings have no models.x; `satchel config set models.x VALUE` adds it\n",
        ),
    ],
)
def test_what_is_not_there_cannot_be_got(satchel, key, code, said):
    got = satchel("config", "get", key)
    assert (got.returncode, got.stdout, got.stderr) == (code, "", said)


def test_no_password_is_shown(satchel, monkeypatch):
    monkeypatch.setenv("SATCHEL_SEARCH_URL", "https://me:s3cr3t@search.example/")
    for args in (["show"], ["show", "--json"], ["get", "search.url"], ["get", "search", "--json"]):
        shown = satchel("config", *args).stdout
        assert "https://me:***@search.example/" in shown
        assert "s3cr3t" not in shown


def test_nothing_in_a_setting_drives_the_terminal(satchel, monkeypatch):
    monkeypatch.setenv("SATCHEL_SYSTEM_PROMPT", "a\x1b]0;t\x07b\u202ec\x9b2Jd")
    for args in (["show"], ["get", "system_prompt"]):
        shown = satchel("config", *args).stdout
        assert not set(shown) & set("\x1b\x07\x9b\u202e")


def test_the_path_is_printed(satchel, file):
    there_not = satchel("config", "path")
    assert there_not.stdout == f"{file}\n"
    assert there_not.stderr.startswith("there is no such file yet")
    written(file, "")
    assert (satchel("config", "path").stdout, satchel("config", "path").stderr) == (f"{file}\n", "")
    assert json.loads(satchel("config", "path", "--json").stdout) == {"path": str(file), "exists": True}


# Changing


def test_setting_and_unsetting(satchel, file):
    done = satchel("config", "set", "sync.auto", "on")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"sync.auto = true in {file}\n")
    assert file.read_text() == "[sync]\nauto = true\n"
    assert satchel("config", "unset", "sync.auto").stderr == f"sync.auto is no longer set in {file}\n"
    assert satchel("config", "unset", "sync.auto").stderr == f"sync.auto was not set in {file}\n"
    assert json.loads(satchel("config", "unset", "seed", "--json").stdout) == {
        "key": "seed",
        "changed": False,
    }


def test_a_negative_number_is_a_value_and_no_option(satchel, file):
    done = satchel("config", "set", "seed", "-1")
    assert (done.returncode, done.stderr) == (2, "satchel: seed is '-1'; at least 0\n")
    assert not file.exists()


def test_a_variable_that_goes_before_the_file_is_told(satchel, file, monkeypatch):
    monkeypatch.setenv("SATCHEL_SEED", "5")
    done = satchel("config", "set", "seed", "6")
    said = f"seed is set in {file}, but SATCHEL_SEED in the environment goes before it\n"
    assert (done.returncode, done.stderr, file.read_text()) == (0, said, "seed = 6\n")
    assert json.loads(satchel("config", "set", "seed", "7", "--json").stdout)["value"] == 5


@pytest.mark.parametrize("command", [["show"], ["get", "seed"], ["set", "seed", "1"]])
def test_a_broken_file_is_one_line_that_says_how_to_mend_it(satchel, file, command):
    written(file, "seed = \n")
    done = satchel("config", *command)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"satchel: {file} is not valid TOML: ")
    assert done.stderr.endswith("; `satchel config edit` opens it\n")
    assert file.read_text() == "seed = \n"


# Editing


def test_a_new_file_begins_with_every_setting_as_a_comment(satchel, file, editor, tmp_path):
    editor(
        f"pathlib.Path({str(tmp_path / 'seen')!r}).write_text(path.read_text())",
        "path.write_text('seed = 1\\n')",
    )
    done = satchel("config", "edit")
    assert (done.returncode, done.stderr) == (0, f"changed {file}\n")
    assert file.read_text() == "seed = 1\n"
    assert file.stat().st_mode & 0o777 == 0o600
    template = (tmp_path / "seen").read_text()
    assert "# max_tokens = 1024  # longest answer, in tokens\n" in template
    assert '# terminal.editing = "emacs"  # the keys of the chat\'s prompt\n' in template
    taken = [
        line.removeprefix("# ") for line in template.splitlines() if " = " in line and " =   " not in line
    ]
    settings = tomllib.loads("\n".join(line for line in taken if not line.startswith('"my-model"')))
    assert Settings.model_validate(settings) == Settings()


def test_leaving_the_editor_without_a_change_changes_nothing(satchel, file, editor):
    editor("pass")
    done = satchel("config", "edit")
    assert (done.returncode, done.stderr, file.exists()) == (0, "nothing has changed\n", False)


def test_a_broken_file_can_be_mended(satchel, file, editor):
    written(file, "seed = \n")
    editor("path.write_text(path.read_text().replace('= ', '= 5'))")
    assert satchel("config", "edit").returncode == 0
    assert file.read_text() == "seed = 5\n"


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("path.write_text('sed = 1')", 2, "{file}: there is no setting 'sed'; did you mean seed?"),
        ("path.write_text('sync.secret = 1')", 2, "{file}: 'sync.secret' looks like a secret, "),
        ("path.write_bytes(b'\\xff')", 2, "what was written is not UTF-8: "),
        ("path.unlink()", 1, "the editor left no file; the settings are as they were"),
        ("sys.exit(3)", 1, "the editor ended with 3; the settings are as they were"),
    ],
)
def test_what_is_wrong_never_takes_the_place_of_the_file(satchel, file, editor, line, code, said):
    written(file, "seed = 1\n")
    editor(line)
    done = satchel("config", "edit")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)
    assert done.stderr.startswith(f"satchel: {said.format(file=file)}")
    assert file.read_text() == "seed = 1\n"


def test_a_change_made_meanwhile_is_kept_and_so_is_what_was_written(satchel, file, editor):
    written(file, "seed = 1\n")
    editor(f"pathlib.Path({str(file)!r}).write_text('seed = 2\\n')", "path.write_text('seed = 3\\n')")
    done = satchel("config", "edit")
    kept = file.with_name("config.toml.edited")
    said = f"satchel: {file} was changed meanwhile; what you wrote is in {kept}\n"
    assert (done.returncode, done.stderr) == (1, said)
    assert (file.read_text(), kept.read_text()) == ("seed = 2\n", "seed = 3\n")


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        (
            "no-such-editor --wait",
            3,
            "the editor 'no-such-editor' is not there; set VISUAL or EDITOR to one that is",
        ),
        ("vi 'x", 2, 'the editor "vi \'x" is no command: No closing quotation; set VISUAL or EDITOR'),
    ],
)
def test_an_editor_that_is_none_is_named(satchel, monkeypatch, name, code, said):
    monkeypatch.setenv("VISUAL", name)
    done = satchel("config", "edit")
    assert (done.returncode, done.stderr) == (code, f"satchel: {said}\n")


def test_without_a_terminal_no_editor_opens_that_was_not_named(satchel, file):
    done = satchel("config", "edit")
    said = "satchel: an editor needs a terminal; `satchel config set KEY VALUE` changes a setting without\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


def test_a_read_only_file_is_refused_before_the_editor_opens(satchel, file, editor, tmp_path):
    written(file, "seed = 1\n").chmod(0o444)
    editor(f"pathlib.Path({str(tmp_path / 'opened')!r}).write_text('')")
    done = satchel("config", "edit")
    assert (done.returncode, "is read-only" in done.stderr) == (1, True)
    assert not (tmp_path / "opened").exists()


@pytest.mark.parametrize(("answer", "code", "left"), [("y", 0, "seed = 5\n"), ("n", 6, "seed = 1\n")])
def test_at_a_terminal_one_may_edit_again_or_put_back(file, editor, answer, code, left):
    """Wrong at first, right when opened again."""
    written(file, "seed = 1\n")
    editor("path.write_text('seed = 5\\n' if 'sed' in path.read_text() else 'sed = 5\\n')")
    child = pexpect.spawn(
        sys.executable,
        ["-m", "satchel", "config", "edit"],
        env=dict(os.environ),
        encoding="utf-8",
        timeout=30,
    )
    child.expect_exact("did you mean seed?")
    child.expect_exact("Edit it again?")
    child.sendline(answer)
    child.expect(pexpect.EOF)
    child.close()
    assert (child.exitstatus, file.read_text()) == (code, left)


# The documentation


def test_the_table_of_the_documentation_is_true():
    assert table() in DOCS.read_text(encoding="utf-8")


def test_the_file_in_the_documentation_is_right(file):
    example = DOCS.read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0]
    written(file, example)
    assert load_settings().models["fast"] == "mlx-community/Qwen3-0.6B-4bit"
