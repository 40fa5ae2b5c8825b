"""A state as a list of parts, all out or all in at once. The session does the same block by block."""

from __future__ import annotations

from collections.abc import Sequence

from satchel.engine.checkpoint import Checkpoint
from satchel.engine.kv_state import KVState
from satchel.engine.part_check import Shape, fitting
from satchel.engine.part_layout import Part
from satchel.engine.restorer import Restorer
from satchel.engine.snapshot_io import Exporter


def export_block(state: KVState, start: int, stop: int) -> Part:
    """`Exporter.block` of a state that is exported once."""
    return Exporter(state).block(start, stop)


def export_tail(state: KVState, start: int, stop: int) -> Part:
    """`Exporter.tail` of a state that is exported once."""
    return Exporter(state).tail(start, stop)


def restore(state: KVState, parts: Sequence[Part]) -> Checkpoint | None:
    """Fill an empty state with parts that follow one another from token 0, the tail last, if there is one.

    Every part is looked at before memory is taken for any. Returns the tail's checkpoint.

    Raises:
        ValueError: a part is not of this kind of state; `state` is then not usable.
    """
    if not parts or [part.start for part in parts] != [0, *(part.stop for part in parts[:-1])]:
        raise ValueError("the saved parts do not follow one another")
    *blocks, last = parts
    # Without a compressed layer, a tail and a block that ends with a checkpoint are one and the same.
    tail = last if not last.stop or any(name.endswith(".window") for name in last.arrays) else None
    with fitting():
        shape = Shape(state, last.stop, tail)
        for part in parts:
            shape.check(part, tail=part is tail)
    restorer = Restorer(state, last.stop, tail)
    for part in blocks if tail else parts:
        restorer.add(part)
    restorer.finish()
    return restorer.checkpoint
