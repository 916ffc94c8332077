"""One request as its sender sees it: which frames are still to go, and which bytes of them come next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from lynxq.errors import ContainerError, ProtocolError, TransferError
from lynxq.format.frames import HEADER_SIZE, KINDS
from lynxq.format.header import Header
from lynxq.layout import Stream
from lynxq.stream.records import Record, Type
from lynxq.stream.sources import Frame, Source

#: Checksums of the pages that a receiver has already, by tensor and page.
Have = Mapping[Stream, Mapping[tuple[int, int], int]]


class ChangedError(TransferError):
    """A page differs from the one that the receiver got earlier."""


class State(Enum):
    """Whether a stream of a request has bytes that can leave now."""

    READY = "ready"
    NO_CREDIT = "no credit"
    NOTHING = "nothing"


@dataclass
class _Sending:
    """A frame of which a part has left."""

    frame: Frame
    head: bytes
    total: int
    offset: int = 0

    def take(self, most: int) -> bytes:
        """The next bytes of the frame."""
        begin, end = self.offset, min(self.offset + most, self.total)
        self.offset = end
        payload = self.frame.payload[max(begin - HEADER_SIZE, 0) : max(end - HEADER_SIZE, 0)]
        return self.head[begin:end] + bytes(payload)


@dataclass
class _Queue:
    """The frames of one stream that are to go: those asked for again, then all by position."""

    position: int = 0
    again: deque[tuple[int, int]] = field(default_factory=deque)
    asked: dict[tuple[int, int], int] = field(default_factory=dict)
    current: _Sending | None = None


class Outgoing:
    """What is left to send of one request.

    Parameters
    ----------
    number : int
        Of the request.
    source : Source
    wanted : tuple of str
        Streams that the receiver wants.
    have : mapping
        What it has.
    max_again : int
        How often a page is sent again.
    wake : callable
        Called, from any thread, when the source has more.
    """

    def __init__(
        self,
        number: int,
        source: Source,
        wanted: tuple[Stream, ...],
        have: Have,
        *,
        max_again: int,
        wake: Callable[[], None],
    ) -> None:
        self.number = number
        present = dict(source.header.streams)
        self.streams: tuple[Stream, ...] = tuple(stream for stream in wanted if KINDS[stream] in present)
        self.header = Header.of(source.header.metadata, source.header.tensors, self.streams)
        self.started: set[Stream] = set()
        self.lost: deque[Record] = deque()
        self._waits: dict[Stream, bool] = dict.fromkeys(self.streams, False)
        self._source = source
        self._layouts = list(source.header.tensors.values())
        self._have = have
        self._max_again = max_again
        self._queues = {stream: _Queue() for stream in self.streams}
        self.close = source.watch(wake)

    def again(self, stream: Stream, tensor: int, page: int) -> None:
        """Send a page once more; raises `ProtocolError` if there is no such page."""
        queue = self._queues.get(stream)
        if queue is None or tensor >= len(self._layouts) or page >= self._layouts[tensor].pages:
            raise ProtocolError(f"{stream} page {page} of tensor {tensor} is asked for again, and does not exist")
        times = queue.asked[tensor, page] = queue.asked.get((tensor, page), 0) + 1
        if times > self._max_again:
            self._lose(stream, tensor, page)
        else:
            queue.again.append((tensor, page))

    def _lose(self, stream: Stream, tensor: int, page: int) -> None:
        self.lost.append(Record(Type.LOST, kind=KINDS[stream], request=self.number, tensor=tensor, page=page))

    def state(self, stream: Stream, credit: int) -> State:
        """Whether bytes of a stream can leave; a frame only begins if the credit covers all of it.

        Raises
        ------
        ChangedError
            If the source holds something else than what the receiver has.
        TransferError
            If the source has failed.
        """
        if stream not in self.started:
            return State.NOTHING
        queue = self._queues[stream]
        self._waits[stream] = False
        while queue.current is None:
            place = queue.again[0] if queue.again else self._place(queue)
            if place is None:
                self._waits[stream] = queue.position < self._source.pages
                return State.NOTHING
            known = None if queue.again else self._have[stream].get(place)
            if known is None and HEADER_SIZE + self._layouts[place[0]].page_size(stream, place[1]) > credit:
                return State.NO_CREDIT
            try:
                frame = self._source.frame(stream, *place)
            except ContainerError:
                self._lose(stream, *place)
                self._advance(queue)
                continue
            if frame is None:
                self._waits[stream] = True
                return State.NOTHING
            self._advance(queue)
            if known is None:
                queue.current = _Sending(frame, frame.header.pack(), HEADER_SIZE + len(frame.payload))
            elif known != frame.header.payload:
                raise ChangedError(f"{stream} page {place[1]} of tensor {place[0]} is not the one that was sent before")
        if queue.current.offset == 0 and queue.current.total > credit:
            return State.NO_CREDIT
        return State.READY

    def _place(self, queue: _Queue) -> tuple[int, int] | None:
        return self._source.place(queue.position) if queue.position < self._source.pages else None

    @staticmethod
    def _advance(queue: _Queue) -> None:
        if queue.again:
            queue.again.popleft()
        else:
            queue.position += 1

    @property
    def waits_for_source(self) -> bool:
        """Whether pages are waited for that the source has not made yet."""
        return any(self._waits.values())

    def begun(self, stream: Stream) -> bool:
        """Whether a part of a frame has left, so that credit for all of it is taken."""
        queue = self._queues.get(stream)
        return queue is not None and queue.current is not None and queue.current.offset > 0

    def take(self, stream: Stream, most: int) -> Record:
        """The next data record of a stream that is ready."""
        queue = self._queues[stream]
        current = queue.current
        if current is None:
            raise RuntimeError("a record is taken from a stream that is not ready")
        offset, frame = current.offset, current.frame.header
        body = current.take(most)
        if current.offset == current.total:
            queue.current = None
        return Record(
            Type.DATA, KINDS[stream], self.number, frame.tensor, frame.page, offset, current.total, body
        )  # fmt: skip
