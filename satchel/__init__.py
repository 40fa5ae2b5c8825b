"""Satchel: a local chat agent for the terminal that carries its context."""

__version__ = "0.1.0"
