"""Where the arrays of a part of a state lie in the arrays that a layer holds. Knows nothing of MLX or files.

A part is the state of tokens [start, stop): a block holds what never changes again, the tail everything after
the blocks. A compressed layer holds, for keys and for values, the exact tokens as one array (sink, then
window), the body as a codec's rows, and what was fixed with the body's first tokens. One of a part's arrays
is a run of tokens of one of these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

FIXED = ("mean", "gain", "noise", "turns")  # fixed by a body's first tokens: one row, or one number


@dataclass(frozen=True, slots=True)
class Part:
    """The state of tokens [start, stop); `meta` holds JSON values that the arrays cannot say."""

    start: int
    stop: int
    arrays: Mapping[str, np.ndarray]
    meta: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Slot:
    """Tokens [first, last) of the array that a layer holds as `held`."""

    held: str
    first: int
    last: int

    def of(self, array: np.ndarray) -> np.ndarray:
        """A view (n_kv_heads, tokens, width) of `array` (1, n_kv_heads, T, width); a number whole."""
        return array[0, :, self.first : self.last] if array.ndim else array[...]


@dataclass(frozen=True, slots=True)
class Layout:
    """How one layer holds its tokens.

    Attributes:
        held: names of its arrays: `k.exact`, `k.mean`, `k.codes`..., or `k.x` of an exact layer.
        sink: tokens before the body.
        body_stop: the first token after it; what follows is the window.
        tokens: all of them.
    """

    held: tuple[str, ...]
    sink: int
    body_stop: int
    tokens: int

    def slots(self, start: int, stop: int, *, tail: bool) -> dict[str, Slot]:
        """The arrays that a part of tokens [start, stop) has of this layer, by name."""
        slots: dict[str, Slot] = {}
        for name in self.held:
            side, _, kind = name.partition(".")
            if kind == "exact":
                if start == 0:
                    slots[f"{side}.sink"] = Slot(name, 0, self.sink)
                if tail:
                    slots[f"{side}.window"] = Slot(name, self.sink, self.sink + self.tokens - self.body_stop)
            elif kind in FIXED:
                if tail or start == 0:
                    slots[name] = Slot(name, 0, 1)
            else:
                first, last = max(start, self.sink) - self.sink, min(stop, self.body_stop) - self.sink
                if last > first:
                    slots[name] = Slot(name, first, last)
        return slots


def basis_of(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 (hex) over what codes can only be read with, "" where there is nothing.

    That is, for every array named `g<n>.<side>.<one of FIXED>`, in the order of the names, its name, a space,
    its bytes' count in decimal, a line feed, and its little-endian bytes.
    """
    names = sorted(name for name in arrays if is_fixed(name))
    digest = hashlib.sha256()
    for name in names:
        array = arrays[name]
        digest.update(f"{name} {array.nbytes}\n".encode() + array.tobytes())
    return digest.hexdigest() if names else ""


def is_fixed(name: str) -> bool:
    """Whether a part's array holds what was fixed by a body's first tokens."""
    return name.rsplit(".", 1)[-1] in FIXED
