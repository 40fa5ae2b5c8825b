"""How long `satchel --help` and `--version` take, against `python -c "import typer, rich"`.

The three take turns, so that what else the machine does weighs on all alike. Prints the median and the least
of each in milliseconds, and the ratios.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

BASE = "import typer, rich"
SATCHEL = str(Path(sys.executable).with_name("satchel"))
COMMANDS: dict[str, Sequence[str]] = {
    BASE: [sys.executable, "-c", BASE],
    "satchel --help": [SATCHEL, "--help"],
    "satchel --version": [SATCHEL, "--version"],
}


def seconds(command: Sequence[str]) -> tuple[float, float]:
    """Wall and CPU seconds of one run."""
    before, started_s = os.times(), time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    wall_s, after = time.perf_counter() - started_s, os.times()
    cpu_s = (after.children_user - before.children_user) + (after.children_system - before.children_system)
    return wall_s, cpu_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=30)
    runs = parser.parse_args().runs
    for command in COMMANDS.values():
        seconds(command)  # compiles, and fills the caches
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for _ in range(runs):
        for name, command in COMMANDS.items():
            taken[name].append(seconds(command))

    print(f"{'':<20} {'median':>9} {'least':>9} {'CPU':>9}  ratios of the three")
    base = _figures(taken[BASE])
    for name, times in taken.items():
        found = _figures(times)
        shown = " ".join(f"{figure * 1e3:>6.0f} ms" for figure in found)
        ratios = ", ".join(f"{figure / least:.2f}" for figure, least in zip(found, base, strict=True))
        print(f"{name:<20} {shown}  {ratios}")


def _figures(times: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Median and least of the wall seconds, and the median of the CPU seconds."""
    wall, cpu = zip(*times, strict=True)
    return statistics.median(wall), min(wall), statistics.median(cpu)


if __name__ == "__main__":
    main()
