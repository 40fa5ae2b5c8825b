"""The command line within the process of the tests, as a fixture. Knows nothing of what is run."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from satchel import cli
from satchel.cli import schemas

Completed = subprocess.CompletedProcess[str]
Run = Callable[..., Completed]


@pytest.fixture
def satchel(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a command with `stdin` as its standard input. JSON that is not as documented fails the test."""
    monkeypatch.setattr(schemas, "plain", _checked)

    def run(*args: object, stdin: bytes = b"") -> Completed:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        exit_code = cli.run(list(map(str, args)))
        sys.stdout.flush()
        printed = capfd.readouterr()
        return Completed(args, exit_code, printed.out, printed.err)

    return run


def _checked(record: object, plain: Callable[[object], object] = schemas.plain) -> object:
    """What `plain` makes of a record, or of a list of them, which is as their types say."""
    value = plain(record)
    for each in record if isinstance(record, list) else [record]:
        printed = json.loads(json.dumps(plain(each)))
        wrong = list(schemas.faults(printed, type(each)))
        assert not wrong, f"{each!r} is not what its type says: {wrong}"
    return value
