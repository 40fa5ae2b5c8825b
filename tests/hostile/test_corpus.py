"""Inputs that once did harm, or nearly: each is tried again as `make fuzz` tries it (`fuzz/run.py`).

In processes of their own, since what watches for writes and bounds the memory stays as long as the process.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).resolve().parents[2] / "fuzz"
CORPUS = Path(__file__).resolve().parent / "corpus"
TARGETS = {
    "store": ("arrays", "envelope", "head", "manifest", "name", "payload", "store", "stored"),
    "engine": ("restore",),
}
FAULTY = {
    "pass": "none",
    "raise DamagedError('as it should')": "none",
    "{}['x']": "KeyError: 'x'",
    "sum(range(10**8))": "FaultFound: it took ",
    "Path('x').write_bytes(b'')": "FaultFound: it did open of ",
    "Path('..').mkdir(exist_ok=True)": "FaultFound: it did os.mkdir of ",
    "os.remove('kept')": "FaultFound: it did os.remove of ",
    "os.symlink('kept', 'x')": "FaultFound: it did os.symlink of ",
    "sqlite3.connect('x')": "FaultFound: it did sqlite3.connect of ",
    "subprocess.run(['true'])": "FaultFound: it did subprocess.Popen ",
    "pickle.loads(pickle.dumps(Path))": "FaultFound: it did pickle.find_class ",
}
if sys.platform == "linux":  # the only system that bounds the memory of a process
    FAULTY["bytes(700 << 20)"] = "MemoryError: "
TRY = """
import json, os, pickle, sqlite3, subprocess, sys
from pathlib import Path
import oracle
from satchel.errors import DamagedError

oracle.SECONDS = 0.05
watch = oracle.Watch()
oracle.limit_memory()
seen = {}
for statement in json.loads(sys.argv[1]):
    try:
        with watch.guard():
            exec(statement)
        seen[statement] = "none"
    except (Exception, oracle.FaultFound) as err:
        seen[statement] = f"{type(err).__name__}: {err}"
print(json.dumps(seen))
"""


@pytest.mark.parametrize("part", TARGETS)
def test_no_input_of_the_corpus_does_harm(part: str, tmp_path: Path) -> None:
    chosen = [word for target in TARGETS[part] for word in ("--target", target)]
    said = run([str(FUZZ / "run.py"), "--replay", *chosen], tmp_path)
    for target in TARGETS[part]:
        inputs = len(list((CORPUS / target).iterdir()))
        line = re.search(rf"^{target}: {inputs} inputs, (\d+) accepted, 0 faults$", said, re.MULTILINE)
        assert line, said[-5000:]
        assert int(line[1]) > 2  # what is right still passes
    assert list(tmp_path.iterdir()) == []


def test_every_target_has_a_corpus() -> None:
    assert {path.name for path in CORPUS.iterdir()} == {*TARGETS["store"], *TARGETS["engine"]}


def test_the_oracle_sees_what_no_input_may_do(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"")
    seen = json.loads(run(["-c", TRY, json.dumps(list(FAULTY))], tmp_path))
    assert {statement: seen[statement][: len(fault)] for statement, fault in FAULTY.items()} == FAULTY
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def run(arguments: list[str], folder: Path) -> str:
    """What a Python process in `folder` prints."""
    environment = os.environ | {"PYTHONPATH": str(FUZZ)}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    ).stdout
