"""The rule for session names. A name is a label that people read, never a path: files are named by ids."""

from __future__ import annotations

import unicodedata

from satchel.errors import UsageError

MAX_LENGTH = 64  # code points
RULE = f"a name has 1 to {MAX_LENGTH} letters, digits or emoji, and inside also spaces, '-', '_' and '.'"

_JOINERS = "\u200d\ufe0f"  # zero-width joiner and emoji selector: they make emoji, and cannot be seen
_INNER = " -_." + _JOINERS
# Letters, marks, numbers, and the two categories of symbols that hold emoji and their modifiers.
_CATEGORIES = ("L", "M", "N", "So", "Sk")


def validate_name(name: str) -> str:
    """`name` in Unicode's NFC form, which is the form to store.

    Raises:
        UsageError: the name breaks the rule; says how.
    """
    name = unicodedata.normalize("NFC", name)
    if fault := name_fault(name):
        raise UsageError(f"the session name {name[:MAX_LENGTH]!a} {fault}", RULE)
    return name


def name_fault(name: str) -> str | None:
    """What is wrong with a name that was stored or typed, or None."""
    if not name:
        return "is empty"
    if len(name) > MAX_LENGTH:
        return f"has {len(name)} characters"
    if name != unicodedata.normalize("NFC", name):
        return "is not in Unicode's NFC form"
    for char in name:
        if char not in _INNER and not unicodedata.category(char).startswith(_CATEGORIES):
            return f"has {char!a} in it"
    if name[0] in _INNER or unicodedata.category(name[0]).startswith("M"):
        return f"starts with {name[0]!a}"
    if name[-1] == " ":
        return "ends with a space"
    return None


def name_key(name: str) -> str:
    """Two names with the same key look alike to people and cannot both be used."""
    visible = "".join(char for char in name if char not in _JOINERS)
    return unicodedata.normalize("NFC", visible.casefold())
