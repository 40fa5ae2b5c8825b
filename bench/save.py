"""Bytes and seconds of saving: a full save, the save of one more turn, and mlx-lm's own prompt cache."""

from __future__ import annotations

from common import arguments, manager_in_new_store, pydoc_text, show  # first: it loads OpenBLAS ahead of MLX

# isort: split

import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache, save_prompt_cache

from satchel.session import Session, SessionManager

ROOM = 29  # tokens that the template adds to the context
TURN_ROOM = 13  # and to the turn, with its answer of 8 tokens


def stored(home: Path) -> dict[Path, int]:
    """Path to bytes of every file below `home` but the index, which is derived."""
    files = (path for path in home.rglob("*") if path.is_file() and "index.db" not in path.name)
    return {path: path.stat().st_size for path in files}


def timed_save(session: Session, home: Path) -> tuple[int, float]:
    """Bytes of the files written by a save, and its seconds."""
    before = stored(home)
    start = time.perf_counter()
    session.save()
    seconds = time.perf_counter() - start
    return sum(size for path, size in stored(home).items() if before.get(path) != size), seconds


def talk(session: Session, text: str, answer_tokens: int) -> None:
    for _ in session.reply(text, max_tokens=answer_tokens, cancel=threading.Event()):
        pass


def mlx_lm_bytes(manager: SessionManager, tokens: int, bits: int | None) -> tuple[int, float]:
    """Bytes and seconds of `save_prompt_cache` for as many tokens, in 16-bit or quantised caches.

    The values are random: mlx-lm stores arrays as they are, so only their sizes count.
    """
    model = manager.model.model
    caches, seen = make_prompt_cache(model), make_prompt_cache(model)
    model(mx.array([[0]]), cache=seen)
    for number, cache in enumerate(caches):
        _, n_kv_heads, _, head_dim = seen[number].keys.shape
        x = mx.random.normal((1, n_kv_heads, tokens, head_dim), dtype=mx.float16)
        cache.update_and_fetch(x, x)
        caches[number] = cache.to_quantized(64, bits) if bits else cache
        mx.eval(caches[number].keys, caches[number].values)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cache.safetensors"
        start_s = time.perf_counter()
        save_prompt_cache(str(path), caches)
        return path.stat().st_size, time.perf_counter() - start_s


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--tokens", type=int, default=7936)
    parser.add_argument("--turn", type=int, default=200, help="tokens of the turn that is saved after it")
    options = parser.parse_args()
    rows: list[list[Any]] = []
    with manager_in_new_store(options.model) as (manager, home):
        tokenizer = manager.model.tokenizer
        text_ids = tokenizer.encode(pydoc_text())
        session = manager.new()
        talk(session, tokenizer.decode(text_ids[: options.tokens - ROOM]), 1)
        tokens, elements = len(session.token_ids), session.kv_elements()

        def row(name: str, saved: tuple[int, float]) -> list[Any]:
            size, seconds = saved
            return [name, size / 1e6, size / tokens, 8 * size / elements, seconds]

        rows.append(row("full save", timed_save(session, home)))
        talk(session, tokenizer.decode(text_ids[-(options.turn - TURN_ROOM) :]), 8)
        added = len(session.token_ids) - tokens
        incremental = timed_save(session, home)
        rows.append([f"save of {added} tokens more", incremental[0] / 1e6, "", "", incremental[1]])
        full = rows[0]
        rows.append(
            ["of the full save", f"1/{full[1] / rows[1][1]:.1f}", "", "", f"1/{full[4] / rows[1][4]:.1f}"]
        )
        for name, bits in (
            ("mlx-lm save_prompt_cache, 16 bits", None),
            ("mlx-lm save_prompt_cache, 4 bits", 4),
        ):
            rows.append(row(name, mlx_lm_bytes(manager, tokens, bits)))
    columns = ["what", "MB", "bytes/token", "bits/element", "seconds"]
    show(f"Saving {tokens} tokens, turbo4", columns, rows, options.json)


if __name__ == "__main__":
    main()
