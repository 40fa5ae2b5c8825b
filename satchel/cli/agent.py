"""`satchel search` and `satchel shell`: what the agent does in a chat, once and for a script.

What takes long to import (MLX, the store, the search) is imported inside the functions that need it.
"""

from __future__ import annotations

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
    complain,
    examples,
    load_manager,
    renderer_of,
)
from satchel.cli.records import CommandRecord, FoundRecord, SourceRecord
from satchel.cli.schemas import print_json
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
    app.command(
        epilog=examples(
            'satchel search "Who won the chess world cup?"',
            "satchel search --sources-only --no-rewrite mlx 0.32 release notes",
            'satchel search --json "How tall is Mont Blanc?" | jq -r .answer',
            'satchel search --provider searxng -n 3 "news of today"  # needs search.url set',
        )
    )(search)
    app.command(
        epilog=examples(
            'satchel shell "Which files here are the largest?"',
            'satchel shell --yes --sandbox "Count the lines of all Python files"',
            'satchel shell --json "Which ports are open?" | jq -r .command  # runs nothing',
        )
    )(shell)


# -- search --------------------------------------------------------------------------------------


def search(
    question: Words,
    as_json: AsJson = False,
    sources_only: Annotated[
        bool, typer.Option("--sources-only", help="List what is found; with --no-rewrite no model is loaded.")
    ] = False,
    results: Annotated[
        int | None, typer.Option("-n", "--results", metavar="N", help="Pages the answer rests on.")
    ] = None,
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
    renderer = renderer_of(settings)
    with interrupt_sets(cancel):
        renderer.turn(findings.watched(events))
    if cancel.is_set():
        raise KeyboardInterrupt
    if as_json:
        print_json(findings.record(answered=not sources_only))
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

    def record(self, answered: bool) -> FoundRecord:
        from satchel.terminal.agent_view import cited_numbers

        cited = cited_numbers(self.answer)
        sources = [
            SourceRecord(
                number=source.number,
                title=source.title,
                url=source.url,
                snippet=source.snippet,
                cited=source.number in cited,
            )
            for source in self.sources
        ]
        answer = self.answer.strip() if answered else None
        return FoundRecord(query=self.query, answer=answer, sources=sources, notices=self.notices)


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
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Seconds that the command may take.")
    ] = None,
    no_summary: Annotated[
        bool, typer.Option("--no-summary", help="Show what the command says, and nothing behind it.")
    ] = False,
    as_json: AsJson = False,
    model: Model = None,
    kv: Kv = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
) -> None:
    """Have a shell command proposed, and run it once you agree; ends with the command's exit code.

    Where standard input or output is no terminal, and with --json, the command is printed, and runs only with
    --yes.
    """
    from satchel.agent.shell_turn import proposed
    from satchel.terminal.interrupts import interrupt_sets
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
    desk, renderer = open_desk(settings), renderer_of(settings)
    if yes or (at_terminal() and not as_json):
        run = _Run(desk, text, yes, allow_destructive, quiet=as_json)
        raise typer.Exit(run.run(renderer, summarised=not no_summary))
    commands: list[str] = []
    with interrupt_sets(desk.cancel):
        renderer.turn(_returning(proposed(desk, text), commands))
    if desk.cancel.is_set():
        raise KeyboardInterrupt
    if not commands[0]:
        raise SatchelError("the model proposed no command", "say it in other words")
    if as_json:
        from satchel.agent.shell.judgement import judge

        print_json(_record(commands[0], judge(commands[0], desk.tools.shell.kind)))
    else:
        print(visible(commands[0]))


class _Run:
    """Has a command proposed for `request`, and runs it once that is agreed to.

    Args:
        yes: it is agreed to already; with `allow_all` whatever it is.
        quiet: print nothing but the record of what came of it.
    """

    def __init__(self, desk: Desk, request: str, yes: bool, allow_all: bool, quiet: bool) -> None:
        self._desk, self._request, self._quiet = desk, request, quiet
        self._yes, self._allow_all = yes, allow_all
        self._watch = _Watch()

    def run(self, renderer: Renderer, *, summarised: bool) -> int:
        """Returns the command's exit code.

        Raises:
            RefusedError: the command was not agreed to.
        """
        from satchel.agent.shell_turn import shell_turn
        from satchel.terminal.interrupts import interrupt_sets

        desk, watch = self._desk, self._watch
        desk.user = self._user(renderer)
        events = watch.watched(shell_turn(desk, self._request, summarised=summarised), self._quiet)
        try:
            with interrupt_sets(desk.cancel):
                renderer.turn(events)
        except SatchelError as err:
            if watch.result is None:
                raise
            complain(err.one_line())  # what came of the command counts
        if self._quiet and watch.judgement is not None:
            print_json(watch.record())
        return self._exit_code()

    def _user(self, renderer: Renderer) -> User:
        from satchel.agent.user import Nobody

        asked: User = Nobody()
        if at_terminal() and not self._quiet:
            from satchel.terminal.person import Person

            asked = Person(renderer.settle)
        return _Consent(self._watch, asked, self._allow_all) if self._yes else asked

    def _exit_code(self) -> int:
        result, judgement = self._watch.result, self._watch.judgement
        if result is not None:
            if result.exit_code is None:
                return TIMED_OUT if result.timed_out else INTERRUPTED
            return result.exit_code
        if self._desk.cancel.is_set():
            raise KeyboardInterrupt
        if judgement is None:
            return SatchelError.exit_code  # nothing was proposed, which was said
        if self._yes and not self._allow_all and (why := _hazard(judgement)):
            raise RefusedError(f"it was not run, for it {why}", "`--allow-destructive` runs it all the same")
        raise RefusedError("it was not run")


class _Watch:
    """What was proposed last, what came of the last command that ran, and what was said of it."""

    def __init__(self) -> None:
        self.command = ""
        self.judgement: Judgement | None = None
        self.result: CommandResult | None = None
        self._summary: list[str] = []
        self._notices: list[str] = []

    def watched(self, events: Iterator[Event], quiet: bool) -> Iterator[Event]:
        """`events`; with `quiet`, without those that the record is made of."""
        from satchel.agent.events import CommandEnded, CommandOutput, CommandProposed, Notice, TextDelta

        for event in events:
            match event:
                case CommandProposed(command, judgement):
                    self.command, self.judgement = command, judgement
                case CommandEnded(result):
                    self.result = result
                case TextDelta(text):
                    self._summary.append(text)
                case Notice(text):
                    self._notices.append(text)
            if not (quiet and isinstance(event, CommandProposed | CommandEnded | CommandOutput | TextDelta)):
                yield event

    def record(self) -> CommandRecord:
        """Of the command that ran last or, if none did, was proposed last."""
        assert self.judgement is not None
        command = self.result.command if self.result else self.command
        return _record(command, self.judgement, self.result, "".join(self._summary), self._notices)


def _record(
    command: str,
    judgement: Judgement,
    result: CommandResult | None = None,
    summary: str = "",
    notices: Sequence[str] = (),
) -> CommandRecord:
    return CommandRecord(
        command=command,
        touches=sorted(judgement.touches),
        reasons=list(judgement.reasons),
        ran=result is not None,
        exit_code=result.exit_code if result else None,
        timed_out=result.timed_out if result else False,
        output=result.output if result else "",
        summary=summary.strip(),
        notices=list(notices),
    )


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
