"""Bytes of other schemes in lynxq's frames, so that all schemes use the same transport with the same checksums.

A tensor of one token whose values are kept verbatim is its bytes, and nothing else: an anchor stream of one page,
without ranges, centres or codes, and an empty residual. So what a baseline stores travels as such a tensor, at a cost
of the alignment of pages (64 bytes) and of the frame's header, as for any page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lynxq.arrays import Array
from lynxq.baselines import CodedBaseline, Context, Scheme
from lynxq.encoded import Encoded
from lynxq.errors import ShapeError
from lynxq.layout import Layout, ceil_div
from lynxq.params import Params

_VERBATIM = Params(sink_tokens=1)


@dataclass(frozen=True)
class Part:
    """An array that a scheme stores: where it is in the bytes, and what it is."""

    name: str
    start: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def stop(self) -> int:
        """Byte after the last one."""
        return self.start + int(np.prod(self.shape)) * self.dtype.itemsize


@dataclass(frozen=True)
class Carrier:
    """How the parts of a tensor, coded by a scheme, lie in a tensor of lynxq.

    Both sides make it from shapes alone, with :meth:`of`; nothing but the parts is sent.
    """

    scheme: Scheme
    context: Context
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, scheme: Scheme, like: Array, *, token_axis: int) -> Carrier:
        """The carrier of a scheme for tensors of the shape and dtype of `like`, whose values do not matter."""
        coded = scheme.encode(like, token_axis=token_axis)
        parts, start = [], 0
        for name, array in coded.parts.items():
            parts.append(Part(name, start, array.shape, array.dtype))
            start = parts[-1].stop
        return cls(scheme, coded.context, tuple(parts))

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return self.parts[-1].stop if self.parts else 0

    @property
    def layout(self) -> Layout:
        """Of the tensor that is sent."""
        return Layout.of(_VERBATIM, (1, ceil_div(self.nbytes, 2)), "float16", token_axis=0)

    def pack(self, coded: CodedBaseline) -> Encoded:
        """What a scheme stores of a tensor, as a tensor of lynxq.

        Raises
        ------
        ShapeError
            If the parts are not of the expected shapes and dtypes, as where scales do not fit into float16.
        """
        layout = self.layout
        stream = np.zeros(layout.stream_size("anchor"), np.uint8)
        for part in self.parts:
            array = coded.parts[part.name]
            if (array.shape, array.dtype) != (part.shape, part.dtype):
                raise ShapeError(
                    f"part {part.name!r} of {self.scheme.name} must be {part.dtype} of shape {part.shape}, "
                    f"got {array.dtype} of shape {array.shape}"
                )
            stream[part.start : part.stop] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return Encoded(layout, stream, np.empty(0, np.uint8))

    def unpack(self, encoded: Encoded) -> Array:
        """The tensor that the scheme reconstructs from what arrived, as a torch tensor."""
        stream: NDArray[np.uint8] = np.asarray(encoded.anchor)
        parts: Mapping[str, NDArray[Any]] = {
            part.name: stream[part.start : part.stop].view(part.dtype).reshape(part.shape) for part in self.parts
        }
        return CodedBaseline(self.scheme, self.context, "torch", parts).decode()
