"""`satchel sessions export` and `import`: stored sessions to and from files."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from satchel.cli.options import (
    AsJson,
    Model,
    Name,
    chosen_settings,
    examples,
    load_manager,
    open_store,
    report,
)
from satchel.cli.records import ExportedRecord, MadeRecord
from satchel.cli.schemas import print_json
from satchel.cli.sessions import sessions
from satchel.errors import DamagedError, NotFoundError, RefusedError, SatchelError, UsageError
from satchel.exchange.endings import format_of
from satchel.files import atomic_file, cannot_write
from satchel.terminal.sanitize import sanitize, sanitize_line

if TYPE_CHECKING:
    from satchel.exchange.saving import Imported

STREAM = "-"  # standard input or output
STDIN = Path("(standard input)")


class Format(StrEnum):
    """What a session can be as a file."""

    MD = "md"
    JSON = "json"
    JSONL = "jsonl"
    SAFETENSORS = "safetensors"
    MLX_LM = "mlx-lm"


BINARY = (Format.SAFETENSORS, Format.MLX_LM)
FORMAT_HELP = (
    "md, json, jsonl: the words; safetensors: everything; mlx-lm: a prompt cache for mlx-lm. "
    "If not given, as the file's name ends; md for standard output."
)


@sessions.command(
    "export",
    epilog=examples(
        "satchel sessions export bruno                       # Markdown, to the terminal",
        "satchel sessions export bruno --format json | jq .",
        "satchel sessions export bruno --output bruno.safetensors    # everything, for another machine",
    ),
)
def export_session(
    name: Name,
    format_name: Annotated[Format | None, typer.Option("--format", help=FORMAT_HELP)] = None,
    output: Annotated[str, typer.Option(metavar="FILE", help="Where to; `-` is standard output.")] = STREAM,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if there is one.")] = False,
    model: Model = None,
    as_json: AsJson = False,
) -> None:
    """Write a stored session to a file. A model is loaded for the format mlx-lm only."""
    from satchel.cache_store.sessions import open_session

    if output == STREAM and as_json:
        raise UsageError("--json says what was written to a file", "name one with --output")
    format_name = format_name or _format_of(output)
    if output == STREAM and format_name in BINARY and sys.stdout.isatty():
        raise UsageError(f"{format_name} is not for a terminal", "name a file with --output")
    if output != STREAM:
        check_free(Path(output), force)
    store = open_store()
    saved = open_session(store, name)
    for note in filter(None, (saved.notice, saved.manifest.archive_note)):
        report(note)

    if format_name is Format.MLX_LM:
        settings = chosen_settings(model=model or saved.head.model_name)
        manager = load_manager(settings)
        from satchel.exchange.prompt_caches import export_prompt_cache, loadable_name

        write(output, force, lambda path: export_prompt_cache(path, manager, saved.head.session_id))
        report(f"mlx_lm takes it with --model {shlex.quote(loadable_name(manager.model))}")
    elif format_name is Format.SAFETENSORS:
        from satchel.exchange.tensors import write_session

        write(output, force, lambda path: write_session(path, store, saved.manifest))
    else:
        from satchel.exchange.words import export_words

        text = export_words(store, saved.manifest, format_name)
        if output == STREAM and sys.stdout.isatty():
            print(sanitize(text), end="")
        else:
            write(output, force, lambda path: write_text(path, text))
    if as_json:
        print_json(
            ExportedRecord(
                session_id=saved.head.session_id,
                name=saved.head.name,
                format=format_name.value,
                file=output,
                bytes=Path(output).stat().st_size,
            )
        )
    elif output != STREAM:
        report(f"written to {output}")


@sessions.command(
    "import",
    epilog=examples(
        "satchel sessions import bruno.md",
        "satchel sessions import bruno.safetensors --name dog",
        "satchel sessions import - < messages.json",
    ),
)
def import_session(
    file: Annotated[
        str,
        typer.Argument(
            help="An export of ours, a list of messages, or mlx-lm's cache; `-` is standard input, for words."
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="The session's name; the one in the file, or the file's, if not given.")
    ] = None,
    model: Model = None,
    tokens: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The token ids of mlx-lm's cache, if they are known.")
    ] = None,
    format_name: Annotated[
        Format | None, typer.Option("--format", help="Found by the file's content if not given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a session of a file. A model is loaded for mlx-lm's prompt caches only."""
    from satchel.exchange.words import check_file, import_words, read_token_ids, recognise, recognise_text

    path = STDIN if file == STREAM else Path(file)
    text = None
    if path is STDIN:
        if format_name in BINARY:
            raise UsageError(f"{format_name} is not read from standard input", "name a file")
        text = _read_stdin()
        found = recognise_text(text, path.name) if format_name is None else format_name.value
    else:
        check_file(path)
        found = recognise(path) if format_name is None else format_name.value
    if tokens is not None and found != Format.MLX_LM:
        raise UsageError(f"--tokens is for mlx-lm's prompt caches, and {path.name} is {found}")
    settings = chosen_settings(model=model)
    if found == Format.MLX_LM:
        token_ids = read_token_ids(tokens) if tokens else None
        manager = load_manager(settings)
        from satchel.exchange.prompt_caches import import_prompt_cache

        made = import_prompt_cache(manager, path, name=name, token_ids=token_ids)
    elif found == Format.SAFETENSORS:
        from satchel.exchange.tensors import import_tensors

        made = import_tensors(open_store(), path, name, model)
    else:
        made = import_words(open_store(), path, found, name=name, model=model, settings=settings, text=text)
    if as_json:
        print_json(made_record(made))
        return
    for notice in made.notices:
        report(notice)
    state = counted(made.tokens, "token") if made.tokens else "not read yet"
    report(f"{counted(made.messages, 'message')}; {state}")
    print(sanitize_line(made.name))


def _format_of(output: str) -> Format:
    """What a file is to hold, by its name.

    Raises:
        UsageError: the name does not say it.
    """
    if output == STREAM:
        return Format.MD
    return Format(format_of(Path(output).name, "; --format says it, too"))


def made_record(made: Imported) -> MadeRecord:
    return MadeRecord(name=made.name, messages=made.messages, tokens=made.tokens, notices=list(made.notices))


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _read_stdin() -> str:
    """
    Raises:
        DamagedError: it is too large, or no text, as what is piped of a binary format.
        SatchelError: it cannot be read.
    """
    from satchel.exchange.words import MAX_TEXT_BYTES, decode_text

    try:
        data = sys.stdin.buffer.read(MAX_TEXT_BYTES + 1)
    except OSError as err:
        raise SatchelError(f"cannot read standard input: {err.strerror or err}") from err
    if data[8:9] == b"{" and b"\0" in data[:8]:  # the length of a safetensors file's header
        raise DamagedError("a safetensors file is not read from standard input", "name the file")
    return decode_text(data, STDIN.name)


def write(output: str, force: bool, fill: Callable[[Path], None]) -> None:
    """Let `fill` write a file that appears whole, or send it to standard output."""
    if output == STREAM:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "export"
            fill(path)
            with path.open("rb") as file:
                shutil.copyfileobj(file, sys.stdout.buffer)
        return
    target = Path(output)
    try:
        with atomic_file(target) as work:
            fill(work)
            check_free(target, force)
    except OSError as err:
        raise _cannot_write(target, err) from err


def write_text(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8", "replace"))


def check_free(target: Path, force: bool) -> None:
    try:
        if target.is_dir():
            raise UsageError(f"{target} is a folder")
        if not target.parent.is_dir():
            raise NotFoundError(f"there is no folder {target.parent} to write to")
    except OSError as err:  # a folder that one may not enter; too long a name
        raise _cannot_write(target, err) from err
    if os.path.lexists(target) and not force:
        raise RefusedError(f"there is a file {target}", "--force replaces it")


def _cannot_write(target: Path, err: OSError) -> SatchelError:
    if os.path.lexists(target):
        return cannot_write(target, err)
    return SatchelError(f"cannot write {target}: {err.strerror or err}")  # nothing was saved there before
