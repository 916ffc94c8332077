"""Launches of the CUDA kernels, planned without a GPU: compile-time parameters, the kernels' argument, grid sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from lynxq.backends.cuda import blocks as cuda_blocks
from lynxq.backends.cuda import tables as cuda_tables
from lynxq.backends.cuda.memory import Memory
from lynxq.dtypes import DType
from lynxq.errors import BackendError
from lynxq.layout import METADATA_BYTES, Layout, ceil_div

Operation = Literal["encode", "decode_anchor", "decode_full", "nonfinite"]

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


def _sections(layout: Layout, page: int) -> np.ndarray[Any, np.dtype[np.void]]:
    """Where the sections of a page begin and end, and where the bytes end that align the next one."""
    kind = np.zeros((), _KIND)
    for stream in ("anchor", "residual"):
        sections = layout.sections(stream, page)
        begins = [section.offset for section in sections] + [layout.page_size(stream, page)]
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
    # Engines call this for every layer and step: all that does not depend on an address is worked out once.
    aligned = replace(memory, address=memory.address % 16, block_table=0)
    template = _template(operation, layout, aligned, dtype, (anchor % 16, residual % 16))
    if template is None:
        return None
    argument = template.argument.copy()
    argument["values"], argument["blocks"] = memory.address, memory.block_table
    argument["anchor"], argument["residual"] = anchor, residual
    return replace(template, argument=argument)


@lru_cache(maxsize=4096)
def _template(
    operation: Operation, layout: Layout, memory: Memory, dtype: DType, streams: tuple[int, int]
) -> Launch | None:
    """The launch of which only addresses are missing; those given are the remainders by 16."""
    shape = _shape(operation, layout, cuda_blocks.vector_width(layout, memory, dtype.itemsize, streams))
    tiles, groups = _extent(operation, layout, shape)
    length = layout.shape[layout.token_axis]
    covered = length if operation.startswith("decode") and not memory.slots else layout.tokens
    blocks = layout.outer * ceil_div(covered, layout.params.page) * tiles * groups
    if blocks > _MAX_BLOCKS:
        raise BackendError(f"a tensor of shape {layout.shape} needs {blocks} thread blocks, more than {_MAX_BLOCKS}")
    if not blocks:
        return None
    argument = _argument(layout, memory)
    argument["tiles"], argument["groups"] = tiles, groups
    argument["length"] = layout.tokens if memory.slots else length
    defines = _defines(operation, layout, memory, dtype) | shape
    strides = [stride for _, stride in (*memory.outer, *memory.inner)]
    numbers = [memory.address, memory.token_stride, memory.block_stride, *strides]
    bytewise = any(number % dtype.itemsize for number in numbers) or any(streams)
    defines["BYTEWISE"] = int(bytewise and shape["VEC"] == 1)
    unit = "decode" if operation.startswith("decode") else operation
    threads = shape["LANES"] * shape["STRIPS"]
    return Launch(unit, f"lynxq_{operation}", tuple(sorted(defines.items())), argument, blocks, threads)


def _shape(operation: Operation, layout: Layout, vector: int) -> dict[str, int]:
    """What a block of threads covers, as compile-time parameters."""
    if operation == "encode":
        return cuda_blocks.encoder(layout, vector)
    return cuda_blocks.mover(layout, vector, reuse_scales=operation != "nonfinite")


def _extent(operation: Operation, layout: Layout, shape: dict[str, int]) -> tuple[int, int]:
    """Blocks of threads that a page needs along tokens and along channels."""
    params = layout.params
    if operation == "encode" and params.axis == "channel":
        runs = layout.channels // layout.head_dim * ceil_div(layout.head_dim, params.range_size)
        units = runs * shape.get("RUN_LANES", 1)
    else:
        units = layout.channels // shape["VEC"]
    whole_page = shape.get("ENCODER") == 2 and params.axis == "token"
    strips = 1 if whole_page else ceil_div(params.page, cuda_blocks.STRIP)
    return ceil_div(strips, shape["STRIPS"] * shape.get("DEPTH", 1)), ceil_div(units, shape["LANES"])


def _defines(operation: Operation, layout: Layout, memory: Memory, dtype: DType) -> dict[str, int]:
    """Compile-time parameters, but for the shape of a block."""
    params = layout.params
    if operation == "nonfinite":  # one kernel serves all parameters
        coding = dict.fromkeys(("RANGE", "CHUNK"), cuda_blocks.STRIP) | {"ANCHOR_BITS": 4, "RESIDUAL_BITS": 4}
        coding |= dict.fromkeys(("CHANNEL_AXIS", "MEAN_CENTER", "METADATA", "CELL_BITS"), 0)
    else:
        coding = {
            "CHANNEL_AXIS": int(params.axis == "channel"),
            "RANGE": params.range_size,
            "CHUNK": params.chunk,
            "ANCHOR_BITS": params.anchor_bits,
            "RESIDUAL_BITS": params.residual_bits,
            "MEAN_CENTER": int(params.center == "mean"),
            "METADATA": 0 if params.range_implies_chunk else METADATA_BYTES[params.metadata],
            "CELL_BITS": cuda_tables.grid(params.alpha, params.levels).bits if operation == "encode" else 0,
        }
    return coding | {
        "VALUE_TYPE": _TYPES[layout.dtype.name],
        "ARRAY_TYPE": _TYPES[dtype.name],
        "PAGE": params.page,
        "OUTER_AXES": len(memory.outer),
        "INNER_AXES": len(memory.inner),
        "SLOTS": memory.slots,
        "WIDE": int(layout.channels >= 2**32),
    }


def _argument(layout: Layout, memory: Memory) -> np.ndarray[Any, np.dtype[np.void]]:
    """The kernels' argument, as far as layout and strides go."""
    argument = np.zeros((), PLAN)
    fields = {
        "outer": layout.outer,
        "channels": layout.channels,
        "head_dim": layout.head_dim,
        "tokens": layout.tokens,
        "pages": layout.pages,
        "sinks": layout.sinks,
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
            argument[f"first_{stream}"] = layout.page_size(stream, 0)
            full = layout.page_size(stream, min(1, layout.pages - 1))
            argument[f"full_{stream}"] = full
    return argument
