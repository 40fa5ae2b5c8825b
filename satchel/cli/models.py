"""`satchel model …`: the models of this machine.

What takes long to import (MLX) is imported inside the commands that need it.
"""

from __future__ import annotations

from typing import Annotated

import typer

from satchel.cli.options import report
from satchel.errors import UsageError
from satchel.terminal.sanitize import sanitize_line

models = typer.Typer(help="Fetch models.")


@models.command("pull")
def pull_model(name: Annotated[str, typer.Argument(help="Only `embedded` needs pulling.")]) -> None:
    """Fetch the embedded model's file into the cache directory."""
    if name != "embedded":
        raise UsageError(
            f"{name!r} cannot be pulled", "only `embedded`; hub models come with --model at first use"
        )
    from satchel.engine.embedded import find_embedded_gguf, pull_embedded

    if found := find_embedded_gguf():
        report("the embedded model is here already")
        print(sanitize_line(str(found)))
        return
    print(sanitize_line(str(pull_embedded(report))))
