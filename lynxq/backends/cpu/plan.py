"""How the ``cpu`` backend cuts a tensor up: what it tells its kernels, and what scratch they need."""

from __future__ import annotations

import threading
from functools import lru_cache
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lynxq.backends.cpu import tables as level_tables
from lynxq.backends.cpu.kernels import spec as spec_module
from lynxq.backends.cpu.kernels.spec import CHANNEL, SECTIONS, TOKEN, Spec
from lynxq.dtypes import Raw
from lynxq.layout import METADATA_BYTES, Layout, Stream, ceil_div

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]

#: Lanes of a unit: rows are long enough for vectors and prefetching, and a page of them stays in the L2 cache.
_LANES = 1024
#: Channels of one outer index from which units work on the tensor itself.
_MIN_DIRECT = 256
#: Scratch of one thread, and of all of them.
_THREAD_SCRATCH = 2 << 20
_ALL_SCRATCH = 12 << 20
#: Rows of float32 scratch, see the kernels.
FLOAT_ROWS = 9

_PLACES = {"lo": 0, "hi": 1, "mu": 2, "sigma": 3, "anchor": spec_module.ANCHOR_0, "residual": spec_module.RESIDUAL_0}


class Flat(NamedTuple):
    """An array as the memory that it lies in: a flat view, the place of its first element, strides in elements."""

    memory: NDArray[Any]
    base: int
    strides: tuple[int, ...]


def flatten(raw: Raw, *, writable: bool) -> Flat | None:
    """View the memory of an array that is not empty, or None if it is not aligned to its elements."""
    size = raw.itemsize
    if not raw.flags.aligned or any(step % size for n, step in zip(raw.shape, raw.strides, strict=True) if n > 1):
        return None
    strides = tuple(step // size if n > 1 else 0 for n, step in zip(raw.shape, raw.strides, strict=True))
    reach = [(n - 1) * step for n, step in zip(raw.shape, strides, strict=True)]
    before, after = -sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
    lowest = raw[tuple(slice(None, None, -1) if step < 0 else slice(None) for step in strides)]
    unsigned = np.dtype(f"u{size}")
    memory = np.lib.stride_tricks.as_strided(lowest.view(unsigned), (before + after + 1,), (size,), writeable=writable)
    return Flat(memory, before, strides)


class Tables(NamedTuple):
    """Where everything is in pages of each kind: first, middle, last. See :mod:`.kernels.spec`."""

    pages: Ints
    sections: Ints
    gaps: tuple[Ints, Ints, Ints]


def _page_tables(layout: Layout, page: int) -> tuple[list[list[int]], list[list[int]]]:
    sections = [[0, 0, 0, 0] for _ in range(SECTIONS)]
    gaps = []
    streams: tuple[Stream, Stream] = ("anchor", "residual")
    for number, stream in enumerate(streams):
        end, planes = 0, 0
        for section in layout.sections(stream, page):
            if section.offset > end:
                gaps.append([number, end, section.offset - end])
            end = section.offset + section.nbytes
            if section.name == "sinks":
                continue
            index = _PLACES.get(section.name)
            if index is None:
                index = _PLACES[stream] + planes
                planes += 1
            sections[index] = [section.offset, section.shape[1], section.shape[2], section.itemsize]
        size = layout.page_size(stream, page)
        if size > end:
            gaps.append([number, end, size - end])
    return sections, gaps


@lru_cache(maxsize=32)
def tables(layout: Layout) -> Tables:
    """Tables of a layout's pages."""
    kinds = (0, min(1, layout.pages - 1), layout.pages - 1)
    found = [_page_tables(layout, page) for page in kinds]
    pages = [[layout.coded(page), layout.page_sinks(page)] for page in kinds]
    gaps = [np.array(gaps, np.int64).reshape(-1, 3) for _, gaps in found]
    return Tables(np.array(pages), np.array([sections for sections, _ in found]), (gaps[0], gaps[1], gaps[2]))


class Cut(NamedTuple):
    """Units of a tensor, see `Spec` for the names; bytes of a unit's staged streams and of a thread's scratch."""

    direct: bool
    piece: int
    tile: int
    tiles: int
    block: int
    group: int
    lanes: int
    chunks: int
    stream: int
    scratch: int

    def threads(self, wanted: int) -> int:
        """How many threads may work, given what each needs."""
        return max(1, min(wanted, _ALL_SCRATCH // self.scratch))


def _contiguous(layout: Layout, flat: Flat) -> int:
    """Channels that are one after the other in memory."""
    piece = 1
    for n, step in zip(layout.inner_shape[::-1], flat.strides[: layout.token_axis : -1], strict=True):
        if n > 1 and step != piece:
            break
        piece *= n
    return piece


def _stream(layout: Layout, lanes: int, chunks: int) -> int:
    """Bytes of one page's sections of a unit, generously."""
    params = layout.params
    if params.axis == "token":
        ranges, scales = params.page // params.range_size * lanes, params.page // params.chunk * lanes
    else:
        ranges = scales = params.page * chunks
    planes = sum(ceil_div(params.page * width, 8) for width in (params.anchor_bits, params.residual_bits))
    return 2 * layout.dtype.itemsize * ranges + 2 * METADATA_BYTES[params.metadata] * scales + planes * lanes


def key_columns(layout: Layout, lanes: int, chunks: int) -> int:
    """Keys of the chunks that a unit has at a time, and of their runs."""
    params = layout.params
    return lanes * (1 + params.range_size // params.chunk) if params.axis == "token" else lanes + chunks


def _scratch(layout: Layout, lanes: int, chunks: int, stream: int, itemsize: int) -> int:
    """Bytes of a thread's scratch: float rows, keys, codes, words, indices; staged values and streams."""
    params = layout.params
    size = (
        4 * FLOAT_ROWS * max(lanes, chunks)
        + 2 * key_columns(layout, lanes, chunks) * layout.dtype.itemsize
        + (24 + 4 + 3 * 8) * lanes
    )
    if stream:
        size += lanes * params.page * itemsize + stream
    return size + 1024


def cut(layout: Layout, flat: Flat, threads: int) -> Cut:
    """Cut a tensor into units that leave `threads` threads within the bounds on memory."""
    params, channels = layout.params, layout.channels
    piece = _contiguous(layout, flat)
    direct = piece == channels and channels >= _MIN_DIRECT
    budget = min(_THREAD_SCRATCH, _ALL_SCRATCH // threads)
    limit = _LANES
    while True:
        tile, tiles = _tile(layout, limit)
        group = 1 if direct else max(1, min(limit // channels, layout.outer))
        lanes, chunks = group * tile, group * _most_chunks(layout, tile)
        block = 8 if chunks <= _LANES else 1
        stream = 0 if direct else _stream(layout, lanes, chunks)
        scratch = _scratch(layout, lanes, block * chunks, stream, flat.memory.itemsize)
        if scratch <= budget or limit == 1:
            break
        limit //= 2
    if tiles > 1:
        piece = gcd(piece, tile, layout.head_dim if params.axis == "channel" else tile)
    return Cut(direct, piece, tile, tiles, block, group, lanes, block * chunks, stream, scratch)


def _most_chunks(layout: Layout, tile: int) -> int:
    """Most chunks along the channels of a unit; none are counted where chunks lie along tokens."""
    if layout.params.axis == "token":
        return 0
    part = min(layout.head_dim, tile)
    return ceil_div(tile, part) * ceil_div(part, layout.params.chunk)


def _tile(layout: Layout, lanes: int) -> tuple[int, int]:
    """Channels of a unit, whole runs of them along channels, and units of all channels."""
    channels, head = layout.channels, layout.head_dim
    if layout.params.axis == "token":
        tiles = ceil_div(channels, lanes)
        even = ceil_div(channels, tiles)
        tile = min(ceil_div(even, 64) * 64, lanes)
        return min(tile, channels), ceil_div(channels, tile)
    if head <= lanes:
        heads = min(max(1, lanes // head), channels // head)
        return heads * head, ceil_div(channels, heads * head)
    run = min(layout.params.range_size, head)
    tile = run * max(1, lanes // run)
    if tile >= head:
        return head, channels // head
    return tile, channels // head * ceil_div(head, tile)


def make_spec(layout: Layout, flat: Flat, units: Cut) -> Spec:
    """What kernels are told."""
    params = layout.params
    candidate = level_tables.candidate(params.alpha, params.levels)
    middle = min(1, layout.pages - 1)
    return Spec(
        axis=TOKEN if params.axis == "token" else CHANNEL,
        chunk=params.chunk,
        run=params.range_size,
        head=layout.head_dim,
        channels=layout.channels,
        outer=layout.outer,
        page=params.page,
        pages=layout.pages,
        anchor_bits=params.anchor_bits,
        residual_bits=params.residual_bits,
        stored=0 if params.range_implies_chunk else METADATA_BYTES[params.metadata],
        mean=int(params.center == "mean"),
        kind=layout.dtype.number,
        form=candidate.form,
        margin=candidate.margin,
        direct=int(units.direct),
        piece=units.piece,
        tile=units.tile,
        tiles=units.tiles,
        block=units.block,
        group=units.group,
        groups=ceil_div(layout.outer, units.group),
        base=flat.base,
        token_stride=flat.strides[layout.token_axis],
        anchor_first=layout.page_size("anchor", 0),
        anchor_page=layout.page_size("anchor", middle),
        residual_first=layout.page_size("residual", 0),
        residual_page=layout.page_size("residual", middle),
    )


def axes(layout: Layout, flat: Flat) -> tuple[Ints, Ints, Ints, Ints]:
    """Shape and strides of the outer axes, and of the inner ones."""
    split = layout.token_axis
    parts = (layout.outer_shape, flat.strides[:split], layout.inner_shape, flat.strides[split + 1 :])
    first, second, third, fourth = (np.array(part, np.int64) for part in parts)
    return first, second, third, fourth


_local = threading.local()


class Scratch:
    """A thread's scratch, as arrays that share one buffer; the buffer is kept for the thread's next call.

    Its pages have been touched then, which fresh memory has not: that costs more than the codec does.
    """

    def __init__(self, size: int) -> None:
        buffer: Bytes | None = getattr(_local, "buffer", None)
        if buffer is None or buffer.size < size:
            buffer = np.empty(size, np.uint8)
            _local.buffer = buffer
        self._buffer, self._used = buffer, 0

    def take(self, dtype: Any, *shape: int) -> NDArray[Any]:
        """The next part of the buffer as an array."""
        kind = np.dtype(dtype)
        begin, size = ceil_div(self._used, 64) * 64, prod(shape) * kind.itemsize
        self._used = begin + size
        part: NDArray[Any] = self._buffer[begin : begin + size].view(kind)
        return part.reshape(shape)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A view that cannot be written through: kernels take inputs of this one type."""
    view = array.view()
    view.flags.writeable = False
    return view
