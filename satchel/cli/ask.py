"""`satchel ask`: one answer for a script.

What takes long to import (MLX, the store) is imported inside the functions that need it.
"""

from __future__ import annotations

import select
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from satchel.cli.ingest import collect_files
from satchel.cli.options import (
    AsJson,
    Kv,
    MaxTokens,
    Model,
    System,
    Temperature,
    at_terminal,
    chosen_settings,
    examples,
    load_manager,
    open_store,
    renderer_of,
    report,
)
from satchel.cli.schemas import print_json
from satchel.cli.stream import Answering, errors_in_stream
from satchel.errors import UsageError

if TYPE_CHECKING:
    from satchel.cache_store.manifest import Head

STDIN_WAIT_S = 0.2
MAX_STDIN_CHARS = 1 << 24  # more than any model takes


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            'satchel ask "What is the capital of France?"',
            'git diff | satchel ask "What changed?"           # reads what is piped in',
            'satchel ask --file README.md "What is this?"     # or: "What is @README.md?"',
            'satchel ask "Summarise this." - < notes.txt      # `-` waits for the input',
            'satchel ask --session bruno "And his age?"       # behind that talk, which stays as it is',
            'satchel ask -c --save "And his age?"             # the latest talk goes on with it',
            'satchel ask --json "Name a river." | jq -r .text',
            'satchel ask --stream-json "Name a river."        # each event as it comes',
        )
    )(ask)


def ask(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="QUESTION", help="The question; a further `-` waits for standard input."),
    ] = None,
    files: Annotated[
        list[str] | None,
        typer.Option("--file", "-f", metavar="PATH", help="A file, folder or pattern; may be given again."),
    ] = None,
    model: Model = None,
    kv: Kv = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    system: System = None,
    session: Annotated[
        str | None,
        typer.Option("--session", "-s", metavar="NAME", help="Ask it behind this stored session."),
    ] = None,
    latest: Annotated[bool, typer.Option("--continue", "-c", help="Ask it behind the latest one.")] = False,
    save: Annotated[bool, typer.Option("--save", help="Keep question and answer in that session.")] = False,
    as_json: AsJson = False,
    stream_json: Annotated[
        bool, typer.Option("--stream-json", help="Print a line of JSON for each event, as it comes.")
    ] = False,
) -> None:
    """Answer one question on standard output. What is piped in is read with it.

    Files stand ahead of the question: those of --file, and those named in it as @path. A stored session's
    context is taken from the store, as it is on this machine, and not read again. Nothing is saved without
    --save.
    """
    from satchel.agent.prompts import question_with_input

    words = words or []
    question = " ".join(word for word in words if word != "-")
    with errors_in_stream(stream_json):
        if as_json and stream_json:
            raise UsageError("--json and --stream-json are two ways to print it", "leave out one")
        if not question and "-" not in words and at_terminal():
            raise UsageError("nothing was asked", 'try: satchel ask "What is the capital of France?"')
        head = _asked_behind(session, latest, save, system)
        settings = chosen_settings(
            no_save=True,
            model=model or (head.model_name if head else None),
            kv_profile=kv,
            max_tokens=max_tokens,
            temperature=temperature,
            system_prompt=system,
        )
        if save:
            settings = settings.model_copy(update={"auto_save": True})
        files = [*(files or ()), *_mentioned(question)]
        context = collect_files(files) if files else ()
        manager = load_manager(settings)
        from satchel.agent.answers import answer
        from satchel.agent.context import with_files

        # After the model is loaded: whatever writes to the pipe has had that time to start.
        text = question_with_input(question, _piped_input("-" in words or not question))
        if not text:
            raise UsageError("nothing was asked: standard input is empty")
        talk = manager.open(head.session_id, manager.profile if kv else None) if head else manager.new()
        if context and head:  # its beginning, which the model has read, stays as it is
            text = question_with_input(text, with_files("", context))
        elif context:
            talk.set_system(with_files(talk.system, context))
        events = answer(talk, text, settings, threading.Event())
        if not (as_json or stream_json):
            renderer_of(settings).turn(events)
            return
        record = Answering(settings.model, talk, stream_json).follow(events)
        if as_json:
            print_json(record)


def _asked_behind(session: str | None, latest: bool, save: bool, system: str | None) -> Head | None:
    """The stored session that the question is asked behind, if there is to be one.

    Raises:
        NotFoundError: there is no such session.
        UsageError: the options do not go together.
    """
    if session is None and not latest:
        if save:
            raise UsageError("--save keeps the answer in a session, and none is named", "add --session NAME")
        return None
    if session is not None and latest:
        raise UsageError("--session and --continue are two ways to name a session", "leave out one")
    if system is not None:
        raise UsageError("a stored session has its own system prompt", "leave out --system")
    return open_store().find(session)


def _mentioned(question: str) -> list[str]:
    """The paths that `question` names as @path."""
    if "@" not in question:
        return []
    from satchel.agent.context import mentioned

    return mentioned(question, Path.cwd())


def _piped_input(wait: bool) -> str:
    """What stands on standard input; without `wait`, "" if it is a terminal or nothing comes soon.

    Raises:
        UsageError: it is too much, or has no end.
    """
    if sys.stdin.isatty() and not wait:
        return ""
    if not wait and not select.select([sys.stdin], [], [], STDIN_WAIT_S)[0]:
        report("standard input sent nothing and was not waited for; `-` waits")
        return ""
    text = sys.stdin.read(MAX_STDIN_CHARS + 1)
    if len(text) > MAX_STDIN_CHARS:
        raise UsageError(f"standard input has more than {MAX_STDIN_CHARS:,} characters", "send less of it")
    return text
