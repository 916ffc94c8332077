"""The arithmetic of the codec on numpy arrays: centres and scales, levels, codes, tables.

It is float32 throughout; every operation rounds to nearest even, in the order written here. Names are those of
the algorithm page, which this module and :mod:`lynxq.backends.reference` are the executable form of. Blocks
have axes (outer, tokens, channels); groups lie along axis 1 (tokens) or 2 (channels).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lynxq import companding
from lynxq.layout import Groups
from lynxq.params import Params

F32 = NDArray[np.float32]
Codes = NDArray[np.uint8]

_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)
#: Floors that keep a reciprocal finite: 2^-126 is the smallest normal float32.
_MIN_SIGMA = np.float32(2.0**-126)
_MIN_STEP = np.float32(2.0**-125)
_MAX = np.finfo(np.float32).max
#: Half ranges above this take the midrange for a centre: a mean could be further than float32's largest value away.
_LARGE = np.float32(2.0**126)
#: Tokens that are coded at a time.
_ROWS = 32
#: Steps between the middle of a range and its end, for each integer width.
_STEPS = {"u8": 127, "u16": 32767}
_SIGNED: dict[str, type] = {"u8": np.int8, "u16": np.int16, "f32": np.float32}
_UNSIGNED: dict[str, type] = {"u8": np.uint8, "u16": np.uint16, "f32": np.float32}


class Scales(NamedTuple):
    """Centre and scale of every chunk as the decoder sees them, and the range of its run; all float32."""

    lo: F32
    hi: F32
    mu: F32
    sigma: F32


# --- chunk statistics and their stored form --------------------------------------------------------


def _lengths(starts: tuple[int, ...], end: int) -> NDArray[np.intp]:
    edges = np.array([*starts, end], dtype=np.intp)
    return edges[1:] - edges[:-1]


def expand_chunks(per_chunk: NDArray[Any], groups: Groups) -> NDArray[Any]:
    """Repeat each chunk's entry for every element of the chunk."""
    return np.repeat(per_chunk, _lengths(groups.chunk_starts, groups.length), axis=groups.axis)


def expand_runs(per_run: NDArray[Any], groups: Groups) -> NDArray[Any]:
    """Repeat each run's entry for every chunk of the run."""
    return np.repeat(per_run, _lengths(groups.run_starts, len(groups.chunk_starts)), axis=groups.axis)


def _pieces(tokens: int, groups: Groups, *per_chunk: F32) -> Iterator[tuple[Any, ...]]:
    """Rows of a block, few enough that temporaries stay in the cache, and entries of chunks that broadcast to them."""
    if groups.axis == 1:
        for number, (begin, end) in enumerate(pairwise((*groups.chunk_starts, groups.length))):
            yield slice(begin, end), *(part[:, number : number + 1] for part in per_chunk)
        return
    for begin in range(0, tokens, _ROWS):
        rows = slice(begin, begin + _ROWS)
        yield rows, *(expand_chunks(part[:, rows], groups) for part in per_chunk)


def _reduce(function: np.ufunc, values: F32, starts: tuple[int, ...], axis: int) -> F32:
    """Minimum or maximum of every group. Adding zero turns -0 into +0: the order of comparisons must not show."""
    if axis == 2:
        return function.reduceat(values, starts, axis=axis) + _ZERO
    pairs = zip(starts, [*starts[1:], None], strict=True)  # ten times as fast as reduceat along this axis
    return np.stack([function.reduce(values[:, begin:end], axis=1) for begin, end in pairs], axis=1) + _ZERO


def chunk_ranges(x: F32, groups: Groups) -> tuple[F32, F32]:
    """Smallest and largest value of every chunk."""
    starts, axis = groups.chunk_starts, groups.axis
    return _reduce(np.minimum, x, starts, axis), _reduce(np.maximum, x, starts, axis)


def run_ranges(chunk: tuple[F32, F32], groups: Groups) -> tuple[F32, F32]:
    """Smallest and largest value of every run, from those of its chunks."""
    lo, hi = chunk
    return (
        _reduce(np.minimum, lo, groups.run_starts, groups.axis),
        _reduce(np.maximum, hi, groups.run_starts, groups.axis),
    )


def chunk_means(x: F32, groups: Groups) -> F32:
    """Mean of every chunk, summed element after element in float32."""
    axis = groups.axis
    starts = np.array(groups.chunk_starts, dtype=np.intp)
    lengths = _lengths(groups.chunk_starts, groups.length)
    total = np.zeros_like(np.take(x, starts, axis=axis))
    for position in range(int(lengths.max())):
        present = lengths > position
        index = (slice(None),) * axis + (present,)
        total[index] = total[index] + np.take(x, starts[present] + position, axis=axis)
    shape = [1] * x.ndim
    shape[axis] = len(starts)
    mean: F32 = total / lengths.astype(np.float32).reshape(shape) + _ZERO  # never -0, see `_middle`
    return mean


def _middle(lo: F32, hi: F32) -> F32:
    """Middle of a range; never -0, so that no comparison meets two zeros of different sign."""
    return lo * _HALF + hi * _HALF + _ZERO


def _deviation(lo: F32, hi: F32, mu: F32) -> F32:
    """Largest distance from the centre: max(max(x) - μ, μ - min(x))."""
    deviation: F32 = np.maximum(hi - mu, mu - lo)
    return deviation


def _float_sigma(deviation: F32) -> F32:
    """A scale that is kept as float32: the deviation, or 2^-126 if that is smaller and not zero."""
    return np.where(deviation > _ZERO, np.maximum(deviation, _MIN_SIGMA), _ZERO)


def _units(params: Params, lo: F32, hi: F32) -> tuple[F32, F32, F32]:
    """Middle of a range, and the units in which μ and σ are counted from there (integer metadata)."""
    steps = _STEPS[params.metadata]
    step = np.maximum((hi * _HALF - lo * _HALF) / np.float32(steps), _MIN_STEP)
    return _middle(lo, hi), step, step * _HALF if params.center == "midrange" else step


def _centre(middle: F32, mu_stored: F32, step: F32) -> F32:
    """μ̂; at the end of a range it can round to more than the largest float32, which it then is."""
    mu: F32 = np.minimum(np.maximum(middle + mu_stored * step, -_MAX), _MAX)
    return mu


def quantize_scales(
    params: Params, run: tuple[F32, F32], chunk: tuple[F32, F32], mean: F32 | None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The stored integers (or floats) of μ and σ, from the ranges of the runs and of the chunks.

    σ is rounded up until no value of the chunk lies outside μ̂ ± σ̂.
    """
    lo, hi = chunk
    mu = _middle(lo, hi)
    if mean is not None:
        large = run[1] * _HALF - run[0] * _HALF > _LARGE
        mu = np.where(large, mu, np.minimum(np.maximum(mean, lo), hi))
    if params.metadata == "f32":
        return mu, _float_sigma(_deviation(lo, hi, mu))
    steps, largest = _STEPS[params.metadata], np.iinfo(_UNSIGNED[params.metadata]).max
    middle, step, unit = _units(params, *run)
    mu_stored = np.clip(np.rint((mu - middle) / step), -steps, steps)
    deviation = _deviation(lo, hi, _centre(middle, mu_stored, step))
    sigma_stored = np.ceil(deviation / unit)
    sigma_stored += sigma_stored * unit < deviation
    return (
        mu_stored.astype(_SIGNED[params.metadata]),
        np.minimum(sigma_stored, np.float32(largest)).astype(_UNSIGNED[params.metadata]),
    )


def range_scales(lo: F32, hi: F32) -> Scales:
    """μ̂ and σ̂ of chunks that are their range: both follow from it."""
    middle = _middle(lo, hi)
    return Scales(lo, hi, middle, _float_sigma(_deviation(lo, hi, middle)))


def stored_scales(params: Params, run: tuple[F32, F32], mu: NDArray[Any], sigma: NDArray[Any]) -> Scales:
    """μ̂ and σ̂ from what is stored of them; `run` is the range of each chunk's run."""
    lo, hi = run
    if params.metadata == "f32":
        return Scales(lo, hi, mu, sigma)
    middle, step, unit = _units(params, lo, hi)
    scale = np.minimum(sigma.astype(np.float32) * unit, _MAX)
    return Scales(lo, hi, _centre(middle, mu.astype(np.float32), step), scale)


# --- codes -----------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _grid(alpha: float, count: int) -> tuple[int, NDArray[np.uint8], F32]:
    """A uniform grid over [0, 1] that narrows the threshold search to one comparison.

    Cell j of G holds the number of thresholds at or below j/G; G is a power of two so large that no cell has
    two thresholds inside. Only a speed-up: the comparison with the threshold decides.
    """
    table = companding.thresholds(alpha, count)
    cells = 1 << int(np.ceil(np.log2(2 / np.diff(table, prepend=_ZERO).min())))
    if cells > 1 << 16:
        return 0, np.empty(0, np.uint8), table
    edges = np.arange(cells + 2, dtype=np.float64) / cells
    below = np.searchsorted(table, edges, side="right").astype(np.uint8)
    return cells, below, np.append(table, np.float32(np.nan))  # nothing is at or above NaN


def magnitude_level(t: F32, alpha: float, count: int) -> NDArray[np.uint8]:
    """I, the number of thresholds at or below t."""
    cells, below, table = _grid(alpha, count)
    if not cells:
        return np.searchsorted(table, t, side="right").astype(np.uint8)
    level: NDArray[np.uint8] = below.take(np.minimum(t * np.float32(cells), np.float32(cells)).astype(np.intp))
    level += t >= table.take(level)
    return level


def quantize(params: Params, x: F32, chunks: Scales, groups: Groups) -> tuple[Codes, NDArray[np.bool_]]:
    """Magnitude level I and sign of every value."""
    level, negative = np.empty(x.shape, np.uint8), np.empty(x.shape, np.bool_)
    reciprocal = np.where(chunks.sigma > _ZERO, _ONE / chunks.sigma, _ZERO)
    for rows, mu, factor in _pieces(x.shape[1], groups, chunks.mu, reciprocal):
        distance = x[:, rows] - mu
        np.less(distance, _ZERO, out=negative[:, rows])
        t = np.abs(distance, out=distance) * factor
        level[:, rows] = magnitude_level(t, params.alpha, params.levels)
    return level, negative


def split(params: Params, level: Codes, negative: NDArray[np.bool_]) -> tuple[Codes, Codes]:
    """Anchor and residual code of a magnitude level and a sign, as two's complement of a and r bits."""
    bits = params.residual_bits
    v_mag: Codes = (level + np.uint8((1 << (bits - 1)) - 1)) >> np.uint8(bits)
    v_res: Codes = (v_mag << np.uint8(bits)) - level
    q_anc = v_mag ^ -negative.astype(np.uint8)  # -V_mag - 1 is the complement of V_mag
    return q_anc & np.uint8((1 << params.anchor_bits) - 1), v_res & np.uint8((1 << bits) - 1)


@lru_cache(maxsize=64)
def anchor_table(params: Params) -> F32:
    """Signed reconstruction value of every anchor code."""
    points = np.array(params.points, dtype=np.float32)
    return np.concatenate([points, -points[::-1]])


@lru_cache(maxsize=64)
def full_table(params: Params) -> F32:
    """Signed reconstruction value of every pair of codes, at index Q_anc · 2^r + Q_res."""
    bits, half = params.residual_bits, 1 << (params.residual_bits - 1)
    q_anc = np.arange(1 << params.anchor_bits).reshape(-1, 1)
    v_res = (np.arange(1 << bits) + half) % (1 << bits) - half
    negative = q_anc >> (params.anchor_bits - 1)
    v_mag = np.where(negative, (1 << params.anchor_bits) - 1 - q_anc, q_anc)
    level = np.clip((v_mag << bits) - v_res, 0, params.levels)  # no encoder leaves [0, L]; a reader must not
    values = companding.levels(params.alpha, params.levels)[level]
    signed: F32 = np.where(negative, -values, values).ravel()
    return signed


def reconstruct(factor: F32, chunks: Scales, groups: Groups) -> F32:
    """Values of signed reconstruction factors: μ̂ + factor · σ̂, kept within the run's range."""
    value = np.empty_like(factor)
    for rows, lo, hi, mu, sigma in _pieces(factor.shape[1], groups, *chunks):
        piece = mu + factor[:, rows] * sigma
        np.minimum(np.maximum(piece, lo, out=piece), hi, out=value[:, rows])
    return value
