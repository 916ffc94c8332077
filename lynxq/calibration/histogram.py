"""Errors of all splits and strengths of companding at once, from one histogram of normalised magnitudes.

For a given grouping every value has a distance t·σ̂ from its centre, t in [0, 1]. A code decodes it to r·σ̂, and the
error costs c·σ̂²·(t - r)². So what a split, an α and anchor points cost together follows from the histogram of t
weighted with c·σ̂², and the value is not looked at again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lynxq import quantizer
from lynxq.calibration.data import F32
from lynxq.calibration.sampling import Sample
from lynxq.layout import Groups, Layout
from lynxq.params import Params

F64 = NDArray[np.float64]

#: Bins of [0, 1]: a level of the finest code has 33 of them.
BINS = 4096


def _scales(params: Params, x: F32, groups: Groups) -> tuple[F32, F32]:
    """Centre and scale of every chunk, as the decoder sees them."""
    chunk = quantizer.chunk_ranges(x, groups)
    run = quantizer.run_ranges(chunk, groups)
    lo, hi = (quantizer.expand_runs(values, groups) for values in run)
    if params.range_implies_chunk:
        scales = quantizer.range_scales(lo, hi)
    else:
        mean = quantizer.chunk_means(x, groups) if params.center == "mean" else None
        stored = quantizer.quantize_scales(params, (lo, hi), chunk, mean)
        scales = quantizer.stored_scales(params, (lo, hi), *stored)
    return scales.mu, scales.sigma


@dataclass(frozen=True, eq=False)
class Histogram:
    """Weights of normalised magnitudes, as sums over all below an edge.

    Attributes
    ----------
    weight, moment, square : ndarray of float64, shape (BINS + 1,)
        Sums of w, w·t and w·t² over all t below each edge.
    """

    weight: F64
    moment: F64
    square: F64

    @classmethod
    def of(cls, params: Params, samples: Iterable[Sample]) -> Histogram:
        """The histogram of some tensors for the grouping in `params`, whose split and α do not count."""
        from lynxq.calibration.kernels import add  # here: numba takes half a second, and most imports never need it

        weight, moment = np.zeros(BINS), np.zeros(BINS)
        with np.errstate(all="ignore"):
            for sample in samples:
                head_dim = sample.tensor.layout.head_dim
                for x, cost in sample.pages(params):
                    groups = Layout.of(params, x.shape, "float32", token_axis=1, head_dim=head_dim).groups(x.shape[1])
                    mu, sigma = _scales(params, x, groups)
                    chunk = np.repeat(
                        np.arange(len(groups.chunk_starts)), np.diff([*groups.chunk_starts, groups.length])
                    )
                    rows, columns = np.arange(x.shape[1]), np.arange(x.shape[2])
                    places = (chunk, columns) if groups.axis == 1 else (rows, chunk)
                    add(x, cost, mu, sigma, *places, weight, moment)
            inside = np.where(weight > 0, moment / weight, 0.0)
        return cls(*(np.concatenate([[0.0], np.cumsum(part)]) for part in (weight, moment, moment * inside)))

    @property
    def total(self) -> float:
        """Sum of all weights."""
        return float(self.weight[-1])

    def cells(self, edges: F64) -> tuple[F64, F64, F64]:
        """Sums between edges, along the last axis; an edge inside a bin cuts it in proportion."""
        position = np.clip(edges, 0.0, 1.0) * BINS
        index = np.minimum(position.astype(np.intp), BINS - 1)
        part = position - index
        w, m, s = (
            np.diff(sums[index] + part * (sums[index + 1] - sums[index]), axis=-1)
            for sums in (self.weight, self.moment, self.square)
        )
        return w, m, s


def _expand(alphas: F64, steps: F64) -> F64:
    """The inverse of the companding for every α (rows) at every step (columns), a step being a share of L."""
    alpha = alphas[:, None]
    with np.errstate(all="ignore"):
        return np.where(alpha == 0.0, steps, np.expm1(np.log1p(alpha) * steps) / alpha)


def anchor_errors(histogram: Histogram, split: Params, alphas: F64) -> tuple[F64, F64]:
    """Cost of the anchor decode for every α with the best points for it, and these points.

    The points are the centroids of their bins but for the top one, which stays 1: the anchor alone reproduces the
    extreme of each chunk, which matters more to a model than its squared error shows. A bin without values takes its
    middle.
    """
    count = 1 << (split.anchor_bits - 1)
    half, step, largest = (1 << split.residual_bits) / 2, 1 << split.residual_bits, split.levels
    inner = (np.arange(1, count) * step - half + 0.5) / largest
    edges = np.concatenate([np.zeros((len(alphas), 1)), _expand(alphas, inner), np.ones((len(alphas), 1))], axis=1)
    w, m, s = histogram.cells(edges)
    with np.errstate(all="ignore"):
        points = np.where(w > 0, m / w, (edges[:, 1:] + edges[:, :-1]) / 2)
    points = np.maximum.accumulate(np.clip(points, 0.0, 1.0), axis=1)
    points[:, -1] = 1.0
    return _cost(w, m, s, points), points


def anchor_error(histogram: Histogram, params: Params) -> float:
    """Cost of the anchor decode with the points that the parameters have."""
    count = 1 << (params.anchor_bits - 1)
    half, step = (1 << params.residual_bits) / 2, 1 << params.residual_bits
    inner = _expand(np.array([params.alpha]), (np.arange(1, count) * step - half + 0.5) / params.levels)
    edges = np.concatenate([[[0.0]], inner, [[1.0]]], axis=1)
    return float(_cost(*histogram.cells(edges), np.array([params.points]))[0])


def _cost(w: F64, m: F64, s: F64, points: F64) -> F64:
    """Sum over cells of w·(t - r)²."""
    result: F64 = np.maximum(s - 2 * points * m + points**2 * w, 0.0).sum(axis=-1)
    return result
