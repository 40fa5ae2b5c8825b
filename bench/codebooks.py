"""Derive the codebooks of `satchel/engine/codebook.py` anew and compare: exit status 1 where they differ."""

from __future__ import annotations

import sys

import numpy as np

from satchel.engine.codebook import CODEBOOKS, POLAR_OFFSETS, lloyd_max, lloyd_max_polar

TOLERANCE = 1e-7


def squared_error(dim: int, positive: np.ndarray) -> float:
    """E (X - Q(X))^2 for X = sqrt(dim) times a coordinate of a random unit vector, by the midpoint rule."""
    step = dim**0.5 / 1_000_000
    x = (np.arange(1_000_000) + 0.5) * step
    density = (1 - x * x / dim) ** ((dim - 3) / 2)
    nearest = positive[np.searchsorted((positive[1:] + positive[:-1]) / 2, x)]
    return float(((x - nearest) ** 2 * density).sum() / density.sum())


def main() -> int:
    worst = 0.0
    for dim, books in CODEBOOKS.items():
        for bits, held in enumerate(books, 1):
            derived = lloyd_max(dim, bits)
            difference = np.abs(derived - held).max()
            worst = max(worst, difference)
            error = squared_error(dim, np.array(held))
            print(f"d {dim:3}  {bits} bits  squared error {error:.6f}  difference {difference:.1e}")
            print("    " + ", ".join(f"{level:.8f}" for level in derived))
    for level, held in POLAR_OFFSETS.items():
        derived = lloyd_max_polar(level)
        difference = np.abs(derived - held).max()
        worst = max(worst, difference)
        print(f"polar level {level}  difference {difference:.1e}")
        print("    " + ", ".join(f"{offset:.8f}" for offset in derived))
    print(f"largest difference {worst:.1e}, allowed {TOLERANCE:.0e}")
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
