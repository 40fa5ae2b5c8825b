"""What .gitignore files leave out, as git itself says it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from satchel.agent.context import collect
from satchel.agent.ignoring import Ignoring

# Of each: .gitignore files by their directories, the files that are there, and those that are not ignored.
CASES = {
    "names anywhere, and directories": (
        {"": "*.log\nbuild/\n"},
        ["a.py", "x.log", "sub/y.log", "build/out.py", "sub/build/out.py", "builds"],
        ["a.py", "builds"],
    ),
    "a name with a slash is from here": (
        {"": "/top.txt\nsub/one.txt\n"},
        ["top.txt", "sub/top.txt", "sub/one.txt", "deep/sub/one.txt"],
        ["deep/sub/one.txt", "sub/top.txt"],
    ),
    "the last rule that says something wins": (
        {"": "*.txt\n!keep.txt\n"},
        ["a.txt", "keep.txt", "sub/keep.txt"],
        ["keep.txt", "sub/keep.txt"],
    ),
    "the nearest file wins": (
        {"": "*.txt\n", "sub": "!*.txt\nsecret.txt\n", "sub/deep": "!secret.txt\n"},
        ["a.txt", "sub/b.txt", "sub/secret.txt", "sub/deep/secret.txt"],
        ["sub/b.txt", "sub/deep/secret.txt"],
    ),
    "nothing comes back out of an ignored directory": (
        {"": "dir/\n!dir/keep.txt\n", "dir": "!keep.txt\n"},
        ["dir/keep.txt", "other.txt"],
        ["other.txt"],
    ),
    "all but what is asked for": (
        {"": "/*\n!/src\n!/README\n"},
        ["README", "notes", "src/a.py", "src/deep/b.py", "lib/c.py"],
        ["README", "src/a.py", "src/deep/b.py"],
    ),
    "all below, but one": (
        {"": "data/**\n!data/keep.txt\n"},
        ["data/a.txt", "data/keep.txt", "data/sub/b.txt"],
        ["data/keep.txt"],
    ),
    "any directories between": (
        {"": "a/**/z\n"},
        ["a/z", "a/b/z", "a/b/c/z", "b/a/z"],
        ["b/a/z"],
    ),
    "comments, escapes, classes, spaces, returns and rules that say nothing": (
        {"": "\ufeff*.o\r\n# note\n\\#real\n\\!bang\n[ab].c\n\n!\n/\nspaced name\ntrailing  \n"},
        ["x.o", "# note", "#real", "!bang", "a.c", "c.c", "spaced name", "trailing", "ok"],
        ["# note", "c.c", "ok"],
    ),
}


def make(root: Path, rules: dict[str, str], files: list[str]) -> None:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text("text\n")
    for folder, text in rules.items():
        (root / folder / ".gitignore").write_bytes(text.encode())


def listed(root: Path, wanted: str = ".") -> list[str]:
    return sorted(file.path for file in collect([wanted], root).files if ".gitignore" not in file.path)


@pytest.mark.parametrize("case", CASES)
def test_ignored_files_are_left_out(tmp_path: Path, case: str) -> None:
    rules, files, left = CASES[case]
    make(tmp_path, rules, files)
    (tmp_path / ".git").mkdir()
    assert listed(tmp_path) == left


@pytest.mark.parametrize("case", CASES)
def test_git_says_the_same(tmp_path: Path, case: str) -> None:
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is not installed")
    rules, files, left = CASES[case]
    make(tmp_path, rules, files)
    nothing = {"HOME": str(tmp_path / "none"), "GIT_CONFIG_NOSYSTEM": "1", "PATH": os.environ["PATH"]}
    subprocess.run([git, "init", "-q", str(tmp_path)], check=True, env=nothing)
    command = [git, "ls-files", "-z", "--others", "--exclude-standard"]
    told = subprocess.run(command, cwd=tmp_path, env=nothing, check=True, capture_output=True, text=True)
    assert sorted(path for path in told.stdout.split("\0") if path and ".gitignore" not in path) == left


def test_rules_of_the_directories_above_count_up_to_the_repository(tmp_path: Path) -> None:
    make(
        tmp_path,
        {"": "*.py\n", "repo": "*.log\n/pkg/gen.txt\n", "repo/pkg": "!important.log\n"},
        ["repo/pkg/a.py", "repo/pkg/b.log", "repo/pkg/important.log", "repo/pkg/gen.txt"],
    )
    (tmp_path / "repo" / ".git").mkdir()
    assert listed(tmp_path / "repo" / "pkg") == ["a.py", "important.log"]


def test_the_repositorys_own_excludes_count_least(tmp_path: Path) -> None:
    make(tmp_path, {"": "!kept.tmp\n"}, ["a.tmp", "kept.tmp", "b.txt"])
    (tmp_path / ".git" / "info").mkdir(parents=True)
    (tmp_path / ".git" / "info" / "exclude").write_text("*.tmp\n")
    assert listed(tmp_path) == ["b.txt", "kept.tmp"]


def test_outside_of_a_repository_the_rules_begin_with_the_directory(tmp_path: Path) -> None:
    make(tmp_path, {"": "*.py\n", "here": "*.log\n"}, ["here/a.py", "here/b.log"])
    assert listed(tmp_path / "here") == ["a.py"]


def test_an_ignored_directory_that_is_named_is_read_by_its_own_rules(tmp_path: Path) -> None:
    make(tmp_path, {"": "out/\n", "out": "*.log\n"}, ["out/a.txt", "out/b.log"])
    (tmp_path / ".git").mkdir()
    assert listed(tmp_path, "out") == ["out/a.txt"]


def test_a_rules_file_that_is_a_link_or_a_pipe_has_no_rules(tmp_path: Path) -> None:
    make(tmp_path, {}, ["linked/a.log", "pipe/b.log"])
    (tmp_path / "rules").write_text("*.log\n")
    (tmp_path / "linked" / ".gitignore").symlink_to(tmp_path / "rules")
    os.mkfifo(tmp_path / "pipe" / ".gitignore")
    rules = Ignoring.of(tmp_path / "linked")
    assert not rules.ignores(tmp_path / "linked" / "a.log", is_dir=False)
    rules = Ignoring.of(tmp_path / "pipe")
    assert not rules.ignores(tmp_path / "pipe" / "b.log", is_dir=False)


def test_rules_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    make(tmp_path, {}, ["a.txt"])
    (tmp_path / ".gitignore").write_text("#" * (2 << 20))
    rules = Ignoring.of(tmp_path)
    assert len(rules.faults) == 1
    assert str(tmp_path / ".gitignore") in rules.faults[0]
    assert rules.faults[0].endswith("its rules are not followed")
