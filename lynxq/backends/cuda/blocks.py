"""How the threads of a CUDA kernel share the work: channels of a thread, lanes along channels, strips along tokens."""

from __future__ import annotations

from collections.abc import Sequence

from lynxq.backends.cuda.memory import Memory
from lynxq.layout import Layout, ceil_div

#: Tokens of a strip, what a thread handles at once; threads of a block, at most.
STRIP, _THREADS = 8, 256
#: Tokens of the longest run whose strips fit one block.
_LONGEST_RUN = STRIP * _THREADS


def _power_of_two(value: int) -> int:
    """The smallest power of two that is not below `value`."""
    return 1 << max(value - 1, 0).bit_length()


def vector_width(layout: Layout, memory: Memory, itemsize: int, streams: Sequence[int]) -> int:
    """Channels of a thread: as many as make 16 bytes, or 1 where something is not a multiple of that."""
    wide = 16 // itemsize
    strides = [stride for _, stride in (*memory.outer, *memory.inner[:-1])]
    strides += [memory.token_stride, memory.block_stride]
    aligned = not any(number % 16 for number in (memory.address, *strides, *streams))
    rows = bool(memory.inner) and memory.inner[-1][1] == itemsize and memory.inner[-1][0] % wide == 0
    whole = True
    if layout.params.axis == "channel":  # a thread's channels must share a chunk
        chunk = layout.params.chunk
        whole = layout.head_dim % wide == 0 and (chunk % wide == 0 or chunk >= layout.head_dim)
    return wide if aligned and rows and whole else 1


def _run_lanes(layout: Layout, vector: int) -> int:
    """Lanes that share a run along channels, or 0 if shuffles cannot combine them."""
    params = layout.params
    lanes = _power_of_two(ceil_div(min(params.range_size, layout.head_dim), vector))
    per_chunk = params.chunk // vector
    whole = params.chunk == params.range_size or params.chunk >= lanes * vector
    whole = whole or (params.chunk % vector == 0 and per_chunk == _power_of_two(per_chunk))
    return lanes if lanes <= 32 and whole else 0


def encoder(layout: Layout, vector: int) -> dict[str, int]:
    """How a block of threads owns values: see the three ``kernels/encode_*.cuh``."""
    params = layout.params
    if params.axis == "token":
        if params.chunk % STRIP or params.range_size > _LONGEST_RUN:
            return {"ENCODER": 2, "VEC": 1, "LANES": 128, "STRIPS": 1}
        most = max(_THREADS, params.range_size)
        runs = params.page // params.range_size
        tile = max(params.range_size * n for n in range(1, runs + 1) if runs % n == 0 and params.range_size * n <= most)
        strips = tile // STRIP
        needed = _power_of_two(ceil_div(layout.channels, vector))
        # Eight lanes of 16 bytes are a whole cache line; more only if there are not enough strips to fill a block.
        lanes = 1 << ((_THREADS // strips).bit_length() - 1)
        return {"ENCODER": 0, "VEC": vector, "LANES": min(needed, lanes), "STRIPS": strips}
    for width in dict.fromkeys((vector, 1)):
        lanes = _run_lanes(layout, width)
        if lanes:
            runs = layout.channels // layout.head_dim * ceil_div(layout.head_dim, params.range_size)
            row = max(lanes, min(32, _power_of_two(runs * lanes)))
            strips = min(_THREADS // row, _power_of_two(params.page // STRIP))
            return {"ENCODER": 1, "VEC": width, "LANES": row, "STRIPS": max(strips, 32 // row), "RUN_LANES": lanes}
    return {"ENCODER": 2, "VEC": 1, "LANES": 32, "STRIPS": 8}


def mover(layout: Layout, vector: int, *, reuse_scales: bool) -> dict[str, int]:
    """Threads of a decode or a count: lanes along channels, strips along tokens."""
    params = layout.params
    depth = 1
    if reuse_scales and params.axis == "token":
        depth = next(n for n in (4, 2, 1) if n == 1 or params.chunk % (n * STRIP) == 0)
    packs = _power_of_two(ceil_div(layout.channels, vector))
    lanes = min(32, packs)
    strips = min(_THREADS // lanes, _power_of_two(ceil_div(params.page, STRIP * depth)))
    return {"VEC": vector, "LANES": min(packs, _THREADS // strips), "STRIPS": strips, "DEPTH": depth}
