"""Copies between tensors of any strides, streams, and the contiguous staging buffers that kernels work on."""

from __future__ import annotations

from lynxq.backends.cpu_kernels.jit import inner
from lynxq.backends.cpu_kernels.spec import ITEMSIZE, RESIDUAL_0, ROWS, SECTIONS

#: Tokens that are copied at a time where neighbouring tokens are nearer to each other than channels are.
_TOKENS = 32


@inner
def gather_values(x, base, stride, tokens, pieces, length, staged):
    """Copy pieces of `length` contiguous channels into rows of a buffer."""
    lanes = pieces.size * length
    if length > 1 or abs(stride) >= lanes:
        for t in range(tokens):
            for p in range(pieces.size):
                begin, target = base + pieces[p] + t * stride, t * lanes + p * length
                for i in range(length):
                    staged[target + i] = x[begin + i]
        return
    for first in range(0, tokens, _TOKENS):
        for p in range(pieces.size):
            for t in range(first, min(first + _TOKENS, tokens)):
                staged[t * lanes + p] = x[base + pieces[p] + t * stride]


@inner
def scatter_values(staged, base, stride, tokens, pieces, length, out):
    """The inverse of `gather_values`."""
    lanes = pieces.size * length
    if length > 1 or abs(stride) >= lanes:
        for t in range(tokens):
            for p in range(pieces.size):
                begin, source = base + pieces[p] + t * stride, t * lanes + p * length
                for i in range(length):
                    out[begin + i] = staged[source + i]
        return
    for first in range(0, tokens, _TOKENS):
        for p in range(pieces.size):
            for t in range(first, min(first + _TOKENS, tokens)):
                out[base + pieces[p] + t * stride] = staged[t * lanes + p]


@inner
def scatter_sections(staged, sections, places, group, first, last, stream):
    """Copy sections from `first` to before `last` from a unit's buffer to their places in a stream."""
    for s in range(first, last):
        size, rows = sections[s, ITEMSIZE], sections[s, ROWS]
        width, pitch = places[s, 2] * size, sections[s, 2] * size
        for g in range(group):
            for row in range(rows):
                source = places[s, 0] + row * places[s, 1] + g * width
                target = places[s, 3] + (g * rows + row) * pitch
                for i in range(width):
                    stream[target + i] = staged[source + i]


@inner
def gather_sections(stream, sections, places, group, first, last, staged):
    """The inverse of `scatter_sections`."""
    for s in range(first, last):
        size, rows = sections[s, ITEMSIZE], sections[s, ROWS]
        width, pitch = places[s, 2] * size, sections[s, 2] * size
        for g in range(group):
            for row in range(rows):
                target = places[s, 0] + row * places[s, 1] + g * width
                source = places[s, 3] + (g * rows + row) * pitch
                for i in range(width):
                    staged[target + i] = stream[source + i]


#: Sections of either stream.
ANCHOR_SECTIONS = (0, RESIDUAL_0)
RESIDUAL_SECTIONS = (RESIDUAL_0, SECTIONS)
