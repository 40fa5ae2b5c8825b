"""Text of which nothing is hidden: for what a person is asked to agree to. Knows nothing of what it is."""

from __future__ import annotations

import re
import unicodedata

# Drawn as nothing, or as a gap, though Unicode counts them among letters, marks and symbols.
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"}  # controls, formats, unassigned, odd spaces
_SHOWN_AS_THEY_ARE = "\n\t "


def visible(text: str) -> str:
    """`text` with each character that could not be seen as itself written out, as ⟨U+200B⟩."""
    return "".join(map(_shown, text))


def _shown(char: str) -> str:
    if char in _SHOWN_AS_THEY_ARE or " " < char <= "~":
        return char
    hidden = unicodedata.category(char) in _HIDDEN or _BLANK.match(char)
    return f"⟨U+{ord(char):04X}⟩" if hidden else char
