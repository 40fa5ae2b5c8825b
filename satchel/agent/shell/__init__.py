"""Proposing, judging and running shell commands."""
