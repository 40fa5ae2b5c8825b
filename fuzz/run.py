"""Fuzz what reads untrusted bytes: `make fuzz`, or `python fuzz/run.py --seconds 60 --target manifest`.

Each target runs in a process and an empty directory of its own, from the inputs in `tests/hostile/corpus` and
those that earlier runs found (`.fuzz/`). With atheris, mutations are guided by coverage; without it, inputs
are mutated at random. A fault ends its target; its input is in `.fuzz/<target>/`, and is tried again with
`python fuzz/run.py --replay --target <target> FILE`. The exit code is 1 if there was a fault.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import mutate
import oracle

HERE = Path(__file__).resolve().parent
CORPUS = HERE.parent / "tests" / "hostile" / "corpus"
FOUND = HERE.parent / ".fuzz"
# Target: its share of the time, and the largest input in bytes.
SHARES = {
    "stored": (1, 16384), "payload": (1, 16384), "envelope": (2, 8192), "arrays": (2, 8192),
    "manifest": (2, 8192), "head": (1, 4096), "name": (0.5, 400), "store": (3, 8192), "restore": (3, 16384),
}  # fmt: skip
MODULES = {"store": "store_target", "restore": "restore_target"}  # the other targets are in `targets.py`
HANGS_S = 60  # wall time after which libFuzzer gives an input up; `oracle.SECONDS` counts processor time

Check = Callable[[bytes, oracle.Watch], None]

try:
    import atheris
except ImportError:
    atheris = None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="for all targets together")
    parser.add_argument("--target", choices=SHARES, action="append", help="default: all")
    parser.add_argument("--replay", action="store_true", help="only try inputs: FILES, or the corpus")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args()
    targets = options.target or list(SHARES)
    if options.child:
        return _fuzz(targets[0], options.seconds)
    if options.replay:
        return max(_replay(target, [file.resolve() for file in options.files]) for target in targets)
    if atheris is None:
        print("atheris is not installed: inputs are mutated at random, without coverage to guide it")
    whole = sum(SHARES[target][0] for target in targets)
    faults = [_run(target, options.seconds * SHARES[target][0] / whole) for target in targets]
    return int(any(faults))


def _run(target: str, seconds: float) -> bool:
    """Fuzz one target in a process of its own and print a line; whether there was a fault."""
    folder = FOUND / target
    (folder / "corpus").mkdir(parents=True, exist_ok=True)
    log, before, started = folder / "log", _faults(folder), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="satchel-fuzz-") as empty, log.open("wb") as output:
        child = subprocess.run(
            [sys.executable, HERE / "run.py", "--child", "--target", target, "--seconds", str(seconds)],
            cwd=empty, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        left = sorted(path.name for path in Path(empty).iterdir())
    text = log.read_text(errors="replace")
    runs = _last(r"stat::number_of_executed_units: (\d+)", text) or _last(r"#(\d+)", text) or "0"
    covered = _last(r"(cov: \d+ ft: \d+)", text) or ""
    covered = covered.replace("cov:", "edges").replace(" ft:", ", features")
    print(f"{target:10} {time.monotonic() - started:5.0f} s  {int(runs):>9,} inputs  {covered}", flush=True)
    for path in sorted(_faults(folder) - before):
        print(f"  FAULT: {path}\n  {_reason(text)}")
    if left:
        print(f"  FAULT: it left {left} in its working directory")
    if child.returncode and _faults(folder) == before:
        print(f"  FAULT: the process ended with {child.returncode}; see {log}")
    return bool(child.returncode or left)


def _fuzz(target: str, seconds: float) -> int:
    """Fuzz one target in this process."""
    if atheris is None:
        return _fuzz_at_random(target, seconds)
    check, watch = _load(target, guided=True)
    folder, max_size = FOUND / target, SHARES[target][1]

    def mutated(data: bytes, size: int, seed: int) -> bytes:
        return mutate.mutate(data, size, seed, atheris.Mutate)

    arguments = [
        sys.argv[0], str(folder / "corpus"), str(CORPUS / target), f"-artifact_prefix={folder}/",
        f"-max_total_time={max(1, round(seconds))}", f"-max_len={max_size}", f"-timeout={HANGS_S}",
        "-rss_limit_mb=0", "-print_final_stats=1", "-len_control=0",
    ]  # fmt: skip
    atheris.Setup(arguments, lambda data: check(data, watch), custom_mutator=mutated)
    atheris.Fuzz()
    return 0


def _fuzz_at_random(target: str, seconds: float) -> int:
    check, watch = _load(target)
    corpus = [path.read_bytes() for path in _inputs(target)]
    chance, count, stop = random.Random(), 0, time.monotonic() + seconds  # noqa: S311 - nothing secret
    while time.monotonic() < stop:
        data = mutate.mutate(
            chance.choice(corpus), SHARES[target][1], chance.getrandbits(64), mutate.havoc(chance)
        )
        count += 1
        try:
            check(data, watch)
        except (Exception, oracle.FaultFound):  # noqa: BLE001 - whatever it is, it is what is looked for
            (FOUND / target / f"crash-{count}-{os.getpid()}").write_bytes(data)
            traceback.print_exc()
            print(f"#{count}")
            return 1
    print(f"#{count}")
    return 0


def _replay(target: str, files: list[Path]) -> int:
    """Try the inputs of one target, print what came out, and say how many there were."""
    inputs = files or _inputs(target)
    check, watch = _load(target)
    faults = 0
    for path in inputs:
        try:
            check(path.read_bytes(), watch)
        except (Exception, oracle.FaultFound):  # noqa: BLE001 - likewise
            faults += 1
            print(f"FAULT: {path}", traceback.format_exc(), sep="\n")
    print(f"{target}: {len(inputs)} inputs, {watch.accepted} accepted, {faults} faults")
    return int(faults > 0)


def _load(target: str, *, guided: bool = False) -> tuple[Check, oracle.Watch]:
    """A target's check and the watch for it; limits what the process may take from now on."""
    with atheris.instrument_imports(include=["satchel"]) if guided else nullcontext():
        check = getattr(importlib.import_module(MODULES.get(target, "targets")), target)
    watch = oracle.Watch()
    oracle.limit_memory()
    return check, watch


def _inputs(target: str) -> list[Path]:
    return sorted(path for path in (CORPUS / target).iterdir() if path.is_file())


def _faults(folder: Path) -> set[Path]:
    return {path for kind in ("crash-*", "oom-*", "timeout-*", "leak-*") for path in folder.glob(kind)}


def _last(pattern: str, text: str) -> str | None:
    found = re.findall(pattern, text)
    return found[-1] if found else None


def _reason(log: str) -> str:
    """The first line of the log that names an error."""
    lines = [
        line.strip()
        for line in log.splitlines()
        if re.match(r"\s*[\w.]*(Error|FaultFound|Exception|ERROR)\b", line)
    ]
    return lines[0][:300] if lines else "see the log"


if __name__ == "__main__":
    sys.exit(main())
