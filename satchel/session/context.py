"""What a model has read: token ids, and the KV state of them, to and from the store.

Knows nothing of words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from satchel.cache_store.loading import load_blocks, load_tail
from satchel.cache_store.local import LocalStore
from satchel.cache_store.manifest import BlockRef, TailRef
from satchel.cache_store.snapshot import BLOCK_TOKENS, Block, PendingBlock, Snapshot
from satchel.engine.fork import fork
from satchel.engine.kv_state import Checkpoint, KVState
from satchel.engine.part_layout import Part
from satchel.engine.restorer import Restorer
from satchel.engine.snapshot_io import Exporter, settled_tokens
from satchel.errors import DamagedError

MAX_CHECKPOINTS = 64  # in memory, until they are saved


@dataclass(slots=True)
class Context:
    """What the model has read.

    Attributes:
        state: the KV state that `token_ids` produced.
        stored: those of its blocks that the store has, from the first token on.
        checkpoints: earlier states, oldest first, of the layers that cannot go back by themselves.
        archived_from: the profile that the state had before it was encoded to fewer bits, if it was.
        foreign: the state came with a file from elsewhere.
    """

    state: KVState
    token_ids: list[int] = field(default_factory=list)
    stored: tuple[BlockRef, ...] = ()
    checkpoints: list[Checkpoint] = field(default_factory=list)
    archived_from: str | None = None
    foreign: bool = False

    def fork(self) -> Context:
        """The same context, which goes its own way from here."""
        return replace(
            self, state=fork(self.state), token_ids=[*self.token_ids], checkpoints=[*self.checkpoints]
        )

    def go_back(self, tokens: int) -> bool:
        """Forget all but the first `tokens` tokens, or more where a layer's state can only go back further.

        Returns whether it could; if not, nothing has changed.
        """
        if not self.state.trim(len(self.token_ids) - tokens):
            usable = [checkpoint for checkpoint in self.checkpoints if checkpoint.offset <= tokens]
            if not usable:
                return False
            self.state.rewind(usable[-1])
            tokens = usable[-1].offset
        del self.token_ids[tokens:]
        # Without a settled token, the means are fixed anew by those to come.
        settled = settled_tokens(self.state)
        self.stored = tuple(ref for ref in self.stored if settled and ref.stop <= tokens)
        self.checkpoints = [checkpoint for checkpoint in self.checkpoints if checkpoint.offset <= tokens]
        return True

    def keep_checkpoint(self) -> None:
        """Note the state of now, where it could not be gone back to otherwise."""
        if self.state.needs_checkpoints:
            checkpoint = self.state.checkpoint(len(self.token_ids))
            self.checkpoints = [*self.checkpoints[1 - MAX_CHECKPOINTS :], checkpoint]

    def checkpoints_due(self, stop: int, interval: int) -> set[int]:
        """The ends of blocks, below token `stop`, at which the state is to be kept for other sessions.

        Args:
            interval: tokens between two of them at least, a multiple of a block's; 0 asks for none.
        """
        if not interval:
            return set()
        kept = [ref.stop for ref in self.stored if ref.checkpoint]
        kept += [each.offset for each in self.checkpoints if each.offset % BLOCK_TOKENS == 0]
        first = max(max(kept, default=0) + interval, len(self.token_ids) + 1)
        return set(range(-(-first // BLOCK_TOKENS) * BLOCK_TOKENS, stop, interval))

    def snapshot(self, identity: Mapping[str, Any], start: int, checkpoints: bool = True) -> Snapshot:
        """The state from token `start` on, where a block ends. Its blocks are copied out as they are written.

        Args:
            checkpoints: blocks hold those at their ends, and the tail the newest.

        Raises:
            NonFiniteError: the tail is not to be saved; the blocks say so when they are exported.
        """
        self.state.round_recurrent()
        exporter = Exporter(self.state)
        kept = self.checkpoints if checkpoints else []
        at_end = {checkpoint.offset: checkpoint for checkpoint in kept}
        settled = settled_tokens(self.state) // BLOCK_TOKENS * BLOCK_TOKENS

        def pending(first: int, stop: int) -> PendingBlock:
            ids = self._ids(first, stop)
            return PendingBlock(
                first, stop, ids, lambda: _block(exporter.block(first, stop, at_end.get(stop)), ids)
            )

        blocks = [pending(first, first + BLOCK_TOKENS) for first in range(start, settled, BLOCK_TOKENS)]
        first, stop = max(start, settled), len(self.token_ids)
        tail = _block(exporter.tail(first, stop, kept[-1] if kept else None), self._ids(first, stop))
        return Snapshot(identity, tuple(blocks), tail)

    def _ids(self, start: int, stop: int) -> np.ndarray:
        return np.array(self.token_ids[start:stop], dtype=np.uint32)


def load_context(
    store: LocalStore,
    identity: Mapping[str, Any],
    state: KVState,
    refs: tuple[BlockRef, ...],
    tail: TailRef | None,
) -> Context:
    """The context of the blocks `refs`, the first of a chain, and of the `tail` after them; fills `state`.

    Raises:
        SatchelError: an object is missing, damaged, or does not fit this model; `state` is then not usable.
    """
    stop = tail.stop if tail else refs[-1].stop
    token_ids = np.zeros(stop, dtype=np.uint32)

    def begin() -> Restorer:
        if tail is None:
            return Restorer(state, stop, None)
        block = load_tail(store, identity, refs, tail)
        token_ids[block.start :] = block.token_ids
        return Restorer(state, stop, _part(block))

    def take(block: Block) -> None:
        token_ids[block.start : block.stop] = block.token_ids
        restorer.add(_part(block))

    try:
        restorer = begin()  # a function of its own, so that the tail is gone before the blocks come
        load_blocks(store, identity, refs, take)
        restorer.finish()
    except ValueError as err:
        raise DamagedError(str(err)) from err
    context = Context(state, token_ids.tolist(), refs)
    if restorer.checkpoint:
        context.checkpoints.append(restorer.checkpoint)
    return context


def _part(block: Block) -> Part:
    return Part(block.start, block.stop, block.arrays, block.meta)


def _block(part: Part, token_ids: np.ndarray) -> Block:
    return Block(part.start, part.stop, token_ids, part.arrays, part.meta, checkpoint="layers" in part.meta)
