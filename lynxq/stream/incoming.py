"""One request as its receiver sees it: which frames are here, whole and checked, and which are to be sent again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from lynxq.errors import ContainerError, IncompleteError, LynxqError, ProtocolError
from lynxq.format.frames import HEADER_SIZE, KINDS, STREAMS, FrameHeader
from lynxq.format.header import Header
from lynxq.layout import Layout, Stream
from lynxq.stream.delivery import Delivery
from lynxq.stream.events import (
    AnchorPage,
    AnchorReady,
    Damaged,
    Done,
    Event,
    RequestOpened,
    ResidualPage,
    ResidualReady,
    Retried,
    TensorOpened,
)
from lynxq.stream.messages import pack_checksums
from lynxq.stream.records import Record, Type
from lynxq.stream.windows import Window

#: A page of a stream: stream, tensor, page.
Key = tuple[Stream, int, int]


@dataclass
class _Arriving:
    """A frame of which a part is here."""

    data: bytearray
    filled: int = 0


@dataclass(frozen=True)
class _Whole:
    """A frame that is here, whole and equal to its checksum."""

    frame: FrameHeader
    payload: memoryview

    @property
    def size(self) -> int:
        return HEADER_SIZE + len(self.payload)


class Incoming:
    """What has arrived of one request. It outlives connections.

    Parameters
    ----------
    number, name, wanted
        Of the request.
    retries : int
        How often a damaged page is asked for again.
    delivery, windows
        Where pages are handed to, and where the bytes of frames are accounted for.
    """

    def __init__(
        self,
        number: int,
        name: str,
        wanted: tuple[Stream, ...],
        *,
        retries: int,
        delivery: Delivery,
        windows: Mapping[Stream, Window],
    ) -> None:
        self.number = number
        self.name = name
        self.wanted = wanted
        self.header: Header | None = None
        self.answers: deque[Record] = deque()
        self.done = False
        self._retries = retries
        self._delivery = delivery
        self._windows = windows
        self._layouts: list[Layout] = []
        self._names: list[str] = []
        self._arriving: dict[Key, _Arriving] = {}
        self._held: dict[Key, _Whole] = {}  # residuals that wait for their anchors
        self._here: dict[Key, int] = {}  # checksums of pages that were handed over
        self._gone: set[Key] = set()  # pages that are given up
        self._failures: dict[Key, int] = {}
        self._left: dict[tuple[Stream, int], int] = {}  # pages of a tensor that are to come
        self._all_left = 0

    def open(self, header: Header) -> None:
        """The header is here, for the first time."""
        self.header = header
        self._names, self._layouts = list(header.tensors), list(header.tensors.values())
        self._left = {
            (STREAMS[kind], tensor): layout.pages
            for kind, _ in header.streams
            for tensor, layout in enumerate(self._layouts)
        }
        self._all_left = sum(self._left.values())
        self._delivery.tell(RequestOpened(self.number, header))
        for tensor, (name, layout) in enumerate(header.tensors.items()):
            self._delivery.tell(TensorOpened(self.number, tensor, name, layout))
        for stream, tensor in self._left:
            self._ready(stream, tensor)
        self._finish()

    def request(self, most: int) -> Iterator[Record]:
        """The records that ask for this request on a new connection, with what is here already.

        Parameters
        ----------
        most : int
            Bytes of a record's body.
        """
        kind = KINDS[self.wanted[-1]]
        identity = 0 if self.header is None else self.header.identity
        yield Record(Type.REQUEST, kind=kind, request=self.number, total=identity, body=self.name.encode())
        if self.header is None:
            return
        held = ((key, whole.frame.payload) for key, whole in self._held.items())
        for (stream, tensor, page), values in _runs(dict(chain(self._here.items(), held)), most // 8):
            yield Record(
                Type.HAVE, KINDS[stream], self.number, tensor, page, body=pack_checksums(values)
            )  # fmt: skip
        yield Record(Type.ACCEPT, request=self.number)

    # --- arrival -----------------------------------------------------------------------------------

    def data(self, record: Record) -> None:
        """Take a part of a frame, whose bytes are accounted for; raises `ProtocolError` if it cannot come here."""
        key = (STREAMS[record.kind], record.tensor, record.page)
        if record.offset == 0:
            self._begin(key, record.total)
        arriving = self._arriving.get(key)
        end = record.offset + len(record.body)
        if arriving is None or arriving.filled != record.offset or not record.offset < end <= len(arriving.data):
            raise ProtocolError(f"bytes {record.offset} to {end} of {_shown(key)} do not continue it")
        if record.total != len(arriving.data):
            raise ProtocolError(f"{_shown(key)} must have {len(arriving.data)} bytes, got {record.total}")
        arriving.data[record.offset : end] = record.body
        arriving.filled = end
        if end == len(arriving.data):
            del self._arriving[key]
            self._arrived(key, memoryview(arriving.data).toreadonly())

    def _begin(self, key: Key, total: int) -> None:
        stream, tensor, page = key
        self._check_exists(key)
        size = HEADER_SIZE + self._layouts[tensor].page_size(stream, page)
        if total != size:
            raise ProtocolError(f"{_shown(key)} must have {size} bytes, got {total}")
        if key in self._arriving or key in self._here or key in self._held:
            raise ProtocolError(f"{_shown(key)} came twice")
        self._arriving[key] = _Arriving(bytearray(total))

    def _check_exists(self, key: Key) -> None:
        stream, tensor, page = key
        if (stream, tensor) not in self._left or page >= self._layouts[tensor].pages:
            raise ProtocolError(f"{_shown(key)} does not exist in request {self.number}")

    def _arrived(self, key: Key, data: memoryview) -> None:
        """A frame is here as a whole: hand it over, keep it for later, or ask for it again."""
        stream, tensor, page = key
        if self.header is None:
            raise ProtocolError(f"{_shown(key)} came before the header")
        if key in self._gone:
            self._windows[stream].free(len(data))
            return
        try:
            frame = FrameHeader.unpack(data[:HEADER_SIZE])
            frame.check_place(KINDS[stream], tensor, page, len(data) - HEADER_SIZE, self.header.identity)
            frame.check_payload(data[HEADER_SIZE:])
        except ContainerError as error:
            self._windows[stream].free(len(data))
            self._retry(key, error)
            return
        whole = _Whole(frame, data[HEADER_SIZE:])
        if stream == "anchor":
            self._hand(key, whole)
            held = self._held.pop(("residual", tensor, page), None)
            if held is not None:
                self._refine(("residual", tensor, page), held)
        elif ("anchor", tensor, page) in self._here:
            self._refine(key, whole)
        else:
            self._held[key] = whole
        self._finish()

    def _refine(self, key: Key, whole: _Whole) -> None:
        """Hand a residual over if it belongs to the anchor that is here."""
        try:
            whole.frame.check_anchor(self._here["anchor", key[1], key[2]])
        except ContainerError as error:
            self._windows["residual"].free(whole.size)
            self._retry(key, error)
            return
        self._hand(key, whole)

    def _hand(self, key: Key, whole: _Whole) -> None:
        stream, tensor, page = key
        kind = AnchorPage if stream == "anchor" else ResidualPage
        event = kind(self.number, tensor, self._names[tensor], page, whole.frame, whole.payload)
        self._delivery.hand(stream, event, whole.size)
        self._here[key] = whole.frame.payload
        self._failures.pop(key, None)
        self._settle(stream, tensor)

    def _retry(self, key: Key, error: LynxqError) -> None:
        stream, tensor, page = key
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        if failures > self._retries:
            self.give_up(key, error)
            return
        self._delivery.tell(Retried(self.number, tensor, self._names[tensor], page, stream, error))
        self.answers.append(Record(Type.AGAIN, KINDS[stream], self.number, tensor, page))

    def lose(self, key: Key) -> None:
        """The sender says that a page cannot come."""
        self._check_exists(key)
        if key not in self._here:
            self.give_up(key, IncompleteError(f"{_shown(key)} is damaged where it is kept"))

    def give_up(self, key: Key, error: LynxqError) -> None:
        """Do without a page; without an anchor page also without its residual."""
        stream, tensor, page = key
        if key in self._gone:
            return
        self._gone.add(key)
        self._failures.pop(key, None)
        held = self._held.pop(key, None)
        if held is not None:
            self._windows[stream].free(held.size)
        self._delivery.hand(stream, Damaged(self.number, tensor, self._names[tensor], page, stream, error))
        self._settle(stream, tensor)
        if stream == "anchor" and ("residual", tensor) in self._left:
            self.give_up(("residual", tensor, page), error)
        self._finish()

    # --- completion --------------------------------------------------------------------------------

    def _settle(self, stream: Stream, tensor: int) -> None:
        self._left[stream, tensor] -= 1
        self._all_left -= 1
        self._ready(stream, tensor)

    def _ready(self, stream: Stream, tensor: int) -> None:
        """Say so if all pages of a tensor were handed over."""
        if self._left[stream, tensor] or any(key[:2] == (stream, tensor) for key in self._gone):
            return
        kind = AnchorReady if stream == "anchor" else ResidualReady
        self._delivery.hand(stream, kind(self.number, tensor, self._names[tensor]))

    def _finish(self) -> None:
        if self.done or self._all_left:
            return
        self.done = True
        self._delivery.hand("residual", Done(self.number, len(self._gone)))
        self.answers.append(Record(Type.RECEIVED, request=self.number))

    def disconnect(self) -> None:
        """The connections are gone: what has arrived in part must come again."""
        for (stream, _, _), arriving in self._arriving.items():
            self._windows[stream].free(len(arriving.data))
        self._arriving.clear()
        self.answers.clear()

    def end(self, event: Event) -> None:
        """Nothing more comes: what waits to be taken can still be taken, and after it comes this event."""
        self.done = True
        self.disconnect()
        for (stream, _, _), whole in self._held.items():
            self._windows[stream].free(whole.size)
        self._held.clear()
        self._delivery.hand("residual", event)


def _shown(key: Key) -> str:
    return f"{key[0]} page {key[2]} of tensor {key[1]}"


def _runs(checksums: Mapping[Key, int], most: int) -> Iterator[tuple[Key, list[int]]]:
    """Consecutive pages of a tensor and their checksums, at most so many at a time."""
    first: Key | None = None
    values: list[int] = []
    for key in sorted(checksums):
        if first is not None and key == (*first[:2], first[2] + len(values)) and len(values) < most:
            values.append(checksums[key])
            continue
        if first is not None:
            yield first, values
        first, values = key, [checksums[key]]
    if first is not None:
        yield first, values
