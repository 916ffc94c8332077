"""Writing one segment: the tensors to write, the header that they need, and their frames in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from lynxq import arrays
from lynxq.container.header import Header
from lynxq.container.segments import stored_layout
from lynxq.encoded import Encoded
from lynxq.errors import DTypeError, MissingResidualError
from lynxq.frames import KINDS, Buffer, FrameHeader, checksum
from lynxq.layout import Layout, Stream

#: Reads (offset, size) of a stream while a segment is written.
Pages = Callable[[int, int], Buffer]


@dataclass(frozen=True)
class Entry:
    """A tensor to write: its layout and its streams."""

    layout: Layout
    streams: Mapping[Stream, Pages]


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


def write_all(file: BinaryIO, data: Buffer) -> None:
    """Write every byte, also to an unbuffered file, which may take a part at a time."""
    view = memoryview(data)
    while view:
        written = file.write(view)
        view = view[len(view) if written is None else written :]


def write_streams(file: BinaryIO, header: Header, entries: Mapping[str, Entry], streams: Sequence[Stream]) -> None:
    """Write the frames of some streams, tensor by tensor and page by page."""
    for stream in streams:
        for index, entry in enumerate(entries.values()):
            for page in range(entry.layout.pages):
                size = entry.layout.page_size(stream, page)
                payload = entry.streams[stream](entry.layout.page_offset(stream, page), size)
                anchor = 0
                if stream != "anchor":
                    place = entry.layout.page_offset("anchor", page), entry.layout.page_size("anchor", page)
                    anchor = checksum(entry.streams["anchor"](*place))
                frame = FrameHeader(KINDS[stream], index, page, size, checksum(payload), anchor, header.identity)
                write_all(file, frame.pack())
                write_all(file, payload)
