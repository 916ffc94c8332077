"""What a backend implements: three operations on raw arrays, and what each of them promises.

A backend changes speed, never bytes. Everything that can be decided without looking at data is decided before
a backend is called: arguments are checked, sizes are right, buffers do not overlap.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lynxq.dtypes import DType, Raw
from lynxq.layout import Layout

Bytes = NDArray[np.uint8]


class PagedMemory(NamedTuple):
    """A sequence in a paged cache.

    Attributes
    ----------
    blocks : raw array, shape (blocks, heads, slots, head_dim)
        The cache, with any strides.
    table : array of int32, shape (at least ceil(tokens / slots),)
        Token t of the sequence is in slot ``t % slots`` of block ``table[t // slots]``.
    """

    blocks: Any
    table: Any


class Backend(ABC):
    """An executor of the codec.

    Raw arrays hold the tensor in its own shape, with any strides, as ``uint16`` bit patterns (float16,
    bfloat16) or ``float32``. Streams are flat ``uint8`` arrays of exactly `Layout.stream_size` bytes.
    """

    name: str

    @abstractmethod
    def first_nonfinite(self, layout: Layout, x: Raw) -> tuple[int, tuple[int, ...]] | None:
        """Count the NaN and infinite values among the valid tokens.

        Returns
        -------
        tuple of int and tuple of int, or None
            How many there are and the index of the first in C order; None if there are none.
        """

    @abstractmethod
    def encode(self, layout: Layout, x: Raw, anchor: Bytes, residual: Bytes) -> None:
        """Write both streams, every byte of them.

        Parameters
        ----------
        layout : Layout
        x : ndarray, shape ``layout.shape``
            Finite values; tokens from ``layout.tokens`` on are not read.
        anchor, residual : ndarray of uint8
            Uninitialised; bytes that hold nothing are set to zero.
        """

    @abstractmethod
    def decode(self, layout: Layout, anchor: Bytes, residual: Bytes | None, out: Raw, dtype: DType) -> None:
        """Write the reconstruction: the anchor decode without a residual, the full decode with one.

        Parameters
        ----------
        layout : Layout
        anchor : ndarray of uint8
        residual : ndarray of uint8, optional
        out : ndarray, shape ``layout.shape``
            Raw array of `dtype`; tokens from ``layout.tokens`` on become zero.
        dtype : DType
            Of the result, which need not be that of the encoded tensor.
        """

    # Paged caches: a layout of shape (tokens, heads, head_dim) whose values lie in blocks. A backend overrides these
    # where it can follow the block table itself; by default a page is gathered at a time, never the whole sequence.

    def first_nonfinite_paged(self, layout: Layout, cache: PagedMemory) -> tuple[int, tuple[int, ...]] | None:
        """Count the NaN and infinite values of a sequence; the index is that of the gathered tensor."""
        count, first = 0, None
        for page, rows in _gathered(layout, cache):
            found = self.first_nonfinite(layout.narrowed(page, page + 1), rows)
            if found is not None:
                count += found[0]
                start = layout.span(page)[0]
                first = first or (found[1][0] + start, *found[1][1:])
        return None if first is None else (count, first)

    def encode_paged(self, layout: Layout, cache: PagedMemory, anchor: Bytes, residual: Bytes) -> None:
        """Write both streams of a sequence: the bytes of the gathered tensor."""
        for page, rows in _gathered(layout, cache):
            high, low = (_page_bytes(layout, data, page) for data in (anchor, residual))
            self.encode(layout.narrowed(page, page + 1), rows, high[0], low[1])

    def decode_paged(
        self, layout: Layout, anchor: Bytes, residual: Bytes | None, cache: PagedMemory, dtype: DType
    ) -> None:
        """Write the reconstruction of a sequence into its slots, and nothing else."""
        for page in range(layout.pages):
            part = layout.narrowed(page, page + 1)
            rows = np.empty(part.shape, dtype.raw)
            low = None if residual is None else _page_bytes(layout, residual, page)[1]
            self.decode(part, _page_bytes(layout, anchor, page)[0], low, rows, dtype)
            block, slot = _slots(layout, cache, page)
            cache.blocks[block, :, slot] = rows


def _slots(layout: Layout, cache: PagedMemory, page: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Block and slot of every token of a page."""
    block, slot = np.divmod(np.arange(*layout.span(page)), cache.blocks.shape[2])
    return np.asarray(cache.table)[block].astype(np.intp), slot


def _gathered(layout: Layout, cache: PagedMemory) -> Any:
    """Every page of a sequence, contiguous."""
    for page in range(layout.pages):
        block, slot = _slots(layout, cache, page)
        yield page, cache.blocks[block, :, slot]


def _page_bytes(layout: Layout, data: Bytes, page: int) -> tuple[Bytes, Bytes]:
    """A page's bytes if `data` is the anchor stream, and if it is the residual stream."""
    anchor, residual = (
        data[layout.page_offset(stream, page) : layout.page_offset(stream, page + 1)]  # type: ignore[arg-type]
        for stream in ("anchor", "residual")
    )
    return anchor, residual
