"""Quantisers of keys and values, by name."""
