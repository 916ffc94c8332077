"""`NixlReceiver`: gives memory for requests, and checks the frames that were written into it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, NamedTuple, Self

from lynxq.arguments import choice, real
from lynxq.errors import ConnectionLostError, ParamsError, SilenceError
from lynxq.layout import Stream, Tier
from lynxq.stream.events import Cancelled, Event
from lynxq.stream.headers import read_header
from lynxq.stream.limits import ReceiverLimits
from lynxq.stream.nixl.agent import PAUSE, Agent, NixlAgent
from lynxq.stream.nixl.incoming import Incoming
from lynxq.stream.nixl.messages import Notice, Offer, Ticket
from lynxq.stream.received import Received

#: Memory that a peer may still write to after its receiver was closed: it must not become anything else.
_abandoned: list[Any] = []


class _Open(NamedTuple):
    """A request that has not ended, its sender, the sender's number of it, and the registrations of its memory."""

    incoming: Incoming
    peer: str
    theirs: int
    registrations: list[Any]


class NixlReceiver:
    """Receives segments that a :class:`NixlSender` writes into memory of this process.

    Frames are copied out of that memory and the copies compared with their checksums before anything of them is handed
    out: what a peer writes later changes nothing. Not for several threads at a time.

    Parameters
    ----------
    agent : Agent, optional
        A :class:`NixlAgent` by default.
    limits : ReceiverLimits, optional
        What a sender may make us take: `max_request_bytes`, `max_tensors`, `max_header`. The others do not apply.
    """

    def __init__(self, agent: Agent | None = None, *, limits: ReceiverLimits | None = None) -> None:
        given = limits or ReceiverLimits()
        # Memory is given at once, so there is no window that a frame must fit.
        self._limits = replace(given, anchor_window=given.max_request_bytes, residual_window=given.max_request_bytes)
        self._agent = NixlAgent() if agent is None else agent
        self._requests: dict[int, _Open] = {}
        self._cancelled: set[int] = set()
        self._received: dict[int, Received] = {}
        self._events: list[Event] = []
        self._next = 1

    # --- what the caller does ----------------------------------------------------------------------

    def open(self, offer: bytes, *, tier: Tier = "full") -> tuple[int, bytes]:
        """Give memory for what is offered.

        Parameters
        ----------
        offer : bytes
            As :meth:`NixlSender.offer` made it.
        tier : {"full", "anchor"}
            With "anchor" no residual is asked for.

        Returns
        -------
        request : int
            Number of the request here, which its events have.
        ticket : bytes
            The answer, to be brought to :meth:`NixlSender.accept`.

        Raises
        ------
        ProtocolError, LimitError, ContainerError
            If the offer is not right, or announces more than the limits allow.
        ConnectionLostError
            If the sender cannot be reached.
        """
        choice("tier", tier, Tier)
        told = Offer.unpack(offer)
        header = read_header(told.header, ("anchor", "residual"), self._limits)
        wanted: list[Stream] = [stream for stream in header.stream_names if tier == "full" or stream == "anchor"]
        peer = self._agent.add_peer(told.agent)
        request, self._next = self._next, self._next + 1
        incoming = Incoming(request, header, wanted)
        memory = {stream: region.memory for stream, region in incoming.regions.items()}
        registrations = [self._agent.register(each) for each in memory.values() if each.size]
        where = {stream: (each.ctypes.data, each.size) for stream, each in memory.items()}
        ticket = Ticket(self._agent.metadata(), told.request, request, header.identity, where).pack()
        self._requests[request] = _Open(incoming, peer, told.request, registrations)
        self._received[request] = incoming.received
        self._events += incoming.opened()
        self._end(request)
        return request, ticket

    def received(self, request: int) -> Received:
        """The tensors of a request as far as they have arrived; raises `ParamsError` for an unknown number."""
        if request not in self._received:
            raise ParamsError(f"request must be one that is open or done, got {request!r}")
        return self._received[request]

    def forget(self, request: int) -> None:
        """Let go of the tensors of a request that has ended."""
        if request in self._requests:
            raise ParamsError(f"request {request} has not ended: cancel it first")
        self._received.pop(request, None)

    def cancel(self, request: int) -> None:
        """Want no more of a request. Its memory is freed when the sender has stopped: at `Cancelled`.

        Raises
        ------
        ConnectionLostError
            If the sender cannot be told. The memory is then kept: who cannot be told may still write.
        """
        found = self._requests.get(request)
        if found is not None and request not in self._cancelled:
            self._cancelled.add(request)
            self._agent.notify(found.peer, Notice("cancel", found.theirs).pack())

    def poll(self) -> list[Event]:
        """Look for what was written; returns what happened, all anchors before residuals. Never waits."""
        written: dict[Stream, list[Notice]] = {"anchor": [], "residual": []}
        for peer, data in self._agent.notices():
            notice = Notice.unpack(data)
            found = None if notice is None else self._requests.get(notice.request)
            if notice is None or found is None or found.peer != peer:
                continue
            if notice.kind == "stopped" and notice.request in self._cancelled:
                self._free(notice.request)
                self._received.pop(notice.request)
                self._events.append(Cancelled(notice.request))
            elif notice.kind == "written":
                written["residual" if notice.stream == "residual" else "anchor"].append(notice)
        for stream, notices in written.items():
            for notice in notices:
                self._written(stream, notice)
        events, self._events = self._events, []
        return events

    def run(self, timeout: float = 30.0) -> Iterator[Event]:
        """Poll until every open request has ended; gives the events.

        Parameters
        ----------
        timeout : float
            Most seconds without an event.

        Raises
        ------
        SilenceError
            If there was none.
        """
        real("timeout", timeout, 0.0, exclusive=True)
        last = time.monotonic()
        while True:
            events = self.poll()
            if events:
                yield from events
                last = time.monotonic()
            elif not self._requests:
                return
            elif time.monotonic() - last > timeout:
                raise SilenceError(f"nothing was written for {timeout:g} seconds, {len(self._requests)} requests wait")
            else:
                time.sleep(PAUSE)

    def close(self, timeout: float = 5.0) -> None:
        """Cancel what is open, and wait up to `timeout` seconds until its senders have stopped.

        Memory of those that have not stays as it is, since they may still write to it.
        """
        for request in list(self._requests):
            try:
                self.cancel(request)
            except ConnectionLostError:
                continue
        end = time.monotonic() + timeout
        while self._requests and time.monotonic() < end:
            self.poll()
            time.sleep(PAUSE)
        if self._requests:
            _abandoned.append((self._agent, self._requests))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- steps -------------------------------------------------------------------------------------

    def _written(self, stream: Stream, notice: Notice) -> None:
        found = self._requests.get(notice.request)
        if found is None or notice.request in self._cancelled or stream not in found.incoming.regions:
            return
        self._events += found.incoming.written(stream, notice.begin, notice.end)
        self._end(notice.request)

    def _end(self, request: int) -> None:
        incoming, peer, theirs, _ = self._requests[request]
        if incoming.complete:
            self._free(request)
            with suppress(ConnectionLostError):  # the sender is gone, and all is here
                self._agent.notify(peer, Notice("taken", theirs).pack())
            self._events.append(incoming.done())

    def _free(self, request: int) -> None:
        for registration in self._requests.pop(request).registrations:
            self._agent.deregister(registration)
        self._cancelled.discard(request)
