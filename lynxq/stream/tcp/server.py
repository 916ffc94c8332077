"""`Server`: sends the sources that receivers ask for by name."""

from __future__ import annotations

import asyncio
import ssl as tls
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from inspect import isawaitable
from types import TracebackType
from typing import Self

from lynxq.arguments import integer
from lynxq.errors import LynxqError, ParamsError, ProtocolError, TransferError
from lynxq.stream.bucket import TokenBucket
from lynxq.stream.events import Closed, Delivered, Event, Requested
from lynxq.stream.limits import SenderLimits, Timeouts
from lynxq.stream.messages import HELLO_SIZE, Code, Hello
from lynxq.stream.records import HEADER_SIZE, RecordReader
from lynxq.stream.sender import Sender
from lynxq.stream.sources import Source
from lynxq.stream.tcp.sockets import MARKS, mark
from lynxq.stream.tcp.wire import Wire

#: What finds a source by its name, or raises `LookupError`.
Resolve = Callable[[str], Source | Awaitable[Source]]


class _Session:
    """One receiver: its state machine, its connections, and the tasks that look for its sources."""

    def __init__(self, server: Server) -> None:
        loop = asyncio.get_running_loop()
        self.wires: dict[int, Wire] = {}
        self.names: dict[int, str] = {}
        self._server = server
        self._tasks: set[asyncio.Task[None]] = set()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop has ended, and nobody is there to be woken
                loop.call_soon_threadsafe(self.wake)

        self.sender = Sender(server.limits, wake=wake)

    def wake(self) -> None:
        """There may be something to send, on any connection."""
        for wire in self.wires.values():
            wire.wake()

    def push(self, data: bytes, channel: int) -> None:
        """Take bytes that came on a connection."""
        for event in self.sender.receive(data, channel):
            self._take(event)
        self.wake()

    def pull(self, size: int, channel: int) -> bytes:
        """The next bytes to send on a connection."""
        data = self.sender.data_to_send(size, channel)
        self._tell_ended()
        if channel == 0:  # what the second connection waits for may be over now
            self.wake_others(channel)
        return data

    def wake_others(self, channel: int) -> None:
        """Wake the other connections."""
        for number, wire in self.wires.items():
            if number != channel:
                wire.wake()

    def keepalive(self, channel: int) -> None:
        """Queue a sign of life."""
        self.sender.keepalive(channel)

    def _take(self, event: Event) -> None:
        if isinstance(event, Closed):
            self.sender.lost()
            for wire in self.wires.values():
                wire.finish()
            return
        if isinstance(event, Requested):
            self.names[event.request] = event.name
            task = asyncio.create_task(self._open(event))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            self._server.tell(event.name, event)
            return
        self._server.tell(self.names.pop(event.request, ""), event)

    async def _open(self, event: Requested) -> None:
        """Look for the source of a request; whatever goes wrong is told to the receiver."""
        try:
            found = self._server.resolve(event.name)
            source = await found if isawaitable(found) else found
        except LookupError:
            self.sender.refuse(event.request, Code.UNKNOWN, "there is nothing under this name")
        except Exception as error:  # noqa: BLE001 - the application's code; only this request ends
            self.sender.refuse(event.request, Code.FAILED, f"the source was not opened: {type(error).__name__}")
        else:
            with suppress(TransferError):  # the connection has failed meanwhile
                self.sender.open(event.request, source)
        self._tell_ended()
        self.wake()

    def _tell_ended(self) -> None:
        for event in self.sender.ended():
            self._server.tell(self.names.pop(event.request, ""), event)

    async def end(self) -> None:
        """The first connection is gone, and with it the session."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.sender.lost()
        self._tell_ended()
        for wire in self.wires.values():
            wire.finish()


class Server:
    """Listens for receivers, and sends them what they ask for. Made by :func:`serve`; use it with ``async with``.

    Attributes
    ----------
    host, port : str, int
        Where it listens.
    """

    def __init__(
        self,
        sources: Mapping[str, Source] | Resolve,
        host: str,
        port: int,
        *,
        ssl: tls.SSLContext | None,
        bucket: TokenBucket | None,
        limits: SenderLimits | None,
        timeouts: Timeouts | None,
        max_connections: int,
        marks: tuple[int, int],
        on_event: Callable[[str, Event], None] | None,
    ) -> None:
        self.resolve: Resolve = sources.__getitem__ if isinstance(sources, Mapping) else sources
        self.host = host
        self.port = port
        self.limits = SenderLimits() if limits is None else limits
        self._ssl = ssl
        self._bucket = bucket
        self._timeouts = Timeouts() if timeouts is None else timeouts
        self._max_connections = integer("max_connections", max_connections, 1, 1 << 20, ParamsError)
        self._marks = marks
        self._on_event = on_event
        self._server: asyncio.Server | None = None
        self._sessions: dict[bytes, _Session] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self._delivered: Counter[str] = Counter()
        self._begun = asyncio.Event()
        self._news = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, self.host, self.port, ssl=self._ssl)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop listening and end all connections at once."""
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    async def delivered(self, name: str, times: int = 1) -> None:
        """Return when receivers have got all of a name that they asked for, so many times since the beginning."""
        while self._delivered[name] < times:
            self._news.clear()
            await self._news.wait()

    def tell(self, name: str, event: Event) -> None:
        """Pass an event on."""
        if isinstance(event, Delivered):
            self._delivered[name] += 1
            self._news.set()
        if self._on_event is not None:
            self._on_event(name, event)

    # --- connections -------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._connections) >= self._max_connections:
            writer.transport.abort()
            return
        self._connections.add(task)
        try:
            await self._serve(reader, writer)
        except (LynxqError, OSError, asyncio.IncompleteReadError):
            pass  # one receiver less; whoever it was has been told if that was possible
        except asyncio.CancelledError:
            pass  # only `close` cancels, and a task of the listener that is cancelled would be reported
        finally:
            writer.transport.abort()
            self._connections.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(self._timeouts.greeting):
            greeting = await reader.readexactly(HEADER_SIZE + HELLO_SIZE)
        records = list(RecordReader(0, HELLO_SIZE).feed(greeting))
        if not records:
            raise ProtocolError("a connection must begin with a greeting")
        hello = Hello.read(records[0])
        if hello.channel:
            await self._second(hello, greeting, reader, writer)
            return
        if hello.session in self._sessions:
            raise ProtocolError("a session must begin once")
        session = self._sessions[hello.session] = _Session(self)
        try:
            self._begun.set()
            await self._run(session, hello, greeting, reader, writer)
        finally:
            del self._sessions[hello.session]
            await session.end()

    async def _second(
        self, hello: Hello, greeting: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        async with asyncio.timeout(self._timeouts.greeting):  # the first connection may be the slower one
            while (session := self._sessions.get(hello.session)) is None:
                self._begun.clear()
                await self._begun.wait()
        if hello.channel in session.wires:
            raise ProtocolError("a session must have one second connection")
        try:
            await self._run(session, hello, greeting, reader, writer)
        finally:
            first = session.wires.get(0)  # one cannot do without the other
            if first is not None:
                first.finish()

    async def _run(
        self,
        session: _Session,
        hello: Hello,
        greeting: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        wire = Wire(reader, writer, session, hello.channel, timeouts=self._timeouts, bucket=self._bucket)
        if hello.channels == 2 and wire.sock is not None:
            mark(wire.sock, self._marks[hello.channel])
        session.wires[hello.channel] = wire
        try:
            session.push(greeting, hello.channel)
            await wire.run()
        finally:
            session.wires.pop(hello.channel, None)


def serve(
    sources: Mapping[str, Source] | Resolve,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    ssl: tls.SSLContext | None = None,
    bucket: TokenBucket | None = None,
    limits: SenderLimits | None = None,
    timeouts: Timeouts | None = None,
    max_connections: int = 256,
    marks: tuple[int, int] = MARKS,
    on_event: Callable[[str, Event], None] | None = None,
) -> Server:
    """Send sources to the receivers that ask for them.

    There is no authentication: whoever can connect can ask for every name. Beyond one machine, pass an `ssl` context
    that demands certificates of receivers.

    Parameters
    ----------
    sources : mapping of str to Source, or callable
        What there is under each name; a callable gets the name, may be a coroutine function, and raises `LookupError`
        for what it does not know. Sources stay the caller's to close.
    host : str
        Address to listen on; by default nobody outside of this machine can connect.
    port : int
        0 for any; ``Server.port`` then says which.
    ssl : ssl.SSLContext, optional
        For TLS.
    bucket : TokenBucket, optional
        Limits the rate of all connections together.
    limits, timeouts
        What a receiver may make this side keep, and how long it may take.
    max_connections : int
        Connections at one time; further ones are closed at once.
    marks : (int, int)
        Differentiated services code points of the first and the second connection of a receiver that has two.
    on_event : callable, optional
        Called with a name and each event of its requests.

    Returns
    -------
    Server
        To be used with ``async with``.
    """
    return Server(
        sources,
        host,
        port,
        ssl=ssl,
        bucket=bucket,
        limits=limits,
        timeouts=timeouts,
        max_connections=max_connections,
        marks=marks,
        on_event=on_event,
    )
