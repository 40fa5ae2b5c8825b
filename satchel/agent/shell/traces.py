"""Looks in a text that cannot be judged for what would destroy things.

A warning only: that nothing is found means nothing. Knows nothing of the shell's grammar.
"""

from __future__ import annotations

import re
import unicodedata

# What may repeat is bounded: a text made for it would take hours otherwise.
_COMMANDS = re.compile(
    r"""(?<![\w./\-])(?:/(?:usr/)?s?bin/)?(?:
        (?:rm|rmdir|unlink|shred|srm|truncate|wipefs|fdisk|sgdisk|parted|blkdiscard|userdel)\s+\S
      | mkfs(?:\.\w+)?\s
      | (?:pkill|killall|kill)\s+\S
      | (?:shutdown|poweroff|halt|reboot)(?!\w)
      | dd\s[^\n]{0,300}\bof=/dev/
      | git\s[^\n]{0,99}\b(?:reset\s[^\n]{0,99}--hard|clean\s[^\n]{0,99}-\w{0,9}f)
      | git\s[^\n]{0,99}\bpush\s[^\n]{0,99}(?:--force|-f\b)
      | git\s[^\n]{0,300}\b(?:branch\s+-D|stash\s+(?:drop|clear))
      | find\s[^\n]{0,300}\s-delete\b
      | crontab\s+-r
      | diskutil\s+(?:erase|partition|zero)
      | docker\s[^\n]{0,300}\b(?:prune|rmi?)\b
      | kubectl\s+delete
      | (?:terraform|tofu|pulumi)\s[^\n]{0,300}destroy
    )""",
    re.VERBOSE,
)
_PROGRAMS = re.compile(
    r"""\b(?:rmtree|removedirs)\b | \bos\.(?:remove|unlink|rmdir|kill)\b | \.unlink\(
      | \b(?:unlink|rm|rmdir)Sync\b
      | \bfs\.(?:rm|unlink|rmdir|promises\.rm)\b | \bFileUtils\.(?:rm|remove) | \bFile\.(?:delete|unlink)\b
      | \bDir\.(?:delete|rmdir|unlink)\b | \bunlink\s*\(? | \bremove_tree\b
      | \b(?i:drop\s+(?:table|database|schema|user)|truncate\s+table|delete\s+from|flushall|flushdb)\b
      | >\s*/dev/(?:sd|nvme|disk|rdisk|hd|vd)\w
      | (?<!\w)(\w{1,40}|:)\s{0,9}\(\)\s{0,9}\{\s{0,9}\1\s{0,9}\|\s{0,9}\1\s{0,9}&""",
    re.VERBOSE,
)
_HEX = re.compile(r"\\x([0-9a-fA-F]{2})")
_OCTAL = re.compile(r"\\([0-7]{3})")
_INVISIBLE = frozenset({"Cf", "Cc", "Cn", "Co"})


def destroys(text: str) -> str:
    """The part of `text` that looks as if it destroyed something, empty if there is none.

    Seen through quotes, backslashes, escapes of characters, look-alike letters and invisible characters.
    """
    for version in _versions(text):
        for pattern in (_COMMANDS, _PROGRAMS):
            if found := pattern.search(version):
                line = version[found.start() :].split("\n", 1)[0]
                return " ".join(line.split())[:60]
    return ""


def _versions(text: str) -> list[str]:
    visible = "".join(
        char if char in "\n\t" or unicodedata.category(char) not in _INVISIBLE else " " * (char == "\r")
        for char in unicodedata.normalize("NFKC", text)
    )
    decoded = _HEX.sub(lambda found: chr(int(found[1], 16)), visible)
    decoded = _OCTAL.sub(lambda found: chr(int(found[1], 8)), decoded)
    joined = decoded.replace("\\\n", "")
    bare = re.sub(r"\$'|[\\'\"]", "", joined).replace("${IFS}", " ").replace("$IFS", " ")
    opened = re.sub(r"[\\'\"`,(){}\[\];&|=]", " ", joined)  # ["rm", "-rf", "x"] and $(rm x)
    return [visible, bare, opened]
