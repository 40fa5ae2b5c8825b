"""The words that make a model propose one shell command, and that find the command in its answer.

Knows nothing of how commands are judged or run.
"""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from satchel.agent.shell.report import fenced
from satchel.cache_store.manifest import Message
from satchel.sanitize import sanitize, sanitize_line

MAX_COMMAND_CHARS = 4000  # of a proposal: a longer one went astray
MAX_LINE_CHARS = 400
MAX_SAME_WORDS = 12  # in a line
MAX_ANSWER_CHARS = 4 * MAX_COMMAND_CHARS  # that are read
MAX_ENTRIES = 12  # of the directory that are named
MAX_NAME_CHARS = 60
MAX_REQUEST_CHARS = 2000

# Worth telling of: what is not everywhere, and what a model would rather use where it is there
TOOLS = (
    "git", "docker", "kubectl", "python3", "node", "npm", "uv", "cargo", "go", "brew", "apt", "dnf", "pacman",
    "systemctl", "rg", "fd", "jq", "curl", "wget", "ffmpeg", "magick", "convert", "rsync", "tree", "htop",
)  # fmt: skip

# A request, what lies in the directory, and the command on Linux and on macOS, where that differs
_EXAMPLES: tuple[tuple[str, str, str, str | None], ...] = (
    ("list the files here with their sizes", "notes.txt, src/", "ls -lh", None),
    ("show hidden files too", "", "ls -la", None),
    ("list files by date, newest first", "", "ls -lt", None),
    ("what directory am I in", "", "pwd", None),
    ("which 5 files here are the largest?", "a.iso, logs/", "du -ah . | sort -rh | head -n 5", None),
    ("find all pdf files", "books/", "find . -type f -name '*.pdf'", None),
    ("files larger than 50 MB", "", "find . -type f -size +50M", None),
    ("files changed in the last 2 days", "", "find . -type f -mtime -2", None),
    ("how much disk space is free", "", "df -h", None),
    ("how big is the folder src", "src/", "du -sh src", None),
    ("how much memory is used", "", "free -h", "vm_stat"),
    ("how long has the system been up", "", "uptime", None),
    ("which version of the system is this", "", "uname -a", "sw_vers"),
    ("what time is it", "", "date", None),
    ("who am I logged in as", "", "whoami", None),
    ("show the variable HOME", "", 'echo "$HOME"', None),
    ("which processes use the most memory", "", "ps aux --sort=-%mem | head -n 10", "ps aux -m | head -n 10"),
    ("is nginx running", "", "pgrep -l nginx", None),
    ("kill the process 4242", "", "kill 4242", None),
    ("what is listening on port 8000", "", "ss -ltnp 'sport = :8000'", "lsof -nP -iTCP:8000 -sTCP:LISTEN"),
    ("what is my ip address", "", "ip -brief address", "ifconfig | grep 'inet '"),
    ("is example.com reachable", "", "ping -c 3 example.com", None),
    ("download https://example.com/data.json", "", "curl -fLO https://example.com/data.json", None),
    ("show the first 10 lines of log.txt", "log.txt", "head -n 10 log.txt", None),
    ("show the last 50 lines of log.txt", "log.txt", "tail -n 50 log.txt", None),
    ("how many lines has data.csv", "data.csv", "wc -l data.csv", None),
    ("count the words in book.txt", "book.txt", "wc -w book.txt", None),
    ("search for TODO in the python files", "app.py, lib/", "grep -rn --include='*.py' 'TODO' .", None),
    (
        "replace foo by bar in config.ini",
        "config.ini",
        "sed -i 's/foo/bar/g' config.ini",
        "sed -i '' 's/foo/bar/g' config.ini",
    ),
    ("sort names.txt and remove duplicates", "names.txt", "sort -u names.txt", None),
    ("rename old.txt to new.txt", "old.txt", "mv old.txt new.txt", None),
    ("copy notes.txt to backup", "backup/, notes.txt", "cp notes.txt backup/", None),
    ("make a folder called photos", "", "mkdir -p photos", None),
    ("delete the folder build", "build/, src/", "rm -r build", None),
    ("delete all log files here", "a.log, b.log, c.txt", "rm -- *.log", None),
    ("make run.sh executable", "run.sh", "chmod +x run.sh", None),
    ("compress the folder docs", "docs/", "tar -czf docs.tar.gz docs", None),
    ("unpack archive.tar.gz", "archive.tar.gz", "tar -xzf archive.tar.gz", None),
    ("unzip files.zip", "files.zip", "unzip files.zip", None),
    (
        "when was report.docx last changed",
        "report.docx",
        "stat -c '%y' report.docx",
        "stat -f '%Sm' report.docx",
    ),
    ("what changed in the last commit", ".git/", "git show --stat HEAD", None),
    ("list the git branches", ".git/", "git branch -a", None),
    ("which containers are running", "", "docker ps", None),
    ("当前目录下有多少个文件", "docs/, main.c", "find . -maxdepth 1 -type f | wc -l", None),
    ("显示磁盘空间", "", "df -h", None),
)


def examples(
    shell: str, system: str = sys.platform, tools: Sequence[str] | None = None
) -> tuple[Message, ...]:
    """Requests and their commands, behind a system message: what a model reads once for a shell, a system and
    what is installed.

    Args:
        shell: its path or name.
        system: as `sys.platform` names it.
        tools: programs that are there; None: looked for.
    """
    mac = system == "darwin"
    task = f"You write commands for the shell {Path(shell).name} on {'macOS' if mac else 'Linux'}."
    rule = "Answer with the one command that does the task, and with nothing else."
    programs = ", ".join(available_tools() if tools is None else tools)
    there = f" Also installed: {programs}." if programs else ""
    messages = [Message(role="system", content=f"{task} {rule}{there}")]
    for request, entries, linux, macos in _EXAMPLES:
        command = macos if mac and macos else linux
        messages.append(Message(role="user", content=_question(request, entries)))
        messages.append(Message(role="assistant", content=command))
    return tuple(messages)


def proposal_question(
    request: str,
    cwd: Path,
    history: Sequence[Message] = (),
    *,
    entries: Sequence[str] | None = None,
) -> str:
    """What asks for a command, in the form of the examples: what is in `cwd`, then the request.

    Args:
        history: the talk so far; "and the newest of them?" is about what was asked before.
        entries: names in `cwd`; None: looked up.
    """
    names = directory_entries(cwd) if entries is None else entries
    return _question(
        sanitize_line(request)[:MAX_REQUEST_CHARS],
        ", ".join(shown_name(name) for name in names[:MAX_ENTRIES]),
        shown_name(str(cwd)),
        earlier_request(request, history),
    )


def _question(request: str, entries: str, cwd: str = "", earlier: str = "") -> str:
    parts = {"Directory": cwd, "Files": entries, "Before": earlier, "Task": request}
    return "\n".join(f"{name}: {text}" for name, text in parts.items() if text)


def directory_entries(cwd: Path) -> list[str]:
    """Some names in `cwd`, folders with a slash; [] if it cannot be read."""
    try:
        with_type = [(path.name, path.is_dir()) for path in itertools.islice(cwd.iterdir(), 1000)]
    except OSError:
        return []
    visible = sorted(each for each in with_type if not each[0].startswith(".") or each[0] == ".git")
    return [name + "/" * folder for name, folder in visible[:MAX_ENTRIES]]


def available_tools() -> list[str]:
    """Those of `TOOLS` that are installed."""
    return [name for name in TOOLS if shutil.which(name)]


def shown_name(name: str) -> str:
    """`name` as one word of a shell, on one line: names are written by anyone."""
    name = sanitize_line(name)
    if len(name) > MAX_NAME_CHARS:
        name = name[: MAX_NAME_CHARS - 1] + "…"
    return shlex.quote(name)


_REFERS_BACK = re.compile(
    r"^(?:and|or|now|then|but|also|instead)\b|\b(?:it|its|them|they|those|these|that|same|again|instead|one)\b"
    r"|^(?:那|再|还|然后)|它|这些|那些|同样",
    re.IGNORECASE,
)


def earlier_request(request: str, history: Sequence[Message]) -> str:
    """What the user asked last, if `request` refers to something before it; else ""."""
    if not _REFERS_BACK.search(request.strip()):
        return ""
    asked = [message.content for message in history if message.role == "user" and message.content.strip()]
    return sanitize_line(asked[-1].strip().split("\n")[0])[:200] if asked else ""


def explanation_question(command: str) -> str:
    """What asks a model to explain `command`."""
    return (
        "Here is a shell command, which has not run:\n"
        f"{fenced(sanitize(command), 'sh')}\n"
        "Explain in a few short sentences what it does, part by part, and what it would change."
    )


# Reading an answer

# A line that opens or closes a block of code, with the language if it names one
_FENCE = re.compile(r"[ \t>]*(?:`{2,}|~{3,}|'{3,}|\"{3,})[ \t]*([\w+.-]*)[ \t]*")
_LANGUAGE = r"(?:bash|sh|zsh|fish|shell|console|shell-?session|terminal|command|text|plaintext)"
# Fences in the line of a command: around it, before it, and behind it
_IN_ONE_LINE = re.compile(
    rf"^[ \t>]*(`{{2,}})[ \t]*(?:{_LANGUAGE}[ \t]+)?([^`\n]*[^`\s])[ \t]*\1[ \t]*$", re.MULTILINE
)
_OPENED_BEFORE = re.compile(
    rf"^[ \t>]*`{{3,}}[ \t]*(?:{_LANGUAGE}[ \t]+)?(?=[^`\s]+[ \t]+[^`\s])", re.MULTILINE
)
_CLOSED_BEHIND = re.compile(r"(?<=[^\s`>])[ \t]*`{3,}[ \t]*$", re.MULTILINE)
_LABEL = re.compile(
    r"^\*{0,2}(?:command|answer|output|shell|bash|sh|zsh|命令|答案)\*{0,2}\s*[::]\*{0,2}\s*", re.IGNORECASE
)
_PROMPT = re.compile(r"^(?:[\w.-]+@[\w.-]+[^$#%]*)?[$%❯]\s+")
_NO_COMMAND = (
    # A sentence
    re.compile(r"[A-Z][\w'’]*,?(?: [\w'’`\"(),:;/.-]+){2,}[.:!?]"),
    # The beginning of one, and nothing that only a command has
    re.compile(
        r"(?:here|this|that|these|the|you|your|it|to|use|using|try|sure|okay|ok|no|note|i|in|we|please|for"
        r" example|run|alternatively|first|finally)\b[^|;&<>$]*\s[^|;&<>$]*",
        re.IGNORECASE,
    ),
    # What the examples are made of, and remarks on what stands above
    re.compile(r"(?:task|files|directory|before|note|explanation|output)\s*:.*|#.*", re.IGNORECASE),
)
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


_CIRCLE = re.compile(r"(.{1,30}?)\1{5,}\Z", re.DOTALL)
_LEAST_CIRCLE = 18  # characters: 1000000 is a number


def goes_in_circles(text: str) -> bool:
    """Whether `text` ends in the same few characters again and again, as small models' answers may."""
    circle = _CIRCLE.search(text.rstrip()[-240:])
    return circle is not None and len(circle[0]) >= _LEAST_CIRCLE


def command_from(answer: str) -> str:
    """The command in a model's answer, which may be of several lines; "" if there is none, one that goes in
    circles or says the same word too often, or one that is too long to be meant.

    Fences, prompts, labels and sentences around it are left out, as are control characters: what is shown is
    what would run.
    """
    if goes_in_circles(answer):
        return ""
    text = sanitize(answer[:MAX_ANSWER_CHARS].replace("\r\n", "\n"))
    command = "\n".join(_PROMPT.sub("", line.rstrip()) for line in _proposed_lines(text)).strip()
    if whole := _INLINE.fullmatch(command):
        command = whole[1].strip()
    if command.count("`") == 1:  # what is left of a pair
        command = command.removeprefix("`").removesuffix("`").strip()
    return command if _may_be_meant(command) else ""


def _proposed_lines(text: str) -> list[str]:
    """The lines of a block of code, or those before a stray fence; else the first words in backticks."""
    text = _IN_ONE_LINE.sub(r"```\n\2\n```", text)
    text = _CLOSED_BEHIND.sub("\n```", _OPENED_BEFORE.sub("```\n", text))
    parts: list[list[str]] = [[]]  # before the first fence, behind it, behind the second one
    languages: list[str] = []
    for line in text.split("\n"):
        if fence := _FENCE.fullmatch(line):
            languages.append(fence[1])
            parts.append([])
        else:
            parts[-1].append(line)
    # One fence without a language ends what stands before it; all others begin a block.
    order = [0, 1] if languages == [""] else [1, 0, *range(2, len(parts))]
    for place in order:
        if place < len(parts) and (found := _lines_of_command(parts[place])):
            return parts[place] if place == 1 else found
    inline = _INLINE.search(text)
    return [inline[1]] if inline else []


def _may_be_meant(command: str) -> bool:
    return len(command) <= MAX_COMMAND_CHARS and not any(
        len(line) > MAX_LINE_CHARS or _repeats_itself(line) for line in command.split("\n")
    )


def _repeats_itself(line: str) -> bool:
    """Whether a word stands in `line` too often. Options may: -name stands before one name after another."""
    words = line.split()
    arguments = Counter(word for word in words if not word.startswith("-"))
    runs = (sum(1 for _ in run) for _, run in itertools.groupby(words))
    return max([0, *arguments.values(), *runs]) > MAX_SAME_WORDS


def _lines_of_command(lines: Sequence[str]) -> list[str]:
    """The first of `lines` that are no sentences."""
    found: list[str] = []
    for line in lines:
        bare = _LABEL.sub("", line.strip())
        if bare and not any(pattern.fullmatch(bare) for pattern in _NO_COMMAND):
            found.append(bare if bare != line.strip() else line)
        elif found:
            break
    return found
