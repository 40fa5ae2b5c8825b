"""`satchel completion …`: has bash, zsh or fish complete commands, options and names.

A script asks `satchel completion words` at each press of Tab. bash and zsh read it from a block at the end of
their startup file, fish finds it by its place.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from satchel.cli.options import AsJson, examples, report
from satchel.cli.records import CompletionRecord
from satchel.cli.schemas import print_json
from satchel.config.paths import data_dir
from satchel.errors import SatchelError, UsageError
from satchel.files import atomic_write
from satchel.terminal.sanitize import sanitize_line

BEGIN, END = "# >>> satchel completion >>>", "# <<< satchel completion <<<"

# In these, `words` prints a candidate a line, with what it means behind a tab. Where it prints none, the
# shell offers files.
BASH = r"""
_satchel() {
    local word quoted
    COMPREPLY=()
    while IFS=$'\t' read -r word _; do
        printf -v quoted %q "$word"
        COMPREPLY+=("$quoted")
    done < <(satchel completion words bash -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _satchel satchel
"""

ZSH = r"""
_satchel() {
    local -a found
    local line
    while IFS= read -r line; do
        found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
    done < <(satchel completion words zsh -- "${(@Q)words[2,CURRENT]}" 2>/dev/null)
    if (( $#found )); then
        _describe satchel found
    else
        _files
    fi
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _satchel satchel
"""

FISH = r"""
function __satchel_words
    set -l found (satchel completion words fish -- (commandline -opc)[2..] (commandline -ct) 2>/dev/null)
    if set -q found[1]
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c satchel -e
complete -c satchel -f -a '(__satchel_words)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
SHELLS = tuple(SCRIPTS)

completion = typer.Typer(
    help="Have your shell complete commands, options, and the names of sessions, models and settings.",
    epilog=examples(
        "satchel completion install             # for your shell",
        "satchel completion install zsh",
        "satchel completion show bash           # prints the script",
    ),
)

Shell = Annotated[
    str | None, typer.Argument(help="bash, zsh or fish; the one that SHELL names if not given.")
]


@completion.command(
    "install", epilog=examples("satchel completion install", "satchel completion install fish")
)
def install(shell: Shell = None, as_json: AsJson = False) -> None:
    """Install the completion for you; says what it writes. Doing it again does no harm."""
    place = _Place.of(_checked(shell))
    changed = place.install()
    if as_json:
        print_json(place.record(changed))
    else:
        print(sanitize_line(str(place.script)))
        if place.startup:
            report(f"{place.startup} {'now reads it' if changed else 'reads it already'}")
        report(f"a new {place.shell} completes `satchel`")


@completion.command(
    "show", epilog=examples("satchel completion show zsh", 'eval "$(satchel completion show)"')
)
def show(shell: Shell = None) -> None:
    """Print the script, to be put where you like."""
    print(SCRIPTS[_checked(shell)].strip())


@completion.command("uninstall", epilog=examples("satchel completion uninstall bash"))
def uninstall(shell: Shell = None, as_json: AsJson = False) -> None:
    """Take back what `install` did."""
    place = _Place.of(_checked(shell))
    changed = place.uninstall()
    if as_json:
        print_json(place.record(changed))
    else:
        report("completion is removed" if changed else "no completion was installed")


@completion.command("words", hidden=True)
def print_words(
    shell: Annotated[str, typer.Argument()],
    typed: Annotated[list[str] | None, typer.Argument()] = None,
) -> None:
    """What the scripts ask: how the last of the words that are typed can go on."""
    from typer.main import get_command

    from satchel.cli.app import app
    from satchel.cli.completing import words_for
    from satchel.cli.program import Program

    program = get_command(app)
    assert isinstance(program, Program)
    for word in words_for(program, typed or []):
        print(f"{sanitize_line(word.text)}\t{sanitize_line(word.meaning)}")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a shell's script is, and the startup file that reads it, if it is not found by itself."""

    shell: str
    script: Path
    startup: Path | None

    @classmethod
    def of(cls, shell: str) -> _Place:
        home = Path.home()
        if shell == "fish":
            folder = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "fish" / "completions"
            return cls(shell, folder / "satchel.fish", None)
        script = data_dir() / "completion" / f"satchel.{shell}"
        if shell == "zsh":
            return cls(shell, script, Path(os.environ.get("ZDOTDIR") or home) / ".zshrc")
        # Terminal.app starts login shells, which read no .bashrc.
        return cls(shell, script, home / (".bash_profile" if sys.platform == "darwin" else ".bashrc"))

    def install(self) -> bool:
        """Whether anything was to be changed.

        Raises:
            SatchelError: the disk refused.
        """
        text = SCRIPTS[self.shell].lstrip()
        changed = _text_of(self.script) != text
        if changed:
            try:
                self.script.parent.mkdir(parents=True, exist_ok=True)
            except OSError as err:
                raise _refused(self.script, err) from err
            atomic_write(self.script, text.encode())
        if self.startup is None:
            return changed
        before = _text_of(self.startup)
        block = f"{BEGIN}\n[ -r {_quoted(self.script)} ] && . {_quoted(self.script)}\n{END}\n"
        if block in before:
            return changed
        rest = _without_block(before)
        _rewrite(self.startup, rest + ("\n" if rest and not rest.endswith("\n") else "") + block)
        return True

    def uninstall(self) -> bool:
        """Whether there was anything.

        Raises:
            SatchelError: the disk refused.
        """
        changed = self.script.exists()
        try:
            self.script.unlink(missing_ok=True)
        except OSError as err:
            raise _refused(self.script, err) from err
        if self.startup is None:
            return changed
        before = _text_of(self.startup)
        after = _without_block(before)
        if after != before:
            _rewrite(self.startup, after)
        return changed or after != before

    def record(self, changed: bool) -> CompletionRecord:
        startup = str(self.startup) if self.startup else None
        return CompletionRecord(shell=self.shell, script=str(self.script), startup=startup, changed=changed)


def _checked(shell: str | None) -> str:
    """
    Raises:
        UsageError: it is none that is known, or none is named by SHELL.
    """
    name = shell or Path(os.environ.get("SHELL", "")).name
    if name in SCRIPTS:
        return name
    if shell is None:
        raise UsageError("it is not known which shell you use", f"name it: {', '.join(SHELLS)}")
    raise UsageError(f"there is no completion for {shell!r}", f"known are {', '.join(SHELLS)}")


def _text_of(path: Path) -> str:
    """What stands in `path`, byte for byte; "" if it is not there.

    Raises:
        SatchelError: it cannot be read.
    """
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return ""
    except OSError as err:
        raise _refused(path, err) from err


def _rewrite(path: Path, text: str) -> None:
    """Replace a file of the user's, which keeps its mode and, if it is a link, stays one.

    Raises:
        SatchelError: the disk refused; the file is as it was.
    """
    target = path.resolve()
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as work:
            work.write(text.encode("utf-8", "surrogateescape"))
        try:
            if target.exists():
                shutil.copymode(target, work.name)
            else:
                Path(work.name).chmod(0o644)
            Path(work.name).replace(target)
        except OSError:
            Path(work.name).unlink()
            raise
    except OSError as err:
        raise _refused(path, err) from err


def _without_block(text: str) -> str:
    return re.sub(rf"^{re.escape(BEGIN)}\n.*?^{re.escape(END)}\n?", "", text, flags=re.S | re.M)


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "'\\''") + "'"


def _refused(path: Path, err: OSError) -> SatchelError:
    return SatchelError(f"{path} cannot be changed: {err.strerror or err}", "nothing else was done")
