"""The segments of a container: finding them in a source, and whether one continues another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from lynxq.arguments import shown
from lynxq.container.source import Source
from lynxq.errors import (
    MissingAnchorError,
    ResidualMismatchError,
    SegmentError,
    TrailingBytesError,
    TruncatedError,
)
from lynxq.format.frames import KINDS
from lynxq.format.header import MAGIC, PREAMBLE_SIZE, Header, Preamble
from lynxq.layout import Layout, Stream


@dataclass(frozen=True)
class Place:
    """Where a stream of a segment begins."""

    source: Source
    offset: int


@dataclass(frozen=True)
class Segment:
    """A segment: its header, and where each of its streams is. They may lie in two files."""

    header: Header
    places: Mapping[Stream, Place]


@dataclass(frozen=True)
class Walk:
    """The segments of one source, where each ends, and whether the source has all of their bytes.

    The first `anchor_end` bytes are the shortest prefix that every anchor can be decoded from.
    """

    segments: tuple[Segment, ...]
    ends: tuple[int, ...]
    anchor_end: int
    complete: bool

    @property
    def consumed(self) -> int:
        """Where the last segment ends."""
        return self.ends[-1]


def walk(source: Source, *, allow_trailing: bool) -> Walk:
    """Read all segment headers of a source; the last segment's residual may be cut off.

    Raises
    ------
    TruncatedError
        If a header or the anchors of a segment are not all there. With `allow_trailing` a segment after the first
        that is cut off so early counts as trailing bytes.
    TrailingBytesError
        If something else than a segment follows a segment, unless `allow_trailing`.
    ContainerError
        For anything that is wrong with a header.
    """
    segments: list[Segment] = []
    ends: list[int] = []
    offset = anchor_end = 0
    while not segments or offset < source.size:
        source.expect_header(offset)
        if segments and bytes(source.read(offset, min(len(MAGIC), source.size - offset), "magic bytes")) != MAGIC:
            if allow_trailing:
                break
            raise TrailingBytesError(f"{source.size - offset} bytes follow the last segment, at offset {offset}")
        try:
            segment = _segment(source, offset)
        except TruncatedError:
            if segments and allow_trailing:
                break
            raise
        segments.append(segment)
        if "anchor" in segment.places:
            anchor_end = segment.places["anchor"].offset + dict(segment.header.streams)[KINDS["anchor"]]
        offset += segment.header.segment_size
        ends.append(offset)
    for before, after in pairwise(segments):
        check_continues(before.header, after.header)
    return Walk(tuple(segments), tuple(ends), anchor_end, offset <= source.size)


def _segment(source: Source, offset: int) -> Segment:
    """The segment that begins at an offset; its anchors must be there."""
    preamble = Preamble.unpack(source.read(offset, min(PREAMBLE_SIZE, source.size - offset), "a preamble"))
    rest = source.read(offset + PREAMBLE_SIZE, preamble.header_size - PREAMBLE_SIZE, "a segment header")
    header = Header.unpack(preamble, rest)
    places = {}
    for stream, kind in KINDS.items():
        begin = header.stream_offset(kind)
        if begin is not None:
            places[stream] = Place(source, offset + begin)
    if "anchor" in places:
        end = places["anchor"].offset + dict(header.streams)[KINDS["anchor"]]
        if end > source.size:
            raise TruncatedError("the anchor stream of a segment", end, source.size)
    return Segment(header, places)


def join(anchors: Walk, residuals: Walk | None) -> tuple[Segment, ...]:
    """Segments with the streams of an anchor source and, if there is one, a residual source.

    Raises
    ------
    MissingAnchorError
        If the anchor source has no anchor stream.
    ResidualMismatchError
        If the sources do not describe the same segments.
    """
    for segment in anchors.segments:
        if "anchor" not in segment.places:
            raise MissingAnchorError("the container has no anchor stream: open the anchor file, this as its residual")
    if residuals is None:
        return anchors.segments
    # An append writes the residual file first, so it may be one segment ahead.
    described = [segment.header.identity for segment in residuals.segments[: len(anchors.segments)]]
    if described != [segment.header.identity for segment in anchors.segments]:
        raise ResidualMismatchError("the residual container describes other tensors than the anchor container")
    joined = []
    for first, second in zip(anchors.segments, residuals.segments, strict=False):
        if "residual" not in second.places:
            raise ResidualMismatchError("the residual container has no residual stream")
        joined.append(Segment(first.header, {**first.places, "residual": second.places["residual"]}))
    return tuple(joined)


def check_continues(before: Header, after: Header) -> None:
    """Raise `SegmentError` unless `after` holds the next token range of the tensors of `before`."""
    if list(before.tensors) != list(after.tensors):
        raise SegmentError(
            f"a segment must have tensors {shown(list(before.tensors))}, got {shown(list(after.tensors))}"
        )
    if before.metadata != after.metadata:
        raise SegmentError(f"a segment must have metadata {shown(before.metadata)}, got {shown(after.metadata)}")
    for name, first in before.tensors.items():
        second = after.tensors[name]
        for what, expected, found in (
            ("dtype", first.dtype.name, second.dtype.name),
            ("params", first.params, second.params),
            ("token axis", first.token_axis, second.token_axis),
            ("head_dim", first.head_dim, second.head_dim),
            ("outer axes", first.outer_shape, second.outer_shape),
            ("inner axes", first.inner_shape, second.inner_shape),
            ("first token", first.first_token + first.tokens, second.first_token),
        ):
            if expected != found:
                raise SegmentError(f"{what} of {name!r} must be {expected} to continue it, got {found}")


def stored_layout(layout: Layout) -> Layout:
    """The layout under which a container keeps a tensor: with its valid tokens only."""
    return replace(layout, shape=(*layout.outer_shape, layout.tokens, *layout.inner_shape))
