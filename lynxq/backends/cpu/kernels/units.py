"""Where a unit of work is: its lanes, its groups, and its part of every section."""

from __future__ import annotations

import numpy as np

from lynxq.backends.cpu.kernels.jit import inner
from lynxq.backends.cpu.kernels.spec import (
    CHANNEL,
    FIRST,
    HI,
    ITEMSIZE,
    LANES,
    LAST,
    LO,
    MIDDLE,
    MU,
    OFFSET,
    RESIDUAL_0,
    ROWS,
    SECTIONS,
    SIGMA,
)


@inner
def page_kind(spec, page):
    """Which rows of the tables describe a page."""
    if page == 0:
        return FIRST
    return LAST if page == spec.pages - 1 else MIDDLE


@inner
def page_start(page, first, size):
    """Byte offset of a page in a stream, from the sizes of the first page and of those after it."""
    return 0 if page == 0 else first + (page - 1) * size


@inner
def count_groups(spec, first_lane, lanes, size):
    """Runs or chunks of `size` channels that begin in a range of channels of whole groups."""
    per_head = (spec.head + size - 1) // size
    last = first_lane + lanes
    before = first_lane // spec.head * per_head + (first_lane % spec.head + size - 1) // size
    until = last // spec.head * per_head + (last % spec.head + size - 1) // size
    return before, until - before


@inner
def place_sections(spec, page, sections, outer, group, lane, lanes, places):
    """Fill in where a unit's part of each section is: byte offset, bytes between rows, lanes of an outer index.

    Direct units are placed in the streams, others one section after the other in a buffer of their own.
    """
    anchor = page_start(page, spec.anchor_first, spec.anchor_page)
    residual = page_start(page, spec.residual_first, spec.residual_page)
    filled = 0
    for s in range(SECTIONS):
        first, count = lane, lanes
        if spec.axis == CHANNEL:
            if s in (LO, HI):
                first, count = count_groups(spec, lane, lanes, spec.run)
            elif s in (MU, SIGMA):
                first, count = count_groups(spec, lane, lanes, spec.chunk)
        rows, total, size = sections[s, ROWS], sections[s, LANES], sections[s, ITEMSIZE]
        start = (residual if s >= RESIDUAL_0 else anchor) + sections[s, OFFSET]
        start += (outer * rows * total + first) * size
        places[s, 2], places[s, 3] = count, start
        if spec.direct:
            places[s, 0], places[s, 1] = start, total * size
        else:
            places[s, 0], places[s, 1] = filled, group * count * size
            filled += rows * group * count * size


@inner
def tile_of(spec, index):
    """First channel and number of channels of a tile; along channels it holds whole heads, or is a part of one."""
    if spec.axis == CHANNEL and spec.tile < spec.head:
        per_head = (spec.head + spec.tile - 1) // spec.tile
        within = index % per_head * spec.tile
        return index // per_head * spec.head + within, min(spec.tile, spec.head - within)
    first = index * spec.tile
    return first, min(spec.tile, spec.channels - first)


@inner
def place_groups(spec, first_lane, lanes, group, starts, run_of):
    """Fill in the first lane of every chunk of a unit grouped along channels, the end, and each chunk's run.

    Returns both arrays and the numbers of chunks and runs.
    """
    chunks, runs = 0, 0
    for g in range(group):
        lane = 0
        while lane < lanes:
            within = (first_lane + lane) % spec.head
            if within % spec.run == 0:
                runs += 1
            starts[chunks], run_of[chunks] = g * lanes + lane, runs - 1
            chunks += 1
            lane += min(spec.chunk, spec.head - within)
    starts[chunks] = group * lanes
    return starts, run_of, chunks, runs


@inner
def mixed_offset(index, shape, strides):
    """Offset of a flat C-order index into axes of any strides."""
    offset = np.int64(0)
    for axis in range(shape.size - 1, -1, -1):
        offset += index % shape[axis] * strides[axis]
        index //= shape[axis]
    return offset


@inner
def place_pieces(spec, outer, group, lane, lanes, axes, pieces):
    """Fill in the offset of every piece of contiguous channels of a unit that is not direct; returns how many."""
    n = 0
    for g in range(group):
        start = mixed_offset(outer + g, axes[0], axes[1])
        for c in range(lane, lane + lanes, spec.piece):
            pieces[n] = start + mixed_offset(c, axes[2], axes[3])
            n += 1
    return n


@inner
def clear_gaps(gaps, stream, start, which):
    """Zero the bytes of a page that hold nothing: rows of `gaps` are stream, offset and length."""
    for i in range(gaps.shape[0]):
        if gaps[i, 0] == which:
            stream[start + gaps[i, 1] : start + gaps[i, 1] + gaps[i, 2]] = 0
