"""What a file is to hold, by the ending of its name. Knows nothing of what the formats are like."""

from __future__ import annotations

from collections.abc import Mapping

from satchel.errors import UsageError

MD, JSON, JSONL, SAFETENSORS, MLX_LM = "md", "json", "jsonl", "safetensors", "mlx-lm"
WORDS = (MD, JSON, JSONL)

# The first that fits counts: one of them ends another.
_FORMATS: Mapping[str, str] = {
    ".md": MD,
    ".json": JSON,
    ".jsonl": JSONL,
    ".mlx-lm.safetensors": MLX_LM,
    ".safetensors": SAFETENSORS,
}


def format_of(name: str, otherwise: str = "") -> str:
    """The format that the file called `name` is to have.

    Args:
        otherwise: what can be done where the name does not say it, for the error's hint.

    Raises:
        UsageError: its ending says nothing.
    """
    for ending, format_name in _FORMATS.items():
        if name.lower().endswith(ending):
            return format_name
    raise UsageError(
        f"the name {name!r} does not say what to write",
        "it ends with .md, .json or .jsonl (the words), .safetensors (everything), or "
        f".mlx-lm.safetensors (a prompt cache for mlx-lm){otherwise}",
    )
