"""`Incoming`: one request at the receiver: its memory, and what was found in it. No NIXL."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from lynxq.errors import LynxqError
from lynxq.format.frames import HEADER_SIZE, KINDS, FrameHeader
from lynxq.format.header import Header
from lynxq.layout import Stream
from lynxq.stream.events import (
    AnchorPage,
    AnchorReady,
    Damaged,
    Done,
    Event,
    RequestOpened,
    ResidualPage,
    ResidualReady,
    TensorOpened,
)
from lynxq.stream.nixl.agent import Bytes
from lynxq.stream.nixl.places import Place, places
from lynxq.stream.received import Received


class Region(NamedTuple):
    """Memory for one stream, its frames, and the numbers of those that are still to come."""

    memory: Bytes
    frames: list[Place]
    missing: set[int]

    @classmethod
    def of(cls, header: Header, stream: Stream) -> Region:
        """Memory for a stream of a segment."""
        frames = places(header, stream)
        return cls(np.empty(frames[-1].end if frames else 0, np.uint8), frames, set(range(len(frames))))


class Incoming:
    """A request that is being written.

    Parameters
    ----------
    request : int
        Its number here.
    header : Header
        Of the segment at the sender.
    wanted : list of str
        The streams that are asked for.
    """

    def __init__(self, request: int, header: Header, wanted: list[Stream]) -> None:
        self.request, self.header = request, header
        self.regions = {stream: Region.of(header, stream) for stream in wanted}
        # The streams that come; frames name the segment as it is at the sender, whose description is the same.
        self.kept = Header.of(header.metadata, header.tensors, wanted)
        self.received = Received(self.kept)
        self._names = list(header.tensors)
        self._left = Counter(
            (stream, place.tensor) for stream, region in self.regions.items() for place in region.frames
        )
        self._damaged: set[tuple[Stream, int]] = set()
        self._bad = 0
        self._early: list[tuple[int, int]] = []

    @property
    def complete(self) -> bool:
        """Whether all frames were written."""
        return not any(region.missing for region in self.regions.values())

    def opened(self) -> Iterator[Event]:
        """The events of a request that has just been opened."""
        yield RequestOpened(self.request, self.kept)
        for tensor, (name, layout) in enumerate(self.header.tensors.items()):
            yield TensorOpened(self.request, tensor, name, layout)
        for stream in self.regions:
            for tensor, layout in enumerate(self.header.tensors.values()):
                if not layout.pages:
                    yield self._ready(stream, tensor)

    def done(self) -> Done:
        """The last event."""
        return Done(self.request, self._bad)

    def written(self, stream: Stream, begin: int, end: int) -> Iterator[Event]:
        """Check the frames of a slice that was written. Residuals wait for all anchors, whatever came first."""
        anchors = self.regions["anchor"]
        if stream == "residual" and anchors.missing:
            self._early.append((begin, end))
            return
        region = self.regions[stream]
        for index in range(bisect_left(region.frames, (begin,)), len(region.frames)):
            if region.frames[index].end > end:
                break
            if index in region.missing:  # once: what is written again has been handed out already
                region.missing.remove(index)
                yield from self._page(stream, region, region.frames[index])
        if stream == "anchor" and not anchors.missing:
            early, self._early = self._early, []
            for each in early:
                yield from self.written("residual", *each)

    def _page(self, stream: Stream, region: Region, place: Place) -> Iterator[Event]:
        name, pages = self._names[place.tensor], (place.page, place.page + 1)
        header = bytes(region.memory[place.begin : place.begin + HEADER_SIZE])
        payload = memoryview(region.memory)[place.begin + HEADER_SIZE : place.end]
        kind = AnchorPage if stream == "anchor" else ResidualPage
        try:
            frame = FrameHeader.unpack(header)
            frame.check_place(KINDS[stream], place.tensor, place.page, len(payload), self.header.identity)
            event = kind(self.request, place.tensor, name, place.page, frame, payload)
            self.received.add(event)  # copies, and checks the copy
            copy: Any = self.received.encoded(name, "anchor" if stream == "anchor" else "full", pages)
        except LynxqError as error:
            self._damaged.add((stream, place.tensor))
            self._bad += 1
            yield Damaged(self.request, place.tensor, name, place.page, stream, error)
        else:
            yield replace(event, payload=memoryview(copy.anchor if stream == "anchor" else copy.residual))
        self._left[stream, place.tensor] -= 1
        if not self._left[stream, place.tensor] and (stream, place.tensor) not in self._damaged:
            yield self._ready(stream, place.tensor)

    def _ready(self, stream: Stream, tensor: int) -> Event:
        kind = AnchorReady if stream == "anchor" else ResidualReady
        return kind(self.request, tensor, self._names[tensor])
