"""`Server`: sends the sources that receivers ask for by name."""

from __future__ import annotations

import asyncio
import ssl as tls
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from lynxq.arguments import instance, integer, shown
from lynxq.errors import DTypeError, LynxqError, ParamsError, ProtocolError, TransferError
from lynxq.stream.bucket import TokenBucket
from lynxq.stream.events import Delivered, Event
from lynxq.stream.limits import SenderLimits, Timeouts
from lynxq.stream.messages import HELLO_SIZE, Hello
from lynxq.stream.records import HEADER_SIZE, RecordReader
from lynxq.stream.sources import Source
from lynxq.stream.tcp.session import Resolve, Session
from lynxq.stream.tcp.sockets import MARKS, code_points, mark
from lynxq.stream.tcp.wire import Wire


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
        if not callable(sources):
            instance("sources", sources, Mapping, DTypeError)
        self.resolve: Resolve = sources.__getitem__ if isinstance(sources, Mapping) else sources
        self._names = sources if isinstance(sources, Mapping) else {}
        self.host = host
        self.port = integer("port", port, 0, 65535, ParamsError)
        self.limits = SenderLimits() if limits is None else limits
        instance("limits", self.limits, SenderLimits, DTypeError)
        self._ssl = ssl
        self._bucket = bucket
        self.timeouts = Timeouts() if timeouts is None else timeouts
        instance("timeouts", self.timeouts, Timeouts, DTypeError)
        self._max_connections = integer("max_connections", max_connections, 1, 1 << 20, ParamsError)
        self._marks = code_points(marks)
        self._on_event = on_event
        self._server: asyncio.Server | None = None
        self._sessions: dict[bytes, Session] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self._delivered: Counter[str] = Counter()
        self._begun = asyncio.Event()
        self._news = asyncio.Event()
        self._closed = False

    async def __aenter__(self) -> Self:
        if self._server is not None:
            raise TransferError("a server must be entered once, make another one with `serve`")
        handshake = None if self._ssl is None else self.timeouts.greeting
        self._server = await asyncio.start_server(
            self._accept, self.host, self.port, ssl=self._ssl, ssl_handshake_timeout=handshake
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop listening and end all connections at once."""
        self._closed = True
        self._news.set()  # nobody waits for a delivery that cannot come
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    async def delivered(self, name: str, times: int = 1) -> None:
        """Return when receivers have got all of a name that they asked for, so many times since the beginning.

        Only for names of a mapping: what a function finds may be without end, and is not counted; see `on_event`.

        Raises
        ------
        ParamsError
            If it is none of them.
        TransferError
            If the server has closed before.
        """
        if name not in self._names:
            raise ParamsError(f"deliveries are counted for the names of a mapping only, got {shown(name)}")
        while self._delivered[name] < times:
            if self._closed:
                found = self._delivered[name]
                raise TransferError(
                    f"{shown(name)} was delivered {found} of {times} times before the server was closed"
                )
            self._news.clear()
            await self._news.wait()

    def tell(self, name: str, event: Event) -> None:
        """Pass an event on."""
        if isinstance(event, Delivered) and name in self._names:
            self._delivered[name] += 1
            self._news.set()
        if self._on_event is None:
            return
        try:
            self._on_event(name, event)
        except Exception as error:  # noqa: BLE001 - the application's code; no receiver shall suffer from it
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"on_event of a server failed for {shown(name)}", "exception": error}
            )

    # --- connections -------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or self._closed or len(self._connections) >= self._max_connections:
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
        async with asyncio.timeout(self.timeouts.greeting):
            greeting = await reader.readexactly(HEADER_SIZE + HELLO_SIZE)
        records = list(RecordReader(0, HELLO_SIZE).feed(greeting))
        if not records:
            raise ProtocolError("a connection must begin with a greeting")
        hello = Hello.read(records[0])
        if hello.lane:
            await self._second(hello, greeting, reader, writer)
            return
        if hello.session in self._sessions:
            raise ProtocolError("a session must begin once")
        session = self._sessions[hello.session] = Session(self)
        try:
            self._begun.set()
            await self._run(session, hello, greeting, reader, writer)
        finally:
            del self._sessions[hello.session]
            await session.end()

    async def _second(
        self, hello: Hello, greeting: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        async with asyncio.timeout(self.timeouts.greeting):  # the first connection may be the slower one
            while (session := self._sessions.get(hello.session)) is None:
                self._begun.clear()
                await self._begun.wait()
        if hello.lane in session.wires:
            raise ProtocolError("a session must have one second connection")
        try:
            await self._run(session, hello, greeting, reader, writer)
        finally:
            session.lose()

    async def _run(
        self,
        session: Session,
        hello: Hello,
        greeting: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        wire = Wire(reader, writer, session, hello.lane, timeouts=self.timeouts, bucket=self._bucket)
        if hello.lanes == 2 and wire.sock is not None:
            mark(wire.sock, self._marks[hello.lane])
        session.wires[hello.lane] = wire
        try:
            session.push(greeting, hello.lane)
            await wire.run()
        finally:
            session.wires.pop(hello.lane, None)


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
