"""Commands in the sandbox of this system, run for real where there is one."""

from __future__ import annotations

import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from satchel.agent.shell import sandbox
from satchel.agent.shell.runner import CommandResult, ShellRunner
from satchel.agent.shell.sandbox import BubblewrapSandbox, Sandbox, SeatbeltSandbox, open_sandbox
from satchel.errors import RefusedError


@pytest.fixture(scope="module")
def cage() -> Sandbox:
    try:
        return open_sandbox()
    except RefusedError as err:
        pytest.skip(err.one_line())


@pytest.fixture
def runner(cage: Sandbox, tmp_path: Path) -> ShellRunner:
    return ShellRunner(timeout_s=20, shell="/bin/sh", cwd=tmp_path, sandbox=cage)


@pytest.fixture
def fresh() -> Iterator[None]:
    """As if no sandbox had been tried out yet."""
    sandbox._bubblewrap.cache_clear()
    yield
    sandbox._bubblewrap.cache_clear()


def run(runner: ShellRunner, command: str) -> CommandResult:
    *_, result = runner.run(command, threading.Event())
    assert isinstance(result, CommandResult)
    return result


def test_nothing_can_be_written_but_temporary_files(runner: ShellRunner, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("before")
    result = run(runner, "echo after > kept; rm kept; touch new; touch ~/new-from-the-sandbox; echo end")
    assert result.output.endswith("end\n")
    assert kept.read_text() == "before"
    assert not (tmp_path / "new").exists()
    assert not (Path.home() / "new-from-the-sandbox").exists()
    assert run(runner, 'f=$(mktemp) && echo works > "$f" && cat "$f"').output == "works\n"


def test_files_can_be_read(runner: ShellRunner, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text\n")
    assert run(runner, "cat a").output == "text\n"


def test_there_is_no_network(runner: ShellRunner) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        connect = f"bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}'"
        assert run(ShellRunner(timeout_s=20, shell="/bin/sh"), connect).exit_code == 0
        assert run(runner, connect).exit_code == 1


def test_directory_variables_and_exit_codes_come_out(runner: ShellRunner) -> None:
    assert run(runner, "cd /usr; export X=1; exit 3").exit_code == 3
    assert runner.cwd == Path("/usr").resolve()
    assert run(runner, 'pwd; echo "$X"').output == f"{runner.cwd}\n1\n"


def test_a_timeout_ends_what_runs_inside(cage: Sandbox, tmp_path: Path) -> None:
    runner = ShellRunner(timeout_s=0.5, shell="/bin/sh", cwd=tmp_path, sandbox=cage)
    result = run(runner, "echo begun; sleep 600 & setsid sleep 600 & sleep 600")
    assert (result.output, result.timed_out, result.left) == ("begun\n", True, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")
def test_processes_and_sockets_of_services_outside_are_hidden(runner: ShellRunner) -> None:
    assert run(runner, "ls /run | grep -v current-system; ls /proc | grep -c '^[0-9]'").output in (
        f"{number}\n" for number in range(1, 9)
    )
    assert run(runner, "mount -o remount,rw / && echo mounted").output.endswith("mounted\n") is False


@pytest.mark.skipif(sys.platform != "linux", reason="bwrap is Linux's")
def test_a_missing_sandbox_is_refused_plainly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RefusedError, match="bwrap is not installed") as caught:
        open_sandbox()
    assert caught.value.exit_code == 6
    assert "bubblewrap" in caught.value.hint


@pytest.mark.skipif(sys.platform != "linux", reason="bwrap is Linux's")
def test_a_sandbox_that_does_not_work_is_refused_plainly(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fresh: None
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(RefusedError, match="does not work: bwrap: No permissions to create") as caught:
        open_sandbox()
    assert "--sandbox" in caught.value.hint
    broken.write_text("#!/bin/sh\nexit 0\n")
    assert open_sandbox() is open_sandbox()  # tried out once


def test_a_directory_below_tmp_is_there_for_reading() -> None:
    box = BubblewrapSandbox("bwrap")
    inside = box.wrapped(["true"], Path("/tmp/project"), Path("/tmp/notes"))
    at = inside.index("/tmp/project")
    assert inside[at - 1 : at + 2] == ["--ro-bind", "/tmp/project", "/tmp/project"]
    assert inside.index("--tmpfs") < at < inside.index("--bind")
    assert inside[-2:] == ["--", "true"]
    assert "--ro-bind /tmp" not in " ".join(box.wrapped(["true"], Path("/tmp"), Path("/tmp/notes")))


def test_the_profile_of_macos_names_the_scratch_directory_as_a_parameter(tmp_path: Path) -> None:
    argv = SeatbeltSandbox("sandbox-exec").wrapped(["true"], tmp_path, tmp_path)
    assert argv[:4] == ["sandbox-exec", "-D", f"SCRATCH={tmp_path.resolve()}", "-p"]
    assert argv[5:] == ["/usr/bin/env", f"TMPDIR={tmp_path.resolve()}", "true"]
    assert "(deny network*)" in argv[4]
    assert "(deny file-write*)" in argv[4]
    assert argv[4].count("(") == argv[4].count(")")


@pytest.mark.skipif(not shutil.which("bwrap"), reason="bwrap is not installed")
def test_a_working_bwrap_is_taken(fresh: None, cage: Sandbox) -> None:
    assert isinstance(open_sandbox(), BubblewrapSandbox)
