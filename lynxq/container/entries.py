"""Writing one segment: the tensors to write, the header that they need, and their frames in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import RawIOBase
from typing import Any, BinaryIO

from lynxq import arrays
from lynxq.container.atomic import write_all
from lynxq.container.segments import stored_layout
from lynxq.encoded import Encoded
from lynxq.errors import DTypeError, MissingResidualError, WriterError
from lynxq.format.frames import KINDS, Buffer, FrameHeader, checksum
from lynxq.format.header import Header
from lynxq.layout import Layout, Stream

#: Reads (offset, size) of a stream while a segment is written.
Pages = Callable[[int, int], Buffer]


@dataclass(frozen=True)
class Entry:
    """A tensor to write: its layout, its streams, and the checksums of their pages where these are known."""

    layout: Layout
    streams: Mapping[Stream, Pages]
    checksums: Mapping[Stream, Sequence[int]] = field(default_factory=dict)

    def page(self, stream: Stream, page: int) -> Buffer:
        """The bytes of one page."""
        return self.streams[stream](self.layout.page_offset(stream, page), self.layout.page_size(stream, page))

    def checksum(self, stream: Stream, page: int, payload: Buffer | None = None) -> int:
        """Checksum of a page; raises `WriterError` if `payload` is not what a known checksum was made of."""
        known = self.checksums.get(stream)
        if known is None:
            return checksum(self.page(stream, page) if payload is None else payload)
        if payload is not None and checksum(payload) != known[page]:
            raise WriterError(f"{stream} page {page} was damaged in a temporary file, or shared by two threads")
        return known[page]

    def frame(
        self, stream: Stream, tensor: int, page: int, segment: int, anchor: int | None = None
    ) -> tuple[FrameHeader, Buffer]:
        """Header and payload of the frame of one page.

        Parameters
        ----------
        stream : {"anchor", "residual"}
        tensor, page : int
            Position of this tensor in its segment, and page of it.
        segment : int
            Identity of the segment.
        anchor : int, optional
            Checksum of the anchor page that a residual page refines, where it is known.
        """
        payload = self.page(stream, page)
        own, refined = self.checksum(stream, page, payload), 0
        if stream == "residual":
            refined = self.checksum("anchor", page) if anchor is None else anchor
        return FrameHeader(KINDS[stream], tensor, page, len(payload), own, refined, segment), payload

    def page_checksums(self) -> dict[Stream, list[int]]:
        """Checksums of all pages."""
        pages = range(self.layout.pages)
        return {stream: [checksum(self.page(stream, page)) for page in pages] for stream in self.streams}


def _memory(data: Any) -> Pages:
    view = memoryview(arrays.as_bytes(data, "stream"))

    def read(offset: int, size: int) -> memoryview:
        return view[offset : offset + size]

    return read


def entry_of(name: str, encoded: object) -> Entry:
    """The entry of an encoded tensor; raises `DTypeError` for anything else."""
    if not isinstance(encoded, Encoded):
        raise DTypeError(f"{name!r} must be an Encoded, got {type(encoded).__name__}")
    streams = {"anchor": encoded.anchor, "residual": encoded.residual}
    return Entry(
        stored_layout(encoded.layout),
        {stream: _memory(data) for stream, data in streams.items() if data is not None},  # type: ignore[misc]
    )


def entries_of(tensors: Mapping[str, Encoded]) -> dict[str, Entry]:
    """The entries of named tensors; raises `DTypeError` for anything but a mapping of names to `Encoded`."""
    if not isinstance(tensors, Mapping):
        raise DTypeError(f"tensors must be a mapping of names to Encoded, got {type(tensors).__name__}")
    return {name: entry_of(name, encoded) for name, encoded in tensors.items()}


def common_streams(entries: Mapping[str, Entry]) -> tuple[Stream, ...]:
    """The streams that all tensors have; raises `MissingResidualError` if only some have a residual."""
    without = [name for name, entry in entries.items() if "residual" not in entry.streams]
    if not without:
        return ("anchor", "residual")
    if len(without) < len(entries):
        raise MissingResidualError(f"all tensors or none must have a residual, {without[0]!r} has none")
    return ("anchor",)


def header_of(entries: Mapping[str, Entry], metadata: Mapping[str, str] | None, streams: Sequence[Stream]) -> Header:
    """The header of a segment that holds these streams of the entries."""
    return Header.of(metadata or {}, {name: entry.layout for name, entry in entries.items()}, streams)


def frames_of(
    header: Header, entries: Mapping[str, Entry], streams: Sequence[Stream]
) -> Iterator[tuple[FrameHeader, Buffer]]:
    """Headers and payloads of the frames of some streams, tensor by tensor and page by page."""
    anchors: dict[tuple[int, int], int] = {}
    for stream in streams:
        for index, entry in enumerate(entries.values()):
            for page in range(entry.layout.pages):
                # Anchors that are written elsewhere, as those of a split container, are not known here.
                frame, payload = entry.frame(stream, index, page, header.identity, anchors.get((index, page)))
                if stream == "anchor":
                    anchors[index, page] = frame.payload
                yield frame, payload


def write_streams(
    file: BinaryIO | RawIOBase, header: Header, entries: Mapping[str, Entry], streams: Sequence[Stream]
) -> None:
    """Write the frames of some streams, tensor by tensor and page by page."""
    for frame, payload in frames_of(header, entries, streams):
        write_all(file, frame.pack())
        write_all(file, payload)
