"""Programs that stand in an argument: of awk and sed. Knows nothing of other commands.

Only forms that certainly print and do nothing else count as reading.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from satchel.agent.shell.options import OptionError, options, take
from satchel.agent.shell.touch import READS, Finding, Inner, Touch, finding, unknown
from satchel.agent.shell.words import Word

# With ARGV or SYMTAB a program chooses the files it reads, and gawk takes /inet/… for a connection.
_AWK_RUNS = re.compile(r"system|getline|@|\||\\\n|ARGV|SYMTAB|/inet")


def awk(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    """A program that is a literal text, runs nothing, and prints nowhere else."""
    try:
        given = take(arguments, options("-F: -v: --field-separator: --assign:"), leading=True)
    except OptionError as fault:
        return [unknown(f"runs a program that cannot be judged: {fault}")]
    program = given.operands[0].value if given.operands else None
    if program is None:
        return [unknown("runs a program that is not known")]
    if any(word.may_begin_with("/inet") for word in given.operands[1:]):
        return [unknown("may open a connection through the name of a file")]
    text = program.replace("||", " ")
    prints = text.find("print")
    if _AWK_RUNS.search(text) or (prints >= 0 and ">" in text[prints:]):
        return [unknown("runs a program that may write or run something")]
    return [READS]


_SED_ADDRESS = re.compile(
    r"\s*(?:(?:[0-9]+|\$|/(?:[^/\\\n]|\\.)*/I?)(?:\s*,\s*(?:\+?[0-9]+|\$|/(?:[^/\\\n]|\\.)*/I?))?)?\s*!?"
)
_SED_PATTERN = re.compile(r"/((?:[^/\\\n]|\\.)*)/")
_SED_PLAIN = re.compile(r"\s*[dDpPnNgGhHxl=]|\s*[qQ]\s*[0-9]*")


_SED_CLASS = re.compile(r"\[:(?:al(?:num|pha)|blank|cntrl|x?digit|graph|lower|print|punct|space|upper):\]")


def _sed_only_edits(script: str) -> bool:
    """Whether a sed script only prints and changes what passes: no w, W, e, r, and no s///e or s///w.

    Forms that versions of sed read differently, as a delimiter in brackets, are refused.
    """
    position = 0
    while position < len(script):
        separator = re.compile(r"[\s;]*").match(script, position)
        position = separator.end() if separator else position
        if position == len(script):
            break
        address = _SED_ADDRESS.match(script, position)
        if address and _bracket_may_hold_delimiter(*_SED_PATTERN.findall(address[0])):
            return False
        position = address.end() if address else position
        found = _SED_PLAIN.match(script, position) or _sed_substitution(script, position)
        if not found:
            return False
        position = found.end()
        if position < len(script) and not re.compile(r"[ \t]*[;\n]|[ \t]*$").match(script, position):
            return False
    return True


def _sed_substitution(script: str, position: int) -> re.Match[str] | None:
    delimiter = script[position + 1 : position + 2]
    if script[position : position + 1] not in ("s", "y") or delimiter not in tuple("/|#,:@%_~!+"):
        return None
    part = rf"((?:[^\\\n{re.escape(delimiter)}]|\\[^\n])*)"
    mark = re.escape(delimiter)
    found = re.compile(rf"[sy]{mark}{part}{mark}{part}{mark}[gpiI0-9]*").match(script, position)
    return None if not found or _bracket_may_hold_delimiter(found[1]) else found


def _bracket_may_hold_delimiter(*patterns: str) -> bool:
    """Whether a bracket seems open at a pattern's end: some versions of sed then look for its end beyond.

    So it is with `[:`, `[.` or `[=` in one, but for whole classes as `[[:alpha:]]`.
    """
    plain = [_SED_CLASS.sub("c", re.sub(r"\\.", "", pattern)) for pattern in patterns]
    return any(re.search(r"\[[^\]]*$|\[\^?\]|\[[:.=]", pattern) for pattern in plain)


def sed(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    if any(re.match(r"-[nErsuz]*[iI]|--in-place", word.prefix) for word in arguments):
        return [finding("changes files in place", Touch.WRITES)] + (
            [unknown("runs a script that may do more")]
            if not _sed_is_plain(arguments, "-nErsuz -i= -e:")
            else []
        )
    if _sed_is_plain(arguments, "-nErsuz -e: --quiet --silent --regexp-extended --expression: --separate"):
        return [READS]
    return [unknown("runs a script that may write or run something")]


def _sed_is_plain(arguments: Sequence[Word], listed: str) -> bool:
    try:
        given = take(arguments, options(listed))
    except OptionError:
        return False
    scripts = [value for name, value in given.options if name in ("-e", "--expression")]
    if scripts and take(arguments, options(listed), leading=True).operands != given.operands:
        return False  # without GNU's order, a word before -e is the script
    if not scripts:
        scripts = list(given.operands[:1])
    return (
        bool(scripts)
        and all(word is not None and word.value is not None for word in scripts)
        and all(_sed_only_edits((word.value or "") if word else "") for word in scripts)
    )
