"""Draws markdown while it comes. What was drawn is never drawn again.

Text is drawn word by word, code line by line, a table when its first rows are known. Line breaks stay where
they were written. Code stands at the left edge with nothing beside it and is not wrapped, so that it can be
copied. What is given is sanitized already.
"""

from __future__ import annotations

from collections.abc import Sequence

from satchel.terminal.flow import Flow, narrowed
from satchel.terminal.markdown.blocks import Container, Item, Line, Quote, closes_fence, read_start
from satchel.terminal.markdown.inline import Inline, Marks
from satchel.terminal.markdown.tables import Table, is_divider
from satchel.terminal.pen import Pen, Span, text_columns

DEFAULT_THEME = "ansi_dark"  # the colours of the terminal
ROWS_TO_SETTLE = 20  # that the widths of a table's columns are taken from
MAX_START_CHARS = 4096  # of a line that is not known yet: a longer one is drawn when it is whole
RULE_COLUMNS = 40

QUIET, MARKER = "dim", "cyan"
_HEADINGS = {1: "bold underline magenta", 2: "bold magenta"}
_LESSER_HEADING = "bold"
_BULLETS = "•◦▪"


class Document:
    """One answer."""

    def __init__(self, pen: Pen, code_theme: str = DEFAULT_THEME) -> None:
        self._pen, self._code_theme = pen, code_theme
        self._marks = Marks(kept=not pen.styled, links=pen.links)
        self._line = ""  # what is not drawn yet of the line that comes
        self._text: _Text | None = None  # that line, once it is known to be text
        self._containers: tuple[Container, ...] = ()
        self._code: _Code | None = None
        self._verbatim_to = ""  # what closes the mathematics that is open
        self._rows: list[Line] = []  # of a table that is not drawn yet
        self._table: Table | None = None
        self._table_before: tuple[list[Span], list[Span]] = [], []  # its first line, and the others
        self._gap = False  # blank lines before what comes next
        self._is_first = True
        self._after_text = False

    def feed(self, text: str) -> None:
        first, *others = text.split("\n")
        self._more(first)
        for part in others:
            self._end_line()
            self._more(part)

    def end(self) -> None:
        """Draw what is left."""
        if self._line or self._text:
            self._end_line()
        self._end_table()
        self._code, self._verbatim_to = None, ""

    def settle(self) -> None:
        """Draw what can be, and end the line, so that somebody else can write; it goes on below."""
        if self._text:
            self._text.flow.settle()
        elif self._begins_table():
            self._draw_rows()

    # -- lines ------------------------------------------------------------------------------------------

    def _more(self, part: str) -> None:
        """A piece of a line."""
        if self._text:
            self._text.feed(part)
            return
        self._line += part
        if not part or self._code or self._verbatim_to or len(self._line) > MAX_START_CHARS:
            return
        start = read_start(self._line, self._containers, is_whole=False, after_text=self._after_text)
        if start is not None:
            self._line = ""
            self._begin_text(start)

    def _end_line(self) -> None:
        line, self._line = self._line, ""
        if self._text:
            self._text.end()
            self._text = None
        elif self._code:
            self._code_line(self._code, line)
        elif self._verbatim_to:
            self._mathematics_line(line)
        else:
            start = read_start(line, self._containers, is_whole=True, after_text=self._after_text)
            assert start is not None  # a whole line is something
            self._whole_line(start)

    def _whole_line(self, line: Line) -> None:
        if line.kind == "row":
            self._row(line)
            return
        self._end_table()
        if line.kind == "blank" and line.kept == len(line.containers):
            self._containers = line.containers
            self._gap, self._after_text = True, False
            return
        before, rest = self._enter(line)
        match line.kind:
            case "fence":
                if any(isinstance(each, Item) for each in line.containers[line.kept :]):
                    self._pen.write(before, "\n")  # the marker of the item that begins with it
                self._code = _Code(line.mark, line.text, self._code_theme, _indent(line.containers))
                self._pen.write([Span(self._rule(line.text), QUIET)], "\n")
            case "rule":
                self._pen.write([*before, Span(self._rule(), QUIET)], "\n")
            case "code":
                self._pen.write([Span(line.text)], "\n")
            case "mathematics":
                self._verbatim_to = line.mark
                self._pen.write([*before, Span(line.text)], "\n")
            case _:
                text = self._flowing(line, before, rest)
                text.end()

    def _begin_text(self, line: Line) -> None:
        """Text of which the beginning is here."""
        self._end_table()
        self._text = self._flowing(line, *self._enter(line))

    def _flowing(self, line: Line, before: Sequence[Span], rest: Sequence[Span]) -> _Text:
        style = ""
        if line.kind == "heading":
            style = _HEADINGS.get(line.level, _LESSER_HEADING)
            if self._marks.kept:
                before = [*before, Span("#" * line.level + " ")]
        self._after_text = line.kind == "text"
        text = _Text(Inline(self._marks, style), Flow(self._pen, before, rest))
        text.feed(line.text)
        return text

    def _enter(self, line: Line) -> tuple[list[Span], list[Span]]:
        """Go into the containers of `line`; what stands before its first line, and before those below."""
        if self._gap and not self._is_first:
            common = _common(self._containers, line.containers[: line.kept])
            bars = [self._bar() if isinstance(each, Quote) else _blank(each) for each in common]
            while bars and not bars[-1].text.strip():
                bars.pop()
            self._pen.write([*bars[:-1], *(Span(bar.text.rstrip(), bar.style) for bar in bars[-1:])], "\n")
        self._gap = self._is_first = self._after_text = False
        self._containers = line.containers
        before, rest = [], []
        for number, container in enumerate(line.containers):
            if isinstance(container, Quote):
                rest.append(self._bar())
                before.append(self._bar())
            else:
                rest.append(_blank(container))
                depth = sum(isinstance(each, Item) for each in line.containers[:number])
                before.append(self._marker(container, depth) if number >= line.kept else _blank(container))
        return before, rest

    def _bar(self) -> Span:
        return Span("│ " if self._pen.unicode else "> ", QUIET)

    def _marker(self, item: Item, depth: int) -> Span:
        if item.marker[0].isdigit():
            return Span(f"{item.marker} ", MARKER)
        if item.is_done is not None:
            boxes = "☐☑" if self._pen.unicode else ("[ ]", "[x]")
            return Span(f"{boxes[item.is_done]} ", MARKER)
        bullet = _BULLETS[min(depth, len(_BULLETS) - 1)] if self._pen.unicode else item.marker
        return Span(f"{bullet} ", MARKER)

    def _rule(self, label: str = "") -> str:
        dash = "─" if self._pen.unicode else "-"
        columns = min(RULE_COLUMNS, self._pen.columns)
        return f"{dash * 3} {label} ".ljust(columns, dash) if label else dash * columns

    # -- code -------------------------------------------------------------------------------------------

    def _code_line(self, code: _Code, line: str) -> None:
        if closes_fence(line, code.mark):
            self._code = None
            self._pen.write([Span(self._rule(), QUIET)], "\n")
            return
        if any(isinstance(each, Quote) for each in self._containers):
            line = line.lstrip(" ").removeprefix(">").removeprefix(" ")
        self._pen.write(code.drawn(line), "\n")

    def _mathematics_line(self, line: str) -> None:
        if not line.strip() or self._verbatim_to in line:
            self._verbatim_to = ""
        if line.strip():
            self._pen.write([Span(line)], "\n")
        else:
            self._gap = True

    # -- tables -----------------------------------------------------------------------------------------

    def _row(self, line: Line) -> None:
        """A line that may be one of a table."""
        if self._rows and line.kept < len(line.containers):
            self._end_table()  # an item of its own
        self._containers = line.containers
        self._rows.append(line)
        if len(self._rows) == 2 and self._table is None and not is_divider(line.text):
            self._end_table()
        if self._table is not None or len(self._rows) > ROWS_TO_SETTLE + 1:
            self._draw_rows()

    def _begins_table(self) -> bool:
        return self._table is None and len(self._rows) >= 2 and is_divider(self._rows[1].text)

    def _draw_rows(self) -> None:
        rows, self._rows = self._rows, []
        if self._table is None:
            head, divider, *rows = rows
            self._table_before = self._enter(head)
            self._table = Table(head.text, divider.text, self._marks)
        columns = self._pen.columns
        before, rest = (narrowed(spans, columns) for spans in self._table_before)
        room = columns - sum(text_columns(span.text) for span in rest)
        for spans in self._table.draw([row.text for row in rows], room, self._pen.unicode):
            self._pen.write([*before, *spans], "\n")
            before = rest
        self._table_before = rest, rest

    def _end_table(self) -> None:
        if self._begins_table():
            self._draw_rows()
        self._table = None
        rows, self._rows = self._rows, []
        for line in rows:  # bars, and no table
            self._flowing(line, *self._enter(line)).end()


class _Text:
    """A line of text that is being drawn."""

    def __init__(self, inline: Inline, flow: Flow) -> None:
        self._inline, self.flow = inline, flow

    def feed(self, text: str) -> None:
        self.flow.feed(self._inline.feed(text))

    def end(self) -> None:
        self.flow.end(self._inline.end())


class _Code:
    """A block of code between fences."""

    def __init__(self, mark: str, about: str, theme: str, indent: int) -> None:
        """`about` begins with the language; `indent` is how far its lines may be indented like the fence."""
        from satchel.terminal.markdown.code import Highlighter  # brings Pygments

        self.mark = mark
        self._indent = indent
        self._highlighter = Highlighter(about.split()[0] if about else "", theme)

    def drawn(self, line: str) -> list[Span]:
        blank = len(line) - len(line.lstrip(" "))
        return self._highlighter.line(line[min(blank, self._indent) :])


def _indent(containers: Sequence[Container]) -> int:
    """How far text in these items is indented."""
    return sum(each.indent + each.columns for each in containers if isinstance(each, Item))


def _blank(container: Container) -> Span:
    """What stands below a marker."""
    if isinstance(container, Quote):
        return Span("")
    return Span(" " * (len(container.marker) + 1 if container.marker[0].isdigit() else 2))


def _common(some: Sequence[Container], others: Sequence[Container]) -> list[Container]:
    """The containers that both begin with."""
    common = []
    for one, other in zip(some, others, strict=False):
        if one != other:
            break
        common.append(one)
    return common
