"""Turns of a conversation as a stream of events. Knows nothing of the terminal."""
