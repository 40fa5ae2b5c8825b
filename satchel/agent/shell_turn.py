"""A turn that runs a shell command: proposed, shown with what it touches, agreed to, run, and summarised.

Nothing runs that the user has not agreed to or typed. Knows nothing of how commands are judged or run.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from satchel.agent.answers import ASIDE_TOKENS, answer_at, collected, room_for_data, saved, shown
from satchel.agent.desk import Desk
from satchel.agent.events import (
    CommandEnded,
    CommandOutput,
    CommandProposed,
    CommandStarted,
    Event,
    Failed,
    Notice,
    TurnDone,
)
from satchel.agent.user import NO, Choice
from satchel.errors import SatchelError, UsageError

if TYPE_CHECKING:
    from satchel.agent.shell.runner import CommandResult

NOTED = "I have seen the output."  # said for the model where it was not asked
REFUSED = "All right."
COMMAND_TOKENS = 128  # of a proposed command, at most
RUN, EDIT = Choice("r", "[r]un"), Choice("e", "[e]dit")
EXPLAIN, COPY = Choice("x", "e[x]plain"), Choice("c", "[c]opy")
REFUSE = Choice(NO.key, "[n]o")


def shell_turn(
    desk: Desk, request: str, *, summarised: bool = True, must_propose: bool = True
) -> Iterator[Event]:
    """Have the model propose a command for `request`, and run it if the user agrees.

    A command that fails may be followed by one more proposal, with the error in view.

    Args:
        summarised: have the model say what came out.
        must_propose: end the turn where the model proposes no command, in place of an answer without one.

    Raises:
        SatchelError: the turn could not be run or saved.
    """
    from satchel.agent.context import with_files
    from satchel.agent.shell.report import retry_question

    if not request.strip():
        raise UsageError("nothing is asked for", "write it behind: /shell")
    command = yield from proposed(desk, request)
    if desk.cancel.is_set():
        yield Notice("stopped; nothing was run")
        return
    if not command and not must_propose:
        yield Notice("the model proposed no command, and answers in words")
        yield from answer_at(desk, with_files(request, ()))
        return
    if not command:
        yield Failed("the model proposed no command: say it in other words, or write the command behind !")
        return
    result = yield from _run_if_agreed(desk, request, command)
    if result and _may_be_mended(result):
        question = retry_question(request, result, _excerpt(desk, request, result))
        other = yield from _proposal(desk, question)
        if other and other != command and not desk.cancel.is_set():
            yield Notice("it failed; another command:")
            # The output was read for it, so it is asked about whatever it is.
            agreed = yield from _run_if_agreed(desk, None, other, always_asked=True)
            result = agreed or result
    if result:
        yield from _reported(desk, request, result, summarised and not desk.cancel.is_set())


def command_turn(desk: Desk, command: str) -> Iterator[Event]:
    """Run `command`, which the user typed: only what destroys or needs other rights is asked about.

    The model reads what came out with the next message.

    Raises:
        SatchelError: the command could not be started, or what came out not be saved.
    """
    from satchel.agent.shell.judgement import Touch, judge
    from satchel.agent.shell.report import own_command

    if not command.strip():
        raise UsageError("there is no command", "write it behind the !, as in !ls")
    judgement = judge(command, desk.tools.shell.kind)
    if judgement.destructive or Touch.PRIVILEGE in judgement.touches:
        result = yield from _run_if_agreed(desk, None, command)
    else:
        result = yield from _run(desk, command, True)
    if result:
        desk.session.note(_message(desk, own_command(command), result), NOTED)
        yield from saved(desk)


def proposed(desk: Desk, request: str) -> Generator[Event, None, str]:
    """Returns the command that the model proposes for `request`; "" if it proposes none."""
    from satchel.agent.shell.proposal import proposal_question

    question = proposal_question(request, desk.tools.shell.cwd, desk.session.messages)
    return (yield from _proposal(desk, question))


def _proposal(desk: Desk, question: str) -> Generator[Event, None, str]:
    from satchel.agent.shell.proposal import command_from, goes_in_circles

    pieces = desk.tools.proposer.answer(question, max_tokens=COMMAND_TOKENS, cancel=desk.cancel)
    return command_from((yield from collected(desk, pieces, "thinking of a command", goes_in_circles)))


def _run_if_agreed(
    desk: Desk, request: str | None, command: str, *, always_asked: bool = False
) -> Generator[Event, None, CommandResult | None]:
    """Returns what came out of `command`, as the user may have changed it; None if it was not to run.

    Args:
        request: what is noted as not done then; None for nothing.
        always_asked: ask about what only reads as well, whatever the settings say.
    """
    from satchel.agent.context import with_files

    agreed, asked = yield from _agreed(desk, command, always_asked)
    if agreed is not None:
        return (yield from _run(desk, agreed, asked))
    yield Notice("not run")
    if request is not None:
        refused = f"{request}\n\nThis command was proposed, and I did not run it: {command}"
        desk.session.note(with_files(refused, ()), REFUSED)
        yield from saved(desk)
    return None


def _agreed(desk: Desk, command: str, always_asked: bool) -> Generator[Event, None, tuple[str | None, bool]]:
    """Returns the command to run, as the user may have changed it, or None; and whether they were asked."""
    from satchel.agent.shell.judgement import judge

    choices = (RUN, EDIT, EXPLAIN, COPY, REFUSE)
    judgement = judge(command, desk.tools.shell.kind)
    yield CommandProposed(command, judgement)
    if judgement.read_only and _runs_unasked(desk) and not always_asked:
        yield Notice("it only reads, and runs without asking: /auto ask changes that")
        return command, False
    while True:
        try:
            choice = desk.user.choose("run it?", choices, RUN if judgement.read_only else REFUSE)
        except KeyboardInterrupt:
            desk.cancel.set()
            return None, True
        if choice == RUN:
            return command, True
        if choice == EDIT:
            edited = desk.user.edit(command)
            if edited and edited.strip():
                command, judgement = edited, judge(edited, desk.tools.shell.kind)
                yield CommandProposed(command, judgement)
        elif choice == EXPLAIN:
            yield from _explained(desk, command)
        elif choice == COPY:
            yield Notice("copied" if desk.user.copy(command) else "there is no clipboard to copy to")
        else:
            return None, True


def _runs_unasked(desk: Desk) -> bool:
    """Whether what only reads is not asked about. It is in a directory that it found its own way to.

    A repository there may name programs in its settings, which the tools that read it run.
    """
    return desk.settings.shell.approve == "read-only" and desk.tools.shell.cwd == desk.tools.known_cwd


def _explained(desk: Desk, command: str) -> Iterator[Event]:
    from satchel.agent.shell.proposal import explanation_question

    question = explanation_question(command)
    try:
        for event in shown(desk, desk.session.aside(question, max_tokens=ASIDE_TOKENS, cancel=desk.cancel)):
            if not isinstance(event, TurnDone):  # the turn goes on
                yield event
    except SatchelError as err:
        yield Failed(err.one_line())
    desk.cancel.clear()  # Ctrl-C ended the explanation; the question is still open


def _run(desk: Desk, command: str, agreed: bool) -> Generator[Event, None, CommandResult]:
    """Returns what came out; `agreed` says whether the user knows of the command."""
    from satchel.agent.shell.runner import CommandResult

    yield CommandStarted(command)
    for piece in desk.tools.shell.run(command, desk.cancel):
        if isinstance(piece, CommandResult):
            if agreed:
                desk.tools.known_cwd = desk.tools.shell.cwd
            yield CommandEnded(piece)
            return piece
        yield CommandOutput(piece)
    raise AssertionError("a command ends with its result")


def _may_be_mended(result: CommandResult) -> bool:
    return result.exit_code not in (0, None) and not result.cancelled and not result.timed_out


def _excerpt(desk: Desk, request: str, result: CommandResult) -> str:
    from satchel.agent.shell.report import excerpt

    return excerpt(result.output, request, room_for_data(desk), desk.session.count_tokens)


def _message(desk: Desk, request: str, result: CommandResult) -> str:
    """The user's message that holds what came out."""
    from satchel.agent.context import with_files
    from satchel.agent.shell.report import question_with_output

    # With no file attached, whatever the output says of any.
    return with_files(question_with_output(request, result, _excerpt(desk, request, result)), ())


def _reported(desk: Desk, request: str, result: CommandResult, summarised: bool) -> Iterator[Event]:
    text = _message(desk, request, result)
    if summarised:
        yield from answer_at(desk, text)
    else:
        desk.session.note(text, NOTED)
        yield from saved(desk)
