"""Tables for the kernels of the ``cpu`` backend: candidates of levels with their error, and look-up tables.

The level of a normalised magnitude t is floor(y + ½), y = L·ln(1+αt)/ln(1+α). Kernels compute y·2^16 with a short
polynomial. Whatever that polynomial does wrong is bounded here, and values for which it could matter are compared
with the thresholds. So a bound that is too wide costs time, and none costs exactness.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lynxq import companding, quantizer
from lynxq.backends.cpu.kernels.codes import DIRECT, LOGARITHM
from lynxq.backends.cpu.kernels.lookup import tables_of
from lynxq.params import Params

F32 = NDArray[np.float32]

#: Largest α for which a polynomial of degree 6 in t is better than one of degree 7 in the mantissa of 1 + αt.
_MAX_DIRECT_ALPHA = 0.6
_ONE_LEVEL, _HALF = 65536.0, 32768.0
#: Half a unit in the last place of float32, relative.
_ROUNDOFF = 2.0**-24
#: Room for the rounding of thresholds, and of the constant coefficient.
_SLACK = 1.0


class Candidate(NamedTuple):
    """How candidates are computed: the form, its coefficients, and the fraction below which they are doubtful."""

    form: int
    coefficients: F32
    margin: int


def _fit(function: NDArray[np.float64], degree: int, low: float, high: float, nodes: NDArray[np.float64]) -> F32:
    """Coefficients of the polynomial through values at Chebyshev nodes of an interval, lowest first."""
    series = np.polynomial.chebyshev.Chebyshev.fit(nodes, function, degree, domain=[low, high])
    power = np.asarray(series.convert(kind=np.polynomial.Polynomial, domain=[-1, 1], window=[-1, 1]).coef)
    return np.pad(power, (0, degree + 1 - power.size)).astype(np.float32)


def _nodes(count: int, low: float, high: float) -> NDArray[np.float64]:
    angles = (np.arange(count) + 0.5) * np.pi / count
    return (low + high) / 2 + (high - low) / 2 * np.cos(angles)


def _error(coefficients: F32, exact: NDArray[np.float64], samples: NDArray[np.float64]) -> float:
    """Bound on what Horner's scheme with fused float32 steps may differ from `exact` at samples of an argument.

    The functions are smooth and the samples dense: what lies between them is covered by a few percent.
    """
    value = np.full_like(samples, float(coefficients[-1]))
    rounding = np.zeros_like(samples)
    for coefficient in coefficients[-2::-1].astype(np.float64):
        value = value * samples + coefficient
        rounding = rounding * np.abs(samples) + _ROUNDOFF * np.abs(value)
    return float((np.abs(value - exact) + rounding).max()) * 1.05


def _level(t: NDArray[np.float64], alpha: float, count: int) -> NDArray[np.float64]:
    """y·2^16, exact enough to measure errors of float32 arithmetic."""
    share = t if alpha == 0 else np.log1p(alpha * t) / np.log1p(alpha)
    return np.asarray(share * count * _ONE_LEVEL)


def _direct(alpha: float, count: int) -> Candidate:
    nodes, samples = _nodes(64, 0.0, 1.0), np.linspace(0.0, 1.0, 8193)
    coefficients = _shifted(_fit(_level(nodes, alpha, count), 6, 0.0, 1.0, nodes))
    return _with_margin(DIRECT, coefficients, _error(coefficients, _level(samples, alpha, count) + _HALF, samples))


def _logarithm(alpha: float, count: int) -> Candidate:
    """y·2^16 = octave · (e + log2(m)), 1 + αt = 2^e · m; the polynomial's argument is m - 1.5."""
    octave = count * _ONE_LEVEL / np.log2(1 + alpha)
    nodes, samples = _nodes(64, -0.5, 0.5), np.linspace(-0.5, 0.5, 8193)
    coefficients = _shifted(_fit(octave * np.log2(1.5 + nodes), 7, -0.5, 0.5, nodes))
    error = _error(coefficients, octave * np.log2(1.5 + samples) + _HALF, samples)
    # Rounding α, αt and 1 + αt: relative errors of the logarithm's argument. Then the octave and the last sum.
    error += octave * 3 * _ROUNDOFF / np.log(2) + 3 * _ROUNDOFF * count * _ONE_LEVEL
    return _with_margin(LOGARITHM, np.concatenate([coefficients, np.array([alpha, octave], np.float32)]), error)


def _shifted(coefficients: F32) -> F32:
    """Add half a level, so that rounding down rounds."""
    coefficients[0] += np.float32(_HALF)
    return coefficients


def _with_margin(form: int, coefficients: F32, error: float) -> Candidate:
    """Candidates are shifted up by the margin: then those with a fraction below twice the margin are doubtful."""
    margin = int(np.ceil(error + _SLACK))
    padded = np.zeros(10, np.float32)
    padded[: coefficients.size] = coefficients
    padded[0] += np.float32(margin)
    return Candidate(form, padded, min(2 * margin, 65536))


@lru_cache(maxsize=64)
def candidate(alpha: float, count: int) -> Candidate:
    """How candidates of levels are computed for a strength of companding and a number of levels."""
    return _direct(alpha, count) if alpha <= _MAX_DIRECT_ALPHA else _logarithm(alpha, count)


@lru_cache(maxsize=64)
def thresholds(alpha: float, count: int) -> F32:
    """The thresholds as an array that kernels take: of one type with all others."""
    return companding.thresholds(alpha, count).copy()


@lru_cache(maxsize=64)
def lookup(params: Params, full: bool) -> F32:
    """Look-up tables of a decode."""
    return tables_of(quantizer.full_table(params) if full else quantizer.anchor_table(params))
