"""Two ideas that are not in the codec, as schemes to measure: two scales for a chunk, and unbiased anchor points.

**Two scales.** The centre is the mean, and each side of it has a scale of its own, so that both use all their levels.
It costs a byte more for each chunk with stored scales; where a chunk is its run, both scales follow from the range and
only the centre is stored.

**Unbiased points.** Least squares shrinks: the variance of what is decoded is smaller than that of the values, so keys
are too short and attention is flatter than it should be. Points can be stretched until x̂ regressed on x has slope 1:
then the expected logit is right, with a larger squared error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

import numpy as np
from numpy.typing import NDArray

from lynxq import companding, dtypes, naming
from lynxq.arrays import Array
from lynxq.baselines import codes as coding
from lynxq.baselines.base import F32, Context, Parts, Scheme
from lynxq.calibration import data, histogram, sampling
from lynxq.params import Params


def _grouped(values: F32, axis: str) -> F32:
    """Values as (independent, along the grouping axis, channels)."""
    outer, tokens, heads, dim = values.shape
    return values.reshape(outer, tokens, heads * dim) if axis == "token" else values.reshape(-1, dim, 1)


@dataclass(frozen=True)
class TwoScales(Scheme):
    """The anchor with a mean for the centre and one scale for each side, 8-bit centres and scales.

    `params` gives axis, run, chunk, split, α and anchor points; runs along tokens are counted from the first token
    that the scheme sees.
    """

    params: Params
    name: str = "two-scales"

    paper = "-"

    @property
    def title(self) -> str:  # type: ignore[override]
        """Name for tables."""
        return f"two scales per chunk of {self.params.chunk}"

    def compress(self, values: F32, context: Context) -> Parts:
        params = self.params
        x = _grouped(values, params.axis)
        step = 1 << params.residual_bits
        edges = companding.thresholds(params.alpha, params.levels)[step // 2 :: step]
        parts: dict[str, list[NDArray[np.generic]]] = {name: [] for name in ("lo", "hi", "mu", "up", "down", "codes")}
        for start in range(0, x.shape[1], params.range_size):
            run = x[:, start : start + params.range_size]
            lo, hi = run.min(axis=1, keepdims=True), run.max(axis=1, keepdims=True)
            parts["lo"].append(dtypes.from_float32(lo, context.dtype))
            parts["hi"].append(dtypes.from_float32(hi, context.dtype))
            for begin in range(0, run.shape[1], params.chunk):
                chunk = run[:, begin : begin + params.chunk]
                unit = np.maximum((hi - lo) / np.float32(255), np.float32(1e-30))
                mu = np.rint((chunk.mean(axis=1, keepdims=True) - lo) / unit)
                parts["mu"].append(mu.astype(np.uint8))
                centre = lo + mu * unit
                if params.chunk == params.range_size:
                    up, down = hi - centre, centre - lo
                else:
                    sizes = [
                        np.clip(np.ceil(distance / unit), 0, 255)
                        for distance in (
                            chunk.max(axis=1, keepdims=True) - centre,
                            centre - chunk.min(axis=1, keepdims=True),
                        )
                    ]
                    for name, size in zip(("up", "down"), sizes, strict=True):
                        parts[name].append(size.astype(np.uint8))
                    up, down = (size * unit for size in sizes)
                negative = chunk < centre
                scale = np.where(negative, down, up)
                t = np.abs(chunk - centre) / np.where(scale > 0, scale, np.float32(1))
                level = np.searchsorted(edges, t, side="right").astype(np.uint8)
                parts["codes"].append(level | (negative.astype(np.uint8) << (params.anchor_bits - 1)))
        whole = {name: np.concatenate(arrays, axis=1) for name, arrays in parts.items() if arrays}
        return {**whole, "codes": coding.pack(whole["codes"], params.anchor_bits)}

    def restore(self, parts: Parts, context: Context) -> F32:
        params = self.params
        outer, tokens, heads, dim = context.block
        shape = (outer, tokens, heads * dim) if params.axis == "token" else (outer * tokens * heads, dim, 1)
        codes = coding.unpack(parts["codes"], params.anchor_bits, prod(shape)).reshape(shape)
        points = np.array(params.points, np.float32)
        out = np.empty(shape, np.float32)
        number = 0
        for index, start in enumerate(range(0, shape[1], params.range_size)):
            lo, hi = (dtypes.to_float32(parts[name][:, index : index + 1], context.dtype) for name in ("lo", "hi"))
            unit = np.maximum((hi - lo) / np.float32(255), np.float32(1e-30))
            edges = [*range(start, min(start + params.range_size, shape[1]), params.chunk)]
            for begin, end in pairwise([*edges, min(start + params.range_size, shape[1])]):
                here = slice(number, number + 1)
                centre = lo + parts["mu"][:, here] * unit
                if params.chunk == params.range_size:
                    up, down = hi - centre, centre - lo
                else:
                    up, down = (parts[name][:, here] * unit for name in ("up", "down"))
                number += 1
                code = codes[:, begin:end]
                negative = code >> (params.anchor_bits - 1) != 0
                factor = points[code & ((1 << (params.anchor_bits - 1)) - 1)]
                out[:, begin:end] = np.clip(np.where(negative, centre - factor * down, centre + factor * up), lo, hi)
        return out.reshape(context.block)


def samples(tensors: Mapping[str, Array], kind: str) -> list[sampling.Sample]:
    """All tokens of the tensors of a kind, errors weighted for the mean centred vNMSE."""
    chosen = {name: x for name, x in tensors.items() if naming.kind_of(name) == kind}
    loaded = data.load(chosen, naming.kind_of, naming.layer_of, token_axis=0, head_dim=None)
    return sampling.centred_samples(loaded, size=512, wanted=1 << 30)


def _edges(params: Params) -> NDArray[np.float64]:
    """Edges of the anchor's bins, from 0 to 1."""
    step = 1 << params.residual_bits
    return np.array([0.0, *companding.thresholds(params.alpha, params.levels)[step // 2 :: step], 1.0])


def fitted(params: Params, sample: list[sampling.Sample], *, top: bool = False) -> Params:
    """Parameters with the points of least squares for their split and α; the top one stays 1 unless `top`."""
    bins = histogram.Histogram.of(params, sample)
    points = histogram.anchor_errors(bins, params, np.array([params.alpha]))[1][0]
    if top:
        weight, moment, _ = bins.cells(_edges(params)[None])
        points[-1] = moment[0, -1] / weight[0, -1]
    return replace(params, anchor_points=tuple(points.tolist()))


def unbiased(params: Params, sample: list[sampling.Sample]) -> Params:
    """Parameters whose points are those of least squares, stretched until x̂ regressed on x has slope 1.

    The top point is 1 already; no point becomes larger than that.
    """
    params = fitted(params, sample)
    bins = histogram.Histogram.of(params, sample)
    _, moment, _ = bins.cells(_edges(params)[None])
    square, points = bins.square[-1], np.array(params.points)
    inner = float((moment[0, :-1] * points[:-1]).sum())
    gain = (square - float(moment[0, -1])) / inner
    stretched = np.minimum(points * gain, 1.0)
    stretched[-1] = 1.0
    return replace(params, anchor_points=tuple(np.maximum.accumulate(stretched).tolist()))
