"""Quality and decode speed of KV caches, all in one run.

Quality: the first tokens of a text are read through the cache in chunks of 512, the next are teacher-forced
one token at a time (or in chunks of `--chunk`), and the next-token distributions are compared with an exact
cache's: KL(exact || cache), top-1 agreement, ratio of perplexities. Speed: caches take turns of a few tokens
each, so that a busy machine slows all alike, and the ratio is the median of the turns' ratios.
"""

from __future__ import annotations

from common import arguments, show, texts  # first: it loads OpenBLAS ahead of MLX

# isort: split

import time
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache, QuantizedKVCache, make_prompt_cache

from satchel.config.profiles import get_profile
from satchel.engine.kv_state import KVFactory
from satchel.engine.model import LoadedModel, load_model

PREFILL_STEP = 512
TURNS, TOKENS_A_TURN = 9, 6
Caches = Callable[[], list[Any]]


def caches_by_name(model: LoadedModel, names: Sequence[str]) -> dict[str, Caches]:
    """`mlx-lm N` is mlx-lm's cache of N bits in groups of 64, anything else a profile of ours."""
    factory = KVFactory(model.model, model.cache_dtype)

    def mlx_lm(bits: int) -> Caches:
        return lambda: [
            QuantizedKVCache(64, bits) if type(cache) is KVCache else cache
            for cache in make_prompt_cache(model.model)
        ]

    def ours(name: str) -> Caches:
        return lambda: factory.new(get_profile(name)).caches

    return {n: mlx_lm(int(n.split()[1])) if n.startswith("mlx-lm ") else ours(n) for n in names}


def read(model: LoadedModel, caches: list[Any], token_ids: Sequence[int], step: int) -> None:
    for start in range(0, len(token_ids), step):
        model.model(mx.array([token_ids[start : start + step]]), cache=caches)
        evaluate(caches)


def evaluate(caches: list[Any]) -> None:
    states = [(c.keys, c.values) if isinstance(c, QuantizedKVCache) else c.state for c in caches]
    mx.eval(states)


def log_probs(
    model: LoadedModel, make: Caches, token_ids: Sequence[int], prefill: int, chunk: int
) -> np.ndarray:
    """Next-token log-probabilities after each token from `prefill` on, (tokens, vocabulary) float32."""
    caches = make()
    read(model, caches, token_ids[:prefill], PREFILL_STEP)
    pieces = []
    for start in range(prefill, len(token_ids), chunk):
        logits = model.model(mx.array([token_ids[start : start + chunk]]), cache=caches)[0].astype(mx.float32)
        pieces.append(np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True)))
    return np.concatenate(pieces)


def compare(exact: np.ndarray, other: np.ndarray, targets: np.ndarray) -> tuple[float, float, float, float]:
    """Mean and 99th percentile of KL(exact || other), top-1 agreement, ratio of perplexities."""
    kl = (np.exp(exact) * (exact - other)).sum(-1)
    rows = np.arange(len(targets))
    ratio = np.exp(exact[rows, targets].mean() - other[rows, targets].mean())
    agree = (exact.argmax(-1) == other.argmax(-1)).mean()
    return float(kl.mean()), float(np.quantile(kl, 0.99)), float(agree), float(ratio)


def quality(model: LoadedModel, named: dict[str, Caches], tokens: int, chunk: int) -> list[list[Any]]:
    prefill, rows = tokens * 3 // 4, []
    for text, token_ids in texts(model, tokens).items():
        targets = np.array(token_ids[prefill + 1 :])
        exact = log_probs(model, lambda: make_prompt_cache(model.model), token_ids, prefill, chunk)
        for name, make in named.items():
            other = log_probs(model, make, token_ids, prefill, chunk)
            rows.append([name, text, *compare(exact, other, targets)])
            print(f"{name} {text}: KL {rows[-1][2]:.4f}", flush=True)
    return rows


def decode_speed(model: LoadedModel, named: dict[str, Caches], tokens: int) -> list[list[Any]]:
    token_ids = next(iter(texts(model, tokens).values()))
    filled = {name: make() for name, make in named.items()}
    for caches in filled.values():
        read(model, caches, token_ids, PREFILL_STEP)
    seconds: dict[str, list[float]] = {name: [] for name in filled}
    for turn in range(TURNS + 1):
        for name, caches in filled.items():
            start = time.perf_counter()
            for _ in range(TOKENS_A_TURN):
                mx.eval(model.model(mx.array([[token_ids[turn]]]), cache=caches))
            seconds[name].append((time.perf_counter() - start) / TOKENS_A_TURN)
    timed = {name: np.array(values[1:]) for name, values in seconds.items()}  # the first turn warms up
    return [
        [
            name,
            float(1 / np.median(values)),
            *(float(np.median(timed[base] / values)) for base in BASELINES),
            sum(cache.nbytes for cache in filled[name]) / 1e6,
        ]
        for name, values in timed.items()
    ]


BASELINES = ("exact", "mlx-lm 4")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--chunk", type=int, default=1, help="teacher-forced tokens at a time")
    parser.add_argument("--only", choices=("quality", "speed"))
    parser.add_argument(
        "--caches", nargs="+", default=["mlx-lm 4", "mlx-lm 8", "k8v4", "turbo4", "turbo3", "turbo2"]
    )
    options = parser.parse_args()
    model = load_model(options.model)
    title = f"{options.model}, {options.tokens} tokens"
    if options.only != "speed":
        rows = quality(model, caches_by_name(model, options.caches), options.tokens, options.chunk)
        columns = ["cache", "text", "KL mean", "KL p99", "top-1", "PPL ratio"]
        show(f"Quality: {title}, {options.chunk} at a time", columns, rows, options.json)
    if options.only != "quality":
        named = caches_by_name(model, [*BASELINES, *(n for n in options.caches if n not in BASELINES)])
        rows = decode_speed(model, named, options.tokens)
        columns = ["cache", "tokens/s", *(f"x {base}" for base in BASELINES), "MB held"]
        show(f"Decode: {title}", columns, rows, None)


if __name__ == "__main__":
    main()
