"""Files that somebody made to do harm, or that a disk made wrong: refused in bounded time and memory."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from satchel.cache_store.block import decode_object, encode_object
from satchel.cache_store.local import LocalStore
from satchel.cache_store.packing import pack_arrays
from satchel.errors import DamagedError

ARRAYS = {
    "tokens": np.arange(256, dtype=np.uint32),
    "g0.k.codes": np.random.default_rng(1).integers(0, 1 << 32, (2, 256, 8), np.uint32),
    "g0.k.scale": np.linspace(0, 1, 512, dtype=np.float16).reshape(2, 256),
}
GOOD = encode_object("block", {"chain_key": "0" * 64, "engine": {}}, ARRAYS)
PAYLOAD = zstandard.ZstdDecompressor().decompress(GOOD)
ENVELOPE_BYTES = int.from_bytes(PAYLOAD[8:12], "little")
CODES = {"name": "codes", "dtype": "uint32", "shape": [4], "planes": False}

# A process that may take 512 MB more than it has after the imports, and says how long the refusal took.
DECODE = """
import resource, sys, time
from pathlib import Path
from satchel.cache_store.block import decode_object
from satchel.cache_store.manifest import decode_manifest
from satchel.errors import DamagedError

data = Path(sys.argv[1]).read_bytes()
if sys.platform == "linux":
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (512 << 20), -1))
started = time.process_time()  # not of the clock: other processes may be busy
try:
    decode_manifest(data) if sys.argv[2] == "manifest" else decode_object(data, "block")
except DamagedError as err:
    print(time.process_time() - started, err.one_line())
"""


def framed(envelope: object, npz: bytes, claimed: int | None = None) -> bytes:
    """What a hostile writer makes: any envelope and any npz, in a right frame."""
    text = envelope if isinstance(envelope, bytes) else json.dumps(envelope).encode()
    prefix = b"SATCHEL\x01" + struct.pack("<I", len(text) if claimed is None else claimed)
    return zstandard.compress(prefix + text + npz)


def envelope(*specs: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "block", "meta": {}, "arrays": list(specs)}


def npz(*members: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # duplicate names
        for name, content in members:
            archive.writestr(name, content)
    return buffer.getvalue()


def npy(array: np.ndarray, allow_pickle: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version=(1, 0), allow_pickle=allow_pickle)
    return buffer.getvalue()


def claiming(size: int, body: bytes) -> bytes:
    """A zstd frame whose header claims `size` bytes of content (RFC 8878, 3.1.1.1)."""
    return b"\x28\xb5\x2f\xfd" + bytes([0b1110_0000]) + size.to_bytes(8, "little") + body


def run_length_blocks(size: int, compressed_bytes: int) -> bytes:
    """RLE blocks of zeros, each 4 bytes for 128 KiB, in a frame that claims `size`."""
    block = ((128 << 10) << 3 | 0b010).to_bytes(3, "little") + b"\0"
    return claiming(size, block * (compressed_bytes // 4))


class Touch:
    """Pickles into an order to create a file."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, str]]:
        return open, ("executed", "w")


CODES_NPY = npy(np.arange(4, dtype=np.uint32))
GOOD_NPZ = npz(("codes.npy", CODES_NPY))
OBJECTS = npy(np.array([Touch()] * 4, dtype=object), allow_pickle=True)
HUGE = {"name": "codes", "dtype": "uint8", "shape": [1 << 30], "planes": False}

HOSTILE = {
    "the envelope's length is the largest": framed(envelope(CODES), GOOD_NPZ, claimed=0xFFFFFFFF),
    "the length runs into the arrays": framed(envelope(CODES), GOOD_NPZ, claimed=400),
    "a dimension of 2^60": framed(envelope(CODES | {"shape": [1 << 60]}), GOOD_NPZ),
    "dimensions that overflow 64 bits": framed(envelope(CODES | {"shape": [1 << 33, 1 << 33]}), GOOD_NPZ),
    "no elements, and dimensions that overflow 64 bits": framed(
        envelope(CODES | {"shape": [0, 1 << 33, 1 << 33]}), npz(("codes.npy", npy(np.zeros(0, np.uint32))))
    ),
    "no elements, and dimensions beyond 63 bits": framed(
        envelope(CODES | {"shape": [1 << 39, 0, 1 << 23]}), npz(("codes.npy", npy(np.zeros(0, np.uint32))))
    ),
    "a negative dimension": framed(envelope(CODES | {"shape": [-4]}), GOOD_NPZ),
    "a fraction as dimension": framed(envelope(CODES | {"shape": [4.0]}), GOOD_NPZ),
    "an object array": framed(envelope(CODES), npz(("codes.npy", OBJECTS))),
    "an object array that is declared": framed(
        envelope(CODES | {"dtype": "object"}), npz(("codes.npy", OBJECTS))
    ),
    "a member ../../x": framed(envelope(CODES), npz(("../../x.npy", CODES_NPY))),
    "a member ../../x that is declared": framed(
        envelope(CODES | {"name": "../../x"}), npz(("../../x.npy", CODES_NPY))
    ),
    "an absolute member": framed(envelope(CODES | {"name": "/tmp/x"}), npz(("/tmp/x.npy", CODES_NPY))),
    "a member twice": framed(envelope(CODES, CODES), npz(("codes.npy", CODES_NPY), ("codes.npy", CODES_NPY))),
    "a member too many": framed(envelope(CODES), npz(("codes.npy", CODES_NPY), ("x.npy", CODES_NPY))),
    "a compressed member": framed(
        envelope(HUGE), npz(("codes.npy", npy(np.zeros(1 << 16, np.uint8))), method=zipfile.ZIP_DEFLATED)
    ),
    "another dtype": framed(envelope(CODES), npz(("codes.npy", npy(np.zeros(4, np.float32))))),
    "Fortran order": framed(
        envelope(CODES | {"shape": [2, 2]}),
        npz(("codes.npy", npy(np.asfortranarray(np.arange(4, dtype=np.uint32).reshape(2, 2))))),
    ),
    "no npz": framed(envelope(CODES), b""),
    "a field too many": framed(envelope(CODES) | {"run": "x"}, GOOD_NPZ),
    "an envelope of brackets": framed(b"[" * 1_000_000, GOOD_NPZ),
    "an envelope of 60 MB": framed(b'{"kind":"block","arrays":[],"meta":{"a":[' + b"1," * (30 << 20), b""),
    "a manifest of 8 MB of numbers": zstandard.compress(b'{"identity":{"a":[' + b"1," * 4_190_000 + b"1]}}"),
    "a manifest of 8 MB of lists": zstandard.compress(b'{"identity":{"a":[' + b"[]," * 2_790_000 + b"1]}}"),
    "a manifest of 9 MB of text": zstandard.compress(b'{"name":"' + b"x" * (9 << 20) + b'"}'),
    "a frame that claims 1 TB": claiming(1 << 40, b"\x01\0\0"),
    "1 KB that claims to expand to 50 GB": run_length_blocks(50 << 30, 1024),
    "1.6 MB that do expand to 50 GB": run_length_blocks(50 << 30, 1_638_400),
    "8 frames of 128 MB of zeros": zstandard.compress(bytes(1 << 27)) * 8,
    "300 MB of zeros": zstandard.compress(bytes(300 << 20)),
    "5 MB that expand to 300 MB": zstandard.compress(
        np.random.default_rng(1).bytes(5 << 20) + bytes(295 << 20)
    ),
    "a frame without a size": zstandard.ZstdCompressor(write_content_size=False).compress(PAYLOAD),
    "a frame that lies": claiming(1 << 20, b"\x01\0\0"),
    "bytes after the frame": GOOD + b"x",
    "a second frame": GOOD + GOOD,
    "a skippable frame": b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + GOOD,
    "nothing": b"",
    "text": b"not a frame",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_object_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DamagedError, match=r"^block [0-9a-f]{12} is damaged: ") as refused:
        decode_object(HOSTILE[name], "block")
    assert len(refused.value.one_line()) < 250
    assert list(tmp_path.rglob("*")) == []  # nothing was executed, nothing was extracted


def test_the_hostile_writer_can_write_what_is_right() -> None:
    meta, arrays = decode_object(framed(envelope(CODES), GOOD_NPZ), "block")
    assert (meta, arrays["codes"].tolist()) == ({}, [0, 1, 2, 3])


@pytest.mark.parametrize("kind", ["block", "manifest"])
@pytest.mark.parametrize("name", [name for name in HOSTILE if "GB" in name or "TB" in name or "MB" in name])
def test_a_bomb_is_refused_within_2_seconds_and_512_mb(name: str, kind: str, tmp_path: Path) -> None:
    bomb = tmp_path / "bomb"
    bomb.write_bytes(HOSTILE[name])
    run = subprocess.run(
        [sys.executable, "-c", DECODE, bomb, kind], capture_output=True, text=True, check=True
    )
    seconds, message = run.stdout.split(" ", 1)
    assert "is damaged" in message
    assert float(seconds) < 2


@pytest.mark.parametrize("eighths", range(8))
def test_a_block_truncated_at_any_eighth_is_damage(eighths: int, tmp_path: Path) -> None:
    cut = GOOD[: len(GOOD) * eighths // 8]
    with pytest.raises(DamagedError):
        decode_object(cut, "block")
    store = LocalStore(tmp_path)
    block_id = store.put_block(GOOD)
    (tmp_path / "v1" / "blocks" / block_id[:2] / block_id).write_bytes(cut)
    with pytest.raises(DamagedError, match=f"^block {block_id[:12]} "):
        store.get_block(block_id, len(GOOD))


def test_a_stored_block_that_grew_is_damage_and_is_not_read(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    block_id = store.put_block(GOOD)
    with (tmp_path / "v1" / "blocks" / block_id[:2] / block_id).open("r+b") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(DamagedError, match=f"{block_id}.* has 1099511627776 bytes"):
        store.get_block(block_id, len(GOOD))


def test_one_flipped_bit_of_the_stored_bytes_is_damage(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    block_id = store.put_block(GOOD)
    path = tmp_path / "v1" / "blocks" / block_id[:2] / block_id
    for position in (0, 5, 20, len(GOOD) // 2, len(GOOD) - 1):  # frame header, block header, data, end
        path.write_bytes(flipped(GOOD, position * 8))
        with pytest.raises(DamagedError, match=f"^block {block_id[:12]} is damaged: its SHA-256 is another$"):
            store.get_block(block_id, len(GOOD))


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def regions() -> dict[str, int]:
    """One byte of each part of the payload that decides how the rest is read."""
    npz_start = 12 + ENVELOPE_BYTES
    npy_start = PAYLOAD.index(b"\x93NUMPY")
    return {
        "magic": 0,
        "version": 7,
        "envelope length": 9,
        "envelope": 14,
        "zip signature": npz_start,
        "zip flags": npz_start + 6,
        "zip method": npz_start + 8,
        "zip stored size": npz_start + 18,
        "zip size": npz_start + 22,
        "zip name length": npz_start + 26,
        "zip extra length": npz_start + 28,
        "zip name": npz_start + 30,
        "npy magic": npy_start,
        "npy header length": npy_start + 8,
        "npy descr": npy_start + 21,
        "central directory": PAYLOAD.index(b"PK\x01\x02"),
    }


@pytest.mark.parametrize("region", regions())
def test_one_flipped_bit_under_a_right_hash_is_damage(region: str) -> None:
    for bit in range(8):
        data = zstandard.compress(flipped(PAYLOAD, regions()[region] * 8 + bit))
        with pytest.raises(DamagedError, match=r"^block [0-9a-f]{12} is damaged: "):
            decode_object(data, "block")


@given(st.lists(st.tuples(st.integers(0, len(PAYLOAD) - 1), st.integers(0, 255)), min_size=1, max_size=6))
def test_any_change_under_a_right_hash_is_damage_or_other_numbers(changes: list[tuple[int, int]]) -> None:
    payload = bytearray(PAYLOAD)
    for position, value in changes:
        payload[position] = value
    try:
        _, arrays = decode_object(zstandard.compress(bytes(payload)), "block")
    except DamagedError:
        return
    assert all(array.dtype in (np.uint32, np.float16) for array in arrays.values())


@given(st.binary(max_size=300))
def test_any_bytes_are_damage(data: bytes) -> None:
    for candidate in (data, zstandard.compress(data), framed(data, GOOD_NPZ), framed(envelope(CODES), data)):
        with pytest.raises(DamagedError):
            decode_object(candidate, "block")


def test_the_good_object_is_good() -> None:
    _, arrays = decode_object(GOOD, "block")
    assert pack_arrays(arrays) == pack_arrays(ARRAYS)
