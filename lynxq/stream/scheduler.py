"""Which bytes leave next: anchors before residuals, fair shares among requests, within the receiver's credit."""

from __future__ import annotations

from collections.abc import Callable

from lynxq.errors import ProtocolError
from lynxq.layout import Stream
from lynxq.stream.outgoing import Outgoing, State
from lynxq.stream.records import HEADER_SIZE, Record
from lynxq.stream.shares import Shares

STREAMS: tuple[Stream, ...] = ("anchor", "residual")


class Scheduler:
    """The requests of one receiver that have something to send, and the credit for it.

    Parameters
    ----------
    failed : callable
        Called with a request and the error when its source raises one; it has to be removed then.
    lost : callable
        Called with records that say that a page cannot be sent.
    """

    def __init__(self, failed: Callable[[Outgoing, Exception], None], lost: Callable[[Record], None]) -> None:
        self._failed = failed
        self._lost = lost
        self._requests: dict[int, Outgoing] = {}
        self._limit: dict[Stream, int] = dict.fromkeys(STREAMS, 0)
        self._used: dict[Stream, int] = dict.fromkeys(STREAMS, 0)
        self._shares: dict[Stream, Shares] = {stream: Shares() for stream in STREAMS}

    def credit(self, stream: Stream, limit: int) -> None:
        """Take the receiver's limit for the bytes of frames of a stream; raises `ProtocolError` if it falls."""
        if limit < self._limit[stream]:
            raise ProtocolError(f"{stream} credit must not fall, got {limit} after {self._limit[stream]}")
        self._limit[stream] = limit

    def add(self, sending: Outgoing) -> None:
        """Take a request in."""
        self._requests[sending.number] = sending

    def remove(self, request: int) -> None:
        """Forget a request."""
        self._requests.pop(request, None)
        for shares in self._shares.values():
            shares.forget(request)

    @property
    def waits_for_receiver(self) -> bool:
        """Whether there is a request that goes on only if the receiver says something."""
        return any(not sending.waits_for_source for sending in self._requests.values())

    def turn(self, stream: Stream) -> Outgoing | None:
        """The request whose turn it is to send bytes of a stream, None if no byte can leave."""
        shares, credit = self._shares[stream], self._limit[stream] - self._used[stream]
        waits = False  # a frame waits for credit: no other frame may take it away
        for request in shares.order(self._requests):
            sending = self._requests[request]
            if waits and not sending.begun(stream):
                continue
            state = self._state(sending, stream, credit)
            if state is State.READY:
                return sending
            waits = waits or state is State.NO_CREDIT
            if state is State.NOTHING:
                shares.idle(request)
        return None

    def _state(self, sending: Outgoing, stream: Stream, credit: int) -> State:
        try:
            state = sending.state(stream, credit)
        except Exception as error:  # noqa: BLE001 - whatever a source raises, only its request ends
            self._failed(sending, error)
            return State.NOTHING
        while sending.lost:
            self._lost(sending.lost.popleft())
        return state

    def take(self, stream: Stream, sending: Outgoing, most: int) -> Record:
        """The next data record of the request whose turn it is, with a body of at most so many bytes."""
        record = sending.take(stream, most)
        if record.offset == 0:
            self._used[stream] += record.total
        self._shares[stream].charge(sending.number, HEADER_SIZE + len(record.body))
        return record
