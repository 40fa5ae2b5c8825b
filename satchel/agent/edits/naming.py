"""The path of a file, out of the lines around an edit or out of a diff's headers. Knows no disk."""

from __future__ import annotations

import re

NO_FILE = "/dev/null"

_ESCAPE = re.compile(r"\\([0-7]{3}|.)", re.DOTALL)
_LETTERS = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_QUOTED_NAME = re.compile(r"[`'\"]([^`'\"\s][^`'\"]*)[`'\"]")
_LABEL = re.compile(r"^(?:file ?name|file|path|in|edit|update)\s*:?\s+", re.IGNORECASE)
_EXTENSION = re.compile(r"[\w)]\.\w{1,10}$")
_MAX_NAME = 500  # characters


def header_path(written: str) -> str:
    """The path in a diff's `--- ` or `+++ ` line, with the prefix that it may have."""
    written = written.rstrip("\r")
    if written.startswith('"'):
        end = _closing_quote(written)
        return _unquoted(written[1:end])
    return written.split("\t")[0].rstrip()


def git_paths(written: str) -> tuple[str, str] | None:
    """Both paths in a `diff --git` line, without their prefixes; None if they cannot be told apart."""
    written = written.strip()
    if written.startswith('"'):
        end = _closing_quote(written)
        old, new = _unquoted(written[1:end]), header_path(written[end + 1 :].strip())
    else:
        # Names may hold spaces: where both are the same, the middle is between them.
        middle = len(written) // 2
        old, new = written[:middle], written[middle + 1 :]
        if old[2:] != new[2:]:
            old, _, new = written.partition(" ")
    if old.startswith("a/") and new.startswith("b/"):
        return old[2:], new[2:]
    return None


def without_prefixes(old: str, new: str) -> tuple[str, str]:
    """The paths without git's `a/` and `b/`, where both have them that are paths."""
    if old.startswith("a/") or old == NO_FILE:
        bare = old if old == NO_FILE else old[2:]
        if new.startswith("b/"):
            return bare, new[2:]
        if new == NO_FILE:
            return bare, new
    return old, new


def named_above(line: str) -> str:
    """The path that a line of its own names, as models write it above an edit; "" if it names none."""
    line = line.strip()
    quoted = _QUOTED_NAME.findall(line)
    if len(quoted) == 1 and _looks_like_path(quoted[0]):
        return str(quoted[0])
    name = _LABEL.sub("", line.strip("#*`:\"' \t")).strip("*`:\"' \t")
    if not name or len(name) > _MAX_NAME:
        return ""
    if " " not in name and "\t" not in name:
        is_word = bool(re.search(r"\w", name)) and not line.endswith(":")
        return name if is_word or _looks_like_path(name) else ""
    # More than one word is a name with spaces, or a sentence.
    return name if _EXTENSION.search(name) and not line.endswith(":") else ""


def named_in_fence(info: str) -> str:
    """The path in what stands behind an opening fence, as in "python src/a.py" or "python:src/a.py"."""
    words = info.replace(":", " ").split()
    return words[-1] if words and _looks_like_path(words[-1]) else ""


def header_name(prefix: str, path: str) -> str:
    """A file's name as `git diff` writes it: a tab ends one with spaces, an odd one is quoted as in C."""
    name = path if path.startswith("/") else f"{prefix}/{path}"
    if name.isprintable() and '"' not in name and "\\" not in name:
        return f"{name}\t" if " " in name else name
    plain = re.compile(rb"[^ !#-\[\]-~]").sub(lambda odd: b"\\%03o" % odd[0][0], name.encode())
    return f'"{plain.decode()}"'


def _looks_like_path(word: str) -> bool:
    return len(word) <= _MAX_NAME and ("/" in word or bool(_EXTENSION.search(word)))


def _closing_quote(written: str) -> int:
    match = re.match(r'"(?:\\.|[^"\\])*', written, re.DOTALL)
    return match.end() if match else len(written)


def _unquoted(text: str) -> str:
    """What git quotes as in C: bytes in octal, and a letter for some control characters."""

    def byte(match: re.Match[bytes]) -> bytes:
        said = match[1].decode("latin-1")
        return bytes([int(said, 8) & 255 if len(said) == 3 else _LETTERS.get(said, ord(said))])

    pattern = re.compile(_ESCAPE.pattern.encode(), re.DOTALL)
    return pattern.sub(byte, text.encode("utf-8", "replace")).decode("utf-8", "replace")
