"""Stores of many sessions with small made-up blocks, for measures that no content changes."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

import numpy as np

from satchel.cache_store.local import LocalStore
from satchel.cache_store.manifest import Message
from satchel.cache_store.sessions import Saved, save_snapshot
from satchel.cache_store.snapshot import BLOCK_TOKENS, Block, Snapshot

IDENTITY = {"format": 1, "model": {"weights": "made up"}}
TAIL_TOKENS = 10


def fill(root: Path, sessions: int, blocks: int) -> LocalStore:
    """A store with `sessions` sessions of `blocks` blocks each. Nothing is made durable, for speed."""
    store = LocalStore(root)
    with patch.object(os, "fsync", lambda descriptor: None):
        for number in range(sessions):
            save(store, snapshot(number, 0, blocks), number)
    return store


def save(store: LocalStore, content: Snapshot, number: int, base: Saved | None = None) -> Saved:
    words = [
        Message(role="user", content=f"Question {number}: what is the weather like on day {number}?"),
        Message(role="assistant", content="It rains, as on all the days before. " * 10),
    ]
    return save_snapshot(
        store,
        content,
        words * (base.head.turns + 1 if base else 1),
        name=base.head.name if base else f"talk {number}",
        model_name="embedded",
        profile_name="turbo4",
        base=base,
    )


def snapshot(number: int, first: int, stop: int) -> Snapshot:
    """Blocks `first` to `stop` of session `number`, and a tail."""
    blocks = tuple(_block(number, index, BLOCK_TOKENS) for index in range(first, stop))
    return Snapshot(IDENTITY, blocks, _block(number, stop, TAIL_TOKENS))


def _block(number: int, index: int, tokens: int) -> Block:
    start = index * BLOCK_TOKENS
    random = np.random.default_rng([number, index])
    ids = random.integers(0, 49152, tokens, dtype=np.uint32)
    return Block(start, start + tokens, ids, {"g0.k.codes": random.integers(0, 1 << 32, 16, dtype=np.uint32)})
