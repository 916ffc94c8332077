"""`Encoded`: a coded tensor in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from lynxq import arrays, devices
from lynxq.arguments import choice, instance, span
from lynxq.arrays import Array
from lynxq.devices import Library
from lynxq.errors import DTypeError, MissingResidualError, ShapeError
from lynxq.layout import Layout, Stream, Tier
from lynxq.params import Params


@dataclass(frozen=True, eq=False, repr=False)
class Encoded:
    """A coded tensor: its layout and its two streams.

    Made by :func:`lynxq.encode`. The streams can be sent, stored and put together again anywhere: two
    `Encoded` with the same layout and bytes decode to the same bits on every machine and backend.

    Parameters
    ----------
    layout : Layout
        Shape, dtype, parameters and the place of every byte.
    anchor : array of uint8, shape (``layout.stream_size("anchor")``,)
        Decodable alone. numpy array, torch tensor or cupy array; decodes return the same kind.
    residual : array of uint8, shape (``layout.stream_size("residual")``,), optional
        What the full decode adds; None where it has not arrived or was not kept.

    Raises
    ------
    DTypeError, ShapeError
        If a stream is not a flat array of uint8 of the layout's size.

    Examples
    --------
    >>> import numpy as np, lynxq
    >>> encoded = lynxq.encode(np.ones((512, 2, 64), np.float32), token_axis=0)
    >>> encoded
    Encoded(shape=(512, 2, 64), dtype=float32, 4.97 + 3.97 bits per element)
    >>> encoded.anchor_only().residual is None
    True
    """

    layout: Layout
    anchor: Array
    residual: Array | None = None

    def __post_init__(self) -> None:
        instance("layout", self.layout, Layout, DTypeError)
        for stream, data in (("anchor", self.anchor), ("residual", self.residual)):
            if data is None and stream == "residual":
                continue
            size = devices.as_bytes(data, stream).size
            expected = self.layout.stream_size(stream)  # type: ignore[arg-type]
            if size != expected:
                raise ShapeError(f"{stream} must have {expected} bytes for {self.layout.shape}, got {size}")
        other = self.framework if self.residual is None else devices.library_of(self.residual)
        if other != self.framework:
            raise DTypeError(f"anchor and residual must be of one kind, got {self.framework} and {other}")

    @classmethod
    def empty(cls, layout: Layout, framework: Library = "numpy") -> Encoded:
        """An `Encoded` with uninitialised streams, to be passed to ``encode(..., out=)`` or filled with received bytes.

        Parameters
        ----------
        layout : Layout
            As :meth:`Layout.of` makes it.
        framework : {"numpy", "torch"}
            Library of the streams.
        """
        instance("layout", layout, Layout, DTypeError)
        library = arrays.import_library(framework)
        anchor, residual = (
            arrays.empty_bytes(layout.stream_size(stream), library) for stream in ("anchor", "residual")
        )
        return cls(layout, anchor, residual)

    @cached_property
    def framework(self) -> Library:
        """The library of the streams, and so of what a decode returns: "numpy", "torch" or "cupy"."""
        return devices.library_of(self.anchor)

    @property
    def params(self) -> Params:
        """Parameters of the codec."""
        return self.layout.params

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return self.layout.shape

    @property
    def dtype(self) -> str:
        """Name of the tensor's dtype: "float32", "float16" or "bfloat16"."""
        return self.layout.dtype.name

    @property
    def token_axis(self) -> int:
        """The token axis, not negative."""
        return self.layout.token_axis

    @property
    def nbytes(self) -> int:
        """Bytes of the streams that are there."""
        return sum(self.layout.stream_size(stream) for stream in self._streams)

    @property
    def bits_per_element(self) -> float:
        """Bits per valid value, counting every byte of the streams that are there; 0 for an empty tensor."""
        return 8 * self.nbytes / self.layout.elements if self.layout.elements else 0.0

    @property
    def _streams(self) -> tuple[Stream, ...]:
        return ("anchor",) if self.residual is None else ("anchor", "residual")

    def residual_for(self, tier: Tier) -> Array | None:
        """The residual for the full tier, None for the anchor tier; raises `MissingResidualError`."""
        choice("tier", tier, Tier)
        if tier == "anchor":
            return None
        if self.residual is None:
            raise MissingResidualError("a full decode needs the residual stream, and this Encoded has none")
        return self.residual

    def anchor_only(self) -> Encoded:
        """The same tensor without its residual; shares memory."""
        return replace(self, residual=None)

    def to(self, framework: Library) -> Encoded:
        """The same tensor with streams of another library, on the CPU.

        Shares memory where it can: read-only numpy streams are copied for torch, which knows no read-only memory.

        Parameters
        ----------
        framework : {"numpy", "torch"}
            Library of the streams.
        """
        library = arrays.import_library(framework)
        if library == self.framework:
            return self
        anchor, residual = (
            None if data is None else arrays.from_numpy(arrays.as_bytes(data, "stream"), library)
            for data in (self.anchor, self.residual)
        )
        return replace(self, anchor=anchor, residual=residual)

    def to_host(self) -> Encoded:
        """The same tensor with streams in the memory of the CPU: copies of cupy arrays as numpy arrays, CUDA torch
        tensors as CPU tensors. Waits for the device; what is on the CPU already is shared.
        """
        if not devices.on_device(self.anchor):
            return self
        residual = None if self.residual is None else devices.to_host(self.residual)
        return replace(self, anchor=devices.to_host(self.anchor), residual=residual)

    def pages(self, start: int, stop: int) -> Encoded:
        """The pages from `start` to before `stop` as an `Encoded` of their own; shares memory.

        Parameters
        ----------
        start, stop : int
            Page numbers, ``0 <= start <= stop <= layout.pages``.

        Raises
        ------
        ShapeError
            If the page numbers are out of range.
        """
        start, stop = span("pages", (start, stop), self.layout.pages)

        def cut(stream: Stream, data: Array) -> Array:
            return data[self.layout.page_offset(stream, start) : self.layout.page_offset(stream, stop)]

        residual = None if self.residual is None else cut("residual", self.residual)
        return Encoded(self.layout.narrowed(start, stop), cut("anchor", self.anchor), residual)

    def __repr__(self) -> str:
        elements = max(self.layout.elements, 1)
        bits = " + ".join(f"{8 * self.layout.stream_size(stream) / elements:.2f}" for stream in self._streams)
        return f"Encoded(shape={self.shape}, dtype={self.dtype}, {bits} bits per element)"
