"""What README.md and docs/ say is so: commands run as printed, and names, options and links are there."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import typer.main
from console_blocks import Machines, blocks, fits
from s3_servers import moto  # noqa: F401 (a fixture)
from web_servers import SearXNGServer, article

from satchel.agent.commands.table import COMMANDS
from satchel.cli.app import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LOCATION = "s3://my-bucket/satchel"
OTHER_LOCATION = "s3://bucket/satchel"
FOLDER = "file:///Volumes/NAS/satchel"
MADE_BY_SCRIPTS = {"session.md"}
NO_COMMANDS = {"satchel rotation signs 0", "satchel rotation signs 1"}  # words that signs are made from

OSLO = (
    "Oslo: the weather today",
    "Oslo today: light snow, then clouds. It is 2 degrees below zero at noon in Oslo.",
)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def with_blocks(slow: bool) -> list[Path]:
    """The pages that have a block to run; of slow ones, all their blocks are run."""
    return [
        page
        for page in PAGES
        if page.name not in MADE_BY_SCRIPTS
        and any(not each.why_not_run and each.is_slow == slow for each in blocks(page.read_text("utf-8")))
    ]


# -- console blocks -----------------------------------------------------------------------------------------


@pytest.fixture
def machines(tmp_path, moto) -> Iterator[Machines]:
    """Two machines with a bucket, a folder and a search server on loopback, where pages name real ones."""
    bucket = moto.make_bucket("docs-" + re.sub(r"[\W_]+", "-", tmp_path.name).strip("-").lower()[:40])
    # A cache of their own, too: pages show what is in it.
    other = ("SATCHEL_", "XDG_", "NO_COLOR")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(other)}

    def stand_in(line: str) -> str:
        line = re.sub(r'make run( ARGS="?([^"]*)"?)?', r"satchel \2", line)
        line = re.sub(r"--endpoint \S+", f"--endpoint {moto.endpoint} --region us-east-1", line)
        for location in (LOCATION, OTHER_LOCATION):
            line = line.replace(location, f"s3://{bucket}/talks")
        return line.replace(FOLDER, f"file://{tmp_path}/nas/satchel")

    (tmp_path / "nas" / "satchel").mkdir(parents=True)
    with SearXNGServer() as search:
        title, text = OSLO
        page = search.page("/oslo", article(title, text, text))
        search.results = [{"url": page, "title": title, "content": text}]
        yield Machines(
            tmp_path,
            kept
            | {
                "TERM": "xterm-256color",
                "PYTHONUTF8": "1",
                "SATCHEL_TEMPERATURE": "0",
                "SATCHEL_SEARCH_PROVIDER": "searxng",
                "SATCHEL_SEARCH_URL": search.url(),
                "SATCHEL_SEARCH_ALLOW_LOOPBACK": "1",
                "SATCHEL_S3_ACCESS_KEY_ID": moto.credentials.access_key,
                "SATCHEL_S3_SECRET_ACCESS_KEY": moto.credentials.secret_key,
                "SATCHEL_PASSPHRASE": "five words that nobody else knows",
            },
            stand_in,
        )


@pytest.mark.parametrize("page", with_blocks(slow=False), ids=relative)
def test_console_blocks_show_what_is_printed(page, machines):
    for block in blocks(page.read_text("utf-8")):
        if not block.why_not_run and not block.is_slow:
            machines.run(block)


@pytest.mark.slow
@pytest.mark.parametrize("page", with_blocks(slow=True), ids=relative)
def test_all_console_blocks_show_what_is_printed(page, machines):
    for block in blocks(page.read_text("utf-8")):
        if not block.why_not_run:
            machines.run(block)


def test_what_is_not_run_says_why(capsys):
    unrun = [
        f"{relative(page)}, line {block.line}: {block.why_not_run}"
        for page in PAGES
        for block in blocks(page.read_text("utf-8"))
        if block.why_not_run
    ]
    with capsys.disabled():
        print("\nnot run:", *unrun, sep="\n  ")
    assert all(line.rpartition(": ")[2].strip() for line in unrun)


@pytest.mark.parametrize(
    ("expected", "seen", "right"),
    [
        (["a … c"], "a b c", True),
        (["a … c"], "a b d", False),
        (["a", "…", "d"], "a\nb\n\nc\nd\n", True),
        (["a", "…", "d"], "a\nd", True),
        (["a"], "a\nb", False),
        (["a", "b"], "b\na", False),
    ],
)
def test_dots_stand_for_anything(expected, seen, right):
    assert fits(expected, seen) is right


# -- commands in the text -----------------------------------------------------------------------------------


def spans(text: str) -> list[str]:
    """Code within a line; fenced blocks are left out."""
    prose = re.sub(r"^(`{3,4}).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    return [found.replace("\\|", "|") for found in re.findall(r"`([^`\n]+)`", prose)]


def table_commands(text: str) -> list[str]:
    """The commands of README's table, whose first column leaves `satchel` out, with options named beside."""
    lines = []
    table = text.partition("## Use\n")[2].partition("\n\n")[0]
    for row in re.findall(r"^\| (`.*)\|$", table, flags=re.MULTILINE):
        first, _, rest = row.replace("\\|", "¦").partition("|")
        names = [name.replace("¦", "|") for name in re.findall(r"`([^`]+)`", first)]
        options = " ".join(re.findall(r"`(--[\w-]+)", rest)) if "|" not in names[0] else ""
        lines.append(f"satchel {names[0]} {options}")
        lines += [
            name if name.startswith("satchel") else f"satchel {names[0].split()[0]} {name}"
            for name in names[1:]
        ]
    return lines


def variants(line: str) -> Iterator[list[str]]:
    """The command lines that `a|b` and `(a|b)` stand for, without brackets and what follows `#` or a pipe."""
    line = re.sub(r"#.*| [|<>] .*", "", line)
    words = [re.sub(r"[\[\]()…]", "", word) for word in shlex.split(line.replace("'", "").replace('"', ""))]
    yield from map(list, product(*(word.split("|") for word in words if word)))


def fault(words: list[str]) -> str:
    """What is wrong with a command line, if anything: a command or an option that is not there."""
    command: Any = typer.main.get_command(app)
    path, known = "satchel", set()
    for word in words:
        known |= {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
        if hasattr(command, "commands") and not word.startswith("-"):
            if word not in command.commands:
                return "" if word.isupper() else f"{path} has no command {word}"
            command, path = command.commands[word], f"{path} {word}"
        elif (
            word.startswith("-")
            and len(word) > 1
            and word.partition("=")[0] not in known | all_options(command)
        ):
            return f"{path} has no option {word}"
    return ""


def all_options(command: Any) -> set[str]:
    return {name for each in command.params for name in (*each.opts, *each.secondary_opts)}


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_commands_in_the_text_are_there(page):
    text = page.read_text("utf-8")
    lines = [span for span in spans(text) if re.match(r"satchel( |$)", span) and span not in NO_COMMANDS]
    if page.name == "README.md":
        lines += table_commands(text)
    for block in blocks(text):
        lines += [each.line for each in block.commands() if each.line.startswith("satchel ")]
    wrong = {
        f"`{line}`: {problem}" for line in lines for words in variants(line) if (problem := fault(words[1:]))
    }
    assert not wrong, "\n".join(sorted(wrong))


def test_the_table_of_the_readme_is_read():
    lines = table_commands(PAGES[0].read_text("utf-8"))
    assert len(lines) > 14
    assert any(line.startswith("satchel resume [NAME]") for line in lines)


def test_wrong_commands_are_noticed():
    assert fault(["sessions", "lsit"]) == "satchel sessions has no command lsit"
    assert fault(["ask", "--jsno"]) == "satchel ask has no option --jsno"
    assert fault(["sync", "push", "NAME", "--again"]) == ""
    assert [*variants("satchel sync push|pull [NAME…]  # one way")] == [
        ["satchel", "sync", "push", "NAME"],
        ["satchel", "sync", "pull", "NAME"],
    ]


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_slash_commands_in_the_text_are_there(page):
    known = {name for command in COMMANDS for name in (command.name, *command.aliases)}
    named = {
        found[1]
        for span in spans(page.read_text("utf-8"))
        if (found := re.match(r"/([a-z]+(?:-[a-z]+)?)( |$)", span))
    }
    paths = {path.name for path in Path("/").iterdir()} | {"search"}
    assert named - paths <= known | {"exprot"}


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_make_targets_in_the_text_are_there(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE))
    named = set(
        re.findall(r"`make ([a-z-]+)|^(?:\$ )?make ([a-z-]+)", page.read_text("utf-8"), flags=re.MULTILINE)
    )
    assert {one or other for one, other in named} <= targets


# -- links --------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """As GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_lead_somewhere(page):
    prose = re.sub(r"^(`{3,4}).*?^\1$|`[^`\n]*`", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        target, _, anchor = unquote(link).partition("#")
        path = page.parent / target if target else page
        assert path.exists(), link
        assert not anchor or anchor in anchors(path), link
