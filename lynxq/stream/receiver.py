"""`Receiver`: the receiving side of the wire as a state machine. Bytes in, events and bytes out, no I/O."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import ClassVar

from lynxq.arguments import choice, instance, integer
from lynxq.errors import ContainerError, DTypeError, LynxqError, ParamsError, PeerError, ProtocolError
from lynxq.format.frames import KINDS, STREAMS, Buffer
from lynxq.layout import TIER_STREAMS, Stream, Tier
from lynxq.stream.control import ControlQueue
from lynxq.stream.delivery import Delivery
from lynxq.stream.events import Cancelled, Closed, Done, Event, Failed
from lynxq.stream.headers import read_header
from lynxq.stream.incoming import Incoming
from lynxq.stream.limits import ReceiverLimits
from lynxq.stream.messages import Code, Hello, Role, check_name, read_reason, reason_record
from lynxq.stream.records import MIN_CONTROL, Record, RecordReader, Type
from lynxq.stream.turns import Turns
from lynxq.stream.windows import Window

#: Bytes of answers that may wait because the sender does not read them.
_MAX_BACKLOG = 1 << 24


class Receiver:
    """Receives frames from one sender, and hands anchor pages out before residual pages.

    What has arrived is kept when a connection is lost: `connect` again, over any new connection to a sender of the
    same tensors, and only what is missing comes.

    Parameters
    ----------
    limits : ReceiverLimits, optional
        What the sender may make this side keep.

    Examples
    --------
    A transport is whatever carries the bytes; here, two variables.

    >>> import numpy as np, lynxq
    >>> from lynxq.stream import AnchorPage, EncodedSource, Receiver, Requested, Sender
    >>> encoded = lynxq.encode(np.ones((600, 2, 64), np.float32), token_axis=0)
    >>> sender, receiver = Sender(), Receiver()
    >>> receiver.connect()
    >>> request = receiver.request("prompt")
    >>> pages = []
    >>> while (data := receiver.data_to_send()):
    ...     for event in sender.receive(data):
    ...         if isinstance(event, Requested):
    ...             _ = sender.open(event.request, EncodedSource({"key": encoded}))
    ...     while (data := sender.data_to_send()):
    ...         receiver.receive(data)
    ...     while (event := receiver.next_event()) is not None:
    ...         if isinstance(event, AnchorPage):
    ...             pages.append(event.page)
    >>> pages
    [0, 1, 2]
    """

    def __init__(self, limits: ReceiverLimits | None = None) -> None:
        self.limits = ReceiverLimits() if limits is None else limits
        instance("limits", self.limits, ReceiverLimits, DTypeError)
        self.peer: Hello | None = None
        self._windows: dict[Stream, Window] = {
            "anchor": Window(self.limits.anchor_window),
            "residual": Window(self.limits.residual_window),
        }
        self._delivery = Delivery(self._windows)
        self._requests: dict[int, Incoming] = {}
        self._last_request = 0
        self._turns = Turns()
        self._ahead = 1
        self._connected = False
        self._session = b""
        self._lanes = 1
        self._readers: dict[int, RecordReader] = {}
        self._greeted: set[int] = set()
        self._control = ControlQueue()

    # --- what the application does -----------------------------------------------------------------

    def request(self, name: str, tier: Tier = "full") -> int:
        """Ask for a name; returns the number of the request.

        A sender says how many requests it serves at a time. Further ones wait here until others have ended.

        Parameters
        ----------
        name : str
            What the sender knows the tensors by; 1 to 1024 bytes of UTF-8.
        tier : {"full", "anchor"}
            With "anchor" no residual is sent.
        """
        check_name(name)
        choice("tier", tier, Tier)
        self._last_request += 1
        number = self._last_request
        self._requests[number] = Incoming(
            number,
            name,
            TIER_STREAMS[tier],
            retries=self.limits.retries,
            delivery=self._delivery,
            windows=self._windows,
        )
        if self._connected:
            self._turns.add(number)
            self._ask()
        return number

    def cancel(self, request: int) -> None:
        """Want no more of a request: nothing of it is handed out any more but a last `Cancelled`."""
        incoming = self._requests.pop(request, None)
        if incoming is None:
            return
        self._forget(request)
        incoming.end(Cancelled(request))
        self._delivery.drop(request)
        self._delivery.tell(Cancelled(request))
        self._ask()

    def _forget(self, request: int) -> None:
        """Let the sender forget a request, if it was asked for it."""
        if self._turns.end(request):
            self._control.add(Record(Type.CANCEL, request=request))

    def connect(self, lanes: int = 1, session: bytes | None = None, *, ahead: int = 64) -> None:
        """Begin a connection, or two that belong together: queue greetings, and all requests that are not done.

        Parameters
        ----------
        lanes : {1, 2}
            How many connections; with 2, residuals come on the second one.
        session : bytes, optional
            16 bytes that nobody can guess; random ones by default.
        ahead : int
            Requests that are made at most before the sender's greeting says how many it serves. Each of them that it
            does not serve fails with `BUSY`; 1 is safe, and costs the others a round trip.
        """
        self._ahead = integer("ahead", ahead, 1, 1 << 32, ParamsError)
        self._lanes = integer("lanes", lanes, 1, 2, ParamsError)
        self.disconnect()
        self._session = secrets.token_bytes(16) if session is None else session
        if not isinstance(self._session, bytes) or len(self._session) != 16:
            raise ParamsError(f"session must be 16 bytes, got {session!r}")
        self._connected = True
        self._control.reopen()
        credit = {stream: window.restart() for stream, window in self._windows.items()}
        for lane in range(lanes):
            hello = Hello(
                role=Role.RECEIVER,
                session=self._session,
                lane=lane,
                lanes=lanes,
                max_data=self.limits.max_data,
                max_control=self.limits.max_header,
                anchor_limit=credit["anchor"],
                residual_limit=credit["residual"],
            )
            self._control.add(hello.record(), lane)
        self._turns.restart(number for number, incoming in self._requests.items() if not incoming.done)
        self._ask()

    def disconnect(self) -> None:
        """The connections are gone: whole frames are kept, parts of frames are dropped."""
        self._connected = False
        self.peer = None
        self._readers.clear()
        self._greeted.clear()
        self._control.clear()
        self._turns.restart()
        for incoming in self._requests.values():
            incoming.disconnect()

    def keepalive(self, lane: int = 0) -> None:
        """Queue a sign of life."""
        self._control.add(Record(Type.PING), lane)

    def close(self) -> None:
        """Queue a farewell on all connections: nothing is sent after it."""
        for lane in range(self._lanes if self._connected else 0):
            self._control.add(Record(Type.BYE), lane)
        self._control.close()

    def fail(self, code: int, reason: str) -> None:
        """Queue an error, instead of everything else; the connection is of no more use."""
        self.disconnect()
        self._control.replace(reason_record(Type.ERROR, code, reason))

    def next_event(self) -> Event | None:
        """The next event: what requests are, then anchor pages, then residual pages.

        Taking a page makes room for another one; see `data_to_send`.
        """
        event = self._delivery.take()
        if isinstance(event, Done | Failed):
            self._requests.pop(event.request, None)
        return event

    # --- what goes out -----------------------------------------------------------------------------

    def _ask(self) -> None:
        """Ask for the requests whose turn it is."""
        while (number := self._turns.next(self._ahead if self.peer is None else self.peer.max_requests)) is not None:
            incoming = self._requests.get(number)
            if incoming is None or incoming.done:  # cancelled while it waited
                self._turns.end(number)
                continue
            for record in incoming.request(MIN_CONTROL):
                self._control.add(record)

    def data_to_send(self, lane: int = 0) -> bytes:
        """The bytes for a connection: greetings, requests, credit for what was taken since the last call."""
        if lane == 0 and self._connected and self.peer is not None:
            for stream, window in self._windows.items():
                limit = window.grant()
                if limit is not None:
                    self._control.add(Record(Type.CREDIT, kind=KINDS[stream], total=limit))
        return self._control.take_all(lane)

    # --- what comes in -----------------------------------------------------------------------------

    def receive(self, data: Buffer, lane: int = 0) -> None:
        """Take bytes that the sender sent on a connection; `next_event` then tells what they were.

        Parameters
        ----------
        data : bytes-like
            Any number of bytes, cut anywhere.
        lane : {0, 1}
            Number of the connection.

        Raises
        ------
        ProtocolError
            If the sender breaks a rule, or the bytes were damaged. What is left to send then says so; `connect`
            again to go on.
        PeerError
            If the sender ended the connection with an error.
        """
        if not self._connected:
            raise ProtocolError("bytes came without a connection")
        reader = self._readers.get(lane)
        if reader is None:
            reader = self._readers[lane] = RecordReader(self.limits.max_data, self.limits.max_header)
        try:
            for record in reader.feed(data):
                self._take(record, lane)
            self._ask()
            if self._control.size > _MAX_BACKLOG:
                raise ProtocolError(f"a sender must read answers, {self._control.size} bytes of them wait")
        except LynxqError as error:
            self.fail(Code.PROTOCOL, str(error))
            raise

    def _take(self, record: Record, lane: int) -> None:
        if lane not in self._greeted:
            self._greet(Hello.read(record), lane)
        elif record.type == Type.DATA:
            self._data(record, lane)
        elif record.type == Type.BYE:
            self._delivery.tell(Closed(0))
        elif record.type == Type.ERROR:
            raise PeerError("the sender ended the connection: {1} (code {0})".format(*read_reason(record)))
        elif record.type != Type.PING:
            if lane or record.type not in self._HANDLERS:
                raise ProtocolError(f"a sender must not send a record of type {record.type} on connection {lane}")
            incoming = self._known(record)
            if incoming is not None:
                self._HANDLERS[record.type](self, record, incoming)
                self._answer(incoming)

    def _greet(self, hello: Hello, lane: int) -> None:
        if hello.role != Role.SENDER:
            raise ProtocolError("a receiver must talk to a sender")
        if (hello.session, hello.lane, hello.lanes) != (self._session, lane, self._lanes):
            raise ProtocolError(f"the greeting on connection {lane} belongs to another one")
        self._greeted.add(lane)
        if lane == 0:
            self.peer = hello

    def _known(self, record: Record) -> Incoming | None:
        """The request of a record; None if it has ended here, which the sender may not know yet."""
        if not 0 < record.request <= self._turns.last:
            raise ProtocolError(f"request {record.request} was never made")
        incoming = self._requests.get(record.request)
        return None if incoming is None or incoming.done else incoming

    def _data(self, record: Record, lane: int) -> None:
        stream = STREAMS[record.kind]
        if lane != (self._lanes - 1 if stream == "residual" else 0):
            raise ProtocolError(f"a {stream} frame must not come on connection {lane} of {self._lanes}")
        if record.offset == 0:
            self._windows[stream].begin(record.total)
        incoming = self._known(record)
        if incoming is None:
            if record.offset == 0:  # all of it is dropped
                self._windows[stream].free(record.total)
            return
        incoming.data(record)
        self._answer(incoming)

    def _open(self, record: Record, incoming: Incoming) -> None:
        try:
            header = read_header(record.body, incoming.wanted, self.limits)
        except ContainerError as error:
            self._fail(incoming, Code.REFUSED, f"its header cannot be taken: {error}")
            return
        if incoming.header is None:
            self._control.add(Record(Type.ACCEPT, request=incoming.number))
            incoming.open(header)
        elif header.pack() != incoming.header.pack():
            self._fail(incoming, Code.CHANGED, "there are other tensors under this name than before")

    def _fail(self, incoming: Incoming, code: int, reason: str) -> None:
        """End a request from this side."""
        self._forget(incoming.number)
        incoming.end(Failed(incoming.number, code, reason))

    def _lost(self, record: Record, incoming: Incoming) -> None:
        incoming.lose((STREAMS[record.kind], record.tensor, record.page))

    def _end(self, record: Record, incoming: Incoming) -> None:
        self._turns.end(incoming.number)
        incoming.end(Failed(incoming.number, *read_reason(record)))

    def _answer(self, incoming: Incoming) -> None:
        while incoming.answers:
            self._control.add(incoming.answers.popleft())
        if incoming.done:
            self._turns.end(incoming.number)

    _HANDLERS: ClassVar[dict[int, Callable[[Receiver, Record, Incoming], None]]] = {
        Type.OPEN: _open,
        Type.LOST: _lost,
        Type.END: _end,
    }
