"""Bits that blocks take on disk, beside the zero-order entropy of their codes: one row a KV profile.

`codes` is what an ideal coder needs that knows how often each code of an array occurs and nothing else,
`rest` what the store makes of all other arrays (scales, biases, means, sink, exact sides) without the codes.
Codes that repeat (equal tokens) can take less than their zero-order entropy.
"""

from __future__ import annotations

from common import arguments, pydoc_text, show  # first: it loads OpenBLAS ahead of MLX

# isort: split

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from satchel.cache_store.block import decode_object, encode_object
from satchel.cache_store.packing import entropy_bits
from satchel.cache_store.snapshot import BLOCK_TOKENS
from satchel.config.profiles import get_profile
from satchel.engine.calibration import Calibration
from satchel.engine.kv_state import KVState
from satchel.engine.model import load_model
from satchel.engine.part_layout import Part
from satchel.engine.snapshot_io import Exporter, settled_tokens
from satchel.laboratory.caches import read


def levels(codes: np.ndarray, bits: int) -> np.ndarray:
    """(words,) uint32 as `mx.quantize` packs them to (words * 32 / bits,) uint8."""
    stream = np.unpackbits(codes.view(np.uint8), bitorder="little").reshape(-1, bits)
    return np.packbits(stream, axis=1, bitorder="little")[:, 0]


def code_bits(state: KVState, part: Part) -> dict[str, int]:
    """Name of every array of codes in `part` to the bits of one code."""
    found = {}
    for number, layers in enumerate(part.meta["groups"]):
        cache = state.caches[layers[0]]
        for side, body in (
            ("k", getattr(cache, "key_body", None)),
            ("v", getattr(cache, "value_body", None)),
        ):
            if (name := f"g{number}.{side}.codes") in part.arrays:
                found[name] = body.spec.bits
    return found


def stored_bits(arrays: Mapping[str, np.ndarray]) -> int:
    return 8 * len(encode_object("block", {}, arrays))


def measure(state: KVState, tokens: int) -> list[Any]:
    """Bits an element of codes, rest, codes + rest and stored; stored / (codes + rest); ms a block."""
    codes = rest = stored = 0.0
    encode_s, decode_s = [], []
    exporter = Exporter(state)
    starts = range(0, settled_tokens(state) // BLOCK_TOKENS * BLOCK_TOKENS, BLOCK_TOKENS)
    for start in starts:
        part = exporter.block(start, start + BLOCK_TOKENS)
        bits = code_bits(state, part)
        codes += sum(entropy_bits(levels(part.arrays[name].reshape(-1), bits[name])) for name in bits)
        rest += stored_bits({name: array for name, array in part.arrays.items() if name not in bits})
        began = time.perf_counter()
        data = encode_object("block", {}, part.arrays)
        encoded = time.perf_counter()
        decode_object(data, "block")
        encode_s.append(encoded - began)
        decode_s.append(time.perf_counter() - encoded)
        stored += 8 * len(data)
    elements = state.elements() / tokens * len(starts) * BLOCK_TOKENS
    per_element = [bits / elements for bits in (codes, rest, codes + rest, stored)]
    return [*per_element, stored / (codes + rest), *(1e3 * min(times) for times in (encode_s, decode_s))]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--tokens", type=int, default=1280)
    parser.add_argument("--profiles", nargs="+", default=["k8v4", "turbo4", "turbo3", "turbo2"])
    options = parser.parse_args()
    model = load_model(options.model)
    token_ids = model.tokenizer.encode(pydoc_text())[: options.tokens]
    factory, rows = Calibration(model).factory, []
    for name in options.profiles:
        state = factory.new(get_profile(name))
        read(model, state.caches, token_ids)
        rows.append([name, *measure(state, len(token_ids))])
    columns = ["profile", "codes", "rest", "codes + rest", "stored", "ratio", "encode ms", "decode ms"]
    show(f"Bits an element in blocks: {options.model}, {options.tokens} tokens", columns, rows, options.json)


if __name__ == "__main__":
    main()
