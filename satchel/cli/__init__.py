"""The command line: parses, wires the parts together, turns every error into one line and an exit code."""

from satchel.cli.app import main, run

__all__ = ["main", "run"]
