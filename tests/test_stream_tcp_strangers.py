"""Peers over TCP that break the rules: strangers, those that stop, those that ask for too much."""

import asyncio
import time
from contextlib import asynccontextmanager, suppress

import pytest

from lynxq import stream
from lynxq.errors import ConnectionLostError, ParamsError
from lynxq.stream import EncodedSource, Timeouts, tcp
from lynxq.stream.messages import Hello, Role
from lynxq.stream.records import HEADER_SIZE, Record, RecordReader, Type
from tests.stream_tools import encoded, source, wide
from tests.tcp_tools import LOCAL, QUICK, check, connect, run


def test_searches_end_with_their_requests():
    """Whoever asks and cancels without end does not fill the server with searches."""

    async def main():
        searching = []
        never = asyncio.Event()

        async def resolve(name):
            searching.append(name)
            try:
                await never.wait()
            finally:
                searching.remove(name)

        async with tcp.serve(resolve) as server:
            with pytest.raises(ParamsError):
                await server.delivered("p")
            reader, writer = await asyncio.open_connection(LOCAL, server.port)
            writer.write(GREETING)
            for request in range(1, 500):
                writer.write(Record(Type.REQUEST, 1, request, body=b"p").pack())
                writer.write(Record(Type.CANCEL, request=request).pack())
                await asyncio.sleep(0)
            writer.write(Record(Type.REQUEST, 1, 1000, body=b"last").pack())
            while "last" not in searching:
                await asyncio.sleep(0.001)
            assert searching == ["last"]
            writer.close()
            await writer.wait_closed()
            while searching:
                await asyncio.sleep(0.001)
            del reader

    run(main)


async def talk(port, data, *, wait=True):
    """Say something to a server and return its answer, when it has hung up."""
    reader, writer = await asyncio.open_connection(LOCAL, port)
    try:
        writer.write(data)
        return await reader.read() if wait else b""
    except ConnectionError:
        return b""
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


GREETING = Hello(role=Role.RECEIVER, session=b"t" * 16, max_data=256).record().pack()
SECOND = Hello(role=Role.RECEIVER, session=b"u" * 16, max_data=256, lane=1, lanes=2).record().pack()


@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.1\r\n\r\n" + bytes(200),
        bytes(1000),
        GREETING[:50],
        GREETING[:-1] + b"\1",
        GREETING + bytes(100),
        GREETING + Record(Type.AGAIN, 0, 9).pack(),
        GREETING,  # and then silence
        SECOND,
    ],
)
def test_strangers_are_hung_up_on(words):
    async def main():
        timeouts = Timeouts(greeting=0.2, silence=0.2, keepalive=0.1)
        async with tcp.serve({"p": source()}, timeouts=timeouts) as server:
            answer = await talk(server.port, words)
            assert len(answer) < 2000
            async with connect(server) as client:  # others are served as ever
                transfer = await client.request("p")
                await transfer.done()
                check(transfer, encoded())

    run(main)


def test_a_receiver_that_reads_nothing_is_dropped():
    async def main():
        big = {"k": wide(16 * 100, channels=8000)}
        heard = []
        async with tcp.serve(
            {"p": EncodedSource(big)}, timeouts=QUICK, on_event=lambda _, event: heard.append(type(event).__name__)
        ) as server:
            reader, writer = await asyncio.open_connection(LOCAL, server.port, limit=1024)
            hello = Hello(role=Role.RECEIVER, session=b"s" * 16, max_data=1 << 16, max_control=1 << 20,
                          anchor_limit=1 << 40, residual_limit=1 << 40)  # fmt: skip
            writer.write(hello.record().pack() + Record(Type.REQUEST, 1, 1, body=b"p").pack())
            while "Cancelled" not in heard:
                writer.write(Record(Type.PING).pack())  # it is alive, and takes nothing
                await asyncio.sleep(0.02)
            writer.transport.abort()
            del reader

    run(main)


@pytest.mark.parametrize("missing", ["credit", "word that it accepts", "word that it has all"])
def test_a_receiver_that_is_alive_and_stops_is_dropped(missing):
    async def main():
        heard = []
        async with tcp.serve(
            {"p": source()},
            timeouts=Timeouts(silence=5, keepalive=0.05, stall=0.3),
            on_event=lambda _, event: heard.append(type(event).__name__),
        ) as server:
            reader, writer = await asyncio.open_connection(LOCAL, server.port)
            credit = 1000 if missing == "credit" else 1 << 30
            hello = Hello(role=Role.RECEIVER, session=b"s" * 16, max_data=1 << 16, max_control=1 << 20,
                          anchor_limit=credit, residual_limit=credit)  # fmt: skip
            writer.write(hello.record().pack() + Record(Type.REQUEST, 1, 1, body=b"p").pack())
            if missing != "word that it accepts":
                writer.write(Record(Type.ACCEPT, request=1).pack())
            reading = asyncio.create_task(reader.read())
            while "Cancelled" not in heard:
                writer.write(Record(Type.PING).pack())
                await asyncio.sleep(0.01)
            await asyncio.gather(reading, return_exceptions=True)
            writer.transport.abort()

    run(main)


@pytest.mark.parametrize("lanes", [1, 2])
def test_signs_of_life_are_sent_on_every_lane(lanes):
    """The transfer takes longer than anyone may be silent, and most of the time one lane or direction has nothing."""

    async def main():
        tensors = {"k": wide(16 * 30)}
        size = EncodedSource(tensors).header.segment_size
        async with (
            tcp.serve({"p": EncodedSource(tensors)}, bucket=tcp.TokenBucket(size / 2), timeouts=QUICK) as server,
            connect(server, lanes=lanes, timeouts=QUICK) as client,
        ):
            transfer = await client.request("p")
            await transfer.done()
            check(transfer, tensors)
            assert client.connections == 1

    run(main)


def test_a_source_may_take_its_time():
    """Longer than a peer may be silent, and than a receiver may stop."""

    async def main():
        tensors = {"k": wide(32)}

        def pieces():
            for page in range(2):
                time.sleep(0.6)
                yield "k", tensors["k"].pages(page, page + 1)

        timeouts = Timeouts(silence=0.3, keepalive=0.05, stall=0.2)
        with stream.EncodingSource({"k": tensors["k"].layout}, pieces()) as slow:
            async with (
                tcp.serve({"p": slow}, timeouts=timeouts) as server,
                connect(server, timeouts=timeouts) as client,
            ):
                transfer = await client.request("p")
                await transfer.done()
                check(transfer, tensors)
                assert client.connections == 1

    run(main)


def test_connections_are_limited():
    async def main():
        async with (
            tcp.serve({"p": source()}, max_connections=2) as server,
            connect(server) as one,
            connect(server) as two,
            connect(server, attempts=1) as three,
        ):
            for client in (one, two):
                await (await client.request("p")).done()
            with pytest.raises(ConnectionLostError):
                await three.request("p")

    run(main)


@asynccontextmanager
async def stranger(script):
    """A server that says what a script says; gives its port."""
    tasks = set()

    async def handle(reader, writer):
        tasks.add(asyncio.current_task())
        try:
            await script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(handle, LOCAL, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


async def hello_of(reader, writer):
    data = await reader.readexactly(2 * HEADER_SIZE)
    theirs = Hello.read(next(RecordReader(0, 4096).feed(data)))
    writer.write(Hello(role=Role.SENDER, session=theirs.session, max_requests=1).record().pack())


@pytest.mark.parametrize("kind", ["silent", "mute", "noise", "hangs up", "wrong session", "error"])
def test_servers_that_are_none(kind):
    async def script(reader, writer):
        if kind == "hangs up":
            return
        if kind == "noise":
            writer.write(b"SSH-2.0-OpenSSH_9.9\r\n" * 20)
        elif kind == "wrong session":
            writer.write(Hello(role=Role.SENDER, session=b"x" * 16).record().pack())
        elif kind == "error":
            await hello_of(reader, writer)
            writer.write(Record(Type.ERROR, body=b"\3\0\0\0go away").pack())
        elif kind == "mute":
            await hello_of(reader, writer)
        await reader.read()

    async def main():
        async with (
            stranger(script) as port,
            tcp.connect(LOCAL, port, attempts=2, delay=0.001, timeouts=QUICK) as client,
        ):
            with pytest.raises(ConnectionLostError) as caught:
                await client.request("p")
            if kind == "error":
                assert "go away" in str(caught.value)
            assert client.connections == 2

    run(main)


def test_a_server_that_only_says_that_it_lives_can_be_left():
    async def script(reader, writer):
        await hello_of(reader, writer)
        while True:
            writer.write(Record(Type.PING).pack())
            await asyncio.sleep(0.02)

    async def main():
        async with stranger(script) as port, tcp.connect(LOCAL, port, timeouts=QUICK) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await client.request("p")

    run(main)
