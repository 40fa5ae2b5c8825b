"""Sessions to and from mlx-lm's prompt caches, with a model loaded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from satchel.cache_store.manifest import Message
from satchel.cache_store.sessions import open_session
from satchel.cache_store.snapshot import identity_differences
from satchel.config.profiles import get_profile
from satchel.engine.hub import is_hub_name
from satchel.engine.model import LoadedModel
from satchel.engine.prompt import continue_prompt, render
from satchel.engine.prompt_cache import (
    PromptCacheFile,
    check_plain,
    check_shapes,
    fill,
    open_prompt_cache,
    write_prompt_cache,
)
from satchel.errors import DamagedError, NotFoundError
from satchel.exchange.chat_text import parse_messages
from satchel.exchange.lost_state import lost_state
from satchel.exchange.saving import Imported, Wanted, save_new
from satchel.exchange.token_ids import check_token_ids, find_token_ids
from satchel.session import SessionManager
from satchel.session.context import Context, load_context

TOKEN_KEYS = ("token_ids", "tokens", "input_ids")  # metadata of a file that may name its tokens
FEW_TOKENS = 8  # may be read again without a word, such as the end of a turn


def export_prompt_cache(path: Path, manager: SessionManager, name: str) -> None:
    """Write a session's state as a dense prompt cache, which mlx-lm's `load_prompt_cache` reads.

    What was encoded to fewer bits is decoded, to the model's 16-bit dtype. The metadata holds what
    `mlx_lm.generate --prompt-cache-file` needs, and the token ids as JSON.

    Raises:
        NotFoundError: there is no such session, or it has no state.
        DamagedError: some of its state is missing or damaged, or it is another model's, or claims to be
            longer than the model takes.
        UsageError: its state is more than keys and values.
    """
    manifest = open_session(manager.store, name).manifest
    state = manager.factory.new(get_profile(manifest.profile_name))
    check_plain(state)
    if not manifest.token_count:
        hint = "resume it and say something: its words are read then"
        raise NotFoundError(f"{manifest.name!r} has no state to export", hint)
    identity = manager.identity(state)
    if differing := identity_differences(manifest.identity, identity):
        raise DamagedError(f"{manifest.name!r} was saved with another {', '.join(differing)}")
    if manifest.token_count > manager.model.context_length:
        raise lost_state(manifest, f"its {manifest.token_count:,} tokens are more than the model takes")
    try:
        context = load_context(manager.store, identity, state, manifest.blocks, manifest.tail)
    except (NotFoundError, DamagedError) as err:
        raise lost_state(manifest, str(err)) from err
    metadata = {
        "model": loadable_name(manager.model),
        "tokenizer_config": "{}",
        "token_ids": json.dumps(context.token_ids),
    }
    with path.open("wb") as file:
        write_prompt_cache(file, context.state, manager.model.cache_dtype, metadata)


def import_prompt_cache(
    manager: SessionManager, path: Path, *, name: str | None, token_ids: Sequence[int] | None
) -> Imported:
    """A session of what mlx-lm's `save_prompt_cache` wrote, its keys and values in the manager's profile.

    Args:
        token_ids: of the tokens that it holds; if not given, those in its metadata, or found by its values.

    Raises:
        DamagedError: the file is damaged, holds other things, or is another model's.
        UsageError: the model keeps other things than keys and values, or the tokens cannot be told, or the
            name cannot be used.
        SatchelError: the disk refused.
    """
    source, model = open_prompt_cache(path), manager.model
    state = manager.factory.new(manager.profile)
    check_plain(state)
    check_shapes(state, source)
    ids = _named_token_ids(source) if token_ids is None else list(token_ids)
    if ids is None:
        ids = find_token_ids(model, source)
    else:
        check_token_ids(model, source, ids)
    decode = model.tokenizer.decode
    save = partial(
        save_new,
        manager.store,
        Wanted(name, (path.stem,)),
        model_name=model.name,
        profile_name=state.profile.name,
    )
    text = decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    messages = parse_messages(model.tokenizer, text)
    if messages is None:
        whole = Message(role="user", content=decode(ids, skip_special_tokens=True))
        made = save([whole], None)
        notice = "its text is not a talk as this model has them: it is one message now, to be read again"
        return Imported(made.name, made.messages, 0, (notice,))
    fill(state, source, manager.settings.prefill_step)
    snapshot = Context(state, ids).snapshot(manager.identity(state), 0)
    made = save(messages, snapshot)
    again = len(ids) - _shared(model, messages, ids)
    notices = (f"{again} of {len(ids)} tokens will be read again",) if again > FEW_TOKENS else ()
    return Imported(made.name, made.messages, made.tokens, notices)


def _named_token_ids(source: PromptCacheFile) -> list[int] | None:
    """The token ids that the file's metadata holds as JSON, if there are as many as tokens."""
    for key in TOKEN_KEYS:
        try:
            ids = json.loads(source.metadata.get(key, ""))
        except (ValueError, RecursionError):
            continue
        if isinstance(ids, list) and len(ids) == source.tokens and all(type(each) is int for each in ids):
            return ids
    return None


def _shared(model: LoadedModel, messages: Sequence[Message], ids: Sequence[int]) -> int:
    """How many of the tokens the next turn goes on from."""
    prompt = render(model.tokenizer, [message.model_dump() for message in messages])
    return continue_prompt(model.tokenizer, ids, prompt)[1]


def loadable_name(model: LoadedModel) -> str:
    """The model's name as mlx-lm knows it: the hub's, or its folder. It goes into the files we export.

    mlx-lm refuses a prompt cache beside any other `--model`.
    """
    return model.name if is_hub_name(model.name) and not Path(model.name).exists() else str(model.path)
