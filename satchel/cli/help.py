"""A command's page of help, laid out as a manual page. Knows nothing of what commands there are.

The page is made of the command itself: its docstring, parameters and, as its `epilog`, its examples.
"""

from __future__ import annotations

import inspect
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from satchel.terminal.manner import is_plain

NARROWEST, WIDEST = 40, 100  # columns
INDENT = 4
TERM_WIDTH = 24  # columns; a longer term has a line of its own

EXIT_CODES = {
    "0": "done",
    "1": "failed",
    "2": "wrong use",
    "3": "not found",
    "4": "damaged, or of another version",
    "5": "network",
    "6": "refused, by you or by a rule of safety",
    "130": "stopped by Ctrl-C",
    "141": "nobody reads the output any more",
    "143": "ended by SIGTERM",
}

_WORD = re.compile(r"""(?:[^\s'"]|'[^']*'|"[^"]*")+""")  # of a shell

_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Row:
    """A term and what it means."""

    term: str
    meaning: str


def window_width() -> int:
    """Columns of a page."""
    return min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST)


def is_bold() -> bool:
    """Whether headings are shown bold."""
    return sys.stdout.isatty() and not is_plain()


def page(
    command: Any,
    context: Any,
    groups: Sequence[tuple[str, Sequence[Row]]],
    see_also: Sequence[str],
    width: int,
    bold: bool,
) -> str:
    """The whole page.

    Args:
        command, context: typer's.
        groups: headings, and the commands below each of them.
        see_also: commands that are near this one.
        width: columns.
    """
    path = context.command_path
    summary, *paragraphs = _paragraphs(command.help or "")
    sentence = first_sentence(summary)
    rest = summary[len(sentence) :].strip()
    parameters = [parameter for parameter in command.get_params(context) if not parameter.hidden]
    arguments = [_argument_row(each) for each in parameters if each.param_type_name == "argument"]
    options = [_option_row(each) for each in parameters if each.param_type_name == "option"]

    sections: list[tuple[str, Iterable[str]]] = [
        ("NAME", _wrapped(f"{path} - {sentence}", width)),
        ("SYNOPSIS", _wrapped(_synopsis(command, path, parameters), width)),
        ("DESCRIPTION", _joined(_wrapped(each, width) for each in filter(None, (rest, *paragraphs)))),
        ("ARGUMENTS", _rows(arguments, width)),
        *((heading.upper(), _rows(rows, width)) for heading, rows in groups),
        ("OPTIONS", _rows(options, width)),
        ("EXAMPLES", _examples(command.epilog or "", width)),
        ("EXIT CODES", _wrapped("; ".join(f"{code} {what}" for code, what in EXIT_CODES.items()), width)),
        ("SEE ALSO", _wrapped(", ".join(map(_unbroken, see_also)), width)),
    ]
    parts = []
    for heading, content in sections:
        if lines := list(content):
            shown = f"{_BOLD}{heading}{_PLAIN}" if bold else heading
            parts.append("\n".join([shown, *((" " * INDENT + line).rstrip() for line in lines)]))
    return "\n\n".join(parts)


def first_sentence(text: str) -> str:
    match = re.match(r".*?[.!?](?=\s|$)", text)
    return match.group() if match else text


def _paragraphs(text: str) -> list[str]:
    return [" ".join(each.split()) for each in re.split(r"\n\s*\n", inspect.cleandoc(text))]


def _synopsis(command: Any, path: str, parameters: Sequence[Any]) -> str:
    parts = [path]
    for each in parameters:
        if each.param_type_name == "option" and each.required:
            parts.append(_option_term(each))
    parts.append("[OPTION]...")
    for each in parameters:
        if each.param_type_name == "argument":
            name = _metavar(each) + ("..." if each.nargs == -1 else "")
            parts.append(name if each.required else f"[{name}]")
    if hasattr(command, "commands"):
        parts.append("[COMMAND]..." if command.invoke_without_command else "COMMAND...")
    # An option and its value stay on one line.
    return " ".join(map(_unbroken, parts))


def _argument_row(parameter: Any) -> Row:
    return Row(_metavar(parameter), _meaning(parameter))


def _option_row(parameter: Any) -> Row:
    return Row(_option_term(parameter), _meaning(parameter))


def _option_term(parameter: Any) -> str:
    names = sorted(parameter.opts, key=len)
    if parameter.secondary_opts:
        return " / ".join((*names, *parameter.secondary_opts))
    term = ", ".join(names)
    return term if parameter.is_flag else f"{term} {_metavar(parameter)}"


def _metavar(parameter: Any) -> str:
    if parameter.metavar:
        return str(parameter.metavar).strip("[].…")
    choices = parameter.type_descriptor.choices
    if choices:
        return "|".join(str(getattr(each, "value", each)) for each in choices)
    return str(parameter.name).replace("_", "-").upper()


def _meaning(parameter: Any) -> str:
    parts = [parameter.help or ""]
    default = parameter.default
    if parameter.param_type_name == "option" and parameter.required:
        parts.append("Required.")
    elif default not in (None, "", False, True) and not callable(default) and parameter.show_default:
        parts.append(f"Default: {getattr(default, 'value', default)}.")
    return " ".join(filter(None, parts))


def _rows(rows: Iterable[Row], width: int) -> Iterator[str]:
    """Terms at the left, what they mean beside them."""
    listed = list(rows)
    column = min(max((len(row.term) for row in listed), default=0), TERM_WIDTH) + 2
    for row in listed:
        lines = textwrap.wrap(row.meaning, width - INDENT - column, break_long_words=False)
        if len(row.term) > column - 2:
            yield row.term
            head = ""
        else:
            head = lines.pop(0) if lines else ""
            yield f"{row.term:<{column}}{head}".rstrip()
        yield from (" " * column + line for line in lines)


def _examples(text: str, width: int) -> Iterator[str]:
    """Lines to type. What they do stands above them where one is too long for both."""
    lines = inspect.cleandoc(text).splitlines()
    if all(len(line) <= width - INDENT for line in lines):
        yield from lines
        return
    for line in lines:
        typed, _, said = line.partition("  # ")
        if said:
            yield f"# {said}"
        yield from _continued(typed.rstrip(), width - INDENT)


def _continued(typed: str, width: int) -> Iterator[str]:
    """A line to type, as several where it is too long, which a shell takes for one."""
    line = ""
    for word in _WORD.findall(typed):
        if line and len(f"{line} {word} \\") > width:
            yield f"{line} \\"
            line = "   "
        line = f"{line} {word}" if line else word
    yield line


def _unbroken(text: str) -> str:
    """`text` that `_wrapped` leaves on one line."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _wrapped(text: str, width: int) -> list[str]:
    lines = textwrap.wrap(text, width - INDENT, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def _joined(blocks: Iterable[Iterable[str]]) -> Iterator[str]:
    for number, block in enumerate(blocks):
        if number:
            yield ""
        yield from block
