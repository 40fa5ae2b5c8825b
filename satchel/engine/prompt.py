"""Messages to the tokens a model reads, reusing those it has read. Knows nothing of KV states or disk."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from jinja2 import TemplateError

from satchel.errors import SatchelError

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

WORD_JOINER = "\u2060"  # cannot be seen, and keeps a control token's letters from being read as the token
NEVER = r"(?!)"
MOST_TOKENS_A_BYTE = 2  # of a text; some tokens stand for nothing


def render(tokenizer: TokenizerWrapper, messages: Sequence[Mapping[str, str]]) -> str:
    """The prompt text for `messages`, up to where the assistant's answer begins.

    Models without a chat template (base models) get one labelled paragraph a message. What reads like one of
    the model's control tokens in a message stays text: nobody can end a turn or speak as the system there.

    Raises:
        SatchelError: the model's chat template refuses the messages, as some do a system prompt.
    """
    return _text(tokenizer, messages, answer_follows=True)


def message_boundary(
    tokenizer: TokenizerWrapper, messages: Sequence[Mapping[str, str]], token_ids: Sequence[int]
) -> int:
    """How many of a prompt's tokens stand before what calls for the answer, `<|im_start|>assistant` or so.

    Templates that rewrite earlier answers (without their thinking, say) leave what stands before them as it
    is: up to there the next turn's prompt goes on from this one's. A token across the border stands after it.

    Args:
        token_ids: of the prompt that `messages` render to, as `continue_prompt` gives them.

    Raises:
        SatchelError: as `render`.
    """
    whole = _text(tokenizer, messages, answer_follows=True)
    call = whole[common_prefix(whole, _text(tokenizer, messages, answer_follows=False)) :]
    # From the end, since the text of many tokens takes long to put together.
    for tail in range(min(len(token_ids), MOST_TOKENS_A_BYTE * len(call.encode())) + 1):
        stop = len(token_ids) - tail
        if _decode(tokenizer, token_ids[stop:]).endswith(call):
            return stop
    return 0


def _text(tokenizer: TokenizerWrapper, messages: Sequence[Mapping[str, str]], *, answer_follows: bool) -> str:
    control = _control_tokens(tokenizer)
    messages = [{**message, "content": control.sub(_split, message["content"])} for message in messages]
    if not tokenizer.has_chat_template:
        paragraphs = [f"{message['role'].capitalize()}: {message['content']}" for message in messages]
        paragraphs += ["Assistant:"] if answer_follows else []
        return f"{tokenizer.bos_token or ''}" + "\n\n".join(paragraphs)
    apply = partial(tokenizer.apply_chat_template, tokenize=False, add_generation_prompt=answer_follows)
    try:
        text: str = apply(messages)
    except TemplateError as err:
        try:
            text = apply(_without_system(messages))
        except (TemplateError, IndexError):
            hint = "go on without a system prompt" if messages[0]["role"] == "system" else ""
            raise SatchelError(f"the model's chat template refuses this talk ({err})", hint) from err
    return text


def _without_system(messages: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """What a template gets that knows no system prompt: it stands at the beginning of the first message.

    Raises:
        IndexError: the first two messages are not a system prompt and a user's message.
    """
    system, first, *rest = messages if len(messages) > 1 else [{"role": ""}] * 2
    if (system["role"], first["role"]) != ("system", "user"):
        raise IndexError("there is no system prompt to fold")
    return [{"role": "user", "content": f"{system['content']}\n\n{first['content']}"}, *rest]


def _control_tokens(tokenizer: TokenizerWrapper) -> re.Pattern[str]:
    tokens = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    longest_first = sorted(filter(None, tokens), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or NEVER)


def _split(match: re.Match[str]) -> str:
    return match[0][0] + WORD_JOINER + match[0][1:]


def continue_prompt(tokenizer: TokenizerWrapper, read: Sequence[int], text: str) -> tuple[list[int], int]:
    """The token ids of the prompt `text`, and how many of them are the first of `read`.

    A model's own answer is seldom tokenised as the tokenizer would: where `text` goes on from the text of
    `read`, its tokens are kept and only what follows is encoded. Where a template rewrote earlier turns, the
    longest common prefix of tokens is kept. At least the last token is always left to read.
    """
    encode = partial(tokenizer.encode, add_special_tokens=False)
    decode = partial(_decode, tokenizer)
    token_ids: list[int] = encode(text)
    shared = common_prefix(token_ids, read)
    if shared < len(read) and text.startswith(said := decode(read)):
        rest = encode(text[len(said) :])
        # Tokenizers of SentencePiece's kind begin every text they encode with a space of their own.
        if decode([*read, *rest]) == said + decode(rest):
            token_ids, shared = [*read, *rest], len(read)
    return token_ids, min(shared, len(token_ids) - 1)


def _decode(tokenizer: TokenizerWrapper, token_ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(
        list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    return text


def common_prefix(a: Sequence[object], b: Sequence[object]) -> int:
    """How many of the first items of `a` and `b` are the same."""
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))
