"""`Assembler`: the streams of one tensor, put together from its frames in any order. No I/O."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lynxq.arguments import choice, span
from lynxq.encoded import Encoded
from lynxq.errors import FrameError, IncompleteError
from lynxq.format.frames import STREAMS, Buffer, FrameHeader
from lynxq.layout import TIER_STREAMS, Layout, Stream, Tier


class Assembler:
    """Takes frames of the pages from `start` to before `stop` of a tensor, and gives what they hold as `Encoded`.

    Pages are copied, and the copies are what is compared with the checksums: nothing can change them afterwards.
    Memory of a stream is taken when its first page comes.

    Parameters
    ----------
    layout : Layout
        Of the whole tensor.
    start, stop : int
        The pages to be put together; all by default.
    """

    def __init__(self, layout: Layout, start: int = 0, stop: int | None = None) -> None:
        self.layout = layout
        self.start, self.stop = span("pages", (start, layout.pages if stop is None else stop), layout.pages)
        self._memory: dict[Stream, NDArray[np.uint8]] = {}
        self._checksums: dict[Stream, dict[int, int]] = {"anchor": {}, "residual": {}}

    def put(self, frame: FrameHeader, payload: Buffer) -> None:
        """Take a page.

        Raises
        ------
        FrameError
            If it is none of these pages, or its size is not theirs.
        AnchorChecksumError, ResidualChecksumError
            If its bytes are not those that were written; it then counts as missing.
        ResidualMismatchError
            If it refines another anchor page than the one that is here.
        """
        stream, page = STREAMS[frame.kind], frame.page
        if not self.start <= page < self.stop or len(payload) != self.layout.page_size(stream, page):
            raise FrameError(f"{stream} page {page} of {len(payload)} bytes does not belong to {self.layout.shape}")
        memory = self._memory.get(stream)
        if memory is None:
            memory = self._memory[stream] = np.empty(self._offset(stream, self.stop), np.uint8)
        begin = self._offset(stream, page)
        copy = memory[begin : begin + len(payload)]
        for later in (stream, "residual"):  # a residual is good for the anchor that it came with
            self._checksums[later].pop(page, None)
        copy[:] = np.frombuffer(payload, np.uint8)
        frame.check_payload(copy)
        if stream == "residual":
            frame.check_anchor(self._anchor(page))
        self._checksums[stream][page] = frame.payload

    def _offset(self, stream: Stream, page: int) -> int:
        """Where a page begins in our memory of a stream."""
        return self.layout.page_offset(stream, page) - self.layout.page_offset(stream, self.start)

    def _anchor(self, page: int) -> int:
        found = self._checksums["anchor"].get(page)
        if found is None:
            raise IncompleteError(f"residual page {page} came before its anchor page")
        return found

    def has(self, stream: Stream, page: int) -> bool:
        """Whether a page is here."""
        return page in self._checksums[stream]

    def count(self, stream: Stream) -> int:
        """How many pages of a stream are here."""
        return len(self._checksums[stream])

    def encoded(self, tier: Tier = "full", start: int | None = None, stop: int | None = None) -> Encoded:
        """Some pages as an `Encoded` that shares memory with this object.

        Parameters
        ----------
        tier : {"full", "anchor"}
        start, stop : int, optional
            Page numbers of the tensor; all pages that this object takes by default.

        Raises
        ------
        IncompleteError
            If one of the pages is not here.
        """
        choice("tier", tier, Tier)
        first, last = span(
            "pages", (self.start if start is None else start, self.stop if stop is None else stop), self.stop
        )
        streams: dict[Stream, Any] = {}
        for stream in TIER_STREAMS[tier]:
            missing = next((page for page in range(first, last) if not self.has(stream, page)), None)
            if missing is not None:
                raise IncompleteError(f"{stream} page {missing} of {self.layout.shape} is not here")
            memory = self._memory.get(stream, np.empty(0, np.uint8))
            streams[stream] = memory[self._offset(stream, first) : self._offset(stream, last)]
        whole = (first, last) == (0, self.layout.pages)
        layout = self.layout if whole else self.layout.narrowed(first, last)
        return Encoded(layout, streams["anchor"], streams.get("residual"))
