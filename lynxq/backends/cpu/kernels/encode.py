"""Encoding of units: statistics, stored scales, codes, planes."""

from __future__ import annotations

from typing import Any

from lynxq.backends.cpu.kernels.bits import pack_nibbles, pack_rows, split_rows
from lynxq.backends.cpu.kernels.codes import make_codes
from lynxq.backends.cpu.kernels.convert import (
    F32,
    key_16,
    key_32,
    put_16,
    put_32,
    unkey_16,
    unkey_32,
    widen_bf16,
    widen_f16,
    widen_f32,
)
from lynxq.backends.cpu.kernels.jit import SOURCE, inner, kernel
from lynxq.backends.cpu.kernels.scales import (
    IMPLIED,
    clamp_means,
    dequantize_scales,
    implied_scales,
    middles,
    put_scales,
    quantize_scales,
    reciprocals,
)
from lynxq.backends.cpu.kernels.spec import (
    ANCHOR_0,
    CODED,
    HI,
    LO,
    MU,
    RESIDUAL_0,
    SECTIONS,
    SIGMA,
    SINKS,
    TOKEN,
)
from lynxq.backends.cpu.kernels.staging import gather_values, scatter_sections
from lynxq.backends.cpu.kernels.statistics import copy_rows, make_statistics, merge_rows
from lynxq.backends.cpu.kernels.units import (
    clear_gaps,
    mixed_offset,
    page_kind,
    page_start,
    place_groups,
    place_pieces,
    place_sections,
    tile_of,
)

#: Rows of float32 scratch.
RUN_LO, RUN_HI, CHUNK_LO, CHUNK_HI, CENTRE, SCALE, INVERSE, LANE_CENTRE, LANE_INVERSE = range(9)


@inner
def _store_scales(spec, anchor, places, first, rows, n, floats, words):
    """Centres and scales of `rows` rows of n chunks: stored unless they follow from the range, then as decoded.

    Row `first` of the sections is the first of them.
    """
    size = rows * n
    lo, hi = floats[RUN_LO, :size], floats[RUN_HI, :size]
    chunk_lo, chunk_hi = floats[CHUNK_LO, :size], floats[CHUNK_HI, :size]
    mu, sigma = floats[CENTRE, :size], floats[SCALE, :size]
    if spec.stored == IMPLIED:
        implied_scales(lo, hi, mu, sigma)
    else:
        if spec.mean:
            clamp_means(lo, hi, chunk_lo, chunk_hi, mu)
        else:
            middles(chunk_lo, chunk_hi, mu)
        quantize_scales(spec.stored, spec.mean, lo, hi, chunk_lo, chunk_hi, mu, sigma)
        for r in range(rows):
            part = slice(r * n, (r + 1) * n)
            row = first + r
            put_scales(spec.stored, anchor, places[MU, 0] + row * places[MU, 1], mu[part], words[:n])
            put_scales(spec.stored, anchor, places[SIGMA, 0] + row * places[SIGMA, 1], sigma[part], words[:n])
        dequantize_scales(spec.stored, spec.mean, lo, hi, mu, sigma)
    reciprocals(sigma, floats[INVERSE, :size])


@inner
def _pack(spec, codes, lanes, first, rows, anchor, residual, places):
    """Pack up to 8 rows of codes, the first of which is coded token `first`, into all planes."""
    if spec.anchor_bits == 4 and spec.residual_bits == 4:
        if rows % 2:
            codes[rows * lanes : (rows + 1) * lanes] = 0
        for row in range(0, rows, 2):
            a, b = codes[row * lanes : (row + 1) * lanes], codes[(row + 1) * lanes : (row + 2) * lanes]
            high = places[ANCHOR_0, 0] + (first + row) // 2 * places[ANCHOR_0, 1]
            low = places[RESIDUAL_0, 0] + (first + row) // 2 * places[RESIDUAL_0, 1]
            pack_nibbles(a, b, anchor[high : high + lanes], residual[low : low + lanes])
        return
    size = rows * lanes
    high, low = codes[8 * lanes : 8 * lanes + size], codes[16 * lanes : 16 * lanes + size]
    split_rows(spec.residual_bits, codes[:size], high, low)
    _pack_planes(spec.anchor_bits, high, lanes, first, rows, anchor, places[ANCHOR_0:RESIDUAL_0])
    _pack_planes(spec.residual_bits, low, lanes, first, rows, residual, places[RESIDUAL_0:])


@inner
def plane_width(bits, plane):
    """Width of a plane of codes of so many bits; 0 if there is no such plane."""
    lowest = 4 if bits >= 4 else 2
    return lowest if plane == 0 else bits - lowest


@inner
def _pack_planes(bits, codes, lanes, first, rows, stream, places):
    shift = 0
    for plane in range(2):
        width = plane_width(bits, plane)
        if width:
            start = places[plane, 0] + first * width // 8 * places[plane, 1]
            pack_rows(codes, lanes, rows, width, shift, stream, start, places[plane, 1])
            shift += width


@inner
def _spread(per_chunk, starts, out):
    """Repeat every chunk's entry for all its lanes."""
    for c in range(per_chunk.size):
        part, value = out[starts[c] : starts[c + 1]], per_chunk[c]
        for i in range(part.size):
            part[i] = value


@inner
def _run_keys(lo, hi, run_of, run_lo, run_hi):
    """Keys of runs along a row, from those of their chunks."""
    for c in range(lo.size):
        n = run_of[c]
        if c == 0 or run_of[c - 1] != n:
            run_lo[n], run_hi[n] = lo[c], hi[c]
        else:
            run_lo[n], run_hi[n] = min(run_lo[n], lo[c]), max(run_hi[n], hi[c])


def _make_encoder(widen: Any, key: Any, unkey: Any) -> Any:
    """Make the kernel for an element type, from the functions that `make_statistics` takes."""
    chunk_of_rows, chunks_of_row, means_of_rows, means_of_row, values_of_keys, words_of_keys = make_statistics(
        widen, key, unkey
    )
    row_codes = make_codes(widen)

    @inner
    def put_keys(spec, stream, place, row, keys, words):
        """Write keys as values, a row of a section."""
        values, offset = words[: keys.size], place[0] + row * place[1]
        words_of_keys(keys, values)
        if spec.kind == F32:
            put_32(stream, offset, values)
        else:
            put_16(stream, offset, values)

    @inner
    def encode_tokens(spec, x, begin, stride, coded, lanes, anchor, residual, places, work):
        """Encode a unit grouped along tokens."""
        floats, keys, codes, words, coefficients, thresholds = work
        mu, inverse = floats[CENTRE, :lanes], floats[INVERSE, :lanes]
        run_lo, run_hi = keys[0, :lanes], keys[1, :lanes]
        for run in range(0, coded, spec.run):
            stop = min(run + spec.run, coded)
            for c in range(run, stop, spec.chunk):
                at = (1 + (c - run) // spec.chunk) * lanes
                lo, hi = keys[0, at : at + lanes], keys[1, at : at + lanes]
                chunk_of_rows(x, begin + c * stride, stride, min(spec.chunk, stop - c), lo, hi)
                if c == run:
                    copy_rows(lo, hi, run_lo, run_hi)
                else:
                    merge_rows(lo, hi, run_lo, run_hi)
            put_keys(spec, anchor, places[LO], run // spec.run, run_lo, words)
            put_keys(spec, anchor, places[HI], run // spec.run, run_hi, words)
            values_of_keys(run_lo, floats[RUN_LO, :lanes])
            values_of_keys(run_hi, floats[RUN_HI, :lanes])
            for c in range(run, stop, spec.chunk):
                end, at = min(c + spec.chunk, stop), (1 + (c - run) // spec.chunk) * lanes
                values_of_keys(keys[0, at : at + lanes], floats[CHUNK_LO, :lanes])
                values_of_keys(keys[1, at : at + lanes], floats[CHUNK_HI, :lanes])
                if spec.mean:
                    means_of_rows(x, begin + c * stride, stride, end - c, mu)
                _store_scales(spec, anchor, places, c // spec.chunk, 1, lanes, floats, words)
                for t in range(c, end):
                    values = x[begin + t * stride : begin + t * stride + lanes]
                    out = codes[(t & 7) * lanes : ((t & 7) + 1) * lanes]
                    row_codes(spec.form, values, mu, inverse, coefficients, spec.margin, thresholds, out)
                    if t & 7 == 7 or t == coded - 1:
                        _pack(spec, codes, lanes, t & ~7, (t & 7) + 1, anchor, residual, places)

    @inner
    def encode_channels(spec, x, begin, stride, coded, groups, anchor, residual, places, work):
        """Encode a unit grouped along channels, `block` tokens at a time, which is 8 or 1."""
        floats, keys, codes, words, coefficients, thresholds = work
        starts, run_of, chunks, runs = groups
        lanes = starts[chunks]
        mu, inverse = floats[CENTRE], floats[INVERSE]
        run_lo, run_hi = keys[0, keys.shape[1] - runs :], keys[1, keys.shape[1] - runs :]
        centres, factors = floats[LANE_CENTRE, :lanes], floats[LANE_INVERSE, :lanes]
        for first in range(0, coded, spec.block):
            rows = min(spec.block, coded - first)
            n = rows * chunks
            for r in range(rows):
                at, x_at = r * chunks, begin + (first + r) * stride
                row, lo, hi = x[x_at : x_at + lanes], keys[0, at : at + chunks], keys[1, at : at + chunks]
                chunks_of_row(row, starts, chunks, lo, hi)
                if spec.mean:
                    means_of_row(row, starts, chunks, mu[at : at + chunks])
            if spec.stored != IMPLIED:
                values_of_keys(keys[0, :n], floats[CHUNK_LO, :n])
                values_of_keys(keys[1, :n], floats[CHUNK_HI, :n])
            for r in range(rows):
                lo, hi = keys[0, r * chunks : (r + 1) * chunks], keys[1, r * chunks : (r + 1) * chunks]
                if runs < chunks:
                    _run_keys(lo, hi, run_of, run_lo, run_hi)
                    put_keys(spec, anchor, places[LO], first + r, run_lo, words)
                    put_keys(spec, anchor, places[HI], first + r, run_hi, words)
                    for c in range(chunks):
                        lo[c], hi[c] = run_lo[run_of[c]], run_hi[run_of[c]]
                else:
                    put_keys(spec, anchor, places[LO], first + r, lo, words)
                    put_keys(spec, anchor, places[HI], first + r, hi, words)
            values_of_keys(keys[0, :n], floats[RUN_LO, :n])
            values_of_keys(keys[1, :n], floats[RUN_HI, :n])
            _store_scales(spec, anchor, places, first, rows, chunks, floats, words)
            for r in range(rows):
                x_at, out_at = begin + (first + r) * stride, ((first + r) & 7) * lanes
                _spread(mu[r * chunks : (r + 1) * chunks], starts, centres)
                _spread(inverse[r * chunks : (r + 1) * chunks], starts, factors)
                values, out = x[x_at : x_at + lanes], codes[out_at : out_at + lanes]
                row_codes(spec.form, values, centres, factors, coefficients, spec.margin, thresholds, out)
            done = first + rows
            if done % 8 == 0 or done == coded:
                _pack(spec, codes, lanes, (done - 1) & ~7, ((done - 1) & 7) + 1, anchor, residual, places)

    @inner
    def encode_units(spec, tables, x, anchor, residual, first, last, work, buffers):
        pages, sections, gaps, axes = tables
        staged, staged_view, staged_streams, places, pieces, starts, run_of = buffers
        for unit in range(first, last):
            page, group, tile = unit // (spec.groups * spec.tiles), unit // spec.tiles % spec.groups, unit % spec.tiles
            kind = page_kind(spec, page)
            if group == 0 and tile == 0:
                clear_gaps(gaps[kind], anchor, page_start(page, spec.anchor_first, spec.anchor_page), 0)
                clear_gaps(gaps[kind], residual, page_start(page, spec.residual_first, spec.residual_page), 1)
            coded, begin = pages[kind, CODED], spec.base + (page * spec.page + pages[kind, SINKS]) * spec.token_stride
            if coded == 0:
                continue
            outer = group * spec.group
            count = min(spec.group, spec.outer - outer)
            lane, lanes = tile_of(spec, tile)
            place_sections(spec, page, sections[kind], outer, count, lane, lanes, places)
            source, stride, high, low = x, spec.token_stride, anchor, residual
            if spec.direct:
                begin += mixed_offset(outer, axes[0], axes[1]) + lane
            else:
                n = place_pieces(spec, outer, count, lane, lanes, axes, pieces)
                gather_values(x, begin, stride, coded, pieces[:n], spec.piece, staged)
                source, begin, stride, high, low = staged_view, 0, count * lanes, staged_streams, staged_streams
            if spec.axis == TOKEN:
                encode_tokens(spec, source, begin, stride, coded, count * lanes, high, low, places, work)
            else:
                groups = place_groups(spec, lane, lanes, count, starts, run_of)
                encode_channels(spec, source, begin, stride, coded, groups, high, low, places, work)
            if not spec.direct:
                scatter_sections(staged_streams, sections[kind], places, count, 0, RESIDUAL_0, anchor)
                scatter_sections(staged_streams, sections[kind], places, count, RESIDUAL_0, SECTIONS, residual)

    return encode_units


# Kernels name these and do not hold them: numba does not find functions again in its cache that hold others.
_encode_f32 = _make_encoder(widen_f32, key_32, unkey_32)
_encode_f16 = _make_encoder(widen_f16, key_16, unkey_16)
_encode_bf16 = _make_encoder(widen_bf16, key_16, unkey_16)


def _kernels(source: int) -> tuple[Any, Any, Any]:
    @kernel
    def encode_f32(spec, tables, x, anchor, residual, first, last, work, buffers):
        """Encode units of float32 values."""
        if source:
            _encode_f32(spec, tables, x, anchor, residual, first, last, work, buffers)

    @kernel
    def encode_f16(spec, tables, x, anchor, residual, first, last, work, buffers):
        """Encode units of float16 values."""
        if source:
            _encode_f16(spec, tables, x, anchor, residual, first, last, work, buffers)

    @kernel
    def encode_bf16(spec, tables, x, anchor, residual, first, last, work, buffers):
        """Encode units of bfloat16 values."""
        if source:
            _encode_bf16(spec, tables, x, anchor, residual, first, last, work, buffers)

    return encode_f32, encode_f16, encode_bf16


encode_f32, encode_f16, encode_bf16 = _kernels(SOURCE)
