"""Talks on a small random model with few tokens, for what does not depend on what is said."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

from tiny_models import tiny_llama

from satchel.cache_store.local import LocalStore
from satchel.cache_store.manifest import Manifest
from satchel.config.profiles import get_profile
from satchel.config.settings import Settings
from satchel.engine.generate import Delta
from satchel.engine.model import LoadedModel, load_model
from satchel.session import Session, SessionManager

PROFILE = "k4v4,sink=2,window=6"  # no named profile: such are tried on the model first
QUESTION = " ".join(f"Question {number}?" for number in range(80))  # more than a block and a window


def small_model(smollm: LoadedModel | None = None) -> LoadedModel:
    """A random llama of one layer under SmolLM2's tokenizer: stored, a token takes some 40 bytes."""
    base = smollm or load_model("embedded")
    model = tiny_llama(head_dim=32, layers=1, kv_heads=1, group=2, vocabulary=len(base.tokenizer))
    return replace(base, name="small", model=model, fingerprint=replace(base.fingerprint, weights="small"))


def open_manager(home: Path, model: LoadedModel) -> SessionManager:
    """As a new process would make it: nothing is shared but the store and the weights."""
    return SessionManager(LocalStore(home), model, get_profile(PROFILE), Settings(temperature=0.0))


def say(session: Session, text: str, max_tokens: int = 12) -> list[int | None]:
    """The tokens of the answer to `text`."""
    events = session.reply(text, max_tokens=max_tokens, cancel=threading.Event())
    return [event.token_id for event in events if isinstance(event, Delta)]


def cold_answer(session: Session, text: str, empty: Path) -> list[int | None]:
    """What a session answers that has the same words, has read nothing, and finds nothing to reuse."""
    cold = open_manager(empty, session.manager.model).new()
    cold.messages = list(session.messages)
    return say(cold, text)


def manifest_of(session: Session) -> Manifest:
    store = session.manager.store
    return store.get_manifest(store.find(session.id).manifest)
