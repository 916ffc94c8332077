"""The frame: one page of one stream of one tensor. The same bytes on disk and on the wire.

A frame is a header of 64 bytes and a payload, the page as it stands in its stream. The normative text is
docs/format.md.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from lynxq.errors import (
    AnchorChecksumError,
    ContainerError,
    FrameError,
    ReservedError,
    ResidualChecksumError,
    ResidualMismatchError,
    StreamKindError,
    TruncatedError,
)
from lynxq.layout import Stream

MAGIC = b"LXFR"
HEADER_SIZE = 64

#: Stream kinds. From `ANCILLARY` on, a reader that does not know a kind skips it; below, it refuses it.
KINDS: dict[Stream, int] = {"anchor": 0, "residual": 1}
STREAMS: dict[int, Stream] = {kind: stream for stream, kind in KINDS.items()}
ANCILLARY = 0x8000

_DAMAGE: dict[int, tuple[type[ContainerError], str]] = {
    KINDS["anchor"]: (AnchorChecksumError, "anchor"),
    KINDS["residual"]: (ResidualChecksumError, "residual"),
}

_HEADER = struct.Struct("<4sHHIIQQQQQ")
_CHECKSUM = struct.Struct("<Q")

#: What holds bytes.
Buffer = bytes | bytearray | memoryview | np.ndarray[Any, np.dtype[np.uint8]]


def checksum(data: Buffer) -> int:
    """xxh3-64 with seed 0."""
    return xxhash.xxh3_64_intdigest(data)


def check_kind(kind: int) -> bool:
    """Whether a stream kind is known; raises `StreamKindError` for a critical one that is not."""
    if kind in STREAMS:
        return True
    if kind < ANCILLARY:
        raise StreamKindError(f"stream kind {kind} is critical, and this reader does not know it")
    return False


@dataclass(frozen=True)
class FrameHeader:
    """The header of a frame.

    Attributes
    ----------
    kind : int
        0 anchor, 1 residual.
    tensor, page : int
        Position in the segment's table of tensors, and page of that tensor.
    size : int
        Bytes of the payload.
    payload : int
        Checksum of the payload.
    anchor : int
        Checksum of the payload of the anchor frame that this frame refines; 0 in an anchor frame.
    segment : int
        Identity of the segment's description, see `lynxq.format.header`.
    """

    kind: int
    tensor: int
    page: int
    size: int
    payload: int
    anchor: int
    segment: int

    def pack(self) -> bytes:
        """The 64 bytes of the header."""
        body = _HEADER.pack(
            MAGIC, self.kind, 0, self.tensor, self.page, self.size, self.payload, self.anchor, self.segment, 0
        )
        return body + _CHECKSUM.pack(checksum(body))

    @classmethod
    def unpack(cls, data: Buffer) -> FrameHeader:
        """Read a header from the first 64 bytes of `data`.

        Raises
        ------
        TruncatedError
            If there are fewer.
        FrameError
            If the magic bytes or the checksum do not fit.
        ReservedError
            If a reserved field is not zero.
        StreamKindError
            If the kind is critical and not known.
        """
        view = memoryview(data)[:HEADER_SIZE]
        if len(view) < HEADER_SIZE:
            raise TruncatedError("a frame header", HEADER_SIZE, len(view))
        magic, kind, reserved, tensor, page, size, payload, anchor, segment, reserved_too = _HEADER.unpack_from(view)
        if magic != MAGIC:
            raise FrameError(f"a frame must begin with {MAGIC!r}, got {magic!r}")
        if _CHECKSUM.unpack_from(view, _HEADER.size)[0] != checksum(view[: _HEADER.size]):
            raise FrameError("the checksum of a frame header does not match its bytes")
        if reserved or reserved_too:
            raise ReservedError(f"reserved fields of a frame header must be zero, got {reserved or reserved_too:#x}")
        check_kind(kind)
        if kind == KINDS["anchor"] and anchor:
            raise ReservedError(f"an anchor frame must name no other anchor, got {anchor:#x}")
        return cls(kind, tensor, page, size, payload, anchor, segment)

    def check_place(self, kind: int, tensor: int, page: int, size: int, segment: int) -> None:
        """Raise `FrameError` unless this is the header of exactly that frame."""
        for name, found, expected in (
            ("kind", self.kind, kind),
            ("tensor", self.tensor, tensor),
            ("page", self.page, page),
            ("payload size", self.size, size),
            ("segment", self.segment, segment),
        ):
            if found != expected:
                raise FrameError(f"{name} of a frame must be {expected} at its place, got {found}")

    def check_payload(self, payload: Buffer) -> None:
        """Raise an error of the frame's kind unless the payload is the one that was written."""
        if checksum(payload) == self.payload:
            return
        error, name = _DAMAGE.get(self.kind, (FrameError, f"kind {self.kind}"))
        raise error(f"{name} page {self.page} of tensor {self.tensor} does not match its checksum")

    def check_anchor(self, anchor: int) -> None:
        """Raise `ResidualMismatchError` unless this frame refines the anchor page with that checksum."""
        if self.anchor != anchor:
            raise ResidualMismatchError(
                f"residual page {self.page} of tensor {self.tensor} belongs to another anchor page "
                f"({self.anchor:#018x}, not {anchor:#018x})"
            )
