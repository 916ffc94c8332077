"""`Sender`: the sending side of the wire as a state machine. Bytes in, events and bytes out, no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from lynxq.errors import LynxqError, PeerError, ProtocolError
from lynxq.format.frames import STREAMS, Buffer
from lynxq.layout import Stream
from lynxq.stream.events import Cancelled, Closed, Delivered, Ended, Event, Requested
from lynxq.stream.limits import SenderLimits
from lynxq.stream.messages import Code, Hello, Role, read_checksums, read_name, read_reason, reason_record
from lynxq.stream.outgoing import ChangedError, Outgoing, State
from lynxq.stream.records import HEADER_SIZE, Record, RecordReader, Type
from lynxq.stream.shares import Shares
from lynxq.stream.sources import Source

_STREAMS: tuple[Stream, ...] = ("anchor", "residual")


def _nothing() -> None:
    """Wake nobody."""


@dataclass
class _Asked:
    """A request: what the receiver said of it, and what is sent once there is a source."""

    wanted: tuple[Stream, ...]
    identity: int
    have: dict[Stream, dict[tuple[int, int], int]] = field(default_factory=lambda: {"anchor": {}, "residual": {}})
    accepted: bool = False
    sending: Outgoing | None = None

    def start(self) -> None:
        """Let those streams go whose time has come."""
        if self.sending is None:
            return
        if self.accepted:
            self.sending.started = set(self.sending.streams)
        elif not self.identity:  # a receiver that has nothing takes anchors before it has looked at the header
            self.sending.started = {"anchor"}


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
        self._control: dict[int, deque[bytes]] = {0: deque(), 1: deque()}
        self._backlog = 0
        self._requests: dict[int, _Asked] = {}
        self._last_request = 0
        self._checksums = 0
        self._limit: dict[Stream, int] = {"anchor": 0, "residual": 0}
        self._used: dict[Stream, int] = {"anchor": 0, "residual": 0}
        self._shares: dict[Stream, Shares] = {"anchor": Shares(), "residual": Shares()}
        self._ended: list[Event] = []
        self._broken = False

    # --- what comes in -----------------------------------------------------------------------------

    def receive(self, data: Buffer, channel: int = 0) -> list[Event]:
        """Take bytes that the receiver sent on a connection.

        Parameters
        ----------
        data : bytes-like
            Any number of bytes, cut anywhere.
        channel : {0, 1}
            Number of the connection; 1 is the second one, for residuals.

        Returns
        -------
        list of Event
            `Requested`, `Cancelled`, `Delivered` and `Closed`.

        Raises
        ------
        ProtocolError
            If the receiver breaks a rule. What is left to send then says so; the connection is of no more use.
        PeerError
            If the receiver ended the connection with an error.
        """
        if self._broken:
            raise ProtocolError("the connection has failed before")
        reader = self._readers.setdefault(channel, RecordReader(0, self.limits.max_control))
        events: list[Event] = []
        try:
            for record in reader.feed(data):
                event = self._take(record, channel)
                if event is not None:
                    events.append(event)
        except LynxqError as error:
            self.fail(Code.PROTOCOL, str(error))
            raise
        return events

    def _take(self, record: Record, channel: int) -> Event | None:
        if channel not in self._greeted:
            self._greet(Hello.read(record), channel)
            return None
        if record.type == Type.BYE:
            return Closed(0)
        if record.type == Type.ERROR:
            raise PeerError("the receiver ended the connection: {1} (code {0})".format(*read_reason(record)))
        if record.type == Type.PING:
            return None
        if channel or record.type not in self._HANDLERS:
            raise ProtocolError(f"a receiver must not send a record of type {record.type} on connection {channel}")
        return self._HANDLERS[record.type](self, record)

    def _greet(self, hello: Hello, channel: int) -> None:
        if hello.role != Role.RECEIVER:
            raise ProtocolError("a sender must talk to a receiver")
        if channel != hello.channel or (channel and (self.peer is None or self.peer.session != hello.session)):
            raise ProtocolError(f"connection {channel} is not the one of its greeting, number {hello.channel}")
        if not hello.max_data:
            raise ProtocolError("a receiver must take data, got max_data 0")
        self._greeted.add(channel)
        if channel == 0:
            self.peer = hello
            self._limit = {"anchor": hello.anchor_limit, "residual": hello.residual_limit}
        answer = Hello(
            role=Role.SENDER,
            session=hello.session,
            channel=channel,
            channels=hello.channels,
            max_control=self.limits.max_control,
            max_requests=self.limits.max_requests,
        )
        self._queue(answer.record(), channel)

    def _request(self, record: Record) -> Event | None:
        name = read_name(record)
        if record.request <= self._last_request:
            raise ProtocolError(f"a request must have a number above {self._last_request}, got {record.request}")
        self._last_request = record.request
        if len(self._requests) >= self.limits.max_requests:
            text = f"at most {self.limits.max_requests} requests are served at a time"
            self._queue(reason_record(Type.END, Code.BUSY, text, record.request))
            return None
        streams = _STREAMS[: record.kind + 1]
        self._requests[record.request] = _Asked(streams, record.total)
        return Requested(record.request, name, streams)

    def _known(self, record: Record) -> _Asked | None:
        """The request of a record; None if it ended here, which the receiver may not know yet."""
        if not 0 < record.request <= self._last_request:
            raise ProtocolError(f"request {record.request} was never made")
        return self._requests.get(record.request)

    def _take_have(self, record: Record) -> None:
        asked, found = self._known(record), read_checksums(record.body)
        if asked is None:
            return
        if asked.accepted or not asked.identity:
            raise ProtocolError(f"request {record.request} must say what it has before it accepts, and name a segment")
        self._checksums += len(found)
        if self._checksums > self.limits.max_checksums:
            raise ProtocolError(f"at most {self.limits.max_checksums} checksums are kept, got {self._checksums}")
        have = asked.have[STREAMS[record.kind]]
        have.update({(record.tensor, page): value for page, value in enumerate(found, record.page)})

    def _accept(self, record: Record) -> None:
        asked = self._known(record)
        if asked is not None:
            asked.accepted = True
            asked.start()

    def _credit(self, record: Record) -> None:
        stream = STREAMS[record.kind]
        if record.total < self._limit[stream]:
            raise ProtocolError(f"{stream} credit must not fall, got {record.total} after {self._limit[stream]}")
        self._limit[stream] = record.total

    def _again(self, record: Record) -> None:
        asked = self._known(record)
        if asked is None:
            return
        if asked.sending is None:
            raise ProtocolError(f"request {record.request} asks for a page again that was never sent")
        asked.sending.again(STREAMS[record.kind], record.tensor, record.page)

    def _cancel(self, record: Record) -> Event | None:
        return None if self._known(record) is None else self._forget(Cancelled(record.request))

    def _received(self, record: Record) -> Event | None:
        return None if self._known(record) is None else self._forget(Delivered(record.request))

    _HANDLERS: ClassVar[dict[int, Callable[[Sender, Record], Event | None]]] = {
        Type.REQUEST: _request,
        Type.HAVE: _take_have,
        Type.ACCEPT: _accept,
        Type.CREDIT: _credit,
        Type.AGAIN: _again,
        Type.CANCEL: _cancel,
        Type.RECEIVED: _received,
    }

    # --- what the application does -----------------------------------------------------------------

    def open(self, request: int, source: Source) -> bool:
        """Answer a request with a source; returns whether it is still wanted."""
        asked = self._requests.get(request)
        if asked is None or self.peer is None:
            return False
        asked.sending = Outgoing(
            request, source, asked.wanted, asked.have, max_again=self.limits.max_again, wake=self._wake
        )
        header = asked.sending.header
        if header.size > self.peer.max_control:
            self._end(request, Code.REFUSED, f"a header of {header.size} bytes is more than the receiver takes")
            return False
        if asked.identity not in (0, header.identity):
            self._end(request, Code.CHANGED, "there are other tensors under this name than before")
            return False
        self._queue(Record(Type.OPEN, request=request, body=header.pack()))
        asked.start()
        return True

    def refuse(self, request: int, code: int, reason: str) -> None:
        """End a request."""
        if request in self._requests:
            self._forget(Ended(request, code, reason))
            self._queue(reason_record(Type.END, code, reason, request))

    def _end(self, request: int, code: int, reason: str) -> None:
        self._ended.append(Ended(request, code, reason))
        self.refuse(request, code, reason)

    def _forget(self, event: Event) -> Event:
        asked = self._requests.pop(event.request)
        self._checksums -= sum(len(pages) for pages in asked.have.values())
        if asked.sending is not None:
            asked.sending.close()
        for shares in self._shares.values():
            shares.forget(event.request)
        return event

    def keepalive(self, channel: int = 0) -> None:
        """Queue a sign of life."""
        self._queue(Record(Type.PING), channel)

    def close(self) -> None:
        """Queue a farewell on all connections: nothing more is sent after what is queued."""
        for channel in self._greeted:
            self._queue(Record(Type.BYE), channel)

    def fail(self, code: int, reason: str) -> None:
        """Queue an error, instead of everything else; the connection is of no more use."""
        self._broken = True
        for queue in self._control.values():
            queue.clear()
        self._control[0].append(reason_record(Type.ERROR, code, reason).pack())
        self.lost()

    def lost(self) -> None:
        """The connections are gone: forget all requests."""
        self._broken = True
        self._ended += [self._forget(Cancelled(request)) for request in list(self._requests)]

    def ended(self) -> list[Event]:
        """Requests that ended since the last call, but not by a record of the receiver: `Ended`, and `Cancelled` if
        the connection is gone.
        """
        events, self._ended = self._ended, []
        return events

    # --- what goes out -----------------------------------------------------------------------------

    def _queue(self, record: Record, channel: int = 0) -> None:
        data = record.pack()
        self._control[channel].append(data)
        self._backlog += len(data)
        if self._backlog > self.limits.max_backlog:
            raise ProtocolError(f"a receiver must read answers, {self._backlog} bytes of them wait")

    def data_to_send(self, size: int = 1 << 16, channel: int = 0) -> bytes:
        """The next bytes for a connection: whole records, until there are at least `size` bytes or none are left.

        At most one record more than `size` is returned.
        """
        parts: list[bytes] = []
        taken = 0
        while taken < size:
            part = self._next(channel)
            if part is None:
                break
            parts.append(part)
            taken += len(part)
        return b"".join(parts)

    def _next(self, channel: int) -> bytes | None:
        """The next record for a connection."""
        control = self._control[channel]
        if not control and not self._broken and channel in self._greeted:
            data = self._next_data(channel)
            if not control:
                return data
            # A page or a request was given up on the way. No data was taken then: that is the last thing that is done.
        if not control:
            return None
        data = control.popleft()
        self._backlog -= len(data)
        return data

    def _next_data(self, channel: int) -> bytes | None:
        anchor = self._turn("anchor")
        if anchor is not None:  # while it waits for the first connection, nothing leaves on the second
            return self._data("anchor", anchor) if channel == 0 and not self._control[0] else None
        if self.peer is None or channel != self.peer.channels - 1:
            return None
        residual = self._turn("residual")
        return None if residual is None or self._control[channel] else self._data("residual", residual)

    def _turn(self, stream: Stream) -> Outgoing | None:
        """The request whose turn it is to send bytes of a stream, None if no byte can leave."""
        shares, credit = self._shares[stream], self._limit[stream] - self._used[stream]
        waits = False  # a frame waits for credit: no other frame may take it away
        for request in shares.order(self._requests):
            sending = self._requests[request].sending
            if sending is None or (waits and not sending.begun(stream)):
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
            code = Code.CHANGED if isinstance(error, ChangedError) else Code.FAILED
            self._end(sending.number, code, str(error) or type(error).__name__)
            return State.NOTHING
        while sending.lost:
            self._queue(sending.lost.popleft())
        return state

    def _data(self, stream: Stream, sending: Outgoing) -> bytes:
        if self.peer is None:
            raise RuntimeError("data is sent before the greeting")
        record = sending.take(stream, self.peer.max_data)
        if record.offset == 0:
            self._used[stream] += record.total
        self._shares[stream].charge(sending.number, HEADER_SIZE + len(record.body))
        return record.pack()
