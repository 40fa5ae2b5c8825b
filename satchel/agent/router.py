"""What a message is after: a search, a command, or an answer. Knows nothing of what then happens.

Features of the words and of one pass of the model are read out linearly. For a model without a read-out of
its own, one of the words alone is combined with how likely the model finds each label. See docs/routing.md.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np

from satchel.agent.routing.asked import requests_in
from satchel.agent.routing.intents import MIN_CONFIDENCE, Decision, Intent
from satchel.agent.routing.labels import LabelScoring
from satchel.agent.routing.read_out import (
    WORDS_ONLY,
    ReadOut,
    file_name,
    find_read_out,
    load_read_out,
    resolved,
    softmax,
)
from satchel.agent.routing.reading import model_features
from satchel.agent.routing.words import named_features, place_of, word_features
from satchel.cache_store.manifest import Message
from satchel.engine.generate import Progress
from satchel.engine.hidden import layer_count
from satchel.engine.model import LoadedModel
from satchel.errors import NotFoundError, SatchelError
from satchel.sanitize import encodable

__all__ = ["MIN_CONFIDENCE", "Decision", "Intent", "IntentRouter"]

LABEL_WEIGHT = 0.5  # of a nat between labels, beside the words' scores
REMEMBERED = 64  # requests
SHOWN = 40  # characters of an earlier request
TOLD = 2  # words that a decision is explained by
_GOES_ON = len(Intent)
_SMALL_WORDS = {"the", "and", "for", "you", "are", "was", "has", "its", "that", "this", "with", "from", "not"}


class IntentRouter:
    """Decides for one model. Nothing is read before the first decision.

    Attributes:
        notices: lines for the user, of read-outs that could not be used.
    """

    def __init__(self, model: LoadedModel, *, with_read_out: bool = True) -> None:
        """
        Args:
            with_read_out: use the model's own, where there is one.
        """
        self.notices: list[str] = []
        self._model = model
        self._with_read_out = with_read_out
        self._read_out: ReadOut | None = None  # the model's own, or the words'
        self._labels: LabelScoring | None = None
        self._remembered: OrderedDict[str, np.ndarray] = OrderedDict()

    def route(self, message: str, history: Sequence[Message] = ()) -> Decision:
        """Decide what `message` is after, said behind `history`.

        Raises:
            SatchelError: the part of Satchel that decides is missing or damaged.
        """
        message = encodable(message)  # no tokenizer takes lone surrogates
        if not message.strip():
            return Decision(Intent.CHAT, 1.0, "nothing is asked", Intent.CHAT, Intent.SEARCH)
        before: np.ndarray | None = None
        earlier = ""
        for earlier, intent in requests_in(history):
            if intent is None:
                before = resolved(self._outcomes(earlier), before)
            else:
                before = np.eye(len(Intent))[list(Intent).index(intent)]
        outcomes = self._outcomes(message)
        return self._decision(message, earlier, outcomes, resolved(outcomes, before), before is not None)

    def prepare(self, cancel: threading.Event) -> Iterator[Progress]:
        """Read what the first decision needs, if it needs anything.

        Raises:
            SatchelError: as `route`.
        """
        self._prepared()
        if self._labels:
            with contextlib.suppress(SatchelError):  # `route` does without
                yield from self._labels.preamble.prepare(cancel)

    @property
    def kind(self) -> str:
        """By what this router decides: `read-out`, `labels` (and words), or `words` alone."""
        read_out = self._prepared()
        return "labels" if self._labels else "read-out" if read_out.reads_model else "words"

    def _decision(
        self, message: str, earlier: str, outcomes: np.ndarray, probabilities: np.ndarray, follows: bool
    ) -> Decision:
        order = np.argsort(-probabilities, kind="stable")
        likeliest, runner_up = (list(Intent)[place] for place in order[:2])
        confidence = float(probabilities[order[0]])
        if confidence < MIN_CONFIDENCE:
            others = float(probabilities[order[1]])
            why = f"unsure: {likeliest} {confidence:.2f}, {runner_up} {others:.2f}"
            return Decision(Intent.CHAT, confidence, why, likeliest, runner_up)
        if follows and outcomes[_GOES_ON] > outcomes[order[0]]:
            why = f"it goes on from “{_short(earlier)}”"
        else:
            telling = self._telling(message, int(order[0]))
            why = f"because of {telling}" if telling else "by the whole of it"
        return Decision(likeliest, confidence, why, likeliest, runner_up)

    def _telling(self, message: str, outcome: int) -> str:
        """The words of `message` that speak most for `outcome`, in quotes."""
        weights = self._prepared().words
        weights = weights - weights.mean(1, keepdims=True)
        told: dict[str, float] = {}
        for name, value in named_features(message).items():
            place, sign = place_of(name)
            said = sign * value * float(weights[place, outcome])
            is_word = name.isalpha() and len(name) >= (3 if name.isascii() else 2)
            if is_word and name not in _SMALL_WORDS and said > 0:
                told[name] = said
        chosen: list[str] = []
        for name in sorted(told, key=lambda name: -told[name]):
            if len(chosen) < TOLD and not any(name in other or other in name for other in chosen):
                chosen.append(name)
        return " and ".join(f"“{name}”" for name in chosen)

    def _outcomes(self, text: str) -> np.ndarray:
        """The probabilities of `OUTCOMES` for `text` by itself, (4,)."""
        if (known := self._remembered.get(text)) is None:
            known = softmax(self._scores(text))
            self._remembered[text] = known
            if len(self._remembered) > REMEMBERED:
                self._remembered.popitem(last=False)
        return known

    def _scores(self, text: str) -> np.ndarray:
        read_out = self._prepared()
        words = word_features(text)
        if read_out.reads_model:
            try:
                return read_out.scores(words, model_features(self._model, text, read_out.layers))
            except SatchelError as err:
                read_out = self._read_out = self._without_own(err)
        scores = read_out.scores(words)
        if self._labels:
            try:
                scores[:_GOES_ON] += LABEL_WEIGHT * self._labels.scores(text)
            except SatchelError as err:
                self._labels = None
                self.notices.append(f"{err.one_line()}: messages are sorted by their words alone")
        return scores

    def _prepared(self) -> ReadOut:
        if self._read_out is None:
            self._read_out = self._own() or self._without_own()
        return self._read_out

    def _own(self) -> ReadOut | None:
        """The read-out of the model; None where there is none that can be used."""
        path = find_read_out(file_name(self._model.fingerprint)) if self._with_read_out else None
        try:
            return load_read_out(path, layer_count(self._model)) if path else None
        except SatchelError as err:
            self._tell(err)
            return None

    def _without_own(self, reason: SatchelError | None = None) -> ReadOut:
        """The read-out of words; from now on the model is asked for labels."""
        if reason:
            self._tell(reason)
        path = find_read_out(WORDS_ONLY)
        if path is None:
            raise NotFoundError("the read-out of words is missing", "install Satchel again")
        self._labels = LabelScoring(self._model)
        return load_read_out(path, 0)

    def _tell(self, reason: SatchelError) -> None:
        self.notices.append(f"{reason.one_line()}: the model is asked for labels in its place")


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
