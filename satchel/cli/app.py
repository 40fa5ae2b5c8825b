"""The command line: parses, wires the parts together, and turns every error into one line and an exit code.

What takes long to import (MLX, the store, the prompt) is imported inside the commands that need it.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated

import typer
from typer.exceptions import TyperException

import satchel.cli.exchange  # noqa: F401  (adds its commands to `sessions`)
from satchel import __version__
from satchel.cli.agent import add_to as add_agent
from satchel.cli.ask import add_to as add_ask
from satchel.cli.bench import benches
from satchel.cli.doctor import add_to as add_doctor
from satchel.cli.ingest import add_to as add_ingest
from satchel.cli.models import models
from satchel.cli.options import INTERRUPTED
from satchel.cli.sessions import sessions
from satchel.cli.share import add_to as add_sharing
from satchel.cli.store import store
from satchel.cli.sync import sync
from satchel.cli.talk import add_to as add_talk
from satchel.cli.talk import chat
from satchel.errors import SatchelError, UsageError
from satchel.terminal.sanitize import sanitize_line

app = typer.Typer(
    name="satchel",
    help="Chat with a local language model that carries its context: saved compressed, resumed at once.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
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


# In the order of the help.
add_talk(app)
add_ask(app)
add_agent(app)
add_ingest(app)
add_sharing(app)
add_doctor(app)
