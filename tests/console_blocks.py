"""The console blocks of a Markdown page, and how they are run: commands in a shell, and talks at a terminal.

A block is fenced as ```console, or without a word and begins with `$ `. In it `$ ` is typed in a shell, `> `
in the chat that the command before it began, and the rest is what should be seen: `…` is anything within a
line, a line of `…` alone any lines, and no lines at all anything. A comment before a block says more:

    <!-- not run: WHY -->   <!-- slow -->   <!-- on the second machine -->   <!-- exit 3 -->
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from terminals import CTRL_D, Terminal

COLUMNS = 100
TURN_S = 180
FENCE = re.compile(
    r"(?P<marks>(?:<!--[^>]*-->\n)*)^(?P<fence>`{3,4})(?P<language>[\w-]*)\n(?P<body>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
MARK = re.compile(r"<!-- (.*?) -->")


@dataclass
class Command:
    """A line for the shell, what is typed at what it starts, and what should then be seen in all."""

    line: str
    typed: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)


@dataclass
class Block:
    line: int
    body: str
    marks: tuple[str, ...]

    @property
    def why_not_run(self) -> str:
        return next(
            (mark.removeprefix("not run: ") for mark in self.marks if mark.startswith("not run: ")), ""
        )

    @property
    def is_slow(self) -> bool:
        return "slow" in self.marks

    @property
    def machine(self) -> str:
        return "second" if "on the second machine" in self.marks else "first"

    @property
    def exit_code(self) -> int:
        return next((int(mark.removeprefix("exit ")) for mark in self.marks if mark.startswith("exit ")), 0)

    def commands(self) -> list[Command]:
        commands: list[Command] = []
        lines = iter(self.body.replace("\\\n", "").splitlines())
        for line in lines:
            if line.startswith("$ "):
                commands.append(Command(line.removeprefix("$ ")))
            elif line.startswith("> ") and commands[-1].line.startswith(("satchel", "make run")):
                commands[-1].typed.append(line.removeprefix("> "))
                commands[-1].seen.append(line)
            else:
                commands[-1].seen.append(line)
        return commands


def blocks(page: str) -> Iterator[Block]:
    for found in FENCE.finditer(page):
        body = found["body"]
        if found["language"] == "console" or (not found["language"] and body.startswith("$ ")):
            line = page.count("\n", 0, found.start("fence")) + 1
            yield Block(line, body, tuple(MARK.findall(found["marks"])))


class Machines:
    """Two homes with a shell each.

    Args:
        stands_for: what is run in place of what a page prints, such as a server on loopback for a real one.
    """

    def __init__(
        self, folder: Path, environment: Mapping[str, str], stands_for: Callable[[str], str] = str
    ) -> None:
        self._folder = folder
        self._environment = environment
        self._stands_for = stands_for

    def run(self, block: Block) -> None:
        """Run its commands one after the other, and compare what is seen.

        Raises:
            AssertionError: something else is seen, or a command fails where it is not meant to.
        """
        commands = block.commands()
        for command in commands:
            expected_code = block.exit_code if command is commands[-1] else 0
            code, seen = self._run(command, block.machine)
            where = f"line {block.line}: {command.line}"
            assert code == expected_code, f"{where}\nended with {code}:\n{seen}"
            if any(line.strip() for line in command.seen):
                assert fits(command.seen, seen), f"{where}\nshowed:\n{seen}\nand not:\n" + "\n".join(
                    command.seen
                )

    def _run(self, command: Command, machine: str) -> tuple[int, str]:
        home = self._folder / machine
        work = home / "project"
        work.mkdir(parents=True, exist_ok=True)
        environment = {
            **self._environment,
            "HOME": str(home),
            "SATCHEL_HOME": str(home / "satchel"),
            "SATCHEL_CONFIG": str(home / "config.toml"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PWD": str(work),
        }
        shell = ["bash", "-c", f"cd {str(work)!r}; {self._stands_for(command.line)}"]
        if command.typed:
            return _talk(shell, environment, command.typed)
        done = subprocess.run(
            shell,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TURN_S,
            encoding="utf-8",
            errors="replace",
        )
        return done.returncode, done.stdout


def _talk(shell: list[str], environment: dict[str, str], typed: list[str]) -> tuple[int, str]:
    terminal = Terminal(shell, environment, COLUMNS)
    try:
        for line in typed:
            terminal.wait(terminal.prompt_is_ready, TURN_S)
            terminal.child.send(line)
            terminal.wait_for(f"> {line}")
            terminal.child.send("\r")
            terminal.wait(lambda: not terminal.prompt_is_ready() or not terminal.child.isalive(), TURN_S)
        terminal.wait(lambda: terminal.prompt_is_ready() or not terminal.child.isalive(), TURN_S)
        lines = terminal.lines()
        if terminal.child.isalive():  # the page leaves the end of the talk out
            lines = lines[: len(lines) - terminal.screen.lines + terminal.screen.cursor.y]
            terminal.child.send(CTRL_D)
            terminal.wait(lambda: not terminal.child.isalive(), TURN_S)
        else:
            terminal.exit_code()  # reads what is left
            lines = terminal.lines()
        ended = terminal.child.exitstatus
        return -terminal.child.signalstatus if ended is None else ended, "\n".join(lines)
    finally:
        terminal.child.close(force=True)


def fits(expected: list[str], seen: str) -> bool:
    """Whether `seen` is what `expected` says, blank lines and speeds apart."""
    pattern = ""
    for line in filter(None, map(str.rstrip, expected)):
        line = re.sub(r"[\d.,]+/s\b", "…/s", line)
        if line == "…":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*?".join(map(re.escape, line.split("…"))) + r"\n"
    lines = [line.rstrip() for line in seen.splitlines()]
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in lines if line)) is not None
