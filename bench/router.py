"""How often the router is right, on requests that no read-out was fitted to; and fits read-outs.

    bench/router.py --model embedded path/to/model.gguf    accuracy, confusion and time on the held-out half
    bench/router.py --labels                               as if the model had no read-out
    bench/router.py --model owner/name --fit               makes a read-out for a model that has none

The read-outs that come with Satchel were made by `--fit --into satchel/agent/data/read_outs`, and that of
words, which needs no model, by `--fit --model words` with the same folder.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import show

from satchel.agent.router import Decision, Intent, IntentRouter
from satchel.agent.routing.examples import BUILDING, HELD_OUT, Example, load_examples
from satchel.agent.routing.fitting import Fit, fit, fit_model, word_matrix
from satchel.agent.routing.read_out import WORDS_ONLY, file_name, fitted_dir, save_read_out
from satchel.cache_store.manifest import Message
from satchel.engine.model import LoadedModel, load_model
from satchel.errors import SatchelError

TESTS = Path(__file__).parents[1] / "tests" / "data" / HELD_OUT.name
COLUMNS = (
    "model",
    "by",
    "requests",
    "accuracy",
    "macro F1",
    "English",
    "Chinese",
    "follow-ups",
    "unsure",
    "ms",
)
INTENTS = list(Intent)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", nargs="+", default=["embedded"])
    parser.add_argument("--examples", type=Path, default=HELD_OUT if HELD_OUT.is_file() else TESTS)
    parser.add_argument("--labels", action="store_true", help="as if the model had no read-out")
    parser.add_argument("--wrong", action="store_true", help="list the requests that are taken wrongly")
    parser.add_argument("--fit", action="store_true", help="fit a read-out to the building half, and keep it")
    parser.add_argument("--into", type=Path, default=fitted_dir(), help="where --fit keeps it")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    try:
        if options.fit:
            for name in options.model:
                keep_fit(name, options.into)
        else:
            measure(options)
    except SatchelError as err:
        sys.exit(f"{parser.prog}: {err.one_line()}")


def keep_fit(name: str, folder: Path) -> None:
    """Fit a read-out for the model `name`, keep it in `folder`, and say what cross-validation finds."""
    examples = load_examples(BUILDING)
    if name == WORDS_ONLY:
        fitted, file = fit(examples, word_matrix(examples)), WORDS_ONLY
    else:
        model = load_model(name)
        fitted = fit_model(model, examples, lambda read: tell(read, len(examples)))
        file = file_name(model.fingerprint)
    stored = save_read_out(fitted.read_out, folder / f"{file}.safetensors")
    print(described(name, fitted, examples))
    print(f"{folder / file}.safetensors: {stored} bytes")


def tell(read: int, total: int) -> None:
    end = "\n" if read == total else ""
    print(f"\rreading requests: {read} of {total}", end=end, file=sys.stderr, flush=True)


def described(name: str, fitted: Fit, examples: Sequence[Example]) -> str:
    return (
        f"{name}: {fitted.accuracy(examples):.3f} right in cross-validation over {len(examples)} requests "
        f"(share of the model {fitted.share}, ridge {fitted.ridge}, sharpness {fitted.sharpness})"
    )


def measure(options: argparse.Namespace) -> None:
    examples = load_examples(options.examples)
    rows = []
    for name in options.model:
        model = load_model(name)
        decisions, by, seconds = decide(model, examples, with_read_out=not options.labels)
        rows.append(figures(name, by, examples, decisions, seconds))
        show_confusion(name, examples, decisions)
        if options.wrong:
            show_wrong(examples, decisions)
    show(f"Routing, {options.examples.name}", COLUMNS, rows, options.json)


def decide(
    model: LoadedModel, examples: Sequence[Example], *, with_read_out: bool
) -> tuple[list[Decision], str, float]:
    """The decisions, by what they were made, and the seconds they took. What loads once is not counted."""
    router = IntentRouter(model, with_read_out=with_read_out)
    router.route("hello")
    decisions, seconds = [], 0.0
    for example in examples:
        history = [message for _, text in example.history for message in turn(text)]
        # In a talk, the requests before this one have been judged when they came.
        for stop in range(0, len(history), 2):
            router.route(history[stop].content, history[:stop])
        start = time.perf_counter()
        decisions.append(router.route(example.message, history))
        seconds += time.perf_counter() - start
    for notice in router.notices:
        print(notice, file=sys.stderr)
    return decisions, router.kind, seconds


def turn(text: str) -> tuple[Message, Message]:
    return Message(role="user", content=text), Message(role="assistant", content="…")


def figures(
    name: str, by: str, examples: Sequence[Example], decisions: Sequence[Decision], seconds: float
) -> tuple[Any, ...]:
    pairs = list(zip(examples, decisions, strict=True))
    return (
        Path(name).stem,
        by,
        len(pairs),
        accuracy(pairs),
        macro_f1(pairs),
        accuracy([pair for pair in pairs if pair[0].language == "en"]),
        accuracy([pair for pair in pairs if pair[0].language == "zh"]),
        accuracy([pair for pair in pairs if pair[0].history]),
        sum(decision.unsure for decision in decisions),
        1000 * seconds / len(pairs),
    )


def accuracy(pairs: Sequence[tuple[Example, Decision]]) -> float:
    right = sum(decision.intent is example.label for example, decision in pairs)
    return right / len(pairs) if pairs else float("nan")


def macro_f1(pairs: Sequence[tuple[Example, Decision]]) -> float:
    """The mean over the intents of the harmonic mean of precision and recall."""
    return sum(f1(pairs, intent) for intent in INTENTS) / len(INTENTS)


def f1(pairs: Sequence[tuple[Example, Decision]], intent: Intent) -> float:
    hits = sum(decision.intent is intent and example.label is intent for example, decision in pairs)
    claimed = sum(decision.intent is intent for _, decision in pairs)
    true = sum(example.label is intent for example, _ in pairs)
    return 2 * hits / (claimed + true) if claimed + true else 0.0


def show_confusion(name: str, examples: Sequence[Example], decisions: Sequence[Decision]) -> None:
    counts = Counter((e.label, d.intent) for e, d in zip(examples, decisions, strict=True))
    rows = [(label, *(counts[label, intent] for intent in INTENTS)) for label in INTENTS]
    show(f"{name}: what is right (rows), what it was taken for", ("", *INTENTS), rows, None)


def show_wrong(examples: Sequence[Example], decisions: Sequence[Decision]) -> None:
    for example, decision in zip(examples, decisions, strict=True):
        if decision.intent is not example.label:
            before = " | ".join(text for _, text in example.history)
            taken = f"{example.label}, taken for {decision.intent} ({decision.confidence:.2f})"
            print(f"{taken}: {f'[{before}] ' if before else ''}{example.message}")


if __name__ == "__main__":
    main()
