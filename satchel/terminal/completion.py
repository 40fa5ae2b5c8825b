"""Completes what is typed at the chat's prompt: commands, their arguments, and @paths in messages.

Looks things up when they are first wanted, and again for each message. What needs a talk that is not there
yet completes nothing. Knows nothing of keys.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from satchel.agent.commands import COMMANDS
from satchel.agent.desk import Desk
from satchel.cache_store.local import LocalStore
from satchel.config.paths import expand
from satchel.config.settings import Settings
from satchel.errors import SatchelError

MAX_NAMES = 500  # sessions, or files of a directory; looking through more would hold up the keyboard
_COMMAND = re.compile(r"/[^\s/]*$")
_ARGUMENT = re.compile(r"/([^\s/]+)\s+(.*)", re.DOTALL)
_MENTION = re.compile(r"(?:^|\s)@(\S*)$")
_LAST_WORD = re.compile(r"\S*$")


class TalkCompleter(Completer):
    """Completes with what there is in `store`, and at the desk once there is one."""

    def __init__(self, store: LocalStore, settings: Settings) -> None:
        self.store, self.settings = store, settings
        self.desk: Desk | None = None
        self._known: dict[str, Sequence[str]] = {}

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        typed = document.text_before_cursor
        if len(typed) <= 1:
            self._known.clear()  # another message: sessions may have come and gone
        # What cannot be read, as a directory of somebody else's, completes nothing.
        with contextlib.suppress(SatchelError, OSError, ValueError):
            return list(self._completions(typed))
        return ()

    def _completions(self, typed: str) -> Iterator[Completion]:
        if _COMMAND.match(typed):
            for command in COMMANDS:
                if f"/{command.name}".startswith(typed):
                    yield Completion(f"/{command.name}", -len(typed), display_meta=command.help)
        elif match := _ARGUMENT.match(typed):
            yield from self._argument(_kind(match[1]), match[2])
        elif match := _MENTION.search(typed):
            yield from _paths(self._cwd(), match[1])

    def _cwd(self) -> Path:
        return self.desk.tools.cwd if self.desk else Path.cwd()

    def _argument(self, kind: str, typed: str) -> Iterator[Completion]:
        if kind == "path":
            match = _LAST_WORD.search(typed)
            yield from _paths(self._cwd(), match[0] if match else "")
        elif kind in _NAMES:
            if kind not in self._known:
                self._known[kind] = [name for name in _NAMES[kind](self) if name.isprintable()]
            for name in self._known[kind]:
                if name.startswith(typed):
                    yield Completion(name, -len(typed))


def _kind(name: str) -> str:
    """What the argument of the command `name` is."""
    return next((each.complete for each in COMMANDS if name in (each.name, *each.aliases)), "")


def _sessions(talk: TalkCompleter) -> Iterator[str]:
    for head in talk.store.heads(MAX_NAMES).heads:
        yield head.name


def _models(talk: TalkCompleter) -> list[str]:
    """Those that talks were held with, the user's own names for models, and the package's."""
    from satchel.engine.model_names import named_models

    used = (head.model_name for head in talk.store.heads(MAX_NAMES).heads)
    return list(dict.fromkeys(["embedded", *used, *talk.settings.models, *named_models()]))


def _profiles(talk: TalkCompleter) -> Iterable[str]:
    from satchel.config.profiles import PROFILES

    return PROFILES


def _files(talk: TalkCompleter) -> Iterator[str]:
    from satchel.agent.context import known_files

    for file in known_files(talk.desk.session.messages) if talk.desk else ():
        yield file.path


def _commands(talk: TalkCompleter) -> Iterator[str]:
    for command in COMMANDS:
        yield command.name


_NAMES: dict[str, Callable[[TalkCompleter], Iterable[str]]] = {
    "session": _sessions,
    "model": _models,
    "profile": _profiles,
    "file-in-context": _files,
    "command": _commands,
}


def _paths(base: Path, typed: str) -> Iterator[Completion]:
    """What `typed` may become as a path from `base` on; of hidden files if it asks for them."""
    folder, slash, begun = typed.rpartition("/")
    found: list[str] = []
    with os.scandir(base / expand(folder + slash)) as entries:
        for entry in entries:
            if len(found) == MAX_NAMES:
                break
            name = entry.name
            hidden = name.startswith(".") and not begun.startswith(".")
            # A name with spaces would have to be quoted from its start on.
            if name.startswith(begun) and not hidden and name.isprintable() and not re.search(r"\s", name):
                found.append(f"{name}/" if entry.is_dir() else name)
    for name in sorted(found):
        yield Completion(name, -len(begun))
