"""Markdown as it is drawn on a terminal, piece by piece."""

import io
import re
import textwrap

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from satchel.terminal.markdown import Document
from satchel.terminal.pen import Pen, graphemes, text_columns
from satchel.terminal.sanitize import Sanitizer, sanitize

OURS = re.compile(r"\x1b\[([\d;]*)m|\x1b\]8;;([!-~]*)\x1b\\|(.)", re.DOTALL)
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Window(io.StringIO):
    """A terminal that is no device."""

    encoding = "utf-8"


class PenAt(Pen):
    """A pen on a window of fixed width."""

    columns = 40


def draw(pieces, columns=40, colours="standard", links=False, encoding="utf-8", theme="ansi_dark"):
    out = Window()
    out.encoding = encoding
    pen = PenAt(out, colours)
    pen.columns, pen.links = columns, links
    document, sanitizer = Document(pen, theme), Sanitizer()
    for piece in pieces:
        document.feed(sanitizer.feed(piece))
    document.end()
    return out.getvalue()


def cells(drawn):
    """Each character with its attributes and where it leads to."""
    attributes = url = ""
    found = []
    for sgr, link, char in OURS.findall(drawn):
        if char:
            found.append((char, attributes, url))
        elif sgr:
            attributes = "" if sgr == "0" else sgr
        else:
            url = link
    return found


def seen(drawn):
    return "".join(char for _, _, char in OURS.findall(drawn))


def lines(text, columns=40, **more):
    return seen(draw([textwrap.dedent(text)], columns, **more)).splitlines()


# -- within a line -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        ("a **b c** d", "a \x1b[1mb c\x1b[0m d"),
        ("a *b* and _c_", "a \x1b[3mb\x1b[0m and \x1b[3mc\x1b[0m"),
        ("***b***", "\x1b[1;3mb\x1b[0m"),
        ("**a *b***", "\x1b[1ma \x1b[0m\x1b[1;3mb\x1b[0m"),
        ("~~no~~ `a * b`", "\x1b[9mno\x1b[0m \x1b[36ma * b\x1b[0m"),
        ("`` a`b ``", "\x1b[36ma`b\x1b[0m"),
        ("这是**重点**内容", "这是\x1b[1m重点\x1b[0m内容"),
        ("**“重点”**内容", "\x1b[1m“重点”\x1b[0m内容"),
        ("# Top", "\x1b[1;4;35mTop\x1b[0m"),
        ("### Less *and* less", "\x1b[1mLess \x1b[0m\x1b[1;3mand\x1b[0m\x1b[1m less\x1b[0m"),
    ],
)
def test_marks_become_attributes(text, drawn):
    assert cells(draw([text])) == cells(drawn + "\n")


@pytest.mark.parametrize(
    "text",
    [
        "2*3*4 and 2 ** 3 and 5 * 6 *",
        "snake_case_name and __init__.py is_",
        "an unclosed **mark and `code [and",
        "from $5 to $10, not $3",
        "mathematics: $a_1*b + c*d$ and \\(x^2 * y\\)",
        "C:\\temp and a\\b",
        "<b>bold</b> &amp; a < b > c",
        "[1] and [2, 3] and [note](see below)",
        "ssh://h and http and hello",
        "####### seven",
        "#hashtag",
        "-5 degrees and 3.14",
        "a ~ b ~~ c",
        "1986. That was a year",
    ],
)
def test_what_is_no_mark_stays(text):
    assert lines(text, 100) == [text]


def test_a_backslash_makes_a_mark_text():
    assert lines(r"\*not\* \`this\` \# 1\. \\") == [r"*not* `this` # 1. " + "\\"]


def test_without_attributes_marks_stay():
    text = "## A **b** and `c`"
    assert draw([text], colours=None) == text + "\n"


def test_what_is_held_back_is_at_most_a_few_lines():
    out = Window()
    document = Document(PenAt(out, "standard"))
    document.feed("before *" + "word " * 70)
    assert seen(out.getvalue()).startswith("before *word word")


def test_a_run_of_marks_without_end_is_text():
    text = "a " + "*" * 1700
    out = Window()
    document = Document(PenAt(out, "standard"))
    document.feed(text)
    assert seen(out.getvalue()).count("*") == 1000  # it does not wait for the end of the line
    assert draw(text) == draw([text])
    assert draw([text]).count("*") == 1700


def test_what_combines_without_end_is_cut():
    flood = "e" + "\u0301" * 99
    assert [len(text) for text, _ in graphemes("x" + flood + "好")] == [1, 32, 32, 32, 4, 1]
    families = "👩" + "\u200d👩" * 200
    assert "".join(text for text, _ in graphemes(families)) == families
    assert max(len(text) for text, _ in graphemes(families)) == 32


# -- links -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[docs](https://a.b/c_d)", "docs (https://a.b/c_d)"),
        ("[https://a.b/](https://a.b/)", "https://a.b/"),
        ("see https://a.b/c_d_e.", "see https://a.b/c_d_e."),
        ("(https://a.b/c(d))", "(https://a.b/c(d))"),
        ("<https://a.b/c>", "https://a.b/c"),
        ("![a cat](cat.png)", "a cat (cat.png)"),
        ("[go](javascript:alert(1))", "go (javascript:alert(1))"),
    ],
)
def test_where_a_link_leads_to_is_shown(text, shown):
    assert lines(text, 80) == [shown]
    assert "\x1b]" not in draw([text], 80)


def test_a_terminal_that_takes_links_gets_them():
    assert draw(["[docs](https://a.b/c)"], links=True) == (
        "\x1b]8;;https://a.b/c\x1b\\\x1b[4mdocs\x1b[0m\x1b]8;;\x1b\\\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        "[my.bank](https://evil.example/)",  # the words say another address
        "[www.bank](https://evil.example/)",
        "[a](https://my.bank@evil.example/)",
        "[a](javascript:x)",
        "[a](file:///etc/passwd)",
    ],
)
def test_an_address_is_never_hidden_behind_words_that_deceive(text):
    words, address = re.fullmatch(r"\[(.*)\]\((.*)\)", text).groups()
    assert lines(text, 80, links=True) == [f"{words} ({address})"]


@pytest.mark.parametrize("url", ["javascript:x", "file:///etc/passwd", "https://a@b.c/"])
def test_only_pages_and_addresses_are_links(url):
    assert "\x1b]8" not in draw([f"[a]({url}) <{url}>"], links=True)


def test_an_address_is_not_broken():
    url = "https://a.b/" + "x" * 60
    assert lines(f"one two {url} three") == ["one two", url + " three"]


# -- wrapping ----------------------------------------------------------------------------------------


def test_words_are_wrapped_and_paragraphs_kept():
    text = """\


        one two three
        four five six seven eight nine ten eleven



        twelve

    """
    assert lines(text, 20, colours=None) == [
        "one two three",
        "four five six seven",
        "eight nine ten",
        "eleven",
        "",
        "twelve",
    ]


def test_chinese_breaks_anywhere_but_before_punctuation_and_korean_between_words():
    assert lines("没有任何空格的文字，没有任何空格的文字。", 18) == [
        "没有任何空格的文",
        "字，没有任何空格的",
        "文字。",
    ]
    assert lines("문장은 단어 사이에 공백이", 12) == ["문장은 단어", "사이에", "공백이"]


def test_a_character_of_several_code_points_is_one():
    text = "👩‍👩‍👧👩‍👩‍👧👩‍👩‍👧 e\u0301e\u0301e\u0301e\u0301 🇨🇭"
    assert lines(text, 10) == ["👩‍👩‍👧👩‍👩‍👧👩‍👩‍👧", "e\u0301e\u0301e\u0301e\u0301 🇨🇭"]


def test_a_word_that_is_too_long_is_broken():
    assert lines("a " + "x" * 25, 10) == ["a", "x" * 10, "x" * 10, "x" * 5]


# -- blocks ------------------------------------------------------------------------------------------


def test_lists_hang_and_nest():
    text = """\
        1. First of the things, which is long
           - nested, which is long as well
             * deeper
           - again
        2. Second
          - by two spaces
        10. Tenth
        - [ ] open
        - [x] done
        + plus
    """
    assert lines(text, 28) == [
        "1. First of the things,",
        "   which is long",
        "   ◦ nested, which is long",
        "     as well",
        "     ▪ deeper",
        "   ◦ again",
        "2. Second",
        "   ◦ by two spaces",
        "10. Tenth",
        "☐ open",
        "☑ done",
        "• plus",
    ]


def test_paragraphs_of_an_item_stand_below_it():
    assert lines("- one\n\n  two\n\nthree\n") == ["• one", "", "  two", "", "three"]


def test_quotes_have_a_bar():
    assert lines("> one two three\n>\n> > four\n> - five\n\nsix", 12) == [
        "│ one two",
        "│ three",
        "│",
        "│ │ four",
        "│ • five",
        "",
        "six",
    ]


def test_a_deep_list_leaves_room_for_its_words():
    text = "".join(f"{'  ' * depth}- item {depth}\n" for depth in range(12))
    drawn = lines(text, 20)
    assert drawn[0] == "• item 0"
    assert drawn[11] == "        ▪ item 11"


def test_quotes_without_end_leave_room_for_words():
    assert lines("> " * 9 + "one two three", 20)[0] == "│ │ │ │ │ > > > >"


def test_rules():
    assert lines("a\n\n---\n* * *\nb", 10) == ["a", "", "─" * 10, "─" * 10, "b"]


def test_a_terminal_without_unicode_gets_ascii():
    text = "- a\n> b\n\n---\n- [x] c\n\n|a|b|\n|-|-|\n|1|2|\n"
    assert lines(text, 5, encoding="ascii") == [
        "- a", "> b", "", "-----", "[x] c", "", "a | b", "--+--", "1 | 2",
    ]  # fmt: skip


# -- code --------------------------------------------------------------------------------------------

RULE = "─" * 40


def test_code_is_not_wrapped_and_has_nothing_beside_it():
    code = f"if a:\n\tb = '{'x' * 50}'\n\n    c  # * _ ` [\n"
    assert lines(f"```python\n{code}```\nbehind") == [
        "─── python " + "─" * 29,
        *code.splitlines(),
        RULE,
        "behind",
    ]


def test_code_in_an_item_can_be_copied_too():
    text = "1. Do\n   ```sh\n   cat <<E\n     a\n   E\n   ```\n2. Then\n"
    assert lines(text) == ["1. Do", "─── sh " + "─" * 33, "cat <<E", "  a", "E", RULE, "2. Then"]


def test_an_item_may_begin_with_code():
    assert lines("1. ```\n   a\n   ```") == ["1. ", RULE, "a", RULE]


def test_a_fence_is_closed_by_one_as_long():
    assert lines("````\n```\na\n````\n**b**") == [RULE, "```", "a", RULE, "b"]


def test_code_that_is_cut_off_is_drawn():
    assert lines("```\nabc\nde") == [RULE, "abc", "de"]


def test_a_language_that_is_not_known_has_no_colours():
    assert draw(["```nonesuch\nif x: 1\n```"]).splitlines()[1] == "if x: 1"


def test_colours_go_on_over_lines():
    text = '```python\ns = """a\nif b\n"""\nif c: pass\n```'
    _, first, second, third, fourth, _ = draw([text]).splitlines()
    assert first.endswith('\x1b[33m"""a\x1b[0m')
    assert second == "\x1b[33mif b\x1b[0m"
    assert third == '\x1b[33m"""\x1b[0m'
    assert fourth.startswith("\x1b[94mif\x1b[0m c")


@pytest.mark.parametrize("language", ["js", "c", "java", "css", "rust", "go"])
def test_comments_go_on_over_lines(language):
    _, first, second, third, after, _ = draw([f"```{language}\n/* a\n if 1 \nb */\nx = 1\n```"]).splitlines()
    start = first.removesuffix("/* a\x1b[0m")
    assert re.fullmatch(r"\x1b\[[\d;]+m", start)
    assert (second, third) == (f"{start} if 1 \x1b[0m", f"{start}b */\x1b[0m")
    assert not after.startswith(start)


def test_a_theme_of_pygments_can_be_chosen():
    assert "38;5;" in draw(["```python\nif x: pass\n```"], colours="256", theme="monokai")
    assert "if" in seen(draw(["```python\nif x: pass\n```"], theme="nonesuch"))


@pytest.mark.parametrize(
    "language", ["", "python", "js", "html", "yaml", "php", "ruby", "bash", "pycon", "md", "diff"]
)
def test_no_lexer_loses_code(language):
    code = (
        "<?php /* a\n$x = `b`; */ \"\"\" #{1}\n\n  >>> f('\\n') <<E\n- k: |\n\t'''\n%@~\x7f€ 好 👩‍👩‍👧\n"
        "@@ -1 +1 @@\n"
    )
    drawn = lines(f"~~~{language}\n{code}~~~", 200)
    assert drawn[1:-1] == sanitize(code).splitlines()


# -- tables ------------------------------------------------------------------------------------------

TABLE = """\
| Name | Size | What it is |
|:-----|-----:|:----------:|
| small | 12 | `a | b` \\| **c** |
| 中文名字 | 3,456 | middle |
"""


def test_a_table_has_columns_of_equal_width():
    assert lines(TABLE) == [
        "Name     │  Size │ What it is",
        "─────────┼───────┼───────────",
        "small    │    12 │ a | b | c",
        "中文名字 │ 3,456 │   middle",
    ]


def test_a_table_that_is_too_wide_wraps_its_cells():
    text = "|A|B|\n|-|-|\n|one two three four|x|\n|y|five six seven eight nine<br>ten|\n"
    assert lines(text, 24) == [
        "A          │ B",
        "───────────┼────────────",
        "one two    │ x",
        "three four │",
        "───────────┼────────────",
        "y          │ five six",
        "           │ seven eight",
        "           │ nine",
        "           │ ten",
    ]


def test_a_table_that_fits_no_window_is_a_list():
    text = "|One|Two|Three|Four|\n|-|-|-|-|\n" + "|first word|second word|third|fourth|\n" * 2
    once = ["One: first word", "Two: second word", "Three: third", "Four: fourth"]
    assert lines(text, 20) == [*once, "", *once]


def test_bars_without_a_divider_are_text():
    assert lines("| a **b** |\n| c |\nend") == ["| a b |", "| c |", "end"]


def test_cells_beyond_the_head_are_not_lost():
    assert lines("|a|b|\n|-|-|\n|1|2|3|\n|4|\n") == ["a │ b │", "──┼───┼──", "1 │ 2 │ 3", "4 │   │"]


@pytest.mark.parametrize(
    ("row", "cells"),
    [
        ("|a `|` b|c|", "a | b │ c"),
        ("|`` `|` ``|c|", "`|`   │ c"),
        ("|a \\| b|`c|", "a | b │ `c"),
        ("|`a\\`|c|", "a\\    │ c"),
        ("|a \\`|c|", "a `   │ c"),
    ],
)
def test_a_bar_in_code_or_behind_a_backslash_is_none_of_a_table(row, cells):
    assert lines(f"|12345|2|\n|-|-|\n{row}\n")[2] == cells


def test_a_long_table_is_drawn_before_it_ends():
    out = Window()
    document = Document(PenAt(out, "standard"))
    document.feed("|n|square|\n|-|-|\n")
    for number in range(40):
        document.feed(f"|{number}|{number * number}|\n")
    drawn = seen(out.getvalue()).splitlines()
    assert (drawn[0], drawn[-1]) == ("n  │ square", "39 │ 1521")


# -- whatever comes ----------------------------------------------------------------------------------

MARKS = r"* ** *** _ ` ``` ~~~ ~~ - > | [ ] ( ) ]( $ $$ \ \[ \] \( \) # ## --- + 1. 10) ! h http < >"
BITS = st.sampled_from(
    [
        *MARKS.split(),
        *("\n", "\n\n", " ", "  ", "    ", "\t", "```python\n", "|a|b|\n|-|-|\n", "| x | y |\n"),
        *("](http://x.y/z)", "https://a.b/c_d", "<https://q.r>", "<br>", "[ ] ", "[x] ", "/*", "*/", '"""'),
        *("word", "a", "2", "好", "，", "👩‍👩‍👧", "e\u0301", "\u200d", "한국어", "x" * 50),
        *("\x1b[2J", "\x1b]0;t\x07", "\x9b", "\r", "\b", "\u202e"),
    ]
)
TEXTS = st.lists(BITS, max_size=30).map("".join)


def cut(text, random):
    pieces = []
    while text:
        length = random.randint(1, 6)
        pieces.append(text[:length])
        text = text[length:]
    return pieces


@settings(deadline=None)
@given(TEXTS, st.randoms(use_true_random=False), st.booleans())
@example("**a `b ** c` d", None, False)
@example("_- *_  ", None, False)
def test_how_a_text_is_cut_into_pieces_changes_nothing(text, random, links):
    whole = cells(draw([text], links=links))
    assert cells(draw(text, links=links)) == whole
    if random is not None:
        assert cells(draw(cut(text, random), links=links)) == whole


@settings(deadline=None)
@given(st.one_of(TEXTS, st.text()), st.booleans())
def test_nothing_leaves_but_text_colours_and_links(text, links):
    drawn = draw([text], links=links)
    assert not CONTROL.search(seen(drawn))
    assert all(re.match(r"(https?://|mailto:)[!-~]+$|$", url) for _, url, _ in OURS.findall(drawn))
    assert "\x1b" not in draw([text], colours=None)


@settings(deadline=None)
@given(TEXTS.filter(lambda text: "|" not in text and "[x]" not in text), st.integers(10, 60))
def test_no_letter_is_lost(text, columns):
    letters = [char for char in sanitize(text) if char.isalnum()]
    assert [char for char in seen(draw([text], columns)) if char.isalnum()] == letters


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["word", "a", "好", "**b**", "，", "longer-one", " ", " ", "\n"])).map("".join)
)
def test_no_line_is_wider_than_the_window(text):
    assert all(text_columns(line) <= 20 for line in lines(text, 20))
