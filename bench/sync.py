"""Sync through a bucket on loopback: bytes beside mac-code's way, seconds on a second machine, how many
transfers at once, and what encryption and looking cost.

Bytes are all that clients send to or get from the bucket's server, heads of requests included.
"""

from __future__ import annotations

from common import (
    arguments,
    manager_in_new_store,
    pydoc_text,
    show,
)  # first: it loads OpenBLAS ahead of MLX

# isort: split

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import numpy as np
import stores
from buckets import BUCKET, CREDENTIALS, KEYS, bare_remote, configured, machine, served_bucket
from mlx_lm.models.cache import KVCache, save_prompt_cache

from satchel.cache_store.local import LocalStore
from satchel.cache_store.snapshot import Block
from satchel.laboratory.filling import keys_and_values
from satchel.remotes import s3
from satchel.remotes.encrypted import seal, stored_bytes, unseal
from satchel.session import Session, SessionManager
from satchel.sync import parallel
from satchel.sync.ledger import Ledger
from satchel.sync.syncer import Direction

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from s3_proxy import S3Proxy
from s3_servers import S3Server

PARTS = ("wire", "resume", "parallel", "overhead")
NAME = "talk"
QUESTION = "Go on."
ROOM = 29  # tokens that the template adds to the context
TURN_ROOM = 13  # and to the turn, with its answer of 8 tokens
GZIP_LEVEL = 6  # mac-code's
SENT = 2  # the place of the bytes sent in a row

BANDWIDTH_BPS, LATENCY_S = 50e6, 0.04
AT_ONCE = (1, 2, 4, 8, 16)
PARTS_OF = (5, 8, 16)  # MiB
BLOCK_BYTES, TAIL_BYTES = 1_480_000, 4_400_000  # of the embedded model in turbo4
OBJECT_BYTES = 50_000_000  # what is shared is one object
ROUNDS = 3

Row = list[Any]
Table = tuple[str, list[str], list[Row]]  # title, columns, rows


def shaped(endpoint: str) -> S3Proxy:
    return S3Proxy(endpoint, bandwidth_bps=BANDWIDTH_BPS, latency_s=LATENCY_S)


# -- bytes -----------------------------------------------------------------------------------------------


def read_session(manager: SessionManager, tokens: int) -> Session:
    """A session that has read `tokens` of text, saved."""
    tokenizer = manager.model.tokenizer
    session = manager.new()
    talk(session, tokenizer.decode(tokenizer.encode(pydoc_text())[: tokens - ROOM]), 1)
    session.save(NAME)
    return session


def talk(session: Session, text: str, answer_tokens: int) -> None:
    for _ in session.reply(text, max_tokens=answer_tokens, cancel=threading.Event()):
        pass


def pushes(
    manager: SessionManager, home: Path, session: Session, turn: int, endpoint: str, theirs: Row
) -> list[Row]:
    """The session's first push, and that after one more turn, beside mac-code's."""
    profile, tokens = manager.profile.asked, len(session.token_ids)
    first = push(home, endpoint, profile)
    text_ids = manager.model.tokenizer.encode(pydoc_text())
    talk(session, manager.model.tokenizer.decode(text_ids[-(turn - TURN_ROOM) :]), 8)
    session.save()
    more = push(home, endpoint, profile)
    return [
        [f"{profile}, first push", tokens, *first, f"{theirs[SENT] / first[SENT]:.2f}× fewer"],
        [
            f"{profile}, next push",
            f"+{len(session.token_ids) - tokens}",
            "",
            "",
            *more[SENT:],
            f"1/{first[SENT] / more[SENT]:.1f}",
        ],
    ]


def push(home: Path, endpoint: str, prefix: str) -> Row:
    """MB of the session's state as stored, the same encrypted and padded, and all that was sent; requests."""
    with S3Proxy(endpoint) as proxy:
        syncer = machine(home, proxy.url, prefix)
        report = syncer.sync(Direction.PUSH)
        assert report.pushed == [NAME], report
        manifest = syncer.store.get_manifest(syncer.store.find(NAME).manifest)
        sizes = [ref.stored_bytes for ref in manifest.refs]
        packed = sum(map(stored_bytes, sizes))
        return [*megabytes(sum(sizes), packed, proxy.sent_bytes), len(proxy.requests)]


def mac_code_push(manager: SessionManager, token_ids: list[int], endpoint: str) -> Row:
    """As `push`, of what mac-code (mlx/mlx_engine.py, mlx/r2_store.py) sends of the same context.

    That is mlx-lm's file of the model's own cache, here in float16 and without the buffer's unused end,
    through gzip, uploaded by boto3 in parts of 8 MiB, with a small file of facts beside.
    """
    with tempfile.TemporaryDirectory() as folder, S3Proxy(endpoint) as proxy:
        path, packed = Path(folder) / f"{NAME}.safetensors", Path(folder) / f"{NAME}.safetensors.gz"
        facts = {"name": NAME, "model": manager.model.name, "saved": time.strftime("%Y-%m-%dT%H:%M:%S")}
        save_prompt_cache(str(path), exact_caches(manager, token_ids), facts)
        packed.write_bytes(gzip.compress(path.read_bytes(), GZIP_LEVEL))
        client = S3Server(proxy.url, CREDENTIALS).client()
        client.upload_file(str(packed), BUCKET, f"kv-cache/{packed.name}")
        client.put_object(
            Bucket=BUCKET, Key=f"kv-cache/{NAME}.meta.json", Body=json.dumps(facts, indent=2).encode()
        )
        sizes = megabytes(path.stat().st_size, packed.stat().st_size, proxy.sent_bytes)
        return [*sizes, len(proxy.requests)]


def exact_caches(manager: SessionManager, token_ids: list[int]) -> list[KVCache]:
    source = keys_and_values(manager.model, token_ids)
    caches = []
    for keys, values in source.layers.values():
        cache = KVCache()
        cache.state = (keys.astype(mx.float16), values.astype(mx.float16), len(token_ids))
        caches.append(cache)
    mx.eval([cache.state for cache in caches])
    return caches


def megabytes(*sizes: int) -> list[float]:
    return [size / 1e6 for size in sizes]


# -- a second machine ------------------------------------------------------------------------------------


def second_machine(home: Path, endpoint: str) -> list[Row]:
    """Seconds from the start of `satchel resume` to the first new token, in processes of their own."""
    machine(home, endpoint, "resume").sync(Direction.PUSH)
    rows: list[Row] = []
    with shaped(endpoint) as line, new_home() as fetched, new_home() as empty, new_home() as words:
        fetch_s = timed(machine(fetched, line.url, "resume").fetch, NAME)
        fetched_bytes = line.received_bytes
        rows.append(["fetching alone, 50 Mbit/s", fetched_bytes / 1e6, fetch_s, ""])
        resumed = resume(configured(empty, line.url, "resume"))
        rows.append(["empty machine, 50 Mbit/s", (line.received_bytes - fetched_bytes) / 1e6, *resumed])
        rows.append(["where it was said", 0.0, *resume(at_home(home), "--offline")])
        machine(words, endpoint, "resume").sync(Direction.PULL, fetch_state=False)
        rows.append(["where only its words are", 0.0, *resume(at_home(words), "--offline")])
    again_s = rows[-1][2]
    return [[*row, f"1/{again_s / row[2]:.1f}"] for row in rows]


def at_home(home: Path) -> dict[str, str]:
    return os.environ | {"SATCHEL_HOME": str(home)}


def resume(environment: dict[str, str], *options: str) -> tuple[float, str]:
    """Seconds, and what it said."""
    command = [sys.executable, "-m", "satchel", "resume", NAME, "--no-save", "--max-tokens", "1", *options]
    began = time.perf_counter()
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write(f"{QUESTION}\n".encode())
        process.stdin.close()
        token = process.stdout.read(1)
        seconds = time.perf_counter() - began
        said = process.stderr.read().decode()
    assert token, said
    return seconds, said.strip().rpartition(": ")[2]


@contextmanager
def new_home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


# -- transfers at once -----------------------------------------------------------------------------------


def at_once(endpoint: str, blocks: int, sessions: int) -> list[Row]:
    """Seconds of sending and fetching one large session, and of reading the entries of many small ones."""
    rows = []
    with new_home() as home, new_home() as many, shaped(endpoint) as line:
        heavy_session(home, blocks)
        stores.fill(many, sessions, 0)
        machine(many, endpoint, "entries").sync(Direction.PUSH)
        for number in AT_ONCE:
            with patch.object(parallel, "AT_ONCE", number):
                there = [transferred(home, line.url, f"line{number}")]
                near = [transferred(home, endpoint, f"near{number}-{turn}") for turn in range(ROUNDS)]
                looking_s = looked_s(line.url, "entries")
            rows.append([number, *medians(there), looking_s, *medians(near)])
    return rows


def heavy_session(home: Path, blocks: int) -> None:
    """A session of `blocks` blocks and a tail, as large as a model's, that nothing compresses."""
    content = stores.snapshot(0, 0, blocks)
    heavy = tuple(weighed(block.whole(), BLOCK_BYTES) for block in content.blocks)
    stores.save(LocalStore(home), replace(content, blocks=heavy, tail=weighed(content.tail, TAIL_BYTES)), 0)


def weighed(block: Block, size: int) -> Block:
    codes = np.random.default_rng(block.start).integers(0, 1 << 32, size // 4, dtype=np.uint32)
    return replace(block, arrays={"g0.k.codes": codes})


def transferred(home: Path, endpoint: str, prefix: str) -> tuple[float, float]:
    """Seconds of sending all of `home`, and of fetching it on an empty machine."""
    with new_home() as receiver:
        sent_s = timed(machine(home, endpoint, prefix).sync, Direction.PUSH)
        return sent_s, timed(machine(receiver, endpoint, prefix).sync, Direction.PULL)


def looked_s(endpoint: str, prefix: str) -> float:
    """Seconds of reading all entries, by a machine that has seen none."""
    with new_home() as home:
        return timed(Ledger, machine(home, endpoint, prefix).remote, KEYS, {}, False)


def medians(pairs: list[tuple[float, float]]) -> list[float]:
    return [statistics.median(each) for each in zip(*pairs, strict=True)]


def timed(call: Callable[..., object], *arguments: object) -> float:
    start = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - start


def in_parts(endpoint: str) -> list[Row]:
    """Seconds of putting one large file, whole and in parts."""
    rows = []
    with new_home() as home, shaped(endpoint) as line:
        file = home / "shared"
        file.write_bytes(np.random.default_rng(0).bytes(OBJECT_BYTES))

        def put(name: str) -> Row:
            near = [timed(bare_remote(endpoint, "parts").put_file, "shared", file) for _ in range(ROUNDS)]
            return [
                name,
                timed(bare_remote(line.url, "parts").put_file, "shared", file),
                statistics.median(near),
            ]

        with patch.object(s3, "MULTIPART_BYTES", 2 * OBJECT_BYTES):
            rows.append(put("whole"))
        for size in PARTS_OF:
            with patch.object(s3, "PART_BYTES", size << 20):
                rows.append(put(f"{size} MiB"))
    return rows


# -- encryption, and nothing to do -----------------------------------------------------------------------


def encryption() -> list[Row]:
    """MB/s of one core, and bytes added, for objects of some sizes."""
    rows = []
    for size in (1_000, 10_000, 100_000, BLOCK_BYTES, TAIL_BYTES):
        content = np.random.default_rng(0).bytes(size)
        sealed = seal(KEYS.objects, "v1/blocks/0", content)
        seal_s, unseal_s = (
            statistics.median(timed(call, KEYS.objects, "v1/blocks/0", data) for _ in range(20))
            for call, data in ((seal, content), (unseal, sealed))
        )
        rows.append([size, 100 * (len(sealed) / size - 1), size / 1e6 / seal_s, size / 1e6 / unseal_s])
    return rows


def many_sessions(endpoint: str, sessions: int) -> list[Row]:
    """Their first push, and syncs that find nothing to do."""
    with new_home() as home:
        stores.fill(home, sessions, 1)
        push_s = timed(machine(home, endpoint, "idle").sync, Direction.PUSH)
        rows: list[Row] = [["first push, unshaped", push_s, "", ""]]
        for name, proxy in (("unshaped", S3Proxy(endpoint)), ("50 Mbit/s, 40 ms", shaped(endpoint))):
            with proxy as line:
                idle_s = timed(machine(home, line.url, "idle").sync)
                rows.append([f"nothing to do, {name}", idle_s, len(line.requests), line.received_bytes / 1e3])
    return rows


# --------------------------------------------------------------------------------------------------------


def with_model(options: argparse.Namespace, endpoint: str) -> Iterator[Table]:
    rows: list[Row] = []
    theirs: Row = []
    read = len(options.profiles) if "wire" in options.only else int("resume" in options.only)
    for profile in options.profiles[:read]:
        with manager_in_new_store(options.model, profile) as (manager, home):
            session = read_session(manager, options.tokens)
            tokens = len(session.token_ids)
            if "resume" in options.only and profile == options.profiles[0]:
                columns = ["what", "MB received", "seconds", "it said", "of reading again"]
                title = f"To the first new token: {tokens} tokens, {profile}"
                yield title, columns, second_machine(home, endpoint)
            if "wire" in options.only:
                if not theirs:
                    theirs = mac_code_push(manager, session.token_ids, endpoint)
                    rows.append(["mac-code: fp16, gzip", tokens, *theirs, ""])
                rows += pushes(manager, home, session, options.turn, endpoint, theirs)
    if rows:
        columns = ["what", "tokens", "stored MB", "packed MB", "sent MB", "requests", "compared"]
        yield "Bytes to the bucket", columns, rows


def without_model(options: argparse.Namespace, endpoint: str) -> Iterator[Table]:
    if "parallel" in options.only:
        entries = options.sessions // 5
        columns = [
            "at once",
            "push s",
            "pull s",
            f"{entries} entries s",
            "push s, unshaped",
            "pull s, unshaped",
        ]
        title = "Transfers at once, 50 Mbit/s and 40 ms a request"
        yield title, columns, at_once(endpoint, options.blocks, entries)
        columns = ["sent", "50 Mbit/s, 40 ms: s", "unshaped: s"]
        yield f"One object of {OBJECT_BYTES / 1e6:.0f} MB", columns, in_parts(endpoint)
    if "overhead" in options.only:
        yield "Encryption and padding", ["bytes", "added %", "seal MB/s", "unseal MB/s"], encryption()
        columns = ["what", "seconds", "requests", "kB received"]
        yield f"{options.sessions} sessions", columns, many_sessions(endpoint, options.sessions)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--tokens", type=int, default=7936)
    parser.add_argument("--turn", type=int, default=200, help="tokens of the turn that is pushed after it")
    parser.add_argument("--profiles", nargs="+", default=["turbo4", "turbo3"])
    parser.add_argument("--blocks", type=int, default=31, help="of the session that goes several at a time")
    parser.add_argument("--sessions", type=int, default=1000, help="of the sync with nothing to do")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS)
    options = parser.parse_args()
    found = {}
    with served_bucket() as endpoint:
        for title, columns, rows in chain(with_model(options, endpoint), without_model(options, endpoint)):
            show(title, columns, rows, None)
            found[title] = [dict(zip(columns, row, strict=True)) for row in rows]
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
