"""The numpy reference: the codec written to be read. It *is* docs/algorithm.md.

Arithmetic is float32 throughout; every operation rounds to nearest even, in the order written here. Names are
those of the algorithm page. A block is a piece of one page: raw values of shape (outer, tokens, channels).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lynxq import companding, packing
from lynxq.backends.base import Backend, Bytes
from lynxq.dtypes import DType, Raw, from_float32, nonfinite, to_float32
from lynxq.layout import Groups, Layout
from lynxq.params import Params

F32 = NDArray[np.float32]

_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)
#: Floors that keep a reciprocal finite: 2^-126 is the smallest normal float32.
_MIN_SIGMA = np.float32(2.0**-126)
_MIN_STEP = np.float32(2.0**-125)
_MAX = np.finfo(np.float32).max
#: Half ranges above this take the midrange for a centre: a mean could be further than float32's largest value away.
_LARGE = np.float32(2.0**126)
#: Steps between the middle of a range and its end, for each integer width.
_STEPS = {"u8": 127, "u16": 32767}
_SIGNED: dict[str, type] = {"u8": np.int8, "u16": np.int16, "f32": np.float32}
_UNSIGNED: dict[str, type] = {"u8": np.uint8, "u16": np.uint16, "f32": np.float32}
#: Values that a block has at most, so that its temporaries stay in the cache.
_BLOCK = 1 << 18


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


def expand(per_group: NDArray[Any], starts: tuple[int, ...], end: int, axis: int) -> NDArray[Any]:
    """Repeat each group's entry for every element of the group."""
    return np.repeat(per_group, _lengths(starts, end), axis=axis)


def _reduce(function: np.ufunc, values: F32, starts: tuple[int, ...], axis: int) -> F32:
    """Minimum or maximum of every group. Adding zero turns -0 into +0: the order of comparisons must not show."""
    if axis == 2:
        return function.reduceat(values, starts, axis=axis) + _ZERO
    pairs = zip(starts, [*starts[1:], None], strict=True)  # ten times as fast as reduceat along this axis
    return np.stack([function.reduce(values[:, begin:end], axis=1) for begin, end in pairs], axis=1) + _ZERO


def _mean(values: F32, groups: Groups, axis: int) -> F32:
    """Mean of every chunk, summed element after element in float32."""
    starts = np.array(groups.chunk_starts, dtype=np.intp)
    lengths = _lengths(groups.chunk_starts, groups.length)
    total = np.zeros_like(np.take(values, starts, axis=axis))
    for position in range(int(lengths.max())):
        present = lengths > position
        index = (slice(None),) * axis + (present,)
        total[index] = total[index] + np.take(values, starts[present] + position, axis=axis)
    shape = [1] * values.ndim
    shape[axis] = len(starts)
    mean: F32 = total / lengths.astype(np.float32).reshape(shape)
    return mean


def _middle(lo: F32, hi: F32) -> F32:
    return lo * _HALF + hi * _HALF


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


def quantize_centre_and_scale(
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
    deviation = _deviation(lo, hi, middle + mu_stored * step)
    sigma_stored = np.ceil(deviation / unit)
    sigma_stored += sigma_stored * unit < deviation
    return (
        mu_stored.astype(_SIGNED[params.metadata]),
        np.minimum(sigma_stored, np.float32(largest)).astype(_UNSIGNED[params.metadata]),
    )


def scales(
    params: Params, run: tuple[F32, F32], mu_stored: NDArray[Any] | None, sigma_stored: NDArray[Any] | None
) -> Scales:
    """μ̂ and σ̂ from what is stored; `run` is the range of each chunk's run."""
    lo, hi = run
    if mu_stored is None or sigma_stored is None:
        middle = _middle(lo, hi)
        return Scales(lo, hi, middle, _float_sigma(_deviation(lo, hi, middle)))
    if params.metadata == "f32":
        return Scales(lo, hi, mu_stored, sigma_stored)
    middle, step, unit = _units(params, lo, hi)
    mu = middle + mu_stored.astype(np.float32) * step
    return Scales(lo, hi, mu, np.minimum(sigma_stored.astype(np.float32) * unit, _MAX))


# --- codes -----------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _grid(alpha: float, count: int) -> tuple[int, NDArray[np.uint8], F32]:
    """A uniform grid over [0, 1] that narrows the threshold search to one comparison.

    Cell j of G holds the number of thresholds at or below j/G; G is a power of two so large that no cell has
    two thresholds inside. Only a speed-up: the comparison with the threshold decides.
    """
    table = companding.thresholds(alpha, count)
    cells = 1 << int(np.ceil(np.log2(2 / np.diff(table, prepend=_ZERO).min())))
    if cells > 1 << 22:
        return 0, np.empty(0, np.uint8), table
    edges = np.arange(cells + 2, dtype=np.float64) / cells
    below = np.searchsorted(table, edges, side="right").astype(np.uint8)
    return cells, below, np.append(table, np.float32(np.inf))


def magnitude_level(t: F32, alpha: float, count: int) -> NDArray[np.uint8]:
    """I, the number of thresholds at or below t."""
    cells, below, table = _grid(alpha, count)
    if not cells:
        return np.searchsorted(table, t, side="right").astype(np.uint8)
    level: NDArray[np.uint8] = below.take(np.minimum(t * np.float32(cells), np.float32(cells)).astype(np.intp))
    level += t >= table.take(level)
    return level


def split(level: NDArray[np.uint8], negative: NDArray[np.bool_], params: Params) -> tuple[Bytes, Bytes]:
    """Anchor and residual code of a magnitude level and a sign, as two's complement of a and r bits."""
    bits = params.residual_bits
    v_mag: Bytes = (level + np.uint8((1 << (bits - 1)) - 1)) >> np.uint8(bits)
    v_res: Bytes = (v_mag << np.uint8(bits)) - level
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


# --- blocks ----------------------------------------------------------------------------------------


def _blocks(layout: Layout, x: Raw, page: int) -> Iterator[tuple[slice, Raw]]:
    """Views of one page of a tensor, each with axes (outer, tokens, inner…), and their outer indices."""
    start, stop = layout.span(page)
    axes = layout.token_axis
    rows = x[(slice(None),) * axes + (slice(start, stop),)]
    if axes == 0:
        yield slice(0, 1), rows[None]
        return
    last = layout.outer_shape[-1]
    step = max(1, _BLOCK // max(1, (stop - start) * layout.channels))
    for position, index in enumerate(product(*map(range, layout.outer_shape[:-1]))):
        for first in range(0, last, step):
            count = min(step, last - first)
            yield slice(position * last + first, position * last + first + count), rows[index][first : first + count]


def _views(layout: Layout, stream: Bytes, kind: str, page: int) -> dict[str, NDArray[Any]]:
    """Sections of a page by name, as arrays that share the stream's memory."""
    views: dict[str, NDArray[Any]] = {}
    offset = layout.page_offset(kind, page)  # type: ignore[arg-type]
    types = {"lo": layout.dtype.raw, "hi": layout.dtype.raw, "sinks": layout.dtype.raw}
    types["mu"] = np.dtype(_SIGNED[layout.params.metadata])  # type: ignore[assignment]
    types["sigma"] = np.dtype(_UNSIGNED[layout.params.metadata])  # type: ignore[assignment]
    for section in layout.sections(kind, page):  # type: ignore[arg-type]
        begin = offset + section.offset
        data = stream[begin : begin + section.nbytes]
        views[section.name] = data.view(types.get(section.name, np.dtype(np.uint8))).reshape(section.shape)
    return views


def _axis(params: Params) -> int:
    return 1 if params.axis == "token" else 2


def _planes(views: dict[str, NDArray[Any]], prefix: str, outer: slice) -> list[Bytes]:
    return [view[outer] for name, view in views.items() if name.startswith(prefix)]


def block_scales(layout: Layout, views: dict[str, NDArray[Any]], outer: slice, coded: int) -> Scales:
    """Scales of every chunk of a block, from the sections of its page."""
    params, axis = layout.params, _axis(layout.params)
    groups = layout.groups(coded)
    count = len(groups.chunk_starts)
    lo, hi = (
        expand(to_float32(views[name][outer], layout.dtype), groups.run_starts, count, axis) for name in ("lo", "hi")
    )
    stored = (None, None) if params.range_implies_chunk else (views["mu"][outer], views["sigma"][outer])
    return scales(params, (lo, hi), *stored)


def page_scales(layout: Layout, anchor: Bytes, page: int) -> Scales:
    """Scales of every chunk of a page, from the anchor stream."""
    views = _views(layout, anchor, "anchor", page)
    return block_scales(layout, views, slice(0, layout.outer), layout.coded(page))


def _encode_block(
    layout: Layout, raw: Raw, outer: slice, anchor: dict[str, NDArray[Any]], residual: dict[str, NDArray[Any]]
) -> None:
    params, axis = layout.params, _axis(layout.params)
    sinks = anchor["sinks"].shape[1]
    anchor["sinks"][outer] = raw[:, :sinks]
    x = to_float32(raw[:, sinks:], layout.dtype)
    coded = x.shape[1]
    if coded == 0:
        return
    groups = layout.groups(coded)
    chunk = _reduce(np.minimum, x, groups.chunk_starts, axis), _reduce(np.maximum, x, groups.chunk_starts, axis)
    lo = _reduce(np.minimum, chunk[0], groups.run_starts, axis)
    hi = _reduce(np.maximum, chunk[1], groups.run_starts, axis)
    anchor["lo"][outer] = from_float32(lo, layout.dtype)  # exact: both are input values
    anchor["hi"][outer] = from_float32(hi, layout.dtype)
    if not params.range_implies_chunk:
        count = len(groups.chunk_starts)
        run = expand(lo, groups.run_starts, count, axis), expand(hi, groups.run_starts, count, axis)
        mean = _mean(x, groups, axis) if params.center == "mean" else None
        mu, sigma = quantize_centre_and_scale(params, run, chunk, mean)
        anchor["mu"][outer], anchor["sigma"][outer] = mu, sigma
    # From here on the encoder sees what the decoder will see.
    seen = block_scales(layout, anchor, outer, coded)
    reciprocal = np.where(seen.sigma > _ZERO, _ONE / seen.sigma, _ZERO)
    mu, reciprocal = (expand(part, groups.chunk_starts, groups.length, axis) for part in (seen.mu, reciprocal))
    distance = x - mu
    level = magnitude_level(np.abs(distance) * reciprocal, params.alpha, params.levels)
    q_anc, q_res = split(level, distance < _ZERO, params)
    for codes, bits, views, prefix in (
        (q_anc, params.anchor_bits, anchor, "anchor"),
        (q_res, params.residual_bits, residual, "residual"),
    ):
        for target, plane in zip(_planes(views, prefix, outer), packing.pack(codes, bits), strict=True):
            target[...] = plane


def _decode_block(
    layout: Layout,
    anchor: dict[str, NDArray[Any]],
    residual: dict[str, NDArray[Any]] | None,
    outer: slice,
    coded: int,
) -> F32:
    params = layout.params
    codes = packing.unpack(_planes(anchor, "anchor", outer), params.anchor_bits, coded)
    if residual is None:
        factor = anchor_table(params).take(codes)
    else:
        low = packing.unpack(_planes(residual, "residual", outer), params.residual_bits, coded)
        factor = full_table(params).take((codes << params.residual_bits) | low)
    groups, axis = layout.groups(coded), _axis(params)
    chunks = block_scales(layout, anchor, outer, coded)
    lo, hi, mu, sigma = (expand(part, groups.chunk_starts, groups.length, axis) for part in chunks)
    value: F32 = np.minimum(np.maximum(mu + factor * sigma, lo), hi)
    return value


class ReferenceBackend(Backend):
    """numpy on the CPU; defines what every other backend must produce."""

    name = "reference"

    def first_nonfinite(self, layout: Layout, x: Raw) -> tuple[int, tuple[int, ...]] | None:
        """Count non-finite values page by page; see `Backend.first_nonfinite`."""
        count, first = 0, None
        for page in range(layout.pages):
            start, stop = layout.span(page)
            rows = x[(slice(None),) * layout.token_axis + (slice(start, stop),)]
            where = nonfinite(rows, layout.dtype)
            found = int(np.count_nonzero(where))
            if found:
                index = [int(i) for i in np.unravel_index(int(np.argmax(where)), where.shape)]
                index[layout.token_axis] += start
                first = min(first or tuple(index), tuple(index))
                count += found
        return None if first is None else (count, first)

    def encode(self, layout: Layout, x: Raw, anchor: Bytes, residual: Bytes) -> None:
        """Encode page by page; see `Backend.encode`."""
        anchor.fill(0)
        residual.fill(0)
        with np.errstate(all="ignore"):  # a reciprocal of zero is computed and then not used
            for page in range(layout.pages):
                views = _views(layout, anchor, "anchor", page), _views(layout, residual, "residual", page)
                for outer, block in _blocks(layout, x, page):
                    raw = block.reshape(*block.shape[:2], layout.channels)
                    _encode_block(layout, raw, outer, *views)

    def decode(self, layout: Layout, anchor: Bytes, residual: Bytes | None, out: Raw, dtype: DType) -> None:
        """Decode page by page; see `Backend.decode`."""
        axes = layout.token_axis
        out[(slice(None),) * axes + (slice(layout.tokens, None),)] = 0
        with np.errstate(all="ignore"):
            for page in range(layout.pages):
                high = _views(layout, anchor, "anchor", page)
                low = None if residual is None else _views(layout, residual, "residual", page)
                sinks, coded = layout.page_sinks(page), layout.coded(page)
                for outer, block in _blocks(layout, out, page):
                    shape = block.shape[0], -1, *block.shape[2:]
                    verbatim = high["sinks"][outer]
                    if dtype is not layout.dtype:
                        verbatim = from_float32(to_float32(verbatim, layout.dtype), dtype)
                    block[:, :sinks] = verbatim.reshape(block[:, :sinks].shape)
                    if coded:
                        values = _decode_block(layout, high, low, outer, coded)
                        block[:, sinks:] = from_float32(values, dtype).reshape(shape)
