"""The slash commands: one table that parses, completes, explains and documents them.

Knows nothing of how they are typed or shown, nor of what they do.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from satchel.agent.commands import changes, copies, feedback, figures, files, models, sessions, talk, tools
from satchel.agent.commands.help import help_command
from satchel.errors import UsageError

if TYPE_CHECKING:
    from satchel.agent.desk import Desk
    from satchel.agent.events import Event

Handler = Callable[["Desk", str], Iterator["Event"]]

TALK, SESSIONS, TOOLS = "The talk", "Sessions", "Searching and running commands"
FILES, MODEL, FEEDBACK, HELP = "Files and changes", "The model", "Feedback", "Help"
MAX_NEAR = 4  # commands that one mistyped word may stand for


@dataclass(frozen=True, slots=True)
class Command:
    """A word behind a slash.

    Attributes:
        args: as the help shows them: empty for none, `[optional]` or `<needed>`.
        help: what it does, in a line.
        group: the heading it stands below.
        examples: lines to type.
        complete: what its argument is, for completion: "session", "path", "file-in-context", "model",
            "profile", "command", or "" for what cannot be listed.
    """

    name: str
    args: str
    help: str
    handler: Handler
    group: str
    more: str = ""
    examples: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    complete: str = ""

    @property
    def usage(self) -> str:
        return f"/{self.name} {self.args}".rstrip()


def is_command(line: str) -> bool:
    """Whether `line` is a command and not a message. A path such as `/etc/hosts` begins a message."""
    return re.match(r"/[^\s/]*(\s|$)", line) is not None


def find_command(name: str) -> Command:
    """The command called `name`, without its slash.

    Raises:
        UsageError: there is none; the message names the nearest.
    """
    command = _BY_NAME.get(name.lower())
    if command is None:
        raise UsageError(f"there is no command /{name}", _nearest(name.lower()))
    return command


def run_command(desk: Desk, line: str) -> Iterator[Event]:
    """Run the command in `line`.

    Raises:
        UsageError: an unknown command (the nearest is named) or wrong arguments.
        SatchelError: whatever the command itself met.
    """
    name, argument = _parted(line)
    command = find_command(name)
    if argument and not command.args:
        raise UsageError(f"/{command.name} takes no argument")
    if not argument and command.args.startswith("<"):
        raise UsageError(f"/{command.name} needs {command.args}")
    yield from command.handler(desk, argument)


def name_of(line: str) -> str:
    """The name of the command in `line`, known or not, in lower case."""
    return _parted(line)[0].lower()


def _parted(line: str) -> tuple[str, str]:
    """The name and the argument in `line`."""
    name, *rest = line.removeprefix("/").split(maxsplit=1) or [""]
    return name, " ".join(rest).strip()


def _nearest(name: str) -> str:
    """A hint at what `name` may have meant."""
    near = [known for known in _BY_NAME if name and known.startswith(name)]
    if not 0 < len(near) <= MAX_NEAR:
        near = difflib.get_close_matches(name, _BY_NAME, n=1, cutoff=0.6)
    if not near:
        return "/help lists the commands"
    *others, last = (f"/{each}" for each in near)
    return f"did you mean {', '.join(others)} or {last}?" if others else f"did you mean {last}?"


COMMANDS = (
    # The talk
    Command(
        "btw",
        "<question>",
        "ask something aside: it leaves no trace in the talk",
        talk.btw,
        TALK,
        more="The answer knows all that was said so far; the talk then goes on as if it had not been asked.",
        examples=("/btw what does idempotent mean?",),
    ),
    Command(
        "retry",
        "",
        "answer the last message again",
        talk.retry,
        TALK,
        more="The answer before is kept: /restore lists it.",
    ),
    Command(
        "undo-turn",
        "",
        "take the last message and its answer back",
        sessions.undo_turn,
        TALK,
        more="What is taken back is kept: /restore lists it.",
    ),
    Command(
        "restore",
        "[turn]",
        "go back to the end of a turn; -1 to what was left behind last; alone, list both",
        sessions.restore,
        TALK,
        examples=("/restore", "/restore 3", "/restore -1"),
    ),
    Command(
        "compact",
        "",
        "go on from a summary of the talk, which frees the context",
        talk.compact,
        TALK,
        more="All that was said stays in the transcript, and /restore takes the summary back. "
        "A short talk is left as it is.",
    ),
    Command(
        "loop",
        "[number] [interval] <prompt>",
        "ask something again and again; /stop or Ctrl-C ends it",
        talk.loop,
        TALK,
        more="The prompt may be a message, !command, ?query, or another slash command. Without a number it "
        "goes on until it is stopped, every ten minutes if no interval is given.",
        examples=("/loop 3 tell me a joke", "/loop 5 30s !tail -n 3 build.log", "/loop 10m /sync"),
    ),
    Command(
        "stop",
        "",
        "end a loop, between two of its turns",
        talk.stop,
        TALK,
    ),
    Command(
        "clear",
        "",
        "start afresh; the talk so far stays stored",
        sessions.clear,
        TALK,
    ),
    Command(
        "quit",
        "",
        "leave (also /exit, Ctrl-D)",
        sessions.quit_talk,
        TALK,
        aliases=("exit",),
    ),
    # Sessions
    Command(
        "save",
        "[name]",
        "save this session, under a name if one is given",
        sessions.save,
        SESSIONS,
        examples=("/save", "/save my dog"),
    ),
    Command(
        "load",
        "<name>",
        "go on in a stored session",
        sessions.load,
        SESSIONS,
        more="The name, or the beginning of the id.",
        examples=("/load my dog",),
        complete="session",
    ),
    Command("new", "", "start a new session", sessions.new, SESSIONS),
    Command("sessions", "", "list the stored sessions", sessions.sessions, SESSIONS),
    Command(
        "rename",
        "<name>",
        "give this session another name",
        sessions.rename,
        SESSIONS,
        examples=("/rename trip to Norway",),
    ),
    Command(
        "branch",
        "[name]",
        "go on in a copy of this session, which stays as it is",
        sessions.branch,
        SESSIONS,
        examples=("/branch another idea",),
    ),
    Command(
        "export",
        "[file]",
        "write the talk to a file; alone, show it as Markdown",
        copies.export,
        SESSIONS,
        more="The name says the format: .md, .json and .jsonl hold the words, .safetensors everything, "
        ".mlx-lm.safetensors is a prompt cache for mlx-lm.",
        examples=("/export talk.md", "/export talk.safetensors"),
        complete="path",
    ),
    Command(
        "share",
        "[time]",
        "make a link to a sealed copy of the talk, for 24h if no time is given",
        copies.share,
        SESSIONS,
        more="Needs a bucket (`satchel sync setup`). Whoever has all of the link can read the copy, for 1m "
        "to 7d; `satchel receive` takes it.",
        examples=("/share", "/share 7d"),
    ),
    Command("sync", "", "send and fetch what is new, now", copies.sync, SESSIONS),
    # Searching and running commands
    Command(
        "agent",
        "",
        "let messages become searches and commands by themselves",
        tools.agent,
        TOOLS,
        more="Nothing runs that was not agreed to; /auto says what is asked.",
    ),
    Command("raw", "", "chat only: messages go to the model as they are", tools.raw, TOOLS),
    Command(
        "search",
        "<question>",
        "search the web, and answer from what is found",
        tools.search,
        TOOLS,
        more="`?query` searches for just these words. Where nothing is found, nothing is answered.",
        examples=("/search who won the Tour de France this year?",),
    ),
    Command(
        "shell",
        "<request>",
        "propose a shell command, and run it if you agree",
        tools.shell,
        TOOLS,
        more="`!command` runs a command that you know yourself.",
        examples=("/shell which files here are the largest?",),
    ),
    Command(
        "auto",
        "[ask|read-only]",
        "which proposed commands run without being asked about; alone, show it",
        tools.auto,
        TOOLS,
        examples=("/auto read-only", "/auto ask"),
    ),
    Command("tools", "", "show the tools, and whether they can be used", tools.tools, TOOLS),
    # Files and changes
    Command(
        "add",
        "<path…>",
        "put files, folders or patterns into the context",
        files.add,
        FILES,
        more="Paths are meant from where commands run. What .gitignore names is left out, unless it is named "
        "itself. `@path` in a "
        "message does the same.",
        examples=("/add README.md", "/add src *.toml", "/add 'my notes.txt'"),
        complete="path",
    ),
    Command(
        "drop",
        "<path…>",
        "take files out of the context; * is all of them",
        files.drop,
        FILES,
        examples=("/drop README.md", "/drop *"),
        complete="file-in-context",
    ),
    Command("files", "", "list the files in the context with their tokens", files.files, FILES),
    Command(
        "apply",
        "",
        "show the changes in the last answer, ask, and make them",
        changes.apply,
        FILES,
        more="For unified diffs and SEARCH/REPLACE blocks. Only files in the context are changed; new ones "
        "may be made where commands run. All changes are made, or none.",
    ),
    Command(
        "undo",
        "",
        "take back what /apply did last",
        changes.undo,
        FILES,
        more="Refused where a file was changed since.",
    ),
    # The model
    Command(
        "model",
        "[name]",
        "go on with another model; alone, show the one in use",
        models.model,
        MODEL,
        more="embedded, an MLX folder, a GGUF file, or a hub name. What was said is read again.",
        examples=("/model", "/model mlx-community/Qwen2.5-0.5B-Instruct-4bit"),
        complete="model",
    ),
    Command(
        "system",
        "[text]",
        "set the system prompt; - for none; alone, show it",
        models.system,
        MODEL,
        more="Files in the context stay there.",
        examples=("/system Answer in French.", "/system -"),
    ),
    Command(
        "profile",
        "[name]",
        "hold the context in another KV profile; alone, show the one in use",
        models.profile,
        MODEL,
        examples=("/profile", "/profile turbo3", "/profile exact"),
        complete="profile",
    ),
    Command("stats", "", "tokens, memory and speed of this session", figures.stats, MODEL),
    Command(
        "cost",
        "",
        "what this talk has cost: tokens, time, and energy if the system tells",
        figures.cost,
        MODEL,
    ),
    Command("bench", "", "measure the model's speed, in a moment", figures.bench, MODEL),
    # Feedback
    Command(
        "good",
        "[note]",
        "keep the last answer as a good one",
        feedback.good,
        FEEDBACK,
        more="Feedback stays on this machine.",
        examples=("/good", "/good short and right"),
    ),
    Command(
        "bad",
        "[better answer]",
        "keep the last answer as a bad one, and what it should have been",
        feedback.bad,
        FEEDBACK,
        more="Feedback stays on this machine.",
        examples=("/bad", "/bad The capital of Australia is Canberra."),
    ),
    Command(
        "improve",
        "[folder]",
        "write the feedback as a training set for mlx_lm.lora",
        feedback.improve,
        FEEDBACK,
        more="Prints the command that trains with it. About 50 samples are a start.",
        examples=("/improve", "/improve ~/training"),
        complete="path",
    ),
    # Help
    Command(
        "help",
        "[command]",
        "list the commands, or explain one",
        help_command,
        HELP,
        examples=("/help", "/help loop"),
        complete="command",
    ),
)
_BY_NAME = {name: command for command in COMMANDS for name in (command.name, *command.aliases)}
