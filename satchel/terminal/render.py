"""Writes events, output and notices: answers to standard output, everything else to standard error.

What is written is sanitized and only ever appended, so that a finished line is never drawn again. Knows
nothing of sessions or models.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from rich.console import Console

from satchel.agent.events import (
    CommandEnded,
    CommandOutput,
    CommandProposed,
    CommandStarted,
    Diff,
    Event,
    Failed,
    Notice,
    Output,
    PrefillProgress,
    Routed,
    Searching,
    SourcesFound,
    TextDelta,
    TurnDone,
)
from satchel.terminal.agent_view import DIM, Line, diff_lines, proposal_lines, routed_line, source_lines
from satchel.terminal.manner import is_plain
from satchel.terminal.reading_bar import ReadingBar
from satchel.terminal.sanitize import Sanitizer, sanitize, sanitize_line

if TYPE_CHECKING:
    from satchel.agent.search.sources import Source
    from satchel.agent.shell.runner import CommandResult
    from satchel.engine.generate import Stats


class Renderer:
    """Draws one conversation on two streams; on a terminal, with a line of figures after each answer."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._console = Console(
            file=err or sys.stderr, color_system=None if is_plain() else "auto", highlight=False
        )
        self._interactive = self._out.isatty() and self._console.is_terminal
        self._line_open = False
        self._bar = ReadingBar(self._console)

    def turn(self, events: Iterable[Event]) -> None:
        """Draw a turn as it runs."""
        answer, output = Sanitizer(), Sanitizer()
        cited = _Cited()
        try:
            for event in events:
                if not isinstance(event, PrefillProgress):
                    self._bar.stop()
                match event:
                    case PrefillProgress(done, total):
                        self._bar.update(done, total)
                    case TextDelta(text):
                        cited.said(text)
                        self._write(answer.feed(text))
                    case SourcesFound(sources):
                        cited = _Cited(sources)
                    case TurnDone(stop_reason, stats):
                        self._end_line()
                        self._show(cited.lines())
                        if self._interactive:
                            self.notice(_figures(stop_reason, stats))
                        answer = Sanitizer()
                    case CommandStarted():
                        self._end_line()
                        output = Sanitizer()
                    case CommandOutput(text):
                        self._write(output.feed(text))
                    case _:
                        self._tell(event)
            self._show(cited.lines())
        finally:
            self.settle()

    def settle(self) -> None:
        """End the bar and the line that are being drawn, so that somebody else can write."""
        self._bar.stop()
        self._end_line()

    def output(self, text: str) -> None:
        """What the user asked to see, on standard output."""
        self._end_line()
        self._write(sanitize(text).rstrip("\n") + "\n")

    def notice(self, text: str) -> None:
        """A line about what happened, on standard error."""
        self._show([(sanitize_line(text), DIM)])

    def error(self, text: str) -> None:
        """A line about what went wrong, on standard error."""
        self._show([(sanitize_line(f"satchel: {text}"), "")])

    def _tell(self, event: Event) -> None:
        """Write what is told of in lines of its own."""
        match event:
            case Notice(text):
                self.notice(text)
            case Output(text):
                self.output(text)
            case Failed(text):
                self.error(text)
            case Diff(text):
                self._show(diff_lines(text))
            case Routed(decision):
                if line := routed_line(decision):
                    self.notice(line)
            case Searching(query, provider):
                self.notice(f"searching {provider}: {query}")
            case CommandProposed(command, judgement):
                self._show(proposal_lines(command, judgement))
            case CommandEnded(result):
                # A script's reader sees what came out; that all went well goes without saying.
                if self._interactive or not _went_well(result):
                    self.notice(result.status())

    def _show(self, lines: Iterable[Line]) -> None:
        """Lines that are clean already, on standard error."""
        for text, style in lines:
            self._end_line()
            self._console.print(text, style=style, markup=False, emoji=False, soft_wrap=True)

    def _end_line(self) -> None:
        if self._line_open:
            self._write("\n")

    def _write(self, text: str) -> None:
        if text:
            self._out.write(text)
            self._out.flush()
            self._line_open = not text.endswith("\n")


class _Cited:
    """The sources that an answer may cite, until they are shown."""

    def __init__(self, sources: Sequence[Source] = ()) -> None:
        self._sources = sources
        self._answer: list[str] = []

    def said(self, text: str) -> None:
        if self._sources:
            self._answer.append(text)

    def lines(self) -> Iterator[Line]:
        """Each source, once."""
        sources, self._sources = self._sources, ()
        return source_lines(sources, "".join(self._answer))


def _went_well(result: CommandResult) -> bool:
    return result.exit_code == 0 and not (result.ended or result.left)


def _figures(stop_reason: str, stats: Stats) -> str:
    ending = {"cancelled": "stopped · ", "length": "cut at --max-tokens · "}.get(stop_reason, "")
    return (
        f"{ending}{stats.generated_tokens} tokens at {stats.decode_tps:.1f}/s"
        f" · {stats.prompt_tokens} read, {stats.reused_tokens} kept"
    )
