"""Smallest and largest keys, and sums: of rows lane by lane, and of chunks along a row."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lynxq.backends.cpu.kernels.jit import inner
from lynxq.backends.cpu.kernels.reduce import VECTOR_BYTES, vector_extremes


@inner
def copy_rows(lo, hi, run_lo, run_hi):
    """Start runs with chunks, lane by lane."""
    for i in range(lo.size):
        run_lo[i] = lo[i]
        run_hi[i] = hi[i]


@inner
def merge_rows(lo, hi, run_lo, run_hi):
    """Widen runs by chunks, lane by lane."""
    for i in range(lo.size):
        run_lo[i] = min(run_lo[i], lo[i])
        run_hi[i] = max(run_hi[i], hi[i])


class Statistics(NamedTuple):
    """Functions for an element type, see `make_statistics`."""

    chunk_of_rows: Any
    chunks_of_row: Any
    means_of_rows: Any
    means_of_row: Any
    values_of_keys: Any
    words_of_keys: Any


def make_statistics(widen: Any, key: Any, unkey: Any) -> Statistics:
    """Make the functions for an element type, from those that widen a value, make a key of it, and take it back."""

    @inner
    def start_rows(x, lo, hi):
        """Take the first row's keys."""
        for i in range(lo.size):
            k = key(x[i])
            lo[i] = k
            hi[i] = k

    @inner
    def add_row(x, lo, hi):
        """Take one more row into account."""
        for i in range(lo.size):
            k = key(x[i])
            lo[i] = min(lo[i], k)
            hi[i] = max(hi[i], k)

    @inner
    def add_two_rows(x, y, lo, hi):
        """Take two more rows into account."""
        for i in range(lo.size):
            a, b = key(x[i]), key(y[i])
            lo[i] = min(lo[i], min(a, b))
            hi[i] = max(hi[i], max(a, b))

    @inner
    def chunk_of_rows(x, begin, stride, rows, lo, hi):
        """Smallest and largest keys of `rows` rows, lane by lane."""
        lanes = lo.size
        start_rows(x[begin : begin + lanes], lo, hi)
        row = 1
        while row + 1 < rows:
            a, b = begin + row * stride, begin + (row + 1) * stride
            add_two_rows(x[a : a + lanes], x[b : b + lanes], lo, hi)
            row += 2
        if row < rows:
            a = begin + row * stride
            add_row(x[a : a + lanes], lo, hi)

    @inner
    def _extremes(x):
        lo, hi = vector_extremes(x)
        if x.size < VECTOR_BYTES // x.itemsize:
            lo = key(x[0])
            hi = lo
        for i in range(x.size // (VECTOR_BYTES // x.itemsize) * (VECTOR_BYTES // x.itemsize), x.size):
            k = key(x[i])
            lo, hi = min(lo, k), max(hi, k)
        return lo, hi

    @inner
    def chunks_of_row(x, starts, count, lo, hi):
        """Smallest and largest key of every chunk along a row."""
        for c in range(count):
            lo[c], hi[c] = _extremes(x[starts[c] : starts[c + 1]])

    @inner
    def means_of_rows(x, begin, stride, rows, mean):
        """Mean of `rows` rows, lane by lane, in token order."""
        lanes = mean.size
        mean[:] = 0
        for row in range(rows):
            values = x[begin + row * stride : begin + row * stride + lanes]
            for i in range(lanes):
                mean[i] = np.float32(mean[i] + widen(values[i]))
        for i in range(lanes):
            mean[i] = np.float32(mean[i] / np.float32(rows))

    @inner
    def means_of_row(x, starts, count, mean):
        """Mean of every chunk along a row, in channel order."""
        for c in range(count):
            total = np.float32(0)
            for i in range(starts[c], starts[c + 1]):
                total = np.float32(total + widen(x[i]))
            mean[c] = np.float32(total / np.float32(starts[c + 1] - starts[c]))

    @inner
    def values_of_keys(keys, values):
        """float32 values of keys, +0 for -0."""
        for i in range(values.size):
            values[i] = widen(unkey(keys[i]))

    @inner
    def words_of_keys(keys, words):
        """Bit patterns of keys, +0 for -0."""
        for i in range(words.size):
            words[i] = np.uint32(unkey(keys[i]))

    return Statistics(chunk_of_rows, chunks_of_row, means_of_rows, means_of_row, values_of_keys, words_of_keys)
