"""docs/troubleshooting.md has all messages of our errors and no others, and `satchel explain` finds them."""

import re

import pytest
from error_messages import ANY, all_texts, error_messages

from satchel.cli.explain import find, letters, parse, pattern, read_entries

FEW_LETTERS = 8  # a message of fewer certain ones, such as `…: is …`, may be named by what it comes to


@pytest.fixture(scope="module")
def entries():
    return read_entries()


def covers(message, text):
    """Whether `text` is `message` with something in place of each `…`."""
    parts = message.split(ANY)
    if not all(part in text for part in parts):  # far cheaper than what follows
        return False
    return re.fullmatch(".*?".join(map(re.escape, parts)), text) is not None


def test_every_error_message_is_in_the_troubleshooting(entries):
    known = {message for entry in entries for message in entry.messages}

    def is_covered(text):
        if text in known or any(covers(message, text) for message in known):
            return True
        return letters(text) < FEW_LETTERS and any(covers(text, message) for message in known)

    missing = [
        f"{said.text}   ({said.where})" for said in error_messages().values() if not is_covered(said.text)
    ]
    assert not missing, "docs/troubleshooting.md lacks:\n" + "\n".join(missing)


def test_no_message_in_the_troubleshooting_is_stale(entries):
    said = set(error_messages())
    vague = [text for text in said if letters(text) < FEW_LETTERS]
    more = "\n".join(all_texts())

    def is_said(message):
        if message in said or any(covers(message, text) for text in said):
            return True
        parts_said = all(part.strip(" :()") in more for part in message.split(ANY))
        return parts_said and any(covers(text, message) for text in vague)

    stale = [message for entry in entries for message in entry.messages if not is_said(message)]
    assert not stale, "no error says any longer:\n" + "\n".join(stale)


def test_the_troubleshooting_has_its_form(entries):
    titles = [entry.title for entry in entries]
    assert len(set(titles)) == len(titles) > 40
    for entry in entries:
        assert entry.messages and all(each == " ".join(each.split()) != "" for each in entry.messages), (
            entry.title
        )
        assert entry.text and "```" not in entry.text, entry.title


@pytest.mark.parametrize(
    ("said", "title"),
    [
        ("satchel: no session is called 'bruno'; near it are brunhild", "No session of that name"),
        ("no session is called", "No session of that name"),
        ("there is no command /exprot; did you mean /export?", "An option, argument or command is wrong"),
        (
            "talk.json cannot be imported: line 3: it is not JSON (Expecting value)",
            "A file cannot be imported",
        ),
        ("block 0f3a99 is damaged: its SHA-256 is another", "Stored data is damaged"),
        (
            "the context is full: this message would make 9,000 tokens, and the model takes 8,192",
            "The context is full",
        ),
        ("there is no sandbox: bwrap is not installed", "There is no sandbox"),
        ("the GGUF file's architecture is 'phi3'", "The GGUF file cannot be used"),
        ("example.org: is larger than 3 MB", "A page is not read"),
        ("bubblewrap", "There is no sandbox"),
        ("MATPLOTLIB", "No picture is drawn"),
    ],
)
def test_a_message_or_a_word_of_it_leads_to_its_entry(entries, said, title):
    assert find(said, entries)[0].title == title


def test_every_message_leads_to_an_entry_that_has_it(entries):
    for entry in entries:
        for message in entry.messages:
            said = message.replace(ANY, "7")
            assert any(pattern(each).search(said) for each in find(said, entries)[0].messages), message


def test_explain_prints_what_to_do(satchel):
    done = satchel("explain", "satchel: no session is called 'bruno'")
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith("No session of that name\n\n    no session is saved yet\n")
    assert "`satchel sessions list` shows them." in done.stdout


def test_explain_takes_a_message_without_quotes(satchel):
    assert satchel("explain", "sync", "is", "not", "set", "up").stdout.startswith("Sync is not set up\n")


def test_a_word_of_several_entries_lists_them(satchel):
    lines = satchel("explain", "passphrase").stdout.splitlines()
    assert "Sync" in lines
    assert "  The passphrase or recovery words are wrong" in lines


def test_explain_alone_lists_the_topics(satchel, entries):
    lines = satchel("explain").stdout.splitlines()
    assert lines[0] == "Sessions"
    assert [line.strip() for line in lines if line.startswith("  ")] == [entry.title for entry in entries]


def test_what_is_not_known_is_one_line(satchel):
    done = satchel("explain", "xylophone")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "satchel: nothing is known of 'xylophone'; `satchel explain` lists what is\n"


def test_a_very_long_message_is_answered_all_the_same(entries):
    titles = [entry.title for entry in find("no session is called x " + "a " * 50_000, entries)]
    assert titles[0] == "No session of that name"


def test_an_entry_is_parsed():
    (entry,) = parse("# P\n## Topic\n### Title\n```text\na …\nb\n```\nWhy.\n\nWhat to do.\n")
    assert (entry.topic, entry.title, entry.messages) == ("Topic", "Title", ("a …", "b"))
    assert entry.text == "Why.\n\nWhat to do."
    assert entry.fit("a 5") == 1
    assert entry.fit("ax 5") == 0
