"""Plain numpy arrays to a model's KV state, bit for bit, or a ValueError. Knows nothing of files.

The arrays may come from anywhere: `part_check.py` looks at each before a byte of it is copied.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import ArraysCache

from satchel.engine.checkpoint import Checkpoint, thaw
from satchel.engine.kv_cache import TurboQuantKVCache
from satchel.engine.kv_state import TOKEN_BY_TOKEN, KVState
from satchel.engine.part_check import Shape, TreeDecoder, check_whole, fitting
from satchel.engine.part_layout import Part


class Restorer:
    """Fills an empty state with parts, each array of which is copied to its place once, and then let go.

    The state's arrays are allocated here, for `stop` tokens: the caller has made sure that there may be as
    many. Whatever is raised, the state is then not usable.

    Args:
        stop: how many tokens the parts hold together.
        tail: the last part; None where there are blocks alone, and so no token after the body. Layers that
            are not kept token by token then come from the checkpoint of the last block.

    Raises:
        ValueError: the tail is not of this kind of state.
    """

    def __init__(self, state: KVState, stop: int, tail: Part | None) -> None:
        self._state, self._has_tail = state, tail is not None
        with fitting():
            self._shape = Shape(state, stop, tail)
            if tail is not None:
                self._shape.check(tail, tail=True)
        self._layers = {
            index: {name: mx.zeros(shape, _bits(dtype)) for name, (dtype, shape) in arrays.items()}
            for index, arrays in self._shape.arrays.items()
        }
        mx.eval(self._layers)
        self._views = {
            index: {name: np.array(array, copy=False) for name, array in arrays.items()}
            for index, arrays in self._layers.items()
        }
        self._lock = threading.Lock()
        self._added: list[tuple[int, int]] = []
        self._last: Part | None = None  # the one that ends at `stop`
        self._checkpoint: Checkpoint | None = None
        if tail is not None:
            self._copy(tail, tail=True)

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The one that the tail holds beside the state itself, after `finish`."""
        return self._checkpoint

    def add(self, part: Part) -> None:
        """Take a block over, in any order and any thread; nothing of it is held any longer than that.

        Raises:
            ValueError: it is not of this kind of state, or of tokens that another one had.
        """
        self._copy(part, tail=False)

    def finish(self) -> None:
        """Hand the arrays over to the state's layers.

        Raises:
            ValueError: tokens or layers are missing.
        """
        starts, stops = zip(*sorted(self._added), strict=True) if self._added else ((), ())
        if self._last is None or (*starts, self._shape.stop) != (0, *stops):
            raise ValueError("the saved parts do not follow one another")
        with fitting():
            meta = self._last.meta
            layers = meta["layers"] if self._has_tail else meta.get("layers", {})
            self._set_whole(self._state, self._last, layers, self._shape.stop)
            self._checkpoint = self._decode_checkpoint(self._last)
        self._finish_layers()
        mx.eval([cache.state for cache in self._state.caches if not cache.empty()])

    def _copy(self, part: Part, *, tail: bool) -> None:
        with fitting():
            self._shape.check(part, tail=tail)
        with self._lock:
            if any(start < part.stop and part.start < stop for start, stop in self._added):
                raise ValueError("two saved parts hold the same tokens")
            self._added.append((part.start, part.stop))
            if part.stop == self._shape.stop and tail == self._has_tail:
                # What is not kept token by token is decoded at the end; the rest is not held until then.
                rest = {name: array for name, array in part.arrays.items() if not name.startswith("g")}
                self._last = replace(part, arrays=rest)
        for number, layers in enumerate(self._shape.groups):
            layout = self._shape.layouts[layers[0]]
            for name, slot in layout.slots(part.start, part.stop, tail=tail).items():
                for index, row in zip(layers, part.arrays[f"g{number}.{name}"], strict=True):
                    slot.of(self._views[index][slot.held])[...] = row

    def _finish_layers(self) -> None:
        state, stop = self._state, self._shape.stop
        del self._views  # of arrays that are the state's from here on
        for index, layer in self._layers.items():
            dtypes = {name: dtype for name, (dtype, _) in self._shape.arrays[index].items()}
            held = {name: array.view(dtypes[name]) for name, array in layer.items()}
            cache = state.caches[index]
            if not held:
                continue
            if isinstance(cache, TurboQuantKVCache):
                cache.keys, cache.values = held.pop("k.exact"), held.pop("v.exact")
                cache.attended = stop
                for side, body in (("k", cache.key_body), ("v", cache.value_body)):
                    names = {name[2:]: array for name, array in held.items() if name.startswith(f"{side}.")}
                    if "turns" in names:
                        body.mean_turns = bool(names.pop("turns").item())
                    if names:
                        body.load(names)
            else:
                cache.keys, cache.values = held["k.x"], held["v.x"]
            cache.offset = stop
        self._layers = {}

    def _decode_checkpoint(self, part: Part) -> Checkpoint | None:
        stored = part.meta.get("checkpoint")
        if stored is None:
            return None
        offset = stored["offset"]
        if type(offset) is not int or not 0 <= offset <= part.stop:
            raise ValueError(f"the saved checkpoint is one of {offset!r} tokens")
        past = replace(self._state, caches=[copy(cache) for cache in self._state.seen])
        self._set_whole(past, part, stored["layers"], offset)
        return past.checkpoint(offset)  # of copies: the part's own memory is free

    def _set_whole(self, state: KVState, part: Part, trees: Mapping[str, Any], tokens: int) -> None:
        """Set the layers that are carried as they are to what they held after `tokens` tokens."""
        whole = [i for i, cache in enumerate(state.caches) if not isinstance(cache, TOKEN_BY_TOKEN)]
        if sorted(trees) != sorted(map(str, whole)):
            raise ValueError("the saved state does not cover this model's layers")
        decode = TreeDecoder(part, tokens)
        for index in whole:
            cache, seen = state.caches[index], self._state.seen[index]
            tree = decode(trees[str(index)], seen.state, growing=not isinstance(cache, ArraysCache))
            cache.state = thaw(tree)
            check_whole(cache, tokens, seen)


def _bits(dtype: mx.Dtype) -> mx.Dtype:
    """What stands for `dtype` where numpy is to see it."""
    return mx.uint16 if dtype == mx.bfloat16 else dtype
