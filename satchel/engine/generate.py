"""Reads a prompt and writes an answer, one token at a time, on top of a KV state.

Maps token ids to token ids and, for the stream, to text. Knows nothing of messages, disk or terminal.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice

import mlx.core as mx
import numpy as np

from satchel.engine.device import queues_ahead
from satchel.engine.fork import fork
from satchel.engine.kv_state import KVState
from satchel.engine.model import LoadedModel

LAST_CHUNK = 64  # most prompt tokens that are read together with the first answer token
CLEAR_EVERY = 256  # answer tokens after which MLX's buffer cache is emptied, as mlx-lm does

Sampler = Callable[[mx.array], mx.array]
LogitsProcessor = Callable[[mx.array, mx.array], mx.array]


@dataclass(frozen=True, slots=True)
class Progress:
    """Prompt tokens read so far, of `total`."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Delta:
    """The next token; `text` is what can be shown since the last one, often empty inside a character.

    `token_id` is None for what remains to be shown after the last token.
    """

    token_id: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts in tokens, speeds in tokens a second, memory in bytes."""

    prompt_tokens: int
    reused_tokens: int
    generated_tokens: int
    prefill_tps: float
    decode_tps: float
    first_token_s: float
    peak_memory_bytes: int


@dataclass(frozen=True, slots=True)
class Finished:
    """Ended by "stop", "length" or "cancelled". The state has read `read_tokens` of prompt and answer."""

    stop_reason: str
    stats: Stats
    read_tokens: int


def generate(
    model: LoadedModel,
    state: KVState,
    prompt: Sequence[int],
    *,
    max_tokens: int,
    sampler: Sampler,
    cancel: threading.Event,
    logits_processors: list[LogitsProcessor] | None = None,
    prefill_step: int = 512,
    reused_tokens: int = 0,
    stops: Collection[int] = (),
) -> Iterator[Progress | Delta | Finished]:
    """Read `prompt` (at least one token) after what `state` holds and answer until a stop token.

    The state ends up holding the prompt and the tokens yielded, with or without the last one: `Finished` says
    how many. `cancel` ends it within one token, or one chunk of `prefill_step` prompt tokens; the last event
    is always `Finished`.

    Args:
        stops: counts of prompt tokens at which a chunk ends: a `Progress` of each is yielded while the state
            holds just as many. Those that are not within the prompt, whose last token is read with the
            answer, count for nothing. Every stop costs a pass through the model.
    """
    mx.reset_peak_memory()
    clock = _Clock(prompt_tokens=len(prompt), reused_tokens=reused_tokens)
    detokenizer, stop_ids = model.tokenizer.detokenizer, model.tokenizer.eos_token_ids
    read, reason = 0, "length"
    end = max([len(prompt) - min(prefill_step, LAST_CHUNK), *(stop for stop in stops if stop < len(prompt))])
    for read in prefill(model, state, prompt[:end], step=prefill_step, stops=stops):
        yield Progress(read, len(prompt))
        if cancel.is_set():
            yield Finished("cancelled", clock.stats(), read)
            return
    decoder = _Decoder(model, state, sampler, logits_processors or [])
    for token_id in islice(decoder.answer(prompt[read:]), max_tokens):
        clock.token()
        if token_id in stop_ids:
            yield Delta(token_id, "")
            reason = "stop"
            break
        detokenizer.add_token(token_id)
        yield Delta(token_id, detokenizer.last_segment)
        if cancel.is_set():
            reason = "cancelled"
            break
    detokenizer.finalize()
    if rest := detokenizer.last_segment:  # reading it moves on: it must be read once
        yield Delta(None, rest)
    yield Finished(reason, clock.stats(), read + decoder.read_tokens)


def prefill(
    model: LoadedModel, state: KVState, prompt: Sequence[int], *, step: int, stops: Collection[int] = ()
) -> Iterator[int]:
    """Read all of `prompt` after what `state` holds, yielding how many tokens are read after each chunk.

    Args:
        step: tokens in a chunk, at most.
        stops: counts of prompt tokens at which a chunk ends.
    """
    within = sorted({stop for stop in stops if 0 < stop < len(prompt)})
    done = 0
    while done < len(prompt):
        following = next((stop for stop in within if stop > done), len(prompt))
        chunk = prompt[done : min(done + step, following)]
        model.model(mx.array([list(chunk)]), cache=state.caches)
        mx.eval([cache.state for cache in state.caches])
        mx.clear_cache()
        done += len(chunk)
        yield done


def log_probabilities(
    model: LoadedModel, state: KVState, prompt: Sequence[int], answers: Sequence[Sequence[int]]
) -> list[float]:
    """How likely each of `answers` (token ids, at least one each) is after what `state` holds and `prompt`.

    In nats. Where their first tokens tell the answers apart, these alone count, and the prompt is read in one
    pass; otherwise all their tokens do. The state ends up holding the prompt.
    """
    logits = model.model(mx.array([list(prompt)]), cache=state.caches)[0, -1]
    first = _log_softmax(logits)  # (vocabulary,)
    totals = [float(first[answer[0]]) for answer in answers]
    if len({answer[0] for answer in answers}) == len(answers):
        return totals
    for index, answer in enumerate(answers):
        if len(answer) > 1:
            logits = model.model(mx.array([list(answer[:-1])]), cache=fork(state).caches)[0]
            rows = _log_softmax(logits)  # (len(answer) - 1, vocabulary)
            totals[index] += float(rows[np.arange(len(answer) - 1), list(answer[1:])].sum())
    return totals


def _log_softmax(logits: mx.array) -> np.ndarray:
    return np.array((logits - mx.logsumexp(logits, axis=-1, keepdims=True)).astype(mx.float32))


class _Decoder:
    """Reads the end of a prompt and samples an answer; `read_tokens` counts what it has read of both.

    mlx-lm's `generate_step` reads a prompt's last token by itself and queues the next step before it hands a
    token out. Here the prompt's last chunk and the first token are one pass, and the first token is handed
    out at once: on a CPU that saves two decode steps of the wait for an answer.
    """

    def __init__(
        self,
        model: LoadedModel,
        state: KVState,
        sampler: Sampler,
        logits_processors: Sequence[LogitsProcessor],
    ) -> None:
        self.read_tokens = 0
        self._model, self._state = model, state
        self._sampler, self._processors = sampler, logits_processors
        # Repetition counts from the answer's start: the prompt's words may well be wanted in the answer.
        self._answer = mx.array([], dtype=mx.uint32)

    def answer(self, prompt: Sequence[int]) -> Iterator[int]:
        """The sampled tokens, without end."""
        token = self._step(mx.array(list(prompt)))
        for number in count():
            self._answer = mx.concatenate([self._answer, token.astype(mx.uint32)])
            # Queue the next step while this token is handled, where the device can.
            following = self._step(token) if number and queues_ahead(self._model.device) else None
            yield int(np.array(token)[0])
            token = self._step(token) if following is None else following
            if number % CLEAR_EVERY == 0:
                mx.clear_cache()

    def _step(self, token_ids: mx.array) -> mx.array:
        """Read `token_ids` (n,) and begin to sample the next token, (1,)."""
        logits = self._model.model(token_ids[None], cache=self._state.caches)[:, -1]
        for process in self._processors:
            logits = process(self._answer, logits)
        token = self._sampler(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
        mx.async_eval(token)
        self.read_tokens += token_ids.size
        return token


class _Clock:
    """When tokens were read and written."""

    def __init__(self, prompt_tokens: int, reused_tokens: int) -> None:
        self.prompt_tokens, self.reused_tokens = prompt_tokens, reused_tokens
        self.generated = 0
        self.start = self.first = self.last = time.perf_counter()

    def token(self) -> None:
        self.last = time.perf_counter()
        if not self.generated:
            self.first = self.last
        self.generated += 1

    def stats(self) -> Stats:
        prefill_s, decode_s = self.first - self.start, self.last - self.first
        return Stats(
            prompt_tokens=self.prompt_tokens,
            reused_tokens=self.reused_tokens,
            generated_tokens=self.generated,
            prefill_tps=self.prompt_tokens / prefill_s if prefill_s > 0 else 0.0,
            decode_tps=(self.generated - 1) / decode_s if decode_s > 0 else 0.0,
            first_token_s=prefill_s,
            peak_memory_bytes=mx.get_peak_memory(),
        )
