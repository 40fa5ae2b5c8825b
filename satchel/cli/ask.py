"""`satchel ask`: one answer for a script.

What takes long to import (MLX, the store) is imported inside the functions that need it.
"""

from __future__ import annotations

import select
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from satchel.cli.ingest import collect_files
from satchel.cli.options import (
    Kv,
    MaxTokens,
    Model,
    System,
    Temperature,
    at_terminal,
    chosen_settings,
    load_manager,
    report,
)
from satchel.errors import UsageError

STDIN_WAIT_S = 0.2


def add_to(app: typer.Typer) -> None:
    app.command()(ask)


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
) -> None:
    """Answer one question on standard output. What is piped in is read with it. Nothing is saved.

    Files stand ahead of the question: those of --file, and those named in it as @path.
    """
    from satchel.agent.prompts import question_with_input

    words = words or []
    question = " ".join(word for word in words if word != "-")
    if not question and "-" not in words and at_terminal():
        raise UsageError("nothing was asked", 'try: satchel ask "What is the capital of France?"')
    settings = chosen_settings(
        no_save=True,
        model=model,
        kv_profile=kv,
        max_tokens=max_tokens,
        temperature=temperature,
        system_prompt=system,
    )
    wanted = [*(files or ()), *_mentioned(question)]
    context = collect_files(wanted) if wanted else ()
    manager = load_manager(settings)
    # After the model is loaded: whatever writes to the pipe has had that time to start.
    text = question_with_input(question, _piped_input(wait="-" in words or not question))
    if not text:
        raise UsageError("nothing was asked: standard input is empty")

    from satchel.agent.answers import answer
    from satchel.terminal.render import Renderer

    session = manager.new()
    if context:
        from satchel.agent.context import with_files

        session.set_system(with_files(session.system, context))
    Renderer().turn(answer(session, text, settings, threading.Event()))


def _mentioned(question: str) -> list[str]:
    """The paths that `question` names as @path."""
    if "@" not in question:
        return []
    from satchel.agent.context import mentioned

    return mentioned(question, Path.cwd())


def _piped_input(wait: bool) -> str:
    """What stands on standard input; without `wait`, "" if it is a terminal or nothing comes soon."""
    if sys.stdin.isatty() and not wait:
        return ""
    if not wait and not select.select([sys.stdin], [], [], STDIN_WAIT_S)[0]:
        report("standard input sent nothing and was not waited for; `-` waits")
        return ""
    return sys.stdin.read()
