"""The engine's restoring of parts whose meta and arrays somebody made up.

The input is JSON. Of arrays it says dtype, shape, and the bytes that repeat in them; where it says none, the
same small numbers are in all of them. `@basis` stands for the digest that these arrays have:

    {"model": "llama", "profile": "turbo4", "parts": [
        {"start": 0, "stop": 256, "meta": {...}, "arrays": {"g0.k.codes": ["uint32", [2, 2, 252, 8], []]}}]}
"""

from __future__ import annotations

import json
import math
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from oracle import Watch

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

# The engine first: it loads a fast BLAS before MLX.
from satchel.config.profiles import get_profile
from satchel.engine.kv_state import KVFactory
from satchel.engine.part_layout import Part, basis_of, is_fixed

# isort: split
import mlx.core as mx
import tiny_models
from state_parts import restore as restore_parts

MODELS = {
    "llama": tiny_models.tiny_llama,
    "gemma3": tiny_models.tiny_gemma3,
    "qwen35": tiny_models.tiny_qwen35,
}
PROFILES = ("turbo4", "turbo3", "k8v4", "exact")
DTYPES = ("uint8", "uint16", "uint32", "int32", "float16", "float32")  # those that a stored object can have
MAX_BYTES = 8 << 20  # what a stored object could hold has been paid for in its file
VALUES = np.random.default_rng(3).integers(0, 0x3C, 4096, np.uint8)  # small as any of the dtypes


def restore(data: bytes, watch: Watch) -> None:
    try:
        said = json.loads(data)
        parts = [_part(part) for part in said["parts"]]
        _fill_basis(parts)
        made_for, profile = factory(said["model"]), said["profile"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return
    if profile not in PROFILES:
        return
    state = made_for.new(get_profile(profile))
    fits = False
    with watch.guard(allowed=(ValueError,)):
        restore_parts(state, parts)
        fits = True
    if fits:  # must be fit to go on with
        with watch.guard():
            mx.eval(made_for.model(mx.array([[1]]), cache=state.caches))


def describe(model: str, profile: str, parts: list[Part]) -> dict[str, Any]:
    """The input that stands for `parts`."""
    return {
        "model": model,
        "profile": profile,
        "parts": [
            {
                "start": part.start, "stop": part.stop,
                "meta": {**part.meta, "basis": part.meta["basis"] and "@basis"},
                "arrays": {
                    name: [x.dtype.name, list(x.shape), list(x.tobytes()) if x.nbytes <= 8 else []]
                    for name, x in part.arrays.items()
                },
            }
            for part in parts
        ],
    }  # fmt: skip


def _part(said: dict[str, Any]) -> Part:
    """
    Raises:
        ValueError: no stored object could hold this.
    """
    arrays: dict[str, np.ndarray] = {}
    left = MAX_BYTES
    for name, (dtype, shape, content) in said["arrays"].items():
        if (
            dtype not in DTYPES
            or len(shape) > 8
            or not all(type(size) is int and size >= 0 for size in shape)
        ):
            raise ValueError
        if not isinstance(content, list) or len(content) > 8:
            raise ValueError
        left -= math.prod(shape) * np.dtype(dtype).itemsize
        if left < 0 or math.prod(max(size, 1) for size in shape) >= 1 << 59:
            raise ValueError
        count = math.prod(shape) * np.dtype(dtype).itemsize
        arrays[name] = (
            np.resize(np.frombuffer(bytes(content), np.uint8) if content else VALUES, count)
            .view(dtype)
            .reshape(shape)
        )
    start, stop = said["start"], said["stop"]
    if type(start) is not int or type(stop) is not int or not 0 <= start <= stop < 1 << 53:
        raise ValueError
    if not isinstance(said["meta"], dict):
        raise ValueError
    return Part(start, stop, arrays, said["meta"])


def _fill_basis(parts: list[Part]) -> None:
    """Put the digest of the part's own fixed arrays, or of the first part's, in place of `@basis`."""
    first = {name: array for name, array in parts[0].arrays.items() if is_fixed(name)} if parts else {}
    for part in parts:
        if part.meta.get("basis") == "@basis":
            own = {name: array for name, array in part.arrays.items() if is_fixed(name)}
            part.meta["basis"] = basis_of(own or first)


@cache
def factory(model: str) -> KVFactory:
    return KVFactory(MODELS[model](), mx.float16)
