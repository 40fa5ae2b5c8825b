"""Which tokens the keys and values of a prompt cache belong to, found or checked with the model.

In the first layer a token's values are a projection of its own embedding: neither its neighbours nor, in
most models, its position take part. So the values of the whole vocabulary name every token of a cache, and
tell another model's cache. MLX computes only what is evaluated, which is the first layer here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import ConcatenateKVCache, KVCache, make_prompt_cache

from satchel.errors import DamagedError, UsageError

if TYPE_CHECKING:
    from satchel.engine.model import LoadedModel
    from satchel.engine.prompt_cache import PromptCacheFile

VOCABULARY_STEP = 2048  # tokens whose values are computed at a time
ROWS_STEP = 4096  # distinct values that are compared with them at a time
READ_STEP = 512  # tokens of the cache's own context that are read at a time
FIRST_TOKENS = 32  # are compared in all layers

# Relative errors, |x - y| / |y|. Measured on SmolLM2-135M: the first layer's values in bfloat16 0.002, in
# float32 below 1e-6. Quantised like the file's they are the same again, but for the codes that another
# rounding puts one step further. Another model's values are off by 1.4.
VALUE_ERROR, VALUE_STEP_ERROR = 0.03, 2.0  # the second times a grid's step, 2^-bits
# Over all layers errors add up: 0.026 in bfloat16, at 8 bits 0.019, at 4 bits 0.31.
DEEP_ERROR, DEEP_STEP_ERROR, MOST_DEEP_ERROR = 0.1, 8.0, 0.8
LARGEST = 65504.0  # of float16; no model that works has larger keys or values
# Two tokens are told apart where the second nearest is further away than noise of the nearest's size could
# make it (in d directions, noise n along any one of them is n / sqrt(d)), and than float32 can tell.
CLEAR_RATIO, CLEAR_DIFFERENCE = 1.25, 0.005

NOT_THIS_MODEL = "its keys and values are not this model's"


def find_token_ids(model: LoadedModel, source: PromptCacheFile) -> list[int]:
    """The token ids of a cache that does not name them.

    Raises:
        DamagedError: no token of this model has such values.
        UsageError: two tokens have values too alike to tell which it was.
    """
    stored = _first_values(source)  # (T, D)
    rows, index, counts = _distinct(stored)
    found = [_nearest(model, source, rows[at : at + ROWS_STEP]) for at in range(0, len(rows), ROWS_STEP)]
    ids = np.concatenate([near.ids for near in found])  # (rows, 2)
    errors = np.concatenate([near.errors for near in found])
    scale = _scale(rows, counts)
    if not (errors[:, 0] <= _tolerance(source) * scale).all():
        raise DamagedError(
            f"{source.path.name}: {NOT_THIS_MODEL}",
            _hint(source, "or where they are, name their --tokens FILE"),
        )
    apart = errors[:, 1] - errors[:, 0]
    unclear = apart <= np.maximum((CLEAR_RATIO - 1) * errors[:, 0], CLEAR_DIFFERENCE * scale)
    if unclear.any():
        row = int(unclear.argmax())
        raise UsageError(
            f"token {int((index == row).argmax())} of {source.path.name} could be {ids[row, 0]} or "
            f"{ids[row, 1]}",
            "name the token ids with --tokens FILE",
        )
    token_ids: list[int] = ids[index, 0].tolist()
    _check_all_layers(model, source, token_ids)
    return token_ids


def check_token_ids(model: LoadedModel, source: PromptCacheFile, token_ids: Sequence[int]) -> None:
    """That the keys and values of a cache are what this model has for `token_ids`.

    The values of the first layer are compared for all tokens, all layers' for the first `FIRST_TOKENS`.

    Raises:
        DamagedError: they are not.
    """
    name = source.path.name
    if len(token_ids) != source.tokens:
        raise DamagedError(f"{name} holds {source.tokens} tokens, and {len(token_ids)} token ids were given")
    if not all(0 <= token_id < vocabulary_size(model) for token_id in token_ids):
        raise DamagedError(f"some of the token ids for {name} are not of this model's vocabulary")
    stored = _first_values(source)
    own = np.concatenate(list(_values_in_context(model, source, token_ids)))
    errors = np.linalg.norm(stored - own, axis=1)
    wrong = errors > _tolerance(source) * _scale(own)
    if wrong.mean() > 0.5:
        raise DamagedError(f"{name}: {NOT_THIS_MODEL}", _hint(source))
    if wrong.any():
        place = int(wrong.argmax())
        raise DamagedError(f"token {place} of {name} is not the given {token_ids[place]}")
    _check_all_layers(model, source, token_ids)


def vocabulary_size(model: LoadedModel) -> int:
    """Token ids that have both an embedding and a text."""
    rows = getattr(model.args, "vocab_size", None)
    known = len(model.tokenizer)
    return min(known, rows) if isinstance(rows, int) else known


@dataclass(frozen=True, slots=True)
class _Near:
    """The two tokens nearest to each row, (rows, 2), and how far away they are."""

    ids: np.ndarray
    errors: np.ndarray


def _nearest(model: LoadedModel, source: PromptCacheFile, rows: np.ndarray) -> _Near:
    """Among all tokens. Found by |a - b|^2 = |a|^2 - 2ab + |b|^2, which rounds, and measured anew."""
    asked = mx.array(rows)
    best = np.full((len(rows), 2), np.inf, dtype=np.float32)
    ids = np.zeros((len(rows), 2), dtype=np.int64)
    numbers = np.arange(len(rows))
    for start, values in _vocabulary_values(model, source):
        squares = mx.square(values).sum(axis=1) - 2 * (asked @ values.T)  # (rows, tokens), less |a|^2
        distances = np.array(squares)
        for _ in range(min(2, distances.shape[1])):
            at = distances.argmin(axis=1)
            found = distances[numbers, at]
            distances[numbers, at] = np.inf
            place = np.where(found < best[:, 0], 0, 1)
            better = found < best[:, 1]
            shifted = better & (place == 0)
            best[shifted, 1], ids[shifted, 1] = best[shifted, 0], ids[shifted, 0]
            best[numbers[better], place[better]] = found[better]
            ids[numbers[better], place[better]] = at[better] + start
    own = _values_of(model, source, mx.array(ids.reshape(-1)))
    errors = np.linalg.norm(rows[:, None] - np.array(own).reshape(len(rows), 2, -1), axis=2)
    order = errors.argsort(axis=1, kind="stable")
    return _Near(np.take_along_axis(ids, order, 1), np.take_along_axis(errors, order, 1))


def _vocabulary_values(model: LoadedModel, source: PromptCacheFile) -> Iterator[tuple[int, mx.array]]:
    """The first layer's values of all tokens, as the file would hold them: (n, D) from token `start` on."""
    size = vocabulary_size(model)
    for start in range(0, size, VOCABULARY_STEP):
        yield start, _values_of(model, source, mx.arange(start, min(start + VOCABULARY_STEP, size)))


def _values_of(model: LoadedModel, source: PromptCacheFile, token_ids: mx.array) -> mx.array:
    """The first layer's values of tokens, each read by itself: (n, D) float32."""
    caches = _lazy_caches(model)
    model.model(token_ids[:, None], cache=caches)
    values = source.as_held(0, caches[0].values)  # (n, n_kv_heads, 1, head_dim)
    rows = values.astype(mx.float32).reshape(len(token_ids), -1)
    mx.eval(rows)
    return rows


def _values_in_context(
    model: LoadedModel, source: PromptCacheFile, token_ids: Sequence[int]
) -> Iterator[np.ndarray]:
    """The first layer's values of tokens at their places, (n, D) at a time.

    Nothing but these is computed: what the other layers would need stays unevaluated.
    """
    caches = _lazy_caches(model)
    for start in range(0, len(token_ids), READ_STEP):
        model.model(mx.array([list(token_ids[start : start + READ_STEP])]), cache=caches)
        yield _rows(source.as_held(0, caches[0].values[:, :, start:]))


def _lazy_caches(model: LoadedModel) -> list[ConcatenateKVCache]:
    """Caches that hold what they are given and no buffer around it."""
    return [ConcatenateKVCache() for _ in make_prompt_cache(model.model)]


def _check_all_layers(model: LoadedModel, source: PromptCacheFile, token_ids: Sequence[int]) -> None:
    """That the first tokens have the keys and values of this model in every layer.

    Raises:
        DamagedError: they have not: other weights above the first layer, or other rotary embeddings.
    """
    first = list(token_ids[:FIRST_TOKENS])
    caches = [KVCache() for _ in make_prompt_cache(model.model)]
    mx.eval(model.model(mx.array([first]), cache=caches))
    for index, cache in enumerate(caches):
        tolerance = min(DEEP_ERROR + DEEP_STEP_ERROR * source.rounding(index), MOST_DEEP_ERROR)
        held = (cache.keys[:, :, : len(first)], cache.values[:, :, : len(first)])
        for own, stored in zip(held, source.dense(index), strict=True):
            ours, theirs = _rows(own), _rows(stored[:, :, : len(first)])
            error = np.linalg.norm(ours - theirs)
            if not error <= tolerance * np.linalg.norm(ours):
                raise DamagedError(f"{source.path.name}: {NOT_THIS_MODEL} in layer {index}", _hint(source))


def _first_values(source: PromptCacheFile) -> np.ndarray:
    """The first layer's values, (T, D) float32.

    Raises:
        DamagedError: some are no numbers, or too large.
    """
    rows = _rows(source.dense(0)[1])
    if not np.abs(rows).max() <= LARGEST:
        raise DamagedError(f"{source.path.name} holds values that are infinite or not numbers")
    return rows


def _tolerance(source: PromptCacheFile) -> float:
    return VALUE_ERROR + VALUE_STEP_ERROR * source.rounding(0)


def _rows(values: mx.array) -> np.ndarray:
    """(1, n_kv_heads, T, head_dim) to (T, n_kv_heads * head_dim) float32."""
    rows = values[0].swapaxes(0, 1).astype(mx.float32)
    return np.array(rows.reshape(rows.shape[0], -1))


def _distinct(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The different rows, which of them each row is, and how often each occurs. A text repeats its tokens."""
    whole = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.shape[1] * rows.itemsize)))[:, 0]
    _, first, index, counts = np.unique(whole, return_index=True, return_inverse=True, return_counts=True)
    return rows[first], index, counts


def _scale(rows: np.ndarray, counts: np.ndarray | None = None) -> np.ndarray:
    """What an error of each row is relative to: its length, or the usual one where it is shorter.

    A projection rounds in proportion to what goes in, also where little comes out.
    """
    lengths = np.linalg.norm(rows, axis=1)
    return np.maximum(lengths, np.sqrt(np.average(np.square(lengths), weights=counts)))


def _hint(source: PromptCacheFile, otherwise: str = "") -> str:
    """What to try: the model that the file names, if it names one."""
    named = source.metadata.get("model", "")[:80]
    parts = [
        f"the file names {named!r}: --model loads another" if named else "--model loads another",
        otherwise,
    ]
    return ", ".join(filter(None, parts))
