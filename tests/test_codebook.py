"""The codebooks against published tables, and against what makes a codebook the best one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satchel.engine.codebook import (
    CODEBOOKS,
    POLAR_OFFSETS,
    codebook,
    lloyd_max,
    lloyd_max_polar,
)

# Max 1960, "Quantizing for minimum distortion", table I: the levels for N(0, 1).
MAX_1960 = {
    1: [0.7980],
    2: [0.4528, 1.510],
    3: [0.2451, 0.7560, 1.344, 2.152],
    4: [0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733],
}
GAUSSIAN_ERROR = {  # squared error for N(0, 1)
    1: 0.36338,
    2: 0.117482,
    3: 0.034548,
    4: 0.009501,
    5: 0.002505,
    6: 0.000644,
    7: 0.000163,
    8: 0.000041,
}


def grid(top: float, points: int = 400_000) -> np.ndarray:
    return (np.arange(points) + 0.5) * (top / points)


def coordinate_density(x: np.ndarray, dim: int) -> np.ndarray:
    return (1 - x * x / dim) ** ((dim - 3) / 2)


def cells(x: np.ndarray, positive: np.ndarray) -> np.ndarray:
    return np.searchsorted((positive[1:] + positive[:-1]) / 2, x)


def cell_means(x: np.ndarray, density: np.ndarray, positive: np.ndarray) -> np.ndarray:
    cell = cells(x, positive)
    return np.bincount(cell, density * x) / np.bincount(cell, density)


@pytest.mark.parametrize("bits", MAX_1960)
def test_levels_of_long_vectors_are_those_of_a_gaussian(bits: int):
    np.testing.assert_allclose(lloyd_max(1_000_000, bits), MAX_1960[bits], atol=6e-4)


@pytest.mark.parametrize("bits", GAUSSIAN_ERROR)
def test_squared_error_for_a_gaussian(bits: int):
    x = grid(12)
    density = np.exp(-x * x / 2)
    positive = lloyd_max(1_000_000, bits)
    error = ((x - positive[cells(x, positive)]) ** 2 * density).sum() / density.sum()
    assert error == pytest.approx(GAUSSIAN_ERROR[bits], abs=1e-6)


def test_three_dimensions_have_uniform_coordinates():
    # Archimedes: a coordinate of a random point on the sphere is uniform.
    np.testing.assert_allclose(lloyd_max(3, 3) / 3**0.5, [1 / 8, 3 / 8, 5 / 8, 7 / 8], atol=1e-12)


def test_levels_at_one_bit_are_the_mean_size_of_a_coordinate():
    # E |u_1| = Gamma(d/2) / (sqrt(pi) Gamma((d+1)/2)), which is 3/8 in dimension 5.
    assert lloyd_max(5, 1) / 5**0.5 == pytest.approx([0.375], abs=1e-12)


@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_constants_are_converged(dim: int, bits: int):
    assert codebook(dim, bits).tolist() == list(CODEBOOKS[dim][bits - 1])
    np.testing.assert_allclose(codebook(dim, bits), lloyd_max(dim, bits), atol=1e-8)


def test_other_sizes_are_derived():
    assert codebook(112, 2).tolist() == lloyd_max(112, 2).tolist()
    assert len(codebook(64, 8)) == 128


@settings(max_examples=15, deadline=None)
@given(st.integers(3, 512), st.integers(1, 5))
def test_every_level_is_the_mean_of_its_cell(dim: int, bits: int):
    positive = lloyd_max(dim, bits)
    assert len(positive) == 2 ** (bits - 1)
    x = grid(dim**0.5)
    np.testing.assert_allclose(cell_means(x, coordinate_density(x, dim), positive), positive, atol=1e-4)


@pytest.mark.parametrize("level", [2, 3, 4])
def test_angles_are_the_means_of_their_cells(level: int):
    psi = np.pi / 4 + grid(np.pi / 4)
    density = np.sin(2 * psi) ** (2 ** (level - 1) - 1)
    held = np.array(POLAR_OFFSETS[level])
    np.testing.assert_allclose(cell_means(psi - np.pi / 4, density, held), held, atol=1e-5)
    np.testing.assert_allclose(lloyd_max_polar(level), held, atol=1e-8)


@pytest.mark.parametrize(("dim", "bits"), [(2, 4), (64, 0), (64, 9)])
def test_what_has_no_codebook_is_refused(dim: int, bits: int):
    with pytest.raises(ValueError, match=r"dim is 2|bits is [09]: codebooks have 1 to 8 bits"):
        codebook(dim, bits)
