"""Transfers through a network that cuts, corrupts, stalls and delays, and pages that never come."""

import asyncio

import numpy as np
import pytest

from lynxq.errors import IncompleteError, RequestError
from lynxq.stream import EncodedSource, ReceiverLimits, tcp
from tests.stream_tools import coded, encoded
from tests.tcp_tools import LOCAL, QUICK, check, connect, run


class Proxy:
    """Passes bytes on, and misbehaves.

    Parameters
    ----------
    port : int
        Of the server.
    cut : int, optional
        Bytes from the server after which a connection is cut; the next one may carry more.
    corrupt : float
        Share of the portions from the server in which a bit is flipped.
    stall : int, optional
        Bytes after which the first connection says nothing more.
    portion : int
        Bytes that are passed on at a time.
    delays : (float, float)
        Seconds that portions of the first and the second connection are held.
    """

    def __init__(self, port, *, cut=None, corrupt=0.0, stall=None, portion=1 << 16, delays=(0.0, 0.0)):
        self.to, self.cut, self.corrupt, self.stall = port, cut, corrupt, stall
        self.portion, self.delays = portion, delays
        self.connections = 0
        self.random = np.random.default_rng(0)
        self.tasks = set()

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.accept, LOCAL, 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self.server.close()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.server.wait_closed()

    async def accept(self, reader, writer):
        task = asyncio.current_task()
        self.tasks.add(task)
        number = self.connections
        self.connections += 1
        try:
            to_reader, to_writer = await asyncio.open_connection(LOCAL, self.to)
        except ConnectionError:
            writer.transport.abort()
            return
        ways = [
            asyncio.create_task(self.there(reader, to_writer)),
            asyncio.create_task(self.back(to_reader, writer, number)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            writer.transport.abort()
            to_writer.transport.abort()
            await asyncio.sleep(0)
            self.tasks.discard(task)

    async def there(self, reader, writer):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()

    async def back(self, reader, writer, number):
        passed = 0
        while data := await reader.read(self.portion):
            if self.cut is not None and passed + len(data) > self.cut:
                writer.write(data[: self.cut - passed])
                await writer.drain()
                self.cut = self.cut * 3 // 2
                return
            if self.stall is not None and number == 0 and passed + len(data) > self.stall:
                await asyncio.sleep(3600)
            if self.corrupt and self.random.random() < self.corrupt:
                changed = bytearray(data)
                changed[self.random.integers(len(data))] ^= 1 << int(self.random.integers(8))
                data = bytes(changed)
            await asyncio.sleep(self.delays[number % 2])
            passed += len(data)
            writer.write(data)
            await writer.drain()


def through(proxy_arguments, *, lanes=1, tensors=None, limits=None, **client_arguments):
    """A transfer through a proxy; returns the transfer, the client and the proxy."""
    found = []

    async def main():
        sent = encoded() if tensors is None else tensors
        async with (
            tcp.serve({"p": EncodedSource(sent)}) as server,
            Proxy(server.port, **proxy_arguments) as proxy,
            tcp.connect(
                LOCAL,
                proxy.port,
                lanes=lanes,
                limits=limits or ReceiverLimits(max_data=512),
                **{"delay": 0.001, "timeouts": QUICK, "attempts": 20, **client_arguments},
            ) as client,
        ):
            transfer = await client.request("p")
            await transfer.done()
            check(transfer, sent)
            found.extend((transfer, client, proxy))

    run(main)
    return found


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_connection_that_is_cut_again_and_again(lanes):
    transfer, client, _ = through({"cut": 1500}, lanes=lanes)
    assert client.connections > 2
    assert transfer.retried == 0


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_connection_that_corrupts(lanes):
    """A bit of a page costs the page, a bit of a record's header the connection; neither is ever used."""
    transfer, client, _ = through({"corrupt": 0.15, "portion": 700}, lanes=lanes, attempts=200)
    assert transfer.retried + client.connections > 3


def test_a_connection_that_stalls():
    _, client, _ = through({"stall": 3000})
    assert client.connections == 2


@pytest.mark.parametrize("delays", [(0.0, 0.004), (0.004, 0.0)])
def test_connections_of_which_one_is_slower(delays):
    """Whichever connection is ahead, residuals wait for their anchors."""
    transfer, client, _ = through({"delays": delays, "portion": 500}, lanes=2)
    assert client.connections == 1
    assert transfer.retried == 0


def test_a_slow_connection():
    through({"delays": (0.001, 0.001), "portion": 100}, tensors={"k": coded(80)})


@pytest.mark.parametrize("lanes", [1, 2])
def test_residuals_that_never_come(lanes):
    """Whoever may, goes on with the anchors, and is never told that they are more than that."""

    class Half(EncodedSource):
        def frame(self, which, tensor, page):
            return super().frame(which, tensor, page) if which == "anchor" else None

    async def main():
        async with tcp.serve({"p": Half(encoded())}) as server, connect(server, lanes=lanes) as client:
            transfer = await client.request("p")
            await transfer.anchors()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await transfer.done()
            for name, wanted in encoded().items():
                if wanted.layout.pages:
                    assert transfer.tier(name) == "anchor"
                    with pytest.raises(IncompleteError, match="residual page 0"):
                        transfer.decode(name)
            check(transfer, encoded(), "anchor")
            transfer.cancel()
            with pytest.raises(RequestError, match="cancelled"):
                await transfer.done()
            check(transfer, encoded(), "anchor")  # what is here stays

    run(main)


def test_a_page_that_is_damaged_each_time():
    async def main():
        class Rotten(EncodedSource):
            def frame(self, which, tensor, page):
                frame = super().frame(which, tensor, page)
                if (which, tensor, page) == ("residual", 0, 1):
                    return frame._replace(payload=bytes(len(frame.payload)))
                return frame

        async with tcp.serve({"p": Rotten(encoded())}) as server, connect(server) as client:
            transfer = await client.request("p")
            await transfer.anchors()
            with pytest.raises(IncompleteError, match="residual page 1 of 'k' will not come"):
                await transfer.done()
            with pytest.raises(IncompleteError):
                [each async for each in transfer.ready()]
            assert (transfer.retried, len(transfer.damaged)) == (3, 1)
            assert transfer.tier("k") == "anchor"  # and the result says so
            check(transfer, encoded(), "anchor")

    run(main)
