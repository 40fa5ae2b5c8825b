"""Moves and deletes by grapheme: what a reader takes for one character, of however many code points.

Draws each as wide in every terminal as prompt_toolkit takes it for. Knows nothing of messages.
"""

from __future__ import annotations

import re
import unicodedata

from prompt_toolkit.application import get_app
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, emacs_insert_mode, has_focus, vi_insert_mode
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput
from prompt_toolkit.layout.utils import explode_text_fragments
from prompt_toolkit.utils import get_cwidth
from wcwidth import iter_graphemes

from satchel.terminal.visible import visible

_FLAG_LETTERS = range(0x1F1E6, 0x1F200)
# Terminals disagree on whether these join with what is before or behind them, or widen it: joiner,
# presentation selectors, keycap, skin tones, tags. The joiner of narrow letters, as Indic ones, is harmless.
_JOINING = re.compile("[\u200d\ufe0e\ufe0f\u20e3\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]")
_TURNING = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")  # the direction of the text
_WIDENING = re.compile("[\ufe0e\ufe0f\u20e3]")


def boundaries(line: str) -> list[int]:
    """Where a cursor can stand in `line`: before, between and behind its graphemes."""
    found = [0]
    for grapheme in iter_graphemes(line):
        found.append(found[-1] + len(grapheme))
    return found


def left_of(document: Document) -> int:
    """How many code points the grapheme left of the cursor has; 0 at the beginning of the text."""
    before = document.current_line_before_cursor
    if not before:  # the end of the line above
        return min(document.cursor_position, 1)
    if before[-2:].isascii():
        return 1
    return len(before) - max(each for each in boundaries(document.current_line) if each < len(before))


def right_of(document: Document) -> int:
    """How many code points the grapheme right of the cursor has; 0 at the end of the text."""
    before, after = document.current_line_before_cursor, document.current_line_after_cursor
    if not after:
        return min(len(document.text) - document.cursor_position, 1)
    if after[:2].isascii():
        return 1
    return min(each for each in boundaries(document.current_line) if each > len(before)) - len(before)


def grapheme_keys() -> KeyBindings:
    """The arrows, Backspace and Delete, and what stands for them, while text is typed in emacs or vi mode."""
    bindings = KeyBindings()
    typing = has_focus(DEFAULT_BUFFER) & (emacs_insert_mode | vi_insert_mode)
    emacs = has_focus(DEFAULT_BUFFER) & emacs_insert_mode
    has_text = Condition(lambda: bool(get_app().current_buffer.text))  # Ctrl-D leaves where there is none

    @bindings.add("c-b", filter=emacs)
    @bindings.add("left", filter=typing)
    def _left(event: KeyPressEvent) -> None:
        for _ in range(event.arg):
            if event.current_buffer.document.current_line_before_cursor:
                event.current_buffer.cursor_position -= left_of(event.current_buffer.document)

    @bindings.add("c-f", filter=emacs)
    @bindings.add("right", filter=typing)
    def _right(event: KeyPressEvent) -> None:
        for _ in range(event.arg):
            if event.current_buffer.document.current_line_after_cursor:
                event.current_buffer.cursor_position += right_of(event.current_buffer.document)

    @bindings.add("c-h", filter=typing, save_before=_is_first)
    @bindings.add("backspace", filter=typing, save_before=_is_first)
    def _delete_left(event: KeyPressEvent) -> None:
        for _ in range(event.arg):
            event.current_buffer.delete_before_cursor(left_of(event.current_buffer.document))

    @bindings.add("c-d", filter=emacs & has_text, save_before=_is_first)
    @bindings.add("delete", filter=typing, save_before=_is_first)
    def _delete_right(event: KeyPressEvent) -> None:
        for _ in range(event.arg):
            event.current_buffer.delete(right_of(event.current_buffer.document))

    @bindings.add("up", filter=typing)
    def _up(event: KeyPressEvent) -> None:
        event.current_buffer.auto_up(event.arg)
        _settle(event.current_buffer)

    @bindings.add("down", filter=typing)
    def _down(event: KeyPressEvent) -> None:
        event.current_buffer.auto_down(event.arg)
        _settle(event.current_buffer)

    return bindings


def _is_first(event: KeyPressEvent) -> bool:
    """Whether the key is not being held: what it deletes then is undone at once."""
    return not event.is_repeat


def _settle(buffer: Buffer) -> None:
    """Move the cursor back to where the grapheme begins that it stands in."""
    column = buffer.document.cursor_position_col
    if not buffer.document.current_line.isascii():
        allowed = boundaries(buffer.document.current_line)
        buffer.cursor_position -= column - max(each for each in allowed if each <= column)


# -- drawing -------------------------------------------------------------------------------------


class EvenWidths(Processor):
    """Draws graphemes without what terminals disagree about: nothing else is drawn in a wrong place then.

    A family is drawn as its members and a flag as its two letters, and what would turn the text around by its
    number; what is typed stays as it is.
    """

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        fragments = explode_text_fragments(transformation_input.fragments)
        text = "".join(fragment[1] for fragment in fragments)
        if text.isascii():
            return Transformation(transformation_input.fragments)
        shown: StyleAndTextTuples = []
        to_display, to_source = [], []
        start = width = 0
        for grapheme in iter_graphemes(text):
            drawn = even_width(grapheme)
            shown.append((fragments[start][0], drawn))
            to_display += [width] * len(grapheme)
            to_source += [start] * len(drawn)
            start, width = start + len(grapheme), width + len(drawn)
        return Transformation(
            shown,
            source_to_display=lambda i: to_display[i] if i < start else width + i - start,
            display_to_source=lambda i: to_source[i] if i < width else start + i - width,
        )


def even_width(grapheme: str) -> str:
    """What stands for `grapheme` where every terminal must draw it equally wide."""
    if all(ord(char) in _FLAG_LETTERS for char in grapheme):
        return "".join(chr(ord(char) - _FLAG_LETTERS.start + ord("A")) for char in grapheme)
    if _TURNING.search(grapheme):
        return visible(grapheme)
    is_wide = any(get_cwidth(char) > 1 for char in grapheme)
    if len(grapheme) > 1 and (is_wide or _WIDENING.search(grapheme)):
        grapheme = _JOINING.sub("", grapheme) or grapheme
    return unicodedata.normalize("NFC", grapheme)
