"""`StoredTensor`: one tensor of an open container, read and decoded on demand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lynxq import arrays, dtypes
from lynxq.arguments import choice, integer, span
from lynxq.arrays import Array, Library
from lynxq.codec import decode
from lynxq.container.segments import Segment
from lynxq.encoded import Encoded
from lynxq.errors import MissingResidualError, ShapeError
from lynxq.format.assembler import Assembler
from lynxq.format.frames import HEADER_SIZE, KINDS, FrameHeader
from lynxq.format.header import frame_offset
from lynxq.layout import TIER_STREAMS, Layout, Stream, Tier
from lynxq.params import Params


@dataclass(frozen=True)
class _Part:
    """The tokens of a tensor that are in one segment."""

    segment: Segment
    layout: Layout
    begin: int  # tokens of the tensor before this part

    @property
    def end(self) -> int:
        return self.begin + self.layout.tokens


class StoredTensor:
    """One tensor of an open container; nothing of it is read before it is asked for.

    Its tokens are those of all segments of the container, one after the other. Every byte that is handed out or
    decoded has been compared with its checksum.
    """

    def __init__(self, name: str, index: int, segments: tuple[Segment, ...]) -> None:
        self.name = name
        self._index = index
        self._parts: list[_Part] = []
        begin = 0
        for segment in segments:
            part = _Part(segment, segment.header.tensors[name], begin)
            self._parts.append(part)
            begin = part.end
        self._tokens = begin

    @property
    def layout(self) -> Layout:
        """Layout of the tensor's first segment."""
        return self._parts[0].layout

    @property
    def params(self) -> Params:
        """Parameters of the codec."""
        return self.layout.params

    @property
    def dtype(self) -> str:
        """Name of the tensor's dtype."""
        return self.layout.dtype.name

    @property
    def token_axis(self) -> int:
        """The token axis, not negative."""
        return self.layout.token_axis

    @property
    def first_token(self) -> int:
        """Position of the first token in its sequence."""
        return self.layout.first_token

    @property
    def tokens(self) -> int:
        """Tokens in all segments."""
        return self._tokens

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape over all segments."""
        return (*self.layout.outer_shape, self._tokens, *self.layout.inner_shape)

    @property
    def segments(self) -> int:
        """Number of segments."""
        return len(self._parts)

    def segment_layout(self, segment: int) -> Layout:
        """Layout of the tokens that are in one segment."""
        return self._part(segment).layout

    @property
    def has_residual(self) -> bool:
        """Whether the container declares a residual stream; a truncated one may not have all of it."""
        return all("residual" in part.segment.places for part in self._parts)

    def tier_size(self, tier: Tier) -> int:
        """Bytes that a decode of a tier reads, frame headers left out."""
        choice("tier", tier, Tier)
        return sum(self.stream_size(stream) for stream in TIER_STREAMS[tier])

    def stream_size(self, stream: Stream) -> int:
        """Bytes of the tensor's pages of one stream, without frame headers."""
        choice("stream", stream, Stream)
        return sum(part.layout.stream_size(stream) for part in self._parts)

    def __repr__(self) -> str:
        return f"StoredTensor({self.name!r}, shape={self.shape}, dtype={self.dtype}, segments={self.segments})"

    def _part(self, segment: int | None) -> _Part:
        """The part in a segment; None will do if there is but one."""
        if segment is None and self.segments > 1:
            raise ShapeError(f"{self.name!r} has {self.segments} segments: say which one")
        return self._parts[integer("segment", segment or 0, 0, self.segments - 1)]

    # --- frames ------------------------------------------------------------------------------------

    def _place(self, part: _Part, stream: Stream, page: int) -> int:
        """Where a frame begins in its source."""
        before = part.segment.header.tensor_offsets[stream][self.name]
        return part.segment.places[stream].offset + before + frame_offset(part.layout, stream, page)

    def _anchor_checksum(self, part: _Part, page: int) -> int:
        """Checksum of an anchor page, from its frame's header alone."""
        source = part.segment.places["anchor"].source
        frame = FrameHeader.unpack(source.read(self._place(part, "anchor", page), HEADER_SIZE, "a frame header"))
        size = part.layout.page_size("anchor", page)
        frame.check_place(KINDS["anchor"], self._index, page, size, part.segment.header.identity)
        return frame.payload

    def _frames(
        self, part: _Part, stream: Stream, start: int, stop: int
    ) -> Iterator[tuple[int, FrameHeader, memoryview]]:
        """Frames of the pages from `start` to before `stop`, headers checked, payloads not yet."""
        if stream not in part.segment.places:
            raise MissingResidualError(f"the container holds no residual of {self.name!r}")
        first = frame_offset(part.layout, stream, start)
        size = frame_offset(part.layout, stream, stop) - first
        source, begin = part.segment.places[stream].source, self._place(part, stream, start)
        frames = source.read(begin, size, f"the {stream} stream of {self.name!r}")
        for page in range(start, stop):
            offset = frame_offset(part.layout, stream, page) - first
            frame = FrameHeader.unpack(frames[offset : offset + HEADER_SIZE])
            length = part.layout.page_size(stream, page)
            frame.check_place(KINDS[stream], self._index, page, length, part.segment.header.identity)
            yield page, frame, frames[offset + HEADER_SIZE : offset + HEADER_SIZE + length]

    def _gather(self, part: _Part, tier: Tier, start: int, stop: int) -> Encoded:
        """Copy pages out of their frames and check the copies, so that what was checked cannot change."""
        assembler = Assembler(part.layout, start, stop)
        for stream in TIER_STREAMS[tier]:
            # A list: sizes are checked before memory is taken.
            for _, frame, payload in list(self._frames(part, stream, start, stop)):
                assembler.put(frame, payload)
        return assembler.encoded(tier, start, stop)

    def frame(self, stream: Stream, page: int, *, segment: int | None = None) -> tuple[FrameHeader, memoryview]:
        """The frame of one page as it lies in the container: its header, and its payload, checked and not copied.

        Parameters
        ----------
        stream, page, segment
            As for :meth:`page`.
        """
        choice("stream", stream, Stream)
        part = self._part(segment)
        page = integer("page", page, 0, part.layout.pages - 1)
        _, frame, payload = next(self._frames(part, stream, page, page + 1))
        frame.check_payload(payload)
        if stream == "residual":
            frame.check_anchor(self._anchor_checksum(part, page))
        return frame, payload

    def page(self, stream: Stream, page: int, *, segment: int | None = None) -> memoryview:
        """One page as it lies in the container, checked and not copied.

        Parameters
        ----------
        stream : {"anchor", "residual"}
        page : int
            Page number in its segment.
        segment : int, optional
            Segment number; it must be given if there are several.

        Returns
        -------
        memoryview
            Read-only for a mapped file, and there at an address that is a multiple of 64; valid as long as the
            reader is open.
        """
        return self.frame(stream, page, segment=segment)[1]

    def check(self, stream: Stream, segment: int) -> Iterator[int]:
        """Compare one stream of a segment with its checksums, page by page; yields the bytes done.

        Raises
        ------
        ContainerError
            At the first thing that is wrong.
        """
        part = self._parts[segment]
        for page in range(part.layout.pages):
            for _, frame, payload in self._frames(part, stream, page, page + 1):
                frame.check_payload(payload)
                if stream == "residual":
                    frame.check_anchor(self._anchor_checksum(part, page))
                yield HEADER_SIZE + len(payload)

    # --- decoding ----------------------------------------------------------------------------------

    def encoded(self, tier: Tier = "full", *, segment: int | None = None) -> Encoded:
        """The streams of one segment, checked, as an `Encoded` with numpy streams.

        Parameters
        ----------
        tier : {"anchor", "full"}
            With "anchor" the residual is neither read nor needed.
        segment : int, optional
            Segment number; it must be given if there are several.
        """
        choice("tier", tier, Tier)
        part = self._part(segment)
        return self._gather(part, tier, 0, part.layout.pages)

    def decode(
        self,
        tier: Tier = "full",
        *,
        tokens: tuple[int, int] | None = None,
        dtype: object = None,
        out: Array | None = None,
        framework: Library = "numpy",
        backend: str | None = None,
    ) -> Array:
        """Read, check and decode the tensor, or a range of its tokens.

        Parameters
        ----------
        tier : {"anchor", "full"}
            With "anchor" no residual byte is read.
        tokens : (int, int), optional
            First token and the one after the last, counted from the tensor's beginning. Only the pages that
            cover them are read.
        dtype, out, backend
            As for :func:`lynxq.decode_anchor`. Everything is read and checked before `out` is touched.
        framework : {"numpy", "torch"}
            Library of the result if there is no `out`.

        Returns
        -------
        array
            `out`, or a new array.
        """
        choice("tier", tier, Tier)
        start, stop = (0, self.tokens) if tokens is None else span("tokens", tokens, self.tokens)
        shape = (*self.layout.outer_shape, stop - start, *self.layout.inner_shape)
        library = arrays.import_library(framework) if out is None else arrays.library_of(out)
        wanted = None if dtype is None else dtypes.named(dtype)
        target = arrays.empty(shape, wanted or self.layout.dtype, library) if out is None else out
        found = arrays.as_output(target, shape, library, wanted).dtype
        pieces = [
            (part, self._gather(part, tier, *_pages(part, start, stop)))
            for part in self._parts
            if max(part.begin, start) < min(part.end, stop)
        ]
        before = (slice(None),) * self.token_axis
        for part, numpy_piece in pieces:
            piece = numpy_piece.to(library)
            first = part.begin + piece.layout.first_token - part.layout.first_token
            low, high = max(first, start), min(first + piece.layout.tokens, stop)
            place = target[(*before, slice(low - start, high - start))]
            if (low, high) == (first, first + piece.layout.tokens):
                decode(piece, tier, out=place, backend=backend)
            else:
                whole = decode(piece, tier, dtype=found, backend=backend)
                place[...] = whole[(*before, slice(low - first, high - first))]
        return target


def _pages(part: _Part, start: int, stop: int) -> tuple[int, int]:
    """The pages of a part that cover a range of the tensor's tokens."""
    page = part.layout.params.page
    first = max(start - part.begin, 0) // page
    last = -(-(stop - part.begin) // page)
    return min(first, part.layout.pages), min(last, part.layout.pages)  # a tensor without values has no pages
