"""What git's commands touch. Knows nothing of other programs.

Options are matched whole: git takes abbreviations, so one that is not listed may be any.

The repository's own settings may name programs that reading commands run (core.fsmonitor, diff drivers). They
are the user's where the user stands; another directory, or settings given with the command, are not judged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from satchel.agent.shell.options import OptionError, options, take
from satchel.agent.shell.readers import reads_with
from satchel.agent.shell.touch import READS, Finding, Inner, Touch, finding, unknown
from satchel.agent.shell.words import Word, names

_DIFF = (
    "-pusqwbRzB -U: -S: -G: -M= -C= --patch --no-patch --stat= --numstat --shortstat --name-only "
    "--name-status "
    "--summary --cached --staged --color= --no-color --word-diff= --color-words= --no-ext-diff --no-textconv "
    "--ignore-all-space --ignore-space-change --ignore-blank-lines --diff-filter= --find-renames= "
    "--find-copies= "
    "--dirstat= --exit-code --quiet --check --raw --full-index --abbrev= --unified= --merge-base --no-index "
    "--no-renames --minimal --patience --histogram --compact-summary --relative= "
)
_LOG = (
    _DIFF + "-i -# -n: -L: --oneline --graph --all --branches= --tags= --remotes= --decorate= --no-decorate "
    "--pretty= "
    "--format: --abbrev-commit --date: --since: --until: --after: --before: --author: --committer: "
    "--grep: --merges "
    "--no-merges --first-parent --reverse --follow --max-count: --skip: --topo-order --date-order "
    "--left-right "
    "--cherry-pick --count --simplify-by-decoration --invert-grep --all-match --show-pulls --full-history "
    "--no-walk "
)
_READING: dict[str, tuple[str, int | None]] = {
    "status": (
        "-sbvuz --short --branch --long --porcelain= --ignored= --untracked-files= --show-stash",
        None,
    ),
    "log": (_LOG, None),
    "shortlog": (_LOG + "-sne --summary --numbered --email", None),
    "show": (_LOG, None),
    "diff": (_DIFF, None),
    "rev-list": (_LOG + "--objects --parents", None),
    "blame": (_DIFF + "-wefltsMC -L: --date: --show-email --show-name --line-porcelain --porcelain", None),
    "describe": ("--tags --all --always --long --dirty= --abbrev= --match: --contains --exact-match", None),
    "rev-parse": (
        "-q --short= --abbrev-ref= --verify --show-toplevel --git-dir --is-inside-work-tree --show-prefix "
        "--symbolic "
        "--symbolic-full-name --quiet --is-bare-repository --absolute-git-dir --show-cdup",
        None,
    ),
    "ls-files": (
        "-modcsuzitk --modified --others --deleted --cached --stage --unmerged --exclude-standard --ignored "
        "--error-unmatch --full-name --exclude: -x:",
        None,
    ),
    "ls-tree": ("-rdtlz --name-only --name-status --long --full-name --full-tree", None),
    "cat-file": ("-tspe", None),
    "grep": (
        "-nilLwcEFPGhHeqvopWIrz -A: -B: -C: -m: --count --ignore-case --line-number --word-regexp "
        "--name-only "
        "--files-with-matches --cached --heading --break --untracked --show-function --and --or --not "
        "--color=",
        None,
    ),
    "show-ref": ("-dq --head --heads --tags --hash= --verify --abbrev=", None),
    "for-each-ref": ("--format: --sort: --count: --contains: --merged= --no-merged= --points-at:", None),
    "merge-base": ("-a --all --is-ancestor --fork-point", None),
    "name-rev": ("--tags --name-only --all --always", None),
    "count-objects": ("-vH --verbose --human-readable", None),
    "check-ignore": ("-vqn --verbose --quiet --no-index", None),
    "version": ("--build-options", 0),
    "--version": ("", 0),
}
# The same for commands that change something unless their first word, or these options alone, say otherwise.
_LISTING: dict[str, tuple[str, int]] = {
    "branch": ("-arv --all --remotes --verbose --show-current --sort: --format: --color= --no-color", 0),
    "tag": ("-n= --sort: --format: --column=", 0),
    "remote": ("-v --verbose", 0),
    "stash": ("", -1),
}
_LISTING_OPTIONS = {
    "branch": frozenset({"--list", "--contains", "--no-contains", "--merged", "--no-merged", "--points-at"}),
    "tag": frozenset({"-l", "--list", "--contains", "--merged", "--no-merged", "--points-at"}),
}
_LISTING_WORDS: dict[str, dict[str, str]] = {
    "remote": {"get-url": "--all --push"},
    "stash": {"list": _LOG, "show": _DIFF},
    "worktree": {"list": "-v --porcelain --verbose"},
    "reflog": {"": "", "show": _LOG},
    "config": {
        "--get": "",
        "--get-all": "",
        "--get-regexp": "",
        "--list": "--show-origin --show-scope --local --global --system",
        "-l": "--show-origin --show-scope --local --global --system",
        "get": "--all --global --local --system",
        "list": "--show-origin --show-scope --local --global --system",
    },
    "notes": {"list": "", "show": ""},
    "bisect": {"log": ""},
}
_PASSED_GLOBALS = frozenset(
    {"--no-pager", "-P", "--no-optional-locks", "--literal-pathspecs", "--no-replace-objects"}
)

_NETWORK = {
    "fetch": "fetches from another machine",
    "pull": "fetches from another machine and changes files",
    "clone": "fetches a repository",
    "push": "sends to another machine",
    "ls-remote": "asks another machine",
    "send-email": "sends mail",
    "lfs": "may fetch from another machine",
    "svn": "talks to another machine",
}
_WRITING = names(
    """
    add commit merge rebase cherry-pick revert init mv apply am stash branch tag remote checkout
    switch restore reset config worktree notes bisect sparse-checkout update-index update-ref
    symbolic-ref gc repack pack-refs fsck format-patch archive bundle maintenance rerere replace
    read-tree write-tree commit-tree hash-object reflog submodule clean rm
    """
)


def git(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    """The rule of git."""
    rest = list(arguments)
    faults: list[Finding] = []
    while rest and rest[0].value in _PASSED_GLOBALS:
        rest.pop(0)
    while rest and rest[0].may_be_option and rest[0].value not in ("--version", None):
        option = rest.pop(0)
        faults.append(unknown(f"is called with `{option.source}`, which may change what it runs"))
        if option.value in ("-C", "-c", "--git-dir", "--work-tree", "--namespace", "--config-env") and rest:
            rest.pop(0)
    name = rest[0].value if rest else ""
    if not name:
        return [*faults, unknown("has no command that is known")]
    if inner.moved:
        faults.append(unknown("runs in another directory, whose settings may name programs"))
    return [*faults, *_judged(name, rest[1:])]


def _judged(name: str, rest: list[Word]) -> list[Finding]:
    values = [word.value or word.prefix for word in rest]
    if not _has_plain_layouts(rest):
        return [unknown("may check signatures with a program")]
    if name in _READING:
        listed, operands = _READING[name]
        return list(reads_with(listed, operands)(rest, _NOTHING))
    if _lists(name, rest):
        return [READS]
    first = values[0] if values else ""
    if why := _destroys(name, values):
        places = [Touch.NETWORK] if name == "push" else []
        return [finding(why, Touch.WRITES, Touch.DESTRUCTIVE, *places)]
    if name in _NETWORK:
        odd = any(
            "::" in value or value.startswith(("--upload-pack", "--receive-pack", "--exec"))
            for value in values
        )
        return [
            finding(_NETWORK[name], Touch.NETWORK, *([] if name == "ls-remote" else [Touch.WRITES])),
            *(
                [unknown("may run a program to get there")]
                if odd or ("-u" in values and name != "push")
                else []
            ),
        ]
    if first in ("run", "foreach") or (
        name == "rebase" and any(v.startswith(("-x", "--ex")) for v in values)
    ):
        return [unknown("runs a command of its own")]
    if name in _WRITING:
        return [finding("changes the repository or its files", Touch.WRITES)]
    return [unknown(f"has a command that is not known: `{name}`")]


_LAYOUTS = names("oneline short medium full fuller reference email mboxrd raw")
_SIGNATURE = re.compile(r"%[-+ ]*G|%\(\*?signature")  # shown by gpg.program, which may be any


def _has_plain_layouts(rest: Sequence[Word]) -> bool:
    """Whether the forms in which commits and refs are shown are all known, and show no signature.

    A name that git does not have is looked up in the settings.
    """
    for index, word in enumerate(rest):
        name, equals, layout = (word.value or word.prefix).partition("=")
        value = layout if word.value is not None else None
        if name in ("--format", "--sort") and not equals:
            value = rest[index + 1].value if index + 1 < len(rest) else None
        elif name not in ("--format", "--pretty", "--sort") or not equals:
            continue
        if value is None or _SIGNATURE.search(value):
            return False
        if name == "--sort":
            if "signature" in value:
                return False
        elif not (
            "%" in value or value in _LAYOUTS or value == "" or value.startswith(("format:", "tformat:"))
        ):
            return False
    return True


class _Nothing:
    """For rules that run nothing."""

    moved = False

    def command(self, words: Sequence[Word]) -> list[Finding]:
        return [unknown("runs something")]

    def script(self, text: str, shell: str) -> list[Finding]:
        return [unknown("runs something")]


_NOTHING = _Nothing()


def _lists(name: str, rest: Sequence[Word]) -> bool:
    """Whether a command that can also change only lists here."""
    listed, operands = _LISTING.get(name, ("", -1))
    known = _LISTING_OPTIONS.get(name, frozenset())
    if operands == 0:
        try:
            given = take(rest, options(listed + " " + " ".join(f"{option}=" for option in known)))
        except OptionError:
            given = None
        certain = given is not None and not any(word.splits for word in given.operands)
        if given and certain and (not given.operands or given.has(*known)):
            return True
    words = _LISTING_WORDS.get(name, {})
    first = rest[0].value if rest else ""
    return first in words and reads_with(words[first or ""])(rest[1:], _NOTHING) == [READS]


def _destroys(name: str, values: Sequence[str]) -> str:
    """What git's command loses that it cannot bring back, empty if nothing."""
    letters = {letter for value in values if value[:1] == "-" and value[:2] != "--" for letter in value[1:]}
    longs = {value.partition("=")[0] for value in values if value.startswith("--")}
    first = values[0] if values else ""
    if name == "reset" and any(long.startswith("--h") for long in longs):
        return "discards changes that are not committed"
    if name == "clean" and "n" not in letters and "--dry-run" not in longs:
        return "deletes files that git does not know"
    if name == "rm" and "--cached" not in longs:
        return "deletes files"
    if name == "push" and (
        letters & {"f", "d"}
        or any(
            long.startswith(("--f", "--de", "--mi", "--pru")) and long != "--follow-tags" for long in longs
        )
        or any(value.startswith(("+", ":")) for value in values)
    ):
        return "overwrites or deletes what the other machine has"
    named = [value for value in values if not value.startswith("-")]
    if name == "checkout" and (
        "--" in values
        or "f" in letters
        or longs & {"--force", "--ours", "--theirs"}
        or "." in named
        or (len(named) > 1 and not letters & {"b", "B", "t"})
    ):
        return "discards changes that are not committed"
    if name == "restore" and (("--staged" not in longs and "S" not in letters) or "--worktree" in longs):
        return "discards changes that are not committed"
    if name == "switch" and (letters & {"f", "C"} or longs & {"--force", "--discard-changes"}):
        return "discards changes that are not committed"
    if name == "branch" and (
        letters & {"D", "d", "M"} or any(long.startswith(("--de", "--f")) for long in longs)
    ):
        return "deletes or overwrites a branch"
    if name == "tag" and (letters & {"d", "f"} or longs & {"--delete", "--force"}):
        return "deletes or overwrites a tag"
    if name in ("filter-branch", "filter-repo", "prune"):
        return "deletes history"
    if name == "gc" and any(long.startswith("--prune") for long in longs):
        return "deletes history"
    lossy = {
        "stash": ("drop", "clear"),
        "reflog": ("expire", "delete"),
        "worktree": ("remove", "prune"),
        "remote": ("remove", "rm", "prune"),
        "submodule": ("deinit",),
        "notes": ("remove", "prune"),
        "update-ref": ("-d",),
        "lfs": ("prune",),
    }
    return f"loses what `{first}` removes" if first in lossy.get(name, ()) else ""
