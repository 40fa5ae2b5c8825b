"""A whole stored session in one safetensors file, bit for bit, and back. Needs no model and no MLX.

Arrays are named by the object they are of: `b0003/g0.k.codes` is of the fourth block, `tail/…` of the tail;
`…/tokens` are its token ids. The metadata holds `satchel`: JSON with the manifest and what each object says
of its arrays; and `sha256`: over that text and all arrays, in the order of their names.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field
from pydantic_core import from_json
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from satchel.cache_store.block import TOKENS
from satchel.cache_store.loading import load_snapshot
from satchel.cache_store.local import LocalStore
from satchel.cache_store.manifest import Manifest, check_format
from satchel.cache_store.record import Record
from satchel.cache_store.snapshot import ROOT, Block, Snapshot, canonical_json, chain_key, identity_digest
from satchel.errors import DamagedError, NotFoundError, VersionError
from satchel.exchange.lost_state import lost_state
from satchel.exchange.saving import Imported, Wanted, check_labels, save_copy
from satchel.exchange.transcript import FORMAT, VERSION, check_version

KEY, DIGEST = "satchel", "sha256"  # in the file's metadata
TAIL = "tail"
MAX_DESCRIPTION_BYTES = 64 << 20
MAX_BYTES = 1 << 40
DTYPES: dict[str, np.dtype] = {
    "U8": np.dtype(np.uint8),
    "U16": np.dtype("<u2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
}


class _Object(Record):
    """What a block or the tail says of its arrays, and their names in the order in which it is stored."""

    start: int
    stop: int
    checkpoint: bool = False
    meta: dict[str, Any]
    arrays: tuple[str, ...] = Field(strict=False)


class _Description(Record):
    format: Literal["satchel-session"]
    version: Literal[1]
    manifest: Manifest
    objects: tuple[_Object, ...] = Field(strict=False)


def write_session(path: Path, store: LocalStore, manifest: Manifest) -> None:
    """Write the session of `manifest`, without the earlier ones that it keeps.

    Raises:
        DamagedError: some of its state is missing or damaged.
    """
    try:
        snapshot = load_snapshot(store, manifest)
    except (NotFoundError, DamagedError) as err:
        raise lost_state(manifest, str(err)) from err
    whole = [block.whole() for block in snapshot.blocks] + [snapshot.tail] if snapshot else []
    arrays = {
        f"{_prefix(number, len(whole))}/{name}": np.ascontiguousarray(array)
        for number, block in enumerate(whole)
        for name, array in {TOKENS: block.token_ids, **block.arrays}.items()
    }
    description = canonical_json(
        {
            "format": FORMAT,
            "version": VERSION,
            "manifest": manifest.model_copy(update={"abandoned": (), "parent": None}).stored()
            | {"parent": None},
            "objects": [
                _Object(
                    start=block.start,
                    stop=block.stop,
                    checkpoint=block.checkpoint,
                    meta=dict(block.meta),
                    arrays=tuple(block.arrays),
                ).stored()
                for block in whole
            ],
        }
    ).decode()
    save_file(arrays, path, {KEY: description, DIGEST: _digest(description, arrays)})


def read_session(path: Path) -> tuple[Manifest, Snapshot | None]:
    """The session in a file that may come from anywhere: its manifest, and its state if it has one.

    Raises:
        DamagedError: not such a file, or not whole; says how.
        VersionError: whole, and of another version.
    """
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            text = metadata.get(KEY, "").encode("utf-8", "surrogatepass")
            if not 0 < len(text) <= MAX_DESCRIPTION_BYTES:
                raise DamagedError("it does not describe a session")
            arrays = _read_arrays(file, path.stat().st_size)
    except (SafetensorError, OSError) as err:
        raise DamagedError(f"it is not a whole safetensors file ({err})") from err
    if metadata.get(DIGEST) != _digest(metadata[KEY], arrays):
        raise DamagedError("its SHA-256 is another")
    description = _described(text)
    return description.manifest, _snapshot(description, arrays)


def import_tensors(store: LocalStore, path: Path, name: str | None, model: str | None = None) -> Imported:
    """The session in a file, as a new one in the store: the same words, state and chain keys.

    Args:
        name: the session's; one like that in the file if not given.
        model: the name to load its model by here; the one in the file if not given.

    Raises:
        DamagedError, VersionError: as `read_session`, and as `check_labels`.
        UsageError: the name breaks the rule, or another session has it.
        SatchelError: the disk refused.
    """
    try:
        manifest, snapshot = read_session(path)
        check_labels(model_name="" if model else manifest.model_name, profile_name=manifest.profile_name)
    except (DamagedError, VersionError) as err:
        raise type(err)(f"{path.name} cannot be imported: {err}", err.hint) from err
    return save_copy(
        store,
        Wanted(name, (manifest.name, path.stem)),
        manifest,
        snapshot,
        model=model,
        refused=f"{path.name} cannot be imported",
    )


def _described(text: bytes) -> _Description:
    """
    Raises:
        DamagedError: it describes no session.
        VersionError: it does, for another version.
    """
    with contextlib.suppress(ValueError):  # not JSON, which the parser says better
        found = from_json(text)
        if isinstance(found, dict) and found.get("format") == FORMAT:
            check_version(found.get("version"))
            check_format(found.get("manifest"))
    return _Description.parse(text)


def _read_arrays(file: Any, file_bytes: int) -> dict[str, np.ndarray]:
    """All arrays, once their dtypes and sizes are known to be what such a file can hold."""
    names, total = sorted(file.keys()), 0
    for name in names:
        held = file.get_slice(name)
        dtype = DTYPES.get(held.get_dtype())
        if dtype is None:
            raise DamagedError(f"its array {name[:80]!r} is of {held.get_dtype()}")
        total += math.prod(held.get_shape()) * dtype.itemsize
    if total > min(file_bytes, MAX_BYTES):
        raise DamagedError(f"its arrays are said to take {total} bytes of {file_bytes}")
    return {name: file.get_tensor(name) for name in names}


def _snapshot(description: _Description, arrays: Mapping[str, np.ndarray]) -> Snapshot | None:
    manifest, objects = description.manifest, description.objects
    refs = (*manifest.blocks, manifest.tail) if manifest.tail else ()
    places = [(ref.start, ref.stop) for ref in refs]
    if places != [(each.start, each.stop) for each in objects]:
        raise DamagedError("its objects are not those of its manifest")
    if not objects:
        return None
    blocks = []
    for number, each in enumerate(objects):
        prefix = _prefix(number, len(objects))
        try:
            token_ids = arrays[f"{prefix}/{TOKENS}"]
            own = {name: arrays[f"{prefix}/{name}"] for name in each.arrays}
            blocks.append(Block(each.start, each.stop, token_ids, own, each.meta, each.checkpoint))
        except (ValueError, KeyError) as err:
            raise DamagedError(f"its object {prefix} is not whole ({err})") from err
    key, digest = ROOT, identity_digest(manifest.identity)
    for ref, block in zip(manifest.blocks, blocks, strict=False):
        key = chain_key(key, digest, block.token_ids)
        if (key, block.checkpoint) != (ref.chain_key, ref.checkpoint):
            raise DamagedError(f"its block of tokens {ref.start} to {ref.stop} belongs to another context")
    return Snapshot(manifest.identity, tuple(blocks[:-1]), blocks[-1])


def _prefix(number: int, count: int) -> str:
    return TAIL if number == count - 1 else f"b{number:04d}"


def _digest(description: str, arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 (hex); every field has its length or size ahead of it."""
    digest = hashlib.sha256()
    for name, array in [(KEY, np.frombuffer(description.encode(), np.uint8)), *sorted(arrays.items())]:
        digest.update(f"{len(name)} {name} {array.dtype.name} {list(array.shape)}\n".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
