"""Examples that a model reads once, and questions that it answers behind them. Knows nothing of talks."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator, Sequence
from functools import cached_property

from satchel.cache_store.local import LocalStore
from satchel.cache_store.maintenance import remove
from satchel.cache_store.manifest import Message
from satchel.cache_store.snapshot import canonical_json
from satchel.config.paths import cache_dir
from satchel.config.profiles import get_profile
from satchel.config.settings import Settings
from satchel.engine.generate import Delta, Finished, Progress
from satchel.engine.model import LoadedModel
from satchel.errors import SatchelError
from satchel.session.manager import SessionManager
from satchel.session.session import Session

STORE = "prepared"  # below the cache directory: all of it can be made again
KEPT = 12  # examples of one model and shell each take some 20 MB


class Preamble:
    """`examples` (a system message, then questions and answers), behind which questions are answered.

    The model reads them at the first question. Their KV state is kept as a session of a store of its own in
    the cache directory, for whichever process asks next.
    """

    def __init__(self, model: LoadedModel, examples: Sequence[Message]) -> None:
        self._model = model
        self._examples = list(examples)
        self._session: Session | None = None  # that has read the examples, or a part of them
        self._is_ready = False

    def prepare(self, cancel: threading.Event) -> Iterator[Progress]:
        """Read the examples, if that was not done yet. What was read when `cancel` is set is kept for later.

        Raises:
            SatchelError: they are more than the model takes.
        """
        if self._session is None:
            self._session = self._opened() or self._manager.new()
        if self._is_ready:
            return
        session = self._session
        session.messages = list(self._examples)
        yield from session.read_ahead(cancel)
        if not cancel.is_set():
            self._is_ready = True
            with contextlib.suppress(SatchelError, OSError):  # they are read again the next time
                self._keep(session)

    def answer(
        self, text: str, *, max_tokens: int, cancel: threading.Event
    ) -> Iterator[Progress | Delta | Finished]:
        """Answer `text` as the examples do, always with the likeliest token; nothing once `cancel` is set.

        Raises:
            SatchelError: the examples and the question are more than the model takes.
        """
        yield from self.prepare(cancel)
        if self._session and not cancel.is_set():
            yield from self._session.aside(text, max_tokens=max_tokens, cancel=cancel)

    def log_probabilities(self, text: str, answers: Sequence[str]) -> list[float]:
        """How likely each of `answers` is as the beginning of the answer to `text`, in nats.

        Raises:
            SatchelError: as `answer`.
        """
        for _ in self.prepare(threading.Event()):
            pass
        assert self._session is not None
        return self._session.log_probabilities(text, answers)

    @cached_property
    def _manager(self) -> SessionManager:
        settings = Settings(temperature=0.0, top_p=1.0, auto_save=False, share_prefixes=False)
        return SessionManager(LocalStore(cache_dir() / STORE), self._model, get_profile("exact"), settings)

    @cached_property
    def _name(self) -> str:
        """Of the kept session: another one for other words, and for whatever changes their KV state."""
        manager = self._manager
        identity = manager.identity(manager.factory.new(manager.profile))
        words = [message.model_dump() for message in self._examples]
        return hashlib.sha256(canonical_json([identity, words])).hexdigest()[:32]

    def _opened(self) -> Session | None:
        """The session as it was kept; None where it was not, or is damaged."""
        try:
            session = self._manager.open(self._name)
        except SatchelError:
            return None
        self._is_ready = bool(session.token_ids) and session.messages == self._examples
        return session if self._is_ready else None

    def _keep(self, session: Session) -> None:
        """Store what was read, in place of one that could not be used and of those used longest ago."""
        store = self._manager.store
        by_use = sorted(store.heads().heads, key=lambda head: -store.used_ns(head.session_id))
        old = [head for head in by_use if head.name != self._name][KEPT - 1 :]
        remove(store, *(head.session_id for head in by_use if head in old or head.name == self._name))
        session.save(self._name)
