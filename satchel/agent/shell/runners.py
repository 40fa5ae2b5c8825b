"""The commands that run others: judged by what they run. Knows nothing of what that does."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from satchel.agent.shell.options import OptionError, Options, options, take
from satchel.agent.shell.touch import READS, Finding, Inner, Rule, Touch, finding, unknown
from satchel.agent.shell.words import ASSIGNMENT, UNKNOWN_WORDS, Word, assigned_name, assigned_value, names

_PRIVILEGE = finding("runs with the rights of another user", Touch.PRIVILEGE)

# name: its own options, how many operands stand before the command, and what it touches itself.
_SIMPLE: dict[str, tuple[str, int, tuple[Finding, ...]]] = {
    "timeout": ("-s: -k: -vf --signal: --kill-after: --preserve-status --foreground --verbose", 1, ()),
    "gtimeout": ("-s: -k: -vf --signal: --kill-after: --preserve-status --foreground", 1, ()),
    "nice": ("-n: -# --adjustment:", 0, ()),
    "ionice": ("-c: -n: -t", 0, ()),
    "nohup": ("", 0, (finding("may write nohup.out", Touch.WRITES),)),
    "setsid": ("-cfw --wait --fork --ctty", 0, ()),
    "stdbuf": ("-i: -o: -e: --input: --output: --error:", 0, ()),
    "caffeinate": ("-dimsu -t: -w:", 0, ()),
    "time": ("-plv --portability", 0, ()),
    "gtime": ("-pv", 0, ()),
    "unbuffer": ("-p", 0, ()),
    "command": ("-p", 0, ()),
    "builtin": ("", 0, ()),
    "chrt": ("-bfior", 1, (_PRIVILEGE,)),
    "taskset": ("-c", 1, ()),
    "sudo": (
        "-EnHSkbPAi -u: -g: -p: -h: -C: -T: --user: --group: --preserve-env= --non-interactive --login "
        "--stdin",
        0,
        (_PRIVILEGE,),
    ),
    "doas": ("-n -u:", 0, (_PRIVILEGE,)),
    "pkexec": ("--user:", 0, (_PRIVILEGE,)),
    "run0": ("-u:", 0, (_PRIVILEGE,)),
    "chroot": ("--userspec: --groups:", 1, (_PRIVILEGE, unknown("runs what another root directory holds"))),
    "flock": (
        "-nsxuwE: -w: --nonblock --shared --exclusive",
        1,
        (finding("writes a lock file", Touch.WRITES),),
    ),
    "arch": ("-x86_64 -arm64", 0, (unknown("runs a program for another kind of processor"),)),
    "exec": ("-cl", 0, ()),
    "busybox": ("", 0, (unknown("runs its own version of the program"),)),
    "toybox": ("", 0, (unknown("runs its own version of the program"),)),
    "coproc": ("", 0, (unknown("runs a coprocess"),)),
    "noglob": ("", 0, (unknown("is read otherwise by every shell"),)),
    "nocorrect": ("", 0, (unknown("is read otherwise by every shell"),)),
    "strace": ("-fqc -e: -o: -p:", 0, (unknown("traces the program"),)),
}
_SHELLS = frozenset({"sh", "bash", "zsh", "dash", "ash", "ksh", "mksh", "fish", "tcsh", "csh"})
_OTHER_SHELLS = frozenset({"fish", "tcsh", "csh"})
_INTERPRETERS = names(
    """
    python python2 python3 perl ruby node nodejs php lua luajit Rscript R julia tclsh expect groovy
    scala ghci osascript pwsh powershell ts-node tsx irb bpython ipython jshell guile racket sbcl
    elixir erl swift
    """
)

# Settings that only change how text is shown or sorted; all others may change what runs.
_SHOWING = {
    "LC_ALL": r"[\w.@-]*",
    "LC_COLLATE": r"[\w.@-]*",
    "LC_CTYPE": r"[\w.@-]*",
    "LC_NUMERIC": r"[\w.@-]*",
    "LC_TIME": r"[\w.@-]*",
    "LC_MESSAGES": r"[\w.@-]*",
    "LANG": r"[\w.@-]*",
    "TZ": r"[\w/+-]*",
    "COLUMNS": r"[0-9]*",
    "LINES": r"[0-9]*",
    "NO_COLOR": r"[0-9]*",
    "FORCE_COLOR": r"[0-9]*",
    "CLICOLOR": r"[0-9]*",
    "PAGER": r"cat",
    "GIT_PAGER": r"cat",
    "MANPAGER": r"cat",
    "SYSTEMD_PAGER": r"cat",
    "BLOCKSIZE": r"\w*",
}


def setting(word: Word) -> Finding | None:
    """What the assignment `word` before a command may change, None if only how text looks."""
    name, value = assigned_name(word), assigned_value(word)
    if name in _SHOWING and value is not None and re.fullmatch(_SHOWING[name], value, re.ASCII):
        return None
    return unknown(f"sets {name or 'a variable'}, which may change what runs")


def _split(arguments: Sequence[Word], known: Options, operands: int) -> list[Word]:
    """The words from the inner command on."""
    rest = list(take(arguments, known, leading=True).operands)
    if any(word.splits for word in rest[:operands]):
        raise OptionError("an argument may be several words")
    return rest[operands:]


def _wrapper(listed: str, operands: int, own: tuple[Finding, ...]) -> Rule:
    known = options(listed)

    def rule(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
        try:
            command = _split(arguments, known, operands)
        except OptionError as fault:
            return [*own, unknown(f"runs something that cannot be told: {fault}")]
        if not command:
            return [*own, unknown("has no command to run")]
        return [*own, *inner.command(command)]

    return rule


def _env(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    try:
        given = take(
            arguments,
            options("-i0v -u: -S: --ignore-environment --unset: --split-string: --null"),
            leading=True,
        )
    except OptionError as fault:
        return [unknown(f"runs something that cannot be told: {fault}")]
    rest, found = list(given.operands), []
    for name, value in given.options:
        if name in ("-S", "--split-string"):
            text = value.value if value else None
            found.append(unknown("splits a text into a command"))
            found += inner.script(text, "sh") if text is not None else []
        if name in ("-u", "--unset", "-i", "--ignore-environment"):
            found.append(unknown("takes settings away, which may change what runs"))
    while rest and (ASSIGNMENT.match(rest[0].source) or "=" in (rest[0].value or "")):
        changed = setting(rest.pop(0))
        found += [changed] if changed else []
    return [*found, *(inner.command(rest) if rest else [READS])]


def _shell(name: str) -> Rule:
    def rule(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
        """Of `sh -c script argument…`; the others take options behind the script too, which may run more."""
        first = arguments[0].value if arguments else None
        alike = name not in _OTHER_SHELLS
        if first is None or not re.fullmatch(r"-[leu]*c" if alike else "-c", first) or len(arguments) < 2:
            return [unknown("runs a script that is not known")]
        if len(arguments) > 2 and not alike:
            return [unknown("is given more than a script"), *inner.script(arguments[1].value or "", name)]
        script = arguments[1].value
        if script is None:
            return [unknown("runs a text that is put together while it runs")]
        return inner.script(script, name)

    return rule


def _su(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    found = [_PRIVILEGE]
    for index, word in enumerate(arguments[:-1]):
        if word.value in ("-c", "--command"):
            text = arguments[index + 1].value
            found += inner.script(text, "sh") if text is not None else []
    return [*found, unknown("runs in the shell of another user")]


def _xargs(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    known = options(
        "-0rtx -n: -P: -I: -L: -d: -s: -E: -J: -R: --null --no-run-if-empty --verbose --max-args: "
        "--max-procs: --delimiter: --max-lines= --replace="
    )
    try:
        given = take(arguments, known, leading=True)
    except OptionError as fault:
        return [unknown(f"runs something that cannot be told: {fault}")]
    if not given.operands:
        return [READS]
    marks = [
        value.value if value else "{}" for name, value in given.options if name in ("-I", "-J", "--replace")
    ]
    if not marks:
        return inner.command([*given.operands, UNKNOWN_WORDS])
    mark = marks[0] or ""
    command = [_with_mark(word, mark) if mark else word for word in given.operands]
    # Of -I, -J, -n and -L the last cancels the others in some versions: then words are added after all.
    if len(marks) > 1 or not mark or given.has("-J", "-n", "-L", "--max-args", "--max-lines"):
        return [unknown("puts words where it cannot be told"), *inner.command([*command, UNKNOWN_WORDS])]
    return inner.command(command)


def _with_mark(word: Word, mark: str, *, several: bool = False) -> Word:
    """`word` where a text known only later takes the place of `mark`; `several`, each in its own word."""
    if word.value is None:  # the mark may begin in what is known and end in what is not
        known = next(
            (
                word.prefix[:index]
                for index in range(len(word.prefix))
                if word.prefix.startswith(mark, index) or mark.startswith(word.prefix[index:])
            ),
            word.prefix,
        )
        return Word(word.source, None, known, word.splits or several, word.splits or several)
    if mark not in word.value:
        return word
    return Word(word.source, None, word.value.partition(mark)[0], several, several)


def _may_end_command(word: Word) -> bool:
    """Whether a word that is not known may be the `;` or `+` that ends a command of find or fd."""
    return word.value is None and (word.loose or word.prefix in ("", ";", "+"))


_FIND_ALONE = names(
    """
    -print -print0 -ls -prune -empty -depth -d -follow -xdev -mount -x -nouser -nogroup -readable
    -writable -executable -true -false -quit -daystart -noleaf -o -or -a -and -not ! ( ) , -H -L -P
    -E -s -X -ignore_readdir_race
    """
)
_FIND_VALUED = names(
    """
    -name -iname -path -ipath -wholename -iwholename -regex -iregex -type -xtype -size -mtime -mmin
    -atime -amin -ctime -cmin -newer -anewer -cnewer -newermt -newerat -newerct -maxdepth -mindepth
    -perm -user -group -uid -gid -inum -links -samefile -printf -regextype -lname -ilname -fstype
    -used -context -flags -Bmin -Btime
    """
)


def _find(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    found, rest = [READS], list(arguments)
    while rest:
        word = rest.pop(0)
        if word.value in ("-exec", "-execdir", "-ok", "-okdir"):
            end = next(
                (i for i, one in enumerate(rest) if one.value == ";" or _is_batch_end(rest, i)), len(rest)
            )
            command, several = rest[:end], _is_batch_end(rest, end)
            rest = rest[end + 1 :]
            # Versions of find differ in which `+` ends a command that is not directly behind `{}`.
            if any(one.value == "+" or _may_end_command(one) for one in command) or (
                several and word.value in ("-ok", "-okdir")
            ):
                found.append(unknown("has a command whose end is not certain"))
            found += (
                inner.command([_with_mark(one, "{}", several=several) for one in command]) if command else []
            )
            found += [] if command else [unknown("has no command to run")]
            # A program of the directory that is searched could run under -execdir.
            found += (
                [unknown("runs in directories that it finds")] if word.value in ("-execdir", "-okdir") else []
            )
        elif word.value == "-delete":
            found.append(finding("deletes files", Touch.WRITES, Touch.DESTRUCTIVE))
        elif word.value is not None and word.value.startswith(("-fprint", "-fls")):
            found.append(finding("writes a file", Touch.WRITES))
        elif word.value in _FIND_VALUED:
            if not rest or rest[0].splits:
                found.append(unknown(f"has no certain value for {word.value}"))
            rest = rest[1:]
        elif word.value not in _FIND_ALONE and word.may_be_option:
            found.append(unknown(f"has a part that is not known: `{word.source}`"))
    return found


def _is_batch_end(words: Sequence[Word], index: int) -> bool:
    """Whether the word at `index` is a `+` directly behind `{}`."""
    return 0 < index < len(words) and (words[index - 1].value, words[index].value) == ("{}", "+")


def _ssh(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    return [finding("runs commands on another machine", Touch.NETWORK, Touch.UNKNOWN)]


def _watch(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    known = options("-dtgebcx -n: --interval: --differences= --no-title --exec")
    try:
        given = take(arguments, known, leading=True)
    except OptionError as fault:
        return [unknown(f"runs something that cannot be told: {fault}")]
    values = [word.value for word in given.operands]
    if not values or None in values:
        return [unknown("runs a text that is put together while it runs")]
    found = inner.script(" ".join(value or "" for value in values), "sh")
    return found + (inner.command(given.operands) if given.has("-x", "--exec") else [])


def _text_runner(why: str, *own: Touch) -> Rule:
    """Of eval and trap: whatever text they are given is judged too, for what it would do."""

    def rule(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
        values = [word.value for word in arguments if not word.may_be_option]
        found = [finding(why, Touch.UNKNOWN, *own)]
        texts = [" ".join(value or "" for value in values), values[0] if values else ""]
        return found + [one for text in texts if text for one in inner.script(text, "sh")]

    return rule


def _command(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    if arguments and arguments[0].value in ("-v", "-V"):
        return [READS]
    return list(_wrapper(*_SIMPLE["command"])(arguments, inner))


def _sudo(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    values = [word.value for word in arguments]
    if values in (["-l"], ["-v"], ["-k"], ["-K"]):
        return [_PRIVILEGE, READS]
    if values and values[0] in ("-e", "--edit"):
        return [_PRIVILEGE, finding("edits a file", Touch.WRITES)]
    rest = list(arguments)
    changed = []
    while rest and ASSIGNMENT.match(rest[0].source):
        one = setting(rest.pop(0))
        changed += [one] if one else []
    return [*changed, *_wrapper(*_SIMPLE["sudo"])(rest, inner)]


def _interpreter(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    return [unknown("runs a program that cannot be judged")]


def _script(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    return [finding("writes what a program shows to a file", Touch.WRITES, Touch.UNKNOWN)]


def _fd(read: Rule) -> Rule:
    """fd with -x or -X runs what follows, up to a `;`, for every file."""

    def rule(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
        own: list[Word] = []
        found: list[Finding] = []
        rest = list(arguments)
        while rest:
            word = rest.pop(0)
            if word.value not in ("-x", "-X", "--exec", "--exec-batch"):
                own.append(word)
                continue
            several = word.value in ("-X", "--exec-batch")
            end = next((index for index, one in enumerate(rest) if one.value == ";"), len(rest))
            command, rest = rest[:end], rest[end + 1 :]
            if not command or any(_may_end_command(one) for one in command):
                found.append(unknown("has a command whose end is not certain"))
            marked = [_with_mark(one, "{", several=several) for one in command]
            found += inner.command([*marked, UNKNOWN_WORDS]) if command else []
        return [*read(own, inner), *found]

    return rule


def runners(read: Callable[[str], Rule]) -> dict[str, Rule]:
    """Every command of this module by its name; `read` gives the rule of one that otherwise reads."""
    rules = {name: _wrapper(listed, operands, own) for name, (listed, operands, own) in _SIMPLE.items()}
    rules |= {name: _shell(name) for name in _SHELLS}
    rules |= dict.fromkeys(_INTERPRETERS, _interpreter)
    rules |= dict.fromkeys(("fd", "fdfind"), _fd(read("fd")))
    return rules | {
        "env": _env,
        "sudo": _sudo,
        "su": _su,
        "xargs": _xargs,
        "find": _find,
        "ssh": _ssh,
        "mosh": _ssh,
        "watch": _watch,
        "parallel": _interpreter,
        "script": _script,
        "command": _command,
        "eval": _text_runner("runs a text as a command"),
        "trap": _text_runner("plans a command for later"),
        "source": _interpreter,
        ".": _interpreter,
        "nsenter": _interpreter,
        "unshare": _interpreter,
        "dotenv": _interpreter,
        "direnv": _interpreter,
    }
