"""Writes events, output and notices: answers to standard output, everything else to standard error.

What is written is sanitized and only ever appended, so that a finished line is never drawn again. On a
terminal, answers are drawn as markdown; elsewhere they are the model's text as it is. Knows nothing of
sessions or models.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, TextIO

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
    Working,
)
from satchel.terminal.agent_view import (
    DIM,
    Line,
    command_lines,
    diff_lines,
    judgement_lines,
    routed_line,
    source_lines,
)
from satchel.terminal.faults import fault_lines
from satchel.terminal.flow import Flow
from satchel.terminal.manner import is_plain, is_quiet
from satchel.terminal.markdown import DEFAULT_THEME, Document
from satchel.terminal.pen import Pen, Span, takes_escapes, window_columns
from satchel.terminal.printed import fitted, linked
from satchel.terminal.reading_bar import ReadingBar
from satchel.terminal.sanitize import Sanitizer, sanitize, sanitize_line

if TYPE_CHECKING:
    from satchel.agent.search.sources import Source
    from satchel.agent.shell.runner import CommandResult
    from satchel.engine.generate import Stats


class Renderer:
    """Draws one conversation on two streams; on a terminal, with a line of figures after each answer."""

    def __init__(
        self,
        out: TextIO | None = None,
        err: TextIO | None = None,
        *,
        markdown: bool = True,
        code_theme: str = DEFAULT_THEME,
    ) -> None:
        """Without `markdown`, answers are the model's text also on a terminal.

        Args:
            code_theme: the colours of code: `ansi_dark`, `ansi_light`, or a style of Pygments.
        """
        self._out = out or sys.stdout
        self._console = _console(err or sys.stderr)
        self._pen = _pen(self._out)
        self._err_pen = _pen(self._console.file)
        self._interactive = self._out.isatty() and self._console.is_terminal
        self._markdown, self._code_theme = markdown, code_theme
        self._document: Document | None = None  # the answer that is being drawn
        self._line_open = False
        self._told_of_routing = False
        self._bar = ReadingBar(self._console)

    def turn(self, events: Iterable[Event]) -> None:
        """Draw a turn as it runs."""
        answer, output = Sanitizer(), Sanitizer()
        cited = _Cited()
        try:
            for event in events:
                if not isinstance(event, PrefillProgress):
                    self._bar.stop()
                if not isinstance(event, TextDelta | PrefillProgress | Working | Notice):
                    self._end_document()
                match event:
                    case PrefillProgress(done, total):
                        self._bar.update(done, total)
                    case Working(text):
                        self._bar.work(text)
                    case TextDelta(text):
                        cited.said(text)
                        self._say(answer.feed(text))
                    case SourcesFound(sources):
                        cited = _Cited(sources)
                    case TurnDone(stop_reason, stats):
                        self._show_sources(cited)
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
            self._end_answer()
            self._show_sources(cited)
        finally:
            self.settle()

    def settle(self) -> None:
        """End the bar and the answer that are being drawn, so that somebody else can write."""
        self._bar.stop()
        self._end_answer()

    def output(self, text: str) -> None:
        """What the user asked to see, on standard output."""
        self._end_line()
        text = sanitize(text).rstrip("\n")
        if self._out.isatty() and (columns := window_columns(self._out)):
            text = fitted(text, columns)
        self._write(text + "\n")

    def notice(self, text: str) -> None:
        """A line about what happened, on standard error."""
        if not is_quiet():
            self._show([(sanitize_line(text), DIM)])

    def error(self, text: str) -> None:
        """A line about what went wrong, on standard error."""
        self._show([(sanitize_line(f"satchel: {text}"), "")])

    def fault(self, err: Exception) -> None:
        """What went wrong and nobody foresaw, on standard error."""
        self._show([(line, "") for line in fault_lines(err)])

    def _tell(self, event: Event) -> None:
        """Write what is told of in lines of its own."""
        match event:
            case Notice(text):
                self.notice(text)
            case Output(text, fit):
                columns = window_columns(self._out) if self._out.isatty() else None
                self.output(fit(columns) if fit and columns else text)
            case Failed(text):
                self.error(text)
            case Diff(text):
                self._show(diff_lines(text), wraps=False)
            case Routed(decision):
                if line := routed_line(decision, not self._told_of_routing):
                    self.notice(line)
                    self._told_of_routing = True
            case Searching(query, provider):
                self.notice(f"searching {provider}: {query}")
            case CommandProposed(command, judgement):
                self._show(command_lines(command), wraps=False)
                self._show(judgement_lines(judgement))
            case CommandEnded(result):
                # A script's reader sees what came out; that all went well goes without saying.
                if self._interactive or not _went_well(result):
                    self.notice(result.status())

    def _say(self, text: str) -> None:
        """A piece of an answer."""
        if self._pen is None or not self._markdown:
            self._write(text)
            return
        if self._document is None:
            self._document = Document(self._pen, self._code_theme)
        self._document.feed(text)

    def _show_sources(self, cited: _Cited) -> None:
        lines = list(cited.lines())
        if not is_quiet():
            self._show(lines, hanging="    ")

    def _show(self, lines: Iterable[Line], wraps: bool = True, hanging: str = "  ") -> None:
        """Lines that are clean already, on standard error.

        Args:
            wraps: between words; otherwise the terminal does it, for what is to be copied.
            hanging: stands before the further lines of one that is wrapped.
        """
        for text, style in lines:
            self._end_line()
            if self._err_pen is None:
                self._console.print(text, style=style, markup=False, emoji=False, soft_wrap=True)
            elif wraps:
                indent = text[: len(text) - len(text.lstrip(" "))]
                flow = Flow(self._err_pen, [Span(indent)], [Span(indent + hanging)])
                flow.end(linked(text.lstrip(" "), style))
            else:
                self._err_pen.write([Span(text, style)], "\n")

    def _end_answer(self) -> None:
        self._end_document()
        self._end_line()

    def _end_document(self) -> None:
        if self._document is not None:
            self._document.end()
            self._document = None

    def _end_line(self) -> None:
        if self._document is not None:
            self._document.settle()
        if self._line_open:
            self._write("\n")

    def _write(self, text: str) -> None:
        if text:
            self._out.write(text)
            self._out.flush()
            self._line_open = not text.endswith("\n")


def _console(stream: IO[str]) -> Console:
    return Console(file=stream, color_system=None if is_plain() else "auto", highlight=False)


def _pen(stream: IO[str]) -> Pen | None:
    """None for what is no terminal, or one that takes no escapes."""
    return Pen(stream, _console(stream).color_system) if takes_escapes(stream) else None


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
        f" · {stats.prompt_tokens} read, {stats.reused_tokens} reused"
    )
