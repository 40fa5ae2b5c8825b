"""Texts to measure on, all without network, as token ids. Knows nothing of caches."""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from pydoc_data.topics import topics
from typing import TYPE_CHECKING

from satchel.engine.prompt import render
from satchel.errors import UsageError

if TYPE_CHECKING:
    from satchel.engine.model import LoadedModel

GPL = Path("/usr/share/common-licenses/GPL-3")  # where Debian puts it
PYDOC_TOPICS = 5


def token_ids(model: LoadedModel, name: str, tokens: int) -> list[int]:
    """The first `tokens` tokens of the text called `name`; all of them where it has fewer.

    Raises:
        UsageError: no such text, or one that is not on this machine.
    """
    check_text_names([name])
    if name == CHAT:
        text = render(model.tokenizer, json.loads(_data("chat.json")))
        encoded = model.tokenizer.encode(text, add_special_tokens=False)  # the template has brought them
    else:
        encoded = model.tokenizer.encode(TEXTS[name]())
    return list(encoded[:tokens])


def available_texts() -> list[str]:
    """The names of the texts that this machine has."""
    return [name for name in NAMES if name != "gpl" or GPL.exists()]


def check_text_names(names: list[str]) -> None:
    """Raises UsageError for a text that is unknown or not on this machine; the message lists the others."""
    available = available_texts()
    for name in names:
        if name not in available:
            problem = f"{GPL} is not there" if name in NAMES else f"no text is called {name!r}"
            raise UsageError(problem, f"there are {', '.join(available)}")


def _pydoc() -> str:
    return "\n".join(sorted(topics.values(), key=len, reverse=True)[:PYDOC_TOPICS])


def _data(name: str) -> str:
    return files("satchel.laboratory").joinpath("data", name).read_text(encoding="utf-8")


# `pydoc` is Python's own documentation, `code` the source of its argparse; `prose` (an English story),
# `chinese` (another) and `chat` (on a script, with code and lists, in the model's own template, so no text
# without a model) were written for this.
TEXTS: dict[str, Callable[[], str]] = {
    "pydoc": _pydoc,
    "gpl": lambda: GPL.read_text(encoding="utf-8"),
    "prose": lambda: _data("prose.txt"),
    "code": lambda: inspect.getsource(argparse),
    "chinese": lambda: _data("chinese.txt"),
}
CHAT = "chat"
NAMES = (*TEXTS, CHAT)
