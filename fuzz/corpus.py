"""Make what fuzzing starts from and `make test` replays: `tests/hostile/corpus/<target>/`.

Small real objects, the files of `tests/hostile/test_hostile_store.py` and the golden ones. Files that are
there under other names, such as those that fuzzing found, stay.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import store_target

from satchel.cache_store import frame
from satchel.cache_store.block import encode_object
from satchel.cache_store.manifest import (
    BlockRef,
    Head,
    Manifest,
    Message,
    TailRef,
    encode_head,
    encode_manifest,
)
from satchel.cache_store.packing import pack_arrays
from satchel.config.profiles import get_profile
from satchel.engine.snapshot_io import Exporter
from satchel.errors import DamagedError

TESTS = Path(__file__).resolve().parents[1] / "tests"
CORPUS = TESTS / "hostile" / "corpus"
MAX_BYTES = {"stored": 16384, "payload": 8192, "envelope": 8192}

sys.path += [str(TESTS), str(TESTS / "hostile")]
import restore_target  # noqa: E402
import test_hostile_store as hostile  # noqa: E402

ZIP, NPY = b"PK\x03\x04", b"\x93NUMPY"


def main() -> None:
    for target, inputs in {
        "stored": stored(),
        "payload": ((name, opened) for name, data in stored() if (opened := _opened(data)) is not None),
        "envelope": ((name, split) for name, data in stored() if (split := _split(data)) is not None),
        "arrays": arrays(),
        "manifest": ((name, _opened(encode_manifest(made))) for name, made in manifests()),
        "head": ((name, encode_head(Head.of(made, encode_manifest(made)))) for name, made in manifests()),
        "name": names(),
        "store": ((name, json.dumps(said).encode()) for name, said in stores()),
        "restore": ((name, json.dumps(said).encode()) for name, said in restores()),
    }.items():
        (CORPUS / target).mkdir(parents=True, exist_ok=True)
        for name, data in inputs:
            if data is not None and len(data) <= MAX_BYTES.get(target, 1 << 20):
                (CORPUS / target / name.replace(" ", "-").replace("/", "_")[:60]).write_bytes(data)


def objects() -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Arrays of each dtype and layout, and of odd shapes."""
    random = np.random.default_rng(5)
    threes = np.packbits(
        np.eye(8, dtype=np.uint8)[random.choice(8, 96, p=[0.3, 0.2, 0.2, 0.1, 0.1, 0.05, 0.03, 0.02])]
    )
    yield (
        "codes",
        {
            "tokens": np.arange(8, dtype=np.uint32),
            "k.codes": random.integers(0, 1 << 32, (2, 8, 2), np.uint32),
        },
    )
    yield "sextets", {"k.codes": np.resize(threes, 96).view(np.uint32).reshape(2, 12)}
    yield (
        "planes",
        {"x": np.ones((2, 3), np.float16), "y": np.ones(5, np.float32), "z": np.arange(4, dtype=np.uint16)},
    )
    yield "whole", {"a": np.arange(5, dtype=np.uint8), "b": np.arange(3, dtype=np.int32)}
    yield (
        "odd shapes",
        {
            "a": np.zeros((2, 0, 3), np.float16),
            "b": np.array(7, np.uint32),
            "c": np.zeros((1,) * 8, np.uint8),
        },
    )
    yield "none", {}


def stored() -> Iterator[tuple[str, bytes]]:
    for name, held in objects():
        yield (
            f"block {name}",
            encode_object("block", {"chain_key": "0" * 64, "engine": {"layers": [0]}}, held),
        )
    yield "tail", encode_object("tail", {"session_id": "5e" * 16}, {"a": np.arange(3, dtype=np.float32)})
    for name, made in manifests():
        yield f"manifest {name}", encode_manifest(made)
    for path in sorted((TESTS / "golden").glob("*.zst")):
        yield path.stem, path.read_bytes()
    for name, data in hostile.HOSTILE.items():
        yield f"hostile {name}", data


def arrays() -> Iterator[tuple[str, bytes]]:
    for name, held in objects():
        npz, specs = pack_arrays(held)
        yield name, json.dumps([spec.model_dump(mode="json") for spec in specs]).encode() + b"\0" + npz


def manifests() -> Iterator[tuple[str, Manifest]]:
    refs = [
        {"sha256": f"{at:064x}", "stored_bytes": 1000 + at, "start": at, "stop": at + 256}
        for at in (0, 256, 512)
    ]
    blocks = tuple(BlockRef(chain_key="c" * 64, checkpoint=ref["start"] > 0, **ref) for ref in refs[:2])
    words = (
        Message(role="system", content="Be short."), Message(role="user", content="Grüße, 世界 \u202e 😀\n?"),
        Message(role="assistant", content=""),
    )  # fmt: skip
    common: dict[str, Any] = {
        "session_id": "5e" * 16, "name": "notes 1", "generation": 3, "parent": "a" * 64,
        "created_at": datetime(2026, 11, 1, 12, tzinfo=UTC), "model_name": "embedded",
        "profile_name": "turbo4", "messages": words,
        "identity": {"weights": "d" * 64, "rope": {"theta": 1e5, "scaling": None}, "bits": [4], "on": True},
    }  # fmt: skip
    tail = TailRef(**refs[2])
    yield "whole", Manifest(blocks=blocks, tail=tail, token_count=768, abandoned=("b" * 64,), **common)
    yield "words alone", Manifest(blocks=(), tail=None, token_count=0, **(common | {"parent": None}))
    yield "archived", Manifest(blocks=blocks, tail=None, token_count=512, archived_from="exact", **common)


def names() -> Iterator[tuple[str, bytes]]:
    for name in (
        "notes",
        "a-b_c.d 2",
        "Grüße",
        "世界",
        "👩\u200d💻",
        "❤\ufe0f",
        "e\u0301",
        "ſ",
        "İ",
        "ﬀ",
        "../x",
        "",
        "x" * 65,
    ):
        yield name.encode().hex()[:20] or "empty", name.encode()
    yield "not utf-8", b"\xff\xfe"


def stores() -> Iterator[tuple[str, dict[str, Any]]]:
    places = ("v1/blocks/@folder0/@object0", "v1/blocks/@folder0", "v1/blocks", "v1/manifests/@manifest",
              "v1/manifests", "v1/index.db", f"v1/heads/{store_target.SESSION}.json", "v1/heads",
              "v1/heads/0.json", "v1")  # fmt: skip
    kinds = (("bytes", "{}"), ("folder", ""), ("pipe", ""), ("sparse", "\0\0\0\0\x7f"), ("cut", "\x20"),
             ("flip", "\x20"), ("link", "nowhere"), ("link", "."))  # fmt: skip
    yield "right", store_target.seed()
    yield "right written", {"write": True}
    for number, (place, (kind, content)) in enumerate(itertools.product(places, kinds)):
        yield f"{number:02} {kind}", {"files": [[place, kind, content]], "write": number % 2 == 1}
    odd = [
        "v1/heads/\udcff.json",
        "v1/heads/\n.json",
        "v1/heads/.json",
        "v1/blocks/x",
        "v1/manifests/.tmp-1",
        "v1/lock",
        "x",
    ]
    yield "odd names", {"files": [[path, "bytes", "{}"] for path in odd], "write": True}
    for key in ("envelopes", "manifest", "head"):
        yield f"no {key}", {key: {}}


def restores() -> Iterator[tuple[str, dict[str, Any]]]:
    mx = restore_target.mx
    kinds = (
        ("llama", "turbo4"),
        ("llama", "turbo3"),
        ("llama", "exact"),
        ("gemma3", "k8v4"),
        ("qwen35", "turbo4"),
    )
    for model, profile in kinds:
        factory = restore_target.factory(model)
        for name, tokens in (("tail alone", 5), ("two blocks and a tail", 800), ("two blocks", 800)):
            state = factory.new(get_profile(profile))
            checkpoints = []
            for at in range(0, tokens, 256):
                factory.model(mx.arange(at, min(at + 256, tokens))[None] % 97, cache=state.caches)
                mx.eval([cache.state for cache in state.caches])
                checkpoints.append(
                    state.checkpoint(min(at + 256, tokens)) if state.needs_checkpoints else None
                )
            exporter = Exporter(state)
            blocks = [
                exporter.block(at, at + 256, checkpoints[at // 256]) for at in (0, 256) if at + 256 < tokens
            ]
            tail = exporter.tail(
                blocks[-1].stop if blocks else 0, tokens, checkpoints[-2] if blocks else None
            )
            parts = blocks if name == "two blocks" else [*blocks, tail]
            yield f"{model} {profile} {name}", restore_target.describe(model, profile, parts)


def _opened(data: bytes) -> bytes | None:
    try:
        return frame.decompress(data, 1 << 20)
    except DamagedError:
        return None


def _split(data: bytes) -> bytes | None:
    """The envelope, a zero byte and the npz of an object."""
    payload = _opened(data)
    if payload is None or not payload.startswith(b"SATCHEL"):
        return None
    stop = 12 + int.from_bytes(payload[8:12], "little")
    envelope = payload[12:stop].rstrip(b" ")
    return None if b"\0" in envelope else envelope + b"\0" + payload[stop:]


if __name__ == "__main__":
    main()
