"""The program: its commands, and how every error becomes one line and an exit code.

What a command needs is imported when it runs, and the module that it is in when it is looked up.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from typing import Annotated

import typer
from typer.exceptions import TyperException

from satchel import __version__
from satchel.cli.options import INTERRUPTED, examples
from satchel.cli.program import NO_READER, Entry, Program
from satchel.cli.wrong_use import wrong_use
from satchel.errors import SatchelError, UsageError
from satchel.terminal.manner import NO_COLOR, QUIET
from satchel.terminal.sanitize import sanitize_line

LONGEST_WORD = 300  # characters of one word in an error line, such as a path

# In the order of the help.
COMMANDS = {
    "chat": Entry("Talk", "Start a new talk; what `satchel` alone does.", "satchel.cli.talk"),
    "resume": Entry("Talk", "Go on with a stored talk.", "satchel.cli.talk"),
    "ask": Entry("Talk", "Answer one question.", "satchel.cli.ask"),
    "search": Entry("Talk", "Answer a question from the web.", "satchel.cli.agent"),
    "shell": Entry("Talk", "Have a shell command proposed, and run it.", "satchel.cli.agent"),
    "ingest": Entry("Talk", "Read files once, to start talks from.", "satchel.cli.ingest"),
    "sessions": Entry(
        "Sessions",
        "List, show, fork, export and remove talks.",
        "satchel.cli.sessions",
        "sessions",
        ("satchel.cli.exchange",),
    ),
    "store": Entry("Sessions", "Measure, check and shrink the store.", "satchel.cli.store", "store"),
    "stats": Entry("Sessions", "Show how a talk developed, turn by turn.", "satchel.cli.stats"),
    "sync": Entry("Machines", "Keep talks the same on several machines.", "satchel.cli.sync", "sync"),
    "share": Entry("Machines", "Make a link to a sealed copy of a talk.", "satchel.cli.share"),
    "receive": Entry("Machines", "Take what somebody has shared.", "satchel.cli.share"),
    "model": Entry(
        "Models",
        "Fetch, choose, compare, convert and remove models.",
        "satchel.cli.models",
        "models",
        ("satchel.cli.convert",),
    ),
    "init": Entry("Setup", "Find a model for this machine, and set up sync.", "satchel.cli.init"),
    "config": Entry("Setup", "See and change the settings.", "satchel.cli.config", "config"),
    "doctor": Entry("Setup", "What this machine has, and what it lacks.", "satchel.cli.doctor"),
    "explain": Entry("Setup", "What an error means, and what to do.", "satchel.cli.explain"),
    "completion": Entry(
        "Setup", "Complete commands and names in your shell.", "satchel.cli.shells", "completion"
    ),
    "bench": Entry("Measure", "Measure what KV caches cost.", "satchel.cli.bench", "benches"),
}


class Satchel(Program):
    entries = COMMANDS
    standard = "chat"


app = typer.Typer(
    name="satchel",
    help="Chat with a local language model that carries its context: saved compressed, resumed at once.",
    cls=Satchel,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "satchel                             # a new talk",
        "satchel resume                      # the latest one goes on",
        "satchel --model qwen3.5-9b          # options of `chat` need no command",
        "git diff | satchel ask -q 'What changed?'",
        "satchel COMMAND --help              # says more of each",
    ),
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


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
    before = {name: os.environ.get(name) for name in (QUIET, NO_COLOR)}
    try:
        return _run(args)
    finally:  # the flags are for this command line
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _run(args: list[str]) -> int:
    try:
        code = app(args, prog_name="satchel", standalone_mode=False)
        sys.stdout.flush()
        sys.stderr.flush()
    except SatchelError as err:
        return _complain(err.one_line(), err.exit_code)
    except TyperException as err:
        return _complain(wrong_use(err), UsageError.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        _let_go(sys.stdout)
        _let_go(sys.stderr)
        return NO_READER
    except OSError as err:
        place = f" of {err.filename}" if err.filename else ""
        refused = SatchelError(f"the system says{place}: {err.strerror or err}")
        code = _complain(refused.one_line(), refused.exit_code)
        _let_go(sys.stdout)
        return code
    except Exception as err:  # noqa: BLE001  a fault of ours, and one line for the user all the same
        from satchel.terminal.faults import fault_lines

        _print_error("\n".join(fault_lines(err)))
        return SatchelError.exit_code
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


def _let_go(stream: object) -> None:
    """Write what is still in `stream`, or nowhere if that fails, so that it cannot fail at exit either."""
    assert hasattr(stream, "flush")
    assert hasattr(stream, "fileno")
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _complain(message: str, exit_code: int) -> int:
    shown = re.sub(rf"\S{{{LONGEST_WORD},}}", lambda word: f"{word[0][:LONGEST_WORD]}…", message)
    _print_error(f"satchel: {sanitize_line(shown)}")
    return exit_code


def _print_error(text: str) -> None:
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:  # nobody reads it
        _let_go(sys.stderr)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"satchel {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
