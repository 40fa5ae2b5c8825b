"""What model text may do to a terminal: nothing but be read."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from satchel.sanitize import MAX_SEQUENCE_CHARS, Sanitizer, sanitize, sanitize_line

UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

# Text rich in sequences and their pieces, so that chunk borders fall inside them.
hostile = st.lists(
    st.one_of(
        st.sampled_from(
            ["\x1b", "\x1b[", "\x1b]0;", "\x1bP", "\x1b\\", "\x07", "\x9b", "\x9c", "\x9d", "\x18"]
        ),
        st.sampled_from(
            ["2J", "31m", "52;c;aGk=", "\r", "\b", "\n", "\t", "\u202e", "\u2066", "\ud800", "#", "好"]
        ),
        st.text(max_size=5),
        st.text(st.characters(), max_size=5),
    ),
    max_size=30,
).map("".join)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain text,\n\ttabs, 好, é, 👩‍👩‍👧", "plain text,\n\ttabs, 好, é, 👩‍👩‍👧"),
        ("a\x1b]0;title\x07b", "ab"),  # OSC ended by BEL
        ("a\x1b]0;title\x1b\\b", "ab"),  # ... by ST
        ("a\x1b]52;c;c2VjcmV0\x9cb", "ab"),  # ... by the C1 form of ST
        ("a\x1b]8;;http://x\x07link\x1b]8;;\x07b", "alinkb"),
        ("a\x1b[2J\x1b[31;1mred\x1b[0mb", "aredb"),
        ("a\x9b31mred\x9b0mb", "aredb"),  # CSI as one C1 character
        ("a\x1b[?25l\x1b[ qb", "ab"),
        ("a\x1bPq#0;2;0\x1b\\b", "ab"),  # DCS (sixel)
        ("a\x1b_Gpayload\x1b\\\x1b^pm\x1b\\\x1bXsos\x1b\\b", "ab"),
        ("a\x1bcb\x1b7c\x1b(Bd", "abcd"),  # full reset, save cursor, charset
        ("a\x1b([b", "ab"),  # a charset called "[" does not start a control sequence
        ("over\rwrite\r\nab\b\bc\x7f\x00\x85", "overwrite\nabc"),
        ("\x1b\x1b[1mx", "x"),
        ("\x1b[1\nx", "\nx"),
        ("\x1b]0;a\x18b", "b"),  # CAN ends a sequence
        ("â\x80\x9cwords between quotesâ\x80\x9d, more", "âwords between quotesâ, more"),
        ("\u202eevil\u202c \u2066x\u2069", "⟨U+202E⟩evil⟨U+202C⟩ ⟨U+2066⟩x⟨U+2069⟩"),
        ("lone \ud800 surrogate", "lone \ufffd surrogate"),
    ],
)
def test_visible_text_is_kept_and_nothing_else(raw, shown):
    assert sanitize(raw) == shown


def test_an_unterminated_string_ends_with_its_line():
    assert sanitize("a\x1b]0;never ended\nthe answer goes on") == "a\nthe answer goes on"


def test_an_unterminated_string_is_bounded_without_a_newline():
    kept = sanitize("a\x1b]" + "x" * (MAX_SEQUENCE_CHARS + 9))
    assert kept == "a" + "x" * 10


def test_endless_csi_parameters_are_bounded():
    assert sanitize("\x1b[" + "1" * MAX_SEQUENCE_CHARS + "m") == "1m"


def test_a_sequence_split_over_chunks_is_removed():
    sanitizer = Sanitizer()
    assert [sanitizer.feed(chunk) for chunk in ("a\x1b", "]0;ti", "tle\x1b", "\\b")] == ["a", "", "", "b"]


def test_a_title_becomes_one_line():
    assert sanitize_line(" two\nlines \x1b[31mred ") == "two lines red"


@given(hostile)
def test_nothing_unsafe_is_left(text):
    assert not UNSAFE.search(sanitize(text))


@given(hostile)
def test_cleaning_twice_changes_nothing_more(text):
    assert sanitize(sanitize(text)) == sanitize(text)


@given(hostile, st.lists(st.integers(0, 200)))
def test_chunks_give_what_the_whole_text_gives(text, cuts):
    borders = sorted({0, *(min(cut, len(text)) for cut in cuts), len(text)})
    sanitizer = Sanitizer()
    pieces = [sanitizer.feed(text[a:b]) for a, b in pairwise(borders)]
    assert "".join(pieces) == sanitize(text)


@given(st.text(st.characters(exclude_categories=("Cc", "Cs", "Cf"))))
def test_text_without_controls_is_unchanged(text):
    assert sanitize(text) == text
