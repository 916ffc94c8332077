"""`Client`: asks a server for tensors, and goes on where it was when a connection is lost."""

from __future__ import annotations

import asyncio
import ssl as tls
from collections.abc import Callable
from types import TracebackType
from typing import Self

from lynxq.arguments import instance, integer, real
from lynxq.errors import ConnectionLostError, DTypeError, LynxqError, ParamsError, TransferError
from lynxq.layout import Tier
from lynxq.stream.events import AnchorPage, Closed, ResidualPage
from lynxq.stream.limits import ReceiverLimits, Timeouts
from lynxq.stream.received import Received
from lynxq.stream.receiver import Receiver
from lynxq.stream.tcp.sockets import MARKS, code_points, mark
from lynxq.stream.tcp.transfer import MakeSink, Ready, Transfer
from lynxq.stream.tcp.wire import Wire, first_to_end


class Client:
    """Receives from one server. Made by :func:`connect`; use it with ``async with``."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        lanes: int,
        ssl: tls.SSLContext | None,
        limits: ReceiverLimits | None,
        timeouts: Timeouts | None,
        attempts: int,
        delay: float,
        marks: tuple[int, int],
    ) -> None:
        self._address = host, integer("port", port, 1, 65535, ParamsError)
        self._lanes = integer("lanes", lanes, 1, 2, ParamsError)
        self._ssl = ssl
        self._timeouts = Timeouts() if timeouts is None else timeouts
        instance("timeouts", self._timeouts, Timeouts, DTypeError)
        self._attempts = integer("attempts", attempts, 1, 1 << 30, ParamsError)
        self._delay = real("delay", delay, 0.0)
        self._marks = code_points(marks)
        self._receiver = Receiver(limits)
        self._transfers: dict[int, Transfer] = {}
        self._wires: list[Wire] = []
        self._wanted = asyncio.Event()  # there is a request that has not ended
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self._pages = 0
        self._delivering = False
        #: How often a connection was made.
        self.connections = 0

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise TransferError("a client must be entered once, make another one with `connect`")
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel what has not ended, and close the connections."""
        self._closing = True
        for transfer in list(self._transfers.values()):
            transfer.cancel()
        self._receiver.close()
        for wire in self._wires:
            wire.finish()
        if self._task is None:
            return
        try:
            if self._wires:
                await asyncio.wait([self._task], timeout=1.0)
        finally:
            self._task.cancel()  # also if it is the closing that is cancelled
        await asyncio.gather(self._task, return_exceptions=True)

    # --- requests ----------------------------------------------------------------------------------

    async def request(
        self,
        name: str,
        tier: Tier = "full",
        *,
        sink: MakeSink = Received,
        on_anchor_ready: Callable[[Ready], None] | None = None,
        on_residual_ready: Callable[[Ready], None] | None = None,
    ) -> Transfer:
        """Ask for a name; returns when the header is here.

        A server says how many requests of a connection it serves at a time. A further one waits until another one has
        ended: put `asyncio.timeout` around it to wait no longer than that. One that is cancelled while it waits is
        never made.

        Parameters
        ----------
        name : str
        tier : {"full", "anchor"}
            With "anchor" no residual is sent.
        sink : callable, optional
            Makes what takes the pages: called with the `Header`, returns an object with a method ``add`` that is called
            with each `AnchorPage` and `ResidualPage`. By default :class:`Received`, which puts the tensors together.
        on_anchor_ready, on_residual_ready : callable, optional
            Called with a `Ready` for each page, after it was taken.

        Raises
        ------
        RequestError
            If the server refuses.
        ConnectionLostError
            If it cannot be reached.
        """
        if self._task is None or self._task.done() or self._closing:
            raise TransferError("a client asks within its `async with`")
        if self._task.get_loop() is not asyncio.get_running_loop():
            raise TransferError("a client must be used in the event loop in which it was entered")
        number = self._receiver.request(name, tier)
        transfer = self._transfers[number] = Transfer(
            name,
            number,
            cancel=lambda: self._cancel(number),
            make_sink=sink,
            on_anchor_ready=on_anchor_ready,
            on_residual_ready=on_residual_ready,
        )
        self._wanted.set()
        self._wake()
        try:
            await transfer.opened()
        except asyncio.CancelledError:
            transfer.cancel()
            raise
        return transfer

    def _cancel(self, number: int) -> None:
        self._receiver.cancel(number)
        self._deliver()
        self._wake()

    # --- the connections ---------------------------------------------------------------------------

    def _wake(self) -> None:
        for wire in self._wires:
            wire.wake()

    def push(self, data: bytes, lane: int) -> None:
        """Take bytes that came on a connection."""
        try:
            self._receiver.receive(data, lane)
        finally:
            self._deliver()
        self._wake()

    def pull(self, size: int, lane: int) -> bytes:
        """The next bytes to send on a connection; there are never many."""
        del size
        return self._receiver.data_to_send(lane)

    def keepalive(self, lane: int) -> None:
        """Queue a sign of life."""
        self._receiver.keepalive(lane)

    def _deliver(self) -> None:
        """Hand events over to the transfers, in the order of the receiver: anchors first."""
        if self._delivering:  # a callback cancels something: it is told when the callback has returned
            return
        self._delivering = True
        try:
            self._deliver_all()
        finally:
            self._delivering = False
        if not self._transfers:
            self._wanted.clear()

    def _deliver_all(self) -> None:
        while (event := self._receiver.next_event()) is not None:
            if isinstance(event, Closed):
                for wire in self._wires:
                    wire.finish()
                continue
            transfer = self._transfers.get(event.request)
            if transfer is None:
                continue
            self._pages += isinstance(event, AnchorPage | ResidualPage)
            try:
                transfer.take(event)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - a sink or callback; only this ends
                self._receiver.cancel(event.request)
                wrapped = TransferError(f"a callback of {transfer.name!r} failed: {_said(error)}")
                wrapped.__cause__ = error
                transfer.fail(wrapped)
            if transfer.ended:
                self._transfers.pop(event.request, None)

    async def _run(self) -> None:
        """Keep a connection as long as there is something to receive."""
        try:
            await self._keep_connected()
        except BaseException as error:
            self._give_up(f"ended: {error!r}", error)  # nobody waits for ever, whatever it was
            raise

    async def _keep_connected(self) -> None:
        failures = 0
        while not self._closing:
            await self._wanted.wait()
            pages, error = self._pages, None  # type: int, Exception | None
            try:
                await self._connection()
            except (OSError, LynxqError, TimeoutError) as caught:
                error = caught
            except Exception as caught:  # noqa: BLE001 - not the network's: it would be the same another time
                self._give_up(f"failed: {caught!r}", caught)
                continue
            failures = failures + 1 if self._transfers and self._pages == pages else 0
            if failures >= self._attempts:
                self._give_up(f"was lost {self._attempts} times: {_said(error)}", error)
                failures = 0
            elif self._transfers and not self._closing:
                await asyncio.sleep(self._delay * min(2 ** min(failures, 5), 30))

    async def _connection(self) -> None:
        """Make the connections of a session, and carry bytes until one of them ends."""
        wires: list[Wire] = []
        try:
            for lane in range(self._lanes):
                async with asyncio.timeout(self._timeouts.greeting):
                    reader, writer = await asyncio.open_connection(*self._address, ssl=self._ssl)
                wires.append(Wire(reader, writer, self, lane, timeouts=self._timeouts))
                if self._lanes == 2 and wires[-1].sock is not None:
                    mark(wires[-1].sock, self._marks[lane])
            self._receiver.connect(self._lanes, ahead=1)
            self.connections += 1
            self._wires = wires
            await first_to_end(wires)
        finally:
            self._wires = []
            self._receiver.disconnect()
            try:
                for wire in wires:
                    await wire.close()
            finally:
                for wire in wires:  # of no effect on what is closed
                    wire.abort()

    def _give_up(self, what: str, error: BaseException | None) -> None:
        """End all transfers: the server cannot be reached, or sends nothing that can be used."""
        for number, transfer in list(self._transfers.items()):
            self._receiver.cancel(number)
            lost = ConnectionLostError(f"the connection to {self._address} {what}")
            lost.__cause__ = error
            transfer.fail(lost)
        self._transfers.clear()
        self._deliver()


def _said(error: BaseException | None) -> str:
    """What an error says; some say nothing but what they are."""
    return str(error) or type(error).__name__


def connect(
    host: str,
    port: int,
    *,
    lanes: int = 1,
    ssl: tls.SSLContext | None = None,
    limits: ReceiverLimits | None = None,
    timeouts: Timeouts | None = None,
    attempts: int = 5,
    delay: float = 0.1,
    marks: tuple[int, int] = MARKS,
) -> Client:
    """A client of a server; it connects when the first request is made.

    Parameters
    ----------
    host, port : str, int
        Of the server.
    lanes : {1, 2}
        1: all goes over one connection, on which what is sent is chosen at the last moment. 2: residuals have a
        connection of their own, so that the network can treat them differently.
    ssl : ssl.SSLContext, optional
        For TLS.
    limits, timeouts
        What the server may make this side keep, and how long it may take.
    attempts : int
        After so many connections in a row that brought no page, transfers fail with `ConnectionLostError`.
    delay : float
        Seconds before a connection is made again; doubled with each failure, at most 30 times as long.
    marks : (int, int)
        Differentiated services code points of the two connections.

    Returns
    -------
    Client
        To be used with ``async with``.
    """
    return Client(
        host,
        port,
        lanes=lanes,
        ssl=ssl,
        limits=limits,
        timeouts=timeouts,
        attempts=attempts,
        delay=delay,
        marks=marks,
    )
