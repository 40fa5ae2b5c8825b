"""`satchel sync` as scripts and people meet it: machines with a home each, and a folder or bucket for all."""

import base64
import io
import json
import logging
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from machines import Machine
from s3_servers import moto  # noqa: F401
from test_terminal import Terminal

from satchel.cli import run
from satchel.config.settings import load_settings
from satchel.remotes.memory import MemoryRemote
from satchel.sync import keys
from satchel.terminal.transfer import TransferBar

HEAVY = ("mlx", "transformers", "boto3", "botocore", "keyring", "cryptography", "mnemonic", "rich")
PASSPHRASE = "four plain words, and more"

FILE_KEYCHAIN = """
import json
from pathlib import Path
from keyring.backend import KeyringBackend

class FileKeychain(KeyringBackend):
    priority = 1
    place = Path(__file__).with_suffix(".json")

    def kept(self):
        return json.loads(self.place.read_text()) if self.place.exists() else {}

    def get_password(self, service, username):
        return self.kept().get(f"{service} {username}")

    def set_password(self, service, username, password):
        self.place.write_text(json.dumps(self.kept() | {f"{service} {username}": password}))
"""


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def all(self):
        return self.out + self.err


class Station:
    """A machine on which commands are run, in this process."""

    def __init__(self, home, monkeypatch):
        self.home = home
        self._monkeypatch = monkeypatch

    def __call__(self, *args, **environment):
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
        with self._monkeypatch.context() as patch, Path(os.devnull).open() as stdin:
            for name, value in {"SATCHEL_HOME": str(self.home), **environment}.items():
                patch.setenv(name, value)
            patch.setattr(sys, "stdin", stdin)
            with redirect_stdout(out), redirect_stderr(err):
                code = run(list(args))
        return Said(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))

    def say(self, name, *words):
        """Save a talk as a chat does."""
        Machine(self.home, MemoryRemote()).say(name, *words)

    def talks(self):
        return Machine(self.home, MemoryRemote()).talks()

    def status(self):
        """The states by the sessions' names."""
        return {
            each["name"]: each["state"]
            for each in json.loads(self("sync", "status", "--json").out)["sessions"]
        }


pytestmark = pytest.mark.usefixtures("cheap_passphrases")


@pytest.fixture
def known_root(monkeypatch):
    """For what is looked for in output: of random words one may stand in a message."""
    root = keys.RootKey(bytes(range(32)))
    monkeypatch.setattr(keys.RootKey, "generate", lambda: root)


@pytest.fixture
def station(tmp_path, monkeypatch):
    return lambda name: Station(tmp_path / name, monkeypatch)


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "nas"
    place.mkdir()
    return place


@pytest.fixture
def pair(station, folder):
    """Two machines that sync through a folder."""
    here, there = station("here"), station("there")
    address = f"file://{folder}"
    assert here("sync", "setup", address, SATCHEL_PASSPHRASE=PASSPHRASE).code == 0
    assert there("sync", "join", address, SATCHEL_PASSPHRASE=PASSPHRASE).code == 0
    return here, there


@pytest.fixture
def environment(tmp_path):
    """Of programs that are started."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SATCHEL_", "NO_COLOR"))}
    return kept | {"SATCHEL_HOME": str(tmp_path / "home"), "TERM": "xterm-256color", "PYTHONUTF8": "1"}


def words_in(shown):
    """The recovery words that were printed."""
    rows = [line for line in shown.splitlines() if re.fullmatch(r"( *\d+ [a-z]+){6} *", line)]
    return re.findall("[a-z]+", " ".join(rows))


def assert_one_line(said, code, start):
    assert (said.code, said.out) == (code, "")
    assert said.err.startswith(f"satchel: {start}")
    assert said.err.count("\n") == 1


def files_in(place):
    return {path.relative_to(place).as_posix(): path for path in place.rglob("*") if path.is_file()}


# What is imported


def modules_loaded(environment, *args):
    code = "import sys; from satchel.cli import run; run(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code, *args], env=environment, capture_output=True, text=True, check=True
    )
    return done.stderr.split()


@pytest.mark.parametrize(
    "args", [["--help"], ["sync", "--help"], ["sync", "setup", "--help"], ["sync", "push", "--help"]]
)
def test_help_imports_nothing_heavy(environment, args):
    loaded = modules_loaded(environment, *args)
    assert ("satchel.cli.sync" in loaded) is (args != ["--help"])
    assert [name for name in HEAVY if name in loaded] == []


def test_removing_a_session_where_sync_is_not_set_up_imports_nothing_of_it(environment, station, tmp_path):
    station("home").say("bruno", "Hello")
    loaded = modules_loaded(environment, "sessions", "rm", "bruno", "--yes")
    assert [name for name in ("boto3", "keyring", "cryptography") if name in loaded] == []
    assert not (tmp_path / "home" / "sync").exists()


# Setting up


def test_setup_shows_numbered_words_once_and_what_the_remote_can_do(station, folder):
    here = station("here")
    said = here("sync", "setup", f"file://{folder}", SATCHEL_PASSPHRASE=PASSPHRASE)
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0] == (
        "The recovery words. They are shown this once, and they open everything: keep them on paper."
    )
    assert [re.findall(r"\d+", line) for line in lines[2:]] == [
        [str(number) for number in range(start, start + 6)] for start in (1, 7, 13, 19)
    ]
    root = keys.RootKey.from_words(" ".join(words_in(said.out)))
    assert "write, read, list, delete: work" in said.err
    key_file = here.home / "sync" / keys.Keys.of(root).id / "key"
    assert f"the key is in {key_file}, for you alone to read" in said.err
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert words_in(said.err) == []


def test_setup_makes_the_last_folder_and_none_above_it(station, folder):
    here = station("here")
    unmounted = here("sync", "setup", f"file://{folder}/nas/satchel", "--no-passphrase")
    assert_one_line(unmounted, 5, f"{folder}/nas/satchel is not there; mount it, or make the folder")
    assert list(folder.iterdir()) == []
    said = here("sync", "setup", f"file://{folder}/satchel", "--no-passphrase")
    assert (said.code, said.err.splitlines()[0]) == (0, f"made the folder {folder}/satchel")
    assert stat.S_IMODE((folder / "satchel").stat().st_mode) == 0o700
    missing = station("there")("sync", "join", f"file://{folder}/other", SATCHEL_PASSPHRASE=PASSPHRASE)
    assert_one_line(missing, 5, f"{folder}/other is not there")


@pytest.mark.parametrize(
    ("args", "environment", "start"),
    [
        ([], {}, "no remote is named; it is s3://BUCKET/PREFIX or file:///PATH/TO/A/FOLDER"),
        (["ftp://x/y"], {}, "'ftp://x/y' is no remote"),
        (["FOLDER"], {}, "a passphrase is missing; set SATCHEL_PASSPHRASE, or give --no-passphrase"),
        (["FOLDER"], {"SATCHEL_PASSPHRASE": ""}, "a passphrase is missing"),
        (["FOLDER"], {"SATCHEL_PASSPHRASE": "short"}, "a passphrase has at least 8 characters"),
        (["FOLDER"], {"SATCHEL_PASSPHRASE": "\udcff" * 9}, "the passphrase is not text in UTF-8"),
        (
            ["s3://bucket", "--no-passphrase"],
            {"SATCHEL_S3_ACCESS_KEY_ID": "A\nB", "SATCHEL_S3_SECRET_ACCESS_KEY": "x"},
            "SATCHEL_S3_ACCESS_KEY_ID holds a space, a line end or a sign that is not ASCII",
        ),
        (["FOLDER", "--region", "x"], {}, "--endpoint and --region are for s3:// only"),
        (["s3://bucket", "--endpoint", "nowhere"], {}, "'nowhere' is no endpoint"),
    ],
)
def test_what_setup_cannot_do_without_is_exit_code_2(station, folder, args, environment, start):
    here = station("here")
    args = [f"file://{folder}" if arg == "FOLDER" else arg for arg in args]
    assert_one_line(here("sync", "setup", *args, **environment), 2, start)
    assert not (here.home / "sync").exists()
    assert list(folder.iterdir()) == []


def test_the_default_bucket_is_r2s(station):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        said = station("here")(
            "sync",
            "setup",
            "--no-passphrase",
            R2_BUCKET="my-bucket",
            R2_ENDPOINT=endpoint,
            R2_ACCESS_KEY="a",
            R2_SECRET_KEY="b",
        )
    assert_one_line(said, 5, f"s3://my-bucket at {endpoint.removeprefix('http://')} cannot be reached")


def test_no_passphrase_leaves_the_words_alone_to_join_with(station, folder):
    here, there = station("here"), station("there")
    address = f"file://{folder}"
    words = words_in(here("sync", "setup", address, "--no-passphrase", SATCHEL_PASSPHRASE=PASSPHRASE).out)
    by_passphrase = there("sync", "join", address, SATCHEL_PASSPHRASE=PASSPHRASE)
    assert_one_line(by_passphrase, 2, "this remote has no passphrase")
    joined = there("sync", "join", address, "--words", SATCHEL_RECOVERY_WORDS=" ".join(words))
    assert (joined.code, joined.out) == (0, "")
    here.say("bruno", "Hello")
    assert here("sync").code == there("sync").code == 0
    assert there.talks() == {"bruno": "Hello"}


def test_words_open_a_remote_that_has_a_passphrase(station, folder):
    address = f"file://{folder}"
    words = words_in(station("here")("sync", "setup", address, SATCHEL_PASSPHRASE=PASSPHRASE).out)
    there = station("there")
    assert there("sync", "join", address, "--words", SATCHEL_RECOVERY_WORDS=" ".join(words)).code == 0


@pytest.mark.parametrize(
    ("args", "environment", "code", "start"),
    [
        ([], {}, 2, "a passphrase is missing; set SATCHEL_PASSPHRASE, or give --words and set SATCHEL_REC"),
        (["--words"], {"SATCHEL_PASSPHRASE": "x"}, 2, "the recovery words are missing; set SATCHEL_REC"),
        ([], {"SATCHEL_PASSPHRASE": "another one"}, 2, "the passphrase is another"),
        (["--words"], {"SATCHEL_RECOVERY_WORDS": "abandon"}, 2, "the recovery words are 24, and these are 1"),
    ],
)
def test_what_opens_no_remote_is_exit_code_2(station, folder, args, environment, code, start):
    address = f"file://{folder}"
    assert station("here")("sync", "setup", address, SATCHEL_PASSPHRASE=PASSPHRASE).code == 0
    there = station("there")
    assert_one_line(there("sync", "join", address, *args, **environment), code, start)
    assert not (there.home / "sync" / "remote.json").exists()


def test_what_was_never_set_up_cannot_be_joined(station, folder):
    said = station("there")("sync", "join", f"file://{folder}", SATCHEL_PASSPHRASE=PASSPHRASE)
    assert_one_line(said, 3, f"file://{folder} was never set up: there is no key in it")


def test_a_file_is_no_remote(station, tmp_path):
    (file := tmp_path / "file").write_text("mine")
    said = station("here")("sync", "setup", f"file://{file}", "--no-passphrase")
    assert_one_line(said, 5, f"{file} is not a folder; name another one")
    assert file.read_text() == "mine"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device is always full here")
def test_words_that_cannot_be_written_out_leave_nothing_configured(environment, folder):
    command = [sys.executable, "-m", "satchel", "sync", "setup", f"file://{folder}", "--no-passphrase"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (
        1,
        "satchel: cannot write to standard output: No space left on device; set it up again to see the"
        " recovery words\n",
    )
    again = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (again.returncode, len(words_in(again.stdout))) == (0, 24)


def test_a_remote_is_set_up_once(station, folder):
    address = f"file://{folder}"
    assert station("here")("sync", "setup", address, SATCHEL_PASSPHRASE=PASSPHRASE).code == 0
    for name in ("here", "there"):
        again = station(name)("sync", "setup", address, SATCHEL_PASSPHRASE=PASSPHRASE)
        assert_one_line(again, 6, "this remote is set up already; join it with `satchel sync join`")


def test_another_remote_replaces_one_only_if_that_is_said(station, folder, tmp_path):
    here, other = station("here"), tmp_path / "other"
    other.mkdir()
    assert here("sync", "setup", f"file://{folder}", "--no-passphrase").code == 0
    again = ("sync", "setup", f"file://{other}", "--no-passphrase")
    assert_one_line(here(*again), 6, f"this machine syncs with file://{folder} already; --replace has it")
    assert list(other.iterdir()) == []
    assert here(*again, "--replace").code == 0
    assert json.loads(here("sync", "status", "--json").out)["url"] == f"file://{other}"


@pytest.mark.parametrize(("flag", "auto"), [("--auto", True), ("--no-auto", False)])
def test_automatic_sync_is_written_to_the_settings(station, folder, monkeypatch, flag, auto):
    here = station("here")
    here.home.mkdir()
    (here.home / "config.toml").write_text("max_tokens = 7 # few\n\n[sync]\nauto = true\n")
    assert here("sync", "setup", f"file://{folder}", "--no-passphrase", flag).code == 0
    monkeypatch.setenv("SATCHEL_HOME", str(here.home))
    settings = load_settings()
    assert (settings.sync.auto, settings.max_tokens) == (auto, 7)
    assert json.loads(here("sync", "status", "--json").out)["auto"] is auto


def test_the_words_are_shown_whatever_fails_after_them(station, folder):
    here = station("here")
    here.home.mkdir()
    (here.home / "config.toml").write_text("= nonsense")
    said = here("sync", "setup", f"file://{folder}", "--no-passphrase", "--auto")
    assert said.code == 2
    assert "config.toml is not valid TOML" in said.err
    assert len(words_in(said.out)) == 24


# Syncing


@pytest.mark.parametrize(
    "args", [[], ["push"], ["pull"], ["push", "x"], ["status"], ["status", "--json"], ["gc"]]
)
def test_without_setup_all_else_is_exit_code_3(station, args):
    said = station("here")("sync", *args)
    assert_one_line(said, 3, "sync is not set up; `satchel sync setup` begins it")


def test_sessions_go_both_ways_and_the_lines_count_them(pair):
    here, there = pair
    here.say("bruno", "Hello")
    here.say("gina", "Hi", "there")
    sent = here("sync")
    assert (sent.code, sent.err) == (0, "")
    assert re.fullmatch(r"sent (bruno, gina|gina, bruno) \(\d\.\d KB\)\n", sent.out)
    there.say("otto", "Good day")
    both = there("sync")
    assert re.fullmatch(
        r"sent otto \(\d\.\d KB\); received (bruno, gina|gina, bruno) \(\d\.\d KB\)\n", both.out
    )
    assert here("sync").out.startswith("received otto (")
    talks = {"bruno": "Hello", "gina": "Hi there", "otto": "Good day"}
    assert here.talks() == there.talks() == talks
    for station, args, line in (
        (here, [], "everything is in sync"),
        (here, ["push"], "nothing to send"),
        (there, ["pull"], "nothing to fetch"),
    ):
        assert station("sync", *args) == Said(0, f"{line}\n", "")


def test_push_and_pull_go_one_way(pair):
    here, there = pair
    here.say("bruno", "Hello")
    there.say("gina", "Hi")
    assert there("sync", "push").code == 0
    assert here("sync", "push").out.startswith("sent bruno (")
    assert here.talks() == {"bruno": "Hello"}
    assert here("sync", "pull").out.startswith("received gina (")
    assert here.talks() == {"bruno": "Hello", "gina": "Hi"}


def test_names_choose_sessions_and_pull_knows_those_in_the_remote_alone(pair):
    here, there = pair
    for name in ("bruno", "gina", "otto"):
        here.say(name, f"I am {name}")
    assert here("sync", "push", "Bruno", "gina").out.startswith(("sent bruno, gina (", "sent gina, bruno ("))
    assert here.status() == {"bruno": "in sync", "gina": "in sync", "otto": "to be sent"}
    assert there("sync", "pull", "GINA").out.startswith("received gina (")
    assert there.talks() == {"gina": "I am gina"}
    unknown = there("sync", "pull", "gina", "otto")
    assert_one_line(unknown, 3, "no session is called 'otto', here or in the remote")


def test_a_name_of_several_sessions_in_the_remote_asks_for_an_id(pair, station, folder):
    here, there = pair
    here.say("bruno", "Hello")
    there.say("bruno", "Hi")
    assert here("sync", "push").code == there("sync", "push", "bruno").code == 0
    third = station("third")
    assert third("sync", "join", f"file://{folder}", SATCHEL_PASSPHRASE=PASSPHRASE).code == 0
    asked = third("sync", "pull", "bruno")
    assert_one_line(asked, 2, "several sessions in the remote are called 'bruno'; give an id: ")
    first = re.findall("[0-9a-f]{32}", asked.err)[0]
    assert third("sync", "pull", first).code == 0
    assert len(third.talks()) == 1


def test_json_holds_the_documented_fields(pair):
    here, there = pair
    here.say("bruno", "Hello")
    sent = json.loads(here("sync", "--json").out)
    assert sent.pop("sent_bytes") > 0
    assert sent == {
        "pushed": ["bruno"],
        "pulled": [],
        "removed": [],
        "forks": [],
        "notices": [],
        "faults": [],
        "received_bytes": 0,
    }
    there("sync")
    here.say("bruno", "and here")
    there.say("bruno", "and there")
    assert json.loads(here("sync", "push", "--json").out)["pushed"] == ["bruno"]
    forked = json.loads(there("sync", "--json").out)
    (fork,) = forked["forks"]
    assert (fork["name"], fork["fork_name"]) == ("bruno", "bruno-2")
    assert fork.keys() == {"session_id", "name", "fork_id", "fork_name"}
    assert len(forked["notices"]) == 1


def test_a_fork_is_told(pair):
    here, there = pair
    here.say("bruno", "Hello")
    here("sync")
    there("sync")
    here.say("bruno", "and here")
    there.say("bruno", "and there")
    here("sync")
    forked = there("sync")
    assert forked.code == 0
    assert "'bruno' has changed on another machine, too: what was said here goes on as" in forked.err
    assert there.talks() == {"bruno": "Hello and here", "bruno-2": "Hello and there"}


def test_a_flag_of_no_command_is_not_passed_over(pair):
    here, _ = pair
    said = here("sync", "--json", "push")
    assert_one_line(said, 2, "--json stands behind the command; satchel sync push --json")


def test_a_session_that_is_removed_does_not_come_back(pair):
    here, there = pair
    here.say("bruno", "Hello")
    here.say("gina", "Hi")
    here("sync")
    there("sync")
    assert here("sessions", "rm", "bruno", "--yes").code == 0
    assert here.status() == {"gina": "in sync", "bruno": "removed here"}
    assert here("sync").out == "removed bruno\n"
    removed = there("sync")
    assert removed.out == "removed bruno\n"
    assert "'bruno' was removed on another machine" in removed.err
    assert here("sync").out == "everything is in sync\n"
    assert here.talks() == there.talks() == {"gina": "Hi"}


def test_a_session_that_is_removed_can_be_named(pair):
    here, _ = pair
    here.say("bruno", "Hello")
    here("sync")
    here("sessions", "rm", "bruno", "--yes")
    assert here("sync", "push", "bruno").out == "removed bruno\n"


# How sessions stand


def test_status_says_how_each_session_stands(pair, folder):
    here, there = pair
    for name in ("bruno", "gina", "otto"):
        here.say(name, "Hello")
    here("sync")
    there("sync", "pull", "bruno", "gina")
    there.say("bruno", "and there")
    here.say("gina", "and here")
    here("sync", "push", "gina")
    there.say("gina", "and there")
    here.say("otto", "and here")
    shown = there("sync", "status")
    assert (shown.code, shown.err) == (0, "")
    head, rows = shown.out.splitlines()[:4], shown.out.splitlines()[4:]
    assert [line.split("  ")[0] for line in head] == ["remote", "key", "automatic", "conditional writes"]
    assert head[0].endswith(f"file://{folder}")
    assert sorted(rows) == [
        "changed here and there  gina",
        "to be fetched           otto",
        "to be sent              bruno",
    ]
    assert here.status() == {"bruno": "in sync", "gina": "in sync", "otto": "to be sent"}


def test_status_json_holds_the_documented_fields(pair, folder):
    here, _ = pair
    here.say("bruno", "Hello")
    here("sync")
    shown = json.loads(here("sync", "status", "--json").out)
    assert re.fullmatch("[0-9a-f]{16}", shown.pop("key_id"))
    (session,) = shown.pop("sessions")
    assert shown == {
        "url": f"file://{folder}",
        "endpoint": None,
        "region": None,
        "exclusive": False,
        "auto": False,
    }
    assert re.fullmatch("[0-9a-f]{32}", session.pop("session_id"))
    assert re.match(r"20\d\d-\d\d-\d\dT", session.pop("updated_at"))
    assert session == {"name": "bruno", "state": "in sync", "number": 1}


# What goes wrong


def test_a_damaged_object_is_named_with_exit_code_4_and_the_rest_syncs(pair, folder):
    here, there = pair
    here.say("bruno", "Hello")
    here("sync")
    before = set(files_in(folder))
    here.say("gina", "Hi")
    here("sync")
    (manifest,) = [name for name in set(files_in(folder)) - before if name.startswith("v1/manifests/")]
    (folder / manifest).write_bytes(b"x" + (folder / manifest).read_bytes()[1:])
    damaged = there("sync")
    assert damaged.code == 4
    assert damaged.out.startswith("received bruno (")
    assert f"object {manifest} is damaged, or of another key" in damaged.err
    assert there.talks() == {"bruno": "Hello"}
    as_json = there("sync", "--json")
    assert (as_json.code, as_json.err) == (4, "")
    (fault,) = json.loads(as_json.out)["faults"]
    assert manifest in fault


def test_an_entry_that_cannot_be_read_is_in_the_status_with_exit_code_4(pair, folder):
    here, there = pair
    here.say("bruno", "Hello")
    here("sync")
    there("sync")
    here.say("bruno", "again")
    here("sync")
    newest = max(name for name in files_in(folder) if name.startswith("v1/heads/"))
    (folder / newest).write_bytes(b"nonsense")
    shown = there("sync", "status")
    assert shown.code == 4
    assert shown.err.startswith("bruno: ")
    assert newest in shown.err
    assert "bruno" not in shown.out


def test_a_folder_that_is_not_mounted_is_exit_code_5(pair, folder):
    here, _ = pair
    here.say("bruno", "Hello")
    folder.rename(folder.with_name("away"))
    for args in ([], ["push"], ["gc"], ["status", "--json"]):
        assert_one_line(here("sync", *args), 5, f"{folder} is not there")
    shown = here("sync", "status")
    assert (shown.code, shown.out.splitlines()[0].split()[1]) == (5, f"file://{folder}")


def test_a_remote_that_lost_a_session_is_told_with_exit_code_4(pair, folder):
    here, there = pair
    here.say("bruno", "Hello")
    here("sync")
    there("sync")
    shutil.rmtree(folder / "v1" / "heads")
    told = there("sync", "pull")
    assert (told.code, told.out) == (4, "")
    assert told.err.startswith("bruno: the remote has lost it")
    assert there("sync", "push").out.startswith("sent bruno (")
    assert here("sync") == Said(0, "everything is in sync\n", "")


def test_an_older_state_is_taken_only_if_that_is_said(pair, station, folder):
    here, there = pair
    here.say("bruno", "Hello")
    third = station("third")
    shutil.copytree(here.home / "v1", third.home / "v1")
    here("sync")
    here.say("bruno", "again")
    here("sync")
    there("sync")
    shutil.rmtree(there.home / "v1")
    shutil.rmtree(folder / "v1" / "heads")
    assert third("sync", "join", f"file://{folder}", SATCHEL_PASSPHRASE=PASSPHRASE).code == 0
    assert third("sync").code == 0
    told = there("sync", "pull")
    assert (told.code, there.talks()) == (4, {})
    assert "bruno: the remote went back to an older state of it (1; this machine has seen 2)" in told.err
    there("sync", "pull", "--accept-older")
    assert there.talks() == {"bruno": "Hello"}


def test_an_unexpected_grace_period_is_exit_code_2(station):
    assert_one_line(station("here")("sync", "gc", "--grace", "soon"), 2, "'soon' is not a time")
    assert_one_line(station("here")("sync", "gc", "--grace", "23h"), 2, "23h is too short")


# Clearing up


def test_gc_deletes_what_no_session_needs_and_says_so(pair, folder):
    here, there = pair
    here.say("bruno", "Hello")
    here.say("gina", "Hi")
    here("sync")
    here("sessions", "rm", "bruno", "--yes")
    here("sync")
    young = here("sync", "gc")
    assert young.code == 0
    assert re.fullmatch(r"deleted nothing; \d\.\d KB more is younger than the grace period\n", young.out)
    for path in files_in(folder).values():
        os.utime(path, (time.time() - 2 * 86400,) * 2)
    before = set(files_in(folder))
    would = here("sync", "gc", "--dry-run")
    assert set(files_in(folder)) == before
    assert would.out.startswith("would delete ")
    done = here("sync", "gc", "--json")
    freed = json.loads(done.out)
    assert (done.code, freed["manifests"], freed["blocks"], freed["faults"]) == (0, 1, 2, [])
    assert would.out.startswith("would delete 2 blocks, 1 manifest")
    gone = before - set(files_in(folder))
    assert sorted(name.split("/")[1] for name in gone) == ["blocks", "blocks", "manifests"]
    assert there("sync").code == 0
    assert there.talks() == {"gina": "Hi"}


# A bucket


@pytest.fixture
def bucket(moto, request):
    """A bucket's address and what finds and opens it in the environment."""
    name = moto.make_bucket(f"b{abs(hash(request.node.name)) % 10**12}")
    opened = {
        "SATCHEL_S3_ENDPOINT": moto.endpoint,
        "SATCHEL_S3_ACCESS_KEY_ID": moto.credentials.access_key,
        "SATCHEL_S3_SECRET_ACCESS_KEY": moto.credentials.secret_key,
    }
    return SimpleNamespace(name=name, address=f"s3://{name}/my/satchel", opened=opened, server=moto)


def test_a_bucket_is_opened_with_the_environments_credentials(station, bucket):
    here, there = station("here"), station("there")
    secret = {"SATCHEL_PASSPHRASE": PASSPHRASE}
    said = here("sync", "setup", bucket.address, **bucket.opened, **secret)
    assert said.code == 0
    assert "conditional writes: honoured" in said.err
    assert "credentials" not in said.err
    assert there("sync", "join", bucket.address, **bucket.opened, **secret).code == 0
    here.say("bruno", "Hello")
    assert here("sync", **bucket.opened).out.startswith("sent bruno (")
    assert there("sync", **bucket.opened).out.startswith("received bruno (")
    assert there.talks() == {"bruno": "Hello"}
    shown = here("sync", "status", **bucket.opened)
    assert f"{bucket.address} at {bucket.server.endpoint}" in shown.out
    assert here("sync", "gc", **bucket.opened).out == "deleted nothing\n"


def test_the_default_bucket_is_named_where_it_was_never_set_up(station, bucket):
    keys_of_moto = bucket.server.credentials
    of_r2 = {
        "R2_BUCKET": bucket.name,
        "R2_ENDPOINT": bucket.server.endpoint,
        "R2_ACCESS_KEY": keys_of_moto.access_key,
        "R2_SECRET_KEY": keys_of_moto.secret_key,
    }
    said = station("here")("sync", "join", SATCHEL_PASSPHRASE=PASSPHRASE, **of_r2)
    assert_one_line(said, 3, f"s3://{bucket.name}/satchel at {bucket.server.endpoint} was never set up")


def test_wrong_credentials_are_exit_code_5(station, bucket):
    wrong = bucket.opened | {"SATCHEL_S3_SECRET_ACCESS_KEY": "wrong-secret-canary"}
    said = station("here")("sync", "setup", bucket.address, "--no-passphrase", **wrong)
    assert (said.code, said.out) == (5, "")
    assert bucket.name in said.err
    assert "canary" not in said.err


# At a terminal


@pytest.fixture
def terminal(environment):
    return lambda *args, **more: Terminal([sys.executable, "-m", "satchel", *args], environment | more, 120)


@pytest.fixture
def file_keychain(tmp_path):
    """A keychain that programs share, as variables, and what it keeps."""
    folder = tmp_path / "keychain"
    folder.mkdir()
    (folder / "file_keychain.py").write_text(FILE_KEYCHAIN)
    chosen = {"PYTHON_KEYRING_BACKEND": "file_keychain.FileKeychain", "PYTHONPATH": str(folder)}
    return SimpleNamespace(chosen=chosen, kept=folder / "file_keychain.json")


def answer(terminal, question, text, hidden=True):
    terminal.wait_for(question)
    if hidden:
        assert terminal.child.waitnoecho(60)  # what is typed before that is seen, and lost
    terminal.child.sendline(text)


def test_setup_asks_a_person_for_what_is_missing_and_echoes_no_secret(
    terminal, station, bucket, file_keychain, tmp_path
):
    keys_of_moto = bucket.server.credentials
    asked = terminal("sync", "setup", **file_keychain.chosen)
    answer(asked, "Remote, as s3://BUCKET/PREFIX or file:///FOLDER:", "my bucket", hidden=False)
    asked.wait_for("'my bucket' is no remote")
    asked.child.sendline(bucket.address)
    answer(asked, "Endpoint (empty: AWS):", bucket.server.endpoint, hidden=False)
    answer(asked, "Access key (not shown; empty: as for the aws command):", keys_of_moto.access_key)
    answer(asked, "Secret key (not shown):", keys_of_moto.secret_key)
    answer(asked, "Keep them in the system keychain? [Y/n]:", "", hidden=False)
    answer(asked, "Passphrase (not shown; empty: recovery words only):", PASSPHRASE)
    answer(asked, "Once more:", PASSPHRASE)
    assert asked.exit_code() == 0
    seen = "\n".join(asked.lines())
    assert "conditional writes: honoured" in seen
    assert "no system keychain" not in seen
    assert len(words_in(seen)) == 24
    for secret in (keys_of_moto.access_key, keys_of_moto.secret_key, PASSPHRASE):
        assert secret.encode() not in asked.raw
    kept = json.loads(file_keychain.kept.read_text())
    assert keys_of_moto.secret_key in kept[f"satchel {bucket.address}"]
    assert not list((tmp_path / "home" / "sync").rglob("key"))

    station("home").say("bruno", "Hello")
    sent = terminal("sync", **file_keychain.chosen)
    assert sent.exit_code() == 0
    assert "sent bruno (" in "\n".join(sent.lines())


@pytest.mark.usefixtures("known_root")
def test_join_asks_a_person_for_the_passphrase_or_the_words(terminal, station, folder):
    address = f"file://{folder}"
    words = words_in(station("other")("sync", "setup", address, SATCHEL_PASSPHRASE=PASSPHRASE).out)
    asked = terminal("sync", "join", address)
    answer(asked, "Passphrase (not shown):", PASSPHRASE)
    assert asked.exit_code() == 0
    asked = terminal("sync", "join", address, "--words")
    answer(asked, "Recovery words (not shown):", " ".join(words))
    assert asked.exit_code() == 0
    assert words[3].encode() not in asked.raw
    assert "joined: " in "\n".join(asked.lines())


def test_passphrases_that_differ_or_are_short_are_asked_for_again(terminal, folder):
    asked = terminal("sync", "setup", f"file://{folder}")
    answer(asked, "recovery words only):", "short")
    asked.wait_for("a passphrase has at least 8 characters")
    answer(asked, "five random words make a good one\nPassphrase", PASSPHRASE)
    answer(asked, "Once more:", PASSPHRASE + "!")
    answer(asked, "the two are not the same\nPassphrase", "")
    assert asked.exit_code() == 0
    seen = "\n".join(asked.lines())
    assert seen.count("Once more:") == 1  # not of none
    assert len(words_in(seen)) == 24
    assert json.loads((folder / "v1" / "key").read_text())["passphrase"] is None


@pytest.mark.usefixtures("known_root")
def test_words_may_be_pasted_as_they_were_shown(terminal, station, folder):
    address = f"file://{folder}"
    shown = station("other")("sync", "setup", address, SATCHEL_PASSPHRASE=PASSPHRASE).out.splitlines()
    rows = [line for line in shown if words_in(line)]
    assert len(rows) == 4
    asked = terminal("sync", "join", address, "--words")
    answer(
        asked, "Recovery words (not shown):", "\n".join(["", *rows[:2], "", *rows[2:]]) + "\necho a-canary"
    )
    assert asked.exit_code() == 0
    seen = "\n".join(asked.lines())
    assert "12 of 24 words, go on:" in seen
    assert "joined: " in seen
    for secret in (*words_in("\n".join(rows)), "canary"):
        assert not re.search(rf"\b{secret}\b", seen)


def test_a_question_for_words_can_be_left(terminal, station, folder):
    address = f"file://{folder}"
    assert station("other")("sync", "setup", address, SATCHEL_PASSPHRASE=PASSPHRASE).code == 0
    for leave in ("sendintr", "sendeof"):
        asked = terminal("sync", "join", address, "--words")
        answer(asked, "Recovery words (not shown):", "abandon ability")
        asked.wait_for("2 of 24 words, go on:")
        getattr(asked.child, leave)()
        assert asked.exit_code() == 130


def test_join_again_replaces_kept_credentials_that_are_refused(terminal, station, bucket, file_keychain):
    right = bucket.server.credentials
    assert (
        station("other")("sync", "setup", bucket.address, **bucket.opened, SATCHEL_PASSPHRASE=PASSPHRASE).code
        == 0
    )
    stale = {"access_key": "AKSTALE", "secret_key": "of-before", "session_token": None}
    file_keychain.kept.write_text(json.dumps({f"satchel {bucket.address}": json.dumps(stale)}))
    command = ("sync", "join", bucket.address, "--endpoint", bucket.server.endpoint)
    asked = terminal(*command, **file_keychain.chosen)
    asked.wait_for("does not know the access key")
    answer(asked, "Access key (not shown; empty: as for the aws command):", right.access_key)
    answer(asked, "Secret key (not shown):", "wrong, with spaces")
    asked.wait_for("the secret key holds a space, a line end or a sign that is not ASCII")
    answer(asked, "look how it was copied\nSecret key (not shown):", "wrong")
    asked.wait_for("the secret key is not the access key's")
    asked.wait(lambda: "\n".join(asked.lines()).count("Access key") == 2)
    answer(asked, "Access key", right.access_key)
    asked.wait(lambda: "\n".join(asked.lines()).count("Secret key") == 3)
    answer(asked, "Secret key", right.secret_key)
    answer(asked, "Keep them in the system keychain? [Y/n]:", "", hidden=False)
    answer(asked, "Passphrase (not shown):", PASSPHRASE)
    assert asked.exit_code() == 0
    kept = json.loads(json.loads(file_keychain.kept.read_text())[f"satchel {bucket.address}"])
    assert (kept["access_key"], kept["secret_key"]) == (right.access_key, right.secret_key)


def test_credentials_of_the_environment_that_are_refused_are_not_asked_for(terminal, bucket):
    wrong = bucket.opened | {"SATCHEL_S3_ACCESS_KEY_ID": "AKWRONG"}
    asked = terminal("sync", "setup", bucket.address, "--no-passphrase", **wrong)
    assert asked.exit_code() == 5
    assert "does not know the access key" in " ".join(" ".join(asked.lines()).split())


def test_a_remote_that_is_set_up_is_refused_before_a_passphrase_is_asked_for(terminal, station, folder):
    address = f"file://{folder}"
    assert station("other")("sync", "setup", address, SATCHEL_PASSPHRASE=PASSPHRASE).code == 0
    asked = terminal("sync", "setup", address)
    assert asked.exit_code() == 6
    seen = " ".join(" ".join(asked.lines()).split())
    assert seen == "satchel: this remote is set up already; join it with `satchel sync join`"


def test_ctrl_c_at_a_question_ends_setup(terminal, folder, tmp_path):
    asked = terminal("sync", "setup", f"file://{folder}")
    asked.wait_for("recovery words only):")
    asked.child.sendintr()
    assert asked.exit_code() == 130
    assert list(folder.iterdir()) == []


def test_without_a_keychain_a_person_is_told_where_credentials_belong(terminal, bucket):
    keys_of_moto = bucket.server.credentials
    asked = terminal("sync", "setup", bucket.address, "--endpoint", bucket.server.endpoint, "--no-passphrase")
    answer(asked, "Access key", keys_of_moto.access_key)
    answer(asked, "Secret key", keys_of_moto.secret_key)
    answer(asked, "Keep them in the system keychain?", "y", hidden=False)
    assert asked.exit_code() == 0
    seen = " ".join(" ".join(asked.lines()).split())
    assert "no system keychain works here: the credentials are not kept" in seen
    assert (
        "set SATCHEL_S3_ACCESS_KEY_ID and SATCHEL_S3_SECRET_ACCESS_KEY, or put them into ~/.aws/credentials"
    ) in seen
    assert keys_of_moto.secret_key.encode() not in asked.raw


# Secrets


def test_secrets_are_in_no_output_log_or_object(station, bucket, folder, caplog):
    """Canaries in whatever is secret, and in what was said, are looked for wherever they could have got."""
    caplog.set_level(logging.DEBUG)
    passphrase, name, prompt = "passphrase-canary-1", "name-canary-2", "prompt-canary-3"
    secret_key = bucket.opened["SATCHEL_S3_SECRET_ACCESS_KEY"]
    secret = {"SATCHEL_PASSPHRASE": passphrase, **bucket.opened}
    said = []
    for place, address in (("bucket", bucket.address), ("folder", f"file://{folder}")):
        here, there, third = (station(f"{place}-{number}") for number in range(3))
        here.say(name, prompt)
        said += [here("sync", "setup", address, **secret)]
        words = words_in(said[-1].out)
        said += [there("sync", "join", address, **secret)]
        here("sync", **bucket.opened), there("sync", **bucket.opened)
        here.say(name, f"{prompt} here")
        there.say(name, f"{prompt} there")
        for machine in (here, there, here):
            said += [machine("sync", "--json", **bucket.opened), machine("sync", "gc", **bucket.opened)]
        wrong = secret | {
            "SATCHEL_PASSPHRASE": f"{passphrase} wrong",
            "SATCHEL_RECOVERY_WORDS": " ".join(words[1:]),
        }
        nowhere = secret | {"SATCHEL_S3_ENDPOINT": "http://127.0.0.1:9"}
        said += [
            third("sync", "join", address, **wrong),
            third("sync", "join", address, "--words", **wrong),
            third("sync", "setup", address, **secret),
            third("sync", "setup", f"{address}-other/none", **nowhere),
        ]
        root = keys.RootKey.from_words(" ".join(words)).secret
        for path in files_in(here.home / "sync").values():
            assert passphrase.encode() not in path.read_bytes()
            assert secret_key.encode() not in path.read_bytes()
        shown = "\n".join(each.all for each in said) + caplog.text
        roots = (root.hex(), base64.b64encode(root).decode(), " ".join(words))
        for hidden in (passphrase, secret_key, prompt, *roots):
            assert hidden not in shown
    assert {each.code for each in said} == {0, 2, 5, 6}
    assert [len(words_in(each.all)) for each in said].count(24) == 2

    objects = {name: path.read_bytes() for name, path in files_in(folder).items()}
    client = bucket.server.client()
    for key in bucket.server.keys(bucket.name):
        objects[key] = client.get_object(Bucket=bucket.name, Key=key)["Body"].read()
    assert {key.split("/")[-2] for key in objects} >= {"blocks", "manifests"}
    # What is compressed would hide the canaries.
    plain = [key for key, data in objects.items() if not data.startswith(b"SATCENC\x01")]
    assert sorted(plain) == ["my/satchel/v1/key", "v1/key"]
    for text in (passphrase, name, prompt, secret_key):
        for form in (text.encode(), text.encode().hex().encode(), base64.b64encode(text.encode())[:-4]):
            assert [key for key, data in objects.items() if form in data or form in key.encode()] == []


# The bar


def draw(environment, steps):
    """A terminal on which transfers are shown, then a line."""
    code = (
        "import sys, time\n"
        "from types import SimpleNamespace\n"
        "from satchel.terminal.transfer import TransferBar\n"
        "with TransferBar() as show:\n"
        "    def at(done, total, name='bruno', verb='sending'):\n"
        "        show(SimpleNamespace(verb=verb, name=name, done_bytes=done, total_bytes=total))\n"
        f"    {steps}\n"
        "print('over')\n"
    )
    return Terminal([sys.executable, "-c", code], environment)


def test_a_long_transfer_has_a_bar_that_goes_when_it_is_over(environment):
    steps = "at(0, 2 * 10**7); time.sleep(1); at(10**7, 2 * 10**7, 'br[b]uno\\x1b[31m'); time.sleep(1.5)"
    shown = draw(environment, steps)
    shown.wait_for("sending br[b]uno ")
    shown.wait_for("10.0/20.0 MB")
    assert shown.exit_code() == 0
    assert [line for line in shown.lines() if line] == ["over"]


def test_a_bar_goes_on_with_the_next_session(environment):
    steps = "at(5_000_000, 9_000_000); time.sleep(1); at(1_000, 4_000, 'gina', 'fetching'); time.sleep(1)"
    shown = draw(environment, steps)
    shown.wait_for("sending bruno ")
    shown.wait_for("fetching gina ")
    shown.wait_for("1.0/4.0 KB")
    assert shown.exit_code() == 0


def test_a_short_transfer_has_no_bar(environment):
    shown = draw(environment, "at(0, 900); at(900, 900)")
    assert shown.exit_code() == 0
    assert b"bruno" not in shown.raw
    assert b"\x1b" not in shown.raw


def test_off_a_terminal_nothing_is_shown(environment):
    code = (
        "from types import SimpleNamespace\n"
        "from satchel.terminal.transfer import TransferBar\n"
        "with TransferBar() as show:\n"
        "    show(SimpleNamespace(verb='sending', name='x', done_bytes=1, total_bytes=10**9))\n"
    )
    drawn = subprocess.run(
        [sys.executable, "-c", code], env=environment | {"FORCE_COLOR": "1"}, capture_output=True, check=True
    )
    assert drawn.stdout + drawn.stderr == b""


def test_a_small_transfer_gets_its_bar_when_it_takes_long(monkeypatch):
    """Half a second after it began, by a clock that the test turns."""
    drawn, now = TtyText(), [0.0]
    monkeypatch.setenv("TERM", "xterm")
    with TransferBar(drawn, clock=lambda: now[0]) as show:
        for now[0], done in ((0.0, 0), (0.5, 100), (0.6, 1000)):
            show(SimpleNamespace(verb="fetching", name="gina", done_bytes=done, total_bytes=1000))
        assert drawn.getvalue() == ""
        now[0] = 0.7
        show(SimpleNamespace(verb="fetching", name="gina", done_bytes=200, total_bytes=1000))
        assert "fetching gina" in drawn.getvalue()


class TtyText(io.StringIO):
    def isatty(self):
        return True
