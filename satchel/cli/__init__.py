"""What runs the command line: `main` as a program, `run` from Python."""

from satchel.cli.app import main, run

__all__ = ["main", "run"]
