"""The command line within the process of the tests, as a fixture. Knows nothing of what is run."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable

import pytest

from satchel import cli

Completed = subprocess.CompletedProcess[str]
Run = Callable[..., Completed]


@pytest.fixture
def satchel(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a command with `stdin` as its standard input."""

    def run(*args: object, stdin: bytes = b"") -> Completed:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        exit_code = cli.run(list(map(str, args)))
        sys.stdout.flush()
        printed = capfd.readouterr()
        return Completed(args, exit_code, printed.out, printed.err)

    return run
