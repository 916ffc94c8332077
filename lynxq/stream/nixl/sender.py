"""`NixlSender`: writes the frames of requests into the memory of their receivers, anchors first."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from lynxq.arguments import instance, integer, real
from lynxq.errors import ConnectionLostError, DTypeError, ParamsError, ProtocolError, SilenceError
from lynxq.layout import Stream
from lynxq.stream.events import Cancelled, Delivered, Ended, Event
from lynxq.stream.messages import Code
from lynxq.stream.nixl.agent import PAUSE, Agent, NixlAgent
from lynxq.stream.nixl.messages import Notice, Offer, Ticket
from lynxq.stream.nixl.outgoing import Outgoing
from lynxq.stream.sources import Source

#: Peers that may cancel an offer whose ticket has not come; there should be one.
MAX_EARLY = 16
#: Memory that a write still reads after its sender was closed: it must not become anything else.
_abandoned: list[Any] = []


class NixlSender:
    """Sends segments by writing them into memory that a :class:`NixlReceiver` has given for them.

    Nothing is sent by itself: :meth:`poll` takes a step and never waits, :meth:`run` polls until all is delivered.
    Residuals are written only while no anchor, of any request, waits or is being written, so an anchor waits for at
    most `window` slices of residuals. Not for several threads at a time.

    Parameters
    ----------
    agent : Agent, optional
        A :class:`NixlAgent` by default.
    slice_bytes : int
        Most bytes of one write, unless a frame is larger.
    window : int
        Writes under way at one time.
    """

    def __init__(self, agent: Agent | None = None, *, slice_bytes: int = 1 << 22, window: int = 2) -> None:
        self._slice_bytes = integer("slice_bytes", slice_bytes, 1, 1 << 40, ParamsError)
        self._window = integer("window", window, 1, 1 << 10, ParamsError)
        self._agent = NixlAgent() if agent is None else agent
        self._requests: dict[int, Outgoing] = {}
        self._order: deque[int] = deque()
        self._writes: deque[tuple[Outgoing, Stream, Any]] = deque()
        self._events: list[Event] = []
        self._next = 1

    # --- what the caller does ----------------------------------------------------------------------

    def offer(self, source: Source) -> bytes:
        """Copy all frames of a source into registered memory; returns the offer to be brought to a receiver.

        Parameters
        ----------
        source : Source
            One whose frames all exist, such as an `EncodedSource` or a `ContainerSource`.

        Raises
        ------
        SourceFailedError
            If a frame does not exist yet.
        ContainerError
            If a page is damaged where it is kept.
        """
        instance("source", source, Source, DTypeError)
        outgoing = Outgoing.of(self._next, source, self._slice_bytes)
        self._next += 1
        for region in outgoing.regions.values():
            if region.memory.size:
                region.registration = self._agent.register(region.memory)
        self._requests[outgoing.request] = outgoing
        return Offer(self._agent.metadata(), outgoing.request, source.header.pack()).pack()

    def accept(self, ticket: bytes) -> int:
        """Begin with a request whose receiver has answered; returns its number, which its events have.

        Raises
        ------
        ProtocolError
            If this is no answer to an offer of this sender, or a second one.
        ConnectionLostError
            If the receiver cannot be reached.
        """
        told = Ticket.unpack(ticket)
        request = self._requests.get(told.request)
        if request is None or request.peer is not None or told.identity != request.header.identity:
            raise ProtocolError(f"a ticket must answer an offer that is open, got one for request {told.request}")
        for stream, (_, size) in told.regions.items():
            if stream not in request.regions or request.regions[stream].memory.size != size:
                raise ProtocolError(f"a ticket must have room for the {stream} stream, got {size} bytes")
        if "anchor" not in told.regions:
            raise ProtocolError("a ticket must have room for the anchor stream")
        request.peer, request.receiver = self._agent.add_peer(told.agent), told.receiver
        for stream in list(request.regions):
            if stream in told.regions:
                request.regions[stream].address = told.regions[stream][0]
            else:
                self._release(request, stream)
        self._order.append(request.request)
        if request.peer in request.early:
            request.cancelled = True
            request.drop()
        return request.request

    def withdraw(self, request: int) -> None:
        """Take back an offer that has not been accepted, and free its memory; raises `ParamsError` if it has been."""
        found = self._requests.get(request)
        if found is None or found.peer is not None:
            raise ParamsError(f"only an offer that is open can be withdrawn, got {request}")
        self._forget(found)

    def poll(self) -> list[Event]:
        """Look after all transfers; returns what happened: `Delivered`, `Cancelled`, or `Ended` with the reason."""
        self._hear()
        self._look()
        self._post()
        events, self._events = self._events, []
        return events

    def run(self, timeout: float = 30.0) -> Iterator[Event]:
        """Poll until every accepted request has ended; gives the events.

        Parameters
        ----------
        timeout : float
            Most seconds without progress.

        Raises
        ------
        SilenceError
            If there was none.
        """
        real("timeout", timeout, 0.0, exclusive=True)
        last, before = time.monotonic(), -1
        while True:
            yield from self.poll()
            left = sum(self._requests[each].waiting for each in self._order) + len(self._writes)
            if not self._order:
                return
            if left != before:
                last, before = time.monotonic(), left
            elif time.monotonic() - last > timeout:
                raise SilenceError(f"nothing happened for {timeout:g} seconds, {left} writes are left")
            time.sleep(PAUSE)

    def close(self, timeout: float = 5.0) -> None:
        """Write nothing more, and free all registered memory that no write uses any longer after `timeout` seconds."""
        for request in self._requests.values():
            request.drop()
        end = time.monotonic() + timeout
        while self._writes and time.monotonic() < end:
            self._look()
            time.sleep(PAUSE)
        for request in list(self._requests.values()):
            if not any(request.busy.values()):
                self._forget(request)
        if self._writes:
            _abandoned.append((self._agent, self._writes))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- steps -------------------------------------------------------------------------------------

    def _hear(self) -> None:
        for peer, data in self._agent.notices():
            notice = Notice.unpack(data)
            request = None if notice is None else self._requests.get(notice.request)
            if notice is None or request is None:
                continue
            if request.peer is None and notice.kind == "cancel" and len(request.early) < MAX_EARLY:
                request.early.add(peer)
            if request.peer != peer:
                continue
            if notice.kind == "taken":
                request.taken = True
            elif notice.kind == "cancel":
                request.cancelled = True
                request.drop()
            self._finish(request)

    def _look(self) -> None:
        """Take note of the writes that are done."""
        for _ in range(len(self._writes)):
            request, stream, transfer = self._writes.popleft()
            try:
                done = self._agent.state(transfer) == "done"
            except ConnectionLostError as error:
                request.busy[stream] -= 1
                self._fail(request, error)
                continue
            if done:
                request.busy[stream] -= 1
                self._finish(request)
            else:
                self._writes.append((request, stream, transfer))

    def _post(self) -> None:
        """Begin writes, anchors of all requests before residuals, requests of one class in turn."""
        for number in list(self._order):
            self._finish(self._requests[number])  # one without pages
        while len(self._writes) < self._window:
            chosen = self._choose()
            if chosen is None:
                return
            request, stream = chosen
            region = request.regions[stream]
            begin, end = region.waiting.popleft()
            notice = Notice("written", request.receiver, stream, begin, end).pack()
            try:
                transfer = self._agent.write(
                    region.memory[begin:end], str(request.peer), region.address + begin, notice
                )
            except ConnectionLostError as error:
                self._fail(request, error)
                continue
            request.written = True
            request.busy[stream] += 1
            self._writes.append((request, stream, transfer))

    def _choose(self) -> tuple[Outgoing, Stream] | None:
        requests = [self._requests[number] for number in self._order]
        stream: Stream = "anchor"
        if not any(each.regions["anchor"].waiting or each.busy["anchor"] for each in requests):
            stream = "residual"
        for request in requests:
            if stream in request.regions and request.regions[stream].waiting:
                self._order.remove(request.request)
                self._order.append(request.request)
                return request, stream
        return None

    def _fail(self, request: Outgoing, error: ConnectionLostError) -> None:
        request.reason = request.reason or str(error)
        request.drop()
        self._finish(request)

    def _finish(self, request: Outgoing) -> None:
        """End a request that has nothing left to do; until then its memory stays registered."""
        if any(request.busy.values()) or request.waiting:
            return
        # A write that is done does not mean that its notice was read: NIXL must not end before that.
        if request.written and not (request.taken or request.cancelled or request.reason):
            return
        event: Event = Delivered(request.request)
        if request.cancelled:
            event = Cancelled(request.request)
            try:
                self._agent.notify(str(request.peer), Notice("stopped", request.receiver).pack())
            except ConnectionLostError as error:
                request.reason = request.reason or str(error)
        if request.reason is not None:
            event = Ended(request.request, Code.FAILED, request.reason)
        self._forget(request)
        self._events.append(event)

    def _forget(self, request: Outgoing) -> None:
        for stream in list(request.regions):
            self._release(request, stream)
        self._requests.pop(request.request, None)
        if request.request in self._order:
            self._order.remove(request.request)

    def _release(self, request: Outgoing, stream: Stream) -> None:
        region = request.regions.pop(stream)
        if region.registration is not None:
            self._agent.deregister(region.registration)
