"""What all text passes on its way to the screen. The rules are those of what a model may read."""

from satchel.sanitize import Sanitizer, sanitize, sanitize_line

__all__ = ["Sanitizer", "sanitize", "sanitize_line"]
