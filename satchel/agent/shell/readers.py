"""The rules of commands that read: what they need to do nothing else. Knows nothing of what the others do."""

from __future__ import annotations

import re
from collections.abc import Sequence

from satchel.agent.shell.options import OptionError, options, take
from satchel.agent.shell.programs import awk, sed
from satchel.agent.shell.reader_table import (
    ANYHOW,
    ASKING,
    ASKING_UNLESS_NUMERIC,
    BOTH_NAMES,
    BY_WORD,
    OTHER_VERSION_OPTIONS,
    OUTPUT_AS_OPERAND,
    PAGERS,
    TELL_VERSION,
    WITH_OPTIONS,
)
from satchel.agent.shell.touch import READS, Finding, Inner, Rule, Touch, finding, reads, unknown
from satchel.agent.shell.words import Word, names

_NUMBER = re.compile(r"-?[0-9]+")


def reads_with(listed: str, most_operands: int | None = None, *, strict: bool = False) -> Rule:
    """The rule of a command that only reads with these options.

    With `strict` no option may follow an operand: systems differ in what they take it for.
    """
    known = options(listed)

    def rule(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
        try:
            given = take(arguments, known)
            if strict and take(arguments, known, leading=True).operands != given.operands:
                raise OptionError("an option follows a file")
        except OptionError as fault:
            return [unknown(f"may do more than read: {fault}")]
        if most_operands is not None and (
            len(given.operands) > most_operands or any(word.splits for word in given.operands)
        ):
            return [unknown("has more words than it needs to read, and may change or run what they name")]
        return [READS]

    return rule


def reads_by_word(words: dict[str, str]) -> Rule:
    """The rule of a command that only reads if its first word is in `words`, with its options."""

    def rule(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
        first = arguments[0].value if arguments else ""
        if first is None or first not in words:
            return [unknown(f"may do more than read: `{first or '…'}` is no word that is known")]
        return list(reads_with(words[first])(arguments[1:], inner))

    return rule


def _date(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    if any(word.prefix.startswith(("-s", "--s")) for word in arguments):
        return [finding("sets the clock", Touch.WRITES, Touch.PRIVILEGE)]
    try:
        given = take(
            arguments,
            options(
                "-uRnj -I= -d: -r: -v: -f: --utc --rfc-email --iso-8601= --date: --reference: --rfc-3339:"
            ),
        )
    except OptionError as fault:
        return [unknown(f"may set the clock: {fault}")]
    if given.has("-f") and not given.has("-j"):
        return [unknown("may set the clock")]
    if not given.has("-j") and not all(
        word.prefix.startswith("+") and not word.splits for word in given.operands
    ):
        return [finding("sets the clock", Touch.WRITES, Touch.PRIVILEGE)]
    return [READS]


def _printf(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    """zsh calculates what %d and its like are given, which can run commands; -v sets a variable."""
    layout = arguments[0].value if arguments else None
    if layout is None or layout.startswith("-"):
        return [unknown("prints by a format that is not known")]
    conversions = re.findall(r"%[-+ #0]*(\*|[0-9]+)?(?:\.(\*|[0-9]+))?(.?)", layout)
    kinds = {kind for _, _, kind in conversions}
    texts = kinds <= set("sbcq%") and not any(
        "*" in (width, precision) for width, precision, _ in conversions
    )
    numbers = kinds <= set("diouxXeEfFgGsbc%") and all(
        word.value is not None and _NUMBER.fullmatch(word.value) for word in arguments[1:]
    )
    return [READS] if texts or numbers else [unknown("may calculate what it prints")]


_FILE_TESTS = names(
    """
    -e -f -d -r -w -x -s -L -h -z -n -p -S -b -c -u -g -k -O -G
    """
)
_STRING_TESTS = frozenset({"=", "==", "!=", "-nt", "-ot", "-ef"})
_NUMBER_TESTS = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})


def _is_number(word: Word) -> bool:
    if word.value is None:
        return word.source.strip('"') in ("$?", "$#")
    return bool(_NUMBER.fullmatch(word.value))


def _test(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    """Only plain forms: with numbers, -v and -t, shells calculate the words, which can run commands."""
    words = arguments[1:] if arguments and arguments[0].value == "!" else arguments
    plain = False
    if len(words) == 1:
        plain = words[0].value is None or not words[0].value.startswith("-")
    elif len(words) == 2:
        plain = words[0].value in _FILE_TESTS
    elif len(words) == 3:
        plain = words[1].value in _STRING_TESTS or (
            words[1].value in _NUMBER_TESTS and _is_number(words[0]) and _is_number(words[2])
        )
    return [READS] if plain else [unknown("tests in a form that shells may calculate")]


def _plain_test(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    """`test`, whose words split: a variable could hold another test."""
    if any(word.splits and word.source not in ("$?", "$#") for word in arguments):
        return [unknown("tests a variable that is not quoted")]
    return _test(arguments, inner)


def _bracket(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    return _closed(arguments, "]", _plain_test, inner)


def _double_bracket(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    return _closed(arguments, "]]", _test, inner)


def _closed(arguments: Sequence[Word], closing: str, rule: Rule, inner: Inner) -> list[Finding]:
    if [index for index, word in enumerate(arguments) if word.source == closing] != [len(arguments) - 1]:
        return [unknown("tests in an unusual form")]
    return list(rule(arguments[:-1], inner))


def _number_only(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    plain = all(word.source == "$?" or (word.value or "").isdecimal() for word in arguments)
    return [READS] if plain and len(arguments) <= 1 else [unknown("calculates its argument")]


def _sysctl(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    if any(word.value is None or "=" in word.value for word in arguments):
        return [unknown("may set values of the kernel")]
    return list(reads_with("-anNehdioxX --all --names --values", None)(arguments, inner))


def _ip(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    values = [word.value for word in arguments]
    while values and values[0] in (
        "-4",
        "-6",
        "-br",
        "-brief",
        "-c",
        "-s",
        "-o",
        "-d",
        "-j",
        "-json",
        "-p",
        "-color",
    ):
        values.pop(0)
    things = ("a", "addr", "address", "l", "link", "r", "route", "n", "neigh", "rule", "maddr")
    if values and values[0] in things and (len(values) == 1 or values[1] in ("show", "list", "ls", "get")):
        return [READS]
    return [unknown("may change the network's settings")]


def _pager(listed: str) -> Rule:
    """A pager shows files; a word like `+!rm` commands it, and `bat cache` is another command."""

    def rule(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
        if any(word.prefix.startswith("+") or word.value == "cache" for word in arguments):
            return [unknown("is commanded by its arguments")]
        return list(reads_with(listed)(arguments, inner))

    return rule


def _set(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    """The options that stop a script at its first failure, and no others."""
    plain: tuple[list[str], ...] = (
        [],
        ["-e"],
        ["-u"],
        ["-eu"],
        ["-o", "pipefail"],
        ["-eo", "pipefail"],
        ["-euo", "pipefail"],
    )
    if [word.value for word in arguments] in plain:
        return [READS]
    return [unknown("changes how the shell works")]


def _man(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    """Of a page by its name; a file could hold anything, and the options choose the program that shows it."""
    if any(word.value is None or "/" in word.value for word in arguments):
        return [unknown("may show a file as a page")]
    return list(reads_with("-fkaw")(arguments, inner))


def _tar(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    first = arguments[0].value if arguments else None
    if first is not None and re.fullmatch(r"-?[zjJvpa]*t[zjJvpa]*f?", first):
        rest = arguments[1:]
        if first.endswith("f") and rest:  # a name with a colon is a file of another machine, got by a program
            if rest[0].value is None or ":" in rest[0].value or rest[0].may_be_option:
                return [unknown("may read from another machine")]
            rest = rest[1:]
        return list(reads_with("-v --wildcards --exclude:")(rest, inner))
    if first is not None and re.fullmatch(r"-?[zjJvpahk]*[xcru][zjJvpahk]*f?", first):
        try:
            take(
                arguments[1:],
                options("-vzjJpkhC: --exclude: --strip-components: --directory: --keep-old-files"),
            )
        except OptionError as fault:
            return [finding("writes files", Touch.WRITES), unknown(f"may do more: {fault}")]
        return [finding("writes files", Touch.WRITES)]
    return [unknown("is called in a way that is not known")]


def _dd(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    keys = ("if", "bs", "ibs", "count", "skip", "status", "iflag")
    for word in arguments:
        if word.prefix.startswith("of=/dev/") and word.value not in ("of=/dev/null", "of=/dev/stdout"):
            return [finding("overwrites a device", Touch.WRITES, Touch.DESTRUCTIVE)]
        if word.prefix.startswith("of=") and word.value != "of=/dev/null":
            return [finding("overwrites a file", Touch.WRITES)]
        if word.splits or word.prefix.partition("=")[0] not in (*keys, "of"):
            return [unknown(f"may do more than read: `{word.source}`")]
    return [READS]


def _cd(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    return [READS] if len(arguments) <= 1 else [unknown("is given more than a directory")]


def _xxd(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    """xxd looks at the first letters of an option only: `-bc f g` has no value and writes g."""
    rest, operands = [word.value for word in arguments], 0
    while rest:
        word = rest.pop(0)
        if (
            word in ("-c", "-g", "-l", "-o", "-s")
            and rest
            and re.fullmatch(r"[0-9]+|0x[0-9a-f]+", rest[0] or "")
        ):
            rest.pop(0)
        elif word is None or (
            word.startswith("-") and not re.fullmatch(r"-(?:[abCeEipu]|ps|plain|[cglos][0-9]+)?", word)
        ):
            operands = 2
        else:
            operands += not word.startswith("-") or word == "-"
    return [READS] if operands <= 1 else [unknown("may write a file")]


def _resolving(name: str, read: Rule) -> Rule:
    """Of a command that may ask the network for the names of addresses."""
    known = options(WITH_OPTIONS[name][0])

    def rule(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
        found = list(read(arguments, inner))
        if found != [READS]:
            return found
        given = take(arguments, known)
        asks = given.has(*ASKING[name]) if name in ASKING else not given.has("-n")
        return [finding("may ask the network for names", Touch.READS, Touch.NETWORK)] if asks else found

    return rule


def _logins(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    """`who --lookup` and `last --dns` ask for the names of addresses."""
    if any(word.may_be_option and re.match(r"--[ld]|-\w*d|-?$", word.value or "") for word in arguments):
        return [finding("may ask the network for names", Touch.READS, Touch.NETWORK)]
    return [READS]


def _history(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    return [READS] if not arguments else _number_only(arguments, inner)


def asks_version(name: str, arguments: Sequence[Word]) -> bool:
    """Whether the program `name` is only asked for its version."""
    if len(arguments) != 1:
        return False
    option = arguments[0].value
    return (name in TELL_VERSION and option == "--version") or (name, option) in OTHER_VERSION_OPTIONS


def has_word(name: str, arguments: Sequence[Word]) -> bool:
    """Whether the first word of the arguments is one under which the command `name` reads."""
    return bool(arguments) and arguments[0].value in BY_WORD.get(BOTH_NAMES.get(name, name), {})


def readers() -> dict[str, Rule]:
    """Every command of this module by its name."""
    rules: dict[str, Rule] = dict.fromkeys(ANYHOW.split(), reads)
    for name, (listed, operands) in WITH_OPTIONS.items():
        rules[name] = reads_with(listed, operands, strict=name in OUTPUT_AS_OPERAND)
    for name, words in BY_WORD.items():
        rules[name] = reads_by_word(words)
    rules |= {name: _resolving(name, rules[name]) for name in ASKING.keys() | ASKING_UNLESS_NUMERIC}
    rules |= {name: _pager(listed) for name, listed in PAGERS.items()}
    rules |= {
        "set": _set,
        "date": _date,
        "printf": _printf,
        "test": _plain_test,
        "[": _bracket,
        "[[": _double_bracket,
        "exit": _number_only,
        "return": _number_only,
        "break": _number_only,
        "continue": _number_only,
        "sysctl": _sysctl,
        "ip": _ip,
        "man": _man,
        "tar": _tar,
        "dd": _dd,
        "cd": _cd,
        "history": _history,
        "xxd": _xxd,
        "who": _logins,
        "last": _logins,
        "awk": awk,
        "sed": sed,
    }
    return rules | {name: rules[known] for name, known in BOTH_NAMES.items() if known in rules}
