"""A model's KV state as plain numpy arrays and JSON values, and back, bit for bit. Knows nothing of files.

Layers whose arrays look alike form a group and are stacked, so that a file holds a few large arrays and not
hundreds of small ones. bfloat16 travels as its bits in uint16, which the part's meta says (`dtypes`).

Per group and side, with n layers: `g0.k.codes` (n, n_kv_heads, T, words) and `g0.k.grid` (n, n_kv_heads, T,
groups), or what else the side's codec has, or `g0.k.x` (n, n_kv_heads, T, head_dim) where a side is exact.
The part that starts at token 0 also has the sink `g0.k.sink` (n, n_kv_heads, sink, head_dim); it and the tail
have the mean `g0.k.mean` (n, n_kv_heads, 1, head_dim), whether it turns, `g0.k.turns` (n,), for keys the gain
`g0.k.gain`, shaped as the mean, and the codes' error `g0.k.noise` (n, n_kv_heads, 1, 1). The tail has the
window `g0.k.window`. `basis` in the meta is a digest of means, gains, noises and turns: codes of different
bases mean different things, so their parts do not go together.

Layers that are not kept token by token are whole in the tail, as arrays `L<layer>.<place in its state>` and a
tree of JSON values (`layers`) that names them. A block may hold the same, as a checkpoint of its last token,
and the tail a second one, `checkpoint`, of an earlier token, whose arrays begin with `C` in place of `L`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache

from satchel.engine.checkpoint import Checkpoint, KeptArray, Tree, host_view
from satchel.engine.kv_cache import TurboQuantKVCache
from satchel.engine.kv_state import TOKEN_BY_TOKEN, KVState
from satchel.engine.part_layout import Layout, Part, basis_of, is_fixed
from satchel.errors import SatchelError

Meta = dict[str, Any]
# The bits of an infinite number; those of NaN are above, those of finite ones below, but for the sign.
INFINITY = {mx.bfloat16: 0x7F80, mx.float16: 0x7C00, mx.float32: 0x7F80_0000}


class NonFiniteError(SatchelError):
    """The model wrote values that are not numbers, or too large for the 16-bit dtype of its cache."""

    def __init__(self) -> None:
        super().__init__("the model's KV state holds values that are infinite or not numbers")


def settled_tokens(state: KVState) -> int:
    """How many of the first tokens have a state that later tokens do not change."""
    kv = [_settled(cache) for cache in state.caches if isinstance(cache, TOKEN_BY_TOKEN)]
    return min(kv, default=0)


def _settled(cache: Any) -> int:
    if isinstance(cache, TurboQuantKVCache):
        return int(cache.body_stop) if cache.body_tokens else 0
    return int(cache.offset)


class Exporter:
    """A state as it is now, from which parts are copied, each array once.

    Nothing of the device's memory is copied before that, and nothing that is read or trimmed later shows.
    `block` and `tail` use numpy alone and may run in several threads.
    """

    def __init__(self, state: KVState) -> None:
        self._layers = {
            index: _LayerView(cache)
            for index, cache in enumerate(state.caches)
            if isinstance(cache, TOKEN_BY_TOKEN)
        }
        groups: dict[tuple[object, ...], list[int]] = {}
        for index, layer in self._layers.items():
            groups.setdefault(layer.signature, []).append(index)
        self._groups = list(groups.values())
        self._whole = state.whole_layers()
        fixed = {}
        for number, layers in enumerate(self._groups):
            for name in filter(is_fixed, self._layers[layers[0]].arrays):
                fixed[f"g{number}.{name}"] = self._stacked(layers, name, slice(0, 1))
        self._basis = basis_of(fixed)

    def block(self, start: int, stop: int, checkpoint: Checkpoint | None = None) -> Part:
        """The state of settled tokens [start, stop), with `checkpoint`, one of `stop` tokens, if given.

        Raises:
            NonFiniteError: not to be saved.
            ValueError: the checkpoint is one of another token (a fault of the caller).
        """
        if checkpoint is not None and checkpoint.offset != stop:
            raise ValueError(f"a checkpoint of {checkpoint.offset} tokens for a block that ends at {stop}")
        part = _PartBuilder()
        self._add_tokens(part, start, stop, tail=False)
        if checkpoint is not None:
            part.meta["layers"] = part.trees("L", checkpoint.layers)
        return part.finished(start, stop)

    def tail(self, start: int, stop: int, checkpoint: Checkpoint | None = None) -> Part:
        """The state of everything from token `start` to the last one, `stop`; layers without tokens whole.

        Args:
            checkpoint: of an earlier token, to be kept beside.

        Raises:
            NonFiniteError: not to be saved.
        """
        part = _PartBuilder()
        self._add_tokens(part, start, stop, tail=True)
        part.meta["layers"] = part.trees("L", self._whole)
        if checkpoint is not None:
            part.meta["checkpoint"] = {
                "offset": checkpoint.offset,
                "layers": part.trees("C", checkpoint.layers),
            }
        return part.finished(start, stop)

    def _add_tokens(self, part: _PartBuilder, start: int, stop: int, *, tail: bool) -> None:
        part.meta |= {"groups": self._groups, "basis": self._basis}
        for number, layers in enumerate(self._groups):
            like = self._layers[layers[0]]
            for name, slot in like.layout.slots(start, stop, tail=tail).items():
                stacked = self._stacked(layers, slot.held, slice(slot.first, slot.last))
                part.add(f"g{number}.{name}", stacked, like.dtypes[slot.held])

    def _stacked(self, layers: Sequence[int], held: str, tokens: slice) -> np.ndarray:
        """A run of tokens of the layers' arrays called `held`, (n, n_kv_heads, tokens, width)."""
        views = [self._layers[index].arrays[held] for index in layers]
        views = [view[0, :, tokens] if view.ndim else view for view in views]
        stacked = np.empty((len(views), *views[0].shape), views[0].dtype)
        for row, view in enumerate(views):
            stacked[row] = view
        return stacked


class _LayerView:
    """One layer's arrays as they are now, (1, n_kv_heads, T, width), and how its tokens lie in them."""

    def __init__(self, cache: KVCache | TurboQuantKVCache) -> None:
        codecs: tuple[object, ...] = ()
        arrays: dict[str, mx.array] = {}
        sink, body_stop = 0, cache.offset
        if isinstance(cache, TurboQuantKVCache):
            codecs = (cache.profile.keys, cache.profile.values)
            arrays = _by_side(cache)
            sink, body_stop = cache.sink_tokens, cache.body_stop
        elif not cache.empty():
            arrays = {"k.x": cache.keys, "v.x": cache.values}
        self.layout = Layout(tuple(arrays), sink, body_stop, cache.offset)
        self.dtypes = {name: array.dtype for name, array in arrays.items()}
        self.arrays = {name: host_view(array) for name, array in arrays.items()}
        # With the codecs: before the first move to the body, layers of different ones look alike, and groups
        # must be the same in every part.
        kinds = ((name, self.dtypes[name], x.shape[1:2], x.shape[3:]) for name, x in self.arrays.items())
        self.signature = (*codecs, *kinds)


def _by_side(cache: TurboQuantKVCache) -> dict[str, mx.array]:
    """What a compressed layer holds, all of its keys first, with `turns` behind what else is fixed."""
    held = cache.arrays()
    arrays: dict[str, mx.array] = {}
    for side, body in (("k", cache.key_body), ("v", cache.value_body)):
        names = [name for name in held if name.startswith(f"{side}.")]
        fixed = [name for name in names if is_fixed(name)]
        arrays |= {name: held[name] for name in names if name.endswith(".exact")}
        arrays |= {name: held[name] for name in fixed}
        if fixed:
            arrays[f"{side}.turns"] = mx.array(int(body.mean_turns), dtype=mx.uint8)
        arrays |= {name: held[name] for name in names if name not in arrays}
    return arrays


class _PartBuilder:
    """Collects a part's arrays, all of which must be finite."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self.meta: Meta = {}
        self._dtypes: dict[str, str] = {}

    def add(self, name: str, array: np.ndarray, dtype: mx.Dtype) -> None:
        """Take over an array of its own, of `dtype` on the device."""
        if dtype in INFINITY and not _is_finite(array, INFINITY[dtype]):
            raise NonFiniteError
        if dtype == mx.bfloat16:
            self._dtypes[name] = "bfloat16"
        self.arrays[name] = array

    def trees(self, letter: str, layers: Mapping[int, Tree]) -> dict[str, Any]:
        """Layers' states as JSON values that name copies of their arrays."""
        return {str(index): self._tree(tree, f"{letter}{index:03d}") for index, tree in layers.items()}

    def finished(self, start: int, stop: int) -> Part:
        return Part(start, stop, self.arrays, {**self.meta, "dtypes": self._dtypes})

    def _tree(self, tree: Tree, prefix: str) -> Any:
        if isinstance(tree, KeptArray):
            for name, array in tree.arrays.items():
                # The steps of levels are float32, whatever they stand for.
                dtype = getattr(mx, array.dtype.name) if name else tree.dtype
                self.add(f"{prefix}.{name}" if name else prefix, np.array(array, order="C"), dtype)
            return {"array": prefix}
        if isinstance(tree, list):
            return [self._tree(item, f"{prefix}.{number}") for number, item in enumerate(tree)]
        return tree


def _is_finite(array: np.ndarray, infinity: int) -> bool:
    """Whether all floats of a contiguous array are, by their bits: two passes and nothing in between.

    As a signed number, a positive float's bits are above all negative ones'; as an unsigned one, the other
    way about. bfloat16 comes as bits.
    """
    if not array.size:
        return True
    size = array.itemsize
    sign = 1 << (8 * size - 1)
    bits = array.view(f"u{size}")
    return bool(bits.view(f"i{size}").max() < infinity and bits.max() < sign + infinity)
