"""An answer as JSON: as one record when it is over, or as a line for each event while it comes.

Knows nothing of how the answer is come by.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from satchel.cli.options import INTERRUPTED
from satchel.cli.records import (
    AnswerRecord,
    DeltaEvent,
    DoneEvent,
    ErrorEvent,
    NoticeEvent,
    ProgressEvent,
)
from satchel.cli.schemas import print_json_line
from satchel.errors import SatchelError

if TYPE_CHECKING:
    from satchel.agent.events import Event
    from satchel.session import Session


class Answering:
    """The events of one answer, gathered; with `streamed` each is printed as it comes.

    Args:
        model: what answers, as `--model` takes it.
        session: where it is asked.
    """

    def __init__(self, model: str, session: Session, streamed: bool) -> None:
        self._model, self._session, self._streamed = model, session, streamed
        self._text: list[str] = []
        self._notices: list[str] = []

    def follow(self, events: Iterable[Event]) -> AnswerRecord:
        """The record of the answer that `events` are, once they are over.

        Raises:
            SatchelError: as `events`.
        """
        from satchel.agent.events import Notice, PrefillProgress, TextDelta, TurnDone

        started_s, fields = time.perf_counter(), dict[str, Any]()
        for event in events:
            match event:
                case PrefillProgress(done, total):
                    self._print(ProgressEvent(event="progress", done=done, total=total))
                case TextDelta(text):
                    self._text.append(text)
                    self._print(DeltaEvent(event="delta", text=text))
                case Notice(text):
                    self._notices.append(text)
                    self._print(NoticeEvent(event="notice", text=text))
                case TurnDone(stop_reason, stats):
                    fields = {
                        "stop_reason": stop_reason,
                        "prompt_tokens": stats.prompt_tokens,
                        "reused_tokens": stats.reused_tokens,
                        "generated_tokens": stats.generated_tokens,
                        "prefill_tps": stats.prefill_tps,
                        "decode_tps": stats.decode_tps,
                        "first_token_s": stats.first_token_s,
                    }
        fields |= {
            "text": "".join(self._text),
            "model": self._model,
            "kv_profile": self._session.profile.asked,
            "session": self._session.name,
            "seconds": time.perf_counter() - started_s,
            "notices": self._notices,
        }
        self._print(DoneEvent(event="done", **fields))
        return AnswerRecord(**fields)

    def _print(self, event: object) -> None:
        if self._streamed:
            print_json_line(event)


@contextmanager
def errors_in_stream(streamed: bool) -> Iterator[None]:
    """With `streamed`, an error that ends the command is the last line of its stream, too."""
    try:
        yield
    except SatchelError as err:
        _print_error(str(err), err.hint, err.exit_code, streamed)
        raise
    except KeyboardInterrupt:
        _print_error("stopped by Ctrl-C", "", INTERRUPTED, streamed)
        raise


def _print_error(message: str, hint: str, exit_code: int, streamed: bool) -> None:
    if streamed:
        print_json_line(ErrorEvent(event="error", message=message, hint=hint, exit_code=exit_code))
