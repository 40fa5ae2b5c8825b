"""Which messages are for the model, whatever their words sound like. Knows nothing of how others are sorted.

What is said about a file, or an answer, that the talk has already is no request for a tool.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

_ASKS_FOR_A_TOOL = re.compile(
    r"\s*(?:please\s+|(?:can|could|would) you\s+(?:please\s+)?)?(?:search|google|look up|run|execute)\b"
    r"|\s*(?:请|帮我)*(?:搜索|搜一下|查一下|运行|执行)",
    re.IGNORECASE,
)
_SAYS = re.compile(r"\s*(?:please\s+)?(?:say|repeat)\s+\S+(?:\s+\S+){0,2}\s*", re.IGNORECASE)
_OF_FILES = re.compile(r"\b(?:this|that) file\b|这个?文件(?!夹)", re.IGNORECASE)
_OF_WORDS = re.compile(
    r"\b(?:this|that|your) (?:\w+ )?(?:function|class|method|code|script|answer|text|paragraph|sentence)\b"
    r"|这个?(?:函数|类|方法|代码|脚本|回答|文本|句子)|这段(?:代码|话|文字|文本)",
    re.IGNORECASE,
)


def is_plain(message: str, files: Sequence[str], answered: bool) -> bool:
    """Whether `message` is for the model, without a look at what else it may be after.

    It is if it has several lines, asks only for a few words to be said, names one of `files`, or speaks of
    "this code" and the like; not if it begins with a word such as "search" or "run".

    Args:
        files: the paths of those that the talk has.
        answered: whether the model has said something in the talk.
    """
    if _ASKS_FOR_A_TOOL.match(message):
        return False
    if "\n" in message.strip() or _SAYS.fullmatch(message) or any(_names(message, path) for path in files):
        return True
    return bool((files and _OF_FILES.search(message)) or ((files or answered) and _OF_WORDS.search(message)))


def _names(message: str, path: str) -> bool:
    """Whether `path`, or its last part, stands in `message` as a word of its own."""
    return any(
        re.search(rf"(?<![A-Za-z0-9_./-]){re.escape(name)}(?![A-Za-z0-9_/-]|\.\w)", message, re.IGNORECASE)
        for name in {path, PurePath(path).name}
    )
