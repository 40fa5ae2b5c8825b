"""The text that a model has read, back to the messages that its chat template made it of.

The template is a program, so it is asked: messages of known words show what it puts before, between and
after them. Knows nothing of files or KV states.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Literal

from satchel.cache_store.manifest import Message
from satchel.engine.prompt import render
from satchel.errors import SatchelError

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

MARKS = ("QsystemZ", "QfirstZ", "QanswerZ", "QsecondZ")  # words that no template says by itself


def parse_messages(tokenizer: TokenizerWrapper, text: str) -> list[Message] | None:
    """The messages whose prompt `text` is, or the beginning of whose prompt it is.

    A last message of the user may be one that was not read to its end. None where the model's template would
    not have written such a text.
    """
    controls = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    rewritten = None
    for frame in _frames(tokenizer):
        messages = frame.parse(text, controls)
        if messages is None:
            continue
        if render(tokenizer, [message.model_dump() for message in messages]).startswith(text):
            return messages
        if not any(control in message.content for message in messages for control in controls):
            rewritten = rewritten or messages  # by a template that drops thoughts or spaces from the past
    return rewritten


@dataclass(frozen=True, slots=True)
class _Frame:
    """What a template writes around messages, `system` being the text between a system prompt and a question.

    `before` begins the text; `answer` lies between a question and its answer, `question` between an answer
    and the next question; `opening` follows the last question.
    """

    before: str
    system: str | None
    answer: str
    question: str
    opening: str

    def parse(self, text: str, controls: list[str]) -> list[Message] | None:
        if not text.startswith(self.before) or not self.answer or not self.question:
            return None
        rest = text[len(self.before) :]
        messages: list[Message] = []
        if self.system is not None:
            content, found, rest = rest.partition(self.system)
            if not found:
                return None
            messages.append(Message(role="system", content=content))
        turns: list[tuple[Literal["user", "assistant"], str]]
        turns = [("user", self.answer), ("assistant", self.question)]
        for role, follows in cycle(turns):
            piece, found, rest = rest.partition(follows)
            if not found:
                piece = self._last(role, piece, controls)
            if piece or found:
                messages.append(Message(role=role, content=piece))
            if not found:
                break
        return messages if messages[-1:] and messages[-1].role != "system" else None

    def _last(self, role: str, piece: str, controls: list[str]) -> str:
        """The text's last message, without the part of what follows a message that is there already."""
        if role == "user":
            return _without_begun(piece, self.opening, controls)
        if self.opening.startswith(self.answer):  # such as an empty thought, which only a new answer gets
            piece = piece.removeprefix(self.opening[len(self.answer) :])
        return _without_begun(piece, self.question, controls)


def _frames(tokenizer: TokenizerWrapper) -> Iterator[_Frame]:
    """The template's frames: without a system prompt, which may be its own, and with one."""
    system, first, answer, second = MARKS
    roles = (("user", first), ("assistant", answer), ("user", second))
    for messages in (roles, (("system", system), *roles)):
        try:
            text = render(tokenizer, [{"role": role, "content": content} for role, content in messages])
        except SatchelError:
            continue  # some take no system prompt
        pieces = []
        for _, mark in messages:
            piece, _, text = text.partition(mark)
            pieces.append(piece)
        before, *between = (*pieces, text)
        yield _Frame(before, between.pop(0) if len(messages) == 4 else None, *between)


def _without_begun(piece: str, following: str, controls: list[str]) -> str:
    """`piece` without a beginning of `following` at its end. Only a control token shows that it is one: words
    of the message may look like a letter or two of it."""
    for length in range(len(following), 0, -1):
        begun = following[:length]
        whole = length == len(following)
        if piece.endswith(begun) and (whole or any(control in begun for control in controls)):
            return piece[:-length]
    return piece
