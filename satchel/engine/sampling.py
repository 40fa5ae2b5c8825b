"""How the next token is drawn. Knows nothing of prompts or caches."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import mlx.core as mx
from mlx_lm.sample_utils import make_logits_processors, make_sampler
from pydantic import Field, TypeAdapter

from satchel.engine.generate import LogitsProcessor, Sampler

PENALTY_TOKENS = 64  # how far back a repetition counts
# A temperature or nucleus below this leaves the likeliest token alone anyway; far below it, float32 overflows
# (logits divided by the one) or underflows (the other), and what is drawn is random.
NEGLIGIBLE = 1e-3


@dataclass(frozen=True, slots=True)
class Sampling:
    """Temperature 0 takes the likeliest token; `top_k` 0, `top_p` 1 and a penalty of 1 change nothing."""

    temperature: Annotated[float, Field(ge=0, le=5)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    repetition_penalty: Annotated[float, Field(ge=1, le=2)] = 1.0
    seed: int | None = None

    def sampler(self) -> Sampler:
        """Log-probabilities (1, vocabulary) to a token id (1,); reproducible with a seed."""
        if self.seed is not None:
            mx.random.seed(self.seed)
        sample: Sampler = make_sampler(
            temp=self.temperature if self.temperature >= NEGLIGIBLE else 0.0,
            top_p=max(self.top_p, NEGLIGIBLE) if self.top_p < 1 else 0.0,
            top_k=self.top_k,
        )
        return sample

    def logits_processors(self) -> list[LogitsProcessor] | None:
        """What generation applies to the logits before sampling, if anything."""
        if self.repetition_penalty == 1:
            return None
        processors: list[LogitsProcessor] = make_logits_processors(
            repetition_penalty=self.repetition_penalty, repetition_context_size=PENALTY_TOKENS
        )
        return processors

    def with_choices(
        self, temperature: float | None = None, top_p: float | None = None, seed: int | None = None
    ) -> Sampling:
        """These settings under what the user chose; None is no choice."""
        return replace(
            self,
            temperature=self.temperature if temperature is None else temperature,
            top_p=self.top_p if top_p is None else top_p,
            seed=self.seed if seed is None else seed,
        )


# A model of 135 million parameters falls into loops when nothing keeps it from repeating itself.
SMALL_MODEL = Sampling(repetition_penalty=1.05)


def recommended(folder: Path) -> Sampling:
    """What the model's makers recommend in `generation_config.json`; greedy where they say nothing usable."""
    try:
        given = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
        known = {
            name: given[name] for name in Sampling.__dataclass_fields__ if name in given and name != "seed"
        }
        return TypeAdapter(Sampling).validate_python(known)
    except (OSError, ValueError, TypeError, RecursionError):
        return Sampling()
