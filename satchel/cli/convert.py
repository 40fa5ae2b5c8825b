"""`satchel model convert` and `quantize`: models in MLX's form, and with fewer bits.

What takes long to import (MLX, mlx-lm) is imported inside the commands.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from satchel.cli.models import models, pull_model
from satchel.cli.options import AsJson, examples, report
from satchel.cli.schemas import print_json
from satchel.config.units import size_text
from satchel.terminal.sanitize import sanitize_line

if TYPE_CHECKING:
    from satchel.engine.converting import Made
    from satchel.terminal.progress import Bar

Source = Annotated[
    str,
    typer.Argument(help="A GGUF file, an MLX or Hugging Face folder, a hub name, a short name, or embedded."),
]
Target = Annotated[
    Path | None,
    typer.Argument(
        metavar="[DIR]",
        help="The new folder; one in the current directory named after the model if left out.",
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(help="Of what is not packed: bfloat16, float16 or float32; else as the model has it."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Don't ask before a hub model is fetched.")]


@dataclass(frozen=True)
class ConvertedRecord:
    """What `model convert` and `quantize` print with `--json`."""

    path: Annotated[str, "the folder that was made"]
    quantisation: Annotated[str, "such as `4 bits, groups of 64`, or a dtype"]
    parameters: Annotated[int, "numbers in all tensors"]
    source_bytes: Annotated[int, "of the weights it was made from"]
    weights_bytes: Annotated[int, "of its weights"]
    bits_per_weight: Annotated[float, "with scales and biases"]


@models.command(
    "convert",
    epilog=examples(
        "satchel model convert embedded smollm2",
        "satchel model convert ~/models/llama.gguf ~/models/llama-mlx",
        "satchel model convert Qwen/Qwen3-0.6B --dtype bfloat16     # fetched if need be",
    ),
)
def convert_model(
    source: Source, target: Target = None, dtype: Dtype = None, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Write a GGUF file or a Hugging Face model as an MLX model folder, which other MLX programs read, too.

    A GGUF file's Q4_0, Q4_1 and Q8_0 matrices keep their bits; other types become 16 bits wide, and
    `satchel model quantize` makes them small again. Nothing is overwritten.
    """
    from satchel.engine.converting import convert, usual_folder

    target = target or usual_folder(source, "mlx")
    _run(
        source,
        target,
        yes,
        as_json,
        "converting",
        lambda bar: convert(source, target, dtype, bar.say, bar.update),
    )


@models.command(
    "quantize",
    epilog=examples(
        "satchel model quantize embedded smollm2-8bit --bits 8",
        "satchel model quantize Qwen/Qwen3-0.6B --bits 8",
        "satchel model quantize ~/models/llama.gguf --recipe mixed_4_6     # more bits where they matter",
        "satchel model quantize Qwen/Qwen3-4B qwen3-nvfp4 --mode nvfp4",
    ),
)
def quantize_model(
    source: Source,
    target: Target = None,
    bits: Annotated[
        int | None, typer.Option(help="2, 3, 4, 5, 6 or 8; 4 if left out.", show_default=False)
    ] = None,
    group_size: Annotated[
        int | None, typer.Option(help="Values that share a scale: 32, 64 or 128; 64 if left out.")
    ] = None,
    mode: Annotated[
        str, typer.Option(help="affine, or a format of its own width: mxfp4, nvfp4, mxfp8.")
    ] = "affine",
    recipe: Annotated[
        str | None,
        typer.Option(help="More bits for some layers: mixed_2_6, mixed_3_4, mixed_3_6 or mixed_4_6."),
    ] = None,
    dtype: Dtype = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Write a model as an MLX model folder with fewer bits a weight. Nothing is overwritten."""
    from satchel.engine.converting import Quantisation, quantize, usual_folder

    chosen = Quantisation.choose(bits, group_size, mode, recipe)
    target = target or usual_folder(source, chosen.suffix)
    _run(
        source,
        target,
        yes,
        as_json,
        "quantizing",
        lambda bar: quantize(source, target, chosen, dtype, bar.say, bar.update),
    )


def _run(
    source: str,
    target: Path,
    yes: bool,
    as_json: bool,
    doing: str,
    work: Callable[[Bar], Made],
) -> None:
    """Fetch what is not here, do the work under a bar, and say what came of it."""
    from satchel.engine.converting import check_target
    from satchel.engine.hub import is_hub_name
    from satchel.engine.library import is_here
    from satchel.engine.model_names import full_name
    from satchel.terminal.progress import progress_bar

    check_target(target)  # before anything is fetched
    name = full_name(source)
    if is_hub_name(name) and not is_here(name):
        with redirect_stdout(sys.stderr):  # it prints its place
            pull_model(source, yes)
    with progress_bar(f"{doing} {Path(name).name}", None, "bytes") as bar:
        made = work(bar)
    if as_json:
        print_json(
            ConvertedRecord(
                path=str(made.folder),
                quantisation=made.quantisation,
                parameters=made.parameters,
                source_bytes=made.source_bytes,
                weights_bytes=made.weights_bytes,
                bits_per_weight=round(made.bits_per_weight, 3),
            )
        )
    else:
        print(sanitize_line(str(made.folder)))
    report(
        f"{size_text(made.source_bytes)} became {size_text(made.weights_bytes)}: {made.quantisation}, "
        f"{made.bits_per_weight:.2f} bits a weight"
    )
    report(f"`satchel chat --model {shlex.quote(str(made.folder))}` uses it")
