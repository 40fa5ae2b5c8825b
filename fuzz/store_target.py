"""A store's directory with anything in it, opened and then written to.

The input is JSON that says what is there. A hostile writer can also compute hashes, so objects and manifests
are put under their right names, and strings that start with `@` stand for what they then are: `@block0`,
`@bytes0`, `@chain0` (and 1; `tail` likewise), `@manifest`, and `@outside`, a directory beside the store.

    {"envelopes": {"block0": {...}, "block1": {...}, "tail": {...}}, "manifest": {...}, "head": {...},
     "files": [[path, kind, content]], "wanted": "notes", "new_name": "others", "write": false}

What it leaves out is as `seed` has it: a right store with one session.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from oracle import FaultFound, Watch

from satchel.cache_store import maintenance
from satchel.cache_store.frame import object_id
from satchel.cache_store.loading import load_snapshot
from satchel.cache_store.local import LocalStore
from satchel.cache_store.packing import ArraySpec, pack_arrays
from satchel.cache_store.sessions import open_session
from satchel.cache_store.snapshot import ROOT, chain_key, identity_digest
from satchel.cache_store.stats import stats
from satchel.cache_store.verify import verify

TOKENS = 8  # in each object
OBJECTS = ("block0", "block1", "tail")
SESSION = "5e" * 16
MAX_FILES = 8
BYSTANDER = b"not the store's"
SCRATCH = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - in memory: the store syncs often


def store(data: bytes, watch: Watch) -> None:
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(said, dict):
        return
    said = seed() | said
    work = Path(tempfile.mkdtemp(prefix="satchel-fuzz-", dir=SCRATCH))
    try:
        root, outside = work / "root", work / "outside"
        (outside / "folder").mkdir(parents=True)
        for bystander in (outside / "file", outside / "folder" / "file"):
            bystander.write_bytes(BYSTANDER)
        _lay_out(said, root, outside)
        before = _tree(outside)
        _use(LocalStore(root, lock_timeout_s=0.05), said, watch, root)
        if _tree(outside) != before:
            raise FaultFound("something beside the store has changed")
    finally:
        shutil.rmtree(work)


def _use(store: LocalStore, said: dict[str, Any], watch: Watch, root: Path) -> None:
    wanted, new_name = (str(said.get(key)) for key in ("wanted", "new_name"))
    with watch.guard(root=root):
        store.heads()
    for name in (None, wanted):
        with watch.guard(root=root):
            store.find(name)
        with watch.guard(root=root):
            load_snapshot(store, open_session(store, name).manifest)
    with watch.guard(root=root):
        store.earlier_manifest(store.find(None))
    with watch.guard(root=root):
        stats(store)
    with watch.guard(root=root):
        verify(store, read_data=True)
    if said.get("write") is not True:
        return
    with watch.guard(root=root):
        store.rename(store.session_id(wanted), new_name)
    with watch.guard(root=root):
        store.put_block(b"a block")
    with watch.guard(root=root):
        maintenance.collect(store, grace_s=0)
    with watch.guard(root=root):
        maintenance.prune(store, 0)
    with watch.guard(root=root):
        maintenance.remove(store, store.session_id(None))


def _lay_out(said: dict[str, Any], root: Path, outside: Path) -> None:
    """Make the directory. What cannot be made is left out."""
    known: dict[str, Any] = {"@outside": str(outside)}
    manifest = said.get("manifest")
    key = ROOT
    with contextlib.suppress(ValueError, AttributeError, TypeError):
        digest = identity_digest(manifest.get("identity"))
        for number, name in enumerate(OBJECTS):
            key = known[f"@chain{name.removeprefix('block')}"] = chain_key(
                key, digest, _arrays(number)["tokens"]
            )
    envelopes = said.get("envelopes")
    for number, name in enumerate(OBJECTS):
        described = envelopes.get(name) if isinstance(envelopes, dict) else None
        text = _text(described, known)
        payload = b"SATCHEL\x01" + len(text).to_bytes(4, "little") + text + _packed(number)[0]
        data = zstandard.compress(payload)
        number_or_tail = name.removeprefix("block")
        known[f"@object{number_or_tail}"], known[f"@bytes{number_or_tail}"] = object_id(data), len(data)
        _make(root, f"v1/blocks/{object_id(data)[:2]}/{object_id(data)}", "bytes", data)
    data = zstandard.compress(_text(manifest, known))
    known["@manifest"] = object_id(data)
    _make(root, f"v1/manifests/{object_id(data)}", "bytes", data)
    _make(root, f"v1/heads/{SESSION}.json", "bytes", _text(said.get("head"), known))
    files = said.get("files")
    for entry in files[:MAX_FILES] if isinstance(files, list) else ():
        if isinstance(entry, list) and len(entry) == 3 and all(isinstance(part, str) for part in entry):
            path, kind, content = (_filled(part, known) for part in entry)
            _make(root, path, kind, content.encode("utf-8", "surrogatepass"))


def _make(root: Path, path: str, kind: str, content: bytes) -> None:
    """Put a file of some kind at `path` below `root`, in place of what is there."""
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    with contextlib.suppress(OSError, ValueError):
        target = root.joinpath(*parts)
        if not parts or not Path(os.path.realpath(target.parent)).is_relative_to(os.path.realpath(root)):
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        if kind in ("cut", "flip") and target.is_file() and not target.is_symlink():
            held = target.read_bytes()
            at = int.from_bytes(content[:4], "little") % max(1, len(held))
            target.write_bytes(
                held[:at] + (bytes([held[at] ^ 1]) + held[at + 1 :] if kind == "flip" else b"")
            )
            return
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
        match kind:
            case "folder":
                target.mkdir()
            case "link":
                aim = os.path.realpath(target.parent / os.fsdecode(content))
                if Path(aim).is_relative_to(os.path.realpath(root.parent)):  # else a fault would do harm
                    target.symlink_to(os.fsdecode(content))
            case "pipe":
                os.mkfifo(target)
            case "sparse":
                target.touch()
                os.truncate(target, int.from_bytes(content[:5], "little"))
            case "bytes":
                target.write_bytes(content)


@cache
def _arrays(number: int) -> dict[str, np.ndarray]:
    codes = np.random.default_rng(number).integers(0, 1 << 32, (2, TOKENS, 4), np.uint32)
    tokens = np.arange(TOKENS * number, TOKENS * (number + 1), dtype=np.uint32)
    return {"tokens": tokens, "g0.k.codes": codes, "g0.k.scale": np.ones((2, TOKENS), np.float16)}


@cache
def _packed(number: int) -> tuple[bytes, list[ArraySpec]]:
    return pack_arrays(_arrays(number))


def seed() -> dict[str, Any]:
    """The input that stands for a right store with one session."""

    def described(name: str, number: int) -> dict[str, Any]:
        which = name.removeprefix("block")
        specs = [spec.model_dump(mode="json") for spec in _packed(number)[1]]
        meta = {"chain_key": f"@chain{which}", "engine": {"layers": [0, 1]}}
        return {"kind": "tail" if name == "tail" else "block", "meta": meta, "arrays": specs}

    refs = [
        {"sha256": f"@object{which}", "stored_bytes": f"@bytes{which}", "start": at, "stop": at + TOKENS}
        for which, at in (("0", 0), ("1", TOKENS), ("tail", 2 * TOKENS))
    ]
    blocks = [{**ref, "chain_key": f"@chain{number}"} for number, ref in enumerate(refs[:2])]
    common = {
        "session_id": SESSION, "name": "notes", "generation": 2, "model_name": "embedded",
        "profile_name": "turbo4", "token_count": 3 * TOKENS,
    }  # fmt: skip
    messages = [{"role": "user", "content": "How?"}, {"role": "assistant", "content": "So."}]
    return {
        "envelopes": {name: described(name, number) for number, name in enumerate(OBJECTS)},
        "manifest": common | {
            "format_version": 1, "parent": None, "created_at": "2026-11-01T12:00:00Z", "messages": messages,
            "identity": {"weights": "d" * 64, "bits": [4, 4]}, "blocks": blocks, "tail": refs[2],
        },
        "head": common | {
            "manifest": "@manifest", "updated_at": "2026-11-01T12:00:00Z", "turns": 1, "stored_bytes": 2000,
            "title": "How?",
        },
        "files": [], "wanted": "notes", "new_name": "others", "write": False,
    }  # fmt: skip


def _text(value: Any, known: dict[str, Any]) -> bytes:
    """`value` as JSON with the placeholders filled in."""
    filled = _fill(value, known)
    return json.dumps(filled, separators=(",", ":")).encode()


def _fill(value: Any, known: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return {key: _fill(item, known) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill(item, known) for item in value]
    return known.get(value, value) if isinstance(value, str) else value


def _filled(text: str, known: dict[str, Any]) -> str:
    """A path or a content with the placeholders in it filled in; `@folder0` is where `@object0` lies."""
    for key, value in known.items():
        text = text.replace(key, str(value))
        if key.startswith("@object"):
            text = text.replace(key.replace("object", "folder"), str(value)[:2])
    return text


def _tree(folder: Path) -> dict[str, bytes | None]:
    """What is below a directory: files with their content."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }
