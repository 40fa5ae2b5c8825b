"""What the agent works with beside the model's answers, each part made when it is first needed.

Knows nothing of turns or of how anything is shown.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from satchel.agent.meter import Meter
from satchel.config.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from satchel.agent.attached import ContextFile
    from satchel.agent.edits.apply import Applied
    from satchel.agent.router import IntentRouter
    from satchel.agent.search.citations import CitationFilter
    from satchel.agent.search.finder import Finder
    from satchel.agent.search.sources import Source
    from satchel.agent.shell.runner import ShellRunner
    from satchel.engine.model import LoadedModel
    from satchel.session.preamble import Preamble


class Toolbox:
    """The tools of one talk.

    Attributes:
        model: the model that decides, rewrites and proposes.
        meter: what the talk has cost so far.
        cited: by message that the model answered, the sources that its answer may cite.
        last_applied: the edits that /undo takes back.
        places: where the files are that the user put into the context, by what the talk has of them.
        known_cwd: where the user knows commands to run: where a command left off that they agreed to.
    """

    def __init__(self, model: LoadedModel, settings: Settings) -> None:
        self.model = model
        self.settings = settings
        self.meter = Meter()
        self.cited: dict[str, Sequence[Source]] = {}
        self.last_applied: Applied | None = None
        self.places: dict[ContextFile, Path] = {}
        self.known_cwd = Path.cwd()

    def with_model(self, model: LoadedModel) -> Toolbox:
        """The same tools for another model: the shell stays where it is."""
        twin = Toolbox(model, self.settings)
        twin.meter, twin.cited, twin.last_applied = self.meter, self.cited, self.last_applied
        twin.places, twin.known_cwd = self.places, self.known_cwd
        twin.__dict__ |= {name: self.__dict__[name] for name in ("shell", "finder") if name in self.__dict__}
        return twin

    @property
    def cwd(self) -> Path:
        """Where commands run, and what paths are relative to."""
        shell = self.__dict__.get("shell")
        return shell.cwd if shell else Path.cwd()

    def citations(self, text: str) -> CitationFilter | None:
        """What the answer to `text` has to go through, if that holds sources.

        Of sources that an earlier run found nothing is known any more, and none of them can be cited.
        """
        from satchel.agent.search.citations import CitationFilter
        from satchel.agent.search.prompts import OPENED

        sources = self.cited.get(text, ())
        return CitationFilter(sources) if sources or OPENED in text else None

    @cached_property
    def router(self) -> IntentRouter:
        from satchel.agent.router import IntentRouter

        return IntentRouter(self.model)

    @cached_property
    def finder(self) -> Finder:
        """
        Raises:
            UsageError: the settings name no server.
        """
        from satchel.agent.search.finder import open_finder

        return open_finder(self.settings.search)

    @cached_property
    def rewriter(self) -> Preamble:
        """Makes search queries of messages."""
        from satchel.agent.search.query import EXAMPLES
        from satchel.session.preamble import Preamble

        return Preamble(self.model, EXAMPLES)

    @cached_property
    def shell(self) -> ShellRunner:
        """
        Raises:
            RefusedError: the settings want a sandbox, and this machine has none.
        """
        from satchel.agent.shell.runner import ShellRunner
        from satchel.agent.shell.sandbox import open_sandbox

        chosen = self.settings.shell
        return ShellRunner(timeout_s=chosen.timeout_s, sandbox=open_sandbox() if chosen.sandbox else None)

    @cached_property
    def proposer(self) -> Preamble:
        """Makes shell commands of requests."""
        from satchel.agent.shell.proposal import examples
        from satchel.session.preamble import Preamble

        return Preamble(self.model, examples(self.shell.shell))
