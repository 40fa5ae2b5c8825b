"""`satchel bench …`: measuring.

What takes long to import (MLX) is imported inside the commands that need it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from satchel.cli.options import examples

benches = typer.Typer(help="Measure.", epilog=examples("satchel bench kv --tokens 512 --only quality"))


@benches.command(
    "kv",
    epilog=examples(
        "satchel bench kv --caches turbo4 --texts prose --only quality --tokens 512  # a few minutes",
        "satchel bench kv --caches turbo4,turbo3,'mlx-lm 4' --json kv.json --plot kv.png",
    ),
)
def bench_kv(
    model: Annotated[list[str] | None, typer.Option(help="As elsewhere; may be given again.")] = None,
    caches: Annotated[
        list[str] | None, typer.Option(help="KV profiles, or `mlx-lm 4`: with commas, or given again.")
    ] = None,
    texts: Annotated[
        list[str] | None, typer.Option(help="pydoc, gpl, prose, code, chinese, chat; all if not given.")
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens of each text.")] = 2048,
    chunk: Annotated[int, typer.Option(help="Tokens read at a time in a text's last quarter.")] = 1,
    only: Annotated[list[str] | None, typer.Option(help="quality, needle, greedy, speed, storage.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the figures there.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw KL against bits there.")] = None,
) -> None:
    """What KV caches cost in quality, bits and time, against the exact cache."""
    from satchel.engine.device import preload_blas

    preload_blas()  # works only ahead of the first import of MLX
    from satchel.terminal import bench

    request = bench.Request(
        models=model or (),
        caches=caches or (),
        texts=texts or (),
        only=only or (),
        tokens=tokens,
        chunk=chunk,
        json=json_file,
        plot=plot,
    )
    bench.bench_kv(request)
