"""bench/rate_distortion.py against published tables."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench import rate_distortion as rd

#: Max 1960, table I (Gaussian); Paez and Glisson 1972, table II (Laplacian).
PUBLISHED = {
    "gaussian": {1: 0.3634, 2: 0.1175, 3: 0.03454, 4: 0.009497, 5: 0.002499},
    "laplacian": {1: 0.5, 2: 0.1762, 3: 0.0545, 4: 0.0154},
}


@pytest.mark.parametrize("source", PUBLISHED)
def test_lloyd_max_is_that_of_the_tables(source):
    for bits, distortion in PUBLISHED[source].items():
        assert rd.lloyd_max(source, bits).distortion == pytest.approx(distortion, rel=6e-3), bits


def test_levels_of_the_gaussian_are_those_of_max():
    assert rd.lloyd_max("gaussian", 2).levels == pytest.approx((0.4528, 1.510), abs=1e-3)
    assert rd.lloyd_max("gaussian", 4).levels[-1] == pytest.approx(2.733, abs=1e-3)


@pytest.mark.parametrize("source", PUBLISHED)
def test_a_sample_has_the_distortion_of_the_formula(source):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(400_000) if source == "gaussian" else rng.laplace(scale=math.sqrt(0.5), size=400_000)
    found = rd.lloyd_max(source, 3)
    levels = np.array(found.levels)
    near = levels[np.searchsorted((levels[1:] + levels[:-1]) / 2, np.abs(x))] * np.sign(x)
    assert np.mean((x - near) ** 2) == pytest.approx(found.distortion, rel=0.02)


def test_the_gaussian_bound_is_six_decibels_a_bit():
    assert [rd.shannon("gaussian", rate) for rate in (0, 1, 4)] == [1.0, 0.25, 1 / 256]


def test_the_laplacian_bound_is_that_of_the_tables():
    """Jayant and Noll 1984, table D.2: the signal-to-noise ratios of the rate-distortion function."""
    for rate, decibels in {1: 6.62, 2: 12.66, 3: 18.68}.items():
        assert -10 * math.log10(rd.shannon("laplacian", rate)) == pytest.approx(decibels, abs=0.02), rate


@pytest.mark.parametrize("source", PUBLISHED)
def test_bounds_are_in_order(source):
    for bits in range(1, 6):
        bound = rd.shannon(source, bits)
        assert rd.shannon_lower_bound(source, bits) <= bound < rd.lloyd_max(source, bits).distortion
        assert bound <= rd.shannon("gaussian", bits)  # of all sources of one variance the Gaussian is the hardest
    curve = [rd.shannon(source, rate) for rate in np.linspace(0, 5, 101)]
    assert curve == sorted(curve, reverse=True)
    assert curve[0] == 1.0
