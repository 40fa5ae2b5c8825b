"""`satchel doctor`: what this machine computes with, and where things are.

What takes long to import (MLX) is imported inside the command.
"""

from __future__ import annotations

import sys

import typer

from satchel import __version__
from satchel.terminal.sanitize import sanitize_line


def add_to(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor() -> None:
    """What this machine computes with, where things are kept, and what would make it faster."""
    from satchel.config import paths
    from satchel.engine.device import current_device
    from satchel.engine.embedded import find_embedded_gguf
    from satchel.sync.configuration import load_config

    device, remote = current_device(), load_config()
    facts = {
        "satchel": f"{__version__} on Python {sys.version.split()[0]}, {sys.platform}",
        "device": device.kind,
        "BLAS": f"OpenBLAS ({device.blas})" if device.blas else "MLX's own",
        "memory": f"{device.memory_bytes / 1e9:.1f} GB",
        "embedded model": find_embedded_gguf() or "missing: satchel model pull embedded",
        "settings": paths.config_file(),
        "sessions": paths.data_dir(),
        "converted models": paths.cache_dir(),
        "sync": remote.url if remote else "not set up: satchel sync setup",
    }
    for label, value in facts.items():
        print(f"{label:<17} {sanitize_line(str(value))}")
    for line in device.advice():
        print(f"advice: {line}")
