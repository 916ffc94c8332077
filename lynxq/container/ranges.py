"""Which bytes of a container a decode reads, for sources that fetch before they are asked."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from lynxq.container.segments import Segment
from lynxq.container.source import Source
from lynxq.format.frames import Buffer
from lynxq.format.header import frame_offset
from lynxq.layout import TIER_STREAMS, Tier, ceil_div

#: The offset of the first byte, and that of the byte after the last one.
Range = tuple[int, int]


def needed(
    segments: Sequence[Segment], name: str, tier: Tier, tokens: tuple[int, int] | None = None
) -> list[tuple[Source, Range]]:
    """The ranges that a decode of a tensor reads behind the headers, in the order in which it reads them.

    A residual that is not there is left out: that is for the decode to report.
    """
    found = []
    begin = 0
    for segment in segments:
        layout = segment.header.tensors[name]
        page = layout.params.page
        low, high = (0, layout.tokens) if tokens is None else (tokens[0] - begin, tokens[1] - begin)
        low, high = max(low, 0), min(high, layout.tokens)
        first, last = low // page, min(ceil_div(high, page), layout.pages)
        begin += layout.tokens
        for stream in TIER_STREAMS[tier]:
            place = segment.places.get(stream)
            if place is not None and low < high:
                base = place.offset + segment.header.tensor_offsets[stream][name]
                ends = (base + frame_offset(layout, stream, number) for number in (first, last))
                found.append((place.source, (next(ends), next(ends))))
    return found


def merged(ranges: Iterable[Range]) -> list[Range]:
    """The same bytes in as few ranges as possible: no byte is added to close a gap."""
    found: list[Range] = []
    for begin, end in sorted(ranges):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        elif begin < end:
            found.append((begin, end))
    return found


class HeldSource(Source):
    """A source of which some ranges are held in memory; others are missing, unless a subclass can get them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._held: dict[int, memoryview] = {}
        self._lock = threading.Lock()

    def hold(self, offset: int, data: Buffer) -> None:
        """Keep the bytes at an offset until `release`."""
        with self._lock:
            self._held[offset] = memoryview(data).cast("B")

    def release(self, offset: int) -> None:
        """Let go of what is held at an offset; what was read of it lives on."""
        with self._lock:
            self._held.pop(offset, None)

    def _read(self, offset: int, size: int) -> memoryview:
        with self._lock:
            for begin, data in self._held.items():
                if begin <= offset and offset + size <= begin + len(data):
                    return data[offset - begin : offset - begin + size]
        return self._missing(offset, size)

    def _missing(self, offset: int, size: int) -> memoryview:
        raise LookupError(f"bytes {offset} to {offset + size} are not held")

    def close(self) -> None:
        """Let go of everything."""
        super().close()
        with self._lock:
            self._held.clear()
