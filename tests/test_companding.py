"""The tables, against a criterion that needs no transcendental function, and against decimals of other precision."""

from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lynxq import companding
from lynxq.params import SPLITS

ALPHAS = [0.0, 1e-6, 0.1, 0.5, 1.0, 2.0, 100.0, 255.0, 1e6]
COUNTS = [companding.level_count(a, r) for a, r in SPLITS]


def neighbours(value):
    one = np.float32(value)
    return [Fraction(float(np.nextafter(one, np.float32(end)))) for end in (-np.inf, np.inf)]


def is_nearest(value, alpha, numerator, denominator):
    """Whether no other float32 is nearer to ((1+α)^(n/d) - 1)/α: v is below it iff (1+αv)^d < (1+α)^n.

    Exact in rational numbers, so it needs neither logarithm nor exponential. True on a tie as well.
    """
    below, above = ((Fraction(float(value)) + neighbour) / 2 for neighbour in neighbours(value))
    a = Fraction(alpha)
    if not a:
        return below <= Fraction(numerator, denominator) <= above
    exact = (1 + a) ** numerator
    return (1 + a * below) ** denominator <= exact <= (1 + a * above) ** denominator


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("count", COUNTS)
def test_thresholds_are_rounded_right(alpha, count):
    table = companding.thresholds(alpha, count)
    assert table.shape == (count,)
    for k in (*range(1, count + 1, 13), count):
        assert is_nearest(table[k - 1], alpha, 2 * k - 1, 2 * count)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("count", COUNTS)
def test_levels_are_rounded_right(alpha, count):
    table = companding.levels(alpha, count)
    assert table.shape == (count + 1,)
    assert table[0] == 0.0
    assert table[-1] == 1.0
    for k in (1, *range(2, count, 13), count - 1):
        assert is_nearest(table[k], alpha, k, count)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize(("a", "r"), SPLITS)
def test_every_entry_in_decimals_of_another_precision(alpha, a, r):
    count = companding.level_count(a, r)
    with localcontext(prec=110):
        one = 1 + Decimal(alpha)

        def expand(numerator, denominator):
            exponent = Decimal(numerator) / denominator
            return (one**exponent - 1) / Decimal(alpha) if alpha else exponent

        def check(table, exact):
            for value, wanted in zip(table, exact, strict=True):
                left, right = (Decimal(float(n)) for n in neighbours(value))
                assert (left + Decimal(float(value))) / 2 <= wanted <= (right + Decimal(float(value))) / 2

        check(companding.thresholds(alpha, count), [expand(2 * k - 1, 2 * count) for k in range(1, count + 1)])
        check(companding.levels(alpha, count), [expand(k, count) for k in range(count + 1)])
        # Anchor points: the centroid of exp(-2t) over the bin, as a quotient of two integrals.
        edges = [Decimal(0)]
        edges += [expand(2 * ((m << r) + (1 << (r - 1))) + 1, 2 * count) for m in range((1 << (a - 1)) - 1)]
        centroids = []
        for left, right in pairwise(edges):
            decay = [(-2 * edge).exp() for edge in (left, right)]
            first_moment = ((2 * left + 1) * decay[0] - (2 * right + 1) * decay[1]) / 4
            centroids.append(first_moment / ((decay[0] - decay[1]) / 2))
        check(companding.anchor_points(alpha, a, r), [*centroids, Decimal(1)])


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize(("a", "r"), SPLITS)
def test_tables_are_in_order(alpha, a, r):
    count = companding.level_count(a, r)
    thresholds, levels = companding.thresholds(alpha, count), companding.levels(alpha, count)
    points = companding.anchor_points(alpha, a, r)
    for table in (thresholds, levels, points):
        assert table.dtype == np.float32
        assert not table.flags.writeable
        assert (np.diff(table) > 0).all()
    assert (levels[:-1] < thresholds).all()
    assert (thresholds < levels[1:]).all()
    # Anchor points are inside their bins, and the top one is exactly 1.
    assert points.shape == (1 << (a - 1),)
    assert points[-1] == 1.0
    v_mag = (np.arange(count + 1) + (1 << (r - 1)) - 1) >> r
    lower = [0.0 if m == 0 else thresholds[np.flatnonzero(v_mag == m)[0] - 1] for m in range(len(points))]
    assert (np.array(lower, np.float32) < points).all()
    assert (points[:-1] < np.array(lower[1:], np.float32)).all()


def test_linear_tables_are_plain():
    assert companding.levels(0.0, 4).tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert companding.thresholds(0.0, 4).tolist() == [0.125, 0.375, 0.625, 0.875]
    assert np.array_equal(companding.levels(0.0, 112), (np.arange(113) / 112).astype(np.float32))


def test_a_tiny_alpha_is_nearly_linear():
    for table in (companding.levels, companding.thresholds):
        assert np.abs(table(1e-6, 112) - table(0.0, 112)).max() < 2e-7
    assert companding.levels(1e-6, 112)[56] < 0.5


def test_equation_7_is_what_the_thresholds_say():
    """Round(ln(1+αt)/ln(1+α)·L) of the paper, away from the boundaries where float64 might disagree."""
    for alpha in (0.5, 255.0):
        t = np.random.default_rng(0).random(20000).astype(np.float32)
        position = np.log1p(alpha * t.astype(np.float64)) / np.log1p(alpha) * 112
        clear = np.abs(position - np.floor(position) - 0.5) > 1e-4
        code = np.searchsorted(companding.thresholds(alpha, 112), t, side="right")
        assert clear.mean() > 0.99
        assert np.array_equal(code[clear], np.rint(position[clear]))


@given(st.fractions(-2, 2) | st.fractions(-(2**100), 2**100) | st.fractions(0, Fraction(1, 2**130)))
def test_float32_rounds_to_nearest(value):
    with localcontext(prec=400):
        exact = Decimal(value.numerator) / Decimal(value.denominator)
    rounded = companding.float32(exact)
    assert rounded == float(np.float32(rounded))
    error = abs(Fraction(rounded) - Fraction(exact))
    assert all(error <= abs(other - Fraction(exact)) for other in neighbours(rounded))


@given(st.floats(2.0**-120, 2.0**100, width=32), st.sampled_from([-1, 1]))
def test_float32_takes_ties_to_even(low, sign):
    low = sign * np.float32(low)
    high = np.nextafter(low, np.float32(np.inf))
    with localcontext(prec=400):
        tie = (Decimal(float(low)) + Decimal(float(high))) / 2
        even = low if int(low.view(np.uint32)) % 2 == 0 else high
        assert companding.float32(tie) == float(even)
        hair = Decimal(2) ** -300
        assert companding.float32(tie - hair) == float(low)
        assert companding.float32(tie + hair) == float(high)


def test_float32_of_a_float():
    assert companding.float32(0.1) == float(np.float32(0.1))
    assert companding.float32(Decimal("0.1")) == float(np.float32(0.1))
    # The nearest float64 of this decimal is a float32 tie: rounding twice would go wrong.
    low, high = np.float32(1), np.nextafter(np.float32(1), np.float32(2))
    tie = (Decimal(float(low)) + Decimal(float(high))) / 2
    assert companding.float32(tie + Decimal("1e-20")) == float(high)
