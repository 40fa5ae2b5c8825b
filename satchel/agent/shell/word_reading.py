"""Reads one word of a script as bash, zsh, dash and ksh all would, or says that it cannot.

What the shells read differently, or what does more than look a variable up, is refused. Knows nothing
of what commands do; substitutions are read by whoever reads commands.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from satchel.agent.shell.words import Word, literal

BLANKS = " \t"
WORD_ENDS = frozenset(" \t\n;&|<>()")
_ARITHMETIC = re.compile(r"\$\(\([0-9+\-*/% ()]*\)\)")
# Nothing that assigns, that looks a name up by another, or that evaluates a value as code: ${x:=a}, ${!x},
# ${x@P},
# ${a[i]}, zsh's ${(e)x}, ksh's ${ cmd;}.
_PARAMETER = re.compile(
    r"""\$\{(?:\#?(?P<name>[A-Za-z_][A-Za-z0-9_]*|[0-9?#])
        |(?P<changed>[A-Za-z_][A-Za-z0-9_]*|[0-9])
         (?: :?[-+?] [^${}`'"\\()<>\n]*
           | (?:\#\#?|%%?|//?) [^${}`'"\\()<>\n]*
           | :[0-9]+(?::[0-9]+)?
           | \^\^? | ,,? ))\}""",
    re.VERBOSE,
)
_ANSI_STRING = re.compile(
    r"\$'((?:\\[nt]|[^\\'])*)'"
)  # other escapes end elsewhere in dash, which has no such strings
_ABSOLUTE_VARIABLES = frozenset({"HOME", "PWD"})  # hold a path from the root


class UnreadableError(Exception):
    """The script holds something that this module does not read; the message says what."""


@dataclass(slots=True)
class _Text:
    """What is known of a word so far: the literal text, until something dynamic comes."""

    known: list[str] = field(default_factory=list)
    dynamic: bool = False
    splits: bool = False
    loose: bool = False
    brace: bool = False

    def add(self, text: str) -> None:
        if not self.dynamic:
            self.known.append(text)

    def add_unknown(self, *, one_word: bool) -> None:
        """A part that only the running shell knows."""
        self.dynamic = True
        if not one_word:
            self.splits = self.loose = True

    def word(self, source: str) -> Word:
        text = "".join(self.known)
        return Word(source, None if self.dynamic else text, text, self.splits, self.loose)


class WordReader(ABC):
    """Reads words of `text` from `position` on."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.in_heredoc_line = False  # a here document begins behind this line

    @abstractmethod
    def commands_until(self, closing: str | None) -> None:
        """Reads the commands of a substitution up to and with `closing`."""

    @abstractmethod
    def commands_between(self, start: int, end: int) -> None:
        """Reads the commands of a substitution that is text[start:end]; the position stays."""

    def word(self) -> Word:
        """Reads the word that begins here."""
        start, text = self.position, _Text()
        if self.text.startswith("~[", start):
            raise UnreadableError("it has a named directory")
        while self.position < len(self.text):
            char = self.text[self.position]
            if char in "<>" and self.text[self.position + 1 : self.position + 2] == "(":
                if self.position > start:
                    raise UnreadableError("a process substitution follows a word")
                self.position += 2
                self.commands_until(")")
                text.dynamic, text.known = True, ["/dev/fd/"]
                if self.position < len(self.text) and self.text[self.position] not in WORD_ENDS:
                    raise UnreadableError("a word follows a process substitution")
                break
            if char in WORD_ENDS:
                break
            self._part(char, text)
        if self.peek() == "(":
            raise UnreadableError("a `(` follows a word")
        source = self.text[start : self.position]
        if self.in_heredoc_line and "\n" in source:
            raise UnreadableError("a here document begins within a word")
        if source in ("[", "[[", "]", "]]"):
            return literal(source)
        if text.brace and ("," in source or ".." in source):
            text.known = list("".join(text.known).partition("{")[0])
            text.dynamic = text.splits = True
        return text.word(source)

    def _part(self, char: str, text: _Text) -> None:
        if char == "\\":
            following = self.text[self.position + 1 : self.position + 2]
            if following in ("", "\n"):
                raise UnreadableError("a backslash joins two lines within a word")
            text.add(following)
            self.position += 2
        elif char == "'":
            end = self.text.find("'", self.position + 1)
            if end < 0:
                raise UnreadableError("a quotation has no end")
            text.add(self.text[self.position + 1 : end])
            self.position = end + 1
        elif char == '"':
            self._double_quoted(text)
        elif char == "$":
            self._dollar(text, quoted=False)
        elif char == "`":
            self._backticks(text, quoted=False)
        else:
            if char in "*?[":
                text.dynamic = text.splits = True
            text.brace = text.brace or char == "{"
            text.add(char)
            self.position += 1

    def _double_quoted(self, text: _Text) -> None:
        self.position += 1
        while True:
            char = self.peek()
            if char == "":
                raise UnreadableError("a quotation has no end")
            if char == '"':
                self.position += 1
                return
            if char == "\\":
                following = self.text[self.position + 1 : self.position + 2]
                text.add("" if following == "\n" else following if following in '$`"\\' else char + following)
                self.position += 2
            elif char == "$":
                self._dollar(text, quoted=True)
            elif char == "`":
                self._backticks(text, quoted=True)
            else:
                text.add(char)
                self.position += 1

    def _dollar(self, text: _Text, *, quoted: bool) -> None:
        if arithmetic := _ARITHMETIC.match(self.text, self.position):
            self.position = arithmetic.end()
            text.add_unknown(one_word=quoted)
            return
        following = self.text[self.position + 1 : self.position + 2]
        one_word = quoted and following != "@"  # "$@" is as many words as there are arguments
        if following == "(":
            if self.text.startswith("$((", self.position):
                raise UnreadableError("it calculates with more than numbers")
            self.position += 2
            self.commands_until(")")
        elif following == "'" and not quoted:
            found = _ANSI_STRING.match(self.text, self.position)
            if not found:
                raise UnreadableError("it has a `$'…'` with escapes")
            text.add(found[1].replace("\\n", "\n").replace("\\t", "\t"))
            self.position = found.end()
            return
        elif not self._variable(text, quoted):
            return
        text.add_unknown(one_word=one_word)

    def _variable(self, text: _Text, quoted: bool) -> bool:
        """Reads `$x`, `${x…}` or a plain dollar; whether it is a variable."""
        following = self.text[self.position + 1 : self.position + 2]
        if following == "{":
            found = _PARAMETER.match(self.text, self.position)
            if not found:
                raise UnreadableError("it has an expansion that may do more than read a variable")
            name = (found["name"] or "") if found[0].startswith("${" + (found["name"] or "\n")) else ""
        elif found := re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|[0-9?#!@*$])").match(
            self.text, self.position
        ):
            name = found[1] or ""
        elif following in ("", " ", "\t", "\n", "/", "|", ";", ")") or (
            quoted and following in ('"', "'", ".", ",")
        ):
            text.add("$")
            self.position += 1
            return False
        else:
            raise UnreadableError("it has an unusual `$`")
        self.position = found.end()
        if self.peek() == "[":
            raise UnreadableError("it may look up an element of a variable")  # $x[i] does in zsh
        if name in _ABSOLUTE_VARIABLES and not text.known and not text.dynamic:
            text.known = ["/"]
        return True

    def _backticks(self, text: _Text, *, quoted: bool) -> None:
        end = self.text.find("`", self.position + 1)
        inner = self.text[self.position + 1 : end]
        if end < 0 or "\\" in inner or "<<" in inner or "#" in inner or (quoted and '"' in inner):
            raise UnreadableError("it has an unusual substitution in backticks")
        self.commands_between(self.position + 1, end)
        self.position = end + 1
        text.add_unknown(one_word=quoted)

    def peek(self) -> str:
        return self.text[self.position : self.position + 1]
