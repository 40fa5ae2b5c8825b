"""The container of blocks and tails: arrays and meta JSON in one zstd frame. Knows nothing of files.

Payload, little-endian: `SATCHEL` and a version byte; uint32 length of the envelope; the envelope (JSON,
padded with spaces to `ALIGNMENT`); the npz.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from pydantic import Field

from satchel.cache_store import frame
from satchel.cache_store.packing import ALIGNMENT, ArraySpec, breaks, pack_arrays, unpack_arrays
from satchel.cache_store.record import JsonObject, Record
from satchel.cache_store.snapshot import canonical_json
from satchel.errors import DamagedError, SatchelError, VersionError

Kind = Literal["block", "tail"]

TOKENS = "tokens"  # the array that holds an object's token ids, next to the engine's own

MAX_OBJECT_BYTES = 1 << 30
MAX_ENVELOPE_BYTES = 4 << 20
VERSION = 1

_PREFIX = struct.Struct("<7sBI")
_MAGIC = b"SATCHEL"


class _Envelope(Record):
    kind: Kind
    meta: JsonObject
    arrays: tuple[ArraySpec, ...] = Field(strict=False)


def encode_object(kind: Kind, meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """The stored bytes of an object. Equal content gives equal bytes, and so the same name.

    Raises:
        ValueError: a name, dtype or meta value that the format has not (a fault of the caller).
        SatchelError: too large for the store.
    """
    npz, specs = pack_arrays(arrays)
    envelope = canonical_json(
        {"kind": kind, "meta": dict(meta), "arrays": [spec.model_dump(mode="json") for spec in specs]}
    )
    if len(envelope) > MAX_ENVELOPE_BYTES - ALIGNMENT:
        raise SatchelError(f"a description of {len(envelope)} bytes is beyond what the store takes")
    envelope += b" " * (-(_PREFIX.size + len(envelope)) % ALIGNMENT)
    head = _PREFIX.pack(_MAGIC, VERSION, len(envelope)) + envelope
    return frame.compress(head + npz, MAX_OBJECT_BYTES, [len(head) + place for place in breaks(npz, specs)])


def decode_object(data: bytes, kind: Kind) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The meta and the arrays (read-only or fresh) of stored bytes, which may come from anywhere.

    Raises:
        DamagedError: not an object of this kind and version, whole and within bounds; names the object.
        SatchelError: there is no memory for it.
    """
    try:
        return _decode(data, kind)
    except MemoryError as err:
        raise SatchelError(f"{kind} {frame.object_id(data)[:12]} does not fit into memory") from err
    except (DamagedError, VersionError) as err:  # a state that cannot be read is lost either way
        raise DamagedError(f"{kind} {frame.object_id(data)[:12]} is damaged: {err}") from err


def _decode(data: bytes, kind: Kind) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    payload = memoryview(frame.decompress(data, MAX_OBJECT_BYTES))
    if len(payload) < _PREFIX.size:
        raise DamagedError("it is too short")
    magic, version, envelope_bytes = _PREFIX.unpack_from(payload)
    if magic != _MAGIC:
        raise DamagedError("it is not Satchel's")
    if version != VERSION:
        raise DamagedError(f"it has format {version} and this Satchel reads {VERSION}")
    npz_start = _PREFIX.size + envelope_bytes
    if envelope_bytes > MAX_ENVELOPE_BYTES or npz_start > len(payload):
        raise DamagedError(f"its description is said to take {envelope_bytes} bytes of {len(payload)}")
    envelope = _Envelope.parse(bytes(payload[_PREFIX.size : npz_start]))
    if envelope.kind != kind:
        raise DamagedError(f"it is a {envelope.kind}")
    return envelope.meta, unpack_arrays(payload[npz_start:], envelope.arrays)
