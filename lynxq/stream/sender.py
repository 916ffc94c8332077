"""`Sender`: the sending side of the wire as a state machine. Bytes in, events and bytes out, no I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from lynxq.errors import LynxqError, PeerError, ProtocolError
from lynxq.format.frames import STREAMS, Buffer
from lynxq.layout import Stream
from lynxq.stream.control import ControlQueue
from lynxq.stream.events import Cancelled, Closed, Delivered, Ended, Event, Requested
from lynxq.stream.limits import SenderLimits
from lynxq.stream.messages import Code, Hello, Role, read_name, read_reason, reason_record
from lynxq.stream.outgoing import ChangedError, Outgoing
from lynxq.stream.records import Record, RecordReader, Type
from lynxq.stream.requests import Requests
from lynxq.stream.scheduler import Scheduler
from lynxq.stream.sources import Source


def _nothing() -> None:
    """Wake nobody."""


class Sender:
    """Sends frames to one receiver, anchors first.

    A byte of a residual leaves only if no byte of an anchor can, whatever tensor or request it belongs to. Requests
    share what their class gets in equal parts. A transport asks `data_to_send` for as little as keeps the link busy:
    what it has taken cannot be overtaken any more.

    Parameters
    ----------
    limits : SenderLimits, optional
        What the receiver may make this side keep.
    wake : callable, optional
        Called, from any thread, when a source has made frames: then it is time for `data_to_send` again.

    Examples
    --------
    See :class:`Receiver`.
    """

    def __init__(self, limits: SenderLimits | None = None, *, wake: Callable[[], None] = _nothing) -> None:
        self.limits = SenderLimits() if limits is None else limits
        self.peer: Hello | None = None
        self._wake = wake
        self._readers: dict[int, RecordReader] = {}
        self._greeted: set[int] = set()
        self._control = ControlQueue()
        self._requests = Requests(self.limits)
        self._scheduler = Scheduler(self._source_failed, self._queue)
        self._ended: list[Event] = []
        self._broken = False

    # --- what comes in -----------------------------------------------------------------------------

    def receive(self, data: Buffer, lane: int = 0) -> list[Event]:
        """Take bytes that the receiver sent on a connection.

        Parameters
        ----------
        data : bytes-like
            Any number of bytes, cut anywhere.
        lane : {0, 1}
            Number of the connection; 1 is the second one, for residuals.

        Returns
        -------
        list of Event
            `Requested`, `Cancelled`, `Delivered` and `Closed`.

        Raises
        ------
        ProtocolError
            If the receiver breaks a rule. What is left to send then says so; the connection is of no more use. What it
            ended before is among :meth:`ended`.
        PeerError
            If the receiver ended the connection with an error.
        """
        if self._broken:
            raise ProtocolError("the connection has failed before")
        reader = self._readers.setdefault(lane, RecordReader(0, self.limits.max_control))
        events: list[Event] = []
        try:
            for record in reader.feed(data):
                event = self._take(record, lane)
                if event is not None:
                    events.append(event)
        except LynxqError as error:
            self._ended += [event for event in events if isinstance(event, Cancelled | Delivered)]
            self.fail(Code.PROTOCOL, str(error))
            raise
        return events

    def _take(self, record: Record, lane: int) -> Event | None:
        if lane not in self._greeted:
            self._greet(Hello.read(record), lane)
            return None
        if record.type == Type.BYE:
            return Closed(0)
        if record.type == Type.ERROR:
            raise PeerError("the receiver ended the connection: {1} (code {0})".format(*read_reason(record)))
        if record.type == Type.PING:
            return None
        if lane or record.type not in self._HANDLERS:
            raise ProtocolError(f"a receiver must not send a record of type {record.type} on connection {lane}")
        return self._HANDLERS[record.type](self, record)

    def _greet(self, hello: Hello, lane: int) -> None:
        if hello.role != Role.RECEIVER:
            raise ProtocolError("a sender must talk to a receiver")
        if lane != hello.lane or (lane and not self._belongs(hello)):
            raise ProtocolError(f"connection {lane} is not the one of its greeting, number {hello.lane}")
        self._greeted.add(lane)
        if lane == 0:
            self.peer = hello
            self._scheduler.credit("anchor", hello.anchor_limit)
            self._scheduler.credit("residual", hello.residual_limit)
        answer = Hello(
            role=Role.SENDER,
            session=hello.session,
            lane=lane,
            lanes=hello.lanes,
            max_control=self.limits.max_control,
            max_requests=self.limits.max_requests,
        )
        self._queue(answer.record(), lane)

    def _belongs(self, hello: Hello) -> bool:
        """Whether a second connection is that of the first one."""
        return self.peer is not None and (self.peer.session, self.peer.lanes) == (hello.session, hello.lanes)

    def _request(self, record: Record) -> Event | None:
        name = read_name(record)
        asked = self._requests.add(record)
        if asked is None:
            text = f"at most {self.limits.max_requests} requests are served at a time"
            self._queue(reason_record(Type.END, Code.BUSY, text, record.request))
            return None
        return Requested(record.request, name, asked.wanted)

    def _have(self, record: Record) -> None:
        self._requests.have(record)

    def _accept(self, record: Record) -> None:
        asked = self._requests.of(record)
        if asked is not None:
            asked.accepted = True
            asked.start()

    def _credit(self, record: Record) -> None:
        self._scheduler.credit(STREAMS[record.kind], record.total)

    def _again(self, record: Record) -> None:
        asked = self._requests.of(record)
        if asked is None:
            return
        if asked.sending is None:
            raise ProtocolError(f"request {record.request} asks for a page again that was never sent")
        asked.sending.again(STREAMS[record.kind], record.tensor, record.page)
        while asked.sending.lost:  # at once: who reads no answers must not make them pile up
            self._queue(asked.sending.lost.popleft())

    def _cancel(self, record: Record) -> Event | None:
        return None if self._requests.of(record) is None else self._forget(Cancelled(record.request))

    def _received(self, record: Record) -> Event | None:
        return None if self._requests.of(record) is None else self._forget(Delivered(record.request))

    _HANDLERS: ClassVar[dict[int, Callable[[Sender, Record], Event | None]]] = {
        Type.REQUEST: _request,
        Type.HAVE: _have,
        Type.ACCEPT: _accept,
        Type.CREDIT: _credit,
        Type.AGAIN: _again,
        Type.CANCEL: _cancel,
        Type.RECEIVED: _received,
    }

    # --- what the application does -----------------------------------------------------------------

    def open(self, request: int, source: Source) -> bool:
        """Answer a request with a source; returns whether it will be sent."""
        asked = self._requests.get(request)
        if asked is None or asked.sending is not None or self.peer is None:
            return False
        try:
            asked.sending = Outgoing(
                request, source, asked.wanted, asked.have, max_again=self.limits.max_again, wake=self._wake
            )
        except Exception as error:  # noqa: BLE001 - the application's code, or no source at all; only this request ends
            self._end(request, Code.FAILED, f"the source was not opened: {type(error).__name__}")
            return False
        header = asked.sending.header
        if header.size > self.peer.max_control:
            self._end(request, Code.REFUSED, f"a header of {header.size} bytes is more than the receiver takes")
            return False
        if asked.identity not in (0, header.identity):
            self._end(request, Code.CHANGED, "there are other tensors under this name than before")
            return False
        self._queue(Record(Type.OPEN, request=request, body=header.pack()))
        self._scheduler.add(asked.sending)
        asked.start()
        return True

    def refuse(self, request: int, code: int, reason: str) -> None:
        """End a request."""
        if self._requests.get(request) is not None:
            self._forget(Ended(request, code, reason))
            self._queue(reason_record(Type.END, code, reason, request))

    def _source_failed(self, sending: Outgoing, error: Exception) -> None:
        code = Code.CHANGED if isinstance(error, ChangedError) else Code.FAILED
        self._end(sending.number, code, str(error) or type(error).__name__)

    def _end(self, request: int, code: int, reason: str) -> None:
        self._ended.append(Ended(request, code, reason))
        self.refuse(request, code, reason)

    def _forget(self, event: Event) -> Event:
        self._requests.forget(event.request)
        self._scheduler.remove(event.request)
        return event

    def keepalive(self, lane: int = 0) -> None:
        """Queue a sign of life."""
        self._queue(Record(Type.PING), lane)

    def close(self) -> None:
        """Forget all requests, and queue a farewell on all connections: nothing is sent after it."""
        self._forget_all()
        for lane in self._greeted:
            self._queue(Record(Type.BYE), lane)
        self._control.close()

    def fail(self, code: int, reason: str) -> None:
        """Queue an error, instead of everything else; the connection is of no more use."""
        self._broken = True
        self._control.replace(reason_record(Type.ERROR, code, reason))
        self.lost()

    def lost(self) -> None:
        """The connections are gone: forget all requests."""
        self._broken = True
        self._forget_all()

    def _forget_all(self) -> None:
        self._ended += [self._forget(Cancelled(request)) for request in self._requests.numbers()]

    def ended(self) -> list[Event]:
        """Requests that ended since the last call, and that `receive` did not return: `Ended`, `Cancelled` if the
        connection is gone, and what the receiver ended before it broke a rule.
        """
        events, self._ended = self._ended, []
        return events

    @property
    def has_answers(self) -> bool:
        """Whether a record other than data waits for the first connection."""
        return self._control.waits(0)

    @property
    def waits_for_receiver(self) -> bool:
        """Whether, when there is nothing to send, a request goes on only if the receiver says something."""
        return self._scheduler.waits_for_receiver

    # --- what goes out -----------------------------------------------------------------------------

    def _queue(self, record: Record, lane: int = 0) -> None:
        self._control.add(record, lane)
        if self._control.size > self.limits.max_backlog:
            raise ProtocolError(f"a receiver must read answers, {self._control.size} bytes of them wait")

    def data_to_send(self, size: int = 1 << 16, lane: int = 0) -> bytes:
        """The next bytes for a connection: whole records, until there are at least `size` bytes or none are left.

        At most one record more than `size` is returned.
        """
        parts: list[bytes] = []
        taken = 0
        while taken < size:
            part = self._next(lane)
            if part is None:
                break
            parts.append(part)
            taken += len(part)
        return b"".join(parts)

    def _next(self, lane: int) -> bytes | None:
        """The next record for a connection."""
        if not self._control.waits(lane) and not self._broken and lane in self._greeted:
            data = self._next_data(lane)
            if not self._control.waits(lane):
                return data
            # A page or a request was given up on the way. No data was taken then: that is the last thing that is done.
        return self._control.take(lane)

    def _next_data(self, lane: int) -> bytes | None:
        if self.peer is None:
            return None
        anchor = self._scheduler.turn("anchor")
        if anchor is not None:  # while it waits for the first connection, nothing leaves on the second
            return self._data("anchor", anchor) if lane == 0 and not self._control.waits(0) else None
        if lane != self.peer.lanes - 1:
            return None
        residual = self._scheduler.turn("residual")
        return None if residual is None or self._control.waits(lane) else self._data("residual", residual)

    def _data(self, stream: Stream, sending: Outgoing) -> bytes:
        most = 0 if self.peer is None else self.peer.max_data
        return self._scheduler.take(stream, sending, most).pack()
