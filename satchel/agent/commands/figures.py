"""Commands that show figures: of the talk, of what it has cost, and of the model's speed.

Knows nothing of how the first two are counted.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from satchel.agent.charts import takes_blocks
from satchel.agent.commands.listing import facts
from satchel.agent.events import Event, Notice, Output, PrefillProgress
from satchel.agent.turns import sparklines

if TYPE_CHECKING:
    import mlx.core as mx

    from satchel.agent.desk import Desk
    from satchel.config.profiles import Profile

PREFILL_TOKENS, DECODE_TOKENS = 256, 32
WARM_UP_TOKENS = 8  # read and written ahead of each measure: what is used first is made first
TEXT = "Figures of speed depend on the machine, on what else it does, and on how much was read before. "


def stats(desk: Desk, argument: str) -> Iterator[Event]:
    shown = desk.session.stats()
    if desk.sync is not None:
        shown["sync"] = desk.sync.state
    if len(desk.session.figures) > 1:
        shown |= sparklines(desk.session.figures, takes_blocks(sys.stdout))
    yield Output(facts(shown))


def cost(desk: Desk, argument: str) -> Iterator[Event]:
    yield Output(facts(desk.tools.meter.lines()))


@dataclass(frozen=True, slots=True)
class _Speed:
    """Tokens a second, and the bytes of the KV state after all of them."""

    prefill_tps: float
    decode_tps: float
    kv_bytes: int


def bench(desk: Desk, argument: str) -> Iterator[Event]:
    from satchel.config.profiles import get_profile

    profile, exact = desk.session.profile, get_profile("exact")
    lines = [f"{'KV PROFILE':<16}  {'PREFILL':>10}  {'DECODE':>10}  {'KV':>9}"]
    for each in [profile] if profile.is_exact else [profile, exact]:
        speed = yield from _measured(desk, each)
        if speed is None:
            yield Notice("stopped")
            return
        lines.append(
            f"{each.asked:<16}  {speed.prefill_tps:>8.0f}/s  {speed.decode_tps:>8.1f}/s  "
            f"{speed.kv_bytes / 1e6:>6.2f} MB"
        )
    yield Output("\n".join(lines))
    yield Notice(
        f"tokens a second: {PREFILL_TOKENS} read in an empty context, {DECODE_TOKENS} written after them; "
        "`satchel bench kv` measures more"
    )


def _measured(desk: Desk, profile: Profile) -> Generator[Event, None, _Speed | None]:
    """Returns how fast the model is with an empty state of `profile`; None if the user ended it."""
    if (yield from _run(desk, profile, WARM_UP_TOKENS, WARM_UP_TOKENS)) is None:
        return None
    return (yield from _run(desk, profile, PREFILL_TOKENS, DECODE_TOKENS))


def _run(
    desk: Desk, profile: Profile, prompt_tokens: int, answer_tokens: int
) -> Generator[Event, None, _Speed | None]:
    from satchel.engine.generate import Finished, Progress, generate

    manager = desk.manager
    state = manager.factory.new(profile)
    text = TEXT
    while len(token_ids := manager.model.tokenizer.encode(text)) < prompt_tokens:
        text += text
    for event in generate(
        manager.model,
        state,
        token_ids[:prompt_tokens],
        max_tokens=answer_tokens,
        sampler=_likeliest,
        logits_processors=[_Endless(manager.model.tokenizer.eos_token_ids)],
        cancel=desk.cancel,
        prefill_step=manager.settings.prefill_step,
    ):
        match event:
            case Progress(done, total):
                yield PrefillProgress(done, total)
            case Finished("cancelled"):
                return None
            case Finished(stats=stats):
                return _Speed(stats.prefill_tps, stats.decode_tps, state.nbytes)
    raise AssertionError("an answer ends with Finished")


def _likeliest(log_probabilities: mx.array) -> mx.array:
    return log_probabilities.argmax(axis=-1)


class _Endless:
    """Takes from the model (a logits processor) the words that would end its answer too early."""

    def __init__(self, stop_ids: set[int]) -> None:
        self._stop_ids = sorted(stop_ids)

    def __call__(self, answer: mx.array, logits: mx.array) -> mx.array:
        """`logits` (B, vocabulary), with those of stop tokens at -inf."""
        logits[..., self._stop_ids] = float("-inf")
        return logits
