"""The rule of every command that is known, by its name. What is not here cannot be judged."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from satchel.agent.shell.changers import changers
from satchel.agent.shell.git import git
from satchel.agent.shell.readers import asks_version, has_word, readers
from satchel.agent.shell.runners import runners
from satchel.agent.shell.touch import READS, Finding, Inner, Rule, Touch, does, unknown
from satchel.agent.shell.words import Word

# Where the system and package managers put programs; elsewhere, a file of a known name may be any program.
_PLACES = frozenset(
    {"/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/opt/homebrew/bin"}
)
_MOVING = frozenset({"cd", "pushd", "popd", "chdir"})
_IN_THIS_SHELL = frozenset(
    {"command", "builtin", "time", "noglob", "nocorrect", "exec", "!"}
)  # run another so
_FORMATS = does("formats a disk", Touch.WRITES, Touch.PRIVILEGE, Touch.DESTRUCTIVE)


@cache
def _rules() -> dict[str, Rule]:
    reading, changing = readers(), changers()
    running = runners(reading.__getitem__)
    rules = {**changing, **reading, **running, "git": git}
    for name in (reading.keys() | running.keys()) & changing.keys():
        rules[name] = _first_if_it_reads(name, rules[name], changing[name])
    rules["arch"] = _first_if_it_reads("arch", reading["arch"], running["arch"])
    return rules


def _first_if_it_reads(name: str, reading: Rule, otherwise: Rule) -> Rule:
    """Of a command that reads when it is asked to, and else does what `otherwise` says."""

    def rule(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
        found = list(reading(arguments, inner))
        if all(Touch.READS in one.touches for one in found) or has_word(name, arguments):
            return found
        return list(otherwise(arguments, inner))

    return rule


def judge_command(words: Sequence[Word], inner: Inner) -> list[Finding]:
    """What the program `words[0]` does with its arguments."""
    name = words[0].value
    if name is None:
        return [unknown("runs a program whose name is known only while it runs")]
    directory, slash, base = name.rpartition("/")
    if slash and directory not in _PLACES:
        return [unknown("runs a program that is not known")]
    arguments = words[1:]
    if asks_version(base, arguments):
        return [READS]
    if base.startswith(("mkfs", "newfs")):
        return list(_FORMATS(arguments, inner))
    rule = _rules().get(base)
    if rule is None:
        return [unknown("is a command that is not known")]
    return list(rule(arguments, inner))


def changes_directory(words: Sequence[Word]) -> bool:
    """Whether later commands of the script may run in another directory."""
    for word in words:
        if word.value in _MOVING:
            return True
        if word.value not in _IN_THIS_SHELL and not (word.value or "").startswith("-"):
            return False
    return False
