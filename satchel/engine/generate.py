"""Reads a prompt and writes an answer, one token at a time, on top of a KV state.

Maps token ids to token ids and, for the stream, to text. Knows nothing of messages, disk or terminal.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import mlx.core as mx
from mlx_lm.generate import generate_step

from satchel.engine.kv_state import KVState
from satchel.engine.model import LoadedModel

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
) -> Iterator[Progress | Delta | Finished]:
    """Read `prompt` (at least one token) after what `state` holds and answer until a stop token.

    The state ends up holding the prompt and every token yielded, the stop token included. `cancel` ends it
    within one token, or one chunk of `prefill_step` prompt tokens; the last event is always `Finished`.
    """
    mx.reset_peak_memory()
    clock = _Clock(prompt_tokens=len(prompt), reused_tokens=reused_tokens)
    detokenizer, stop_ids = model.tokenizer.detokenizer, model.tokenizer.eos_token_ids
    reason = "length"
    for done in _prefill(model, state, prompt, prefill_step):
        clock.prompt_read = done
        yield Progress(done, len(prompt))
        if cancel.is_set():
            yield Finished("cancelled", clock.stats(), clock.tokens_read)
            return
    steps = generate_step(
        mx.array([prompt[-1]]),
        model.model,
        max_tokens=max_tokens,
        sampler=sampler,
        logits_processors=logits_processors,
        prompt_cache=state.caches,
    )
    with closing(steps):
        for token_id, _ in steps:
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
    yield Finished(reason, clock.stats(), clock.tokens_read)


def _prefill(model: LoadedModel, state: KVState, prompt: Sequence[int], step: int) -> Iterator[int]:
    """Read all of `prompt` but its last token, yielding how many tokens are read after each chunk."""
    for start in range(0, len(prompt) - 1, step):
        stop = min(start + step, len(prompt) - 1)
        model.model(mx.array([list(prompt[start:stop])]), cache=state.caches)
        mx.eval([cache.state for cache in state.caches])
        mx.clear_cache()
        yield stop


class _Clock:
    """When tokens were read and written."""

    def __init__(self, prompt_tokens: int, reused_tokens: int) -> None:
        self.prompt_tokens, self.reused_tokens = prompt_tokens, reused_tokens
        self.prompt_read = self.generated = 0
        self.start = self.first = self.last = time.perf_counter()

    def token(self) -> None:
        self.last = time.perf_counter()
        if not self.generated:
            self.first, self.prompt_read = self.last, self.prompt_tokens
        self.generated += 1

    @property
    def tokens_read(self) -> int:
        return self.prompt_read + self.generated

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
