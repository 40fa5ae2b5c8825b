"""Lloyd-Max codebooks: the scalar quantisers of least squared error. Knows nothing of vectors or packing.

TurboQuant (arXiv 2504.19874, section 3.1) quantises each coordinate of a randomly rotated unit vector; in
dimension d that has the density f(x) proportional to (1 - x^2)^((d-3)/2) on [-1, 1]. PolarQuant (arXiv
2502.02617, section 3.2) quantises the angles of a recursive polar transform. Every density here is symmetric,
so a codebook is given by its positive half. `bench/codebooks.py` derives the constants anew.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

BITS = range(1, 9)
POLAR_LEVELS = (2, 3, 4)

# CODEBOOKS[d][b - 1]: the 2^(b-1) positive levels of b bits for sqrt(d) times a coordinate (variance 1).
CODEBOOKS: dict[int, tuple[tuple[float, ...], ...]] = {
    64: (
        (0.80100727,),
        (0.45211895, 1.49997480),
        (0.24375343, 0.75065811, 1.32934287, 2.11131145),
        (0.12735218, 0.38471827, 0.65049415, 0.93189402, 1.23940422, 1.59084913, 2.02330983, 2.64637049),
    ),
    80: (
        (0.80038178,),
        (0.45225357, 1.50206127),
        (0.24402225, 0.75172653, 1.33223873, 2.11933756),
        (0.12756045, 0.38538273, 0.65174218, 0.93397033, 1.24273937, 1.59622145, 2.03229946, 2.66321928),
    ),
    96: (
        (0.79996506,),
        (0.45234265, 1.50345285),
        (0.24420129, 0.75243911, 1.33417415, 2.12471615),
        (0.12769939, 0.38582615, 0.65257561, 0.93535816, 1.24497121, 1.59982156, 2.03833438, 2.67456014),
    ),
    128: (
        (0.79944444,),
        (0.45245325, 1.50519298),
        (0.24442487, 0.75333016, 1.33659889, 2.13147084),
        (0.12787315, 0.38638092, 0.65361895, 0.93709702, 1.24777046, 1.60434266, 2.04592538, 2.68885926),
    ),
    256: (
        (0.79866412,),
        (0.45261758, 1.50780451),
        (0.24475980, 0.75466737, 1.34024731, 2.14166864),
        (0.12813399, 0.38721404, 0.65518715, 0.93971372, 1.25198902, 1.61116812, 2.05741121, 2.71056700),
    ),
}

# POLAR_OFFSETS[level]: how far the four angles of 2 bits lie from pi/4, the two above it.
POLAR_OFFSETS: dict[int, tuple[float, float]] = {
    2: (0.15141792, 0.47564205),
    3: (0.11101317, 0.35914847),
    4: (0.07948876, 0.26118407),
}

_TAIL = 12.0  # standard deviations beyond which no density here holds more than 1e-30 of its mass
_NODES = 160  # of the Gauss-Legendre rule, for each cell
_NEWTON_STEPS = 20  # four to six are taken
_CONVERGED = 1e-8  # a step as small as this leaves about its square: less than float64 tells apart

Density = Callable[[np.ndarray], np.ndarray]


def codebook(dim: int, bits: int) -> np.ndarray:
    """The positive levels, ascending, (2**(bits - 1),) float64; the negative ones mirror them.

    They fit sqrt(dim) times a coordinate of a random unit vector of `dim` coordinates.

    Raises:
        ValueError: as `lloyd_max`.
    """
    if dim in CODEBOOKS and 1 <= bits <= len(CODEBOOKS[dim]):
        return np.array(CODEBOOKS[dim][bits - 1])
    return lloyd_max(dim, bits)


@cache
def lloyd_max(dim: int, bits: int) -> np.ndarray:
    """What `codebook` returns, derived for any dimension; read-only.

    Raises:
        ValueError: fewer than 3 dimensions, whose density has no bound, or bits not in 1 to 8.
    """
    if dim < 3:
        raise ValueError(f"dim is {dim}: codebooks need at least 3 dimensions")
    if bits not in BITS:
        raise ValueError(f"bits is {bits}: codebooks have 1 to 8 bits")

    def density(x: np.ndarray) -> np.ndarray:
        # Rounding may put the last node a hair beyond the end.
        return np.maximum(1 - x * x / dim, 0) ** ((dim - 3) / 2)

    return _lloyd_max(density, min(_TAIL, dim**0.5), 2 ** (bits - 1))


@cache
def lloyd_max_polar(level: int) -> np.ndarray:
    """What POLAR_OFFSETS holds, derived: the angle's density is sin(2 psi)^(2^(level-1) - 1) on [0, pi/2].

    Raises:
        ValueError: level not in POLAR_LEVELS.
    """
    if level not in POLAR_LEVELS:
        raise ValueError(f"level is {level}: codebooks of angles are for levels 2 to 4")
    power = 2 ** (level - 1) - 1
    # With psi = pi/4 + x the density is cos(2 x)^power.
    return _lloyd_max(lambda x: np.cos(2 * x) ** power, np.pi / 4, 2)


def _lloyd_max(density: Density, top: float, count: int) -> np.ndarray:
    """The `count` positive levels for a log-concave density that is symmetric on [-top, top].

    Newton's method on "each level is the mean of its cell", because Lloyd's iteration from 5 bits on takes
    thousands of rounds. A log-concave density has one such codebook only (Fleischer 1964).
    """
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    levels = _companded(density, top, count)
    for _ in range(_NEWTON_STEPS):
        edges = np.concatenate([[0.0], (levels[1:] + levels[:-1]) / 2, [top]])
        half = np.diff(edges)[:, None] / 2
        x = edges[:-1, None] + half * (1 + nodes)  # (count, nodes)
        mass = density(x) * weights * half
        means = (mass * x).sum(-1) / mass.sum(-1)
        # d mean / d edge = density(edge) * |edge - mean| / mass; each inner edge moves by half of each level.
        inner = density(edges[1:-1]) / 2
        left = inner * (means[1:] - edges[1:-1]) / mass[1:].sum(-1)
        right = inner * (edges[1:-1] - means[:-1]) / mass[:-1].sum(-1)
        own = 1 - np.concatenate([[0.0], left]) - np.concatenate([right, [0.0]])
        step = np.linalg.solve(np.diag(own) - np.diag(left, -1) - np.diag(right, 1), levels - means)
        levels = levels - step
        if np.abs(step).max() < _CONVERGED:
            levels.setflags(write=False)
            return levels
    raise AssertionError(f"no codebook of {2 * count} levels after {_NEWTON_STEPS} steps")


def _companded(density: Density, top: float, count: int) -> np.ndarray:
    """Levels as dense as the cube root of the density, the best for many levels (Panter and Dite 1951)."""
    x = np.linspace(0, top, 20_001)
    share = np.cumsum(np.cbrt(density(x)))
    return np.interp((np.arange(count) + 0.5) / count, share / share[-1], x)
