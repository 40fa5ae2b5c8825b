"""Checks a command's options against those that are known. Knows nothing of what they mean.

Only exact names pass: GNU tools and git take abbreviations, so an option that is not listed may be any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from satchel.agent.shell.words import Word


class OptionError(Exception):
    """An option is not known, or only the running shell knows it; the message says which."""


@dataclass(frozen=True, slots=True)
class Options:
    """`flags` stand alone, `valued` take a value (attached or next), `attached` only an attached one."""

    flags: frozenset[str]
    valued: frozenset[str]
    attached: frozenset[str]
    number: bool  # "-5"


@dataclass(frozen=True, slots=True)
class Given:
    """What a command was given: `options` by name in their order, then all else."""

    options: tuple[tuple[str, Word | None], ...]
    operands: tuple[Word, ...]

    def has(self, *names: str) -> bool:
        """Whether one of these options was given."""
        return any(name in names for name, _ in self.options)


@lru_cache(maxsize=512)
def options(listed: str) -> Options:
    """From a list as "-abc -n: -C= -# --all --lines: --color=": ":" takes a value, "=" an attached one."""
    flags: set[str] = set()
    valued: set[str] = set()
    attached: set[str] = set()
    for item in listed.split():
        name = item.rstrip(":=")
        kind = {":": valued, "=": attached}.get(item[-1], flags)
        kind.update([name] if name.startswith("--") else [f"-{letter}" for letter in name[1:]])
    return Options(frozenset(flags), frozenset(valued), frozenset(attached), "-#" in flags)


def take(arguments: Sequence[Word], known: Options, *, leading: bool = False) -> Given:
    """Splits `arguments` into options and operands; with `leading`, the first operand ends the options.

    Raises:
        OptionError: an option is not in `known`, or a word could turn out to be one.
    """
    found: list[tuple[str, Word | None]] = []
    operands: list[Word] = []
    index = 0
    while index < len(arguments):
        word = arguments[index]
        index += 1
        if not word.may_be_option:
            operands.append(word)
            if leading:
                break
        elif word.value is None:
            raise OptionError(f"`{word.source}` may turn out to be an option")
        elif word.value == "--":
            break
        else:
            for name, value, wants_next in _split(word, known):
                # Some versions take the value only attached: then the next word would be an option after all.
                # One that becomes several, or none, puts other words in the place of those that follow.
                if wants_next and (
                    index >= len(arguments) or arguments[index].may_be_option or arguments[index].splits
                ):
                    raise OptionError(f"`{name}` has no certain value")
                found.append((name, arguments[index] if wants_next else value))
                index += wants_next
    return Given(tuple(found), (*operands, *arguments[index:]))


def _split(word: Word, known: Options) -> list[tuple[str, Word | None, bool]]:
    """The options in one word: name, attached value, whether the next word is the value."""
    text = word.value or ""
    if text.startswith("--"):
        name, equals, value = text.partition("=")
        if name in known.flags and not equals:
            return [(name, None, False)]
        if name in known.valued or name in known.attached:
            return [
                (name, Word(value, value, value), False) if equals else (name, None, name in known.valued)
            ]
        raise OptionError(f"`{name}` is no option that is known")
    if known.number and text[1:].isdecimal():
        return [("-#", None, False)]
    found: list[tuple[str, Word | None, bool]] = []
    for position, letter in enumerate(text[1:], 2):
        name, rest = f"-{letter}", text[position:]
        if name in known.flags:
            found.append((name, None, False))
        elif name in known.valued or name in known.attached:
            attached = Word(rest, rest, rest) if rest else None
            return [*found, (name, attached, not rest and name in known.valued)]
        else:
            raise OptionError(f"`{name}` is no option that is known")
    return found
