"""Encode from and decode into a paged cache through a block table, without a gathered copy.

A serving engine keeps the tokens of a sequence in blocks that lie anywhere in one large cache. The calls here take
the cache as a logical (blocks, heads, slots, head_dim) view with any strides, which is how vLLM hands out every
layer: NHD and HND are strides, and K and V concatenated along the last axis are two slices of it. Streams are those
of the gathered tensor of shape (tokens, heads, head_dim), byte for byte.

A GPU follows the block table in the kernel. On the CPU one page is gathered at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lynxq import arrays, backends, devices
from lynxq.arguments import instance
from lynxq.arrays import Array
from lynxq.backends.base import Backend, PagedBackend, PagedMemory
from lynxq.codec import stream_buffers
from lynxq.dtypes import DType
from lynxq.encoded import Encoded
from lynxq.errors import DTypeError, NonFiniteError, ShapeError
from lynxq.layout import Layout, Stream, Tier, ceil_div
from lynxq.params import Params


def encode_paged(
    cache: Array,
    block_table: Array,
    params: Params | None = None,
    *,
    tokens: int,
    first_token: int = 0,
    head_dim: int | None = None,
    backend: str | None = None,
    out: Encoded | None = None,
    check: bool = True,
) -> Encoded:
    """Code one sequence of a paged cache.

    Parameters
    ----------
    cache : numpy array, torch tensor or cupy array, shape (blocks, heads, slots, head_dim)
        float32, float16 or bfloat16, with any strides.
    block_table : array of int32, shape (at least ceil(tokens / slots),)
        Token t is in slot ``t % slots`` of block ``block_table[t // slots]``. It must be where the cache is. On a
        GPU its entries are not checked: that would need a wait.
    params : Params, optional
        ``Params.keys()`` by default.
    tokens : int
        Tokens of the sequence, counted from the first entry of the table.
    first_token, head_dim, backend, out, check
        As for :func:`lynxq.encode`.

    Returns
    -------
    Encoded
        Of a tensor of shape (tokens, heads, head_dim), with token axis 0.

    Raises
    ------
    DTypeError, ShapeError, ParamsError
        If an argument does not fit; also if an entry of the table is not a block, on the CPU.
    NonFiniteError
        If a value of the sequence is NaN or infinite, unless it is on a GPU and `check` is off.

    Examples
    --------
    >>> import numpy as np
    >>> cache = np.random.default_rng(0).standard_normal((8, 2, 16, 64), dtype=np.float32)
    >>> encoded = encode_paged(cache, np.array([5, 2, 7], np.int32), tokens=40)
    >>> encoded.shape
    (40, 2, 64)
    """
    params = Params.keys() if params is None else params
    instance("params", params, Params, DTypeError)
    source = _cache(cache)
    heads, _, channels = source.raw.shape[1:]
    layout = Layout.of(
        params, (tokens, heads, channels), source.dtype, token_axis=0, head_dim=head_dim, first_token=first_token
    )
    memory = PagedMemory(source.raw, _table(block_table, source.raw, layout))
    engine = backends.get_for(cache, backend)
    anchor, residual = stream_buffers(layout, cache, source.raw, out)
    streams = devices.as_bytes(anchor, "anchor"), devices.as_bytes(residual, "residual")
    found = _first_nonfinite(engine, layout, memory) if check or not devices.on_device(cache) else None
    if found is not None:
        raise NonFiniteError(*found)
    if isinstance(engine, PagedBackend):
        engine.encode_paged(layout, memory, *streams)
    else:
        for page, rows in _gathered(layout, memory):
            high, low = _page(layout, "anchor", page), _page(layout, "residual", page)
            engine.encode(layout.narrowed(page, page + 1), rows, streams[0][high], streams[1][low])
    return Encoded(layout, anchor, residual)


def decode_anchor_paged(encoded: Encoded, cache: Array, block_table: Array, *, backend: str | None = None) -> None:
    """Reconstruct a sequence from its anchor stream, into its slots of a paged cache.

    Parameters
    ----------
    encoded : Encoded
        Of a tensor of shape (tokens, heads, head_dim) with token axis 0, however it was encoded.
    cache : array, shape (blocks, heads, slots, head_dim)
        Of the library of the streams, and where they are; nothing but the sequence's slots is written. Its dtype is
        that of the result.
    block_table : array of int32
        As for :func:`encode_paged`; no block may occur twice.
    backend : str, optional
        As for :func:`lynxq.encode`.

    Raises
    ------
    DTypeError, ShapeError
        If an argument does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> cache = np.random.default_rng(0).standard_normal((8, 2, 16, 64), dtype=np.float32)
    >>> encoded = encode_paged(cache, np.array([5, 2, 7], np.int32), tokens=40)
    >>> decode_anchor_paged(encoded, np.zeros_like(cache), np.array([1, 2, 3], np.int32))
    """
    _decode(encoded, "anchor", cache, block_table, backend)


def decode_full_paged(encoded: Encoded, cache: Array, block_table: Array, *, backend: str | None = None) -> None:
    """Reconstruct a sequence from both streams, into its slots of a paged cache.

    The slots may hold the anchor decode, which is then overwritten: the residual needs no second cache.

    Parameters
    ----------
    encoded, cache, block_table, backend
        As for :func:`decode_anchor_paged`; `encoded` has its residual stream.

    Raises
    ------
    MissingResidualError
        If there is no residual stream.
    DTypeError, ShapeError
        If an argument does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> cache = np.random.default_rng(0).standard_normal((8, 2, 16, 64), dtype=np.float32)
    >>> encoded = encode_paged(cache, np.array([5, 2, 7], np.int32), tokens=40)
    >>> decode_full_paged(encoded, np.zeros_like(cache), np.array([1, 2, 3], np.int32))
    """
    _decode(encoded, "full", cache, block_table, backend)


def _decode(encoded: Encoded, tier: Tier, cache: Array, block_table: Array, backend: str | None) -> None:
    instance("encoded", encoded, Encoded, DTypeError)
    layout = encoded.layout
    if len(layout.shape) != 3 or layout.token_axis != 0 or layout.tokens != layout.shape[0]:
        raise ShapeError(f"encoded must be of shape (tokens, heads, head_dim), all valid, got {layout.shape}")
    anchor = devices.as_bytes(encoded.anchor, "anchor")
    stream = encoded.residual_for(tier)
    residual = None if stream is None else devices.as_bytes(stream, "residual")
    arrays.claim_output(cache, "cache")
    target = _cache(cache)
    if target.library != encoded.framework or not devices.same_device(target.raw, anchor):
        raise DTypeError(f"cache must be a {encoded.framework} array on the device of the streams")
    if (target.raw.shape[1], target.raw.shape[3]) != layout.shape[1:]:
        raise ShapeError(f"cache must have heads and head_dim {layout.shape[1:]}, got shape {target.raw.shape}")
    if not devices.writable(target.raw):
        raise DTypeError("cache must be writable, got a read-only array")
    if arrays.overlaps_itself(target.raw):
        raise ShapeError(f"cache must not overlap itself, got strides {target.raw.strides}")
    if any(devices.may_share_memory(target.raw, data) for data in (anchor, residual) if data is not None):
        raise ShapeError("cache must not share memory with the encoded streams")
    memory = PagedMemory(target.raw, _table(block_table, target.raw, layout, distinct=True))
    engine = backends.get_for(cache, backend)
    if isinstance(engine, PagedBackend):
        engine.decode_paged(layout, anchor, residual, memory, target.dtype)
    else:
        _scatter(engine, layout, (anchor, residual), memory, target.dtype)


# --- arguments -----------------------------------------------------------------------------------------


def _cache(cache: Array) -> devices.RawArray:
    source = devices.as_raw(cache)
    if len(source.raw.shape) != 4:
        raise ShapeError(f"cache must have shape (blocks, heads, slots, head_dim), got {tuple(source.raw.shape)}")
    return source


def _table(block_table: Array, raw: Any, layout: Layout, *, distinct: bool = False) -> Any:
    """The block table where the cache is, checked as far as that needs no wait."""
    blocks, slots = raw.shape[0], raw.shape[2]
    on_device = devices.on_device(block_table)
    table: Any = devices.locate(block_table) if on_device else np.asarray(block_table)
    if on_device != isinstance(raw, devices.DeviceArray) or (on_device and not devices.same_device(table, raw)):
        raise DTypeError("block_table must be where the cache is")
    dtype = str(block_table.dtype).removeprefix("torch.") if on_device else table.dtype.name
    if dtype != "int32":
        raise DTypeError(f"block_table must be an array of int32, got {dtype}")
    if len(table.shape) != 1 or (on_device and table.strides != (4,) and table.size > 1):
        raise ShapeError(f"block_table must be flat and contiguous, got shape {tuple(table.shape)}")
    needed = ceil_div(layout.tokens, slots) if slots else layout.tokens
    if table.size < needed or (layout.tokens and not slots):
        raise ShapeError(
            f"{layout.tokens} tokens in blocks of {slots} need {needed} blocks, block_table has {table.size}"
        )
    if not on_device:
        used = table[:needed]
        if used.size and not 0 <= used.min() <= used.max() < blocks:
            raise ShapeError(f"block_table must name blocks from 0 to {blocks - 1}, got {used.min()} to {used.max()}")
        if distinct and np.unique(used).size < used.size:
            raise ShapeError("block_table names a block twice")
    return table


# --- pages of a cache on the CPU -----------------------------------------------------------------------


def _slots(layout: Layout, memory: PagedMemory, page: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Block and slot of every token of a page."""
    block, slot = np.divmod(np.arange(*layout.span(page)), memory.blocks.shape[2])
    return np.asarray(memory.table)[block].astype(np.intp), slot


def _gathered(layout: Layout, memory: PagedMemory) -> Iterator[tuple[int, Any]]:
    """Every page of a sequence, contiguous and of shape (tokens, heads, head_dim)."""
    for page in range(layout.pages):
        block, slot = _slots(layout, memory, page)
        yield page, memory.blocks[block, :, slot]


def _page(layout: Layout, stream: Stream, page: int) -> slice:
    return slice(layout.page_offset(stream, page), layout.page_offset(stream, page + 1))


def _first_nonfinite(engine: Backend, layout: Layout, memory: PagedMemory) -> tuple[int, tuple[int, ...]] | None:
    if isinstance(engine, PagedBackend):
        return engine.first_nonfinite_paged(layout, memory)
    count, first = 0, None
    for page, rows in _gathered(layout, memory):
        found = engine.first_nonfinite(layout.narrowed(page, page + 1), rows)
        if found is not None:
            count += found[0]
            first = first or (found[1][0] + layout.span(page)[0], *found[1][1:])
    return None if first is None else (count, first)


def _scatter(
    engine: Backend, layout: Layout, streams: tuple[Any, Any | None], memory: PagedMemory, dtype: DType
) -> None:
    anchor, residual = streams
    for page in range(layout.pages):
        part = layout.narrowed(page, page + 1)
        rows: Any = np.empty(part.shape, dtype.raw)
        low = None if residual is None else residual[_page(layout, "residual", page)]
        engine.decode(part, anchor[_page(layout, "anchor", page)], low, rows, dtype)
        block, slot = _slots(layout, memory, page)
        memory.blocks[block, :, slot] = rows
