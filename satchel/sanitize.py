"""Makes text from models, files and stored sessions safe to write to a terminal or a pipe.

Removes what could drive a terminal and keeps what can be seen. Knows nothing of who wrote the text.
"""

from __future__ import annotations

import re
from enum import Enum, auto

# A sequence that is longer than this was never meant as one: what follows is shown again.
MAX_SEQUENCE_CHARS = 4096

_BIDI = r"\u202a-\u202e\u2066-\u2069"
_SURROGATES = r"\ud800-\udfff"  # cannot be encoded, so writing them would fail
_SPECIAL = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{_BIDI}{_SURROGATES}]")
_IS_BIDI = re.compile(f"[{_BIDI}]")
_IS_SURROGATE = re.compile(f"[{_SURROGATES}]")

_ESC, _BEL, _CSI, _ST = "\x1b", "\x07", "\x9b", "\x9c"
_CANCEL = "\x18\x1a"
_STRING_INTRODUCERS = "]PX^_"  # after ESC: OSC, DCS, SOS, PM, APC


class _State(Enum):
    """What the next character belongs to (ECMA-48, section 5)."""

    TEXT = auto()
    ESCAPE = auto()  # after ESC
    INTERMEDIATE = auto()  # after ESC and an intermediate character
    CSI = auto()  # the parameters of a control sequence
    STRING = auto()  # the body of a control string; the ESC of its terminator leads to ESCAPE


class Sanitizer:
    """Cleans a text that arrives in pieces: the pieces' results join to the result of the whole text.

    A control string without a terminator ends with its line or after `MAX_SEQUENCE_CHARS`, so that it
    cannot swallow an answer. Of the C1 controls only CSI starts a sequence: the others are what wrongly
    decoded quotation marks turn into, and taking them for introducers would eat the words between.
    """

    def __init__(self) -> None:
        self._state = _State.TEXT
        self._sequence_chars = 0

    def feed(self, chunk: str) -> str:
        """The part of `chunk` that can be shown."""
        if self._state is _State.TEXT and not _SPECIAL.search(chunk):
            return chunk
        return "".join(self._step(char) for char in chunk)

    def _step(self, char: str) -> str:
        if self._state is _State.TEXT:
            return self._text(char)
        self._sequence_chars += 1
        if self._sequence_chars > MAX_SEQUENCE_CHARS or char in _CANCEL:
            return self._text(char)
        if self._state is _State.STRING:
            return self._string(char)
        return self._sequence(char)

    def _text(self, char: str) -> str:
        self._state = _State.TEXT
        if char in (_ESC, _CSI):
            self._state = _State.ESCAPE if char == _ESC else _State.CSI
            self._sequence_chars = 0
            return ""
        if _IS_BIDI.match(char):
            return f"⟨U+{ord(char):04X}⟩"
        if _IS_SURROGATE.match(char):
            return "\N{REPLACEMENT CHARACTER}"
        return "" if _SPECIAL.match(char) else char

    def _string(self, char: str) -> str:
        if char in (_ESC, "\n"):
            return self._text(char)
        if char in (_BEL, _ST):
            self._state = _State.TEXT
        return ""

    def _sequence(self, char: str) -> str:
        """One character after ESC or CSI; one that cannot stand there ends the sequence and is text."""
        if not " " <= char <= "~":
            return self._text(char)
        if self._state is _State.ESCAPE and char in _STRING_INTRODUCERS:
            self._state = _State.STRING
        elif self._state is _State.ESCAPE and char == "[":
            self._state = _State.CSI
        elif self._state is _State.CSI:
            if char >= "@":
                self._state = _State.TEXT
        else:
            self._state = _State.INTERMEDIATE if char < "0" else _State.TEXT
        return ""


def sanitize(text: str) -> str:
    """`text` without control characters (newline and tab stay), its bidi controls shown as ⟨U+202E⟩."""
    return Sanitizer().feed(text)


def sanitize_line(text: str) -> str:
    """`text` sanitized and on one line: for names and titles."""
    return " ".join(sanitize(text).split())


def encodable(text: str) -> str:
    """`text` with question marks for lone surrogates, which bytes that are not UTF-8 reach us as."""
    return text.encode("utf-8", "replace").decode()
