"""A segment header that came from a peer: checked against what we take before memory is spent on it."""

from __future__ import annotations

import struct

from lynxq.errors import HeaderError, LimitError
from lynxq.format.frames import HEADER_SIZE, KINDS, STREAMS, Buffer
from lynxq.format.header import PREAMBLE_SIZE, STREAM_SIZE, Header, Preamble
from lynxq.layout import Layout, Stream
from lynxq.stream.limits import ReceiverLimits


def read_header(data: Buffer, wanted: tuple[Stream, ...], limits: ReceiverLimits) -> Header:
    """Read a segment header.

    Parameters
    ----------
    data : buffer
    wanted : tuple of str
        The streams that may come: no others, and not residuals alone.
    limits : ReceiverLimits

    Raises
    ------
    LimitError
        If it announces more than `limits` allow.
    ContainerError
        For everything else that can be wrong with a header.
    """
    view = memoryview(data)
    preamble = Preamble.unpack(view)
    if len(view) != preamble.header_size:
        raise HeaderError(f"a header must have {preamble.header_size} bytes, got {len(view)}")
    _check_count(view, preamble, limits)
    header = Header.unpack(preamble, view[PREAMBLE_SIZE:])
    kinds = [kind for kind, _ in header.streams]
    if kinds not in [[KINDS[stream] for stream in wanted[: count + 1]] for count in range(len(wanted))]:
        raise HeaderError(f"streams must be the first of {wanted}, got kinds {kinds}")
    size = sum(size for _, size in header.streams)
    if size > limits.max_request_bytes:
        raise LimitError(f"a request must have at most {limits.max_request_bytes} bytes, got {size}")
    for kind in kinds:
        stream = STREAMS[kind]
        window = limits.anchor_window if stream == "anchor" else limits.residual_window
        for name, layout in header.tensors.items():
            frame = largest_frame(layout, stream)
            if frame > window:
                raise LimitError(f"a frame must fit a window of {window} bytes, {stream}s of {name!r} have {frame}")
    return header


def _check_count(view: memoryview, preamble: Preamble, limits: ReceiverLimits) -> None:
    """Look at the number of tensors before they are read: each may cost a table of thresholds."""
    place = PREAMBLE_SIZE + preamble.streams * STREAM_SIZE + 4
    if place + 4 <= len(view):
        tensors = struct.unpack_from("<I", view, place)[0]
        if tensors > limits.max_tensors:
            raise LimitError(f"a request must have at most {limits.max_tensors} tensors, got {tensors}")


def largest_frame(layout: Layout, stream: Stream) -> int:
    """Bytes of the largest frame of a tensor; only the first and the last page differ from the others."""
    pages = {page for page in (0, 1, layout.pages - 1) if 0 <= page < layout.pages}
    return max((HEADER_SIZE + layout.page_size(stream, page) for page in pages), default=0)
