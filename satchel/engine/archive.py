"""A filled KV state re-encoded to fewer bits, for a session that is kept but seldom gone on with.

The codes are decoded and encoded anew, so what is lost twice stays lost. Knows nothing of models, sessions
or disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from satchel.config.profiles import Profile, get_profile
from satchel.engine.body import Body, ExactBody
from satchel.engine.kv_cache import TurboQuantKVCache
from satchel.engine.kv_state import KVState
from satchel.errors import UsageError

TAKEN_OVER = ("sink", "window")  # exact tokens stay where they are
CARRIED_ON = (*TAKEN_OVER, "boundary", "recurrent")


def archive_profile(stored: Profile, wanted: Profile) -> Profile:
    """`wanted` with the options of `stored` that it does not name itself.

    Raises:
        UsageError: `wanted` names another sink or window.
    """
    named = {option.partition("=")[0] for option in wanted.name.split(",")[1:]}
    carried: list[str] = []
    for option in CARRIED_ON:
        kept = getattr(stored, option)
        if kept == getattr(wanted, option):
            continue
        if option not in named:
            carried.append(f"{option}={kept}")
        elif option in TAKEN_OVER:
            raise UsageError(
                f"an archive keeps the session's {option} of {kept} tokens", f"leave {option}= out"
            )
    return get_profile(",".join([wanted.name, *carried]))


def transcode(state: KVState, empty: KVState) -> None:
    """Fill `empty`, of the same model, with what `state` holds, in `empty`'s codecs.

    What is held exactly, and what has the same codec in both, is taken over as it is: the two share it, so
    only one of them may be gone on with.

    Raises:
        UsageError: the result would not be smaller; `empty` is then still empty.
        ValueError: the profiles hold other tokens exactly (a fault of the caller).
    """
    layers = zip(state.caches, empty.caches, strict=True)
    caches = [_transcoded(old, new) if isinstance(new, TurboQuantKVCache) else old for old, new in layers]
    before, after = _held_bytes(state.caches), _held_bytes(caches)
    if after >= before:
        raise UsageError(
            f"as {empty.profile.asked} the state would take {after / 1e6:.1f} MB, and as "
            f"{state.profile.asked} it takes {before / 1e6:.1f} MB",
            "archiving is for profiles of fewer bits, and for more tokens than are kept exactly",
        )
    empty.caches = caches


def _transcoded(old: KVCache | TurboQuantKVCache, empty: TurboQuantKVCache) -> TurboQuantKVCache:
    """One layer's cache like `empty`, with the tokens of `old`."""
    new = TurboQuantKVCache(empty.profile, empty.dtype, empty.key_body.rope)
    if isinstance(old, TurboQuantKVCache):
        _recode(old, new)
    elif not old.empty():
        new.update_and_fetch(old.keys[:, :, : old.offset], old.values[:, :, : old.offset])
        new.attended = new.offset
        new.move_to_body()
    mx.eval(new.state)  # the dense vectors of one layer at a time are enough to hold
    return new


def _recode(old: TurboQuantKVCache, new: TurboQuantKVCache) -> None:
    was, wanted = old.profile, new.profile
    if (was.sink, was.window, was.move) != (wanted.sink, wanted.window, wanted.move):
        raise ValueError("the two profiles hold other tokens exactly")
    new.keys, new.values = old.keys, old.values
    new.offset = new.attended = old.offset
    if old.keys is None or old.values is None or not old.body_tokens:
        return
    sink = old.sink_tokens
    if was.keys == wanted.keys:
        new.key_body = old.key_body
    else:
        _recode_body(old.key_body, old.keys, sink, new.key_body)
    if was.values == wanted.values:
        new.value_body = old.value_body
    else:
        _recode_body(old.value_body, old.values, sink, new.value_body)


def _recode_body(old: Body, exact: mx.array, sink: int, new: Body) -> None:
    """Fill `new` with the tokens of `old`, which come after `sink` of the `exact` ones."""
    dense = old.dense(sink, exact.dtype if isinstance(new, ExactBody) else mx.float32)
    # All tokens at once, for the new body takes its mean from those that it sees first.
    known = mx.concatenate([exact[:, :, :sink], dense, exact[:, :, sink:]], axis=2)
    new.append(known, sink, old.tokens)


def _held_bytes(caches: Sequence[Any]) -> int:
    return sum(cache.nbytes for cache in caches if not cache.empty())
