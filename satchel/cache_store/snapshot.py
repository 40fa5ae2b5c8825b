"""What a session hands to the store: token ids and plain arrays. Knows nothing of disk, layers or codecs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

BLOCK_TOKENS = 256
ROOT = ""  # the chain key that precedes a session's first block

_CHAIN_TAG = b"satchel.chain/1"
_IDENTITY_TAG = b"satchel.identity/1"


@dataclass(frozen=True, slots=True)
class Block:
    """The state that tokens `start` to `stop` (exclusive) produced.

    Attributes:
        start: index of the first token in the session.
        stop: index after the last token.
        token_ids: (stop - start,) uint32.
        arrays: packed arrays by name; their meaning is the engine's.
        meta: JSON values that the engine needs to read `arrays`.
        checkpoint: whether it also holds the state after its last token of layers that are not kept token by
            token.
    """

    start: int
    stop: int
    token_ids: np.ndarray
    arrays: Mapping[str, np.ndarray]
    meta: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: bool = False

    def __post_init__(self) -> None:
        if self.start < 0 or self.token_ids.shape != (self.stop - self.start,):
            raise ValueError(f"tokens {self.start} to {self.stop} with {self.token_ids.shape} token ids")
        if self.token_ids.dtype != np.uint32:
            raise ValueError(f"token ids are {self.token_ids.dtype}; must be uint32")

    def whole(self) -> Block:
        return self


@dataclass(frozen=True, slots=True)
class PendingBlock:
    """A block that `export` makes when its turn to be written comes, so that not all are in memory at once.

    `export` is called once, from any thread.
    """

    start: int
    stop: int
    token_ids: np.ndarray
    export: Callable[[], Block]

    def whole(self) -> Block:
        return self.export()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A session's state, or the part of it that a save has to add.

    `blocks` are immutable and normally `BLOCK_TOKENS` long; `tail` is everything after them, and what a
    later turn may still change. They follow one another without a gap. A whole snapshot starts at token 0;
    one handed to an incremental save starts where the blocks already saved end.
    """

    identity: Mapping[str, Any]
    blocks: tuple[Block | PendingBlock, ...]
    tail: Block

    def __post_init__(self) -> None:
        for before, after in pairwise((*self.blocks, self.tail)):
            if before.stop != after.start:
                raise ValueError(f"a block ends at token {before.stop} and the next starts at {after.start}")

    @property
    def start(self) -> int:
        return self.blocks[0].start if self.blocks else self.tail.start

    @property
    def stop(self) -> int:
        return self.tail.stop

    @property
    def token_ids(self) -> np.ndarray:
        """All token ids, (stop - start,) uint32."""
        return np.concatenate([block.token_ids for block in (*self.blocks, self.tail)])


def canonical_json(value: object) -> bytes:
    """`value` as UTF-8 JSON with sorted keys and no spaces: equal values give equal bytes."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def identity_digest(identity: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of everything that must be equal for stored state to be usable."""
    return _tagged_digest(_IDENTITY_TAG, identity=canonical_json(dict(identity)))


def chain_key(parent: str, identity: str, token_ids: np.ndarray) -> str:
    """The key of the block that holds `token_ids` after the tokens that `parent` stands for.

    Args:
        parent: chain key of the block before, or `ROOT`.
        identity: an `identity_digest`.
        token_ids: (n,) of an integer type, each below 2^32.
    """
    tokens = np.asarray(token_ids, dtype="<u4").tobytes()
    return _tagged_digest(_CHAIN_TAG, parent=parent.encode(), identity=identity.encode(), tokens=tokens)


def identity_differences(stored: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Names of the fields that differ, sorted; a field of a nested mapping is named `outer.inner`."""
    old, new = _flatten(stored), _flatten(current)
    absent = object()
    return sorted(name for name in old.keys() | new.keys() if old.get(name, absent) != new.get(name, absent))


def _flatten(identity: Mapping[str, Any]) -> dict[str, bytes]:
    """Fields as JSON, so that values are compared as the digest compares them: 1, 1.0 and true differ."""
    flat: dict[str, bytes] = {}
    for name, value in identity.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": canonical_json(item) for inner, item in value.items()}
        else:
            flat[name] = canonical_json(value)
    return flat


def _tagged_digest(domain: bytes, **fields: bytes) -> str:
    """SHA-256 over tagged, length-prefixed fields: no two different sets of fields give the same input."""
    digest = hashlib.sha256(domain)
    for tag, value in fields.items():
        digest.update(len(tag).to_bytes(1, "little") + tag.encode())
        digest.update(len(value).to_bytes(8, "little") + value)
    return digest.hexdigest()
