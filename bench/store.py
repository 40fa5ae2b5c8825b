"""The store: bytes a second of saving and loading beside the plain disk, what many sessions cost, and shared
prefixes."""

from __future__ import annotations

from common import (
    arguments,
    first_token_s,
    manager_in_new_store,
    pydoc_text,
    show,
)  # first: it loads OpenBLAS ahead of MLX

# isort: split

import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import stores

from satchel.cache_store.local import LocalStore
from satchel.cache_store.sessions import save_snapshot
from satchel.laboratory.filling import KeysAndValues, fill, keys_and_values
from satchel.session import SessionManager
from satchel.session.context import Context, load_context

READ_TOKENS = 2048  # what is really read; longer contexts repeat it
ROUNDS = 5
ROOM = 40  # tokens that the template and the question add to a context


# -- saving and loading --------------------------------------------------------------------------------


def throughput(manager: SessionManager, source: KeysAndValues, tokens: int, parent: Path) -> list[Any]:
    """Save and load a context of `tokens`, by turns with the same bytes written and read plainly."""
    state = manager.factory.new(manager.profile)
    repeated = source.repeated(tokens, state.caches[0].dtype)
    fill(state.caches, repeated)
    context = Context(state, repeated.token_ids)
    del repeated
    seconds: dict[str, list[float]] = {"save": [], "write": [], "load": [], "read": []}
    sizes = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory(dir=parent) as folder:
            root, plain = Path(folder) / "store", Path(folder) / "plain"
            store = LocalStore(root)
            seconds["save"].append(timed(save, store, manager, context))
            contents = [
                path.read_bytes()
                for path in root.rglob("*")
                if path.is_file() and "index.db" not in path.name
            ]
            plain.mkdir()
            seconds["write"].append(timed(write, plain, contents))
            evict(Path(folder))
            seconds["read"].append(timed(read, plain))
            evict(Path(folder))
            seconds["load"].append(timed(load, store, manager))
            sizes.append((sum(map(len, contents)), extra_bytes(load, store, manager)))
    stored_bytes, peak = map(max, zip(*sizes, strict=True))
    save_s, write_s, load_s, read_s = (statistics.median(each) for each in seconds.values())
    held = sum(cache.nbytes for cache in state.caches)
    return [
        f"{tokens} tokens",
        stored_bytes / 1e6,
        stored_bytes / 1e6 / save_s,
        stored_bytes / 1e6 / write_s,
        write_s / save_s,
        stored_bytes / 1e6 / load_s,
        stored_bytes / 1e6 / read_s,
        read_s / load_s,
        held / 1e6,
        (peak - held) / 1e6,
    ]


def timed(call: Callable[..., object], *arguments: object) -> float:
    start = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - start


def save(store: LocalStore, manager: SessionManager, context: Context) -> None:
    snapshot = context.snapshot(manager.identity(context.state), 0)
    save_snapshot(store, snapshot, [], name="bench", model_name="", profile_name=manager.profile.name)


def load(store: LocalStore, manager: SessionManager) -> Context:
    manifest = store.get_manifest(store.find("bench").manifest)
    state = manager.factory.new(manager.profile)
    context = load_context(store, manifest.identity, state, manifest.blocks, manifest.tail)
    mx.eval([cache.state for cache in context.state.caches])
    return context


def write(folder: Path, contents: list[bytes]) -> None:
    """Each of `contents` in a file of its own, durably."""
    for number, content in enumerate(contents):
        with (folder / str(number)).open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def read(folder: Path) -> None:
    for path in folder.iterdir():
        path.read_bytes()


def evict(folder: Path) -> None:
    """Make the next reading of the files come from the disk, where the system can."""
    if hasattr(os, "posix_fadvise"):
        for path in folder.rglob("*"):
            if path.is_file():
                descriptor = os.open(path, os.O_RDONLY)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)


def extra_bytes(call: Callable[..., object], *arguments: object) -> int:
    """The most that MLX and Python held at a time during `call`, beyond what they held before."""
    gc.collect()
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    tracemalloc.start()
    result = call(*arguments)
    python = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    del result
    return mx.get_peak_memory() - before + python


# -- many sessions -------------------------------------------------------------------------------------


def scale(sessions: int, blocks: int, parent: Path) -> list[list[Any]]:
    """Seconds of what a user waits for, in a store with nothing and in one with very much in it."""
    rows = []
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        empty, full = Path(folder) / "empty", Path(folder) / "full"
        stores.fill(empty, 0, 0)
        stores.fill(full, sessions, blocks // sessions)
        for name, measure in (
            ("satchel sessions list", list_sessions),
            ("satchel sessions show NAME", show_session),
            ("first save of a session", first_save),
            ("save of a further turn", next_save),
        ):
            pairs = [(measure(empty, number), measure(full, number)) for number in range(3 * ROUNDS)]
            small, large = (statistics.median(times) for times in zip(*pairs, strict=True))
            rows.append([name, small, large, large / small])
    return rows


def list_sessions(root: Path, number: int) -> float:
    return command(root, "sessions", "list")


def show_session(root: Path, number: int) -> float:
    return command(root, "sessions", "show")


def command(root: Path, *arguments: str) -> float:
    environment = os.environ | {"SATCHEL_HOME": str(root)}
    call = [sys.executable, "-m", "satchel", *arguments]
    start = time.perf_counter()
    subprocess.run(call, env=environment, capture_output=True, check=False)
    return time.perf_counter() - start


def first_save(root: Path, number: int) -> float:
    store, content = LocalStore(root), stores.snapshot(1_000_000 + number, 0, 2)
    return timed(stores.save, store, content, 1_000_000 + number)


def next_save(root: Path, number: int) -> float:
    store = LocalStore(root)
    saved = stores.save(store, stores.snapshot(2_000_000 + number, 0, 2), 2_000_000 + number)
    content = stores.snapshot(2_000_000 + number, 2, 3)
    return timed(stores.save, store, content, 2_000_000 + number, saved)


# -- shared prefixes -----------------------------------------------------------------------------------


def prefixes(manager: SessionManager, tokens: int) -> list[list[Any]]:
    """Seconds to the first token of a new session, whose beginning another one has read or has not."""
    tokenizer = manager.model.tokenizer
    text = tokenizer.decode(tokenizer.encode(pydoc_text())[: tokens - ROOM])
    rows = []
    asked = (("read", "What is this about?", False), ("another session has read it", "And its end?", True))
    for name, question, shares in asked:
        manager.settings = manager.settings.model_copy(update={"share_prefixes": shares})
        session = manager.new()
        first_s, finished = first_token_s(session, f"{text}\n\n{question}")
        session.save(f"{name} {tokens}")
        stats = finished.stats
        rows.append([f"{tokens} tokens, {name}", stats.reused_tokens, stats.prompt_tokens, first_s])
    return rows


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[7936, 32768])
    parser.add_argument("--prefix-tokens", type=int, nargs="+", default=[2048])
    parser.add_argument("--sessions", type=int, default=5000)
    parser.add_argument("--blocks", type=int, default=100_000, help="of all sessions together")
    parser.add_argument("--folder", type=Path, help="where the stores are made: the disk to measure")
    parser.add_argument("--only", choices=["speed", "scale", "prefix"], nargs="+")
    options = parser.parse_args()
    chosen = options.only or ["speed", "scale", "prefix"]
    if "speed" in chosen or "prefix" in chosen:
        with manager_in_new_store(options.model) as (manager, _):
            if "speed" in chosen:
                ids = manager.model.tokenizer.encode(pydoc_text())[:READ_TOKENS]
                source = keys_and_values(manager.model, ids)
                rows = [throughput(manager, source, tokens, options.folder) for tokens in options.tokens]
                columns = ["context", "MB", "save MB/s", "write", "ratio"]
                columns += ["load MB/s", "read", "ratio of load", "state MB", "peak above MB"]
                show(f"Saving and loading, medians of {ROUNDS}", columns, rows, None)
            if "prefix" in chosen:
                found = [row for tokens in options.prefix_tokens for row in prefixes(manager, tokens)]
                show("A new session", ["context", "reused", "read", "first token s"], found, None)
    if "scale" in chosen:
        title = f"Seconds in an empty store, and in one of {options.sessions} sessions"
        rows = scale(options.sessions, options.blocks, options.folder)
        show(title, ["what", "empty s", "full s", "ratio"], rows, None)


if __name__ == "__main__":
    main()
