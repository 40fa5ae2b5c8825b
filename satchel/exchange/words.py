"""The words of stored sessions to text files and back, and which format a file is in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic_core import from_json
from safetensors import SafetensorError, safe_open

from satchel.cache_store.loading import load_blocks, load_tail
from satchel.cache_store.local import LocalStore
from satchel.cache_store.manifest import Manifest
from satchel.cache_store.snapshot import Block
from satchel.errors import DamagedError, NotFoundError, SatchelError, VersionError
from satchel.exchange.markdown import OPENING, from_markdown, to_markdown
from satchel.exchange.saving import Imported, Wanted, check_labels, save_new
from satchel.exchange.tensors import KEY
from satchel.exchange.transcript import FORMAT, Transcript, from_json_text, from_jsonl, to_json, to_jsonl
from satchel.files import read_file

if TYPE_CHECKING:
    from satchel.config.settings import Settings

WRITERS = {"md": to_markdown, "json": to_json, "jsonl": to_jsonl}
READERS = {"md": from_markdown, "json": from_json_text, "jsonl": from_jsonl}
MAX_TEXT_BYTES = 64 << 20
MAX_HEADER_BYTES = 100 << 20  # the safetensors library's own bound


def export_words(store: LocalStore, manifest: Manifest, format_name: str) -> str:
    """The words of a session as `md`, `json` or `jsonl`; `json` has the token ids, if they can be read."""
    transcript = Transcript(
        manifest.messages,
        manifest.name,
        manifest.model_name,
        manifest.profile_name,
        manifest.created_at.isoformat(timespec="seconds"),
        manifest.token_count,
        _token_ids(store, manifest) if format_name == "json" else (),
    )
    return WRITERS[format_name](transcript)


def import_words(
    store: LocalStore,
    path: Path,
    format_name: str,
    *,
    name: str | None,
    model: str | None,
    settings: Settings,
    text: str | None = None,
) -> Imported:
    """A session with the words in a file, which are read at its first turn.

    Args:
        name: the session's; one like that in the file, or like the file's own, if not given.
        model: to go on with; the one named in the file if not given, or else that of the settings.
        text: the file's, where it has been read already.

    Raises:
        DamagedError: the file is not of this format, or as `check_labels`.
        VersionError: it was exported by another version.
        UsageError: the name breaks the rule, or another session has it.
        SatchelError: the disk refused.
    """
    try:
        found = READERS[format_name](read_text(path) if text is None else text)
        check_labels(model_name="" if model else found.model, profile_name=found.profile)
    except (DamagedError, VersionError) as err:
        raise type(err)(f"{path.name} cannot be imported: {err}", err.hint) from err
    return save_new(
        store,
        Wanted(name, (found.name, path.stem)),
        found.messages,
        None,
        model_name=model or found.model or settings.model,
        profile_name=found.profile or settings.kv_profile,
    )


def recognise(path: Path) -> str:
    """The format of a file, by its content: `md`, `json`, `jsonl`, `safetensors` (ours) or `mlx-lm`.

    Raises:
        NotFoundError: there is no such file.
        DamagedError: none of these.
        SatchelError: it cannot be read.
    """
    check_file(path)
    if _is_safetensors(path):
        try:
            with safe_open(path, framework="np") as file:
                return "safetensors" if KEY in (file.metadata() or {}) else "mlx-lm"
        except (SafetensorError, OSError) as err:
            raise DamagedError(f"{path.name} is not a whole safetensors file ({err})") from err
    return recognise_text(read_text(path), path.name)


def recognise_text(text: str, name: str) -> str:
    """Which of `md`, `json` and `jsonl` a text is, by what it says; `name` is for the message.

    Raises:
        DamagedError: none of these.
    """
    text = text.lstrip()
    if text.startswith(OPENING):
        return "md"
    if text[:1] not in ("[", "{"):
        raise _unknown(name)
    try:
        value = from_json(text)
    except ValueError:
        value = None  # JSON lines, or a document that is damaged
    whole = isinstance(value, list) or (isinstance(value, dict) and "messages" in value)
    return "json" if whole or FORMAT in text[: 2 * len(FORMAT) + 20] else "jsonl"


def read_token_ids(path: Path) -> list[int]:
    """Token ids in a file: a JSON list, or numbers with spaces, commas or line ends between them.

    Raises:
        NotFoundError: there is no such file.
        DamagedError: it holds something else.
    """
    check_file(path)
    numbers = read_text(path).translate(str.maketrans("[],", "   ")).split()
    if not numbers or not all(each.isascii() and each.isdecimal() and len(each) < 11 for each in numbers):
        raise DamagedError(f"{path.name} is no list of token ids")
    return [int(each) for each in numbers]


def read_text(path: Path) -> str:
    """
    Raises:
        DamagedError: it is too large, no file, or not UTF-8.
        SatchelError: it cannot be read.
    """
    return decode_text(read_file(path, MAX_TEXT_BYTES) or b"", path.name)


def decode_text(data: bytes, name: str) -> str:
    """
    Raises:
        DamagedError: it is too large, or not UTF-8.
    """
    if len(data) > MAX_TEXT_BYTES:
        raise DamagedError(f"{name} has more than {MAX_TEXT_BYTES} bytes, too many for text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        raise _unknown(name) from err


def _token_ids(store: LocalStore, manifest: Manifest) -> tuple[int, ...]:
    """What the model has read; nothing where it cannot be read: the words are whole, and are read again."""
    pieces = {}

    def take(block: Block) -> None:
        pieces[block.start] = block.token_ids

    if manifest.tail is None:
        return ()
    try:
        take(load_tail(store, manifest.identity, manifest.blocks, manifest.tail))
        load_blocks(store, manifest.identity, manifest.blocks, take)
    except SatchelError:
        return ()
    return tuple(token_id for start in sorted(pieces) for token_id in pieces[start].tolist())


def _is_safetensors(path: Path) -> bool:
    """Whether the file begins with the length of a JSON object that fits into it."""
    with path.open("rb") as file:
        start = file.read(9)
    header_bytes = int.from_bytes(start[:8], "little")
    return start[8:] == b"{" and header_bytes <= min(MAX_HEADER_BYTES, path.stat().st_size)


def check_file(path: Path) -> None:
    """
    Raises:
        NotFoundError: there is no such file.
        DamagedError: it is something else, such as a folder or a pipe, which might never end.
    """
    if not path.exists():
        raise NotFoundError(f"there is no file {path}")
    if not path.is_file():
        raise DamagedError(f"{path} is not a file")


def _unknown(name: str) -> DamagedError:
    return DamagedError(f"{name} is of no format that can be imported")
