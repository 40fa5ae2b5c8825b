"""What compression costs a model and where keys matter most, measured once. Knows nothing of sessions."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import pairwise

import mlx.core as mx
import numpy as np

from satchel.config.paths import cache_dir
from satchel.config.profiles import DEFAULT_PROFILE, PROFILES, Profile, get_profile
from satchel.engine.body import CodedBody
from satchel.engine.digests import json_sha256
from satchel.engine.kv_cache import TurboQuantKVCache
from satchel.engine.kv_state import KVFactory, KVState
from satchel.engine.model import LoadedModel
from satchel.engine.model_names import EMBEDDED
from satchel.files import atomic_file

VERSION = 2  # raise it when the text, a measure or what `turbo` loses changes: old figures are then left
TOKENS = 256

# Some of what people talk about with a model: the layers' order hardly depends on it.
TEXT = """\
The ferry leaves the northern pier at seven and reaches the island shortly before nine, unless the fog holds
it back. Passengers who carry a bicycle pay a small fee at the gate; children under six travel free of charge.

def moving_average(values, width):
    total, averages = 0.0, []
    for index, value in enumerate(values):
        total += value
        if index >= width:
            total -= values[index - width]
        averages.append(total / min(index + 1, width))
    return averages

Q: Why does bread go stale faster in the fridge than on the table?
A: The starch in it takes up an ordered form again, and it does so most quickly a little above freezing.
Freezing stops this; warming the loaf undoes it for a while.

1. Boil the water.  2. Add salt.  3. Cook the pasta for nine minutes.  4. Keep a cup of the water.
天气预报说明天下午有小雨，出门请带伞。
"""


# What a profile may cost in the check, mean KL(exact || profile) in nats: four times what it costs the worst
# of the models measured (docs/research.md). From one that costs more, the next safer is tried.
MAX_KL = {"turbo2": 0.08, "turbo3": 0.02, "turbo4": 0.007, "k8v4": 0.0012}
SAFER = (*MAX_KL, "exact")  # in this order
# A check must be short: so the window is, and codes are soon in use.
CHECK_WINDOW = 16
CHECK_CHUNKS = (128, 192, 256)  # where chunks end; the last two are compared


class Calibration:
    """What is measured once for a model; its factory gives sensitive layers the bits that are to spare.

    Figures are kept in the cache directory, by the model's fingerprint. Another machine's may differ by
    rounding, which is why a session says which layers it chose (`Profile.for_model`).
    """

    def __init__(self, model: LoadedModel) -> None:
        key = json_sha256([VERSION, asdict(model.fingerprint), str(model.dtype), str(model.cache_dtype)])
        self._record = cache_dir() / "calibration" / f"{key[:32]}.json"
        self._known_to_pass = model.name == EMBEDDED  # its figures are those of the tests and of the README
        self._token_ids = model.tokenizer.encode(TEXT)[:TOKENS]
        self.factory = KVFactory(model.model, model.cache_dtype, self._sensitivity)

    def choose(self, profile: Profile) -> tuple[Profile, str | None]:
        """`profile` as this model uses it, or the next safer one that it stands, and a line that says so."""
        name, _, options = profile.asked.partition(",")
        if name not in MAX_KL or profile.raised or self._known_to_pass or not self.factory.compresses:
            return self.factory.for_model(profile), None
        for safer in SAFER[SAFER.index(name) :]:
            chosen = self.factory.for_model(get_profile(f"{safer},{options}" if options else safer))
            if safer not in MAX_KL or self._kl(chosen) <= MAX_KL[safer]:
                break
        notice = f"{name} would cost this model too much quality: {safer} is used"
        return chosen, None if safer == name else notice

    def _sensitivity(self, factory: KVFactory) -> Sequence[float]:
        layers = factory.full_layers
        return self._remembered("sensitivity", layers, lambda: measure_sensitivity(factory, self._token_ids))

    def _kl(self, profile: Profile) -> float:
        profile = replace(profile, window=CHECK_WINDOW, move=CHECK_WINDOW)
        found = self._remembered(
            profile.asked, 1, lambda: [measure_kl(self.factory, self._token_ids, profile)]
        )
        return found[0]

    def _remembered(self, name: str, count: int, measure: Callable[[], list[float]]) -> list[float]:
        """The `count` figures called `name`, measured if they are not on record."""
        figures: dict[str, list[float]] = {}
        # Without its record a measurement is only slower.
        with contextlib.suppress(OSError, ValueError):
            known = json.loads(self._record.read_text())
            if isinstance(known, dict):
                figures = known
        found = figures.get(name)
        if isinstance(found, list) and len(found) == count and all(type(value) is float for value in found):
            return found
        figures[name] = measure()
        with contextlib.suppress(OSError), atomic_file(self._record) as work:
            work.write_text(json.dumps(figures))
        return figures[name]


def measure_sensitivity(factory: KVFactory, token_ids: Sequence[int]) -> list[float]:
    """For each full-attention layer, the variance of its scores if the keys' relative error were 1.

    0 where it is not finite.
    """
    caches = factory.compressed(PROFILES[DEFAULT_PROFILE], _Observer)
    mx.eval(factory.model(mx.array([list(token_ids)]), cache=caches))
    observers = [cache for cache in caches if isinstance(cache, _Observer)]
    return np.nan_to_num([cache.sensitivity.item() for cache in observers], posinf=0).tolist()


def measure_kl(factory: KVFactory, token_ids: Sequence[int], profile: Profile) -> float:
    """Mean KL(exact || profile) of the next token in the second half of `token_ids`, nats."""
    first = CHECK_CHUNKS[0]
    exact = _log_probs(factory, factory.new(PROFILES["exact"]), [token_ids])
    chunks = [token_ids[:first], *(token_ids[start:stop] for start, stop in pairwise(CHECK_CHUNKS))]
    other = _log_probs(factory, factory.new(profile), chunks)
    kl = (mx.exp(exact) * (exact - other)).sum(-1).mean()
    return float(np.nan_to_num(np.array(kl), nan=np.inf))


def _log_probs(factory: KVFactory, state: KVState, chunks: Sequence[Sequence[int]]) -> mx.array:
    """After each token that is compared, (tokens, vocabulary) float32."""
    logits = [factory.model(mx.array([list(chunk)]), cache=state.caches)[0] for chunk in chunks if chunk]
    compared = mx.concatenate(logits)[CHECK_CHUNKS[0] :].astype(mx.float32)
    return compared - mx.logsumexp(compared, axis=-1, keepdims=True)


class _Observer(TurboQuantKVCache):
    """A cache that notes how much an error in its keys would matter."""

    sensitivity = mx.array(0.0)

    def attend(
        self, queries: mx.array, scale: float, mask: mx.array | str | None, sinks: mx.array | None = None
    ) -> mx.array:
        assert self.keys is not None
        B, _, _, head_dim = queries.shape
        q = (queries.astype(mx.float32) * scale).reshape(B, self.keys.shape[1], -1, head_dim)
        sink = self.sink_tokens
        if isinstance(self.key_body, CodedBody):
            keys = self.keys[:, :, sink:].astype(mx.float32)
            self.sensitivity = self.key_body.sensitivity(q, keys, sink)
        return super().attend(queries, scale, mask, sinks)
