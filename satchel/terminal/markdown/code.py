"""Colours of code, a line at a time. Knows nothing of windows.

A line that was drawn cannot change, so what a lexer knows at the end of a line has to be kept for the next.
"""

from __future__ import annotations

from collections.abc import Iterator

from pygments.lexer import ExtendedRegexLexer, LexerContext, RegexLexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, _TokenType
from pygments.util import ClassNotFound
from rich.syntax import Syntax, SyntaxTheme

from satchel.terminal.pen import Span

MAX_COLOURED_CHARS = 2000  # of a line: longer ones are data, and a lexer may take long over them
_OPEN, _CLOSE = "/*", "*/"


class Highlighter:
    """Takes the lines of a block of code in `language`; a language that is not known has no colours."""

    def __init__(self, language: str, theme: str) -> None:
        self._lexer = _lexer(language)
        self._theme = Syntax.get_theme(theme)
        self._stack = ["root"]
        self._in_comment = False
        self._has_block_comments = self._lexer is not None and self._is_comment(f"{_OPEN} x {_CLOSE}")

    def line(self, text: str) -> list[Span]:
        """The spans of a line, which has no newline at its end."""
        if self._lexer is None or len(text) > MAX_COLOURED_CHARS:
            return [Span(text)]
        spans = [
            Span(part, self._style(kind) if part.strip() else "") for kind, part in self._commented(text)
        ]
        assert "".join(span.text for span in spans) == text
        return spans

    def _commented(self, text: str) -> Iterator[tuple[_TokenType, str]]:
        """The tokens of a line. Lexers find block comments that are whole; others are found here."""
        if self._in_comment:
            inside, closing, after = text.partition(_CLOSE)
            yield Comment.Multiline, inside + closing
            if closing:
                self._in_comment = False
                yield from self._commented(after)
            return
        if self._has_block_comments and _OPEN in text:
            stack = list(self._stack)
            *before, last = list(self._tokens(text + _CLOSE, stack)) or [(Comment, "")]
            if (
                last[0] in Comment
                and last[1].startswith(_OPEN)
                and last[1].endswith(_CLOSE)
                and len(last[1]) > 3
            ):
                self._in_comment = True
                yield from before
                yield last[0], last[1].removesuffix(_CLOSE)
                return
        yield from self._tokens(text, self._stack)

    def _tokens(self, text: str, stack: list[str]) -> Iterator[tuple[_TokenType, str]]:
        """The tokens of `text` by a lexer in the states of `stack`, which are then those at its end."""
        lexer = self._lexer
        assert lexer is not None
        line = text + "\n"
        if isinstance(lexer, ExtendedRegexLexer) or not isinstance(lexer, RegexLexer):
            found = list(lexer.get_tokens_unprocessed(line))  # it keeps more than states
        else:
            context = LexerContext(line, 0, stack=stack)
            try:
                found = list(ExtendedRegexLexer.get_tokens_unprocessed(lexer, context=context))
                stack[:] = context.stack
            except (TypeError, AttributeError, LookupError):  # a lexer with callbacks of its own kind
                stack[:] = ["root"]
                found = list(lexer.get_tokens_unprocessed(line))
        position = 0
        for start, _, part in found:
            if start != position:  # a part twice, or left out: no lexer's word is worth a line of code
                break
            position += len(part)
        if position != len(line):
            yield Comment.Invalid, text
            return
        for start, kind, part in found:
            if start < len(text):
                yield kind, part[: len(text) - start]

    def _is_comment(self, text: str) -> bool:
        return all(kind in Comment for kind, part in self._tokens(text, ["root"]) if part.strip())

    def _style(self, kind: _TokenType) -> str:
        return _style_of(self._theme, kind)


def _lexer(language: str) -> RegexLexer | None:
    try:
        return get_lexer_by_name(language, stripnl=False, ensurenl=False) if language else None
    except (ClassNotFound, ValueError):
        return None


def _style_of(theme: SyntaxTheme, kind: _TokenType) -> str:
    """The colour of a kind of token, without a background, which would end where the text does."""
    style = theme.get_style_for_token(kind)
    names = [name for name in ("bold", "dim", "italic", "underline") if getattr(style, name)]
    return " ".join([*names, style.color.name] if style.color else names)
