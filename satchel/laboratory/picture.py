"""What all pictures have in common. Knows nothing of what they show; imports neither MLX nor matplotlib."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from satchel.errors import UsageError

DPI = 120
COLOURS = ("#0b6e4f", "#c8553d", "#3d5a98", "#8a5a9e", "#b07d12", "#5b6770", "#1b8a9e", "#a23b72")


def check_plot(path: Path) -> None:
    """That a picture could be drawn as the file `path`, before what it shows is measured.

    Raises:
        UsageError: no PNG, or matplotlib is not installed.
    """
    if path.suffix.lower() != ".png":
        raise UsageError(f"the plot {str(path)!r} is no PNG file", "name it something.png")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("the plot needs matplotlib", "`pip install matplotlib` brings it")
