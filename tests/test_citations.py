"""Answers cite what their sources say, however their text comes in."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from satchel.agent.search.citations import CitationFilter, checked
from satchel.agent.search.claims import denied, measures
from satchel.agent.search.sources import Source

TOWER = Source(
    1,
    "Eiffel Tower",
    "https://en.wikipedia.org/wiki/Eiffel_Tower",
    "The Eiffel Tower is a wrought-iron lattice tower in Paris, finished in 1889; it is 330 metres tall.",
    (),
)
COLOSSEUM = Source(
    2,
    "Rome for travellers",
    "https://rome.example/",
    "",
    (
        "The Colosseum in Rome is the largest ancient amphitheatre ever built.",
        "It was built between 72 and 80 under three emperors and held 1,200 lions.",
    ),
)
PALACE = Source(
    3,
    "故宫",
    "https://zh.example/",
    "北京故宫是中国明清两代的皇家宫殿，旧称紫禁城，位于北京中轴线的中心。",
    (),
)
SOURCES = (TOWER, COLOSSEUM, PALACE)


@pytest.mark.parametrize(
    ("answer", "cited"),
    [
        # What is right stays as it is.
        ("The tower in Paris is 330 metres tall [1].", "The tower in Paris is 330 metres tall [1]."),
        (
            "It is in Paris.[1] The Colosseum is in Rome. [2] Bye",
            "It is in Paris.[1] The Colosseum is in Rome. [2] Bye",
        ),
        (
            "[1] says the Eiffel Tower was finished in 1889.",
            "[1] says the Eiffel Tower was finished in 1889.",
        ),
        ("Yes [1].", "Yes [1]."),
        # Other forms become the one.
        ("故宫旧称紫禁城【3】。", "故宫旧称紫禁城[3]。"),
        ("The Eiffel Tower is in Paris 【1†L3-L9】.", "The Eiffel Tower is in Paris [1]."),
        ("The Eiffel Tower is in Paris [^1].", "The Eiffel Tower is in Paris [1]."),
        ("The Eiffel Tower is in Paris [1, 1].", "The Eiffel Tower is in Paris [1]."),
        # Numbers that are none of a source's.
        ("It is great [7]. Really[0].", "It is great. Really."),
        ("[9] Hello", "Hello"),
        ("Paris [9] is nice.", "Paris is nice."),
        ("The Eiffel Tower is in Paris [1, 9].", "The Eiffel Tower is in Paris [1]."),
        ("The Eiffel Tower is in Paris [1][9].", "The Eiffel Tower is in Paris [1]."),
        ("It is great.\n[12]\n", "It is great.\n\n"),
        ("As in [[9]7].", "As in […7]."),
        # Sources that do not say it: of something else, of another number.
        ("Bananas are rich in potassium [1].", "Bananas are rich in potassium."),
        ("The tower in Paris is 500 metres tall [1].", "The tower in Paris is 500 metres tall."),
        ("他说埃菲尔铁塔高500米[1]。", "他说埃菲尔铁塔高500米。"),
        ("The Eiffel Tower is in Paris [1, 2].", "The Eiffel Tower is in Paris [1]."),
        (
            "The Colosseum in Rome is the largest ancient amphitheatre [1].",
            "The Colosseum in Rome is the largest ancient amphitheatre [2].",
        ),
        ("故宫位于北京中轴线的中心[1]。", "故宫位于北京中轴线的中心[3]。"),
        # Two statements, each with its own.
        (
            "The Eiffel Tower is 330 metres tall [1], and the Colosseum held lions [2].",
            "The Eiffel Tower is 330 metres tall [1], and the Colosseum held lions [2].",
        ),
        # Numbers may be written otherwise.
        ("It was built under 3 emperors and held 1200 lions [2].",) * 2,
        # A source in another language is judged by its names and numbers.
        ("他说埃菲尔铁塔高330米[1]。", "他说埃菲尔铁塔高330米[1]。"),
        # A citation that stands for itself belongs to what stands before.
        ("Bananas are rich in potassium.\n[1]", "Bananas are rich in potassium.\n"),
        ("The tower is in Paris.\n[1]", "The tower is in Paris.\n[1]"),
        # Statements that are a source's get its number.
        (
            "The Eiffel Tower is a lattice tower in Paris, finished in 1889. Is it?",
            "The Eiffel Tower is a lattice tower in Paris, finished in 1889 [1]. Is it?",
        ),
        ("故宫旧称紫禁城，位于北京中轴线的中心。你好。", "故宫旧称紫禁城，位于北京中轴线的中心[3]。你好。"),
        (
            "- The Colosseum in Rome is the largest ancient amphitheatre ever built\n- Pizza",
            "- The Colosseum in Rome is the largest ancient amphitheatre ever built [2]\n- Pizza",
        ),
        (
            "1. **The Colosseum in Rome is the largest ancient amphitheatre.** It is old.",
            "1. **The Colosseum in Rome is the largest ancient amphitheatre [2].** It is old.",
        ),
        # Questions, headings and tables do not.
        ("Is the Colosseum in Rome the largest ancient amphitheatre ever built?",) * 2,
        ("## The Colosseum in Rome is the largest ancient amphitheatre ever built",) * 2,
        ("| Colosseum Rome largest ancient amphitheatre built | x |\n",) * 2,
        ("The Colosseum in Rome, 500 m, is the largest ancient amphitheatre ever built.",) * 2,
        # Ends of sentences that are none.
        ("To Dr. Smith the Eiffel Tower in Paris, e.g. its iron lattice, was finished in 1889 [1].",) * 2,
        ("See example.com or 3.14 [8].", "See example.com or 3.14."),
    ],
    ids=lambda text: text[:40],
)
def test_what_becomes_of_citations(answer, cited):
    assert checked(answer, SOURCES) == cited


@pytest.mark.parametrize(
    "text",
    [
        "`rows[9]` and ``a ` [9]``\n",
        "```python\nrows[9] = rows[8]  # [7]\n```\n",
        "~~~~\n~~~\nx[9]\n~~~~\n",
        "  ```\n  x[9]\n  ```\n",
        "Here: ```python\nx[9]\n```\n",
        "Like this:\n\n    x[9] = 1\n\n    y[8]\n",
        "```\nnever closed [9]",
        "`never closed [9]",
        "see [9](https://a.example/b) and [the text](https://a.example/x[9].html)\n",
        '[9](https://a.example "a title")',
        "![9](picture.png)",
        "The [x] and [ ] and [] and [sic] stay.",
        "`The Colosseum in Rome is the largest ancient amphitheatre ever built.`",
    ],
)
def test_code_and_links_stay_as_they_are(text):
    assert checked(text, SOURCES) == text


def test_brackets_behind_a_citation_are_no_link():
    assert checked("Eiffel Tower [1](in Paris) and [9](why not) end", SOURCES) == (
        "Eiffel Tower [1](in Paris) and (why not) end"
    )
    assert checked("Eiffel Tower [1](never closed [9]", SOURCES) == "Eiffel Tower [1](never closed"


LISBON = Source(
    1,
    "Lisbon",
    "https://lisbon.example/",
    "",
    (
        "Lisbon has 3.5 million residents in its metropolitan area. It lies 12 km from the sea. "
        "The bridge, which was never painted, opened in 1966 to traffic. "
        "Prices did not rise in March in the city centre.",
        "里斯本没有在1966年建成地铁。 大桥长2277米。",
    ),
)


@pytest.mark.parametrize(
    ("answer", "cited"),
    [
        # Of other units, as far as both say which.
        ("Lisbon has 3.5 billion residents [1].", "Lisbon has 3.5 billion residents."),
        ("Lisbon has 3.5 million residents [1].",) * 2,
        ("Lisbon has 3.5 residents [1].",) * 2,
        ("It lies 12 miles from the sea [1].", "It lies 12 miles from the sea."),
        ("It lies 12 kilometres from the sea [1].",) * 2,
        ("大桥长2277公里[1]。", "大桥长2277公里。"),
        ("大桥长2277米[1]。",) * 2,
        ("Lisbon has 3.5 billion residents in its metropolitan area.",) * 2,
        ("Lisbon has 3.5% residents in its metropolitan area.",) * 2,
        (
            "Lisbon has 3.5 million residents in its metropolitan area.",
            "Lisbon has 3.5 million residents in its metropolitan area [1].",
        ),
        # What one denies and the other does not.
        ("Prices rose in March in the city centre [1].", "Prices rose in March in the city centre."),
        ("Prices did not rise in March in the city centre [1].",) * 2,
        ("Prices didn't rise in March in the city centre [1].",) * 2,
        ("Prices in the city centre did rise in March.",) * 2,
        (
            "Prices in the city centre did not rise in March.",
            "Prices in the city centre did not rise in March [1].",
        ),
        ("里斯本在1966年建成地铁[1]。", "里斯本在1966年建成地铁。"),
        ("里斯本没有在1966年建成地铁[1]。",) * 2,
        # What is denied is something else.
        ("The bridge opened in 1966 [1].",) * 2,
        ("The bridge never opened in 1966 [1].", "The bridge never opened in 1966."),
        ("Lisbon isn't big, but has 3.5 million residents [1].",) * 2,
    ],
)
def test_a_source_is_not_cited_for_the_contrary_or_for_other_units(answer, cited):
    assert checked(answer, (LISBON,)) == cited


def test_units_and_denials_are_told_from_what_looks_like_them():
    assert measures("3.5bn €, two million, 5-year 3万 1,200 lions, 40 % 20 degrees Celsius") == {
        "3.5": {"billion"},
        "2": {"million"},
        "5": {"year"},
        "3": {"10^4"},
        "1200": {""},
        "40": {"%"},
        "20": {"°C"},
    }
    assert measures("5 m") == {"5": {"metre", "million"}}
    assert denied("特别好，不同的没有完工, not only big, won’t rise") == {"完工", "rise"}


@pytest.mark.parametrize(
    "text",
    [" " * 100_000, "`" * 100_000, "[1](" * 10_000, '[1](a. "' * 10_000, "a [1] b [2] " * 8_000],
    ids=lambda text: text[:12],
)
def test_nothing_takes_longer_than_its_length(text):
    bare_text = re.sub(r"\s|\[\d\]", "", text)
    assert re.sub(r"\s|\[\d\]", "", checked(text, SOURCES)) == bare_text


def test_prose_is_given_out_before_its_sentence_ends():
    filtering = CitationFilter(SOURCES)
    assert filtering.feed("The Eiffel Tower ") == "The Eiffel Tower"
    assert filtering.feed("is in Paris [") == " is in Paris"
    assert filtering.feed("1]") == ""
    assert filtering.feed(".") == ""
    assert filtering.feed(" B") == " [1]. B"
    assert filtering.finish() == ""


def test_without_sources_no_citation_is_left():
    assert checked("All is well [1]. 好【2】。", ()) == "All is well. 好。"


MARKS = (
    "[1]| [2]|[1, 9]|[9]|【3】|［1］|[|]|(|)|](|[1](http://a.b/c)|[x]|1|,|†"
    '|`|``|```|~~~|    | |- |# |1. |*|"|.|!|?|。|…'
)
WORDS = (
    "The Eiffel Tower is a lattice tower in Paris, finished in 1889"
    "|The Colosseum is the largest ancient amphitheatre"
    "|故宫旧称紫禁城，位于北京中轴线的中心|Dr|3.14|500|code"
)
fragments = st.sampled_from([*MARKS.split("|"), *WORDS.split("|"), "|", "\n", "\n\n"])
answers = st.lists(st.one_of(fragments, st.text(max_size=3)), max_size=25).map("".join)


@given(answers, st.data())
def test_it_makes_no_difference_in_which_pieces_an_answer_comes(answer, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=6)))
    filtering = CitationFilter(SOURCES)
    pieces = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    said = "".join([*map(filtering.feed, pieces), filtering.finish()])
    assert said == CitationFilter(SOURCES).whole(answer) == checked(answer, SOURCES)


def bare(text: str) -> str:
    """Without citations and spaces."""
    return re.sub(r"[\[【［][\d\s^,，、;；–†-][^\]】］\n]*[\]】］]|\s", "", text)


@given(
    st.lists(
        st.sampled_from(["a", "Paris", " ", ".", "\n", "[1]", "[9]", " [2]", "。", "故宫", "!", "- "])
    ).map("".join)
)
def test_nothing_is_changed_but_citations(answer):
    out = checked(answer, SOURCES)
    assert bare(out) == bare(answer)
    assert set(re.findall(r"\[(\d+)\]", out)) <= {"1", "2", "3"}


def test_long_answers_take_no_longer_than_their_length():
    answer = "The Eiffel Tower is in Paris [1]. " * 2000 + "[" * 5000 + "`" * 5000 + "(" * 5000
    assert checked(answer, SOURCES).startswith("The Eiffel Tower is in Paris [1]. ")
