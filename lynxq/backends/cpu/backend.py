"""numba on the CPU: the bytes of the reference, at the speed of memory.

The tensor is cut into units, a page of a few hundred channels each, which threads of our own work through; see
:mod:`lynxq.backends.cpu.plan` for the cut and :mod:`lynxq.backends.cpu.kernels` for what is done with a unit.
"""

from __future__ import annotations

import sys
from itertools import product
from typing import Any

import numba  # before all that needs it, so that an error names it
import numpy as np
from numpy.typing import NDArray

from lynxq import threads as worker_threads
from lynxq.backends.base import Backend, Bytes
from lynxq.backends.cpu import plan
from lynxq.backends.cpu import tables as level_tables
from lynxq.backends.cpu.kernels import scan
from lynxq.backends.cpu.kernels.decode import decode_bf16, decode_f16, decode_f32
from lynxq.backends.cpu.kernels.encode import encode_bf16, encode_f16, encode_f32
from lynxq.backends.cpu.kernels.spec import SECTIONS
from lynxq.backends.cpu.plan import Flat, Scratch, flatten, read_only
from lynxq.backends.reference import ReferenceBackend
from lynxq.backends.sections import page_sections
from lynxq.dtypes import DType, Raw, from_float32, to_float32
from lynxq.layout import Layout, Stream
from lynxq.params import Params

_ENCODE = {"float32": encode_f32, "float16": encode_f16, "bfloat16": encode_bf16}
_DECODE = {"float32": decode_f32, "float16": decode_f16, "bfloat16": decode_bf16}
_KEYS = {2: np.int16, 4: np.int32}

_STREAMS: tuple[Stream, Stream] = ("anchor", "residual")

#: Values below which another thread is not worth being woken.
_MIN_SHARE = 1 << 17
#: Staging beyond this goes through the reference: runs of thousands of scattered channels in pages of as many tokens.
_MAX_SCRATCH = 6 << 20
#: Verbatim values that are converted at a time.
_BLOCK = 1 << 16

if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
    raise ImportError("compilation is switched off (NUMBA_DISABLE_JIT)")
if sys.byteorder != "little":
    raise ImportError("the cpu backend needs a little-endian machine")


def _token_slice(layout: Layout, start: int, stop: int | None) -> tuple[slice, ...]:
    return (slice(None),) * layout.token_axis + (slice(start, stop),)


class CpuBackend(Backend):
    """numba kernels on our own threads; byte-identical with the reference."""

    name = "cpu"

    def __init__(self) -> None:
        self._reference = ReferenceBackend()

    # --- the three operations ------------------------------------------------------------------------

    def first_nonfinite(self, layout: Layout, x: Raw, *, threads: int = 1) -> tuple[int, tuple[int, ...]] | None:
        """Look whether there are any, fast, and only then count; see `Backend.first_nonfinite`."""
        valid = x[_token_slice(layout, 0, layout.tokens)]
        if valid.size == 0:
            return None
        flat = flatten(valid, writable=False)
        if flat is not None:
            shape, strides, length, step = _scan_axes(valid.shape, flat)
            per_row = -(-length // scan.BLOCK)
            memory, mask = flat.memory, flat.memory.dtype.type(layout.dtype.exponent_mask)
            found: list[bool] = []

            def work(first: int, last: int) -> None:
                found.append(scan.any_nonfinite(memory, mask, shape, strides, length, step, first, last))

            count = _threads(threads, valid.size)
            worker_threads.run(work, int(np.prod(shape)) * per_row, count)
            if not any(found):
                return None
        return self._reference.first_nonfinite(layout, x)

    def encode(self, layout: Layout, x: Raw, anchor: Bytes, residual: Bytes, *, threads: int = 1) -> None:
        """Encode unit by unit; see `Backend.encode`."""
        if not layout.pages:
            return
        flat = flatten(x, writable=False)
        count = _threads(threads, layout.elements)
        units = None if flat is None else plan.cut(layout, flat, count)
        if flat is None or units is None or units.scratch > _MAX_SCRATCH:
            self._reference.encode(layout, x, anchor, residual)
            return
        if layout.sinks:
            _sinks(layout, anchor)[...] = x[_token_slice(layout, 0, layout.sinks)]
        params = layout.params
        tables, spec = plan.tables(layout), plan.make_spec(layout, flat, units)
        candidate = level_tables.candidate(params.alpha, params.levels)
        thresholds = level_tables.thresholds(params.alpha, params.levels)
        places = (*tables, plan.axes(layout, flat))
        kernel, memory = _ENCODE[layout.dtype.name], flat.memory

        def work(first: int, last: int) -> None:
            scratch = Scratch(units.scratch)
            lanes, chunks = units.lanes, units.chunks
            keys = scratch.take(_KEYS[layout.dtype.itemsize], 2, plan.key_columns(layout, lanes, chunks))
            arrays = (
                scratch.take(np.float32, plan.FLOAT_ROWS, max(lanes, chunks)),
                keys,
                scratch.take(np.uint8, 24 * lanes),
                scratch.take(np.uint32, lanes),
                candidate.coefficients,
                thresholds,
            )
            staged = scratch.take(memory.dtype, 0 if units.direct else lanes * params.page)
            buffers = (staged, read_only(staged), scratch.take(np.uint8, units.stream), *_indices(scratch, lanes))
            kernel(spec, places, memory, anchor, residual, first, last, arrays, buffers)

        worker_threads.run(work, spec.units, units.threads(count))

    def decode(
        self,
        layout: Layout,
        anchor: Bytes,
        residual: Bytes | None,
        out: Raw,
        dtype: DType,
        *,
        threads: int = 1,
    ) -> None:
        """Decode unit by unit; see `Backend.decode`."""
        out[_token_slice(layout, layout.tokens, None)] = 0
        if not layout.pages:
            return
        flat = flatten(out, writable=True)
        count = _threads(threads, layout.elements)
        units = None if flat is None else plan.cut(layout, flat, count)
        if flat is None or units is None or units.scratch > _MAX_SCRATCH:
            self._reference.decode(layout, anchor, residual, out, dtype)
            return
        if layout.sinks:
            _decode_sinks(layout, anchor, out, dtype)
        params, full = layout.params, residual is not None
        tables, spec = plan.tables(layout), plan.make_spec(layout, flat, units)
        places = (tables.pages, tables.sections, plan.axes(layout, flat))
        lookup = level_tables.lookup(params, full)
        kernel, memory, limit = _DECODE[dtype.name], flat.memory, np.float32(dtype.largest)
        high = read_only(anchor)
        low = high[:0] if residual is None else read_only(residual)

        def work(first: int, last: int) -> None:
            scratch = Scratch(units.scratch)
            lanes, chunks = units.lanes, units.chunks
            arrays = (
                scratch.take(np.float32, plan.FLOAT_ROWS, max(lanes, chunks)),
                scratch.take(np.uint8, 8 * lanes),
                lookup,
            )
            staged = scratch.take(memory.dtype, 0 if units.direct else lanes * params.page)
            streams = scratch.take(np.uint8, units.stream)
            buffers = (staged, streams, read_only(streams), *_indices(scratch, lanes))
            kernel(spec, full, limit, places, high, low, memory, first, last, arrays, buffers)

        worker_threads.run(work, spec.units, units.threads(count))

    def warmup(self, *dtypes: DType) -> None:
        """Compile the kernels, or load them from the cache on disk."""
        for dtype in dtypes:
            layout = Layout.of(Params.keys(), (16, 8), dtype, token_axis=0)
            x = np.zeros(layout.shape, layout.dtype.raw)
            anchor, residual = (np.empty(layout.stream_size(stream), np.uint8) for stream in _STREAMS)
            self.first_nonfinite(layout, x)
            self.encode(layout, x, anchor, residual)
            self.decode(layout, anchor, residual, x, layout.dtype)


def _threads(threads: int, elements: int) -> int:
    """Threads for so many values."""
    return min(threads, max(1, elements // _MIN_SHARE))


def _indices(scratch: Scratch, lanes: int) -> tuple[NDArray[np.int64], ...]:
    """Places of sections, offsets of pieces, first lanes and runs of chunks."""
    return (
        scratch.take(np.int64, SECTIONS, 4),
        scratch.take(np.int64, lanes),
        scratch.take(np.int64, lanes + 1),
        scratch.take(np.int64, lanes),
    )


def _scan_axes(shape: tuple[int, ...], flat: Flat) -> tuple[NDArray[np.int64], NDArray[np.int64], int, int]:
    """Axes that visit every element of an array, whatever the order: shape, strides, and the innermost axis."""
    steps = sorted(((abs(step), n) for n, step in zip(shape, flat.strides, strict=True) if step), reverse=True)
    merged = [(1, 1)]
    for step, n in reversed(steps):
        inner, length = merged[-1]
        if length == 1:
            merged[-1] = (step, n)
        elif step == inner * length:
            merged[-1] = (inner, length * n)
        else:
            merged.append((step, n))
    step, length = merged[0]
    outer = merged[:0:-1]
    return np.array([n for _, n in outer], np.int64), np.array([s for s, _ in outer], np.int64), length, step


def _sinks(layout: Layout, anchor: Bytes) -> Raw:
    """The verbatim tokens in the anchor stream, in the tensor's own axes."""
    section: Raw = page_sections(layout, anchor, "anchor", 0)["sinks"]
    return section.reshape(*layout.outer_shape, layout.sinks, *layout.inner_shape)


def _decode_sinks(layout: Layout, anchor: Bytes, out: Raw, dtype: DType) -> None:
    source, target = _sinks(layout, anchor), out[_token_slice(layout, 0, layout.sinks)]
    if dtype is layout.dtype:
        target[...] = source
        return
    flat = source.reshape(-1)
    # A block at a time: a page of verbatim tokens may be the whole tensor.
    with np.errstate(all="ignore"):
        for index, begin, end in _rows(source.shape):
            first = int(np.ravel_multi_index((*index, begin), source.shape)) if source.ndim > 1 else begin
            values = flat[first : first + end - begin]
            target[(*index, slice(begin, end))] = from_float32(to_float32(values, layout.dtype), dtype)


def _rows(shape: tuple[int, ...]) -> Any:
    """Parts of the last axis of an array, no longer than a block."""
    for index in product(*map(range, shape[:-1])):
        for begin in range(0, shape[-1], _BLOCK):
            yield index, begin, min(begin + _BLOCK, shape[-1])
