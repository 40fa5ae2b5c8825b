"""A reader and a writer of version 1 that follow docs/format.md alone. Nothing of Satchel's code is used.

Its tests show that the description is whole, and that the golden store stays readable. It reads a store that
it trusts: of the checks that a reader must make, only those that show damage are here.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import struct
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

PREFIX = struct.Struct("<7sBI")
LOCAL_HEADER = struct.Struct("<4sHHHHHLLLHH")
PLANAR = ("uint16", "float16", "float32")

Arrays = dict[str, np.ndarray]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# Texts and digests


def canonical(value: Any) -> bytes:
    """Canonical JSON, written out so that each of its rules can be seen."""
    if value is None or isinstance(value, bool):
        return {None: b"null", True: b"true", False: b"false"}[value]
    if isinstance(value, int):
        return str(value).encode()
    if isinstance(value, float):
        assert math.isfinite(value)
        return repr(value).encode()
    if isinstance(value, str):
        return ('"' + "".join(map(_escaped, value)) + '"').encode()
    if isinstance(value, list | tuple):
        return b"[" + b",".join(map(canonical, value)) + b"]"
    members = [canonical(name) + b":" + canonical(value[name]) for name in sorted(value)]
    return b"{" + b",".join(members) + b"}"


def _escaped(char: str) -> str:
    short = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
    return short.get(char) or (f"\\u{ord(char):04x}" if char < " " else char)


def tagged_digest(domain: bytes, fields: Iterable[tuple[bytes, bytes]]) -> str:
    message = domain
    for tag, value in fields:
        message += bytes([len(tag)]) + tag + len(value).to_bytes(8, "little") + value
    return sha256(message)


def identity_digest(identity: Mapping[str, Any]) -> str:
    return tagged_digest(b"satchel.identity/1", [(b"identity", canonical(identity))])


def chain_key(parent: str, identity: str, tokens: np.ndarray) -> str:
    words = tokens.astype("<u4").tobytes()
    fields = [(b"parent", parent.encode()), (b"identity", identity.encode()), (b"tokens", words)]
    return tagged_digest(b"satchel.chain/1", fields)


# Objects


def decode_object(data: bytes, kind: str) -> tuple[dict[str, Any], Arrays]:
    """The meta and the arrays of a block or a tail."""
    payload = zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    magic, version, length = PREFIX.unpack_from(payload)
    assert (magic, version, (PREFIX.size + length) % 64) == (b"SATCHEL", 1, 0)
    envelope = json.loads(payload[PREFIX.size : PREFIX.size + length])
    assert envelope["kind"] == kind
    npz = payload[PREFIX.size + length :]
    with np.load(io.BytesIO(npz), allow_pickle=False) as members:
        assert members.files == [spec["name"] for spec in envelope["arrays"]]
        arrays = {spec["name"]: _array(members[spec["name"]], spec) for spec in envelope["arrays"]}
    return envelope["meta"], arrays


def _array(stored: np.ndarray, spec: Mapping[str, Any]) -> np.ndarray:
    dtype, shape = np.dtype(spec["dtype"]).newbyteorder("<"), tuple(spec["shape"])
    if spec.get("planes"):  # (itemsize, elements)
        return np.ascontiguousarray(stored.T).reshape(-1).view(dtype).reshape(shape)
    if spec.get("sextets"):  # (bytes / 3, 4), 6 bits each
        bits = np.unpackbits(stored.reshape(-1, 1), axis=1, bitorder="little")[:, :6]
        return np.packbits(bits.reshape(-1), bitorder="little").view(dtype).reshape(shape)
    assert (stored.dtype, stored.shape) == (dtype, shape)
    return stored


def encode_object(kind: str, meta: Mapping[str, Any], arrays: Arrays) -> bytes:
    """The stored bytes of a block or a tail, without sextets, which a writer need not use."""
    npz, specs = io.BytesIO(), []
    with zipfile.ZipFile(npz, "w") as archive:
        for name, array in arrays.items():
            spec = {"name": name, "dtype": array.dtype.name, "shape": list(array.shape)}
            if array.dtype.name in PLANAR:
                spec["planes"] = True
                array = array.reshape(-1).view(np.uint8).reshape(array.size, array.itemsize).T
            specs.append(spec)
            member = zipfile.ZipInfo(f"{name}.npy")
            data_at = npz.tell() + LOCAL_HEADER.size + len(member.filename) + 4
            member.extra = struct.pack("<HH", 0xD935, -data_at % 64) + bytes(-data_at % 64)
            with archive.open(member, "w") as file:
                np.lib.format.write_array(file, np.ascontiguousarray(array), version=(1, 0))
    envelope = canonical({"kind": kind, "meta": meta, "arrays": specs})
    envelope += b" " * (-(PREFIX.size + len(envelope)) % 64)
    return compress(PREFIX.pack(b"SATCHEL", 1, len(envelope)) + envelope + npz.getvalue())


def compress(content: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(content)  # the size of the content is in the frame


def decode_manifest(data: bytes) -> dict[str, Any]:
    text = zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    manifest: dict[str, Any] = json.loads(text)
    assert manifest["format_version"] == 1
    assert canonical(manifest) == text
    return manifest


# A store


@dataclass(frozen=True)
class Store:
    """The directory that holds `v1`."""

    root: Path

    def heads(self) -> dict[str, dict[str, Any]]:
        """By session name."""
        heads = {}
        for path in (self.root / "v1" / "heads").glob("*.json"):
            head = json.loads(path.read_bytes())
            assert path.stem == head["session_id"]
            heads[head["name"]] = head
        return heads

    def manifest(self, manifest_id: str) -> dict[str, Any]:
        data = (self.root / "v1" / "manifests" / manifest_id).read_bytes()
        assert sha256(data) == manifest_id
        return decode_manifest(data)

    def stored(self, ref: Mapping[str, Any]) -> bytes:
        data = (self.root / "v1" / "blocks" / ref["sha256"][:2] / ref["sha256"]).read_bytes()
        assert (len(data), sha256(data)) == (ref["stored_bytes"], ref["sha256"])
        return data

    def parts(self, manifest: Mapping[str, Any], with_tail: bool = True) -> list[Part]:
        """The blocks, then the tail, each checked against its place."""
        parent, digest, parts = "", identity_digest(manifest["identity"]), []
        refs = [("block", ref) for ref in manifest["blocks"]]
        if with_tail and manifest["tail"]:
            refs.append(("tail", manifest["tail"]))
        for kind, ref in refs:
            meta, arrays = decode_object(self.stored(ref), kind)
            tokens = arrays.pop("tokens")
            assert (tokens.dtype, tokens.shape) == (np.uint32, (ref["stop"] - ref["start"],))
            parent = chain_key(parent, digest, tokens)
            assert meta["chain_key"] == parent
            assert kind == "tail" or ref["chain_key"] == parent
            assert kind == "block" or meta["session_id"] == manifest["session_id"]
            parts.append(Part(ref["start"], ref["stop"], tokens, meta["engine"], arrays))
        return parts

    def put(self, data: bytes, *place: str) -> str:
        """Write an object; without the fsyncs and the lock that a store in use needs."""
        object_id = sha256(data)
        folder = self.root / "v1" / place[0] / (object_id[:2] if place[0] == "blocks" else "")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / object_id).write_bytes(data)
        return object_id

    def put_head(self, head: Mapping[str, Any]) -> None:
        folder = self.root / "v1" / "heads"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{head['session_id']}.json").write_bytes(canonical(head) + b"\n")


# What a session's arrays stand for


@dataclass(frozen=True)
class Part:
    """The state of tokens [start, stop)."""

    start: int
    stop: int
    tokens: np.ndarray
    meta: dict[str, Any]
    arrays: Arrays


def floats(part: Part, name: str) -> np.ndarray:
    """An array of floats, float32; bfloat16 is the upper half of one."""
    array = part.arrays[name]
    if part.meta["dtypes"].get(name) == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


def basis(arrays: Arrays) -> str:
    fixed = sorted(name for name in arrays if name.rsplit(".")[-1] in ("mean", "gain", "noise", "turns"))
    message = b"".join(f"{name} {arrays[name].nbytes}\n".encode() + arrays[name].tobytes() for name in fixed)
    return sha256(message) if fixed else ""


def layers_of(parts: list[Part]) -> dict[int, tuple[int, int]]:
    """Each token-by-token layer's group and its row in it."""
    groups = parts[0].meta["groups"]
    assert all(
        (part.meta["groups"], part.meta["basis"]) == (groups, parts[0].meta["basis"]) for part in parts
    )
    return {layer: (number, row) for number, group in enumerate(groups) for row, layer in enumerate(group)}


def rows(parts: list[Part], name: str, row: int) -> np.ndarray:
    """One layer's array over all parts that have it, (n_kv_heads, tokens, width)."""
    return np.concatenate([part.arrays[name][row] for part in parts if name in part.arrays], axis=1)


def codec_bits(profile: Mapping[str, Any], number: int, count: int) -> tuple[int, int]:
    """Bits of a turbo profile's keys and values in full-attention layer `number` of `count`."""
    keys, values = (int(profile[side].removeprefix("turbo")) for side in ("keys", "values"))
    if number in profile["raised"]:
        keys = {2: 3, 3: 4, 4: 8, 8: 8}[keys]
    if min(number, count - 1 - number) < profile["boundary"]:
        keys, values = 8, 8
    return keys, values


def group_of(head_dim: int, bits: int) -> tuple[int, int]:
    """Group size, and coordinates with padding."""
    cost = {size: -(-head_dim // size) * (size * bits + 16) for size in (64, 32)}
    size = 64 if cost[64] <= cost[32] else 32
    return size, -(-head_dim // size) * size


def unpack(words: np.ndarray, bits: int) -> np.ndarray:
    """(..., words) uint32 to (..., numbers), from the bit stream."""
    stream = np.unpackbits(
        np.ascontiguousarray(words).astype("<u4").view(np.uint8), axis=-1, bitorder="little"
    )
    numbers = stream.reshape(*words.shape[:-1], -1, bits).astype(np.int64)
    return (numbers << np.arange(bits)).sum(-1)


def rotation_signs(padded: int) -> np.ndarray:
    counters = range(-(-padded // 256))
    stream = b"".join(hashlib.sha256(b"satchel rotation signs %d" % counter).digest() for counter in counters)
    return 1.0 - 2.0 * np.unpackbits(np.frombuffer(stream, np.uint8))[:padded]


def signs_digest(padded: int) -> str:
    """What `kv.codec constants` says of the codec turbo."""
    bits = np.packbits(rotation_signs(padded) < 0).tobytes()
    return sha256(f"signs {len(bits)}\n".encode() + bits)


def hadamard(size: int) -> np.ndarray:
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / math.sqrt(size)


def turbo_decode(codes: np.ndarray, grid: np.ndarray, bits: int, head_dim: int) -> np.ndarray:
    """Rows of the codec `turbo`, (..., words) and (..., groups), to vectors (..., head_dim)."""
    size, padded = group_of(head_dim, bits)
    top = 2**bits - 1
    scale = grid.astype(np.float64)
    bias = scale * ((grid.view(np.uint16) & 63) * (top / 63) - top)
    numbers = unpack(codes, bits).reshape(*grid.shape, size)
    y = (numbers * scale[..., None] + bias[..., None]).reshape(*grid.shape[:-1], padded)
    block = padded & -padded
    turned = (y.reshape(*y.shape[:-1], -1, block) @ hadamard(block)).reshape(y.shape)
    return (turned * rotation_signs(padded))[..., :head_dim]


def turned_mean(mean: np.ndarray, positions: np.ndarray, dims: int, theta: float) -> np.ndarray:
    """(n_kv_heads, 1, head_dim) to (n_kv_heads, positions, head_dim), for pairs (i, i + dims / 2)."""
    angles = positions[:, None] * theta ** (-np.arange(dims // 2) * 2 / dims)
    first, second = mean[..., : dims // 2], mean[..., dims // 2 : dims]
    turned = np.repeat(mean, len(positions), axis=1)
    turned[..., : dims // 2] = first * np.cos(angles) - second * np.sin(angles)
    turned[..., dims // 2 : dims] = first * np.sin(angles) + second * np.cos(angles)
    return turned


def body(
    parts: list[Part], profile: Mapping[str, Any], layer: int, side: str, rope: tuple[int, float]
) -> np.ndarray:
    """The vectors that a compressed layer's codes stand for, (n_kv_heads, tokens, head_dim).

    Args:
        rope: of the layer: how many coordinates turn, and theta.
    """
    places = layers_of(parts)
    number, row = places[layer]
    full = sorted(places)
    bits = codec_bits(profile, full.index(layer), len(full))[side == "v"]
    first, name = parts[0], f"g{number}.{side}"
    mean = floats(first, f"{name}.mean")[row].astype(np.float64)
    codes, grid = (rows(parts, f"{name}.{kind}", row) for kind in ("codes", "grid"))
    x = turbo_decode(codes, grid, bits, mean.shape[-1])
    if side == "k":
        x = x / floats(first, f"{name}.gain")[row]
    if first.arrays[f"{name}.turns"][row]:
        mean = turned_mean(mean, profile["sink"] + np.arange(x.shape[1]), *rope)
    return x + mean


def tree(part: Part, value: Any) -> Any:
    """A whole layer's state, with arrays in place of their names."""
    if isinstance(value, list):
        return [tree(part, item) for item in value]
    if not isinstance(value, dict):
        return value
    name = value["array"]
    if f"{name}.levels" in part.arrays:
        return (part.arrays[f"{name}.levels"].astype(np.float32) - 128) * part.arrays[f"{name}.steps"]
    return floats(part, name)
