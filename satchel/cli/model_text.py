"""What `satchel model list` and `info` print for a person. Knows nothing of where the figures come from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from satchel.cli.model_records import InfoRecord, KnownRecord, LocalRecord
from satchel.config.units import size_text
from satchel.terminal.sanitize import sanitize_line


def local_table(records: Sequence[LocalRecord]) -> str:
    rows = [("", "MODEL", "SIZE", "KIND", "WEIGHTS", "SESSIONS")]
    rows += [
        (
            "*" if record.is_default else "",
            record.short_name or _with_home(record.name),
            size_text(record.stored_bytes),
            record.kind,
            "cannot be used" if record.fault else record.quantisation,
            str(record.sessions or ""),
        )
        for record in records
    ]
    return _columns(rows, right=(2, 5))


def known_table(records: Sequence[KnownRecord]) -> str:
    rows = [("MODEL", "FETCH", "CONTEXT HERE", "ABOUT")]
    rows += [
        (record.name, size_text(record.download_bytes), _context(record.longest_context), record.about)
        for record in records
    ]
    return _columns(rows, right=(1, 2))


def info_text(record: InfoRecord) -> str:
    layers = [f"{record.full_attention_layers} with full attention"]
    if record.window_layers:
        layers.append(f"{record.window_layers} with a window of {record.window_tokens:,} tokens")
    if record.recurrent_bytes:
        layers.append(f"recurrent state of {size_text(record.recurrent_bytes)}")
    facts = {
        "model": record.name,
        "repository": record.repository,
        "about": record.about,
        "licence": record.licence,
        "place": record.path and _with_home(record.path),
        "on disk" if record.here else "to fetch": size_text(record.stored_bytes),
        "architecture": record.architecture,
        "parameters": _count_text(record.parameters),
        "weights": record.quantisation,
        "layers": ", ".join(layers),
        "context": f"{record.context_length:,} tokens",
        "in memory": f"{size_text(record.weights_bytes)} of {size_text(record.memory_bytes)}",
    }
    lines = [f"{label:<13} {sanitize_line(value)}" for label, value in facts.items() if value]
    if not record.compresses:
        lines.append("its attention cannot use compressed KV, which is kept exactly with every profile")
    rows = [("KV PROFILE", "BYTES/TOKEN", f"{record.kv_tokens:,} TOKENS", "LONGEST CONTEXT HERE")]
    rows += [
        (
            profile.name,
            f"{profile.kv_bytes_per_token:,.0f}",
            size_text(profile.kv_bytes),
            _context(profile.longest_context),
        )
        for profile in record.profiles
    ]
    return "\n".join([*lines, "", _columns(rows, right=(1, 2, 3))])


def _with_home(path: str) -> str:
    """A path as it can be typed, with `~` for the home directory."""
    home = str(Path.home())
    return f"~{path[len(home) :]}" if path.startswith(home + "/") else path


def _context(tokens: int) -> str:
    return f"{tokens:,}" if tokens else "does not fit"


def _count_text(number: int) -> str:
    if not number:
        return ""
    return f"{number / 1e9:.1f} billion" if number >= 1e9 else f"{number / 1e6:.0f} million"


def _columns(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Rows as lines, each column as wide as its widest entry."""
    rows = [[sanitize_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
