"""Explains the commands: in the talk, and as a page of the documentation. All of it comes from the table."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from textwrap import fill
from typing import TYPE_CHECKING

from satchel.agent.events import Event, Output

if TYPE_CHECKING:
    from satchel.agent.commands.table import Command
    from satchel.agent.desk import Desk

PAGE_WIDTH = 118
PREFIXES = {
    "!command": "run a shell command",
    "?query": "search the web for just these words",
    "@path": "in a message: read this file with it",
}


def help_command(desk: Desk, argument: str) -> Iterator[Event]:
    from satchel.agent.commands.table import find_command

    if argument:
        text = _explained(find_command(argument.removeprefix("/")))
        yield Output(text, lambda columns: _filled(text, columns))
    else:
        yield Output(_listed())


def _listed() -> str:
    from satchel.agent.commands.table import COMMANDS

    width = max(len(command.usage) for command in COMMANDS)
    lines = []
    for group, commands in groupby(COMMANDS, lambda command: command.group):
        lines += [f"{group}:", *(f"  {each.usage:<{width}}  {each.help}" for each in commands), ""]
    lines += ["Before a message:", *(f"  {prefix:<{width}}  {text}" for prefix, text in PREFIXES.items())]
    return "\n".join(lines)


def _explained(command: Command) -> str:
    lines = [command.usage, f"  {command.help}"]
    if command.more:
        lines.append(f"  {command.more}")
    if command.aliases:
        lines.append(f"  the same: {', '.join(f'/{alias}' for alias in command.aliases)}")
    if command.examples:
        lines += ["examples:", *(f"  {example}" for example in command.examples)]
    return "\n".join(lines)


def _filled(text: str, columns: int) -> str:
    """`text` with its lines wrapped between words, each with its own indent."""
    lines = text.split("\n")
    indents = [line[: len(line) - len(line.lstrip())] for line in lines]
    return "\n".join(
        fill(line, columns, subsequent_indent=indent, break_on_hyphens=False)
        for line, indent in zip(lines, indents, strict=True)
    )


def page() -> str:
    """The page of the documentation, in Markdown."""
    from satchel.agent.commands.table import COMMANDS

    opening = (
        "This page is what the table of the commands says (`satchel/agent/commands/table.py`); in a chat, "
        "`/help` lists them and `/help command` explains one. `[…]` can be left out, `<…>` cannot."
    )
    parts = ["# Slash commands", _wrapped(opening)]
    for group, commands in groupby(COMMANDS, lambda command: command.group):
        parts.append(f"## {group}")
        parts += map(_section, commands)
    rows = "\n".join(f"| `{prefix}` | {text} |" for prefix, text in PREFIXES.items())
    parts.append(f"## Before a message\n\n| | |\n|---|---|\n{rows}")
    return "\n\n".join(parts) + "\n"


def _section(command: Command) -> str:
    told = [_sentence(command.help), command.more]
    if command.aliases:
        told.append(f"The same: {', '.join(f'`/{alias}`' for alias in command.aliases)}.")
    parts = [f"### `{command.usage}`", _wrapped(" ".join(filter(None, told)))]
    if command.examples:
        parts.append("```\n" + "\n".join(command.examples) + "\n```")
    return "\n\n".join(parts)


def _wrapped(text: str) -> str:
    return fill(text, PAGE_WIDTH, break_long_words=False, break_on_hyphens=False)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
