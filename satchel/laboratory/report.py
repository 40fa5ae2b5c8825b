"""The bench's rows, by model, as JSON. Knows nothing of how they were measured or of the terminal."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from satchel.files import atomic_write
from satchel.laboratory.kv_bench import PARTS, Row
from satchel.laboratory.needle import NeedleRow
from satchel.laboratory.quality import GreedyRow, QualityRow
from satchel.laboratory.speed import SpeedRow
from satchel.laboratory.storage import StorageRow

PART_OF = {
    QualityRow: "quality",
    NeedleRow: "needle",
    GreedyRow: "greedy",
    SpeedRow: "speed",
    StorageRow: "storage",
}


@dataclass(slots=True)
class Report:
    """All rows of one model, and what they were measured with."""

    model: str
    device: str
    tokens: int
    chunk: int
    rows: list[Row] = field(default_factory=list)

    def part(self, name: str) -> list[Row]:
        """The rows of one of `PARTS`."""
        return [row for row in self.rows if PART_OF[type(row)] == name]

    def as_dict(self) -> dict[str, Any]:
        """JSON values; figures that are not finite are None."""
        facts = {"model": self.model, "device": self.device, "tokens": self.tokens, "chunk": self.chunk}
        parts = {name: [_finite(asdict(row)) for row in self.part(name)] for name in PARTS}
        return facts | {name: rows for name, rows in parts.items() if rows}


def write_json(reports: Sequence[Report], path: Path) -> None:
    """Raises SatchelError where the file cannot be written; what was there before is then as it was."""
    versions = {"python": platform.python_version()}
    versions |= {name: version(name) for name in ("satchel", "mlx", "mlx-lm")}
    content = {
        "versions": versions,
        "machine": f"{platform.system()} {platform.machine()}",
        "models": [report.as_dict() for report in reports],
    }
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    atomic_write(path.resolve(), text.encode())  # resolved: a link stays one


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
