"""`Session`: what a server knows of one receiver."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from inspect import isawaitable
from typing import Protocol

from lynxq.errors import SilenceError, TransferError
from lynxq.stream.events import Closed, Ended, Event, Requested
from lynxq.stream.limits import SenderLimits, Timeouts
from lynxq.stream.messages import Code
from lynxq.stream.records import HEADER_SIZE
from lynxq.stream.sender import Sender
from lynxq.stream.sources import Source
from lynxq.stream.tcp.wire import Wire

#: What finds a source by its name, or raises `LookupError`.
Resolve = Callable[[str], Source | Awaitable[Source]]


class Host(Protocol):
    """What a session needs of its server."""

    resolve: Resolve
    limits: SenderLimits
    timeouts: Timeouts

    def tell(self, name: str, event: Event) -> None:
        """Pass an event on."""


class Session:
    """One receiver: its state machine, its connections, and the searches for its sources.

    Parameters
    ----------
    host : Host
        The server.
    """

    def __init__(self, host: Host) -> None:
        loop = asyncio.get_running_loop()
        self.wires: dict[int, Wire] = {}
        self.names: dict[int, str] = {}
        self._host = host
        self._progress = loop.time()
        self._searches: dict[int, asyncio.Task[None]] = {}

        def wake() -> None:
            with suppress(RuntimeError):  # the loop has ended, and nobody is there to be woken
                loop.call_soon_threadsafe(self.wake)

        self.sender = Sender(host.limits, wake=wake)

    def wake(self) -> None:
        """There may be something to send, on any connection."""
        for wire in self.wires.values():
            wire.wake()

    def push(self, data: bytes, lane: int) -> None:
        """Take bytes that came on a connection."""
        for event in self.sender.receive(data, lane):
            self._take(event)
        self.wake()

    def pull(self, size: int, lane: int) -> bytes:
        """The next bytes to send on a connection."""
        data = self.sender.data_to_send(size, lane)
        if len(data) > HEADER_SIZE:  # more than a sign of life
            self._progress = asyncio.get_running_loop().time()
        self._tell_ended()
        if lane == 0 or self.sender.has_answers:  # what the second connection waits for may be over now; or it is
            self.wake_others(lane)  # the first one that has to say what was found when the second one was served
        return data

    def wake_others(self, lane: int) -> None:
        """Wake the other connections."""
        for number, wire in self.wires.items():
            if number != lane:
                wire.wake()

    def keepalive(self, lane: int) -> None:
        """Nothing was sent for a while: queue a sign of life, unless it is the receiver that lets us wait too long."""
        now = asyncio.get_running_loop().time()
        if not self.sender.waits_for_receiver:
            self._progress = now
        elif now - self._progress > self._host.timeouts.stall:
            raise SilenceError(f"the receiver took nothing for {self._host.timeouts.stall:g} s")
        self.sender.keepalive(lane)

    def _take(self, event: Event) -> None:
        if isinstance(event, Closed):
            self.lose()
            return
        if isinstance(event, Requested):
            self.names[event.request] = event.name
            self._searches[event.request] = asyncio.create_task(self._open(event))
            self._host.tell(event.name, event)
            return
        search = self._searches.pop(event.request, None)
        if search is not None:  # or requests that are cancelled at once could start searches without end
            search.cancel()
        self._host.tell(self.names.pop(event.request, ""), event)

    async def _open(self, event: Requested) -> None:
        """Look for the source of a request; whatever goes wrong is told to the receiver."""
        try:
            found = self._host.resolve(event.name)
            source = await found if isawaitable(found) else found
        except LookupError:
            self._refuse(event.request, Code.UNKNOWN, "there is nothing under this name")
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the application's code; only this ends
            # If it is this search that was cancelled, the request has been forgotten, and nothing is refused.
            self._refuse(event.request, Code.FAILED, f"the source was not opened: {type(error).__name__}")
        else:
            with suppress(TransferError):  # the connection has failed meanwhile
                self.sender.open(event.request, source)
        finally:
            self._searches.pop(event.request, None)
        self._tell_ended()
        self.wake()

    def _refuse(self, request: int, code: int, reason: str) -> None:
        self.sender.refuse(request, code, reason)
        name = self.names.pop(request, None)
        if name is not None:
            self._host.tell(name, Ended(request, code, reason))

    def _tell_ended(self) -> None:
        for event in self.sender.ended():
            name = self.names.pop(event.request, None)
            if name is not None:  # or the receiver broke a rule in the same breath, and nobody was told that it asked
                self._host.tell(name, event)

    async def end(self) -> None:
        """The first connection is gone, and with it the session."""
        searches = list(self._searches.values())
        for search in searches:
            search.cancel()
        try:
            await asyncio.gather(*searches, return_exceptions=True)
        finally:
            self.lose()

    def lose(self) -> None:
        """A connection is gone, and with it the session: forget all requests, end the other connection."""
        self.sender.lost()
        self._tell_ended()
        for wire in self.wires.values():
            wire.finish()
