"""What the word that is being typed in a shell can become. Knows the commands, and nothing of shells.

Nothing here loads MLX: a shell waits for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from satchel.cli.help import first_sentence
from satchel.cli.program import Program
from satchel.errors import SatchelError


@dataclass(frozen=True, slots=True)
class Word:
    """What can be typed, and what it means, if that helps."""

    text: str
    meaning: str = ""


def words_for(program: Program, typed: Sequence[str]) -> list[Word]:
    """What the last of the words `typed` behind the program's name can become; none: a path, or anything."""
    *before, current = typed or [""]
    place = _Place(program)
    for word in before:
        place.pass_by(word)
    return [word for word in place.words(current) if word.text.startswith(current)]


class _Place:
    """Where on a command line one is."""

    def __init__(self, program: Program) -> None:
        self._command: Any = program
        self._path: list[str] = []
        self._positions = 0  # arguments of the command that are typed
        self._pending: Any = None  # an option whose value comes next
        self._only_arguments = False

    def pass_by(self, word: str) -> None:
        """Go on behind `word`."""
        if word == "=":  # bash takes --kv=turbo4 for three words
            return
        if self._pending is not None:
            self._pending = None
        elif word == "--":
            self._only_arguments = True
        elif word.startswith("-") and not self._only_arguments:
            option = self._option(word)
            if option is not None and not option.is_flag and "=" not in word:
                self._pending = option
        elif word in getattr(self._command, "commands", ()):
            self._command, self._positions = self._command.commands[word], 0
            self._path.append(word)
        else:
            self._positions += 1

    def words(self, current: str) -> Iterable[Word]:
        """What can stand here, whether or not it begins as `current` does."""
        if self._pending is not None:
            return self._values(self._pending, "" if current == "=" else current)
        if current.startswith("-") and not self._only_arguments:
            name, equals, value = current.partition("=")
            option = self._option(name)
            if equals and option is not None:
                return [Word(f"{name}={word.text}", word.meaning) for word in self._values(option, value)]
            return self._options()
        if hasattr(self._command, "commands"):
            return [Word(row.term, row.meaning) for _, rows in self._command.listed() for row in rows]
        arguments = [each for each in self._command.params if each.param_type_name == "argument"]
        if self._positions < len(arguments):
            return self._values(arguments[self._positions], current)
        return self._values(arguments[-1], current) if arguments and arguments[-1].nargs == -1 else ()

    def _params(self) -> list[Any]:
        """The options that can stand here; those of the standard command, too, where none is named yet."""
        own = [each for each in self._command.params if each.param_type_name == "option" and not each.hidden]
        if isinstance(self._command, Program):
            standard = self._command.commands[self._command.standard].params
            names = {each.name for each in own}
            own += [each for each in standard if each.name not in names]
        return own

    def _option(self, word: str) -> Any:
        name = word.partition("=")[0]
        return next((each for each in self._params() if name in (*each.opts, *each.secondary_opts)), None)

    def _options(self) -> Iterator[Word]:
        for each in self._params():
            for name in (*each.opts, *each.secondary_opts):
                yield Word(name, first_sentence(each.help or ""))
        yield Word("--help", "Show this message and exit.")

    def _values(self, parameter: Any, current: str) -> Iterable[Word]:
        choices = parameter.type_descriptor.choices
        if choices:
            return [Word(str(getattr(each, "value", each))) for each in choices]
        find = _finder(self._path, parameter)
        with contextlib.suppress(SatchelError, OSError):  # nobody reads a complaint here
            return [Word(text) for text in find(current)] if find else ()
        return ()


_Finder = Callable[[str], Iterable[str]]


def _finder(path: Sequence[str], parameter: Any) -> _Finder | None:
    """What finds the values of a parameter of the command at `path`."""
    if parameter.param_type_name == "option":
        return _OPTIONS.get(parameter.name)
    return _ARGUMENTS.get((path[0], parameter.name)) if path else None


def _profiles(current: str) -> Iterable[str]:
    from satchel.config.profiles import PROFILES

    return PROFILES


def _models(current: str) -> Iterable[str]:
    from satchel.engine.model_names import named_models, users_names

    return dict.fromkeys(("embedded", *users_names(), *named_models(), *_in_hub_cache(current)))


def _in_hub_cache(current: str) -> list[str]:
    """Names of models that were fetched from the hub."""
    from huggingface_hub.constants import HF_HUB_CACHE

    from satchel.config.paths import expand

    folders = expand(HF_HUB_CACHE).glob("models--*--*")
    return sorted(folder.name.removeprefix("models--").replace("--", "/", 1) for folder in folders)


def _sessions(current: str) -> Iterable[str]:
    from satchel.cli.options import open_store

    return [head.name for head in open_store().heads().heads]


def _settings(current: str) -> Iterable[str]:
    from satchel.config.settings import known_keys

    return known_keys()


def _providers(current: str) -> Iterable[str]:
    return ("ddgs", "searxng")


def _shells(current: str) -> Iterable[str]:
    from satchel.cli.shells import SHELLS

    return SHELLS


# By the parameter's name; of arguments by the command's, too.
_OPTIONS: Mapping[str, _Finder] = {
    "kv": _profiles,
    "caches": _profiles,
    "model": _models,
    "provider": _providers,
    "session": _sessions,
}
_ARGUMENTS: Mapping[tuple[str, str], _Finder] = {
    ("resume", "name"): _sessions,
    ("share", "name"): _sessions,
    ("stats", "name"): _sessions,
    ("sessions", "name"): _sessions,
    ("sessions", "names"): _sessions,
    ("sync", "names"): _sessions,
    ("model", "name"): _models,
    ("model", "source"): _models,
    ("config", "key"): _settings,
    ("completion", "shell"): _shells,
}
