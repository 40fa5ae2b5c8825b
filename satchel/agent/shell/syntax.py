"""What the grammar of bash (tree-sitter's) makes of a script. Knows nothing of what commands do.

Its reading must agree with the narrower one of `reading` before a script counts as understood; for one that
does not, its commands still serve for warnings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import tree_sitter
import tree_sitter_bash

from satchel.agent.shell.reading import Reading, Span, read_word
from satchel.agent.shell.words import Command, Redirect

_STATEMENTS = frozenset({"command", "declaration_command", "unset_command"})


@dataclass(frozen=True, slots=True)
class Parsed:
    """The grammar's commands; `whole` if it understood all of the text."""

    commands: tuple[Command, ...]
    names: frozenset[Span]
    words: frozenset[Span]
    tests: frozenset[int]
    whole: bool

    def agrees_with(self, reading: Reading) -> bool:
        """Whether both found the same commands with the same words at the same places."""
        return (
            self.whole
            and self.names == reading.names
            and self.words == reading.words
            and self.tests == reading.tests
        )


@cache
def _parser() -> tree_sitter.Parser:
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def parse(script: str) -> Parsed:
    """The script as the grammar has it. Takes any text that can be encoded; positions are characters."""
    encoded = script.encode()
    tree = _parser().parse(encoded)
    found = _Found(script, _offsets(script) if len(encoded) != len(script) else None)
    for node in _all_nodes(tree.root_node):
        found.take(node)
    return Parsed(
        tuple(found.commands),
        frozenset(found.names),
        frozenset(found.words),
        frozenset(found.tests),
        not tree.root_node.has_error,
    )


def _offsets(script: str) -> list[int]:
    """Which character each byte belongs to."""
    offsets = [index for index, char in enumerate(script) for _ in char.encode()]
    return [*offsets, len(script)]


def _all_nodes(root: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    """All nodes in the order of the text, without recursion: a script may be nested as deep as it is long."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(node.children))


class _Found:
    def __init__(self, script: str, offsets: list[int] | None) -> None:
        self._script = script
        self._offsets = offsets
        self.commands: list[Command] = []
        self.names: set[Span] = set()
        self.words: set[Span] = set()
        self.tests: set[int] = set()

    def take(self, node: tree_sitter.Node) -> None:
        if node.type in _STATEMENTS:
            self._command(node)
        elif node.type in ("variable_assignment", "subscript") and self._stands_alone(node):
            self.words.add(self._span(node))
        elif node.type == "test_command":
            self.tests.add(self._span(node)[0])
        elif node.type == "file_redirect":
            self._redirect(node)

    @staticmethod
    def _stands_alone(node: tree_sitter.Node) -> bool:
        """Whether an assignment is no part of a command, which takes its own."""
        return node.type == "variable_assignment" and (
            node.parent is None or node.parent.type not in _STATEMENTS
        )

    def _command(self, node: tree_sitter.Node) -> None:
        if node.type == "command":
            parts = [
                child
                for index, child in enumerate(node.children)
                if child.type in ("variable_assignment", "command_name")
                or node.field_name_for_child(index) == "argument"
            ]
        else:
            parts = list(node.children)
        assignments = [
            self._span(part)
            for part in parts
            if part.type == "variable_assignment" and node.type == "command"
        ]
        rest = [part for part in parts if part.type != "variable_assignment" or node.type != "command"]
        spans = self._joined([self._span(part) for part in rest] + self._stray_arguments(node))
        self.words.update(assignments, spans)
        self.names.update(spans[:1])
        start = min((assignments + spans), default=self._span(node))[0]
        self.commands.append(
            Command(
                self._script.count("\n", 0, start) + 1,
                self._script[start : max((end for _, end in assignments + spans), default=start)],
                tuple(read_word(self._text(span)) for span in assignments),
                tuple(read_word(self._text(span)) for span in spans),
            )
        )

    def _stray_arguments(self, node: tree_sitter.Node) -> list[Span]:
        """Arguments behind a redirection, which the grammar takes for more targets of it."""
        parent = node.parent
        if parent is None or parent.type != "redirected_statement" or parent.children[0] != node:
            return []
        return [
            self._span(target)
            for redirect in parent.children[1:]
            if redirect.type == "file_redirect"
            for target in redirect.children_by_field_name("destination")[1:]
        ]

    def _redirect(self, node: tree_sitter.Node) -> None:
        targets = node.children_by_field_name("destination")
        if not targets:
            return
        span = self._span(targets[0])
        self.words.add(span)
        operator = next((child.type for child in node.children if not child.is_named), ">")
        self.commands.append(
            Command(
                self._script.count("\n", 0, span[0]) + 1,
                self._text(self._span(node)),
                redirects=(Redirect(operator, read_word(self._text(span))),),
            )
        )

    def _joined(self, spans: list[Span]) -> list[Span]:
        """Spans that touch are one word, which the grammar sometimes splits."""
        ordered = sorted(spans)
        breaks = [
            0,
            *(index for index, (a, b) in enumerate(pairwise(ordered), 1) if a[1] != b[0]),
            len(ordered),
        ]
        return [(ordered[first][0], ordered[last - 1][1]) for first, last in pairwise(breaks) if first < last]

    def _span(self, node: tree_sitter.Node) -> Span:
        if self._offsets is None:
            return node.start_byte, node.end_byte
        return self._offsets[node.start_byte], self._offsets[node.end_byte]

    def _text(self, span: Span) -> str:
        return self._script[span[0] : span[1]]
