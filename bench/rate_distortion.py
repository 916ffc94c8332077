"""What any quantizer of independent Gaussian or Laplacian values can reach, and what the best scalar one does.

All for variance 1 and mean squared error, so that a distortion compares with a centred vNMSE:

* :func:`shannon` is D(R), the least distortion at a rate in bits per value (Cover and Thomas, *Elements of Information
  Theory*, chapter 10). In closed form for the Gaussian; for the Laplacian by the algorithm of Blahut and Arimoto (IEEE
  Trans. Inf. Theory 18, 1972) on a fine grid.
* :func:`lloyd_max` is the distortion of the best scalar quantizer with 2^R levels of fixed length (Max, IRE Trans. Inf.
  Theory 6, 1960; Lloyd, IEEE Trans. Inf. Theory 28, 1982), by Lloyd's iteration on the density in closed form.

Values of a cache are neither independent nor of one distribution, and a scheme with scales per group adapts to them:
it can do better than the bound of either source at the same bits. The curves are there to see by how much.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Source = Literal["gaussian", "laplacian"]
F64 = NDArray[np.float64]

_ROOT2, _ROOT_2PI = math.sqrt(2.0), math.sqrt(2.0 * math.pi)


class _Density(NamedTuple):
    """A symmetric density of variance 1 on x >= 0: its integrals from x to infinity, with weights 1 and x."""

    mass: Callable[[float], float]
    moment: Callable[[float], float]


_DENSITIES: dict[Source, _Density] = {
    "gaussian": _Density(
        lambda x: math.erfc(x / _ROOT2) / 2,
        lambda x: 0.0 if x == math.inf else math.exp(-x * x / 2) / _ROOT_2PI,
    ),
    # exp(-√2 |x|) / √2
    "laplacian": _Density(
        lambda x: 0.0 if x == math.inf else math.exp(-_ROOT2 * x) / 2,
        lambda x: 0.0 if x == math.inf else math.exp(-_ROOT2 * x) * (x + 1 / _ROOT2) / 2,
    ),
}


class Quantizer(NamedTuple):
    """The upper half of a symmetric quantizer with an even number of levels, and its distortion."""

    levels: tuple[float, ...]
    distortion: float


@lru_cache(maxsize=64)
def lloyd_max(source: Source, bits: int, tolerance: float = 1e-13) -> Quantizer:
    """The best scalar quantizer with 2^bits levels for a source of variance 1.

    Lloyd's iteration: thresholds in the middle between levels, levels at the centroids of their bins. Both densities
    are log-concave, so the fixed point is the only one (Fleischer 1964). It converges linearly, the more slowly the
    more levels there are.
    """
    density, half = _DENSITIES[source], 1 << (bits - 1)
    levels = [6.0 * (k + 0.5) / half for k in range(half)]
    while True:
        edges = [0.0, *((a + b) / 2 for a, b in pairwise(levels)), math.inf]
        mass = [density.mass(edge) for edge in edges]
        moment = [density.moment(edge) for edge in edges]
        better = [(moment[k] - moment[k + 1]) / (mass[k] - mass[k + 1]) for k in range(half)]
        moved = max(abs(a - b) for a, b in zip(levels, better, strict=True))
        levels = better
        if moved < tolerance:
            break
    # With centroids for levels, E(x - x̂)² = E x² - E x̂².
    energy = 2 * sum((mass[k] - mass[k + 1]) * levels[k] ** 2 for k in range(half))
    return Quantizer(tuple(levels), 1.0 - energy)


def shannon_lower_bound(source: Source, rate: float) -> float:
    """Shannon's lower bound of the distortion, 2^(2h - 2R) / (2πe); exact for the Gaussian."""
    gaussian = 2.0 ** (-2.0 * rate)
    return gaussian if source == "gaussian" else gaussian * math.e / math.pi


@lru_cache(maxsize=4)
def _laplacian_curve() -> tuple[F64, F64]:
    """Points (rates, distortions) of the Laplacian's D(R) up to 3 bits, by Blahut's and Arimoto's iteration."""
    reach, step = 12.0, 1.0 / 24
    x = np.arange(-reach, reach + step / 2, step)
    p = np.exp(-_ROOT2 * np.abs(x))
    p /= p.sum()
    variance = float(p @ x**2)
    distance = (x[:, None] - x[None, :]) ** 2
    rates, distortions = [0.0], [1.0]
    q = np.full(len(x), 1.0 / len(x))
    for slope in np.geomspace(0.52, 60.0, 48):
        kernel = np.exp(-slope * distance)
        for _ in range(400):
            normal = kernel @ q
            gain = kernel.T @ (p / normal)
            q = q * gain
            if np.log(gain.max()) < 1e-4:  # nats between the bounds of the rate
                break
        joint = (p / normal)[:, None] * kernel * (q / gain)[None, :]
        distortion = float((joint * distance).sum())
        rate = float((joint * (-slope * distance)).sum() - p @ np.log(normal)) / math.log(2)
        rates.append(rate)
        distortions.append(distortion / variance)
    return np.array(rates), np.array(distortions)


def shannon(source: Source, rate: float) -> float:
    """D(R) of a source of variance 1, for a rate in bits per value.

    Above 3 bits the Laplacian's distance from its lower bound, which falls with the rate, is below 0.1 % and left out.
    """
    bound = shannon_lower_bound(source, rate)
    if source == "gaussian" or rate > 3.0:
        return bound
    rates, distortions = _laplacian_curve()
    return max(float(np.exp(np.interp(rate, rates, np.log(distortions)))), bound)
