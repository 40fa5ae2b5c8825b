"""Splits a script into simple commands as bash, zsh, dash and ksh all would, or says that it cannot.

A second, narrower reading next to the grammar's: what the shells read differently, or what can hide a
command, is
refused. Knows nothing of what commands do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from satchel.agent.shell.word_reading import BLANKS, WORD_ENDS, UnreadableError, WordReader
from satchel.agent.shell.words import ASSIGNMENT, Command, Redirect, Word

Span = tuple[int, int]

MAX_DEPTH = 12  # of substitutions and groups in each other

_OPENERS = frozenset({"if", "then", "elif", "else", "do", "while", "until", "!", "{"})
_CLOSERS = frozenset({"fi", "done", "}"})
_REFUSED_KEYWORDS = {
    "case": "a `case`",
    "esac": "a `case`",
    "select": "a `select`",
    "function": "a function",
    "coproc": "a coprocess",
    "foreach": "a `foreach`",
    "repeat": "a `repeat`",
    "always": "an `always`",
}
_DELIMITER = re.compile(r"""(?P<quote>['"]?)(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P=quote)(?=[\s;&|<>)]|$)""")


@dataclass(frozen=True, slots=True)
class Reading:
    """The commands of a script, those in substitutions too, and where their names and words stand."""

    commands: tuple[Command, ...]
    names: frozenset[Span]
    words: frozenset[Span]
    tests: frozenset[int]  # where a `[` or `[[` stands as a name; their words are in none of the sets
    keywords: bool  # has `if`, loops or groups, which not every shell spells so


@dataclass(slots=True)
class _Open:
    """A command that is being read."""

    start: int
    assignments: list[Word] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    redirects: list[Redirect] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)


def read(script: str) -> Reading:
    """The script's commands.

    Raises:
        UnreadableError: something hides commands, is read differently by some shells, or ends too early.
    """
    reader = _Reader(script)
    reader.commands_until(None)
    return reader.reading()


def read_word(text: str) -> Word:
    """`text`, the source of one word. What cannot be read may be anything."""
    reader = _Reader(text)
    try:
        word = reader.word()
    except UnreadableError:
        return Word(text, None, "", True, True)
    return word if reader.position == len(text) else Word(text, None, "", True, True)


class _Reader(WordReader):
    def __init__(self, script: str) -> None:
        super().__init__(script)
        self.depth = 0
        self._commands: list[Command] = []
        self._names: set[Span] = set()
        self._words: set[Span] = set()
        self._tests: set[int] = set()
        self._heredocs: list[tuple[str, bool, bool]] = []  # delimiter, quoted, tabs stripped
        self._keywords = False

    def reading(self) -> Reading:
        ordered = sorted(self._commands, key=lambda command: command.line)
        return Reading(
            tuple(ordered),
            frozenset(self._names),
            frozenset(self._words),
            frozenset(self._tests),
            self._keywords,
        )

    # --- lists of commands

    def commands_until(self, closing: str | None) -> None:
        """Reads commands up to and with `closing`, or to the end."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise UnreadableError("it is nested too deeply")
        if self._heredocs:
            raise UnreadableError("a substitution follows a here document")
        waiting = False  # for a command, after an operator or a keyword
        while True:
            self._skip_blanks()
            char = self.peek()
            if char == "":
                if closing or waiting or self._heredocs:
                    raise UnreadableError("it ends too early")
                break
            if char == "\n":
                self.position += 1
                self._here_documents()
            elif char == ")" and closing == ")":
                if waiting or self._heredocs:
                    raise UnreadableError("it ends too early")
                self.position += 1
                break
            else:
                waiting = self._statement()
        self.depth -= 1

    def _statement(self) -> bool:
        """Reads one command, group end or keyword with its separator; whether another command must follow."""
        if self.peek() == "(":
            if self.text.startswith("((", self.position):
                raise UnreadableError("it calculates in `((…))`")
            self.position += 1
            self._keywords = True
            self.commands_until(")")
            return self._after_compound()
        keyword = self._keyword()
        if keyword in _REFUSED_KEYWORDS:
            raise UnreadableError(f"it has {_REFUSED_KEYWORDS[keyword]}")
        if keyword == "for":
            return self._for()
        if keyword in _OPENERS:
            self._keywords = True
            self.position += len(keyword)
            return True
        if keyword in _CLOSERS:
            self.position += len(keyword)
            return self._after_compound()
        self._simple_command()
        return self._separator()

    def _keyword(self) -> str:
        """The unquoted word of letters, or the brace or mark, at this place if it is a whole word."""
        found = re.compile(r"[a-z]+|[{}!]").match(self.text, self.position)
        if not found or (found.end() < len(self.text) and self.text[found.end()] not in WORD_ENDS):
            return ""
        return found[0]

    def _for(self) -> bool:
        head = re.compile(r"for[ \t]+([A-Za-z_][A-Za-z0-9_]*)[ \t]+in(?=[ \t])").match(
            self.text, self.position
        )
        if not head:
            raise UnreadableError("it has a `for` of an unusual form")
        start, self.position, self._keywords = self.position, head.end(), True
        self._skip_blanks()
        while self.peek() not in ("", "\n", ";"):
            if self.peek() in "&|<>()":
                raise UnreadableError("it has a `for` of an unusual form")
            self.word()
            self._skip_blanks()
        variable = Word(f"{head[1]}=", None, f"{head[1]}=", True)
        self._commands.append(Command(self._line(start), head[0], assignments=(variable,)))
        return self._separator()

    def _after_compound(self) -> bool:
        """Redirections and the separator after `)`, `}`, `fi` or `done`."""
        opened = _Open(self.position)
        while True:
            self._skip_blanks()
            if not self._redirect(opened):
                break
        if opened.redirects:
            self._close(opened)
        if self._keyword() in _CLOSERS | {"then", "do", "else", "elif"}:
            return False
        return self._separator()

    def _separator(self) -> bool:
        """Reads what stands between commands; whether it joins to a command that must follow."""
        self._skip_blanks()
        for operator in ("&&", "||", "|&"):
            if self.text.startswith(operator, self.position):
                self.position += 2
                return True
        char = self.peek()
        if char in ("", "\n", ")"):
            return False
        following = self.text[self.position + 1 : self.position + 2]
        if char not in ";&|" or following in (";", "|", "!") or (char == ";" and following == "&"):
            raise UnreadableError(f"`{char}{following.strip()}` stands where none is expected")
        self.position += 1
        return char == "|"

    # --- simple commands

    def _simple_command(self) -> None:
        opened = _Open(self.position)
        self._skip_blanks()
        while self.peek() not in ("", "\n", ";", "&", "|", ")") or self._at_both_redirect():
            if self._redirect(opened):
                self._skip_blanks()
                continue
            start = self.position
            assigns = not opened.words and ASSIGNMENT.match(self.text, start)
            word = self.word()
            self._check_argument(opened, word, start)
            opened.spans.append((start, self.position))
            (opened.assignments if assigns else opened.words).append(word)
            self._skip_blanks()
        if not (opened.words or opened.assignments or opened.redirects):
            raise UnreadableError(f"`{self.peek()}` stands where a command is expected")
        self._close(opened)

    def _check_argument(self, opened: _Open, word: Word, start: int) -> None:
        if word.source in ("{", "}"):
            raise UnreadableError(f"`{word.source}` stands among the arguments")  # zsh ends a group there
        if opened.words and opened.words[0].source == "[[" and opened.words[-1].source == "]]":
            raise UnreadableError("words follow `]]`")
        if re.fullmatch(r"\{[A-Za-z_][A-Za-z0-9_]*\}", word.source) and self.peek() in ("<", ">"):
            raise UnreadableError("a redirection sets a variable")

    def _close(self, opened: _Open) -> None:
        source = self.text[opened.start : self.position].strip()
        name = opened.words[0].source if opened.words else ""
        if name in ("[", "[["):
            self._tests.add(opened.spans[len(opened.assignments)][0])
        else:
            self._words.update(opened.spans)
            if opened.words:
                self._names.add(opened.spans[len(opened.assignments)])
        self._commands.append(
            Command(
                self._line(opened.start),
                source,
                tuple(opened.assignments),
                tuple(opened.words),
                tuple(opened.redirects),
            )
        )

    def _at_both_redirect(self) -> bool:
        return self.text.startswith("&>", self.position)

    def _redirect(self, opened: _Open) -> bool:
        found = re.compile(r"[0-9]*(<<<|<<-|<<|<>|<&|>&|>>|>\||<|>)|(&>>|&>)").match(self.text, self.position)
        if not found or (found[0] in ("<", ">") and self.text[found.end() : found.end() + 1] == "("):
            return False
        operator = found[1] or found[2]
        self.position = found.end()
        self._skip_blanks()
        if operator in ("<<", "<<-"):
            self._here_document_begins(operator)
            opened.redirects.append(Redirect(operator, None))
            return True
        if self.peek() in ("", *WORD_ENDS) and not self._at_process_substitution():
            raise UnreadableError("a redirection has no target")
        start = self.position
        target = self.word()
        if operator != "<<<":
            self._words.add((start, self.position))
        opened.redirects.append(Redirect(operator, None if operator == "<<<" else target))
        return True

    def _at_process_substitution(self) -> bool:
        return self.text.startswith(("<(", ">("), self.position)

    # --- here documents

    def _here_document_begins(self, operator: str) -> None:
        found = _DELIMITER.match(self.text, self.position)
        if not found:
            raise UnreadableError("a here document has an unusual end mark")
        self.position = found.end()
        self.in_heredoc_line = True
        self._heredocs.append((found["name"], bool(found["quote"]), operator == "<<-"))

    def _here_documents(self) -> None:
        for delimiter, quoted, stripped in self._heredocs:
            body: list[str] = []
            while True:
                if self.position >= len(self.text):
                    raise UnreadableError("a here document has no end")
                end = self.text.find("\n", self.position)
                end = len(self.text) if end < 0 else end
                line = self.text[self.position : end]
                self.position = min(end + 1, len(self.text))
                if (line.lstrip("\t") if stripped else line) == delimiter:
                    break
                body.append(line)
            # In an unquoted one the shell runs substitutions, and joins lines before it looks for the end.
            if not quoted and re.search(r"[`\\]|\$[({\[]", "\n".join(body)):
                raise UnreadableError("a here document is expanded by the shell")
        self._heredocs.clear()
        self.in_heredoc_line = False

    # --- substitutions

    def commands_between(self, start: int, end: int) -> None:
        reader = _Reader(self.text[:end])
        reader.position, reader.depth = start, self.depth
        reader.commands_until(None)
        self._commands += reader._commands
        self._names |= reader._names
        self._words |= reader._words
        self._tests |= reader._tests
        self._keywords |= reader._keywords

    # --- characters

    def _line(self, position: int) -> int:
        return self.text.count("\n", 0, position) + 1

    def _skip_blanks(self) -> None:
        """Skips blanks, lines that are joined by a backslash between words, and a comment."""
        while self.position < len(self.text):
            if self.text[self.position] in BLANKS:
                self.position += 1
            elif self.text.startswith("\\\n", self.position):
                if self._heredocs or (self.position and self.text[self.position - 1] not in BLANKS + "\n"):
                    raise UnreadableError("a backslash joins two lines within a word")
                self.position += 2
            else:
                break
        if self.peek() == "#" and (self.position == 0 or self.text[self.position - 1] in " \t\n;&|("):
            if self.depth > 1:
                raise UnreadableError(
                    "a comment stands in a substitution"
                )  # old versions of bash end it elsewhere
            end = self.text.find("\n", self.position)
            self.position = len(self.text) if end < 0 else end
