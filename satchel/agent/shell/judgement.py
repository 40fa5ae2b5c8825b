"""Says what a shell script touches before anyone runs it, part by part.

`read_only` is said only of a script that was understood whole: two readings of it agree, every command in it
is known, and each only reads with the options it has. All else is "cannot judge": no harm, but a question.
Knows nothing of who asks or of how commands run; it runs nothing and reads no file.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from satchel.agent.shell.changers import harmless_variable
from satchel.agent.shell.known_commands import changes_directory, judge_command
from satchel.agent.shell.reading import read
from satchel.agent.shell.runners import setting
from satchel.agent.shell.syntax import parse
from satchel.agent.shell.touch import READS, Finding, Touch, finding, unknown
from satchel.agent.shell.traces import destroys
from satchel.agent.shell.word_reading import UnreadableError
from satchel.agent.shell.words import Command, Redirect, Word, assigned_name, text_of
from satchel.sanitize import sanitize_line

__all__ = ["Judgement", "Touch", "judge"]

MAX_SCRIPT_CHARS = 10_000  # a script that is longer is read by nobody
_MAX_SEARCHED_CHARS = 200_000
_MAX_INNER = 4  # of scripts and programs run by each other
_MAX_REASONS = 40
_SHOWN_CHARS = 80

_ALIKE = frozenset({"sh", "bash", "zsh", "dash", "ash", "ksh", "mksh"})  # the readings hold for all of them
# What fish reads otherwise: escapes in quotes, substitutions in bare parentheses, lists.
_NOT_IN_FISH = re.compile(r"[\\(){}$`\[\]^%~]|<<|>\?|<\?")
_IN_EVERY_SHELL = re.compile(r"[A-Za-z0-9_./,:@+\-| \n]*")

_INVISIBLE = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
# Letters and marks that show nothing (Unicode's default ignorables that are not of the categories above).
_BLANK_LETTERS = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)

_QUIET_TARGETS = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr", "/dev/fd/1", "/dev/fd/2"})
_NETWORK_TARGETS = ("/dev/tcp", "/dev/udp")
_DISKS = re.compile(r"/dev/(?:sd|hd|vd|xvd|nvme|mmcblk|disk|rdisk|md|dm-|mapper/)")

_AT_HOME = re.compile(r'"?\$(?:HOME|\{HOME\})(?="?(?:/|$))')

_ORDER = tuple(Touch)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a script touches. `reasons` name the part, and of several lines which one.

    "line 4: `rm -rf ~/` deletes files". What only reads has no reason.
    """

    touches: frozenset[Touch]
    reasons: tuple[str, ...]
    doubt: str = ""  # the first reason why it cannot be judged, if it cannot

    @property
    def read_only(self) -> bool:
        """Whether all of it certainly does nothing but read."""
        return self.touches == {Touch.READS}

    @property
    def destructive(self) -> bool:
        """Whether a part of it destroys something, or looks like it."""
        return Touch.DESTRUCTIVE in self.touches

    def summary(self) -> str:
        """One line: "reads · network", or "destructive · cannot judge: why"."""
        names = [str(touch) for touch in _ORDER if touch in self.touches]
        return " · ".join(names) + (f": {self.doubt}" if self.doubt else "")


def judge(script: str, shell: str = "bash") -> Judgement:
    """What `script` touches when `shell` (a name or a path) runs it. Takes any text and never fails."""
    judging = _Judging(script.count("\n") > 0)
    judging.script(script, shell.rsplit("/", 1)[-1].lstrip("-") or "sh")
    return judging.judgement()


class _Judging:
    """Collects findings with the part they are of."""

    def __init__(self, several_lines: bool) -> None:
        self._several_lines = several_lines
        self._reasons: dict[str, frozenset[Touch]] = {}
        self._touches: set[Touch] = set()

    def judgement(self) -> Judgement:
        # What destroys comes first: a list of reasons may be cut.
        ranked = sorted(self._reasons, key=lambda reason: Touch.DESTRUCTIVE not in self._reasons[reason])
        doubts = [reason for reason, touches in self._reasons.items() if Touch.UNKNOWN in touches]
        return Judgement(frozenset(self._touches), tuple(ranked[:_MAX_REASONS]), doubts[0] if doubts else "")

    def script(self, text: str, shell: str) -> None:
        commands, faults = _understood(text, shell)
        for fault in faults:
            self._add(0, "", unknown(fault))
        if faults and (trace := destroys(text[:_MAX_SEARCHED_CHARS])):
            self._add(
                _line_of_trace(text[:_MAX_SEARCHED_CHARS]),
                trace,
                finding("looks as if it destroyed something", Touch.DESTRUCTIVE),
            )
        moved = any(changes_directory(command.words) for command in commands)
        for command in commands:
            for found in _judge_simple(command, _Inside(moved, shell, 0)):
                self._add(command.line, command.source, found)

    def _add(self, line: int, part: str, found: Finding) -> None:
        self._touches |= found.touches
        if found == READS:
            return
        shown = sanitize_line(part)
        shown = (
            f"`{shown if len(shown) <= _SHOWN_CHARS else shown[: _SHOWN_CHARS - 1] + '…'}` " if shown else ""
        )
        place = f"line {line}: " if line and self._several_lines else ""
        reason = place + shown + sanitize_line(found.why)
        self._reasons[reason] = self._reasons.get(reason, frozenset()) | found.touches


@dataclass(frozen=True, slots=True)
class _Inside:
    """Judges what a command runs: an `Inner` that knows how deep it is."""

    moved: bool
    shell: str
    depth: int

    def command(self, words: Sequence[Word]) -> list[Finding]:
        if self.depth >= _MAX_INNER:
            return [unknown("runs programs by programs too deeply")]
        return judge_command(words, _Inside(self.moved, self.shell, self.depth + 1))

    def script(self, text: str, shell: str) -> list[Finding]:
        if self.depth >= _MAX_INNER:
            return [unknown("runs scripts by scripts too deeply")]
        commands, faults = _understood(text, shell)
        found = [unknown(f"runs a text that cannot be judged: {fault}") for fault in faults]
        if faults and (trace := destroys(text)):
            found.append(
                finding(f"runs `{trace}`, which looks as if it destroyed something", Touch.DESTRUCTIVE)
            )
        moved = self.moved or any(changes_directory(command.words) for command in commands)
        inner = _Inside(moved, shell, self.depth + 1)
        return found + [one for command in commands for one in _judge_simple(command, inner)]


def _line_of_trace(text: str) -> int:
    """The first line that looks as if it destroyed something; 0 if only several together do."""
    return next((number for number, line in enumerate(text.split("\n"), 1) if destroys(line)), 0)


def _understood(text: str, shell: str) -> tuple[tuple[Command, ...], list[str]]:
    """The script's commands, and why it is not understood whole; then they are what could be made out."""
    if fault := _unfit_text(text):
        return (), [fault]
    parsed = parse(text)
    try:
        reading = read(text)
    except UnreadableError as fault:
        return parsed.commands, [str(fault)]
    if not parsed.agrees_with(reading):
        return parsed.commands + reading.commands, ["it can be read in more than one way"]
    if not any(command.words or command.assignments for command in reading.commands):
        return reading.commands, ["it has no command"]
    if shell not in _ALIKE:
        fits = not reading.keywords and (
            not _NOT_IN_FISH.search(text) if shell == "fish" else _IN_EVERY_SHELL.fullmatch(text)
        )
        if not fits:
            return reading.commands, [f"{sanitize_line(shell)} may read it in another way"]
    return reading.commands, []


def _unfit_text(text: str) -> str:
    if len(text) > MAX_SCRIPT_CHARS:
        return f"it is longer than {MAX_SCRIPT_CHARS} characters"
    for char in text:
        category = unicodedata.category(char)
        if (category in _INVISIBLE and char not in "\n\t") or (category == "Zs" and char != " "):
            return f"it has an invisible character, U+{ord(char):04X}"
    if found := _BLANK_LETTERS.search(text):
        return f"it has an invisible character, U+{ord(found[0]):04X}"
    return ""


def _judge_simple(command: Command, inner: _Inside) -> Iterator[Finding]:
    for redirect in command.redirects:
        yield from _judge_redirect(redirect)
    for word in command.assignments:
        yield from _judge_assignment(word, command.words)
    if not command.words:
        yield READS
        return
    found = judge_command(command.words, inner)
    if len(command.words) > 1 and command.words[-1].value == "--":
        found = [*found, unknown("ends where words should follow")]
    yield from found
    touches = frozenset().union(*(one.touches for one in found))
    if (
        Touch.UNKNOWN in touches
        and Touch.DESTRUCTIVE not in touches
        and (trace := destroys(text_of(command.words)))
    ):
        yield finding(f"would run `{trace}`, which looks as if it destroyed something", Touch.DESTRUCTIVE)


def _judge_redirect(redirect: Redirect) -> Iterator[Finding]:
    if redirect.target is None:
        return
    target = redirect.target.value if redirect.target.value is not None else redirect.target.prefix
    certain = redirect.target.value is not None
    shown = redirect.target.source
    if redirect.operator in ("<&", ">&") and certain and re.fullmatch(r"[0-9]+-?|-", target):
        return
    begins = any(one.startswith(target) for one in _NETWORK_TARGETS)
    anywhere = not certain and begins and not _AT_HOME.match(shown)
    if target.startswith(_NETWORK_TARGETS) or anywhere:
        yield finding(f"may open a connection through {shown}", Touch.NETWORK, Touch.UNKNOWN)
    if redirect.operator in ("<", "<&"):
        yield READS
    elif not certain or target not in _QUIET_TARGETS:
        if _DISKS.match(target):
            yield finding(f"overwrites the disk {shown}", Touch.WRITES, Touch.DESTRUCTIVE)
        else:
            yield finding(f"writes to {shown}", Touch.WRITES)


def _judge_assignment(word: Word, words: Sequence[Word]) -> Iterator[Finding]:
    name = assigned_name(word)
    if not words:
        changed = None if harmless_variable(name) else setting(word)
    elif name == "IFS" and words[0].value == "read":
        changed = None
    else:
        changed = setting(word)
    if changed:
        yield changed
