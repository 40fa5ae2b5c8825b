"""`satchel bench kv` with the caches of other projects: `--peers` adds those that are installed.

See `satchel/laboratory` for what is measured and how.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from satchel.engine.model import LoadedModel
from satchel.errors import SatchelError
from satchel.laboratory.caches import Candidate
from satchel.laboratory.kv_bench import PARTS
from satchel.terminal.bench import Request, bench_kv


def peers(model: LoadedModel) -> Mapping[str, Candidate]:
    from peers import installed_peers

    found = installed_peers(model, lambda line: print(line, file=sys.stderr))
    return {name: Candidate(name, peer.make, peer.attention) for name, peer in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", nargs="+", default=["embedded"])
    parser.add_argument("--caches", nargs="+", default=[])
    parser.add_argument("--texts", nargs="+", default=[])
    parser.add_argument("--only", nargs="+", default=[], choices=PARTS)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--chunk", type=int, default=1, help="teacher-forced tokens at a time")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--plot", type=Path, help="draw KL against bits in this PNG file")
    parser.add_argument("--peers", action="store_true", help="with the caches of other projects")
    options = parser.parse_args()
    request = Request(
        models=options.model,
        caches=options.caches,
        texts=options.texts,
        only=options.only,
        tokens=options.tokens,
        chunk=options.chunk,
        json=options.json,
        plot=options.plot,
    )
    try:
        bench_kv(request, peers if options.peers else None)
    except SatchelError as err:
        sys.exit(f"{parser.prog}: {err.one_line()}")


if __name__ == "__main__":
    main()
