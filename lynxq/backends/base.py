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


class Backend(ABC):
    """An executor of the codec.

    Raw arrays hold the tensor in its own shape, with any strides, as ``uint16`` bit patterns (float16,
    bfloat16) or ``float32``. Streams are flat ``uint8`` arrays of exactly `Layout.stream_size` bytes.
    `threads` is how many threads of the host may be used; results do not depend on it.
    """

    name: str

    @abstractmethod
    def first_nonfinite(self, layout: Layout, x: Raw, *, threads: int = 1) -> tuple[int, tuple[int, ...]] | None:
        """Count the NaN and infinite values among the valid tokens.

        Returns
        -------
        tuple of int and tuple of int, or None
            How many there are and the index of the first in C order; None if there are none.
        """

    @abstractmethod
    def encode(self, layout: Layout, x: Raw, anchor: Bytes, residual: Bytes, *, threads: int = 1) -> None:
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
    def decode(
        self, layout: Layout, anchor: Bytes, residual: Bytes | None, out: Raw, dtype: DType, *, threads: int = 1
    ) -> None:
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

    def warmup(self, *dtypes: DType) -> None:  # noqa: B027 - a backend that compiles nothing has nothing to do
        """Make the first calls for some element types as fast as later ones."""


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


class PagedBackend(Backend):
    """A backend that follows the block table of a paged cache by itself.

    Layouts have shape (tokens, heads, head_dim). For other backends :mod:`lynxq.paged` gathers a page at a time.
    """

    @abstractmethod
    def first_nonfinite_paged(self, layout: Layout, cache: PagedMemory) -> tuple[int, tuple[int, ...]] | None:
        """Count the NaN and infinite values of a sequence; the index is that of the gathered tensor."""

    @abstractmethod
    def encode_paged(self, layout: Layout, cache: PagedMemory, anchor: Any, residual: Any) -> None:
        """Write both streams of a sequence: the bytes of the gathered tensor."""

    @abstractmethod
    def decode_paged(self, layout: Layout, anchor: Any, residual: Any | None, cache: PagedMemory, dtype: DType) -> None:
        """Write the reconstruction of a sequence into its slots, and nothing else."""
