"""Copies between tensors of any strides, streams, and the contiguous staging buffers that kernels work on."""

from __future__ import annotations

from lynxq.backends.cpu.kernels.jit import inner
from lynxq.backends.cpu.kernels.spec import ITEMSIZE, LANES, ROWS

#: Tokens that are copied at a time where neighbouring tokens are nearer to each other than channels are.
_TOKENS = 32


@inner
def _copy(source, target):
    for i in range(target.size):
        target[i] = source[i]


@inner
def gather_values(x, base, stride, tokens, pieces, length, staged):
    """Copy pieces of `length` contiguous channels into rows of a buffer."""
    lanes = pieces.size * length
    if length > 1 or abs(stride) >= lanes:
        for t in range(tokens):
            for p in range(pieces.size):
                begin, target = base + pieces[p] + t * stride, t * lanes + p * length
                _copy(x[begin : begin + length], staged[target : target + length])
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
                _copy(staged[source : source + length], out[begin : begin + length])
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
        width, pitch = places[s, 2] * size, sections[s, LANES] * size
        for g in range(group):
            source, target = places[s, 0] + g * width, places[s, 3] + g * rows * pitch
            if width == 1:  # one channel, as where tokens are the last axis
                for row in range(rows):
                    stream[target + row * pitch] = staged[source + row * places[s, 1]]
            else:
                for row in range(rows):
                    begin, at = source + row * places[s, 1], target + row * pitch
                    _copy(staged[begin : begin + width], stream[at : at + width])


@inner
def gather_sections(stream, sections, places, group, first, last, staged):
    """The inverse of `scatter_sections`."""
    for s in range(first, last):
        size, rows = sections[s, ITEMSIZE], sections[s, ROWS]
        width, pitch = places[s, 2] * size, sections[s, LANES] * size
        for g in range(group):
            target, source = places[s, 0] + g * width, places[s, 3] + g * rows * pitch
            if width == 1:
                for row in range(rows):
                    staged[target + row * places[s, 1]] = stream[source + row * pitch]
            else:
                for row in range(rows):
                    begin, at = source + row * pitch, target + row * places[s, 1]
                    _copy(stream[begin : begin + width], staged[at : at + width])
