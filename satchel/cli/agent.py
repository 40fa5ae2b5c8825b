"""`satchel search` and `satchel shell`: what the agent does in a chat, once and for a script.

What takes long to import (MLX, the store, the search) is imported inside the functions that need it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from satchel.cli.options import (
    INTERRUPTED,
    AsJson,
    Kv,
    MaxTokens,
    Model,
    Temperature,
    at_terminal,
    chosen_settings,
    load_manager,
    report,
)
from satchel.errors import RefusedError, SatchelError, UsageError
from satchel.terminal.sanitize import sanitize_line

if TYPE_CHECKING:
    from satchel.agent.desk import Desk
    from satchel.agent.events import Event
    from satchel.agent.search.finder import Finder
    from satchel.agent.search.sources import Source
    from satchel.agent.shell.judgement import Judgement
    from satchel.agent.shell.runner import CommandResult
    from satchel.agent.user import Choice, User
    from satchel.config.settings import Settings
    from satchel.session import Session, SessionManager
    from satchel.terminal.render import Renderer

TIMED_OUT = 124  # as timeout(1) has it

Words = Annotated[list[str], typer.Argument(help="In quotation marks, or not.")]


def add_to(app: typer.Typer) -> None:
    app.command()(search)
    app.command()(shell)


# -- search --------------------------------------------------------------------------------------


def search(
    question: Words,
    as_json: AsJson = False,
    sources_only: Annotated[
        bool, typer.Option("--sources-only", help="List what is found; with --no-rewrite no model is loaded.")
    ] = False,
    results: Annotated[int | None, typer.Option("-n", "--results", help="Pages the answer rests on.")] = None,
    no_rewrite: Annotated[
        bool, typer.Option("--no-rewrite", help="Search for the question as it is written.")
    ] = False,
    provider: Annotated[str | None, typer.Option(help="ddgs or searxng.")] = None,
    model: Model = None,
    kv: Kv = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
) -> None:
    """Answer a question from the web: the answer with citations, and then its sources, on standard output."""
    from satchel.agent.search.finder import open_finder
    from satchel.agent.search_turn import search_turn
    from satchel.terminal.interrupts import interrupt_sets
    from satchel.terminal.render import Renderer

    settings = chosen_settings(
        no_save=True,
        model=model,
        kv_profile=kv,
        max_tokens=max_tokens,
        temperature=temperature,
        **{"search.results": results, "search.provider": provider},
    )
    text = _asked(question, 'satchel search "Who won the chess world cup?"')
    finder = open_finder(settings.search)  # what is wrong with it is said before a model is loaded
    if sources_only and no_rewrite:
        events = _sources_alone(finder, text, settings, cancel := threading.Event())
    else:
        desk = open_desk(settings)
        cancel = desk.cancel
        events = search_turn(desk, text, rewrite=not no_rewrite, answered=not sources_only, must_find=True)
    findings = _Findings(quiet=as_json)
    renderer = Renderer()
    with interrupt_sets(cancel):
        renderer.turn(findings.watched(events))
    if cancel.is_set():
        raise KeyboardInterrupt
    if as_json:
        print(json.dumps(findings.as_json(answered=not sources_only), indent=2))
    else:
        renderer.output(findings.listing())


def _sources_alone(
    finder: Finder, query: str, settings: Settings, cancel: threading.Event
) -> Iterator[Event]:
    """What `search_turn` yields where no model is needed."""
    from satchel.agent.events import Notice, Searching, SourcesFound

    yield Searching(query, finder.name)
    found = finder.find(
        query,
        limit=settings.search.results,
        budget_tokens=0,
        count_tokens=len,
        cancel=cancel,
        pages=False,
    )
    yield from map(Notice, found.notices)
    yield SourcesFound(found.sources)


@dataclass
class _Findings:
    """What a search came to. With `quiet` the answer is only kept, and not passed on to be shown."""

    quiet: bool
    query: str = ""
    sources: Sequence[Source] = ()
    notices: list[str] = field(default_factory=list)
    answer: str = ""

    def watched(self, events: Iterator[Event]) -> Iterator[Event]:
        """`events` to be shown; the sources are not among them, for they are listed behind the answer."""
        from satchel.agent.events import Notice, Searching, SourcesFound, TextDelta

        for event in events:
            match event:
                case SourcesFound(sources):
                    self.sources = sources
                    continue
                case TextDelta(text):
                    self.answer += text
                    if self.quiet:
                        continue
                case Searching(query):
                    self.query = query
                case Notice(text):
                    self.notices.append(text)
            yield event

    def listing(self) -> str:
        """Behind an answer the titles and addresses; without one what the pages are about, too."""
        from satchel.terminal.agent_view import source_lines, source_text

        if self.answer:
            return "\n" + "\n".join(text for text, _ in source_lines(self.sources, self.answer))
        lines = ((source_text(each), f"    {sanitize_line(each.snippet)}".rstrip()) for each in self.sources)
        return "\n".join(line for pair in lines for line in pair if line)

    def as_json(self, answered: bool) -> dict[str, object]:
        from satchel.terminal.agent_view import cited_numbers

        cited = cited_numbers(self.answer)
        sources = [
            {
                "number": source.number,
                "title": source.title,
                "url": source.url,
                "snippet": source.snippet,
                "cited": source.number in cited,
            }
            for source in self.sources
        ]
        answer = self.answer.strip() if answered else None
        return {"query": self.query, "answer": answer, "sources": sources, "notices": self.notices}


# -- shell ---------------------------------------------------------------------------------------


def shell(
    request: Words,
    yes: Annotated[bool, typer.Option("--yes", help="Run it without asking.")] = False,
    allow_destructive: Annotated[
        bool,
        typer.Option(
            "--allow-destructive",
            help="With --yes: also what destroys, takes more rights, or cannot be judged.",
        ),
    ] = False,
    sandbox: Annotated[
        bool, typer.Option("--sandbox", help="Without network, and writing nothing but temporary files.")
    ] = False,
    timeout: Annotated[float | None, typer.Option(help="Seconds that the command may take.")] = None,
    no_summary: Annotated[
        bool, typer.Option("--no-summary", help="Show what the command says, and nothing behind it.")
    ] = False,
    model: Model = None,
    kv: Kv = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
) -> None:
    """Have a shell command proposed, and run it once you agree; ends with the command's exit code.

    Where standard input or output is no terminal, the command is printed, and runs only with --yes.
    """
    from satchel.agent.shell_turn import proposed
    from satchel.terminal.interrupts import interrupt_sets
    from satchel.terminal.render import Renderer
    from satchel.terminal.visible import visible

    settings = chosen_settings(
        no_save=True,
        model=model,
        kv_profile=kv,
        max_tokens=max_tokens,
        temperature=temperature,
        **{"shell.sandbox": sandbox or None, "shell.timeout_s": timeout},
    )
    text = _asked(request, 'satchel shell "Which files here are the largest?"')
    if settings.shell.sandbox:
        from satchel.agent.shell.sandbox import open_sandbox

        open_sandbox()  # what is missing for it is said before a model is loaded
    desk, renderer = open_desk(settings), Renderer()
    if yes or at_terminal():
        raise typer.Exit(_run(desk, text, renderer, yes, allow_destructive, summarised=not no_summary))
    commands: list[str] = []
    with interrupt_sets(desk.cancel):
        renderer.turn(_returning(proposed(desk, text), commands))
    if desk.cancel.is_set():
        raise KeyboardInterrupt
    if not commands[0]:
        raise SatchelError("the model proposed no command", "say it in other words")
    print(visible(commands[0]))


def _run(
    desk: Desk, request: str, renderer: Renderer, yes: bool, allow_all: bool, *, summarised: bool
) -> int:
    """Propose, ask, run and summarise; returns the command's exit code.

    Raises:
        RefusedError: the command was not agreed to.
    """
    from satchel.agent.shell_turn import shell_turn
    from satchel.agent.user import Nobody
    from satchel.terminal.interrupts import interrupt_sets

    if at_terminal():
        from satchel.terminal.person import Person

        desk.user = Person(renderer.settle)
    else:
        desk.user = Nobody()
    watch = _Watch()
    if yes:
        desk.user = _Consent(watch, desk.user, allow_all)
    try:
        with interrupt_sets(desk.cancel):
            renderer.turn(watch.watched(shell_turn(desk, request, summarised=summarised)))
    except SatchelError as err:
        if watch.result is None:
            raise
        report(err.one_line())  # what came of the command counts
    result, judgement = watch.result, watch.judgement
    if result is not None:
        if result.exit_code is None:
            return TIMED_OUT if result.timed_out else INTERRUPTED
        return result.exit_code
    if desk.cancel.is_set():
        raise KeyboardInterrupt
    if judgement is None:
        return SatchelError.exit_code  # nothing was proposed, which was said
    if yes and not allow_all and (why := _hazard(judgement)):
        raise RefusedError(f"it was not run, for it {why}", "`--allow-destructive` runs it all the same")
    raise RefusedError("it was not run")


class _Watch:
    """What was proposed last, and what came of the last command that ran."""

    judgement: Judgement | None = None
    result: CommandResult | None = None

    def watched(self, events: Iterator[Event]) -> Iterator[Event]:
        from satchel.agent.events import CommandEnded, CommandProposed

        for event in events:
            match event:
                case CommandProposed(_, judgement):
                    self.judgement = judgement
                case CommandEnded(result):
                    self.result = result
            yield event


class _Consent:
    """Agrees to the first command, as `--yes` says; asks `otherwise` about what that does not cover."""

    def __init__(self, watch: _Watch, otherwise: User, allow_all: bool) -> None:
        self._watch, self._otherwise, self._allow_all = watch, otherwise, allow_all

    def choose(self, question: str, choices: Sequence[Choice], default: Choice) -> Choice:
        from satchel.agent.shell_turn import RUN

        judgement = self._watch.judgement
        allowed = judgement is not None and (self._allow_all or not _hazard(judgement))
        if RUN in choices and allowed and self._watch.result is None:
            return RUN
        return self._otherwise.choose(question, choices, default)

    def edit(self, text: str) -> str | None:
        return self._otherwise.edit(text)

    def copy(self, text: str) -> bool:
        return self._otherwise.copy(text)

    def hear(self, seconds: float, cancel: threading.Event) -> str:
        return self._otherwise.hear(seconds, cancel)


def _hazard(judgement: Judgement) -> str:
    """Why nobody agrees to a command unseen; "" if there is no reason."""
    from satchel.agent.shell.judgement import Touch

    if judgement.destructive:
        return "is destructive"
    if Touch.UNKNOWN in judgement.touches:
        return "cannot be judged"
    return "takes other rights" if Touch.PRIVILEGE in judgement.touches else ""


def _returning(events: Generator[Event, None, str], returned: list[str]) -> Iterator[Event]:
    """`events`; what they return in the end is put into `returned`."""
    returned.append((yield from events))


# -- both ----------------------------------------------------------------------------------------


def open_desk(
    settings: Settings, manager: SessionManager | None = None, session: Session | None = None
) -> Desk:
    """A desk with all its tools, at which nobody can be asked.

    Args:
        manager: with the model, which is loaded if it is not given.
        session: a new one if it is not given.
    """
    from satchel.agent.desk import Desk
    from satchel.agent.toolbox import Toolbox

    manager = manager or load_manager(settings)
    tools = Toolbox(manager.model, settings)
    return Desk(manager, session or manager.new(), settings, tools, open_manager=load_manager)


def _asked(words: Sequence[str], example: str) -> str:
    """
    Raises:
        UsageError: nothing.
    """
    text = " ".join(words).strip()
    if not text:
        raise UsageError("nothing was asked", f"try: {example}")
    return text
