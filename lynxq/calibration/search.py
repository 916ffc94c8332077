"""The search behind :func:`lynxq.calibrate`: coarse over everything, fine where it may matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lynxq import naming
from lynxq.calibration import histogram as histograms
from lynxq.calibration.allocation import frontier
from lynxq.calibration.candidates import ALPHAS, groupings, splits
from lynxq.calibration.data import Tensor
from lynxq.calibration.histogram import Histogram
from lynxq.calibration.sampling import Sample
from lynxq.params import Axis, Params

#: Candidates that are looked at closely: their error is at most this many times the least at their bits.
_CLOSE = 1.05
#: How often the interval of α is narrowed, and into how many points each time.
_ROUNDS, _POINTS = 2, 7


@dataclass(frozen=True)
class Option:
    """Parameters for a group of tensors, the bytes that they take, and the error that they are expected to have."""

    params: Params
    nbytes: int
    error: float


@dataclass(frozen=True)
class _Coarse:
    """A grouping and a split with the best α of the coarse grid."""

    split: Params
    histogram: Histogram
    place: int
    nbytes: int
    error: float


@dataclass(frozen=True)
class Fixed:
    """What all tensors share, and no search chooses.

    Attributes
    ----------
    page, sink_tokens : int
    code_bits : int
        Bits of anchor and residual together.
    """

    page: int
    sink_tokens: int
    code_bits: int


def preset(tensor: Tensor, fixed: Fixed) -> Params:
    """The preset of a tensor's kind, with the given pages, sinks and codes."""
    params = naming.preset_for("value" if tensor.kind == "value" else "key")
    run = fixed.page if params.axis == "token" else params.range_size
    return replace(
        params,
        page=fixed.page,
        range_size=run,
        chunk=min(params.chunk, run),
        residual_bits=fixed.code_bits - params.anchor_bits,
        sink_tokens=fixed.sink_tokens,
    )


def options(samples: Sequence[Sample], axes: Sequence[Axis], fixed: Fixed) -> list[Option]:
    """What a group of tensors that share their parameters can choose from: no option beats another in bits and error.

    Parameters
    ----------
    samples : sequence of Sample
        Of all tensors of the group.
    axes : sequence of {"token", "channel"}
    fixed : Fixed
    """
    tensors = [sample.tensor for sample in samples]
    head_dim = max(tensor.layout.head_dim for tensor in tensors)
    grid = np.array(ALPHAS)
    coarse: list[_Coarse] = []
    for grouping in groupings(axes, fixed.page, head_dim, fixed.sink_tokens):
        histogram = Histogram.of(grouping, samples)
        for split in splits(grouping, fixed.code_bits):
            errors, _ = histograms.anchor_errors(histogram, split, grid)
            place = int(errors.argmin())
            nbytes = sum(tensor.nbytes(split) for tensor in tensors)
            coarse.append(_Coarse(split, histogram, place, nbytes, float(errors[place])))
    best = frontier([item.nbytes for item in coarse], [item.error for item in coarse])
    fine = [_refined(item) for item in coarse if _is_close(item, [coarse[i] for i in best])]
    start = preset(tensors[0], fixed)
    nbytes = sum(tensor.nbytes(start) for tensor in tensors)
    fine.append(Option(start, nbytes, histograms.anchor_error(Histogram.of(start, samples), start)))
    return [fine[i] for i in frontier([item.nbytes for item in fine], [item.error for item in fine])]


def _is_close(item: _Coarse, best: Sequence[_Coarse]) -> bool:
    least = min(other.error for other in best if other.nbytes <= item.nbytes)
    return item.error <= least * _CLOSE


def _refined(item: _Coarse) -> Option:
    """The best α around the coarse one, to two digits, and the anchor points that belong to it."""
    low, high = ALPHAS[max(item.place - 1, 0)], ALPHAS[min(item.place + 1, len(ALPHAS) - 1)]
    alpha = ALPHAS[item.place]
    for _ in range(_ROUNDS):
        grid = np.unique([float(f"{value:.2g}") for value in [*np.linspace(low, high, _POINTS), alpha]])
        place = int(histograms.anchor_errors(item.histogram, item.split, grid)[0].argmin())
        alpha = float(grid[place])
        low, high = float(grid[max(place - 1, 0)]), float(grid[min(place + 1, len(grid) - 1)])
    params = replace(item.split, alpha=alpha)
    _, points = histograms.anchor_errors(item.histogram, params, np.array([alpha]))
    params = replace(params, anchor_points=tuple(points[0].tolist()))
    return Option(params, item.nbytes, histograms.anchor_error(item.histogram, params))
