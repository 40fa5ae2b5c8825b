"""What is fuzzed: the parsers of bytes that may come from anywhere. Each target takes one input and raises
for a fault; what it expects of a right result is said in it. Knows nothing of fuzzers.

Many mutations would end at a checksum, a frame or a length. So most targets take what is inside, and put it
into a right frame themselves.
"""

from __future__ import annotations

import json
from datetime import timedelta, timezone

import numpy as np
import zstandard
from oracle import FaultFound, Watch

from satchel.cache_store import frame
from satchel.cache_store.block import MAX_OBJECT_BYTES, Kind, decode_object, encode_object
from satchel.cache_store.manifest import (
    MAX_MANIFEST_BYTES,
    Head,
    Manifest,
    decode_head,
    decode_manifest,
    encode_head,
    encode_manifest,
)
from satchel.cache_store.names import name_fault, name_key, validate_name
from satchel.cache_store.packing import ArraySpec, pack_arrays, unpack_arrays
from satchel.cache_store.snapshot import identity_differences, identity_digest

FAR_EAST, FAR_WEST = timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))
_COMPRESSOR = zstandard.ZstdCompressor(level=1)


def stored(data: bytes, watch: Watch) -> None:
    """The bytes of a file, whichever kind it is taken for."""
    with watch.guard():
        if len(frame.decompress(data, MAX_MANIFEST_BYTES)) > MAX_MANIFEST_BYTES:
            raise FaultFound("a frame expanded beyond its bound")
    for kind in ("block", "tail"):
        with watch.guard():
            _check_object(data, kind)
    with watch.guard():
        _check_manifest(decode_manifest(data))


def payload(data: bytes, watch: Watch) -> None:
    """What is inside an object's frame."""
    with watch.guard():
        _check_object(_COMPRESSOR.compress(data), "block")


def envelope(data: bytes, watch: Watch) -> None:
    """The envelope of an object, a zero byte, and its npz. The envelope's length is put right."""
    text, _, npz = data.partition(b"\0")
    framed = _COMPRESSOR.compress(b"SATCHEL\x01" + len(text).to_bytes(4, "little") + text + npz)
    with watch.guard():
        _check_object(framed, "tail" if b'"tail"' in text else "block")


def arrays(data: bytes, watch: Watch) -> None:
    """The specs of arrays as JSON, a zero byte, and an npz, which may start at any address."""
    text, _, npz = data.partition(b"\0")
    try:
        values = json.loads(text)
        specs = [ArraySpec.model_validate(value) for value in values if isinstance(value, dict)]
    except (ValueError, TypeError, RecursionError):
        return
    with watch.guard():
        _check_arrays(unpack_arrays(npz, specs), specs, len(npz))


def manifest(data: bytes, watch: Watch) -> None:
    """The JSON of a manifest."""
    framed = _COMPRESSOR.compress(data)
    with watch.guard():
        _check_manifest(decode_manifest(framed))


def head(data: bytes, watch: Watch) -> None:
    """The JSON of a head."""
    try:
        session_id = json.loads(data)["session_id"]
    except (ValueError, TypeError, KeyError, RecursionError):
        session_id = ""
    with watch.guard():
        decoded = decode_head(data, str(session_id))
        if decode_head(encode_head(decoded), decoded.session_id) != decoded:
            raise FaultFound("a head written again is another")
        for zone in (FAR_EAST, FAR_WEST):  # a list shows it in the time of the place
            decoded.updated_at.astimezone(zone)
        name_key(decoded.name)


def name(data: bytes, watch: Watch) -> None:
    """A session's name, as it is typed."""
    text = data.decode("utf-8", "surrogateescape")
    with watch.guard():
        valid = validate_name(text)
        if name_fault(valid) or validate_name(valid) != valid:
            raise FaultFound("a valid name is not valid")
        valid.encode()
        name_key(valid).encode()


def _check_object(data: bytes, kind: Kind) -> None:
    """Decode an object. What decodes must encode to what decodes to the same."""
    meta, decoded = decode_object(data, kind)
    _check_arrays(decoded, None, MAX_OBJECT_BYTES)
    again_meta, again = decode_object(encode_object(kind, meta, decoded), kind)
    if again_meta != meta or not _equal(again, decoded):
        raise FaultFound("an object written again is another")


def _check_arrays(decoded: dict[str, np.ndarray], specs: list[ArraySpec] | None, max_bytes: int) -> None:
    for array in decoded.values():
        array.sum(dtype=np.float64) if array.dtype.kind == "f" else array.sum()  # every byte can be read
    if sum(array.nbytes for array in decoded.values()) > max_bytes:
        raise FaultFound("arrays take more bytes than the file has")
    if specs is not None:
        said = [(spec.name, spec.dtype, spec.shape) for spec in specs]
        if said != [(key, array.dtype.name, array.shape) for key, array in decoded.items()]:
            raise FaultFound("arrays are not what their specs say")
        npz, again = pack_arrays(decoded)
        if not _equal(unpack_arrays(npz, again), decoded):
            raise FaultFound("arrays packed again are others")


def _check_manifest(decoded: Manifest) -> None:
    """What is read must be fit for all that a session does with it, and encode to the same."""
    data = encode_manifest(decoded)
    if decode_manifest(data) != decoded:
        raise FaultFound("a manifest written again is another")
    identity_digest(decoded.identity)
    decoded.created_at.astimezone(FAR_EAST), decoded.created_at.astimezone(FAR_WEST)
    identity_differences(decoded.identity, {"weights": "0" * 64, "kv": {"codec": "turbo/2"}})
    made = Head.of(decoded, data)
    if decode_head(encode_head(made), made.session_id) != made:
        raise FaultFound("a manifest's head is not one")


def _equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    """Bit for bit: NaN is a number like any other here."""
    return list(one) == list(other) and all(
        (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
        for a, b in zip(one.values(), other.values(), strict=True)
    )
