"""The command line: parses, wires the parts together, and turns every error into one line and an exit code.

What takes long to import (MLX, the store, the prompt) is imported inside the commands that need it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.exceptions import TyperException

from satchel import __version__
from satchel.errors import NotFoundError, RefusedError, SatchelError, UsageError
from satchel.terminal.sanitize import sanitize, sanitize_line

if TYPE_CHECKING:
    from satchel.cache_store.local import LocalStore
    from satchel.config.settings import Settings
    from satchel.session import Session, SessionManager

INTERRUPTED = 130
TERMINATED = 128 + signal.SIGTERM
STDIN_WAIT_S = 0.2

app = typer.Typer(
    name="satchel",
    help="Chat with a local language model that carries its context: saved compressed, resumed at once.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
sessions = typer.Typer(help="List, show, rename, archive and remove stored sessions.")
models = typer.Typer(help="Fetch models.")
benches = typer.Typer(help="Measure.")
app.add_typer(sessions, name="sessions")
app.add_typer(models, name="model")
app.add_typer(benches, name="bench")

Model = Annotated[str | None, typer.Option(help="embedded, an MLX folder, a GGUF file, or a hub name.")]
Kv = Annotated[
    str | None, typer.Option(help="KV profile: turbo4, turbo3, turbo2, k8v4, v-only, exact, k4v3…")
]
MaxTokens = Annotated[int | None, typer.Option(help="Longest answer, in tokens.")]
Temperature = Annotated[float | None, typer.Option(help="0 always takes the likeliest token.")]
System = Annotated[str | None, typer.Option(help="System prompt of a new session.")]
NoSave = Annotated[bool, typer.Option("--no-save", help="Keep nothing of this talk on disk.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Name = Annotated[str, typer.Argument(help="A session's name or id.")]


def main() -> None:
    """The console script."""
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
    settings = _settings(
        no_save,
        model=model,
        kv_profile=kv,
        max_tokens=max_tokens,
        temperature=temperature,
        system_prompt=system,
    )
    manager = _manager(settings)
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
) -> None:
    """Go on with a stored talk, without reading it again."""
    head = _store().find(name)
    settings = _settings(
        no_save,
        model=model or head.model_name,
        kv_profile=kv,
        max_tokens=max_tokens,
        temperature=temperature,
    )
    manager = _manager(settings)
    _talk(manager, manager.open(head.session_id, manager.profile if kv else None), settings)


@app.command()
def ask(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="QUESTION", help="The question; a further `-` waits for standard input."),
    ] = None,
    model: Model = None,
    kv: Kv = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    system: System = None,
) -> None:
    """Answer one question on standard output. What is piped in is read with it. Nothing is saved."""
    from satchel.agent.prompts import question_with_input

    words = words or []
    question = " ".join(word for word in words if word != "-")
    if not question and "-" not in words and _at_terminal():
        raise UsageError("nothing was asked", 'try: satchel ask "What is the capital of France?"')
    settings = _settings(
        no_save=True,
        model=model,
        kv_profile=kv,
        max_tokens=max_tokens,
        temperature=temperature,
        system_prompt=system,
    )
    manager = _manager(settings)
    # After the model is loaded: whatever writes to the pipe has had that time to start.
    text = question_with_input(question, _piped_input(wait="-" in words or not question))
    if not text:
        raise UsageError("nothing was asked: standard input is empty")

    from satchel.agent.agent import run_turn
    from satchel.terminal.render import Renderer

    Renderer().turn(run_turn(manager.new(), text, settings, threading.Event()))


@sessions.command("list")
def list_sessions(as_json: AsJson = False) -> None:
    """Stored sessions, the newest first."""
    from satchel.agent.commands import session_table

    listed = _store().heads()
    if as_json:
        print(json.dumps([head.model_dump(mode="json") for head in listed.heads], indent=2))
    elif listed.heads:
        print(sanitize(session_table(listed.heads)))
    elif not listed.damaged:
        _report("no sessions are stored yet")
    for line in listed.damaged:
        _report(line)


@sessions.command("show")
def show_session(
    name: Annotated[
        str | None, typer.Argument(help="A session's name or id; the latest if not given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The words of a stored session."""
    from satchel.cache_store.sessions import open_session

    saved = open_session(_store(), name)
    messages = saved.manifest.messages
    for note in filter(None, (saved.notice, saved.manifest.archive_note)):
        _report(note)
    if as_json:
        fields = saved.head.model_dump(mode="json")
        print(json.dumps(fields | {"messages": [message.model_dump() for message in messages]}, indent=2))
        return
    print("\n\n".join(f"{message.role}:\n{sanitize(message.content)}" for message in messages))


@sessions.command("rename")
def rename_session(name: Name, new: Annotated[str, typer.Argument(help="The new name.")]) -> None:
    """Give a stored session another name."""
    store = _store()
    store.rename(store.find(name).session_id, new)


@sessions.command("archive")
def archive_session(
    name: Name,
    model: Model = None,
    kv: Annotated[str, typer.Option(help="KV profile of fewer bits.")] = "turbo2",
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask; needed without a terminal.")] = False,
) -> None:
    """Make a stored session smaller by storing its context in fewer bits. Lossy: answers may differ."""
    from satchel.config.profiles import get_profile

    profile, store = get_profile(kv), _store()
    head = store.find(name)
    _agree_to_loss(head.name, kv, yes)
    manager = _manager(_settings(model=model or head.model_name, kv_profile=kv))
    disk_bytes = store.disk_bytes()
    archived = manager.archive(head.session_id, profile)
    if archived.notice:
        _report(archived.notice)
    before, after = (f"{size / 1e6:.1f} MB" for size in (archived.before_bytes, archived.after_bytes))
    sizes = f"{before} before, {after} in {archived.profile}"
    print(sanitize_line(f"{head.name}: {sizes}; lossy: answers may differ from before"))
    if store.disk_bytes() >= disk_bytes:
        _report("nothing was freed yet: another session uses the state of before, or one cannot be read")


@sessions.command("rm")
def remove_sessions(names: Annotated[list[str], typer.Argument(help="Names or ids.")]) -> None:
    """Remove stored sessions."""
    store = _store()
    for session_id in [store.session_id(name) for name in names]:
        store.remove(session_id)


@models.command("pull")
def pull_model(name: Annotated[str, typer.Argument(help="Only `embedded` needs pulling.")]) -> None:
    """Fetch the embedded model's file into the cache directory."""
    if name != "embedded":
        raise UsageError(
            f"{name!r} cannot be pulled", "only `embedded`; hub models come with --model at first use"
        )
    from satchel.engine.embedded import find_embedded_gguf, pull_embedded

    if found := find_embedded_gguf():
        _report("the embedded model is here already")
        print(sanitize_line(str(found)))
        return
    print(sanitize_line(str(pull_embedded(_report))))


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

    device = current_device()
    facts = {
        "satchel": f"{__version__} on Python {sys.version.split()[0]}, {sys.platform}",
        "device": device.kind,
        "BLAS": f"OpenBLAS ({device.blas})" if device.blas else "MLX's own",
        "memory": f"{device.memory_bytes / 1e9:.1f} GB",
        "embedded model": find_embedded_gguf() or "missing: satchel model pull embedded",
        "settings": paths.config_file(),
        "sessions": paths.data_dir(),
        "converted models": paths.cache_dir(),
    }
    for label, value in facts.items():
        print(f"{label:<17} {sanitize_line(str(value))}")
    for line in device.advice():
        print(f"advice: {line}")


def _settings(no_save: bool = False, **options: object) -> Settings:
    from satchel.config.settings import load_settings

    return load_settings({**options, "auto_save": False if no_save else None})


def _store() -> LocalStore:
    from satchel.cache_store.local import LocalStore
    from satchel.config.paths import data_dir

    return LocalStore(data_dir())


def _manager(settings: Settings) -> SessionManager:
    """The store and the model, which is loaded here."""
    from satchel.config.profiles import get_profile
    from satchel.engine.device import preload_blas

    preload_blas()  # works only ahead of the first import of MLX
    if settings.model == "embedded":
        _need_embedded_model()
    from satchel.engine.model import load_model
    from satchel.session import SessionManager

    model = load_model(settings.model, progress=_report)
    return SessionManager(_store(), model, get_profile(settings.kv_profile), settings)


def _need_embedded_model() -> None:
    """Offer to fetch the embedded model where it is missing."""
    from satchel.engine.embedded import find_embedded_gguf, pull_embedded

    if find_embedded_gguf() is not None:
        return
    if _at_terminal() and typer.confirm("The embedded model is missing. Fetch it (93 MB)?", err=True):
        pull_embedded(_report)
        return
    raise NotFoundError("the embedded model is missing", "`satchel model pull embedded` fetches it (93 MB)")


def _agree_to_loss(name: str, profile: str, agreed: bool) -> None:
    """
    Raises:
        RefusedError: the user does not agree, or cannot be asked.
    """
    if agreed:
        return
    if not _at_terminal():
        raise RefusedError("archiving is lossy and cannot be undone", "`--yes` agrees to it")
    question = sanitize_line(f"Store {name!r} in {profile}? It cannot be undone, and answers may differ.")
    if not typer.confirm(question, err=True):
        raise RefusedError(f"{name!r} stays as it is")


def _talk(manager: SessionManager, session: Session, settings: Settings) -> None:
    from satchel.agent.commands import Desk
    from satchel.config.paths import data_dir
    from satchel.terminal.chat import Chat
    from satchel.terminal.render import Renderer

    # Unwinds the stack, so that the prompt puts the terminal's modes back.
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(TERMINATED))
    talk = Chat(Desk(manager, session), settings, Renderer())
    if not _at_terminal():
        talk.with_script(sys.stdin)
        return
    from satchel.terminal.prompt import MessagePrompt

    talk.with_person(MessagePrompt(data_dir() / "history" if settings.auto_save else None))


def _at_terminal() -> bool:
    """Whether a person types and reads here."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def _piped_input(wait: bool) -> str:
    """What stands on standard input; without `wait`, "" if it is a terminal or nothing comes soon."""
    if sys.stdin.isatty() and not wait:
        return ""
    if not wait and not select.select([sys.stdin], [], [], STDIN_WAIT_S)[0]:
        _report("standard input sent nothing and was not waited for; `-` waits")
        return ""
    return sys.stdin.read()


def _report(line: str) -> None:
    print(sanitize_line(line), file=sys.stderr)
