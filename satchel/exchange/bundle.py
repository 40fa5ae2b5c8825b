"""A stored session as one stream, each object with the bytes that it has in the store. Knows nothing of keys.

The stream is a tar: `manifest`, then `blocks/<sha256>` for each block in its order and for the tail, then
zeros, of which there may be more than tar asks for. The manifest names no earlier ones.
"""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from satchel.cache_store.block import MAX_OBJECT_BYTES
from satchel.cache_store.frame import object_id
from satchel.cache_store.local import LocalStore
from satchel.cache_store.manifest import (
    MAX_MANIFEST_BYTES,
    Manifest,
    TailRef,
    decode_manifest,
    encode_manifest,
)
from satchel.config.units import size_text
from satchel.errors import DamagedError, NotFoundError, SatchelError
from satchel.exchange.lost_state import lost_state

MANIFEST = "manifest"
MAX_BYTES = 64 << 30  # of all that is read
END_BYTES = 2 * tarfile.BLOCKSIZE

_PIECE_BYTES = 1 << 20


class Sink(Protocol):
    """What a bundle is written to: a file, or what seals one."""

    def write(self, data: bytes, /) -> int: ...


class Source(Protocol):
    """What a bundle is read from: a file, or what unseals one."""

    def read(self, size: int, /) -> bytes:
        """`size` bytes; fewer only at the end."""


def write_bundle(sink: Sink, store: LocalStore, manifest: Manifest) -> None:
    """Write the session of `manifest`, without the earlier ones that it keeps. Every object is checked.

    Raises:
        DamagedError: some of its state is missing or damaged.
    """
    alone = manifest.model_copy(update={"abandoned": (), "parent": None})
    _write_member(sink, MANIFEST, encode_manifest(alone))
    for ref in _refs(manifest):
        try:
            data = store.get_block(ref.sha256, ref.stored_bytes)
        except (NotFoundError, DamagedError) as err:
            raise lost_state(manifest, str(err)) from err
        _write_member(sink, _object_name(ref), data)
    sink.write(bytes(END_BYTES))


def read_bundle(source: Source, folder: Path) -> tuple[Manifest, LocalStore]:
    """The manifest in a stream that may come from anywhere, and a store in `folder` with what it refers to.
    The folder has to be there.

    Nothing in the stream says where anything is written: there has to be the manifest, and then exactly what
    that lists, as plain files of the right name, size and SHA-256. What the objects hold is not looked at.

    Raises:
        DamagedError: anything else, or more than `MAX_BYTES`.
        VersionError: the manifest is of another version.
        SatchelError: the disk has no room for it, or refused.
    """
    manifest = decode_manifest(_read_member(source, MANIFEST, None))
    refs, store = _refs(manifest), LocalStore(folder)
    _check_sizes(refs, folder)
    with store.putting_blocks() as put:
        for ref in refs:
            data = _read_member(source, _object_name(ref), ref.stored_bytes)
            if object_id(data) != ref.sha256:
                raise DamagedError(f"block {ref.sha256[:12]} is damaged: its SHA-256 is another")
            put(data)
    _check_end(source)
    return manifest, store


def _refs(manifest: Manifest) -> tuple[TailRef, ...]:
    return (*manifest.blocks, manifest.tail) if manifest.tail else ()


def _object_name(ref: TailRef) -> str:
    return f"blocks/{ref.sha256}"


def _write_member(sink: Sink, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o600
    sink.write(member.tobuf(tarfile.USTAR_FORMAT))
    sink.write(data)
    sink.write(bytes(_padding_bytes(len(data))))


def _read_member(source: Source, name: str, size: int | None) -> bytes:
    """The content of the next file in a tar, which has to be called `name`; `size` bytes, if that is known.

    `tarfile` would act upon what it meets: extended headers of any size, links, sparse files.
    """
    try:
        # The encoding and errors are those of a tar that `tarfile` opens.
        found = tarfile.TarInfo.frombuf(source.read(tarfile.BLOCKSIZE), "utf-8", "surrogateescape")
    except tarfile.HeaderError as err:
        raise DamagedError(f"it ends, or is no tar, where {name[:19]} should be") from err
    if found.name != name or found.type != tarfile.REGTYPE:
        raise DamagedError(f"it has {found.name[:80]!a} where {name[:19]} should be")
    if found.size != size and not (size is None and 0 <= found.size <= MAX_MANIFEST_BYTES):
        right = size if size is not None else f"at most {MAX_MANIFEST_BYTES}"
        raise DamagedError(f"its {name[:19]} has {found.size} bytes instead of {right}")
    data, padding = source.read(found.size), source.read(_padding_bytes(found.size))
    if len(data) != found.size or padding != bytes(_padding_bytes(found.size)):
        raise DamagedError(f"its {name[:19]} is not whole")
    return data


def _padding_bytes(size: int) -> int:
    return -size % tarfile.BLOCKSIZE


def _check_sizes(refs: Sequence[TailRef], folder: Path) -> None:
    """
    Raises:
        DamagedError: they are beyond what the store has, or what is received, or one is there twice.
        SatchelError: the disk has no room for them.
    """
    seen: set[str] = set()
    for ref in refs:
        if ref.stored_bytes > MAX_OBJECT_BYTES:
            raise DamagedError(f"its block {ref.sha256[:12]} is said to have {ref.stored_bytes} bytes")
        if ref.sha256 in seen:
            raise DamagedError(f"its block {ref.sha256[:12]} is said to be two of one context")
        seen.add(ref.sha256)
    total = sum(ref.stored_bytes for ref in refs)
    if total > MAX_BYTES:
        raise DamagedError(f"it is said to take {size_text(total)}")
    check_room(folder, total)


def check_room(folder: Path, size_bytes: int) -> None:
    """
    Raises:
        SatchelError: the disk that `folder` is on has no room for so many bytes.
    """
    free = shutil.disk_usage(folder).free
    if size_bytes > free:
        raise SatchelError(
            f"it takes {size_text(size_bytes)}, and there is room for {size_text(free)} of temporary files",
            "TMPDIR names a folder on another disk",
        )


def _check_end(source: Source) -> None:
    """
    Raises:
        DamagedError: what follows the last object is not the zeros that end a tar.
    """
    end_bytes = 0
    while piece := source.read(_PIECE_BYTES):
        if piece.count(0) != len(piece):
            raise DamagedError("something follows its last block")
        end_bytes += len(piece)
    if end_bytes < END_BYTES:
        raise DamagedError("it ends too early")
