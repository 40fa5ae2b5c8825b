"""Turns the bytes that a command writes into text that can be shown and read by a model.

Both what is shown while the command runs and what is kept are bounded, however much it writes. Knows nothing
of processes or terminals.
"""

from __future__ import annotations

import codecs
import time
from collections import deque
from collections.abc import Callable

from satchel.sanitize import Sanitizer

HEAD_BYTES = TAIL_BYTES = 256 << 10  # of the output's beginning and end that are kept

LIVE_BURST_BYTES = 256 << 10  # that are shown at once
LIVE_BYTES_PER_S = 64 << 10  # that are shown of an output that goes on and on
LIVE_TAIL_BYTES = 4 << 10  # of what was left out that are shown in the end

_SEAM_BYTES = 4 << 10  # that may go, too, for a gap to lie between two lines
_MAX_LINE_CHARS = 8 << 10  # of a line without an end that are waited for before it is shown


def fold(text: str) -> str:
    """`text` as a terminal would leave it: of a line that was written over, its last state.

    Colours, control sequences and what else the sanitizer takes for unsafe are gone. A carriage return starts
    the line anew, as progress bars mean it, rather than keep what the new text is too short to cover.
    """
    text = text.replace("\r\n", "\n")
    if "\r" not in text and "\b" not in text:
        return Sanitizer().feed(text)
    return "\n".join(_folded(line, Sanitizer()) for line in text.split("\n"))


def _folded(line: str, sanitizer: Sanitizer) -> str:
    """One line, its carriage returns and backspaces carried out."""
    line = line.rstrip("\r").rpartition("\r")[2]
    first, *rest = line.split("\b")
    shown = list(sanitizer.feed(first))
    for part in rest:
        del shown[-1:]
        shown += sanitizer.feed(part)
    return "".join(shown)


class Capture:
    """Keeps the beginning and the end of an output.

    Attributes:
        dropped_bytes: how much is missing between the two in `text`; right once `text` was called.
    """

    def __init__(self) -> None:
        self.dropped_bytes = 0
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0

    def feed(self, data: bytes) -> None:
        """What the command wrote next."""
        room = HEAD_BYTES - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        self._tail.append(data)
        self._tail_bytes += len(data)
        while self._tail_bytes - len(self._tail[0]) >= TAIL_BYTES:
            self._tail_bytes -= len(self._tail[0])
            self.dropped_bytes += len(self._tail.popleft())

    def text(self) -> str:
        """The output as text. What is not UTF-8 is replaced; a gap says how many bytes it stands for."""
        head, tail = bytes(self._head), b"".join(self._tail)
        surplus = len(tail) - TAIL_BYTES
        if not self.dropped_bytes and surplus <= 0:
            return fold((head + tail).decode("utf-8", "replace"))
        tail_start = _seam_after(tail, max(surplus, 0))
        head_stop = _seam_before(head)
        self.dropped_bytes += tail_start + len(head) - head_stop
        self._head, self._tail = bytearray(head[:head_stop]), deque([tail[tail_start:]])
        before = fold(self._head.decode("utf-8", "replace"))
        after = fold(self._tail[0].decode("utf-8", "replace"))
        return f"{_line_ended(before)}{_gap(self.dropped_bytes, 'left out')}{after}"


def _seam_before(head: bytes) -> int:
    """Where to end `head`: at a line's end if one is near, else between two characters."""
    stop = head.rfind(b"\n", len(head) - _SEAM_BYTES) + 1
    if stop:
        return stop
    for back in range(1, min(4, len(head)) + 1):
        byte = head[-back]
        if byte & 0xC0 != 0x80:  # the last character's first byte
            width = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(head) - back if width > back else len(head)
    return len(head)


def _seam_after(tail: bytes, start: int) -> int:
    """Where to begin `tail`, at or after `start`: where a line begins if one is near, else a character."""
    newline = tail.find(b"\n", start, start + _SEAM_BYTES)
    if newline >= 0:
        return newline + 1
    while start < len(tail) and tail[start] & 0xC0 == 0x80:
        start += 1
    return start


def _line_ended(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def _gap(count: int, what: str) -> str:
    return f"[… {count:,} bytes {what} …]\n"


class LiveText:
    """What to show of an output while it comes: whole lines, and a begun one when nothing follows for now.

    Of a command that writes faster than anyone reads, parts are shown, with the count of the bytes between
    them, and the last lines.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._allowed: float = LIVE_BURST_BYTES
        self._then = clock()
        self._skipped = 0
        self._skipped_tail = b""
        self._begin_text()
        self._begin_line()

    def _begin_text(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def _begin_line(self) -> None:
        self._line = ""  # what is to come of the line that is being written
        self._sanitizer = Sanitizer()
        self._shown = False  # whether its beginning is on the screen

    def feed(self, data: bytes) -> str:
        """The text to show now, after `data` came."""
        now = self._clock()
        self._allowed = min(LIVE_BURST_BYTES, self._allowed + (now - self._then) * LIVE_BYTES_PER_S)
        self._then = now
        out = ""
        if self._skipped:
            if self._allowed < LIVE_BYTES_PER_S:
                self._skip(data)
                return ""
            start = _seam_after(data, 0)
            self._skip(data[:start])
            out, data = self._closed(0), data[start:]
        room = int(self._allowed)
        self._allowed -= min(len(data), room)
        out += self._lines(self._decoder.decode(data[:room]))
        self._skip(data[room:])
        return out

    def pause(self) -> str:
        """The begun line, to be called when nothing came for a moment."""
        return "" if self._skipped else self._begun()

    def finish(self) -> str:
        """What remains to be shown. Nothing may be fed after it."""
        if not self._skipped:
            return self._ended(self._decoder.decode(b"", final=True))
        start = _seam_after(self._skipped_tail, 0) if self._skipped > len(self._skipped_tail) else 0
        tail = self._skipped_tail[start:]
        return self._closed(len(tail)) + fold(tail.decode("utf-8", "replace"))

    def _skip(self, data: bytes) -> None:
        if data:
            self._skipped += len(data)
            self._skipped_tail = (self._skipped_tail + data[-LIVE_TAIL_BYTES:])[-LIVE_TAIL_BYTES:]

    def _closed(self, shown_after: int) -> str:
        """The begun line ended, and the gap but for its last `shown_after` bytes; a new text begins then."""
        rest = self._ended("")
        if rest or self._shown:
            rest += "\n"
        left_out = self._skipped - shown_after
        self._skipped, self._skipped_tail = 0, b""
        self._begin_text()
        self._begin_line()
        return rest + (_gap(left_out, "not shown") if left_out else "")

    def _lines(self, text: str) -> str:
        """What can be shown once `text` follows: all lines that end in it."""
        begun, newline, rest = text.rpartition("\n")
        out = ""
        if newline:
            first, newline, others = begun.partition("\n")
            out = self._ended(first) + "\n" + (fold(others) + "\n" if newline else "")
            self._begin_line()
        self._line += rest
        if len(self._line) > _MAX_LINE_CHARS:
            last = self._line.rstrip("\r").rpartition("\r")
            if last[1]:  # written over: its last state and the mark of that stay
                self._line = self._line[len(last[0]) :]
            out += self._begun()
        return out

    def _begun(self) -> str:
        """What the line has so far, unless it is one that is written over again and again."""
        if "\r" in self._line:
            return ""
        out = _folded(self._line, self._sanitizer)
        self._line, self._shown = "", self._shown or bool(out)
        return out

    def _ended(self, text: str) -> str:
        """The rest of the line, which `text` ends."""
        line = self._line + text
        if self._shown and "\r" in line.rstrip("\r"):  # what is on the screen stays there
            return "\n" + _folded(line, Sanitizer())
        return _folded(line, self._sanitizer)
