"""The numpy reference: the codec written to be read. With :mod:`lynxq.quantizer` it *is* docs/algorithm.md."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from lynxq import packing, quantizer
from lynxq.backends.base import Backend, Bytes
from lynxq.backends.sections import Sections, page_sections
from lynxq.dtypes import DType, Raw, from_float32, nonfinite, to_float32
from lynxq.layout import Groups, Layout
from lynxq.quantizer import F32, Scales

#: Values that a block has at most, so that its temporaries stay in the cache.
_BLOCK = 1 << 18


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


def _planes(sections: Sections, prefix: str, outer: slice) -> list[Bytes]:
    return [view[outer] for name, view in sections.items() if name.startswith(prefix)]


def _block_scales(layout: Layout, sections: Sections, outer: slice, groups: Groups) -> Scales:
    """Scales of every chunk of a block, from the sections of its page."""
    lo, hi = (quantizer.expand_runs(to_float32(sections[name][outer], layout.dtype), groups) for name in ("lo", "hi"))
    if layout.params.range_implies_chunk:
        return quantizer.range_scales(lo, hi)
    return quantizer.stored_scales(layout.params, (lo, hi), sections["mu"][outer], sections["sigma"][outer])


def page_scales(layout: Layout, anchor: Bytes, page: int) -> Scales:
    """Scales of every chunk of a page, from the anchor stream."""
    sections = page_sections(layout, anchor, "anchor", page)
    return _block_scales(layout, sections, slice(0, layout.outer), layout.groups(layout.coded(page)))


def _encode_block(layout: Layout, raw: Raw, outer: slice, anchor: Sections, residual: Sections) -> None:
    params = layout.params
    sinks = anchor["sinks"].shape[1]
    anchor["sinks"][outer] = raw[:, :sinks]
    x = to_float32(raw[:, sinks:], layout.dtype)
    coded = x.shape[1]
    if coded == 0:
        return
    groups = layout.groups(coded)
    chunk = quantizer.chunk_ranges(x, groups)
    run = quantizer.run_ranges(chunk, groups)
    for name, values in zip(("lo", "hi"), run, strict=True):
        anchor[name][outer] = from_float32(values, layout.dtype)  # exact: these are input values
    if not params.range_implies_chunk:
        mean = quantizer.chunk_means(x, groups) if params.center == "mean" else None
        lo, hi = (quantizer.expand_runs(values, groups) for values in run)
        anchor["mu"][outer], anchor["sigma"][outer] = quantizer.quantize_scales(params, (lo, hi), chunk, mean)
    # From here on the encoder sees what the decoder will see.
    level, negative = quantizer.quantize(params, x, _block_scales(layout, anchor, outer, groups), groups)
    q_anc, q_res = quantizer.split(params, level, negative)
    for codes, bits, sections, prefix in (
        (q_anc, params.anchor_bits, anchor, "anchor"),
        (q_res, params.residual_bits, residual, "residual"),
    ):
        for target, plane in zip(_planes(sections, prefix, outer), packing.pack(codes, bits), strict=True):
            target[...] = plane


def _decode_block(layout: Layout, anchor: Sections, residual: Sections | None, outer: slice, coded: int) -> F32:
    params, groups = layout.params, layout.groups(coded)
    codes = packing.unpack(_planes(anchor, "anchor", outer), params.anchor_bits, coded)
    if residual is None:
        factor = quantizer.anchor_table(params).take(codes)
    else:
        low = packing.unpack(_planes(residual, "residual", outer), params.residual_bits, coded)
        factor = quantizer.full_table(params).take((codes << params.residual_bits) | low)
    return quantizer.reconstruct(factor, _block_scales(layout, anchor, outer, groups), groups)


class ReferenceBackend(Backend):
    """numpy on the CPU; defines what every other backend must produce."""

    name = "reference"

    def first_nonfinite(
        self,
        layout: Layout,
        x: Raw,
        *,
        threads: int = 1,  # noqa: ARG002 - one thread, whatever is asked for
    ) -> tuple[int, tuple[int, ...]] | None:
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

    def encode(
        self,
        layout: Layout,
        x: Raw,
        anchor: Bytes,
        residual: Bytes,
        *,
        threads: int = 1,  # noqa: ARG002 - one thread, whatever is asked for
    ) -> None:
        """Encode page by page; see `Backend.encode`."""
        anchor.fill(0)
        residual.fill(0)
        with np.errstate(all="ignore"):  # a reciprocal of zero is computed and then not used
            for page in range(layout.pages):
                high = page_sections(layout, anchor, "anchor", page)
                low = page_sections(layout, residual, "residual", page)
                for outer, block in _blocks(layout, x, page):
                    raw = block.reshape(*block.shape[:2], layout.channels)
                    _encode_block(layout, raw, outer, high, low)

    def decode(
        self,
        layout: Layout,
        anchor: Bytes,
        residual: Bytes | None,
        out: Raw,
        dtype: DType,
        *,
        threads: int = 1,  # noqa: ARG002 - one thread, whatever is asked for
    ) -> None:
        """Decode page by page; see `Backend.decode`."""
        axes = layout.token_axis
        out[(slice(None),) * axes + (slice(layout.tokens, None),)] = 0
        with np.errstate(all="ignore"):
            for page in range(layout.pages):
                high = page_sections(layout, anchor, "anchor", page)
                low = None if residual is None else page_sections(layout, residual, "residual", page)
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
