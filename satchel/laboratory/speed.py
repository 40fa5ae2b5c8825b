"""How fast caches are. All take turns, so that a busy machine slows all alike. Decode's ratios are medians of
those in each turn; prefill's are of the best times, for two rounds have no median.

Decode is measured on caches that are filled without reading, so that long contexts take no hours. Knows
nothing of quality or size.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import QuantizedKVCache

from satchel.cache_store.snapshot import BLOCK_TOKENS
from satchel.engine.kv_cache import TurboQuantKVCache
from satchel.laboratory.caches import EXACT, PREFILL_STEP, Candidate, read
from satchel.laboratory.filling import KeysAndValues, fill

if TYPE_CHECKING:
    from satchel.engine.model import LoadedModel

MLX_LM_4 = "mlx-lm 4"
BASELINES = (EXACT, MLX_LM_4)  # what ratios are taken to; they must be among the candidates
PREFILL_ROUNDS = 2
TURNS, TOKENS_A_TURN = 9, 6
BLOCK_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """Speeds of one cache that holds `tokens` tokens; `x_` is how many times as fast as another cache.

    Decode leaves out the move of 64 tokens from our window to the body. All turns together are fewer tokens
    than lie between two moves, so one turn at most has one, and the median passes over it.

    `encode_melements_s` and `decode_melements_s` are million coordinates a second in and out of codes, and
    `encode_share` the time to encode a block as a part of that to read its tokens with the exact cache; None
    for caches without codes.
    """

    cache: str
    tokens: int
    decode_tokens_s: float
    decode_x_exact: float
    decode_x_mlx_lm_4: float
    prefill_tokens: int
    prefill_tokens_s: float
    prefill_x_exact: float
    encode_melements_s: float | None
    decode_melements_s: float | None
    encode_share: float | None


@dataclass(frozen=True, slots=True)
class BlockTimes:
    """Seconds to encode and to decode `tokens` tokens in all layers, `elements` coordinates."""

    tokens: int
    encode_s: float
    decode_s: float
    elements: int


def speed(
    model: LoadedModel,
    candidates: Sequence[Candidate],
    token_ids: Sequence[int],
    source: KeysAndValues,
    tokens: int,
) -> list[SpeedRow]:
    """Measure `candidates`, `BASELINES` among them: prefill of `token_ids`, and decode after `tokens`.

    Args:
        source: keys and values to encode and decode, a block or as much of one as there is; repeated, what
            decode finds in the caches.
    """
    read_s = _prefill(model, candidates, token_ids)
    decode_s = _decode(model, candidates, source.repeated(tokens, model.dtype))
    exact_token_s = read_s[EXACT] / len(token_ids)
    rows = []
    for candidate in candidates:
        name, block = candidate.name, block_times(candidate, source)
        rows.append(
            SpeedRow(
                cache=name,
                tokens=tokens,
                decode_tokens_s=float(1 / np.median(decode_s[name])),
                decode_x_exact=float(np.median(decode_s[EXACT] / decode_s[name])),
                decode_x_mlx_lm_4=float(np.median(decode_s[MLX_LM_4] / decode_s[name])),
                prefill_tokens=len(token_ids),
                prefill_tokens_s=len(token_ids) / read_s[name],
                prefill_x_exact=read_s[EXACT] / read_s[name],
                encode_melements_s=block.elements / block.encode_s / 1e6 if block else None,
                decode_melements_s=block.elements / block.decode_s / 1e6 if block else None,
                encode_share=block.encode_s / (block.tokens * exact_token_s) if block else None,
            )
        )
    return rows


def block_times(candidate: Candidate, source: KeysAndValues) -> BlockTimes | None:
    """The median of a few rounds, after one that warms up; None for caches whose codes are unknown here."""
    caches = candidate.make()
    layers = {index: caches[index] for index in source.layers}
    if all(isinstance(cache, TurboQuantKVCache) for cache in layers.values()):
        start = max(cache.profile.sink for cache in layers.values())
        count = min(BLOCK_TOKENS, len(source.token_ids) - start)
        encode, decode = _our_block(layers, source, start, count)
    elif all(isinstance(cache, QuantizedKVCache) for cache in layers.values()):
        count = min(BLOCK_TOKENS, len(source.token_ids))
        encode, decode = _mlx_lm_block(layers, source, count)
    else:
        return None
    elements = source.elements // len(source.token_ids) * count
    rounds = [(_seconds(encode), _seconds(decode)) for _ in range(BLOCK_ROUNDS + 1)][1:]
    encode_s, decode_s = np.median(np.array(rounds), axis=0)
    return BlockTimes(count, float(encode_s), float(decode_s), elements)


def _prefill(
    model: LoadedModel, candidates: Sequence[Candidate], token_ids: Sequence[int]
) -> dict[str, float]:
    """The seconds that reading took: of each chunk the best of the rounds."""
    chunks = [token_ids[start : start + PREFILL_STEP] for start in range(0, len(token_ids), PREFILL_STEP)]
    best = {candidate.name: np.full(len(chunks), np.inf) for candidate in candidates}
    for _ in range(PREFILL_ROUNDS):
        filled = {candidate.name: candidate.make() for candidate in candidates}
        for number, chunk in enumerate(chunks):
            for candidate in candidates:
                caches = filled[candidate.name]
                with candidate.attention():
                    taken_s = _seconds(partial(read, model, caches, chunk))
                best[candidate.name][number] = min(best[candidate.name][number], taken_s)
    return {name: float(seconds.sum()) for name, seconds in best.items()}


def _decode(
    model: LoadedModel, candidates: Sequence[Candidate], source: KeysAndValues
) -> dict[str, np.ndarray]:
    """Seconds a token in each turn, (TURNS,) float64."""
    token_ids = source.token_ids
    filled: dict[str, list[Any]] = {}
    for candidate in candidates:
        caches = candidate.make()
        for index, cache in fill(caches, source).items():
            caches[index] = cache
        filled[candidate.name] = caches
    seconds: dict[str, list[float]] = {candidate.name: [] for candidate in candidates}
    for turn in range(TURNS + 1):
        for candidate in candidates:
            caches = filled[candidate.name]

            def steps(turn: int = turn, caches: list[Any] = caches) -> None:
                for _ in range(TOKENS_A_TURN):
                    mx.eval(model.model(mx.array([[token_ids[turn]]]), cache=caches))

            with candidate.attention():
                seconds[candidate.name].append(_seconds(steps) / TOKENS_A_TURN)
    return {name: np.array(values[1:]) for name, values in seconds.items()}  # the first turn warms up


def _our_block(
    caches: dict[int, TurboQuantKVCache], source: KeysAndValues, start: int, count: int
) -> tuple[Callable[[], None], Callable[[], None]]:
    bodies = [
        (body, x)
        for index, cache in caches.items()
        for body, x in zip((cache.key_body, cache.value_body), source.layers[index], strict=True)
    ]
    for body, x in bodies:
        body.append(x, start, count)  # what is fixed once, by the first tokens, is no part of a block's time

    def encode() -> None:
        for body, x in bodies:
            body.trim(count)
            body.append(x, start, count)
        mx.eval([body.arrays() for body, _ in bodies])

    def decode() -> None:
        mx.eval([body.dense(start, mx.float32) for body, _ in bodies])

    return encode, decode


def _mlx_lm_block(
    caches: dict[int, QuantizedKVCache], source: KeysAndValues, count: int
) -> tuple[Callable[[], None], Callable[[], None]]:
    vectors = [
        (x[:, :, :count].astype(mx.float32), cache.group_size, cache.bits)
        for index, cache in caches.items()
        for x in source.layers[index]
    ]
    mx.eval([x for x, _, _ in vectors])
    packed: list[Sequence[mx.array]] = []

    def encode() -> None:
        packed[:] = [mx.quantize(x, group_size=group, bits=bits) for x, group, bits in vectors]
        mx.eval(packed)

    def decode() -> None:
        pairs = zip(packed, vectors, strict=True)
        mx.eval(
            [
                mx.dequantize(codes, scale, bias, group_size=group, bits=bits)
                for (codes, scale, bias), (_, group, bits) in pairs
            ]
        )

    return encode, decode


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
