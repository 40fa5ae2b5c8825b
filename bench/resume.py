"""Seconds to the first new token: a resumed session against reading its context again, in one run."""

from __future__ import annotations

from common import (
    arguments,
    first_token_s,
    manager_in_new_store,
    pydoc_text,
    show,
)  # first: it loads OpenBLAS ahead of MLX

# isort: split

import time
from typing import Any

from satchel.session import SessionManager

QUESTION = "Go on."
ROOM = 29  # tokens that the template adds to the context


def measure(manager: SessionManager, tokens: int) -> list[Any]:
    tokenizer = manager.model.tokenizer
    question = tokenizer.decode(tokenizer.encode(pydoc_text())[: tokens - ROOM])
    session = manager.new()
    first_token_s(session, question)
    session.save(f"context of {tokens}")

    resumed_s = []
    for _ in range(5):
        start = time.perf_counter()
        resumed = manager.open(session.name)
        opened_s = time.perf_counter() - start
        answer_s, finished = first_token_s(resumed, QUESTION)
        resumed_s.append((opened_s + answer_s, opened_s, answer_s))
    total_s, opened_s, answer_s = sorted(resumed_s)[2]

    cold = manager.new()
    cold.messages = list(session.messages)
    cold_s, cold_finished = first_token_s(cold, QUESTION)
    reused, read = finished.stats.reused_tokens, cold_finished.stats.prompt_tokens
    return [
        f"{len(session.token_ids)} tokens",
        reused,
        opened_s,
        answer_s,
        total_s,
        read,
        cold_s,
        cold_s / total_s,
    ]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 7936])
    options = parser.parse_args()
    with manager_in_new_store(options.model) as (manager, _):
        rows = [measure(manager, tokens) for tokens in options.tokens]
    columns = [
        "context",
        "reused",
        "open s",
        "first token s",
        "resume s",
        "read again",
        "read again s",
        "ratio",
    ]
    show("Time to the first new token, median of 5 resumes", columns, rows, options.json)


if __name__ == "__main__":
    main()
