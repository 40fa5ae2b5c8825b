"""Messages to the tokens a model reads, reusing those it has read. Knows nothing of KV states or disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper


def render(tokenizer: TokenizerWrapper, messages: Sequence[Mapping[str, str]]) -> str:
    """The prompt text for `messages`, up to where the assistant's answer begins.

    Models without a chat template (base models) get one labelled paragraph a message.
    """
    if tokenizer.has_chat_template:
        text: str = tokenizer.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
        )
        return text
    paragraphs = [f"{message['role'].capitalize()}: {message['content']}" for message in messages]
    return f"{tokenizer.bos_token or ''}" + "\n\n".join([*paragraphs, "Assistant:"])


def continue_prompt(tokenizer: TokenizerWrapper, read: Sequence[int], text: str) -> tuple[list[int], int]:
    """The token ids of the prompt `text`, and how many of them are the first of `read`.

    A model's own answer is seldom tokenised as the tokenizer would: where `text` goes on from the text of
    `read`, its tokens are kept and only what follows is encoded. Where a template rewrote earlier turns, the
    longest common prefix of tokens is kept. At least the last token is always left to read.
    """
    token_ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    shared = _common_prefix(token_ids, read)
    if shared < len(read):
        said = tokenizer.decode(list(read), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if text.startswith(said):
            rest = tokenizer.encode(text[len(said) :], add_special_tokens=False)
            token_ids, shared = [*read, *rest], len(read)
    return token_ids, min(shared, len(token_ids) - 1)


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))
