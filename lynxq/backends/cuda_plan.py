"""Launches of the CUDA kernels, planned without a GPU: compile-time parameters, the kernels' argument, grid sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lynxq.backends import cuda_tables
from lynxq.dtypes import DType
from lynxq.errors import BackendError
from lynxq.layout import METADATA_BYTES, Layout, ceil_div

Operation = Literal["encode", "decode_anchor", "decode_full", "nonfinite"]

#: Tokens of a strip, what a thread handles at once; threads of a block, at most.
_STRIP, _THREADS = 8, 256
#: Tokens of the longest run whose strips fit one block.
_LONGEST_RUN = _STRIP * _THREADS
_MAX_AXES = 16
_MAX_BLOCKS = 2**31 - 1
_SECTIONS = ("lo", "hi", "mu", "sigma", "sinks", "anchor low", "anchor high", "residual low", "residual high")
_TYPES = {"float32": 0, "float16": 1, "bfloat16": 2}

_KIND = np.dtype([("begin", "<i8", len(_SECTIONS)), ("end", "<i8", len(_SECTIONS)), ("next", "<i8", len(_SECTIONS))])
#: The struct `Plan` of ``kernels/plan.cuh``, field for field.
PLAN = np.dtype(
    [(name, "<u8") for name in ("values", "anchor", "residual", "tables", "blocks", "report")]
    + [(name, "<i8") for name in ("outer", "channels", "head_dim", "tokens", "length", "pages", "sinks")]
    + [(name, "<i8") for name in ("tiles", "groups", "token_stride", "block_stride")]
    + [(name, "<i8") for name in ("first_anchor", "full_anchor", "first_residual", "full_residual")]
    + [(name, "<i8", _MAX_AXES) for name in ("outer_size", "outer_stride", "inner_size", "inner_stride")]
    + [("kinds", _KIND, 3)]
)


@dataclass(frozen=True)
class Memory:
    """Where an array is: address of its first element, and its lengths and strides in bytes.

    Attributes
    ----------
    outer, inner : tuple of (length, stride)
        Axes before and after the token axis.
    token_stride : int
        Of a token, or of a token inside its block.
    slots, block_stride : int
        Of a paged cache: tokens of a block, 0 if it is not paged, and bytes from block to block.
    block_table : int
        Address of the 32-bit block numbers of a paged cache.
    """

    address: int
    outer: tuple[tuple[int, int], ...]
    inner: tuple[tuple[int, int], ...]
    token_stride: int
    slots: int = 0
    block_stride: int = 0
    block_table: int = 0

    @classmethod
    def of(cls, address: int, shape: Sequence[int], strides: Sequence[int], token_axis: int) -> Memory:
        """Of an array of the tensor's own shape; strides are in bytes."""
        axes = tuple(zip(shape, strides, strict=True))
        return cls(address, _merged(axes[:token_axis]), _merged(axes[token_axis + 1 :]), strides[token_axis])


def _merged(axes: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Neighbouring axes that are one axis in memory as one; axes of length 1 are gone."""
    result: list[tuple[int, int]] = []
    for length, stride in axes:
        if length == 1:
            continue
        if result and result[-1][1] == length * stride:
            result[-1] = result[-1][0] * length, stride
        else:
            result.append((length, stride))
    return tuple(result)


@dataclass(frozen=True)
class Launch:
    """A kernel to compile or find, and how to call it.

    Attributes
    ----------
    unit, kernel : str
        Source file without its suffix, and name of the function.
    defines : tuple of (str, int)
        Compile-time parameters, sorted.
    argument : ndarray of `PLAN`, shape ()
        What `tables` and `report` point to is filled in by the caller.
    blocks, threads : int
    """

    unit: str
    kernel: str
    defines: tuple[tuple[str, int], ...]
    argument: np.ndarray[Any, np.dtype[np.void]]
    blocks: int
    threads: int


def _power_of_two(value: int) -> int:
    """The smallest power of two that is not below `value`."""
    return 1 << max(value - 1, 0).bit_length()


def _vector(layout: Layout, memory: Memory, itemsize: int, streams: Sequence[int]) -> int:
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


def _encoder(layout: Layout, vector: int) -> dict[str, int]:
    """How a block of threads owns values: see the three ``kernels/encode_*.cuh``."""
    params = layout.params
    if params.axis == "token":
        if params.chunk % _STRIP or params.range_size > _LONGEST_RUN:
            return {"ENCODER": 2, "VEC": 1, "LANES": 128, "STRIPS": 1}
        most = max(_THREADS, params.range_size)
        runs = params.page // params.range_size
        tile = max(params.range_size * n for n in range(1, runs + 1) if runs % n == 0 and params.range_size * n <= most)
        strips = tile // _STRIP
        needed = _power_of_two(ceil_div(layout.channels, vector))
        # Eight lanes of 16 bytes are a whole cache line; more only if there are not enough strips to fill a block.
        lanes = 1 << ((_THREADS // strips).bit_length() - 1)
        return {"ENCODER": 0, "VEC": vector, "LANES": min(needed, lanes), "STRIPS": strips}
    for width in dict.fromkeys((vector, 1)):
        lanes = _run_lanes(layout, width)
        if lanes:
            runs = layout.channels // layout.head_dim * ceil_div(layout.head_dim, params.range_size)
            row = max(lanes, min(32, _power_of_two(runs * lanes)))
            strips = min(_THREADS // row, _power_of_two(params.page // _STRIP))
            return {"ENCODER": 1, "VEC": width, "LANES": row, "STRIPS": max(strips, 32 // row), "RUN_LANES": lanes}
    return {"ENCODER": 2, "VEC": 1, "LANES": 32, "STRIPS": 8}


def _mover(layout: Layout, vector: int, *, reuse_scales: bool) -> dict[str, int]:
    """Threads of a decode or a count: lanes along channels, strips along tokens."""
    params = layout.params
    depth = 1
    if reuse_scales and params.axis == "token":
        depth = next(n for n in (4, 2, 1) if n == 1 or params.chunk % (n * _STRIP) == 0)
    packs = _power_of_two(ceil_div(layout.channels, vector))
    lanes = min(32, packs)
    strips = min(_THREADS // lanes, _power_of_two(ceil_div(params.page, _STRIP * depth)))
    return {"VEC": vector, "LANES": min(packs, _THREADS // strips), "STRIPS": strips, "DEPTH": depth}


def _sections(layout: Layout, page: int) -> np.ndarray[Any, np.dtype[np.void]]:
    """Where the sections of a page begin and end, and where the bytes end that align the next one."""
    kind = np.zeros((), _KIND)
    for stream in ("anchor", "residual"):
        sections = layout.sections(stream, page)  # type: ignore[arg-type]
        begins = [section.offset for section in sections] + [layout.page_size(stream, page)]  # type: ignore[arg-type]
        high = False
        for section, following in zip(sections, begins[1:], strict=True):
            name = section.name
            if name.startswith(stream):
                name, high = f"{stream} {'high' if high else 'low'}", True
            where = _SECTIONS.index(name)
            kind["begin"][where] = section.offset
            kind["end"][where] = section.offset + section.nbytes
            kind["next"][where] = following
    return kind


def plan(
    operation: Operation,
    layout: Layout,
    memory: Memory,
    dtype: DType,
    *,
    anchor: int = 0,
    residual: int = 0,
) -> Launch | None:
    """Plan one launch.

    Parameters
    ----------
    operation : str
    layout : Layout
    memory : Memory
        Of the array that is read (encode, nonfinite) or written.
    dtype : DType
        Of that array.
    anchor, residual : int
        Addresses of the streams.

    Returns
    -------
    Launch or None
        None if there is nothing to do.

    Raises
    ------
    BackendError
        If the tensor needs more blocks of threads than a grid has.
    """
    params = layout.params
    streams = () if operation == "nonfinite" else (anchor, residual)
    vector = _vector(layout, memory, dtype.itemsize, streams)
    if operation == "encode":
        shape = _encoder(layout, vector)
    else:
        shape = _mover(layout, vector, reuse_scales=operation != "nonfinite")
    units = layout.channels
    if operation == "encode" and params.axis == "channel":
        units = layout.channels // layout.head_dim * ceil_div(layout.head_dim, params.range_size)
        units *= shape.get("RUN_LANES", 1)
    elif shape["VEC"] > 1:
        units //= shape["VEC"]
    plain_channels = shape.get("ENCODER") == 2 and params.axis == "token"
    strips = 1 if plain_channels else ceil_div(params.page, _STRIP)
    tiles = ceil_div(strips, shape["STRIPS"] * shape.get("DEPTH", 1))
    groups = ceil_div(units, shape["LANES"])
    length = layout.shape[layout.token_axis]
    covered = length if operation.startswith("decode") and not memory.slots else layout.tokens
    blocks = layout.outer * ceil_div(covered, params.page) * tiles * groups
    if blocks > _MAX_BLOCKS:
        raise BackendError(f"a tensor of shape {layout.shape} needs {blocks} thread blocks, more than {_MAX_BLOCKS}")
    if not blocks:
        return None

    numbers = [memory.address, memory.token_stride, memory.block_stride]
    numbers += [stride for _, stride in (*memory.outer, *memory.inner)]
    bytewise = any(number % dtype.itemsize for number in numbers) or any(address % 16 for address in streams)
    defines = {
        "VALUE_TYPE": _TYPES[layout.dtype.name],
        "ARRAY_TYPE": _TYPES[dtype.name],
        "CHANNEL_AXIS": int(params.axis == "channel"),
        "RANGE": params.range_size,
        "CHUNK": params.chunk,
        "PAGE": params.page,
        "ANCHOR_BITS": params.anchor_bits,
        "RESIDUAL_BITS": params.residual_bits,
        "MEAN_CENTER": int(params.center == "mean"),
        "METADATA": 0 if params.range_implies_chunk else METADATA_BYTES[params.metadata],
        "CELL_BITS": cuda_tables.grid(params.alpha, params.levels).bits if operation == "encode" else 0,
        "OUTER_AXES": len(memory.outer),
        "INNER_AXES": len(memory.inner),
        "SLOTS": memory.slots,
        "BYTEWISE": int(bytewise and shape["VEC"] == 1),
        "WIDE": int(layout.channels >= 2**32),
        **shape,
    }
    argument = _argument(layout, memory, anchor, residual, tiles, groups, length if not memory.slots else layout.tokens)
    unit = "decode" if operation.startswith("decode") else operation
    threads = shape["LANES"] * shape["STRIPS"]
    return Launch(unit, f"lynxq_{operation}", tuple(sorted(defines.items())), argument, blocks, threads)


def _argument(
    layout: Layout, memory: Memory, anchor: int, residual: int, tiles: int, groups: int, length: int
) -> np.ndarray[Any, np.dtype[np.void]]:
    argument = np.zeros((), PLAN)
    fields = {
        "values": memory.address,
        "anchor": anchor,
        "residual": residual,
        "blocks": memory.block_table,
        "outer": layout.outer,
        "channels": layout.channels,
        "head_dim": layout.head_dim,
        "tokens": layout.tokens,
        "length": length,
        "pages": layout.pages,
        "sinks": layout.sinks,
        "tiles": tiles,
        "groups": groups,
        "token_stride": memory.token_stride,
        "block_stride": memory.block_stride,
    }
    for name, value in fields.items():
        argument[name] = value
    for name, axes in (("outer", memory.outer), ("inner", memory.inner)):
        for axis, (size, stride) in enumerate(axes):
            argument[f"{name}_size"][axis] = size
            argument[f"{name}_stride"][axis] = stride
    if layout.pages:
        for kind, page in enumerate((0, min(1, layout.pages - 1), layout.pages - 1)):
            argument["kinds"][kind] = _sections(layout, page)
        for stream in ("anchor", "residual"):
            argument[f"first_{stream}"] = layout.page_size(stream, 0)  # type: ignore[arg-type]
            full = layout.page_size(stream, min(1, layout.pages - 1))  # type: ignore[arg-type]
            argument[f"full_{stream}"] = full
    return argument
