"""The segment header as bytes: preamble, table of streams, description. No I/O; normative text in docs/format.md."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from lynxq.errors import (
    HeaderChecksumError,
    HeaderError,
    LimitError,
    NotLynxError,
    ReservedError,
    TextModeError,
    TruncatedError,
    VersionError,
)
from lynxq.format.description import pack_description, sorted_metadata, unpack_description
from lynxq.format.frames import HEADER_SIZE as FRAME_HEADER_SIZE
from lynxq.format.frames import KINDS, STREAMS, Buffer, check_kind, checksum
from lynxq.layout import Layout, Stream, align

MAGIC = b"\x89LYNX\r\n\x1a"
VERSION = (1, 0)
PREAMBLE_SIZE = 64
ALIGNMENT = 64

#: Caps of the format. They bound what a reader allocates before it has seen a tensor.
MAX_HEADER = 1 << 26
MAX_STREAMS = 64

_PREAMBLE = struct.Struct("<8sBBHIQQQQQ")
_CHECKSUM = struct.Struct("<Q")
_STREAM = struct.Struct("<HHIQ")
#: Bytes of a row of the stream table.
STREAM_SIZE = _STREAM.size


@dataclass(frozen=True)
class Preamble:
    """The first 64 bytes of a segment: what must be known, and trusted, before anything else is read."""

    minor: int
    streams: int
    description_size: int
    header_size: int
    segment_size: int
    description: int
    rest: int

    def pack(self) -> bytes:
        """The 64 bytes."""
        body = _PREAMBLE.pack(
            MAGIC,
            VERSION[0],
            self.minor,
            self.streams,
            0,
            self.description_size,
            self.header_size,
            self.segment_size,
            self.description,
            self.rest,
        )
        return body + _CHECKSUM.pack(checksum(body))

    @classmethod
    def unpack(cls, data: Buffer) -> Preamble:
        """Check and read a preamble; see the errors of :func:`Header.unpack`."""
        view = memoryview(data)[:PREAMBLE_SIZE]
        _check_magic(bytes(view[: len(MAGIC)]))
        if len(view) < PREAMBLE_SIZE:
            raise TruncatedError("a segment's preamble", PREAMBLE_SIZE, len(view))
        fields = _PREAMBLE.unpack_from(view)
        major, minor, streams, reserved = fields[1:5]
        if major != VERSION[0]:
            raise VersionError(f"format version {major}.{minor} is not supported, this reader knows {VERSION[0]}.x")
        if _CHECKSUM.unpack_from(view, _PREAMBLE.size)[0] != checksum(view[: _PREAMBLE.size]):
            raise HeaderChecksumError("the checksum of a segment's preamble does not match its bytes")
        if reserved:
            raise ReservedError(f"the reserved field of a preamble must be zero, got {reserved:#x}")
        result = cls(minor, streams, *fields[5:])
        if result.header_size > MAX_HEADER:
            raise LimitError(f"a header must be at most {MAX_HEADER} bytes, got {result.header_size}")
        if streams > MAX_STREAMS:
            raise LimitError(f"a segment must have at most {MAX_STREAMS} streams, got {streams}")
        expected = align(PREAMBLE_SIZE + streams * STREAM_SIZE + result.description_size, ALIGNMENT)
        if result.header_size != expected:
            raise HeaderError(f"header size must be {expected} for its parts, got {result.header_size}")
        return result


def _check_magic(found: bytes) -> None:
    if found == MAGIC:
        return
    if len(found) < len(MAGIC) and MAGIC.startswith(found):
        raise TruncatedError("a segment's magic bytes", len(MAGIC), len(found))
    if found[:5] in (MAGIC[:5], b"\x09LYNX"):
        raise TextModeError(f"line ends or high bits were changed in transfer: magic bytes are {found!r}")
    raise NotLynxError(f"a segment must begin with {MAGIC!r}, got {found!r}")


@dataclass(frozen=True)
class Header:
    """A segment header.

    Attributes
    ----------
    metadata : dict of str to str
        What the user says of the tensors; sorted by key.
    tensors : dict of str to Layout
        In the order of their frames.
    streams : tuple of (int, int)
        Kind and size in bytes of every stream that follows, in order.
    minor : int
        Minor version.
    """

    metadata: Mapping[str, str]
    tensors: Mapping[str, Layout]
    streams: tuple[tuple[int, int], ...]
    minor: int = VERSION[1]

    @classmethod
    def of(cls, metadata: Mapping[str, str], tensors: Mapping[str, Layout], streams: Sequence[Stream]) -> Header:
        """The header of a segment with these tensors and streams; raises `LimitError` beyond the caps."""
        header = cls(
            sorted_metadata(metadata),
            dict(tensors),
            tuple(
                (KINDS[stream], sum(framed_size(layout, stream) for layout in tensors.values())) for stream in streams
            ),
        )
        header.pack()
        return header

    @cached_property
    def description(self) -> bytes:
        """Metadata and tensors as bytes."""
        return pack_description(self.metadata, self.tensors)

    @cached_property
    def identity(self) -> int:
        """Checksum of the description: what binds frames to their segment, however streams are split up."""
        return checksum(self.description)

    @cached_property
    def size(self) -> int:
        """Bytes of the header."""
        return align(PREAMBLE_SIZE + len(self.streams) * STREAM_SIZE + len(self.description), ALIGNMENT)

    @cached_property
    def segment_size(self) -> int:
        """Bytes of the segment: header and all streams."""
        return self.size + sum(size for _, size in self.streams)

    @property
    def stream_names(self) -> tuple[Stream, ...]:
        """The streams of known kinds."""
        return tuple(STREAMS[kind] for kind, _ in self.streams if kind in STREAMS)

    @cached_property
    def tensor_offsets(self) -> Mapping[Stream, Mapping[str, int]]:
        """Where each tensor's frames begin, counted from the beginning of their stream."""
        offsets: dict[Stream, dict[str, int]] = {}
        for stream in KINDS:
            sizes = [framed_size(layout, stream) for layout in self.tensors.values()]
            offsets[stream] = dict(zip(self.tensors, accumulate(sizes, initial=0), strict=False))
        return offsets

    def stream_offset(self, kind: int) -> int | None:
        """Where a stream begins in its segment; None if it is not there."""
        offset = self.size
        for present, size in self.streams:
            if present == kind:
                return offset
            offset += size
        return None

    def pack(self) -> bytes:
        """The header's bytes, a multiple of 64."""
        rest = b"".join(_STREAM.pack(kind, 0, 0, size) for kind, size in self.streams) + self.description
        rest = rest.ljust(self.size - PREAMBLE_SIZE, b"\0")
        if self.size > MAX_HEADER:
            raise LimitError(f"a header must be at most {MAX_HEADER} bytes, got {self.size}")
        preamble = Preamble(
            self.minor,
            len(self.streams),
            len(self.description),
            self.size,
            self.segment_size,
            self.identity,
            checksum(rest),
        )
        return preamble.pack() + rest

    @classmethod
    def unpack(cls, preamble: Preamble, rest: Buffer) -> Header:
        """Check and read what follows a preamble.

        Parameters
        ----------
        preamble : Preamble
        rest : buffer
            The ``preamble.header_size - 64`` bytes after it.

        Raises
        ------
        HeaderChecksumError
            If the checksum does not fit.
        HeaderError
            If a rule of the format is broken: bytes that no writer makes, sizes that do not fit the tensors.
        StreamKindError, ReservedError, LimitError
            For an unknown critical stream, a reserved field that is not zero, a count beyond the caps.
        """
        view = memoryview(rest)
        if checksum(view) != preamble.rest:
            raise HeaderChecksumError("the checksum of a segment header does not match its bytes")
        streams = []
        for index in range(preamble.streams):
            kind, reserved, reserved_too, size = _STREAM.unpack_from(view, index * STREAM_SIZE)
            if reserved or reserved_too:
                raise ReservedError(f"reserved fields of stream {kind} must be zero, got {reserved or reserved_too:#x}")
            check_kind(kind)
            streams.append((kind, size))
        begin = preamble.streams * STREAM_SIZE
        end = begin + preamble.description_size
        metadata, tensors = unpack_description(view[begin:end])
        header = cls(metadata, tensors, tuple(streams), preamble.minor)
        header._check(preamble)
        if header.pack() != preamble.pack() + bytes(view):
            raise HeaderError("a header must have the one form that writers give it")
        return header

    def _check(self, preamble: Preamble) -> None:
        kinds = [kind for kind, _ in self.streams]
        if any(a >= b for a, b in pairwise(kinds)):
            raise HeaderError(f"stream kinds must increase, got {kinds}")
        for kind, size in self.streams:
            if kind not in STREAMS:
                if size % ALIGNMENT:
                    raise HeaderError(f"stream {kind} must have a multiple of {ALIGNMENT} bytes, got {size}")
                continue
            expected = sum(framed_size(layout, STREAMS[kind]) for layout in self.tensors.values())
            if size != expected:
                raise HeaderError(f"stream {kind} must have {expected} bytes for its tensors, got {size}")
        if preamble.segment_size != self.segment_size:
            raise HeaderError(f"segment size must be {self.segment_size}, got {preamble.segment_size}")


def framed_size(layout: Layout, stream: Stream) -> int:
    """Bytes of a tensor's frames of one stream."""
    return layout.stream_size(stream) + layout.pages * FRAME_HEADER_SIZE


def frame_offset(layout: Layout, stream: Stream, page: int) -> int:
    """Byte offset of a page's frame among a tensor's frames; `layout.pages` gives their size."""
    return layout.page_offset(stream, page) + page * FRAME_HEADER_SIZE
