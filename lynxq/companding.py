"""Tables of the α-law: thresholds, levels and anchor points, computed in exact decimal arithmetic.

No backend evaluates a logarithm to decide a code: a code is the number of thresholds at or below the
normalised magnitude. That *is* Round(ln(1+αt)/ln(1+α)·L) of the paper's equation (7), stated so that every
executor gets the same integer.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

#: Digits of the decimal arithmetic. α is at least 1e-6, and a few hundred products follow each other, so that at
#: least 45 digits of every table entry are right.
_DIGITS = 60

#: Rate of the exponential density whose bin centroids are the default anchor points; measured, see docs/design.md.
ANCHOR_DENSITY_RATE = Decimal(2)


def level_count(anchor_bits: int, residual_bits: int) -> int:
    """L, the largest magnitude level that both streams can hold: (2^(a-1) - 1) · 2^r."""
    return ((1 << (anchor_bits - 1)) - 1) << residual_bits


def float32(value: float | Decimal) -> float:
    """Round to the nearest float32, ties to even, and return it as a Python float."""
    if isinstance(value, float):
        return float(np.float32(value))
    near = np.float32(float(value))
    candidates = sorted((near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))))
    distance = {float(c): abs(Decimal(float(c)) - value) for c in candidates}
    best = min(distance.values())
    ties = [c for c in candidates if distance[float(c)] == best]
    return float(min(ties, key=lambda c: int(c.view(np.uint32)) & 1))


def _expand(alpha: Decimal, steps: int, last: int) -> list[Decimal]:
    """The inverse of the companding, ((1+α)^e - 1)/α, equation (8), at e = 0, 1/steps, …, last/steps."""
    if alpha == 0:
        return [Decimal(k) / steps for k in range(last + 1)]
    ratio = ((1 + alpha).ln() / steps).exp()
    powers = [Decimal(1)]
    for _ in range(last):
        powers.append(powers[-1] * ratio)
    return [(power - 1) / alpha for power in powers]


def _table(values: list[Decimal]) -> NDArray[np.float32]:
    table = np.array([float32(value) for value in values], dtype=np.float32)
    table.setflags(write=False)
    return table


@lru_cache(maxsize=256)
def thresholds(alpha: float, count: int) -> NDArray[np.float32]:
    """Boundaries between levels: ((1+α)^((k-½)/L) - 1)/α for k = 1..L.

    Parameters
    ----------
    alpha : float
        Strength of the companding; 0 is linear.
    count : int
        L, the number of levels above zero.

    Returns
    -------
    ndarray of float32, shape (count,)
        Strictly increasing, within (0, 1), read-only.

    Examples
    --------
    >>> thresholds(0.0, 4).tolist()
    [0.125, 0.375, 0.625, 0.875]
    """
    with localcontext(prec=_DIGITS):
        return _table(_expand(Decimal(alpha), 2 * count, 2 * count - 1)[1::2])


@lru_cache(maxsize=256)
def levels(alpha: float, count: int) -> NDArray[np.float32]:
    """Reconstruction values: ((1+α)^(k/L) - 1)/α for k = 0..L.

    Parameters
    ----------
    alpha : float
        Strength of the companding; 0 is linear.
    count : int
        L, the number of levels above zero.

    Returns
    -------
    ndarray of float32, shape (count + 1,)
        From 0 to 1, read-only.

    Examples
    --------
    >>> levels(0.0, 4).tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    with localcontext(prec=_DIGITS):
        return _table(_expand(Decimal(alpha), count, count))


@lru_cache(maxsize=256)
def anchor_points(alpha: float, anchor_bits: int, residual_bits: int) -> NDArray[np.float32]:
    """Default reconstruction points of the anchor decode: bin centroids, and exactly 1 for the top bin.

    The centroid is that of the density exp(-λt) on the bin, λ = `ANCHOR_DENSITY_RATE`. The top bin keeps 1.0,
    so that the anchor alone reproduces each chunk's extreme.

    Parameters
    ----------
    alpha : float
        Strength of the companding; 0 is linear.
    anchor_bits, residual_bits : int
        Bits of a code in either stream.

    Returns
    -------
    ndarray of float32, shape (2**(anchor_bits-1),)
        Strictly increasing, within (0, 1], read-only.

    Examples
    --------
    >>> anchor_points(0.5, 4, 4)[-1].item()
    1.0
    """
    top = (1 << (anchor_bits - 1)) - 1
    count = level_count(anchor_bits, residual_bits)
    half = 1 << (residual_bits - 1)
    with localcontext(prec=_DIGITS):
        # A level's interval of inputs begins half a step before it, that of level 0 at 0.
        edges = [Decimal(0), *_expand(Decimal(alpha), 2 * count, 2 * count - 1)[1::2]]
        points = []
        for magnitude in range(top):
            first = (magnitude << residual_bits) - half + 1
            left = edges[max(first, 0)]
            width = edges[first + 2 * half] - left
            decay = (ANCHOR_DENSITY_RATE * width).exp() - 1
            points.append(left + 1 / ANCHOR_DENSITY_RATE - width / decay)
        return _table([*points, Decimal(1)])
