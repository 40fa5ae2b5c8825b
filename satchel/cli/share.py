"""`satchel share` and `satchel receive`: a session from one person to another."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from satchel.cli.exchange import STREAM, check_free, counted, made_record, write
from satchel.cli.options import AsJson, Model, Name, at_terminal, examples, open_store, report
from satchel.cli.records import SharedRecord
from satchel.cli.schemas import print_json
from satchel.errors import UsageError
from satchel.terminal.sanitize import sanitize, sanitize_line

if TYPE_CHECKING:
    from satchel.exchange.sealed import SealKey
    from satchel.exchange.sharing import Origin

DEFAULT_EXPIRY = "24h"
MAX_ORIGIN_BYTES = 64 << 10


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "satchel share bruno",
            "satchel share bruno --expires 7d",
            "satchel share bruno --output bruno.satchel    # to send by other means",
        )
    )(share)
    app.command(
        epilog=examples(
            "satchel receive 'https://…#…'                 # in quotes: # begins a comment",
            "satchel receive bruno.satchel                 # asks for the key",
            "pbpaste | satchel receive -",
        )
    )(receive)


def share(
    name: Name,
    expires: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help=f"How long the link works: 1m to 7d; {DEFAULT_EXPIRY} if not given."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a sealed file instead, to send by other means.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if there is one.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print a link to a sealed copy of a session. Whoever has all of the link can read the copy."""
    from satchel.cache_store.sessions import open_session
    from satchel.exchange.sharing import (
        ends_early,
        open_link_remote,
        parse_expiry_s,
        seal_session,
        share_session,
    )

    expiry_s = parse_expiry_s(DEFAULT_EXPIRY if expires is None else expires)
    if output is not None:
        if expires is not None:
            raise UsageError("a file does not expire", "leave out --expires, or --output")
        if str(output) == STREAM:
            raise UsageError("the key is what goes to standard output", "name a file with --output")
        check_free(output, force)
    remote = open_link_remote(name) if output is None else None
    store = open_store()
    saved = open_session(store, name)
    for note in filter(None, (saved.notice, saved.manifest.archive_note)):
        report(note)
    if remote is not None:
        link = share_session(remote, store, saved.manifest, expiry_s)
        early = ", or until the temporary credentials that it was made with end" if ends_early(link) else ""
        report(f"whoever has the link can read the session, for {expires or DEFAULT_EXPIRY}{early}")
        if as_json:
            record = SharedRecord(name=saved.head.name, link=link, expires_s=expiry_s, file=None, key=None)
            print_json(record)
        else:
            print(link)
        return
    keys = []
    write(str(output), force, lambda path: keys.append(seal_session(path, store, saved.manifest)))
    report("whoever has the file and the key after # can read the session: send them by different ways")
    if as_json:
        key = keys[0].text()
        print_json(SharedRecord(name=saved.head.name, link=None, expires_s=None, file=str(output), key=key))
    else:
        print(f"{sanitize(str(output))}#{keys[0].text()}")


def receive(
    source: Annotated[
        str,
        typer.Argument(
            metavar="LINK|FILE",
            help="Either with #key, or without: then it is asked for. `-` reads all from standard input.",
        ),
    ],
    name: Annotated[str | None, typer.Option(help="The session's name; the one it has if not given.")] = None,
    model: Model = None,
    as_json: AsJson = False,
) -> None:
    """Make a session of what somebody has shared.

    A key that is not to be seen in the list of processes, or to stay in the shell's history, is left to be
    asked for, or comes by standard input.
    """
    from satchel.exchange.sharing import check_origin, parse_origin, receive_session
    from satchel.sync.transfer import Progress
    from satchel.terminal.transfer import TransferBar

    origin = parse_origin(_read_origin() if source == STREAM else source)
    check_origin(origin)
    key = origin.key or _ask_key(origin)
    with TransferBar() as show:
        made = receive_session(
            open_store(),
            origin,
            key,
            name=name,
            model=model,
            progress=lambda done, total: show(Progress("fetching", "the shared session", done, total)),
        )
    if as_json:
        print_json(made_record(made))
        return
    state = counted(made.tokens, "token") if made.tokens else "not read yet"
    report(f"{counted(made.messages, 'message')}; {state}")
    print(sanitize_line(made.name))


def _read_origin() -> str:
    """
    Raises:
        UsageError: there is none.
    """
    text = os.fsdecode(sys.stdin.buffer.readline(MAX_ORIGIN_BYTES)).strip()
    if not text or "\0" in text:
        raise UsageError("standard input holds no link", "it is one line, with # and the key at its end")
    return text


def _ask_key(origin: Origin) -> SealKey:
    """
    Raises:
        UsageError: what is typed is no key, or nobody can be asked.
    """
    from satchel.exchange.sealed import SealKey

    if not at_terminal():
        if origin.is_link:
            raise UsageError("the link has no key", "it ends with # and 43 letters and digits")
        raise UsageError("the file's key is missing", "give it as FILE#key")
    return SealKey.from_text(typer.prompt("Key (not shown)", hide_input=True, err=True).strip())
