"""Records a talk in which every slash command is used: the chat in tmux, with the embedded model, and what a
person at the keyboard would type and answer.

Writes what the terminal showed to docs/session.md. The project, the home directory, the pages that a search
finds and the bucket that sync uses are made for the recording. Knows nothing of how the chat works: it sees
the screen and presses keys. Needs tmux and git.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from buckets import BUCKET, CREDENTIALS, served_bucket

from satchel.config.paths import cache_dir

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from web_servers import SearXNGServer, article

OUT = Path(__file__).parents[1] / "docs" / "session.md"
COLUMNS, ROWS, HISTORY = 100, 30, 100_000
POLL_S, START_S, TURN_S = 0.1, 30.0, 300.0
SHELL_PROMPT, CHAT_PROMPT = "$", ">"
QUESTION = re.compile(r"\(default [A-Z]\):$")

HEADING = """\
# A session, as the terminal showed it

Made by `bench/record_session.py`, which starts the chat with the embedded model (SmolLM2-135M: small, and
often wrong) in tmux, types the lines below, and answers what is asked. Each slash command is used at least
once. Nothing is left out or mended; times and speeds are those of a shared machine with two cores and no GPU.

Made for the recording are the project, the home directory, the web pages and their search server, and the
bucket that `/sync` and `/share` use; the last three are on this machine's loopback. The change that `/apply`
makes was not written by the embedded model, which cannot: it comes with the transcript `review.json`, in
which somebody else has proposed it, and which is imported first. Paths of the machine are written as `~/…`.

"""

CONVERT = '''\
"""Temperatures from one scale to another."""


def fahrenheit(celsius: float) -> float:
    return celsius * 9 / 5 + 23
'''
CHECK = """\
from convert import fahrenheit

found = fahrenheit(100)
if found != 212:
    raise SystemExit(f"water boils at 212 degrees, not at {found:g}")
print("all is well")
"""
REVIEW = [
    {"role": "user", "content": "check.py fails. What is wrong with convert.py?"},
    {
        "role": "assistant",
        "content": "Water freezes at 32 degrees Fahrenheit, and the digits are swapped:\n\n"
        "convert.py\n```python\n<<<<<<< SEARCH\n    return celsius * 9 / 5 + 23\n=======\n"
        "    return celsius * 9 / 5 + 32\n>>>>>>> REPLACE\n```",
    },
]
PAGES = (
    (
        "Oslo: the weather today",
        "Oslo today: light snow in the morning, then clouds. It is 2 degrees below zero at noon.",
        "The wind comes from the north with 4 metres a second, and the night will be clear and colder.",
    ),
    (
        "Winter in Oslo",
        "In Oslo, January is the coldest month, with a mean temperature of 4 degrees below zero.",
        "Snow lies in the forests around the city from December to April, and ski tracks are lit at night.",
    ),
)


# -- a terminal -------------------------------------------------------------------------------------------


class NotSeen(Exception):
    """What was waited for did not come in time."""


@dataclass(frozen=True, slots=True)
class Screen:
    """What is to be seen. Rows count from the first that the terminal ever had.

    Attributes:
        rows: the visible ones, without trailing blanks.
        top: the number of the first of them.
        x, y: of the cursor, in columns and in rows.
    """

    rows: tuple[str, ...]
    top: int
    x: int
    y: int

    def below(self, row: int) -> str:
        """What stands below `row`, as far as it is visible."""
        return "\n".join(self.rows[max(0, row + 1 - self.top) :])

    @property
    def cursor_row(self) -> str:
        return self.rows[self.y - self.top]

    def is_at(self, prompt: str) -> bool:
        """Whether `prompt` waits for its first key."""
        return (self.cursor_row, self.x) == (prompt, len(prompt) + 1)

    def asks(self) -> bool:
        return QUESTION.search(self.cursor_row) is not None and self.x == len(self.cursor_row) + 1

    def typed(self) -> str:
        """All up to the cursor, without white space: lines wrap anywhere."""
        before = "".join(self.rows[: self.y - self.top]) + self.cursor_row[: self.x]
        return "".join(before.split())


class Tmux:
    """A shell in a tmux of its own, within a `with` block."""

    def __init__(self, command: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="tmux")
        self._socket = str(Path(self._scratch.name) / "socket")
        configuration = Path(self._scratch.name) / "tmux.conf"
        configuration.write_text(
            f"set -g history-limit {HISTORY}\nset -g status off\nset -g default-terminal screen-256color\n"
            "set -g escape-time 0\n"
        )
        subprocess.run(
            [
                *("tmux", "-u", "-S", self._socket, "-f", str(configuration)),
                *("new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), "-c", str(folder)),
                *command,  # as it is: a shell in between would forget the prompt
            ],
            env=environment,
            check=True,
        )

    def __enter__(self) -> Tmux:
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["tmux", "-S", self._socket, "kill-server"], check=False)
        self._scratch.cleanup()

    def screen(self) -> Screen:
        where = "#{history_size} #{cursor_x} #{cursor_y}"
        shown = self._tmux("display-message", "-p", where, ";", "capture-pane", "-p")
        first, *rows = shown.split("\n")
        top, x, y = map(int, first.split())
        rows = [row.rstrip() for row in rows[:ROWS]]
        return Screen((*rows, *[""] * (ROWS - len(rows))), top, x, top + y)

    def wait(self, seen: Callable[[Screen], bool], what: str, timeout_s: float = TURN_S) -> Screen:
        """The screen as soon as `seen` is true of it.

        Raises:
            NotSeen: it does not become so in time.
        """
        deadline = time.monotonic() + timeout_s
        while not seen(screen := self.screen()):
            if time.monotonic() > deadline:
                raise NotSeen(f"{what} was not seen in {timeout_s:g} s:\n" + "\n".join(screen.rows))
            time.sleep(POLL_S)
        return screen

    def press(self, *keys: str) -> None:
        """Keys by their names in tmux: `Enter`, `C-c`."""
        self._tmux("send-keys", *keys)

    def type(self, text: str) -> int:
        """Type `text` and Enter; the row of the cursor before that. Enter comes once the text is shown."""
        if text:
            self._tmux("send-keys", "-l", text)
        shown = "".join(text.split())
        row = self.wait(lambda screen: screen.typed().endswith(shown), text).y
        self.press("Enter")
        return row

    def clear(self, prompt: str) -> None:
        """Take back what stands behind `prompt`, over all its lines."""
        while not self.screen().is_at(prompt):
            self.press("C-u", "BSpace")
            time.sleep(POLL_S)

    def text(self) -> str:
        """All that was ever shown, with lines that were wrapped in one."""
        shown = self._tmux("capture-pane", "-p", "-J", "-S", "-", "-E", "-")
        return "\n".join(line.rstrip() for line in shown.rstrip().split("\n")) + "\n"

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-u", "-S", self._socket, *arguments], capture_output=True, check=True, encoding="utf-8"
        )
        return done.stdout


# -- what is typed ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """What a person does once they see `sign` below what they typed last, or a question where it is empty.

    Attributes:
        key: pressed in place of typing `text`.
        clears: the prompt behind which they delete first what stands there.
    """

    text: str = ""
    sign: str = ""
    key: str = ""
    clears: str = ""

    def is_due(self, screen: Screen, row: int) -> bool:
        """Whether its time has come, where `row` is that of what was typed last."""
        return self.sign in screen.below(row) if self.sign else screen.asks() and screen.y > row


@dataclass(frozen=True, slots=True)
class Step:
    line: str
    answers: tuple[Answer, ...] = ()
    prompt: str = CHAT_PROMPT  # that is there afterwards


YES, RUN, REFUSE = Answer("y"), Answer("r"), Answer("n")
EXPLAIN, COPY = Answer("x"), Answer("c")
NEXT_TURN = "the next turn comes in"


def edit(command: str) -> tuple[Answer, ...]:
    """Make the proposed command another one, and run that."""
    return Answer("e"), Answer(command, sign="gives up\n$", clears="$"), RUN


STEPS = (
    Step("satchel sessions import ~/review.json --name review", prompt=SHELL_PROMPT),
    Step("satchel chat --temperature 0 --max-tokens 48"),
    Step("/help"),
    Step("/help loop"),
    Step("/model"),
    Step("/model embedded"),
    Step("/tools"),
    # A talk
    Step("What is the capital of France?"),
    Step("/good short and right"),
    Step("/retry"),
    Step("/bad The capital of France is Paris, on the Seine."),
    Step("/restore"),
    Step("/restore -1"),
    Step("/btw what is a capital?"),
    Step("Name three rivers of Europe."),
    Step("/undo-turn"),
    Step("/system Answer in one short sentence."),
    Step("Which river flows through Paris?"),
    Step("/rename Paris"),
    Step("/branch Paris another way"),
    Step("/export"),
    Step("/stats"),
    # Searches
    Step("/clear"),
    Step("What's the weather in Oslo today?"),
    Step("?Oslo winter temperature"),
    Step("/search how cold is January in Oslo?"),
    Step("/compact"),
    # Commands
    Step("/new"),
    Step("!git status --short; ls -a"),
    Step("!python3 check.py"),
    Step("!rm -rf .git", (REFUSE,)),
    Step("show free disk space", edit("wc -l *.py")),
    Step(
        "/shell list the files here with their sizes",
        (EXPLAIN, COPY, *edit("ls -l")),
    ),
    Step("/shell delete check.py"),
    Step("/auto read-only"),
    Step("/shell show the current directory"),
    Step("/auto ask"),
    Step("/raw"),
    Step("show free disk space"),
    Step("/agent"),
    Step("/loop 1s !date +%S", (Answer(key="C-c", sign=NEXT_TURN),)),
    Step("/loop 5 60s !date +%S", (Answer("/stop", sign=NEXT_TURN),)),
    Step("/loop 2 !echo again"),
    Step("/stop"),
    # Files and a change
    Step("/new"),
    Step("/add ."),
    Step("/files"),
    Step("/drop check.py"),
    Step("What does @check.py check?"),
    Step("/profile turbo3"),
    Step("/load review"),
    Step("/add convert.py"),
    Step("/apply", (YES,)),
    Step("!python3 check.py; git diff --stat"),
    Step("/undo"),
    Step("!python3 check.py"),
    # What is kept
    Step("/save the review"),
    Step("/export review.md"),
    Step("/sync"),
    Step("/share 1h"),
    Step("/sessions"),
    Step("/improve training"),
    Step("/cost"),
    Step("/bench"),
    Step("/exprot"),
    Step("/quit", prompt=SHELL_PROMPT),
    Step("echo the exit code is $?", prompt=SHELL_PROMPT),
)


def play(terminal: Tmux, step: Step) -> None:
    """Type the line, answer what is asked, and wait until the prompt is back.

    A question that was not foreseen is answered with no.

    Raises:
        NotSeen: a sign or the prompt does not come in time.
    """
    row = terminal.type(step.line)
    answers = list(step.answers)

    def goes_on(screen: Screen) -> bool:
        if answers and answers[0].is_due(screen, row):
            return True
        over = screen.is_at(step.prompt) or (screen.is_at(SHELL_PROMPT) and not answers)
        return screen.y > row and (over or screen.asks())

    while True:
        screen = terminal.wait(goes_on, f"what follows {step.line!r}")
        expected = bool(answers) and answers[0].is_due(screen, row)
        if not (expected or screen.asks()):
            break
        answer = answers.pop(0) if expected else REFUSE
        if answer.clears:
            terminal.clear(answer.clears)
        if answer.key:
            row = screen.y
            terminal.press(answer.key)
        else:
            row = terminal.type(answer.text)
    if not screen.is_at(step.prompt):
        raise NotSeen(f"{step.line!r} ended the talk:\n" + "\n".join(screen.rows))
    if answers:
        raise NotSeen(f"{step.line!r} ended before {answers[0]} was due")


# -- what is made for the recording -----------------------------------------------------------------------


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder that is removed afterwards; of the same name each time, if it can be, since models read it."""
    folder = Path(tempfile.gettempdir()).resolve() / "satchel-session"
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        folder = Path(tempfile.mkdtemp(prefix=folder.name)).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def stage(folder: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """A home with a project in it; the project, and the environment of a shell there."""
    home = folder / "home"
    project = home / "project"
    project.mkdir(parents=True)
    (home / "review.json").write_text(json.dumps(REVIEW))
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SATCHEL_", "XDG_"))}
    environment = kept | {
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PS1": f"{SHELL_PROMPT} ",
        "SHELL": shutil.which("bash") or "/bin/sh",
        "LC_ALL": "C.UTF-8",
        "SATCHEL_HOME": str(home / ".satchel"),
        "SATCHEL_CACHE": str(cache_dir()),
        "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring",
        "PYTHONDONTWRITEBYTECODE": "1",
        "GIT_CONFIG_GLOBAL": str(home / ".gitconfig"),
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    _fill(project, environment)
    with served_bucket() as endpoint, _search_server() as search:
        environment |= {
            "SATCHEL_SEARCH_PROVIDER": "searxng",
            "SATCHEL_SEARCH_URL": search.url(),
            "SATCHEL_SEARCH_ALLOW_LOOPBACK": "1",
            "SATCHEL_S3_ACCESS_KEY_ID": CREDENTIALS.access_key,
            "SATCHEL_S3_SECRET_ACCESS_KEY": CREDENTIALS.secret_key,
        }
        setup = ["-m", "satchel", "sync", "setup", f"s3://{BUCKET}/talks", "--endpoint", endpoint]
        subprocess.run(
            [sys.executable, *setup, "--region", "us-east-1"],
            env=environment | {"SATCHEL_PASSPHRASE": "a passphrase for the recording"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        yield project, environment


def _fill(project: Path, environment: dict[str, str]) -> None:
    (project / "convert.py").write_text(CONVERT)
    (project / "check.py").write_text(CHECK)
    (project / ".gitignore").write_text("*.log\n")
    (project / "notes.log").write_text("nothing that a model has to read\n")
    who = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.org")
    for command in (("init", "--quiet"), ("add", "."), (*who, "commit", "--quiet", "-m", "Begin")):
        subprocess.run(["git", *command], cwd=project, env=environment, check=True)


@contextmanager
def _search_server() -> Iterator[SearXNGServer]:
    with SearXNGServer() as server:
        server.results = [
            {
                "title": title,
                "url": server.page(f"/page{number}", article(title, *paragraphs)),
                "content": paragraphs[0],
                "engine": "made up",
            }
            for number, (title, *paragraphs) in enumerate(PAGES, start=1)
        ]
        yield server


# -- the recording ----------------------------------------------------------------------------------------


def record(out: Path, steps: Sequence[Step] = STEPS) -> str:
    """Play `steps`, and write to `out` what the terminal showed, without this machine's paths; the same text.

    Raises:
        NotSeen: something did not come in time; what was seen until then is written nevertheless.
    """
    with (
        scratch_folder() as folder,
        stage(folder) as (project, environment),
        Tmux(["bash", "--norc", "--noprofile"], project, environment) as terminal,
    ):
        terminal.wait(lambda screen: screen.is_at(SHELL_PROMPT), "the shell", START_S)
        try:
            for step in steps:
                play(terminal, step)
        finally:
            shown = without_paths(terminal.text(), folder).removesuffix(f"{SHELL_PROMPT}\n")
            out.write_text(f"{HEADING}````text\n{shown}````\n")
    return shown


def without_paths(text: str, folder: Path) -> str:
    """`text` with other names in place of where this machine keeps things."""
    places = {
        str(folder / "home"): "~",
        str(folder): "~",  # the model may write it in a way of its own
        folder.name: "scratch",
        str(cache_dir()): "~/.cache/satchel",
        sys.prefix: "~/satchel/.venv",
        str(Path(__file__).parents[1]): "~/satchel",
    }
    for place, name in places.items():
        text = text.replace(place, name)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    record(parser.parse_args().out)


if __name__ == "__main__":
    main()
