"""Compares how likely a model finds each label as its answer, behind examples. Knows nothing of read-outs.

A model prefers some words whatever it is asked. How likely the labels are for requests without content
(contextual calibration, arXiv 2102.09690) and over requests of all kinds (batch calibration, arXiv
2309.17249) is taken off.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from satchel.agent.routing.intents import Intent
from satchel.cache_store.manifest import Message
from satchel.engine.model import LoadedModel
from satchel.session.preamble import Preamble

SYSTEM = (
    "Sort each request of the user. Answer with one word.\n"
    "search: it needs facts from the web that are new or change.\n"
    "shell: something is to be done or looked at on this computer.\n"
    "chat: the assistant answers, explains, writes or translates by itself."
)
SHOWN = (
    ("will it be windy in Bergen tomorrow", Intent.SEARCH),
    ("show the five largest folders here", Intent.SHELL),
    ("what does umask do?", Intent.CHAT),
    ("解压 backup.tar.gz", Intent.SHELL),
    ("who is the chancellor of Germany at present?", Intent.SEARCH),
    ("write a bash script that lists old files", Intent.CHAT),
    ("is anything listening on port 9000?", Intent.SHELL),
    ("港股今天收盘多少点", Intent.SEARCH),
    ("I'm a bit sad today", Intent.CHAT),
    ("newest release of clang", Intent.SEARCH),
    ("什么是软链接", Intent.CHAT),
    ("git diff of the last two commits", Intent.SHELL),
    ("translate: where is the station?", Intent.CHAT),
    ("results of last night's matches", Intent.SEARCH),
    ("看看内存还剩多少", Intent.SHELL),
    ("谁发明了电灯", Intent.CHAT),
)
WITHOUT_CONTENT = ("N/A", "...", "[request]")
OF_ALL_KINDS = (
    *("how warm is it in Cape Town right now", "最新的安卓版本是多少"),
    *("show the ten newest files", "重启 docker 服务"),
    *("what is a linked list?", "写一段生日祝福"),
)
MAX_CHARACTERS = 600  # of a request


class LabelScoring:
    """Scores of the three intents by the labels' log-probabilities."""

    def __init__(self, model: LoadedModel) -> None:
        examples = [Message(role="system", content=SYSTEM)]
        for request, intent in SHOWN:
            examples += [Message(role="user", content=request), Message(role="assistant", content=intent)]
        self.preamble = Preamble(model, examples)

    def scores(self, text: str) -> np.ndarray:
        """(3,), in nats, without what the model says whatever is asked; 0 on average.

        Raises:
            SatchelError: the model cannot read that much, or has no form for a chat.
        """
        scores = self._log_probabilities(text[:MAX_CHARACTERS]) - self._prior
        return scores - scores.mean()

    @cached_property
    def _prior(self) -> np.ndarray:
        neutral = (*WITHOUT_CONTENT, *OF_ALL_KINDS)
        return np.mean([self._log_probabilities(text) for text in neutral], axis=0)

    def _log_probabilities(self, text: str) -> np.ndarray:
        return np.array(self.preamble.log_probabilities(text, [intent.value for intent in Intent]))
