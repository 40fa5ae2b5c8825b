"""Commands run for real, with each shell that is installed."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import pytest

from satchel.agent.shell import processes
from satchel.agent.shell.capture import HEAD_BYTES, LIVE_BURST_BYTES, TAIL_BYTES, Capture, LiveText, fold
from satchel.agent.shell.runner import CommandResult, ShellRunner, find_shell
from satchel.agent.shell.surroundings import Surroundings
from satchel.errors import NotFoundError, UsageError

SHELLS = ("bash", "sh", "zsh", "fish")


def path_of(shell: str) -> str:
    return shutil.which(shell) or pytest.skip(f"{shell} is not installed")


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    return path_of(request.param)


@pytest.fixture
def runner(tmp_path: Path) -> ShellRunner:
    return ShellRunner(timeout_s=20, shell="/bin/sh", cwd=tmp_path)


def run(runner: ShellRunner, command: str, cancel: threading.Event | None = None) -> CommandResult:
    return live_run(runner, command, cancel)[1]


def live_run(
    runner: ShellRunner, command: str, cancel: threading.Event | None = None
) -> tuple[str, CommandResult]:
    """What was shown while it ran, and the result."""
    *pieces, result = runner.run(command, cancel or threading.Event())
    assert isinstance(result, CommandResult)
    assert all(isinstance(piece, str) for piece in pieces)
    return "".join(map(str, pieces)), result


def running(pids: Path) -> list[int]:
    """Which of the processes whose numbers stand in the file still run."""
    alive = []
    for pid in map(int, pids.read_text().split()):
        state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
        if state.strip() and not state.startswith("Z"):
            alive.append(pid)
    return alive


# How a command ends


def test_output_and_errors_come_in_order_in_one_text(shell: str, tmp_path: Path) -> None:
    live, result = live_run(
        ShellRunner(timeout_s=20, shell=shell, cwd=tmp_path), "echo one; echo two >&2; echo three"
    )
    assert result.output == live == "one\ntwo\nthree\n"
    assert (result.exit_code, result.timed_out, result.cancelled) == (0, False, False)
    assert result.status() == "exit code 0"


def test_the_exit_code_is_the_commands(shell: str, tmp_path: Path) -> None:
    runner = ShellRunner(timeout_s=20, shell=shell, cwd=tmp_path)
    assert run(runner, "exit 3").exit_code == 3
    assert run(runner, "false").exit_code == 1
    assert run(runner, "true").exit_code == 0
    assert run(runner, "no-such-program-at-all").exit_code == 127
    assert run(runner, "exec sh -c 'exit 7'").exit_code == 7
    assert run(runner, "exit 3").status() == "exit code 3"


def test_a_shell_that_a_signal_killed(runner: ShellRunner) -> None:
    result = run(runner, "kill -9 $$")
    assert result.exit_code == 137
    assert result.status() == "exit code 137, as of a program killed by signal 9 (SIGKILL)"
    assert run(runner, "exit 255").status() == "exit code 255"


def test_standard_input_is_at_its_end(runner: ShellRunner) -> None:
    result = run(runner, "cat; read x; echo $?")
    assert result.output == "1\n"


def test_the_command_is_the_first_of_a_session_of_its_own(runner: ShellRunner) -> None:
    code = "import os; print(os.getppid(), os.getsid(0), os.getpgid(0))"
    pid, *ids = run(runner, f"{sys.executable} -c '{code}'; true").output.split()
    assert ids == [pid, pid]


def test_a_stopped_command_says_that_its_effects_stay() -> None:
    result = CommandResult("x", None, "", 0, timed_out=True, cancelled=False, seconds=2.04)
    assert result.status() == "timed out after 2 s; what it had done stays done"
    result = CommandResult("x", None, "", 0, timed_out=False, cancelled=True, seconds=0.46, left=2)
    assert (
        result.status()
        == "cancelled after 0.5 s; what it had done stays done; 2 processes of it still running"
    )


@pytest.mark.parametrize("command", ["echo a\0b", "echo \udc80", "#" * 70_000])
def test_what_no_shell_can_be_given_is_refused(runner: ShellRunner, command: str) -> None:
    with pytest.raises(UsageError):
        run(runner, command)


def test_the_shell_is_the_users_if_we_know_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bash = path_of("bash")
    monkeypatch.setenv("SHELL", bash)
    assert find_shell() == bash
    assert ShellRunner(timeout_s=1).kind == "bash"
    for wrong in ("bash", "/nowhere/bash", "/bin/true", "", str(tmp_path)):
        monkeypatch.setenv("SHELL", wrong)
        assert find_shell() == "/bin/sh"
    assert find_shell(bash) == bash


# What is ended


@pytest.mark.parametrize("command", ["sleep 600 & sleep 600", "setsid sleep 600 & sleep 600; echo no"])
def test_a_timeout_ends_all_that_the_command_started(shell: str, tmp_path: Path, command: str) -> None:
    if "setsid" in command and not shutil.which("setsid"):
        pytest.skip("there is no setsid")
    noted = "last_pid" if shell.endswith("fish") else "!"
    command = command.replace("& ", f"& echo ${noted} $$ > pids; ", 1)
    if shell.endswith("fish"):
        command = command.replace("$$", "$fish_pid")
    started = time.monotonic()
    result = run(ShellRunner(timeout_s=0.5, shell=shell, cwd=tmp_path), command)
    assert time.monotonic() - started < 5
    assert (result.exit_code, result.timed_out, result.left) == (None, True, 0)
    assert result.status().startswith("timed out after ")
    assert len((tmp_path / "pids").read_text().split()) == 2
    assert running(tmp_path / "pids") == []


@pytest.mark.skipif(not shutil.which("ps"), reason="there is no ps")
def test_processes_are_found_without_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processes, "_from_proc", processes._from_ps)
    runner = ShellRunner(timeout_s=1, shell="/bin/sh", cwd=tmp_path)
    assert run(
        runner, "sh -c 'echo $$ > pids; trap \"\" TERM HUP; sleep 600; sleep 600' & sleep 600"
    ).timed_out
    assert running(tmp_path / "pids") == []
    assert run(runner, "sleep 600 & true").ended == 1


def test_what_ignores_being_asked_is_killed(runner: ShellRunner, tmp_path: Path) -> None:
    runner = ShellRunner(timeout_s=0.5, shell="/bin/sh", cwd=tmp_path)
    result = run(runner, "trap '' TERM HUP INT; echo $$ > pids; while :; do sleep 0.05; done")
    assert result.timed_out
    assert running(tmp_path / "pids") == []


def test_a_command_is_cancelled_while_it_runs(runner: ShellRunner, tmp_path: Path) -> None:
    cancel = threading.Event()
    pieces = runner.run("echo $$ > pids; echo begun; sleep 600", cancel)
    assert next(piece for piece in pieces if piece) == "begun\n"
    started = time.monotonic()
    cancel.set()
    *_, result = pieces
    assert isinstance(result, CommandResult)
    assert time.monotonic() - started < 5
    assert (result.cancelled, result.timed_out, result.exit_code) == (True, False, None)
    assert result.output == "begun\n"
    assert result.status().startswith("cancelled after ")
    assert result.status().endswith(" s; what it had done stays done")
    assert running(tmp_path / "pids") == []
    assert run(runner, "echo on").output == "on\n"  # the talk goes on


def test_a_command_whose_reader_leaves_is_ended(runner: ShellRunner, tmp_path: Path) -> None:
    pieces = runner.run("echo $$ > pids; echo begun; sleep 600", threading.Event())
    assert next(piece for piece in pieces if piece)
    pieces.close()  # type: ignore[attr-defined]
    assert running(tmp_path / "pids") == []


def test_ctrl_c_ends_the_command_and_leaves_the_runner_usable(tmp_path: Path) -> None:
    script = """
        import sys, threading
        from pathlib import Path
        from satchel.agent.shell.runner import ShellRunner

        runner = ShellRunner(timeout_s=60, shell="/bin/sh", cwd=Path(sys.argv[1]))
        try:
            for piece in runner.run("echo $$ > pids; echo begun; sleep 600", threading.Event()):
                print(piece, end="", flush=True)
        except KeyboardInterrupt:
            print("interrupted", *runner.run("echo on", threading.Event()), flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20)[0].startswith("interrupted on\n")
    assert running(tmp_path / "pids") == []


def test_what_stays_in_the_background_does_not_hang_the_run_and_is_ended(shell: str, tmp_path: Path) -> None:
    noted = "last_pid" if shell.endswith("fish") else "!"
    started = time.monotonic()
    result = run(
        ShellRunner(timeout_s=60, shell=shell, cwd=tmp_path), f"sleep 600 &\necho ${noted} > pids; echo done"
    )
    assert time.monotonic() - started < 10
    assert (result.output, result.exit_code, result.ended, result.left) == ("done\n", 0, 1, 0)
    assert result.status() == "exit code 0; 1 background process ended, too (nohup keeps one running)"
    assert running(tmp_path / "pids") == []


def test_a_background_that_writes_for_ever_is_ended(runner: ShellRunner) -> None:
    result = run(runner, "yes & echo done")
    assert (result.exit_code, result.ended) == (0, 1)


@pytest.mark.parametrize("keeper", ["nohup", "setsid"])
def test_nohup_and_setsid_keep_a_process(runner: ShellRunner, tmp_path: Path, keeper: str) -> None:
    if not shutil.which(keeper):
        pytest.skip(f"there is no {keeper}")
    result = run(runner, f"{keeper} sleep 600 >/dev/null 2>&1 & sleep 0.3; echo $! > pids")
    kept = running(tmp_path / "pids")
    for pid in kept:
        os.kill(pid, signal.SIGKILL)
    assert len(kept) == 1
    assert (result.ended, result.left) == (0, 1 if keeper == "nohup" else 0)
    if keeper == "nohup":
        assert result.status() == "exit code 0; 1 process of it still running"


def test_what_follows_the_shell_shortly_is_waited_for(runner: ShellRunner) -> None:
    result = run(runner, "(sleep 0.1; echo late) &")
    assert (result.output, result.ended) == ("late\n", 0)


# What one command leaves for the next


def test_the_directory_and_exported_variables_persist(shell: str, tmp_path: Path) -> None:
    (tmp_path / "a b'\"$x").mkdir()
    runner = ShellRunner(timeout_s=20, shell=shell, cwd=tmp_path)
    export, plain = (
        ("set -gx COLOUR", "set -g PLAIN 1") if shell.endswith("fish") else ("export COLOUR=", "PLAIN=1")
    )
    value = "'two\nlines = \u00e9 '"
    joint = " " if shell.endswith("fish") else ""
    assert run(runner, f"cd a*; {plain}; {export}{joint}{value}; exit 3").exit_code == 3
    assert runner.cwd == tmp_path.resolve() / "a b'\"$x"
    result = run(runner, "pwd; printenv COLOUR; printenv PLAIN; env | grep -ci satchel_shell")
    assert result.output == f"{runner.cwd}\ntwo\nlines = \u00e9 \n0\n"
    run(runner, "cd ..; false")
    assert runner.cwd == tmp_path.resolve()
    run(runner, "cd -")
    assert runner.cwd == tmp_path.resolve() / "a b'\"$x"
    run(runner, "set -e COLOUR" if shell.endswith("fish") else "unset COLOUR")
    assert run(runner, "printenv COLOUR").output == ""


@pytest.mark.parametrize("name", ["bash", "sh", "zsh"])
@pytest.mark.parametrize(
    ("command", "code", "moved"),
    [
        ("set -e; cd sub; false; cd /", 1, True),
        ("set -eu; cd sub", 0, True),
        ("trap 'echo bye' EXIT; cd sub; sh -c 'exit 5'", 5, True),
        ("cd sub; exec sh -c 'exit 4'", 4, False),
        ("cd sub; kill -9 $$", 137, False),
        ("cd sub && umask 777", 0, True),
        ("set -C; cd sub", 0, True),
        ("(cd sub; exit 6)", 6, False),
        ("pwd() { echo /; }; cd sub", 0, True),
    ],
)
def test_the_state_survives_how_a_command_ends(
    tmp_path: Path, name: str, command: str, code: int, moved: bool
) -> None:
    (tmp_path / "sub").mkdir()
    runner = ShellRunner(timeout_s=20, shell=path_of(name), cwd=tmp_path)
    result = run(runner, command)
    assert result.exit_code == code
    assert result.output == ("bye\n" if "bye" in command else "")
    assert runner.cwd == tmp_path.resolve() / ("sub" if moved else "")


@pytest.mark.parametrize("wrong", ["cd / (", 'cd / "', "cd '/"])
def test_a_syntax_error_is_told_and_changes_nothing(shell: str, tmp_path: Path, wrong: str) -> None:
    runner = ShellRunner(timeout_s=20, shell=shell, cwd=tmp_path)
    result = run(runner, wrong)
    assert result.exit_code != 0
    assert result.output
    assert "SATCHEL" not in result.output.upper().replace(str(tmp_path).upper(), "")
    assert runner.cwd == tmp_path.resolve()


def test_the_trace_of_a_command_is_of_the_command_alone(tmp_path: Path) -> None:
    runner = ShellRunner(timeout_s=20, shell=path_of("bash"), cwd=tmp_path)
    assert run(runner, "set -x; echo hi; false").output == "++ echo hi\nhi\n++ false\n"


def test_a_pipe_in_the_place_of_a_note_is_not_waited_for(
    runner: ShellRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    results: list[CommandResult] = []
    command = f"cd {tmp_path}/satchel-*/ && rm after && mkfifo after && kill -9 $$"
    thread = threading.Thread(target=lambda: results.append(run(runner, command)), daemon=True)
    thread.start()
    thread.join(15)
    assert [result.exit_code for result in results] == [137]
    assert runner.cwd == tmp_path


@pytest.mark.parametrize("kind", ["link", "folder", "file"])
def test_only_a_file_is_a_note(tmp_path: Path, kind: str) -> None:
    surroundings = Surroundings(Path("/"))
    surroundings.script("sh", "true", tmp_path)
    note, told = tmp_path / "after", f"SATCHEL_SHELL_CWD={tmp_path}\n."
    (tmp_path / "after.whole").touch()
    note.unlink()
    if kind == "link":
        (tmp_path / "elsewhere").write_text(told)
        note.symlink_to("elsewhere")
    elif kind == "folder":
        note.mkdir()
    else:
        note.write_text(told)
    surroundings.learn(tmp_path)
    assert surroundings.cwd == (tmp_path if kind == "file" else Path("/"))


def test_a_stopped_command_leaves_the_state_as_it_was(tmp_path: Path) -> None:
    runner = ShellRunner(timeout_s=0.5, shell=path_of("bash"), cwd=tmp_path)
    assert run(runner, "cd /; export X=1; sleep 600").timed_out
    assert runner.cwd == tmp_path.resolve()
    assert run(runner, "printenv X").output == ""


def test_what_start_up_files_add_is_not_added_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rc = tmp_path / "rc"
    rc.write_text("export GROWS=$GROWS+\n")
    monkeypatch.setenv("BASH_ENV", str(rc))
    runner = ShellRunner(timeout_s=20, shell=path_of("bash"), cwd=tmp_path)
    run(runner, "export OTHER=1")
    assert run(runner, "echo $GROWS $OTHER").output == "+ 1\n"


def test_a_directory_that_is_gone_is_told_and_left(runner: ShellRunner, tmp_path: Path) -> None:
    run(runner, "mkdir -p a/b; cd a/b")
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(NotFoundError, match="a/b is gone") as caught:
        run(runner, "rm -rf *")
    assert caught.value.hint == f"commands run in {tmp_path.resolve()} now"
    assert run(runner, "pwd").output == f"{tmp_path.resolve()}\n"


def test_a_command_may_delete_the_directory_it_is_in(runner: ShellRunner, tmp_path: Path) -> None:
    run(runner, "mkdir a; cd a; rm -r ../a")
    assert runner.cwd == tmp_path.resolve()


def test_satchels_secrets_are_not_handed_over(runner: ShellRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SATCHEL_PASSPHRASE", "SATCHEL_RECOVERY_WORDS", "SATCHEL_S3_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "correct horse")
    monkeypatch.setenv("SATCHEL_HOME", "/somewhere")
    assert run(runner, "env | grep -c horse; printenv SATCHEL_HOME").output == "0\n/somewhere\n"
    run(runner, "export SATCHEL_S3_REGION=horse")
    assert run(runner, "env | grep -c horse").output == "0\n"


# Output


def test_a_huge_output_keeps_its_ends_and_says_what_is_missing(runner: ShellRunner) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    live, result = live_run(runner, "echo first; yes 0123456789 | head -c 200000000; echo; echo last error")
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    total = 6 + 200_000_000 + 1 + 11
    assert result.output.startswith("first\n0123456789\n")
    assert result.output.endswith("0123456789\n01\nlast error\n")
    gap = f"\n[… {result.dropped_bytes:,} bytes left out …]\n"
    head, tail = result.output.split(gap)
    assert len(head) + 1 + len(tail) + result.dropped_bytes == total
    assert HEAD_BYTES - 4096 < len(head) <= HEAD_BYTES
    assert TAIL_BYTES - 4096 < len(tail) <= TAIL_BYTES
    assert live.endswith("last error\n")
    assert "bytes not shown …]\n" in live
    assert len(live) < 20_000_000
    assert (after - before) * (1 if sys.platform == "darwin" else 1024) < 100_000_000


def test_one_line_of_fifty_megabytes(runner: ShellRunner) -> None:
    _, result = live_run(runner, "head -c 50000000 /dev/zero | tr '\\0' x; echo; echo last")
    head, tail = result.output.split(f"\n[… {result.dropped_bytes:,} bytes left out …]\n")
    assert head == "x" * HEAD_BYTES
    assert tail == "x" * (TAIL_BYTES - 6) + "\nlast\n"
    assert result.dropped_bytes == 50_000_006 - HEAD_BYTES - TAIL_BYTES


def test_unsafe_output_is_cleaned_live_and_kept(runner: ShellRunner) -> None:
    command = (
        r"printf 'a\377b\r\n 10%%\r 50%%\r100%%\nm\bma\bax\n\033[31mred\033[0m \033]0;title\007end\n"
        r"caf\303'; sleep 0.3; printf '\251\n'"
    )
    live, result = live_run(runner, command)
    assert result.output == live == "a\N{REPLACEMENT CHARACTER}b\n100%\nmax\nred end\ncafé\n"


@pytest.mark.parametrize(
    ("raw", "folded"),
    [
        ("a\r\nb\r\n", "a\nb\n"),
        ("10%\r20%\r", "20%"),
        ("long text\rshort\n", "short\n"),
        ("x\r\x1b[K\ny", "\ny"),
        ("|\b/\b-\b\\\bdone", "done"),
        ("\b\b\bab", "ab"),
        ("\x1b[1mb\x1b[0m\x1b[1mo\x1b[0m", "bo"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\u202eb", "a⟨U+202E⟩b"),
        ("", ""),
    ],
)
def test_lines_are_left_as_a_terminal_would(raw: str, folded: str) -> None:
    assert fold(raw) == folded
    live = LiveText()
    assert "".join(live.feed(bytes([byte])) for byte in raw.encode()) + live.finish() == folded


def test_a_begun_line_is_shown_when_nothing_follows() -> None:
    live = LiveText()
    assert live.feed(b"Building... ") == ""
    assert live.pause() == "Building... "
    assert live.pause() == ""
    assert live.feed(b"done\nnext") == "done\n"
    assert live.finish() == "next"


def test_a_progress_bar_that_was_shown_once_goes_on_in_a_line_of_its_own() -> None:
    live = LiveText()
    live.feed(b"10%")
    assert live.pause() == "10%"
    assert live.feed(b"\r20%") + live.pause() + live.feed(b"\r30%") + live.pause() == ""
    assert live.feed(b"\rdone\n") == "\ndone\n"


def test_what_comes_faster_than_it_can_be_read_is_shown_in_parts() -> None:
    now = 0.0
    live = LiveText(clock=lambda: now)
    line = b"x" * 1023 + b"\n"
    assert len(live.feed(line * 256)) == LIVE_BURST_BYTES
    assert live.feed(line * 1000) == ""
    assert live.pause() == ""
    now = 2.0
    resumed = live.feed(b"cut" + line)
    assert resumed == f"[… {1000 * 1024 + 3 + 1024:,} bytes not shown …]\n"  # up to where a line begins
    assert live.feed(b"seen\n") == "seen\n"
    live.feed(line * 1000 + b"the end\n")
    last = live.finish()
    assert last.endswith("\nthe end\n")
    assert len(last) < 5000


def test_a_gap_does_not_cut_characters() -> None:
    capture = Capture()
    data = "é€𝄞".encode() * 100_000
    for start in range(0, len(data), 1001):
        capture.feed(data[start : start + 1001])
    head, tail = capture.text().split(f"\n[… {capture.dropped_bytes:,} bytes left out …]\n")
    assert "\N{REPLACEMENT CHARACTER}" not in head + tail
    assert len(head.encode()) + len(tail.encode()) + capture.dropped_bytes == len(data)


def test_an_output_that_just_fits_is_whole() -> None:
    capture = Capture()
    capture.feed(b"x" * (HEAD_BYTES + TAIL_BYTES))
    assert (len(capture.text()), capture.dropped_bytes) == (HEAD_BYTES + TAIL_BYTES, 0)
    capture.feed(b"y")
    assert capture.text().endswith("xy")
    assert capture.dropped_bytes == 1


# The terminal


@pytest.mark.parametrize(
    "command",
    [
        "stty -echo -icanon < /dev/tty; printf '\\033[?1049h' > /dev/tty; cat",
        pytest.param("vi", marks=pytest.mark.skipif(not shutil.which("vi"), reason="there is no vi")),
        pytest.param("less", marks=pytest.mark.skipif(not shutil.which("less"), reason="there is no less")),
    ],
)
def test_the_terminal_is_usable_after_a_command_that_wants_it(tmp_path: Path, command: str) -> None:
    pexpect = pytest.importorskip("pexpect")
    script = f"""
        import sys, termios, threading
        from pathlib import Path
        from satchel.agent.shell.runner import ShellRunner

        before = termios.tcgetattr(0)
        runner = ShellRunner(timeout_s=2, shell="/bin/sh", cwd=Path({str(tmp_path)!r}))
        *_, result = runner.run({command!r}, threading.Event())
        print("ended:", result.timed_out, termios.tcgetattr(0) == before, flush=True)
        print("read:", input("> ").upper())
    """
    child = pexpect.spawn(sys.executable, ["-c", textwrap.dedent(script)], encoding="utf-8", timeout=20)
    child.expect(r"ended: (True|False) (True|False)")
    assert child.match[2] == "True"
    assert "\x1b[?1049h" not in child.before
    child.expect("> ")
    child.sendline("hello")
    child.expect("read: HELLO")
    child.expect(pexpect.EOF)
