"""`Wire`: carries the bytes of one state machine over one connection."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Protocol

from lynxq.errors import LynxqError, SilenceError, TransferError
from lynxq.stream.bucket import TokenBucket
from lynxq.stream.limits import Timeouts
from lynxq.stream.tcp.sockets import keep_queue_short

#: Bytes that are read, and asked for to be written, at a time.
PORTION = 1 << 16


class Machine(Protocol):
    """What a wire needs of a state machine."""

    def pull(self, size: int, lane: int) -> bytes:
        """The next bytes to send on a connection."""

    def push(self, data: bytes, lane: int) -> None:
        """Take bytes that came on a connection."""

    def keepalive(self, lane: int) -> None:
        """Queue a sign of life."""


class Wire:
    """One connection of a session.

    Parameters
    ----------
    reader, writer
        The streams of the connection; the wire closes them.
    machine : Machine
    lane : int
    timeouts : Timeouts
    bucket : TokenBucket, optional
        Limits what is sent.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        machine: Machine,
        lane: int,
        *,
        timeouts: Timeouts,
        bucket: TokenBucket | None = None,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._machine = machine
        self._lane = lane
        self._timeouts = timeouts
        self._bucket = bucket
        self._more = asyncio.Event()
        self._finishing = False
        # With no room above 0 a write returns control only when the kernel has taken all of it.
        writer.transport.set_write_buffer_limits(high=0)
        sock = writer.get_extra_info("socket")
        if sock is not None:
            keep_queue_short(sock)

    @property
    def sock(self) -> socket.socket | None:
        """The socket, where there is one."""
        found: socket.socket | None = self._writer.get_extra_info("socket")
        return found

    def wake(self) -> None:
        """There may be something to send."""
        self._more.set()

    def finish(self) -> None:
        """End when everything that can be sent has been sent."""
        self._finishing = True
        self._more.set()

    async def run(self) -> None:
        """Carry bytes until the peer closes the connection, or `finish`.

        Raises
        ------
        TransferError
            If the peer breaks a rule, is silent for too long, or the connection is lost.
        OSError
            If the connection is lost.
        """
        tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except LynxqError:
            self._last_words()
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.close()

    async def _read(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._timeouts.silence):
                    data = await self._reader.read(PORTION)
            except TimeoutError:
                raise SilenceError(f"the peer was silent for {self._timeouts.silence:g} s") from None
            if not data:
                return
            self._machine.push(data, self._lane)
            self._more.set()

    async def _write(self) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._timeouts.keepalive
        while True:
            size = await self._portion(deadline)
            self._more.clear()
            data = self._machine.pull(size, self._lane)
            if data:
                if self._bucket is not None:
                    self._bucket.spend(len(data))
                await self._send(data)
                deadline = clock() + self._timeouts.keepalive
            elif self._finishing:
                return
            elif clock() >= deadline:  # however often it was woken for nothing
                self._machine.keepalive(self._lane)
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(deadline):
                        await self._more.wait()

    async def _portion(self, deadline: float) -> int:
        """How many bytes may be sent, when some may; one record if it is time for a sign of life before that."""
        if self._bucket is None:
            return PORTION
        try:
            async with asyncio.timeout_at(deadline):
                await self._bucket.wait()
        except TimeoutError:
            self._machine.keepalive(self._lane)
            return 1
        return min(PORTION, self._bucket.portion)

    async def _send(self, data: bytes) -> None:
        self._writer.write(data)
        try:
            async with asyncio.timeout(self._timeouts.silence):
                await self._writer.drain()
                await asyncio.sleep(0)  # a fast link must not keep the loop to itself
        except TimeoutError:
            raise SilenceError(f"the peer took nothing for {self._timeouts.silence:g} s") from None

    def _last_words(self) -> None:
        """Say what went wrong, if the kernel takes it at once."""
        with suppress(OSError, TransferError):
            self._writer.write(self._machine.pull(PORTION, self._lane))

    async def close(self) -> None:
        """Close the connection; what the peer does not take within a second is dropped."""
        self._writer.close()
        try:
            async with asyncio.timeout(1.0):
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            pass
        finally:
            self.abort()  # of no effect on what is closed

    def abort(self) -> None:
        """Close the connection, and drop what the peer has not taken."""
        self._writer.transport.abort()


async def first_to_end(wires: list[Wire]) -> None:
    """Run wires that belong together until one of them ends; raises what it raised."""
    tasks = [asyncio.create_task(wire.run()) for wire in wires]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
