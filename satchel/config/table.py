"""The table of settings in docs/configuration.md: `python -m satchel.config.table` prints it."""

from __future__ import annotations

from collections.abc import Iterator

from satchel.config.fields import allowed, field_of, setting_keys
from satchel.config.known import Settings


def table() -> str:
    """Every setting with its default, in Markdown. Its name in the environment follows from its key."""
    rows = ["| setting | default | may be | what it is |", "|---|---|---|---|", *_rows()]
    return "\n".join(rows) + "\n"


def _rows() -> Iterator[str]:
    for key in (*setting_keys(Settings), "models.NAME"):
        field = field_of(Settings, key)
        assert field is not None
        default = "" if key == "models.NAME" else field.default
        text = str(default).lower() if isinstance(default, bool) else str(default)
        shown = f"`{text}`" if default not in ("", None) else ""
        yield f"| `{key}` | {shown} | {allowed(field)} | {field.description} |"


if __name__ == "__main__":
    print(table(), end="")
