"""Markdown on a terminal, drawn while it comes and never again. Knows nothing of who wrote it."""

from satchel.terminal.markdown.document import DEFAULT_THEME, Document

__all__ = ["DEFAULT_THEME", "Document"]
