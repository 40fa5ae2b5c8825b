"""The command line: parses, wires the parts together, and turns every error into one line and an exit code.

What takes long to import (MLX, the store, the prompt) is imported inside the commands that need it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.exceptions import TyperException

import satchel.cli.exchange  # noqa: F401  (adds its commands to `sessions`)
from satchel import __version__
from satchel.cli.agent import add_to as add_agent
from satchel.cli.agent import open_desk
from satchel.cli.ingest import add_to as add_ingest
from satchel.cli.ingest import collect_files
from satchel.cli.options import (
    INTERRUPTED,
    Kv,
    MaxTokens,
    Model,
    NoSave,
    System,
    Temperature,
    at_terminal,
    chosen_settings,
    load_manager,
    open_store,
    report,
)
from satchel.cli.sessions import sessions
from satchel.cli.share import add_to as add_sharing
from satchel.cli.store import store
from satchel.cli.sync import sync
from satchel.errors import SatchelError, UsageError
from satchel.terminal.sanitize import sanitize_line

if TYPE_CHECKING:
    from satchel.cache_store.manifest import Head
    from satchel.config.settings import Settings
    from satchel.session import Session, SessionManager
    from satchel.sync.background import BackgroundSync

STDIN_WAIT_S = 0.2

app = typer.Typer(
    name="satchel",
    help="Chat with a local language model that carries its context: saved compressed, resumed at once.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
models = typer.Typer(help="Fetch models.")
benches = typer.Typer(help="Measure.")
app.add_typer(sessions, name="sessions")
app.add_typer(store, name="store")
app.add_typer(sync, name="sync")
app.add_typer(models, name="model")
app.add_typer(benches, name="bench")


def main() -> None:
    """The console script."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            # Unwinds the stack, so that whatever has changed the terminal's modes puts them back.
            signal.signal(number, lambda ending, frame: sys.exit(128 + ending))
    sys.exit(run(sys.argv[1:]))


def run(args: list[str]) -> int:
    """Run one command line; returns its exit code."""
    _open_closed_streams()
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        code = app(args, prog_name="satchel", standalone_mode=False)
        sys.stdout.flush()
    except SatchelError as err:
        return _complain(err.one_line(), err.exit_code)
    except TyperException as err:
        return _complain(err.format_message(), UsageError.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has gone, e.g. `| head -1`. What is still buffered must not fail at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return SatchelError.exit_code
    except OSError as err:
        return _complain(str(err), SatchelError.exit_code)
    return code or 0


def _open_closed_streams() -> None:
    """Open /dev/null for a standard stream that the caller closed: its number would go to the next file."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def _complain(message: str, exit_code: int) -> int:
    print(f"satchel: {sanitize_line(message)}", file=sys.stderr)
    return exit_code


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"satchel {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True)] = False,
) -> None:
    if context.invoked_subcommand is None:
        chat()


@app.command()
def chat(
    model: Model = None,
    kv: Kv = None,
    no_save: NoSave = False,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    system: System = None,
) -> None:
    """Start a new talk (also what `satchel` alone does)."""
    settings = chosen_settings(
        no_save,
        model=model,
        kv_profile=kv,
        max_tokens=max_tokens,
        temperature=temperature,
        system_prompt=system,
    )
    manager = load_manager(settings)
    _talk(manager, manager.new(), settings)


@app.command()
def resume(
    name: Annotated[
        str | None, typer.Argument(help="A session's name or id; the latest if not given.")
    ] = None,
    model: Model = None,
    kv: Kv = None,
    no_save: NoSave = False,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Take it as it is here; don't look in the remote.")
    ] = False,
) -> None:
    """Go on with a stored talk, without reading it again; where sync is set up, from where it is now."""
    head = open_store().find(name) if offline else _find_up_to_date(name)
    settings = chosen_settings(
        no_save,
        model=model or head.model_name,
        kv_profile=kv,
        max_tokens=max_tokens,
        temperature=temperature,
    )
    manager = load_manager(settings)
    _talk(manager, manager.open(head.session_id, manager.profile if kv else None), settings)


@app.command()
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


# In the order of the help.
add_agent(app)
add_ingest(app)
add_sharing(app)


@models.command("pull")
def pull_model(name: Annotated[str, typer.Argument(help="Only `embedded` needs pulling.")]) -> None:
    """Fetch the embedded model's file into the cache directory."""
    if name != "embedded":
        raise UsageError(
            f"{name!r} cannot be pulled", "only `embedded`; hub models come with --model at first use"
        )
    from satchel.engine.embedded import find_embedded_gguf, pull_embedded

    if found := find_embedded_gguf():
        report("the embedded model is here already")
        print(sanitize_line(str(found)))
        return
    print(sanitize_line(str(pull_embedded(report))))


@benches.command("kv")
def bench_kv(
    model: Annotated[list[str] | None, typer.Option(help="As elsewhere; may be given again.")] = None,
    caches: Annotated[
        list[str] | None, typer.Option(help="KV profiles, or `mlx-lm 4`: with commas, or given again.")
    ] = None,
    texts: Annotated[
        list[str] | None, typer.Option(help="pydoc, gpl, prose, code, chinese, chat; all if not given.")
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens of each text.")] = 2048,
    chunk: Annotated[int, typer.Option(help="Tokens read at a time in a text's last quarter.")] = 1,
    only: Annotated[list[str] | None, typer.Option(help="quality, needle, greedy, speed, storage.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the figures there.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw KL against bits there.")] = None,
) -> None:
    """What KV caches cost in quality, bits and time, against the exact cache."""
    from satchel.engine.device import preload_blas

    preload_blas()  # works only ahead of the first import of MLX
    from satchel.terminal import bench

    request = bench.Request(
        models=model or (),
        caches=caches or (),
        texts=texts or (),
        only=only or (),
        tokens=tokens,
        chunk=chunk,
        json=json_file,
        plot=plot,
    )
    bench.bench_kv(request)


@app.command()
def doctor() -> None:
    """What this machine computes with, where things are kept, and what would make it faster."""
    from satchel.config import paths
    from satchel.engine.device import current_device
    from satchel.engine.embedded import find_embedded_gguf
    from satchel.sync.configuration import load_config

    device, remote = current_device(), load_config()
    facts = {
        "satchel": f"{__version__} on Python {sys.version.split()[0]}, {sys.platform}",
        "device": device.kind,
        "BLAS": f"OpenBLAS ({device.blas})" if device.blas else "MLX's own",
        "memory": f"{device.memory_bytes / 1e9:.1f} GB",
        "embedded model": find_embedded_gguf() or "missing: satchel model pull embedded",
        "settings": paths.config_file(),
        "sessions": paths.data_dir(),
        "converted models": paths.cache_dir(),
        "sync": remote.url if remote else "not set up: satchel sync setup",
    }
    for label, value in facts.items():
        print(f"{label:<17} {sanitize_line(str(value))}")
    for line in device.advice():
        print(f"advice: {line}")


def _talk(manager: SessionManager, session: Session, settings: Settings) -> None:
    from satchel.config.paths import data_dir
    from satchel.terminal.chat import Chat
    from satchel.terminal.render import Renderer

    renderer = Renderer()
    desk = open_desk(settings, manager, session)
    desk.sync = _background_sync()
    talk = Chat(desk, renderer)
    if not at_terminal():
        talk.with_script(sys.stdin)
        return
    from satchel.terminal.completion import DeskCompleter
    from satchel.terminal.person import Person
    from satchel.terminal.prompt import MessagePrompt

    desk.user = Person(renderer.settle)
    history = data_dir() / "history" if settings.auto_save else None
    talk.with_person(MessagePrompt(history, DeskCompleter(desk)))


def _mentioned(question: str) -> list[str]:
    """The paths that `question` names as @path."""
    if "@" not in question:
        return []
    from satchel.agent.context import mentioned

    return mentioned(question, Path.cwd())


def _find_up_to_date(name: str | None) -> Head:
    """The stored session of this name or id, its newest state fetched where sync is set up."""
    from satchel.sync.configuration import is_configured

    store = open_store()
    if not is_configured():
        return store.find(name)
    from satchel.sync.opening import open_syncer
    from satchel.sync.resuming import bring_up_to_date
    from satchel.terminal.render import Renderer
    from satchel.terminal.transfer import TransferBar

    lines: list[str] = []  # until the bar is gone
    try:
        with TransferBar() as progress:
            return bring_up_to_date(
                store, name, lambda show: open_syncer(open_store(), show), progress, lines.append
            )
    finally:
        for line in lines:
            Renderer().notice(line)


def _background_sync() -> BackgroundSync | None:
    """What syncs beside a talk, if sync is set up."""
    from satchel.sync.configuration import is_configured

    if not is_configured():
        return None
    from satchel.sync.background import BackgroundSync
    from satchel.sync.opening import open_syncer

    return BackgroundSync(lambda: open_syncer(open_store()))


def _piped_input(wait: bool) -> str:
    """What stands on standard input; without `wait`, "" if it is a terminal or nothing comes soon."""
    if sys.stdin.isatty() and not wait:
        return ""
    if not wait and not select.select([sys.stdin], [], [], STDIN_WAIT_S)[0]:
        report("standard input sent nothing and was not waited for; `-` waits")
        return ""
    return sys.stdin.read()
