"""What all commands share: a page of help, two flags, and that each is imported when it is wanted.

Knows the shape of a command line, and nothing of what any command does.
"""

from __future__ import annotations

import importlib
import os
import shlex
import signal
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from satchel.cli.help import Row, first_sentence, is_bold, page, window_width
from satchel.errors import UsageError
from satchel.terminal.manner import NO_COLOR, QUIET

NO_READER = 128 + signal.SIGPIPE  # what a shell says of a program that SIGPIPE ended


@dataclass(frozen=True, slots=True)
class Entry:
    """A command of the program, or a group of commands.

    Attributes:
        section: where the program's help lists it.
        summary: what the list says of it.
        module: where it is; `add_to` there adds the command to a Typer.
        group: the name of a Typer there, if it is a group.
        also: modules that add commands to the group.
    """

    section: str
    summary: str
    module: str
    group: str = ""
    also: tuple[str, ...] = ()


class LazyCommands(MutableMapping[str, Any]):
    """Commands by name, each imported when it is looked up."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._entries = entries
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(name, self._entries[name])
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class Command(TyperCommand):
    """A command with the flags that all have, and a page of help."""

    def __init__(self, *args: Any, params: Sequence[Any] | None = None, **more: Any) -> None:
        super().__init__(*args, params=[*(params or ()), *_shared_flags()], **more)

    def get_help(self, ctx: Any) -> str:
        return page(self, ctx, (), _beside(ctx), window_width(), is_bold())


class Group(TyperGroup):
    """A group of commands, likewise."""

    def __init__(self, *args: Any, params: Sequence[Any] | None = None, **more: Any) -> None:
        super().__init__(*args, params=[*(params or ()), *_shared_flags()], **more)

    def get_help(self, ctx: Any) -> str:
        return page(self, ctx, self.listed(), _beside(ctx), window_width(), is_bold())

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not (args or self.invoke_without_command or ctx.resilient_parsing):
            args = ["--help"]
        return super().parse_args(ctx, args)

    def listed(self) -> list[tuple[str, list[Row]]]:
        """The commands, by heading."""
        rows = [
            Row(name, first_sentence(" ".join((command.help or "").split())))
            for name, command in self.commands.items()
            if not command.hidden
        ]
        return [("Commands", rows)]

    def near(self, name: str) -> list[str]:
        """The commands that are near the one called `name`."""
        return [each for each, command in self.commands.items() if each != name and not command.hidden]


class Program(Group):
    """The program: its commands are `entries`, and what it does without one is the command `standard`."""

    entries: Mapping[str, Entry]
    standard: str

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.commands = LazyCommands(self.entries)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            args = self._with_command(ctx, args)
        return super().parse_args(ctx, args)

    def make_context(self, *args: Any, **more: Any) -> Any:  # prints the program's help
        with _no_reader():
            return super().make_context(*args, **more)

    def invoke(self, ctx: Any) -> Any:
        with _no_reader():
            return super().invoke(ctx)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.entries)

    def listed(self) -> list[tuple[str, list[Row]]]:
        sections: dict[str, list[Row]] = {}
        for name, entry in self.entries.items():
            if entry.section:
                sections.setdefault(entry.section, []).append(Row(name, entry.summary))
        return list(sections.items())

    def near(self, name: str) -> list[str]:
        section = self.entries[name].section
        return [each for each, entry in self.entries.items() if entry.section == section and each != name]

    def _with_command(self, ctx: Any, args: list[str]) -> list[str]:
        """`args` with `standard` ahead of the first option that is its own, or behind flags alone.

        Raises:
            UsageError: options of `standard` stand ahead of another command.
        """
        own = {name for each in self.get_params(ctx) for name in each.opts}
        first = next((index for index, arg in enumerate(args) if arg not in own), len(args))
        if first < len(args):
            if not args[first].startswith("-"):
                return args
            params = self.commands[self.standard].params
            options = {name: each for each in params for name in (*each.opts, *each.secondary_opts)}
            if args[first].partition("=")[0] not in options:
                return args
            ahead = list(_options_ahead(args[first:], options))
            behind = args[first + len(ahead) :]
            if behind and behind[0] in self.entries:
                put = shlex.join([behind[0], *ahead])
                raise UsageError(
                    f"{args[first].partition('=')[0]} stands ahead of the command",
                    f"put it behind: `{ctx.command_path} {put} …`",
                )
        return [*args[:first], self.standard, *args[first:]]


def _options_ahead(args: Sequence[str], options: Mapping[str, Any]) -> Iterator[str]:
    """Those of `args` ahead of the first that is neither one of `options` nor the value of one."""
    is_value = False
    for arg in args:
        if not (is_value or arg.startswith("-")):
            return
        option = None if is_value else options.get(arg)
        is_value = option is not None and not option.is_flag
        yield arg


@contextmanager
def _no_reader() -> Iterator[None]:
    """A closed pipe ends the program with its own exit code; typer would make 1 of it."""
    try:
        yield
    except BrokenPipeError as err:
        raise typer.Exit(NO_READER) from err


def _load(name: str, entry: Entry) -> Any:
    """The command called `name`, as typer makes it."""
    holder = typer.Typer(rich_markup_mode=None, add_completion=False)
    holder.callback()(lambda: None)  # makes it a group, however many commands it holds
    module = importlib.import_module(entry.module)
    for each in entry.also:
        importlib.import_module(each)
    if entry.group:
        holder.add_typer(getattr(module, entry.group), name=name)
    else:
        module.add_to(holder)
    _dress(holder)
    group = get_command(holder)
    assert isinstance(group, TyperGroup)
    return group.commands[name]


def _dress(app: typer.Typer) -> None:
    """Have typer make `Command` and `Group` of what `app` holds."""
    for command in app.registered_commands:
        command.cls = Command
    for group in app.registered_groups:
        group.cls = Group
        assert group.typer_instance is not None
        _dress(group.typer_instance)


@cache
def _shared_flags() -> tuple[Any, ...]:
    """The parameters that all commands have."""
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command()(_flags)
    return tuple(get_command(app).params)


def _be_quiet(wanted: bool) -> None:
    if wanted:
        os.environ[QUIET] = "1"


def _be_plain(wanted: bool) -> None:
    if wanted:
        os.environ[NO_COLOR] = "1"


def _flags(
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", "-q", callback=_be_quiet, expose_value=False, help="Answers and errors alone."
        ),
    ] = False,
    no_color: Annotated[
        bool,
        typer.Option(
            "--no-color", callback=_be_plain, expose_value=False, help="No colours; so does NO_COLOR=1."
        ),
    ] = False,
) -> None:
    """Holds the parameters, whose callbacks do it all."""


def _beside(ctx: Any) -> list[str]:
    """The commands to see as well as the one of `ctx`, as they are typed."""
    parent = ctx.parent
    if parent is None:
        return []
    names = parent.command.near(ctx.info_name)
    return [
        *([parent.command_path] if parent.parent else []),
        *(f"{parent.command_path} {each}" for each in names),
    ]
