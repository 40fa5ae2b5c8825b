"""`satchel explain`: what an error means and what to do about it, from docs/troubleshooting.md.

An entry there is a `###` heading, the messages that lead to it (`…` stands for what differs), and what to do.
Knows nothing of where the messages come from; a test sees to it that each has an entry.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from satchel.cli.options import examples
from satchel.errors import NotFoundError
from satchel.sanitize import sanitize_line

ANY = "…"
MAX_SAID = 500  # characters of a message that are looked at
MAX_TITLES = 12  # of entries that are named in place of one that is shown
_LETTERS = re.compile(r"\w")


@dataclass(frozen=True, slots=True)
class Entry:
    """Attributes:
    topic: the heading that it stands below.
    messages: each with `…` for what differs.
    text: Markdown.
    """

    topic: str
    title: str
    messages: tuple[str, ...]
    text: str

    def fit(self, message: str) -> int:
        """How many letters of `message` one of the entry's messages accounts for; 0 where none is in it."""
        return max((letters(known) for known in self.messages if pattern(known).search(message)), default=0)

    def has(self, words: Sequence[str], in_text: bool) -> bool:
        """Whether all `words`, in lower case, are in the title and messages, or with them in the text."""
        searched = "\n".join((self.title, *self.messages, *([self.text] if in_text else ()))).lower()
        return all(word in searched for word in words)


def read_entries() -> list[Entry]:
    """All entries, in the page's order."""
    installed = Path(__file__).with_name("troubleshooting.md")
    in_the_tree = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
    return parse(next(path for path in (installed, in_the_tree) if path.is_file()).read_text("utf-8"))


def parse(page: str) -> list[Entry]:
    entries = []
    for topic, rest in _below("## ", page):
        for title, body in _below("### ", rest):
            messages, _, text = body.removeprefix("```text\n").partition("\n```\n")
            entries.append(Entry(topic, title, tuple(messages.split("\n")), text.strip()))
    return entries


def _below(mark: str, text: str) -> Iterator[tuple[str, str]]:
    """Each heading of a kind, with what stands below it."""
    for section in re.split(f"^{mark}", text, flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        yield heading, body.lstrip("\n")


@functools.cache
def pattern(message: str) -> re.Pattern[str]:
    """Finds `message` in a line that has something in place of each `…`."""
    parts = [re.escape(part) for part in message.split(ANY)]
    start, end = (r"(?<!\w)" if parts[0] else ""), (r"(?!\w)" if parts[-1] else "")
    return re.compile(start + ".*?".join(parts) + end, re.IGNORECASE)


def letters(message: str) -> int:
    """How much of it is certain."""
    return len(_LETTERS.findall(message))


def find(said: str, entries: Sequence[Entry]) -> list[Entry]:
    """The entries for a message, or for some words of one: the best first."""
    line = " ".join(said.split()).removeprefix("satchel: ")[:MAX_SAID]
    fitting = sorted((entry for entry in entries if entry.fit(line)), key=lambda entry: -entry.fit(line))
    words = line.lower().split()
    if fitting and (fitting[0].fit(line) * 3 > letters(line) or len(words) > 3):
        return fitting
    for in_text in (False, True):
        if words and (found := [entry for entry in entries if entry.has(words, in_text)]):
            return found
    return fitting


def explain(
    message: Annotated[
        list[str] | None,
        typer.Argument(help="An error message, or some words of one; none lists all topics."),
    ] = None,
) -> None:
    """Say what an error message means, and what to do about it."""
    entries = read_entries()
    said = " ".join(message or ())
    if not said.strip():
        print("\n".join(_listed(entries)))
        return
    found = find(said, entries)
    if not found:
        raise NotFoundError(
            f"nothing is known of {sanitize_line(said)[:60]!r}", "`satchel explain` lists what is"
        )
    certain = bool(found[0].fit(said)) or len(found) == 1
    if not certain:
        print("\n".join(_listed(found[:MAX_TITLES])))
        return
    best, *others = found
    print(
        "\n".join(
            (best.title, "", *(f"    {each}" for each in best.messages[:5]), *_more(best), "", best.text)
        )
    )
    if others:
        print(f"\nSee also: {'; '.join(each.title for each in others[:3])}")


def _more(entry: Entry) -> list[str]:
    hidden = len(entry.messages) - 5
    return [f"    and {hidden} more"] if hidden > 0 else []


def _listed(entries: Sequence[Entry]) -> Iterator[str]:
    """The titles below their topics."""
    topic = ""
    for entry in entries:
        if entry.topic != topic:
            if topic:
                yield ""
            topic = entry.topic
            yield topic
        yield f"  {entry.title}"


def add_to(app: typer.Typer) -> None:
    app.command(
        "explain",
        epilog=examples(
            "satchel explain                            # all topics",
            "satchel explain keychain                   # what has to do with it",
            "satchel explain 'no session is called bruno'",
        ),
    )(explain)
