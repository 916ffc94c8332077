"""`Outgoing`: one request at the sender: its frames, and what of them is still to be written. No NIXL."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from lynxq.errors import SourceFailedError
from lynxq.format.frames import HEADER_SIZE
from lynxq.format.header import Header
from lynxq.layout import Stream
from lynxq.stream.nixl.agent import Bytes
from lynxq.stream.nixl.places import places, slices
from lynxq.stream.sources import Source


@dataclass
class Region:
    """The frames of one stream, the slices that wait to be written, and the address at the receiver."""

    memory: Bytes
    waiting: deque[tuple[int, int]]
    registration: Any = None
    address: int = 0


@dataclass
class Outgoing:
    """A request that is offered or being written.

    Attributes
    ----------
    peer : str or None
        The receiver, once it has answered.
    receiver : int
        Its number of the request.
    busy : dict
        Writes of each stream that are under way.
    written, taken, cancelled : bool
        Whether a write was begun, whether the receiver has seen all, and whether it wants no more.
    reason : str or None
        Why the request fails.
    early : set of str
        Peers that cancelled before it was known which of them is the receiver.
    """

    request: int
    header: Header
    regions: dict[Stream, Region]
    peer: str | None = None
    receiver: int = 0
    busy: dict[Stream, int] = field(default_factory=lambda: {"anchor": 0, "residual": 0})
    written: bool = False
    taken: bool = False
    cancelled: bool = False
    reason: str | None = None
    early: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, request: int, source: Source, slice_bytes: int) -> Self:
        """A request with copies of all frames of a source; raises `SourceFailedError` if one does not exist yet."""
        regions = {}
        for stream in source.header.stream_names:
            waiting = deque(slices(places(source.header, stream), slice_bytes))
            regions[stream] = Region(_gathered(source, stream), waiting)
        return cls(request, source.header, regions)

    @property
    def waiting(self) -> int:
        """Slices that wait to be written."""
        return sum(len(region.waiting) for region in self.regions.values())

    def drop(self) -> None:
        """Begin no further write."""
        for region in self.regions.values():
            region.waiting.clear()


def _gathered(source: Source, stream: Stream) -> Bytes:
    frames = places(source.header, stream)
    memory = np.empty(frames[-1].end if frames else 0, np.uint8)
    for place in frames:
        frame = source.frame(stream, place.tensor, place.page)
        if frame is None:
            raise SourceFailedError(f"{stream} page {place.page} of tensor {place.tensor} does not exist yet")
        body = place.begin + HEADER_SIZE
        memory[place.begin : body] = np.frombuffer(frame.header.pack(), np.uint8)
        memory[body : place.end] = np.frombuffer(frame.payload, np.uint8)
    return memory
