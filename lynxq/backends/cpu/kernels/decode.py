"""Decoding of units: planes to codes, codes to factors, factors to values."""

from __future__ import annotations

from typing import Any

import numpy as np

from lynxq.backends.cpu.kernels.bits import join_nibbles, unpack_nibbles, unpack_rows
from lynxq.backends.cpu.kernels.convert import get_values, narrow_bf16, narrow_f16, narrow_f32
from lynxq.backends.cpu.kernels.encode import plane_width
from lynxq.backends.cpu.kernels.jit import SOURCE, inner, kernel
from lynxq.backends.cpu.kernels.lookup import lookup_row
from lynxq.backends.cpu.kernels.scales import IMPLIED, dequantize_scales, get_centres, get_scales, implied_scales
from lynxq.backends.cpu.kernels.spec import ANCHOR_0, CODED, HI, LO, MU, RESIDUAL_0, SECTIONS, SIGMA, SINKS, TOKEN
from lynxq.backends.cpu.kernels.staging import gather_sections, scatter_values
from lynxq.backends.cpu.kernels.units import (
    mixed_offset,
    page_kind,
    place_groups,
    place_pieces,
    place_sections,
    tile_of,
)

#: Rows of float32 scratch.
RUN_LO, RUN_HI, CENTRE, SCALE, FACTOR, LEAST, LARGEST = range(7)


@inner
def _limit(values, limit, out):
    """Keep the ends of a range within the output's type: then all values between them are."""
    for i in range(out.size):
        value = values[i] if values[i] > -limit else -limit
        out[i] = value if value < limit else limit


@inner
def _load_scales(spec, anchor, places, first, rows, n, floats):
    """Centres and scales of `rows` rows of n chunks, row `first` of the sections being the first of them."""
    size = rows * n
    mu, sigma = floats[CENTRE, :size], floats[SCALE, :size]
    if spec.stored == IMPLIED:
        implied_scales(floats[RUN_LO, :size], floats[RUN_HI, :size], mu, sigma)
        return
    for r in range(rows):
        part = slice(r * n, (r + 1) * n)
        get_centres(spec.stored, anchor, places[MU, 0] + (first + r) * places[MU, 1], mu[part])
        get_scales(spec.stored, anchor, places[SIGMA, 0] + (first + r) * places[SIGMA, 1], sigma[part])
    dequantize_scales(spec.stored, spec.mean, floats[RUN_LO, :size], floats[RUN_HI, :size], mu, sigma)


@inner
def _unpack(spec, full, anchor, residual, places, lanes, first, rows, codes):
    """Codes of up to 8 tokens, the first of which is `first`: Q_anc, or Q_anc · 2^r + Q_res for the full decode."""
    if spec.anchor_bits == 4 and (spec.residual_bits == 4 or not full):
        for row in range(0, rows, 2):
            a, b = codes[row * lanes : (row + 1) * lanes], codes[(row + 1) * lanes : (row + 2) * lanes]
            at = places[ANCHOR_0, 0] + (first + row) // 2 * places[ANCHOR_0, 1]
            high = anchor[at : at + lanes]
            if full:
                at = places[RESIDUAL_0, 0] + (first + row) // 2 * places[RESIDUAL_0, 1]
                join_nibbles(high, residual[at : at + lanes], a, b)
            else:
                unpack_nibbles(high, a, b)
        return
    shift = 0
    if full:
        shift = _unpack_planes(spec.residual_bits, 0, lanes, first, rows, residual, places[RESIDUAL_0:], codes)
    _unpack_planes(spec.anchor_bits, shift, lanes, first, rows, anchor, places[ANCHOR_0:RESIDUAL_0], codes)


@inner
def _unpack_planes(bits, shift, lanes, first, rows, stream, places, codes):
    for plane in range(2):
        width = plane_width(bits, plane)
        if width:
            start = places[plane, 0] + first * width // 8 * places[plane, 1]
            unpack_rows(stream, start, places[plane, 1], lanes, rows, width, shift, codes)
            shift += width
    return shift


def make_writers(narrow: Any) -> tuple[Any, Any]:
    """Make the functions that write values: of rows with scales of every value's own, and of chunks along a row."""

    @inner
    def write_row(factor, mu, sigma, lo, hi, out):
        """Values of a row with scales of every value's own."""
        for i in range(out.size):
            value = np.float32(mu[i] + np.float32(factor[i] * sigma[i]))
            value = value if value > lo[i] else lo[i]
            out[i] = narrow(value if value < hi[i] else hi[i])

    @inner
    def write_chunk(factor, mu, sigma, lo, hi, out):
        """Values that share their scales."""
        for i in range(out.size):
            value = np.float32(mu + np.float32(factor[i] * sigma))
            value = value if value > lo else lo
            out[i] = narrow(value if value < hi else hi)

    return write_row, write_chunk


def _make_decoder(narrow: Any) -> Any:
    """Make the kernel for an output type, from the function that rounds to it."""
    write_row, write_chunk = make_writers(narrow)

    @inner
    def decode_tokens(spec, full, limit, anchor, residual, places, coded, lanes, work, out, begin, stride):
        """Decode a unit grouped along tokens."""
        floats, codes, lookup = work
        lo, hi, factor = floats[RUN_LO, :lanes], floats[RUN_HI, :lanes], floats[FACTOR, :lanes]
        least, largest = floats[LEAST, :lanes], floats[LARGEST, :lanes]
        mu, sigma = floats[CENTRE, :lanes], floats[SCALE, :lanes]
        for t in range(coded):
            if t & 7 == 0:
                _unpack(spec, full, anchor, residual, places, lanes, t, min(8, coded - t), codes)
            if t % spec.run == 0:
                row = t // spec.run
                get_values(anchor, places[LO, 0] + row * places[LO, 1], spec.kind, lo)
                get_values(anchor, places[HI, 0] + row * places[HI, 1], spec.kind, hi)
                _limit(lo, limit, least)
                _limit(hi, limit, largest)
            if t % spec.chunk == 0:
                _load_scales(spec, anchor, places, t // spec.chunk, 1, lanes, floats)
            lookup_row(lookup, codes[(t & 7) * lanes : ((t & 7) + 1) * lanes], factor)
            target = out[begin + t * stride : begin + t * stride + lanes]
            write_row(factor, mu, sigma, least, largest, target)

    @inner
    def decode_channels(spec, full, limit, anchor, residual, places, coded, groups, work, out, begin, stride):
        """Decode a unit grouped along channels, `block` tokens at a time, which is 8 or 1."""
        floats, codes, lookup = work
        starts, run_of, chunks, runs = groups
        lanes = starts[chunks]
        least, largest, mu, sigma = floats[LEAST], floats[LARGEST], floats[CENTRE], floats[SCALE]
        for first in range(0, coded, spec.block):
            rows = min(spec.block, coded - first)
            for r in range(rows):
                at, row = r * chunks, first + r
                # The ends of runs are read into the beginning of a row of scratch and then spread over their chunks.
                run_lo, run_hi = floats[LEAST, :runs], floats[LARGEST, :runs]
                get_values(anchor, places[LO, 0] + row * places[LO, 1], spec.kind, run_lo)
                get_values(anchor, places[HI, 0] + row * places[HI, 1], spec.kind, run_hi)
                for c in range(chunks):
                    floats[RUN_LO, at + c], floats[RUN_HI, at + c] = run_lo[run_of[c]], run_hi[run_of[c]]
            _load_scales(spec, anchor, places, first, rows, chunks, floats)
            size = rows * chunks
            _limit(floats[RUN_LO, :size], limit, least[:size])
            _limit(floats[RUN_HI, :size], limit, largest[:size])
            if first & 7 == 0:
                _unpack(spec, full, anchor, residual, places, lanes, first, min(8, coded - first), codes)
            for r in range(rows):
                factor = floats[FACTOR, :lanes]
                at = ((first + r) & 7) * lanes
                lookup_row(lookup, codes[at : at + lanes], factor)
                target = out[begin + (first + r) * stride : begin + (first + r) * stride + lanes]
                for c in range(chunks):
                    part, at = slice(starts[c], starts[c + 1]), r * chunks + c
                    write_chunk(factor[part], mu[at], sigma[at], least[at], largest[at], target[part])

    @inner
    def decode_units(spec, full, limit, tables, anchor, residual, out, first, last, work, buffers):
        pages, sections, axes = tables
        staged, staged_streams, staged_view, places, pieces, starts, run_of = buffers
        for unit in range(first, last):
            page, group, tile = unit // (spec.groups * spec.tiles), unit // spec.tiles % spec.groups, unit % spec.tiles
            kind = page_kind(spec, page)
            coded, begin = pages[kind, CODED], spec.base + (page * spec.page + pages[kind, SINKS]) * spec.token_stride
            if coded == 0:
                continue
            outer = group * spec.group
            count = min(spec.group, spec.outer - outer)
            lane, lanes = tile_of(spec, tile)
            place_sections(spec, page, sections[kind], outer, count, lane, lanes, places)
            if spec.direct:
                target, stride, high, low = out, spec.token_stride, anchor, residual
                start = begin + mixed_offset(outer, axes[0], axes[1]) + lane
            else:
                target, stride, high, low = staged, count * lanes, staged_view, staged_view
                start = 0
                gather_sections(anchor, sections[kind], places, count, 0, RESIDUAL_0, staged_streams)
                if full:
                    gather_sections(residual, sections[kind], places, count, RESIDUAL_0, SECTIONS, staged_streams)
            if spec.axis == TOKEN:
                decode_tokens(spec, full, limit, high, low, places, coded, count * lanes, work, target, start, stride)
            else:
                groups = place_groups(spec, lane, lanes, count, starts, run_of)
                decode_channels(spec, full, limit, high, low, places, coded, groups, work, target, start, stride)
            if not spec.direct:
                n = place_pieces(spec, outer, count, lane, lanes, axes, pieces)
                scatter_values(staged, begin, spec.token_stride, coded, pieces[:n], spec.piece, out)

    return decode_units


# Kernels name these and do not hold them: numba does not find functions again in its cache that hold others.
_decode_f32 = _make_decoder(narrow_f32)
_decode_f16 = _make_decoder(narrow_f16)
_decode_bf16 = _make_decoder(narrow_bf16)


def _kernels(source: int) -> tuple[Any, Any, Any]:
    @kernel
    def decode_f32(spec, full, limit, tables, anchor, residual, out, first, last, work, buffers):
        """Decode units into float32."""
        if source:
            _decode_f32(spec, full, limit, tables, anchor, residual, out, first, last, work, buffers)

    @kernel
    def decode_f16(spec, full, limit, tables, anchor, residual, out, first, last, work, buffers):
        """Decode units into float16."""
        if source:
            _decode_f16(spec, full, limit, tables, anchor, residual, out, first, last, work, buffers)

    @kernel
    def decode_bf16(spec, full, limit, tables, anchor, residual, out, first, last, work, buffers):
        """Decode units into bfloat16."""
        if source:
            _decode_bf16(spec, full, limit, tables, anchor, residual, out, first, last, work, buffers)

    return decode_f32, decode_f16, decode_bf16


decode_f32, decode_f16, decode_bf16 = _kernels(SOURCE)
