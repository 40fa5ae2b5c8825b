"""The fixed random matrices of the papers' codecs, the same on every machine. Knows nothing of codecs.

Randomness is SHA-256 in counter mode, and entries are rounded to multiples of a power of two, so that neither
a library's generator nor the last bits of a machine's arithmetic can change them.
"""

from __future__ import annotations

import hashlib
import math
from functools import cache
from statistics import NormalDist

import numpy as np

GAUSSIAN_STEP = 2.0**-12
ROTATION_STEP = 2.0**-20
PROJECTION_STEP = 2.0**-16


@cache
def dense_rotation(dim: int) -> np.ndarray:
    """A random orthogonal matrix, (dim, dim) float32, read-only; orthogonal to about 1e-6.

    Q of the QR decomposition of a Gaussian matrix with the signs that make R's diagonal positive, which is
    uniform over all rotations and reflections (Mezzadri, arXiv math-ph/0609050).
    """
    q, r = np.linalg.qr(gaussian(dim, dim, "dense rotation"))
    return _on_grid(q * np.where(np.diag(r) < 0, -1.0, 1.0), ROTATION_STEP)


@cache
def sketch_projections(count: int, dim: int) -> np.ndarray:
    """`count` Gaussian projections of `dim` coordinates, (count, dim) float32, read-only.

    The sketch (QJL, arXiv 2406.03482) is unbiased over random matrices, but one fixed matrix whose rows are
    on average longer than Gaussian ones overestimates every product by as much (about 1 % at 64 x 64). So
    all rows are scaled by the one number that makes their mean length the expected one.
    """
    rows = gaussian(count, dim, "sketch projections")
    expected = math.sqrt(2) * math.exp(math.lgamma((dim + 1) / 2) - math.lgamma(dim / 2))  # of a chi variable
    return _on_grid(rows * (expected / np.linalg.norm(rows, axis=1).mean()), PROJECTION_STEP)


def gaussian(rows: int, columns: int, purpose: str) -> np.ndarray:
    """Independent N(0, 1) entries, (rows, columns) float64, multiples of GAUSSIAN_STEP.

    Different purposes and different shapes give independent matrices.
    """
    count = rows * columns
    domain = f"satchel {purpose} {rows} x {columns} "
    stream = b"".join(
        hashlib.sha256(f"{domain}{counter}".encode()).digest() for counter in range(-(-count // 8))
    )
    uniform = (np.frombuffer(stream, "<u4")[:count] + 0.5) / 2**32
    inverse = NormalDist().inv_cdf
    normal = np.array([inverse(value) for value in uniform.tolist()])
    return (np.round(normal / GAUSSIAN_STEP) * GAUSSIAN_STEP).reshape(rows, columns)


def _on_grid(matrix: np.ndarray, step: float) -> np.ndarray:
    rounded = (np.round(matrix / step) * step).astype(np.float32)  # exact: under 24 significant bits
    rounded.setflags(write=False)
    return rounded
