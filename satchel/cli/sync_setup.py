"""`satchel sync setup` and `join`: asks for what is missing, and shows what comes of it.

Knows nothing of how keys are made or kept. Secrets come from the environment, or are typed without an echo.
"""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from satchel.cli.options import at_terminal, report
from satchel.errors import RefusedError, SatchelError, UsageError

if TYPE_CHECKING:
    from satchel.remotes.remote import Remote
    from satchel.remotes.s3 import Credentials
    from satchel.sync.keys import RootKey
    from satchel.sync.setup import Destination, SetUp

PASSPHRASE = "SATCHEL_PASSPHRASE"  # noqa: S105 - the name of one
RECOVERY_WORDS = "SATCHEL_RECOVERY_WORDS"
WORDS_A_ROW = 6

Address = Annotated[
    str | None,
    typer.Argument(metavar="[REMOTE]", help="s3://BUCKET/PREFIX or file:///PATH/TO/A/FOLDER."),
]
Endpoint = Annotated[str | None, typer.Option(metavar="URL", help="Where an S3 service is that is not AWS.")]
Region = Annotated[str | None, typer.Option(help="Of the bucket, where it is not found by itself.")]
Auto = Annotated[
    bool | None, typer.Option("--auto/--no-auto", help="Sync after each turn of a chat, in the background.")
]
Replace = Annotated[bool, typer.Option("--replace", help="Sync with this remote instead of another one.")]

_T = TypeVar("_T")


def setup(
    remote: Address = None,
    endpoint: Endpoint = None,
    region: Region = None,
    auto: Auto = None,
    no_passphrase: Annotated[
        bool, typer.Option("--no-passphrase", help="Only the recovery words open the remote elsewhere.")
    ] = False,
    replace_other: Replace = False,
) -> None:
    """Sync with a new bucket or folder, and show its recovery words once.

    Without a terminal the passphrase is taken from SATCHEL_PASSPHRASE.
    """
    from satchel.sync.setup import check_free, check_passphrase, set_up

    destination = _destination(remote, endpoint, region, replace_other)
    passphrase = None if no_passphrase else os.environ.get(PASSPHRASE)
    if not (no_passphrase or passphrase or at_terminal()):
        raise UsageError(
            "a passphrase is missing",
            f"set {PASSPHRASE}, or give --no-passphrase: then the recovery words alone open the remote",
        )
    if passphrase:
        check_passphrase(passphrase)
    _make_folder(destination)
    place, destination, _ = _open(destination, check_free)  # before a passphrase is asked for in vain
    if not (no_passphrase or passphrase):
        passphrase = _ask_new_passphrase()
    done = set_up(place, destination, passphrase, _show_words)
    _tell_how(done)
    _set_auto(auto)
    report("`satchel sync` sends your sessions; `satchel sync join` on another machine fetches them")


def join(
    remote: Address = None,
    endpoint: Endpoint = None,
    region: Region = None,
    auto: Auto = None,
    by_words: Annotated[
        bool, typer.Option("--words", help="With the recovery words in place of the passphrase.")
    ] = False,
    replace_other: Replace = False,
) -> None:
    """Sync with what another machine has set up.

    Without a terminal SATCHEL_PASSPHRASE or, with --words, SATCHEL_RECOVERY_WORDS opens it.
    """
    from satchel.sync.setup import has_passphrase
    from satchel.sync.setup import join as join_remote

    destination = _destination(remote, endpoint, region, replace_other)
    secret = os.environ.get(RECOVERY_WORDS if by_words else PASSPHRASE)
    if not (secret or at_terminal()):
        if by_words:
            raise UsageError("the recovery words are missing", f"set {RECOVERY_WORDS}")
        raise UsageError(
            "a passphrase is missing", f"set {PASSPHRASE}, or give --words and set {RECOVERY_WORDS}"
        )
    place, destination, has_one = _open(destination, lambda place: has_passphrase(place, destination))
    if not secret:
        by_words = by_words or not has_one
        secret = _ask_words() if by_words else _ask("Passphrase (not shown)", str, hidden=True)
    opened = {"words": secret} if by_words else {"passphrase": secret}
    done = join_remote(place, destination, **opened)
    _tell_how(done)
    _set_auto(auto)
    report("joined: `satchel sync` fetches the sessions that are there")


def _destination(
    remote: str | None, endpoint: str | None, region: str | None, replace_other: bool
) -> Destination:
    """Where to sync, from arguments, the environment, and what a person types.

    Raises:
        UsageError: something is missing that cannot be asked for, or wrong.
        RefusedError: this machine syncs with another remote.
    """
    from satchel.remotes.address import RemoteAddress
    from satchel.remotes.s3 import check_endpoint
    from satchel.sync.credentials import default_address, default_endpoint, default_region
    from satchel.sync.setup import Destination, replaced_by

    if remote is not None:
        address = RemoteAddress.parse(remote)
    elif at_terminal():
        question = "Remote, as s3://BUCKET/PREFIX or file:///FOLDER"
        address = _ask(question, RemoteAddress.parse, default=default_address())
    elif default := default_address():
        address = RemoteAddress.parse(default)
    else:
        raise UsageError("no remote is named", "it is s3://BUCKET/PREFIX or file:///PATH/TO/A/FOLDER")
    if not address.bucket:
        if endpoint or region:
            raise UsageError("--endpoint and --region are for s3:// only")
        destination = Destination(str(address))
    else:
        endpoint = check_endpoint(endpoint or default_endpoint())
        if endpoint is None and at_terminal():
            endpoint = _ask(
                "Endpoint (empty: AWS)", lambda text: check_endpoint(text.strip() or None), default=""
            )
        destination = Destination(str(address), endpoint, region or default_region(endpoint))
    other = replaced_by(destination)
    if other is not None and not replace_other:
        raise RefusedError(
            f"this machine syncs with {other.url} already", "--replace has it sync with the new one only"
        )
    return destination


def _make_folder(destination: Destination) -> None:
    """Make the folder that is to be synced with, if only that is missing of its path."""
    from satchel.remotes.address import RemoteAddress
    from satchel.remotes.directory import make_last_folder

    folder = RemoteAddress.parse(destination.url).directory
    if folder is not None and make_last_folder(folder):
        report(f"made the folder {folder}")


def _open(destination: Destination, look: Callable[[Remote], _T]) -> tuple[Remote, Destination, _T]:
    """The remote itself, the destination with credentials that were typed and are to be kept, and what `look`
    finds in the remote. A person whose credentials are refused is asked for others.

    Raises:
        SatchelError: as `look`; the keychain is locked.
    """
    from satchel.remotes.address import RemoteAddress
    from satchel.remotes.retry import RetryingRemote
    from satchel.remotes.s3 import CredentialsError
    from satchel.sync.credentials import are_in_environment, s3_credentials

    address, credentials = RemoteAddress.parse(destination.url), None
    can_ask = bool(address.bucket) and at_terminal() and not are_in_environment()
    if address.bucket:
        credentials = s3_credentials(destination.url, destination.endpoint)
    typed = credentials is None and can_ask
    if typed:
        credentials = _ask_credentials()
    while True:
        try:
            place = RetryingRemote(address.open(destination.endpoint, destination.region, credentials))
            found = look(place)
            break
        except CredentialsError as err:
            if not can_ask:
                raise
            report(err.one_line())
        credentials, typed = _ask_credentials(), True
    if typed and credentials:
        if typer.confirm("Keep them in the system keychain?", default=True, err=True):
            destination = replace(destination, credentials=credentials)
        else:
            _tell_unkept()
    return place, destination, found


def _ask_credentials() -> Credentials | None:
    """None: boto3 is to look for them."""
    from satchel.remotes.s3 import Credentials
    from satchel.sync.credentials import checked_credential

    def ask(label: str, note: str = "", default: str | None = None) -> str:
        return _ask(
            f"{label} (not shown{note})",
            lambda text: checked_credential(text, f"the {label.lower()}"),
            default,
            True,
        )

    access_key = ask("Access key", "; empty: as for the aws command", default="")
    return Credentials(access_key, ask("Secret key")) if access_key else None


def _ask_new_passphrase() -> str | None:
    """None if it is left empty."""
    from satchel.sync.setup import check_passphrase

    def check(text: str) -> str | None:
        if text:
            check_passphrase(text)
        return text or None

    while True:
        question = "Passphrase (not shown; empty: recovery words only)"
        passphrase = _ask(question, check, default="", hidden=True)
        if passphrase is None or _ask("Once more", str, default="", hidden=True) == passphrase:
            return passphrase
        report("the two are not the same")


def _ask_words() -> str:
    """Recovery words, on as many lines as it takes: as they stand on a screen, they are pasted in several.

    Read at once, since each question of its own throws away what was typed before.

    Raises:
        typer.Abort: the input ended.
    """
    from satchel.sync.keys import WORDS, words_in

    terminal = sys.stdin.fileno()
    modes = termios.tcgetattr(terminal)
    silent = [*modes[:3], modes[3] & ~termios.ECHO, *modes[4:]]
    text, question = "", "Recovery words (not shown): "
    try:
        termios.tcsetattr(terminal, termios.TCSAFLUSH, silent)
        while len(words_in(text)) < WORDS:
            print(question, end="", file=sys.stderr, flush=True)
            line = sys.stdin.readline()
            if not line:
                raise typer.Abort
            text += line
            question = f"\n{len(words_in(text))} of {WORDS} words, go on: "
    finally:
        # With what is left of a paste: the shell is not to run it.
        termios.tcsetattr(terminal, termios.TCSAFLUSH, modes)
        print(file=sys.stderr)
    return text


def _tell_how(done: SetUp) -> None:
    """Say what the remote can do, and where the secrets are on this machine."""
    for line in done.probe.lines:
        report(line)
    if done.key_file is not None:
        report(f"no system keychain works here: the key is in {done.key_file}, for you alone to read")
    if done.credentials_kept is False:
        report("no system keychain works here: the credentials are not kept")
        _tell_unkept()


def _tell_unkept() -> None:
    from satchel.sync.credentials import ACCESS_KEY, SECRET_KEY

    report(f"set {ACCESS_KEY} and {SECRET_KEY}, or put them into ~/.aws/credentials, before the next sync")


def _set_auto(auto: bool | None) -> None:
    if auto is not None:
        from satchel.config.settings import set_in_file

        set_in_file("sync.auto", auto)


def _show_words(root: RootKey) -> None:
    """
    Raises:
        SatchelError: they cannot be written out.
        BrokenPipeError: whoever reads standard output has gone.
    """
    listed = [f"{number:>2} {word:<8}" for number, word in enumerate(root.words().split(), 1)]
    try:
        print("The recovery words. They are shown this once, and they open everything: keep them on paper.\n")
        for start in range(0, len(listed), WORDS_A_ROW):
            print("  ".join(listed[start : start + WORDS_A_ROW]).rstrip(), flush=True)
    except BrokenPipeError:
        raise
    except OSError as err:
        raise SatchelError(
            f"cannot write to standard output: {err.strerror or err}",
            "set it up again to see the recovery words",
        ) from err


def _ask(
    question: str,
    check: Callable[[str], _T],
    default: str | None = None,
    hidden: bool = False,
) -> _T:
    """What `check` makes of the answer; asked again for as long as it raises a UsageError."""
    while True:
        answer = typer.prompt(
            question,
            err=True,
            default=default,
            show_default=bool(default),
            hide_input=hidden,
        )
        try:
            return check(str(answer))
        except UsageError as err:
            report(err.one_line())
