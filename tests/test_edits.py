"""Edits in answers: read, placed, made as a whole or not at all, and taken back."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satchel.agent.edits import (
    Change,
    EditPlan,
    apply_plan,
    load_last,
    parse_edits,
    plan_edits,
    recover,
    undo,
)
from satchel.agent.edits import apply as applying
from satchel.errors import DamagedError, RefusedError, SatchelError, UsageError

CODE = "import os\n\ndef f(x):\n    return x\n\ndef g(x):\n    return x\n"


def planned(answer: str, root: Path, *, new: bool = False, **files: str | bytes) -> EditPlan:
    """The plan for `answer` with these files known, their names with `_` for a dot and `__` for a slash."""
    known = {}
    for name, content in files.items():
        path = name.replace("__", "/").replace("_", ".")
        known[path] = root / path
        known[path].parent.mkdir(parents=True, exist_ok=True)
        known[path].write_bytes(content.encode() if isinstance(content, str) else content)
    return plan_edits(parse_edits(answer), known, root if new else None)


def results(plan: EditPlan) -> dict[str, str | None]:
    assert plan.faults == ()
    return {
        change.path: change.after.decode() if change.after is not None else None for change in plan.changes
    }


def block(path: str, old: str, new: str) -> str:
    return f"{path}\n<<<<<<< SEARCH\n{old}=======\n{new}>>>>>>> REPLACE\n"


# -- unified diffs -----------------------------------------------------------------------------------

GOOD = (
    "--- a/a.py\n+++ b/a.py\n@@ -1,4 +1,5 @@\n import os\n+import sys\n \n def f(x):\n-    return x\n"
    "+    return x + 1\n"
)
DONE = "import os\nimport sys\n\ndef f(x):\n    return x + 1\n\ndef g(x):\n    return x\n"

DIFFS = {
    "in a fence": f"Sure:\n\n```diff\n{GOOD}```\n\nDone.",
    "bare": f"Sure:\n\n{GOOD}\n- I added one.\n- And sys.\n",
    "of git": f"```\ndiff --git a/a.py b/a.py\nindex 1111111..2222222 100644\n{GOOD}```",
    "with wrong counts": f"```diff\n{GOOD.replace('-1,4 +1,5', '-7,9 +7,1')}```",
    "bare with too small counts": GOOD.replace("-1,4 +1,5", "-1,2 +1,3"),
    "without numbers": f"```diff\n{GOOD.replace('-1,4 +1,5 ', '')}```",
    "with dots for numbers": f"```diff\n{GOOD.replace('-1,4 +1,5', '...')}```",
    "without a heading": f"```diff\n{GOOD.replace('@@ -1,4 +1,5 @@' + chr(10), '')}```",
    "with words behind the heading": f"```diff\n{GOOD.replace('+1,5 @@', '+1,5 @@ def f(x):')}```",
    "without prefixes of git": f"```diff\n{GOOD.replace('a/a.py', 'a.py').replace('b/a.py', 'a.py')}```",
    "with times": f"```diff\n{GOOD.replace('/a.py', '/a.py' + chr(9) + '2024-01-01 00:00:00')}```",
    "without the space of a blank line": f"```diff\n{GOOD.replace(chr(10) + ' ' + chr(10), chr(10) * 2)}```",
    "without the space of a line that stays": f"```diff\n{GOOD.replace(' import os', 'import os')}```",
    "with returns": f"```diff\n{GOOD}```".replace("\n", "\r\n"),
    "in a list": "1. This:\n   ```diff\n" + "".join(f"   {x}\n" for x in GOOD.splitlines()) + "   ```\n",
    "with tildes": f"~~~~ diff\n{GOOD}~~~~",
    "with the name above": "`a.py`:\n\n```diff\n" + GOOD.split("\n", 2)[2] + "```",
    "without a name": "```diff\n" + GOOD.split("\n", 2)[2] + "```",
    "only lines": "a.py\n```diff\n" + GOOD.split("\n", 3)[3] + "```",
}


@pytest.mark.parametrize("form", DIFFS)
def test_a_diff_is_made_however_it_is_written(tmp_path: Path, form: str) -> None:
    assert results(planned(DIFFS[form], tmp_path, a_py=CODE)) == {"a.py": DONE}


def test_a_diff_of_several_files_and_hunks(tmp_path: Path) -> None:
    answer = (
        "```diff\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-import os\n+import re\n@@ -6,2 +6,2 @@\n def g(x):\n"
        "-    return x\n+    return -x\n--- a/src/b.py\n+++ b/src/b.py\n@@ -1,2 +1 @@\n-one\n two\n```\n"
    )
    assert results(planned(answer, tmp_path, a_py=CODE, src__b_py="one\ntwo\n")) == {
        "a.py": "import re\n\ndef f(x):\n    return x\n\ndef g(x):\n    return -x\n",
        "src/b.py": "two\n",
    }


def test_lines_like_headers_are_lines(tmp_path: Path) -> None:
    answer = "```diff\n--- a/a.sql\n+++ b/a.sql\n@@ -1,2 +1,2 @@\n--- old\n+++ new\n x\n```"
    assert results(planned(answer, tmp_path, a_sql="-- old\nx\n")) == {"a.sql": "++ new\nx\n"}


def test_quoted_and_spaced_names(tmp_path: Path) -> None:
    answer = (
        '--- "a/caf\\303\\251.txt"\n+++ "b/caf\\303\\251.txt"\n@@ -1 +1 @@\n-a\n+b\n'
        "diff --git a/my file.txt b/my file.txt\n--- a/my file.txt\t\n+++ b/my file.txt\t\n"
        "@@ -1 +1 @@\n-a\n+b\n"
    )
    for name in ("café.txt", "my file.txt"):
        (tmp_path / name).write_text("a\n")
    known = {name: tmp_path / name for name in ("café.txt", "my file.txt")}
    assert results(plan_edits(parse_edits(answer), known)) == {"café.txt": "b\n", "my file.txt": "b\n"}


def test_new_and_deleted_files(tmp_path: Path) -> None:
    answer = (
        "```diff\n--- /dev/null\n+++ b/src/new.py\n@@ -0,0 +1,2 @@\n+one\n+two\n"
        "--- a/old.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-gone\n"
        "diff --git a/empty b/empty\nnew file mode 100755\nindex 0000000..e69de29\n```"
    )
    plan = planned(answer, tmp_path, new=True, old_py="gone\n")
    assert results(plan) == {"src/new.py": "one\ntwo\n", "old.py": None, "empty": ""}


# -- SEARCH/REPLACE blocks ---------------------------------------------------------------------------

BODY = "<<<<<<< SEARCH\n    return x\n\ndef g(x):\n=======\n    return 2 * x\n\ndef g(x):\n>>>>>>> REPLACE\n"
BLOCKS = {
    "with the name above the fence": f"a.py\n```python\n{BODY}```",
    "with the name in the fence": f"```python\na.py\n{BODY}```",
    "with the name behind the fence": f"```python a.py\n{BODY}```",
    "without a fence": f"First:\n\na.py\n{BODY}Done.",
    "with a decorated name": f"### `a.py`:\n\n```\n{BODY}```",
    "with a label": f"**File: a.py**\n```\n{BODY}```",
    "with a name in a sentence": f"I change `a.py` here:\n```\n{BODY}```",
    "without a name": f"Here:\n```\n{BODY}```",
    "in a list": "- a.py\n" + "".join(f"  {line}\n" for line in BODY.splitlines()),
    "with returns": f"a.py\n{BODY}".replace("\n", "\r\n"),
    "with short markers": f"a.py\n{BODY}".replace("<<<<<<<", "<<<<<").replace("=======", "====="),
}


@pytest.mark.parametrize("form", BLOCKS)
def test_a_block_is_made_however_it_is_written(tmp_path: Path, form: str) -> None:
    expected = CODE.replace("    return x\n\n", "    return 2 * x\n\n")
    assert results(planned(BLOCKS[form], tmp_path, a_py=CODE)) == {"a.py": expected}


def test_blocks_follow_each_other_and_keep_the_name(tmp_path: Path) -> None:
    answer = (
        f"```\n{block('a.py', 'one{n}', 'two{n}').format(n=chr(10))}"
        "\n<<<<<<< SEARCH\ntwo\n=======\nthree\n>>>>>>> REPLACE\n```\nNow the last:\n"
        "```\n<<<<<<< SEARCH\nend\n=======\nEND\n>>>>>>> REPLACE\n```\nand\n" + block("b.py", "x\n", "y\n")
    )
    plan = planned(answer, tmp_path, a_py="one\nend\n", b_py="x\n")
    assert results(plan) == {"a.py": "three\nEND\n", "b.py": "y\n"}


def test_a_block_may_hold_fences(tmp_path: Path) -> None:
    answer = "```markdown\n" + block("README.md", "```sh\nold\n```\n", "```sh\nnew\n```\n") + "```"
    plan = planned(answer, tmp_path, README_md="# A\n```sh\nold\n```\n")
    assert results(plan) == {"README.md": "# A\n```sh\nnew\n```\n"}


def test_an_empty_search_is_a_new_file_or_fills_an_empty_one(tmp_path: Path) -> None:
    answer = (
        block("new/a.txt", "", "one\n") + block("new/a.txt", "one\n", "two\n") + block("e.txt", "", "e\n")
    )
    plan = planned(answer, tmp_path, new=True, e_txt="")
    assert results(plan) == {"new/a.txt": "two\n", "e.txt": "e\n"}
    plan = planned(block("a.txt", "", "x\n"), tmp_path, a_txt="is here\n")
    assert plan.faults == ("a.txt: it writes a new file, and the file is there already, and not empty",)


def test_a_known_file_that_is_not_to_be_edited_says_why(tmp_path: Path) -> None:
    answer = block("a.txt", "", "x\n") + block("sub/b.txt", "b\n", "c\n")
    plan = plan_edits(parse_edits(answer), {"a.txt": "not here", "sub/b.txt": "nor here"}, tmp_path)
    assert plan.faults == ("a.txt: not here", "sub/b.txt: nor here")
    assert plan.changes == ()


def test_a_file_elsewhere_is_shown_with_where_it_is(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    (there / "a.txt").write_text("a\n")
    (here / "link").symlink_to(there / "a.txt")
    edits = parse_edits(block("a.txt", "a\n", "b\n"))
    diff = plan_edits(edits, {"a.txt": there / "a.txt"}, here).diff()
    assert diff == f"--- {there}/a.txt\n+++ {there}/a.txt\n@@ -1 +1 @@\n-a\n+b\n"
    edits = parse_edits(block("link", "a\n", "b\n"))
    assert plan_edits(edits, {"link": there / "a.txt"}, here).changes[0].path == "link"


def test_an_empty_replacement_deletes_lines(tmp_path: Path) -> None:
    assert results(planned(block("a.txt", "b\n", ""), tmp_path, a_txt="a\nb\nc\n")) == {"a.txt": "a\nc\n"}


@pytest.mark.parametrize(
    "answer", ["", "No changes.", "```python\nx = 1\n```", "a\n=======\nb", "--- a\n---\n"]
)
def test_an_answer_without_edits_has_none(answer: str) -> None:
    assert parse_edits(answer) == []


TOKENS = st.sampled_from(
    [
        *(
            "```diff\n",
            "```\n",
            "~~~\n",
            "--- a/x\n",
            "+++ b/x\n",
            "--- /dev/null\n",
            "+++ /dev/null\n",
            "@@\n",
        ),
        *("@@ -1,2 +1,3 @@\n", "@@ -99999999999,1 +1 @@\n", "+a\n", "-b\n", " c\n", "\n", "x.py\n", "\\\n"),
        *("<<<<<<< SEARCH\n", "=======\n", ">>>>>>> REPLACE\n", "diff --git a/x b/x\n", "new file mode 1\n"),
        *(
            '--- "a/\\303\\x"\n',
            "rename from x\n",
            "  ```python x.py\n",
            "+++ /etc/passwd\n",
            "\\ No newline\n",
        ),
    ]
)


@settings(max_examples=300)
@given(st.text() | st.lists(TOKENS | st.text(max_size=5), max_size=25).map("".join))
def test_no_answer_breaks_the_reading_or_leaves_the_known_files(answer: str) -> None:
    known = {"x": Path(__file__), "x.py": Path(__file__).parent / "conftest.py"}
    plan = plan_edits(parse_edits(answer), known)
    assert {change.path for change in plan.changes} <= {"x", "x.py"}
    plan.diff()


TEXTS = st.text("ab \n-+\\@<>=`\t\x0c\u2028", max_size=60)


@given(before=TEXTS, after=TEXTS, fenced=st.booleans())
def test_a_plans_diff_makes_the_same_again(
    tmp_path_factory: pytest.TempPathFactory, before: str, after: str, fenced: bool
) -> None:
    file = tmp_path_factory.getbasetemp() / "my file"
    file.write_text(before, newline="")
    diff = Change("my file", file, before.encode(), after.encode()).diff()
    answer = f"So:\n````diff\n{diff}````\nDone" if fenced else f"So:\n{diff}\nDone"
    plan = plan_edits(parse_edits(answer), {"my file": file})
    assert results(plan) == ({"my file": after} if before != after else {})


# -- placing -----------------------------------------------------------------------------------------


def hunk(line: int | str, *lines: str) -> str:
    heading = f"@@ -{line},1 +{line},1 @@" if line else "@@"
    return "\n".join(["```diff", "--- a/a", "+++ b/a", heading, *lines, "```"])


def test_of_equal_places_the_stated_line_is_taken(tmp_path: Path) -> None:
    plan = planned(hunk(3, "-x", "+y"), tmp_path, a="x\n-\nx\n-\nx\n")
    assert results(plan) == {"a": "x\n-\ny\n-\nx\n"}


def test_the_only_place_is_taken_wherever_it_is(tmp_path: Path) -> None:
    assert results(planned(hunk(1, "-x", "+y"), tmp_path, a="a\nb\nx\n")) == {"a": "a\nb\ny\n"}


def test_whitespace_at_the_ends_of_lines_does_not_count(tmp_path: Path) -> None:
    plan = planned(hunk(1, " a", "-x", "+y"), tmp_path, a="a  \nx\t\nz \n")
    assert results(plan) == {"a": "a  \ny\nz \n"}


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (
            "  if a:\n\n      b\n",
            "if a:\n\n    b\n",
            "if a:\n\n    c\n    d\n",
            "  if a:\n\n      c\n      d\n",
        ),
        ("if a:\n    b\n", "    if a:\n        b\n", "    if a:\n        c\n", "if a:\n    c\n"),
        ("\tif a:\n\t\tb\n", "if a:\n\tb\n", "if not a:\n\tb\n", "\tif not a:\n\t\tb\n"),
    ],
)
def test_an_indentation_that_differs_by_the_same_is_kept(
    tmp_path: Path, before: str, old: str, new: str, after: str
) -> None:
    assert results(planned(block("a", old, new), tmp_path, a=before)) == {"a": after}


def test_two_hunks_of_one_diff_go_by_the_file_before_both(tmp_path: Path) -> None:
    answer = "--- a/a\n+++ b/a\n@@ -1 +1,3 @@\n-1\n+2\n+2\n+2\n@@ -2 +4 @@\n-2\n+3\n"
    assert results(planned(answer, tmp_path, a="1\n2\n")) == {"a": "2\n2\n2\n3\n"}


def test_an_insertion_without_any_line_goes_where_a_real_diff_says(tmp_path: Path) -> None:
    answer = "--- a/a\n+++ b/a\n@@ -1,0 +2 @@\n+new\n"
    assert results(planned(answer, tmp_path, a="1\n2\n")) == {"a": "1\nnew\n2\n"}


FAULTS = {
    "two places": (
        hunk("", "-x", "+y"),
        "a: hunk 1 (`x`) does not fit: its lines are in 2 places: at lines 1, 3",
    ),
    "a line that differs": (
        hunk(1, " -", "-two", "+y"),
        "a: hunk 1 (`-`) does not fit: its lines are not there; nearest is line 3, where `x` stands in place "
        "of `two`",
    ),
    "a line like it": (
        hunk(1, "-the lost line", "+y"),
        "a: hunk 1 (`the lost line`) does not fit: its lines are not there; nearest is line 4, "
        "`the last line`",
    ),
    "nothing like it": (
        hunk(1, "-0123456789", "+y"),
        "a: hunk 1 (`0123456789`) does not fit: its lines are not there; nothing in the file is like them",
    ),
    "done already": (
        hunk(1, "-the first line", "+the last line"),
        "a: hunk 1 (`the first line`) does not fit: its lines are not there, and what it makes of them is: "
        "it seems to be done already",
    ),
    "the second hunk": (
        "--- a/a\n+++ b/a\n@@ -2 +2 @@\n--\n+y\n@@ -9 +9 @@\n-0123456789\n+z\n",
        "a: hunk 2 (`0123456789`) does not fit: its lines are not there; nothing in the file is like them",
    ),
    "the same lines twice": (
        "--- a/a\n+++ b/a\n@@ -2 +2 @@\n--\n+y\n@@ -2 +2 @@\n--\n+z\n",
        "a: hunk 2 (`-`) does not fit: it changes lines that an earlier hunk changes",
    ),
    "no line at all": (
        hunk("", "+y"),
        "a: hunk 1 (`y`) does not fit: it has no line of the file, which is not empty: nothing says where "
        "it goes",
    ),
    "cut off in a block": (
        "a\n<<<<<<< SEARCH\nx\n=======\ny\n",
        "a: the block has no line `>>>>>>> REPLACE`",
    ),
    "cut off in a block's beginning": ("a\n<<<<<<< SEARCH\nx\n", "a: the block has no line `=======`"),
    "cut off in a diff": (hunk(1, "-x", "+y")[:-4], "a: the answer ends within it"),
    "no change": ("```diff\n--- a/a\n+++ b/a\n```", "a: it changes no line"),
    "a new mode": ("diff --git a/a b/a\nold mode 100644\nnew mode 100755\n", "a: it changes no line"),
    "a new name": (
        "--- a/a\n+++ b/c\n@@ -1 +1 @@\n-x\n+y\n",
        "c: it renames a to c, which is not done",
    ),
    "a rename of git": (
        "diff --git a/a b/c\nsimilarity index 100%\nrename from a\nrename to c\n",
        "c: it renames or copies a file, which is not done",
    ),
    "a binary": ("diff --git a/a b/a\nBinary files a/a and b/a differ\n", "a: it changes a binary file"),
    "an unknown file": (hunk(1, "-x", "+y").replace("/a", "/c"), "c: it is none of the files in context"),
    "a deletion that shows a part": (
        "--- a/a\n+++ /dev/null\n@@ -2 +0,0 @@\n--\n",
        "a: it deletes the file, and does not show all that is in it",
    ),
    "another indentation for each line": (
        block("a", "    x\n  -\n  x\n", "y\n"),
        "a: hunk 1 (`x`) does not fit: its lines are not there; nearest is line 1, where only the "
        "indentation differs, in more than one way",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_what_does_not_fit_is_told_exactly(tmp_path: Path, case: str) -> None:
    answer, fault = FAULTS[case]
    plan = planned(answer, tmp_path, a="x\n-\nx\nthe last line\n")
    assert plan.faults == (fault,)


def test_a_name_may_be_the_end_of_one_paths(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"src__a_py": "x\n", "lib__b_py": "x\n", "src__b_py": "x\n"}
    assert results(planned(block("a.py", "x\n", "y\n"), tmp_path, **files)) == {"src/a.py": "y\n"}
    assert results(planned(block("./lib/b.py", "x\n", "y\n"), tmp_path, **files)) == {"lib/b.py": "y\n"}
    assert results(planned(block("the file src/a.py", "x\n", "y\n"), tmp_path, **files)) == {
        "src/a.py": "y\n"
    }
    plan = planned(block("b.py", "x\n", "y\n"), tmp_path, **files)
    assert plan.faults == ("b.py: it is none of the files in context",)


# -- what files are like stays so --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"a\r\nx\r\nb\r\n", b"a\r\ny\r\nz\r\nb\r\n"),
        (b"a\r\nx", b"a\r\ny\r\nz"),
        (b"\xef\xbb\xbfx\nb\n", b"\xef\xbb\xbfy\nz\nb\n"),
        (b"a\nx", b"a\ny\nz"),
        (b"a\r\nx\nb\n", b"a\r\ny\nz\nb\n"),
        (b"x\x0c\n\x1ca\n", None),
        ("\u2028\nx\n\x85\n".encode(), "\u2028\ny\nz\n\x85\n".encode()),
    ],
)
def test_line_ends_marks_and_a_missing_newline_stay(
    tmp_path: Path, before: bytes, after: bytes | None
) -> None:
    plan = planned(hunk("", "-x", "+y", "+z"), tmp_path, a=before)
    if after is None:
        assert plan.faults
    else:
        assert [change.after for change in plan.changes] == [after]


def test_a_diff_can_say_that_the_last_newline_goes_or_comes(tmp_path: Path) -> None:
    none = "\\ No newline at end of file"
    assert results(planned(hunk(1, "-x", "+x", none), tmp_path, a="x\n")) == {"a": "x"}
    assert results(planned(hunk(1, "-x", none, "+x"), tmp_path, a="x")) == {"a": "x\n"}
    assert results(planned(hunk(1, "-x", none, "+y", none), tmp_path, a="x")) == {"a": "y"}
    assert results(planned(hunk(1, "-x", "+y", none), tmp_path, a="x\nb\n")) == {"a": "y\nb\n"}


def test_the_plans_diff_is_right_for_patch(tmp_path: Path) -> None:
    answer = hunk(1, "-x", "+y") + "\n" + block("new.txt", "", "1\n") + block("my b.txt", "b\n", "")
    (tmp_path / "my b.txt").write_text("b\n")
    (tmp_path / "a").write_text("x")
    known = {"a": tmp_path / "a", "my b.txt": tmp_path / "my b.txt"}
    assert plan_edits(parse_edits(answer), known, tmp_path).diff() == (
        "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-x\n\\ No newline at end of file\n+y\n\\ No newline at end of file\n"
        "--- /dev/null\n+++ b/new.txt\n@@ -0,0 +1 @@\n+1\n"
        "--- a/my b.txt\t\n+++ b/my b.txt\t\n@@ -1 +0,0 @@\n-b\n"
    )


# -- safety ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        *("/etc/evil", "../evil", "sub/../../evil", "~/evil", ".git/hooks/pre-commit", "sub/.GIT/config"),
        *("out/evil", "dangling/evil", "secret.txt", "file/evil", "a\x07b", "sub/", "alias/config"),
    ],
)
def test_new_files_stay_in_the_directory(tmp_path: Path, path: str) -> None:
    work = tmp_path / "work"
    (work / "sub").mkdir(parents=True)
    (work / ".git").mkdir()
    (work / "out").symlink_to(tmp_path)
    (work / "dangling").symlink_to(tmp_path / "nowhere")
    (work / "alias").symlink_to(".git")
    (work / "secret.txt").write_text("not in context")
    (work / "file").write_text("")
    diff = f"```diff\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n```".replace("b//", "/")
    for answer in (block(path, "", "x\n"), diff):
        edits = parse_edits(answer)
        assert len(edits) == 1
        plan = plan_edits(edits, {}, work)
        assert plan.changes == ()
        assert len(plan.faults) == 1
        assert plan_edits(edits, {}).changes == ()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["work"]


def test_what_is_no_text_file_to_write_to_is_not_edited(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("x\n")
    (tmp_path / "binary").write_bytes(b"x\n\0")
    (tmp_path / "latin").write_bytes(b"x\n\xe9")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    names = [".git/config", "binary", "folder", "gone", "latin", "pipe"]
    known = {name: tmp_path / name for name in names}
    answer = "\n".join(block(name, "x\n", "y\n") for name in names)
    assert plan_edits(parse_edits(answer), known) == EditPlan(
        (),
        (
            ".git/config: nothing is written in a .git directory",
            "binary: it is binary",
            "folder: it is not a file",
            "gone: the file is not there any more",
            "latin: it is not UTF-8",
            "pipe: it is not a file",
        ),
    )


def test_faults_are_one_line_and_drive_no_terminal(tmp_path: Path) -> None:
    answer = f"--- a/a\x1b[2J\n+++ b/a\x1b[2J\n@@ -1 +1 @@\n-\x1b]0;x\x07{'y' * 200}\n+z\n" + hunk(
        1, "-\x1b[2Jq", "+"
    )
    faults = planned(answer, tmp_path, a="x\n").faults
    assert len(faults) == 2
    assert all(fault.isprintable() and len(fault) < 250 for fault in faults)


# -- making and taking back --------------------------------------------------------------------------


@pytest.fixture
def backups(tmp_path: Path) -> Path:
    return tmp_path / "data" / "backups"


def three(root: Path) -> EditPlan:
    """Changes one file, deletes one, and makes one in a directory of its own."""
    answer = (
        block("a.txt", "x\n", "y\n")
        + "\n--- a/old.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-old\n"
        + "\n--- /dev/null\n+++ b/deep/er/new.txt\n@@ -0,0 +1 @@\n+new\n"
    )
    return planned(answer, root, new=True, a_txt="x\r\nrest\n", old_txt="old\n")


def state(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else b"/"
        for path in sorted(root.rglob("*"))
        if "data" not in path.parts and "home" not in path.parts
    }


BEFORE = {"a.txt": b"x\r\nrest\n", "old.txt": b"old\n"}
AFTER = {"a.txt": b"y\r\nrest\n", "deep": b"/", "deep/er": b"/", "deep/er/new.txt": b"new\n"}


def test_all_is_made_and_taken_back(tmp_path: Path, backups: Path) -> None:
    plan = three(tmp_path)
    (tmp_path / "a.txt").chmod(0o751)
    (tmp_path / "old.txt").chmod(0o604)
    mask = os.umask(0o026)
    try:
        applied = apply_plan(plan, backups)
    finally:
        os.umask(mask)
    assert state(tmp_path) == AFTER
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o751
    assert stat.S_IMODE((tmp_path / "deep/er/new.txt").stat().st_mode) == 0o640
    assert undo(applied) == ("a.txt", "old.txt", "deep/er/new.txt")
    assert state(tmp_path) == BEFORE
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o751
    assert stat.S_IMODE((tmp_path / "old.txt").stat().st_mode) == 0o604
    with pytest.raises(RefusedError, match="taken back already"):
        undo(applied)


def test_backups_are_private_and_found_again(tmp_path: Path, backups: Path) -> None:
    assert load_last(backups) is None
    first = apply_plan(three(tmp_path), backups)
    known = {"a.txt": tmp_path / "a.txt"}
    second = apply_plan(plan_edits(parse_edits(block("a.txt", "y\n", "z\n")), known), backups)
    assert [first.folder.name, second.folder.name] == ["000001", "000002"]
    assert load_last(backups) == second
    assert (second.folder / "0").read_bytes() == b"y\r\nrest\n"
    assert {stat.S_IMODE(path.stat().st_mode) for path in second.folder.iterdir()} == {0o600}
    assert stat.S_IMODE(second.folder.stat().st_mode) == 0o700
    undo(second)
    last = load_last(backups)
    assert last == first
    undo(last)
    assert load_last(backups) is None
    assert state(tmp_path) == BEFORE


def test_a_plan_with_faults_or_without_changes_is_refused(tmp_path: Path, backups: Path) -> None:
    plan = planned(block("a", "x\n", "y\n") + block("b", "no\n", "y\n"), tmp_path, a="x\n", b="x\n")
    assert len(plan.changes) == 1
    with pytest.raises(RefusedError, match=r"b: hunk 1 \(`no`\) does not fit"):
        apply_plan(plan, backups)
    with pytest.raises(UsageError, match="the edits change nothing"):
        apply_plan(planned(block("a", "x\n", "x\n"), tmp_path, a="x\n"), backups)
    assert (tmp_path / "a").read_text() == "x\n"
    assert not backups.exists()


@pytest.mark.parametrize(
    ("path", "content"), [("a.txt", "other"), ("old.txt", None), ("deep/er/new.txt", "theirs")]
)
def test_what_changed_since_it_was_read_is_not_overwritten(
    tmp_path: Path, backups: Path, path: str, content: str | None
) -> None:
    plan = three(tmp_path)
    if content is None:
        (tmp_path / path).unlink()
    else:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    before = state(tmp_path)
    with pytest.raises(RefusedError, match=f"changed since it was read: {path}"):
        apply_plan(plan, backups)
    assert state(tmp_path) == before


@pytest.mark.parametrize(
    ("path", "content"), [("a.txt", "other"), ("old.txt", "theirs"), ("deep/er/new.txt", "more")]
)
def test_what_changed_since_it_was_edited_is_not_undone(
    tmp_path: Path, backups: Path, path: str, content: str
) -> None:
    applied = apply_plan(three(tmp_path), backups)
    (tmp_path / path).write_text(content)
    before = state(tmp_path)
    with pytest.raises(RefusedError, match=f"changed since it was edited: {path}"):
        undo(applied)
    assert state(tmp_path) == before
    assert load_last(backups) == applied


def test_a_folder_that_was_made_stays_if_something_else_is_in_it(tmp_path: Path, backups: Path) -> None:
    applied = apply_plan(three(tmp_path), backups)
    (tmp_path / "deep" / "theirs").write_text("theirs")
    undo(applied)
    assert state(tmp_path) == {**BEFORE, "deep": b"/", "deep/theirs": b"theirs"}


def test_a_link_put_in_the_way_is_not_followed(tmp_path: Path, backups: Path) -> None:
    plan = planned(block("new/a.txt", "", "x\n"), tmp_path, new=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "new").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RefusedError):
        apply_plan(plan, backups)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_known_link_stays_one(tmp_path: Path, backups: Path) -> None:
    (tmp_path / "real.txt").write_text("x\n")
    (tmp_path / "link.txt").symlink_to("real.txt")
    plan = plan_edits(parse_edits(block("link.txt", "x\n", "y\n")), {"link.txt": tmp_path / "link.txt"})
    apply_plan(plan, backups)
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "y\n"


@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_where_one_write_fails_the_others_are_put_back(
    tmp_path: Path, backups: Path, monkeypatch: pytest.MonkeyPatch, failing: int, error: BaseException
) -> None:
    plan = three(tmp_path)
    make, calls = applying._Step.make, []

    def fails_once(step: applying._Step) -> None:
        calls.append(step.path)
        if len(calls) == failing + 1:
            raise error
        make(step)

    monkeypatch.setattr(applying._Step, "make", fails_once)
    with pytest.raises((SatchelError, KeyboardInterrupt)) as caught:
        apply_plan(plan, backups)
    if isinstance(error, OSError):
        name = plan.changes[failing].path
        assert str(caught.value) == f"cannot write {name}: No space left on device"
    assert state(tmp_path) == BEFORE
    assert recover(backups) == ()
    assert load_last(backups) is None
    monkeypatch.undo()
    undo(apply_plan(plan, backups))


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_undo_that_fails_undoes_nothing(
    tmp_path: Path, backups: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    applied = apply_plan(three(tmp_path), backups)
    make, calls = applying._Step.make, []

    def fails_once(step: applying._Step) -> None:
        calls.append(step.path)
        if len(calls) == failing + 1:
            raise OSError(28, "No space left on device")
        make(step)

    monkeypatch.setattr(applying._Step, "make", fails_once)
    with pytest.raises(SatchelError, match="No space left on device"):
        undo(applied)
    assert state(tmp_path) == AFTER
    assert load_last(backups) == applied
    undo(applied)
    assert state(tmp_path) == BEFORE


KILLED = """
import os, sys
from pathlib import Path
from satchel.agent.edits import apply as applying, parse_edits, plan_edits

root, what, step = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
backups, answer = root / "data" / "backups", (root / "data" / "answer").read_text()
known = {name: root / name for name in ("a.txt", "old.txt")}
plan = plan_edits(parse_edits(answer), known, root)
applied = applying.apply_plan(plan, backups) if what == "undo" else None
make, set_state, made = applying._Step.make, applying.Applied.set_state, []

def make_or_die(self):
    if len(made) == step:
        os.kill(os.getpid(), 9)
    made.append(self)
    make(self)

def set_state_or_die(self, state):
    if len(made) == step == 3:
        os.kill(os.getpid(), 9)
    set_state(self, state)

applying._Step.make, applying.Applied.set_state = make_or_die, set_state_or_die
if applied:
    applying.undo(applied)
else:
    applying.apply_plan(plan, backups)
"""


@pytest.mark.parametrize("what", ["apply", "undo"])
@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_a_kill_between_writes_is_taken_back(tmp_path: Path, backups: Path, what: str, step: int) -> None:
    (tmp_path / "a.txt").write_bytes(BEFORE["a.txt"])
    (tmp_path / "old.txt").write_bytes(BEFORE["old.txt"])
    backups.mkdir(parents=True)
    answer = (
        block("a.txt", "x\n", "y\n")
        + "\n--- a/old.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-old\n"
        + "\n--- /dev/null\n+++ b/deep/er/new.txt\n@@ -0,0 +1 @@\n+new\n"
    )
    (backups.parent / "answer").write_text(answer)
    command = [sys.executable, "-c", KILLED, str(tmp_path), what, str(step)]
    assert subprocess.run(command, timeout=60).returncode == -9
    told = recover(backups)
    assert len(told) == (step if what == "apply" else 3 - step)
    assert all(line.endswith(": an interrupted edit was taken back") for line in told)
    assert state(tmp_path) == BEFORE
    assert recover(backups) == ()
    assert load_last(backups) is None


def test_what_changed_since_an_interruption_is_left_and_told(
    tmp_path: Path, backups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied = apply_plan(three(tmp_path), backups)
    applied.set_state("")
    (tmp_path / "a.txt").write_text("theirs\n")
    assert recover(backups) == (
        f"a.txt: changed since an interrupted edit; see {applied.folder}",
        "old.txt: an interrupted edit was taken back",
        "deep/er/new.txt: an interrupted edit was taken back",
    )
    assert state(tmp_path) == {**BEFORE, "a.txt": b"theirs\n"}
    assert recover(backups) == ()


def test_a_damaged_backup_is_refused(tmp_path: Path, backups: Path) -> None:
    applied = apply_plan(three(tmp_path), backups)
    (applied.folder / "0").write_bytes(b"something else")
    with pytest.raises(DamagedError, match="missing or damaged"):
        undo(applied)
    assert state(tmp_path) == AFTER
    manifest = json.loads((applied.folder / "manifest.json").read_text())
    (applied.folder / "manifest.json").write_text(json.dumps({**manifest, "version": 2}))
    with pytest.raises(DamagedError, match="damaged, or of another version"):
        load_last(backups)


def test_old_backups_are_deleted(tmp_path: Path, backups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applying, "KEPT_BACKUPS", 2)
    for _ in range(4):
        undo(apply_plan(three(tmp_path), backups))
    assert sorted(path.name for path in backups.iterdir()) == ["000003", "000004", "lock"]
