"""Small stored sessions, and bundles and seals made by hand, right and wrong ones."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np

from satchel.cache_store.local import LocalStore
from satchel.cache_store.manifest import Manifest, Message, encode_manifest
from satchel.cache_store.sessions import save_snapshot
from satchel.cache_store.snapshot import Block, Snapshot
from satchel.exchange.bundle import write_bundle
from satchel.exchange.sealed import SealKey, Unsealer, sealing

WORDS = (Message(role="user", content="Who wrote it?"), Message(role="assistant", content="Ada did.\n"))
KEY = SealKey(bytes(range(32)))
KEY_TEXT = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"

Member = tuple[tarfile.TarInfo, bytes]


def stored(store: LocalStore, name: str = "bruno", first_token: int = 0, **labels: str) -> Manifest:
    """A session with two blocks and a tail, of arrays that mean nothing."""

    def block(start: int, stop: int, checkpoint: bool = False) -> Block:
        ids = np.arange(first_token + start, first_token + stop, dtype=np.uint32)
        arrays = {
            "g0.k.codes": np.arange(2 * (stop - start), dtype=np.uint32).reshape(2, -1) * 2654435761,
            "g0.v.window": np.linspace(0, first_token + 1, 6, dtype=np.float16).reshape(2, 3),
        }
        return Block(start, stop, ids, arrays, {"groups": [[0, 1]]}, checkpoint)

    snapshot = Snapshot(
        {"model": {"weights": "w"}}, (block(0, 256), block(256, 512, checkpoint=True)), block(512, 520)
    )
    named = {"model_name": "embedded", "profile_name": "turbo4", "archived_from": "k8v4"} | labels
    return save_snapshot(store, snapshot, WORDS, name=name, **named).manifest


def bundle_of(store: LocalStore, manifest: Manifest) -> bytes:
    sink = io.BytesIO()
    write_bundle(sink, store, manifest)
    return sink.getvalue()


def member(name: str, data: bytes = b"", type_: bytes = tarfile.REGTYPE, **fields: object) -> Member:
    info = tarfile.TarInfo(name)
    info.size, info.type = len(data), type_
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def members(store: LocalStore, manifest: Manifest) -> list[Member]:
    """What a right bundle of the session has in it."""
    refs = [*manifest.blocks, *([manifest.tail] if manifest.tail else [])]
    return [
        member("manifest", encode_manifest(manifest)),
        *(member(f"blocks/{ref.sha256}", store.get_block(ref.sha256, ref.stored_bytes)) for ref in refs),
    ]


def tar(parts: list[Member], format_: int = tarfile.USTAR_FORMAT, end: bytes = bytes(1024)) -> bytes:
    """A tar whose members say of themselves whatever they say, with `data` after each."""
    pieces = []
    for info, data in parts:
        pieces += [info.tobuf(format_), data, bytes(-len(data) % 512)]
    return b"".join(pieces) + end


def sealed(data: bytes, key: SealKey = KEY) -> bytes:
    file = io.BytesIO()
    with sealing(file, key) as sealer:
        sealer.write(data)
    return file.getvalue()


def unsealed(data: bytes, key: SealKey = KEY) -> bytes:
    return Unsealer(io.BytesIO(data), key).read(1 << 40)


def sealed_file(path: Path, data: bytes) -> Path:
    path.write_bytes(sealed(data))
    return path
