"""Transfers over TCP: the two connections, TLS, limits, and what goes wrong between two processes."""

import asyncio
import socket
import ssl
import time
import warnings
from contextlib import asynccontextmanager, suppress

import numpy as np
import pytest

import lynxq
from lynxq import stream
from lynxq.errors import (
    ConnectionLostError,
    IncompleteError,
    MissingTensorError,
    ParamsError,
    RequestError,
    ShapeError,
    TransferError,
)
from lynxq.stream import EncodedSource, ReceiverLimits, SenderLimits, Timeouts, tcp
from lynxq.stream.messages import Code, Hello, Role
from lynxq.stream.records import HEADER_SIZE, Record, RecordReader, Type
from tests.stream_tools import coded, encoded, same, wide

LOCAL = "127.0.0.1"
QUICK = Timeouts(greeting=2, silence=0.3, keepalive=0.1)


def run(main):
    """Run a coroutine function; nothing of it may be left over: no task, no socket, no thread."""

    async def checked():
        async with asyncio.timeout(60):
            await main()
        for _ in range(20):
            await asyncio.sleep(0)
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert left == [], left

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a socket that is not closed is a ResourceWarning
        asyncio.run(checked())


def source(seed=0):
    return EncodedSource(encoded(seed), metadata={"model": "toy"})


def connect(server, **arguments):
    return tcp.connect(LOCAL, server.port, **{"delay": 0.001, **arguments})


def check(transfer, tensors, tier="full"):
    for name, wanted in tensors.items():
        assert same(transfer.encoded(name, tier), wanted)


# --- what works --------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_transfer(lanes):
    async def main():
        events = []
        async with (
            tcp.serve(
                {"p": source()}, on_event=lambda name, event: events.append((name, type(event).__name__))
            ) as server,
            connect(server, lanes=lanes) as client,
        ):
            assert server.host == LOCAL
            transfer = await client.request("p")
            assert transfer.metadata == {"model": "toy"}
            assert list(transfer.layouts) == ["k", "v", "empty"]
            ready = [each async for each in transfer.ready()]
            await transfer.anchors()
            await transfer.done()
            check(transfer, encoded())
            for which in ("anchor", "residual"):
                pages = [
                    (each.name, page) for each in ready if each.stream == which for page in range(each.start, each.stop)
                ]
                assert sorted(pages) == [("k", 0), ("k", 1), ("k", 2), ("k", 3), ("v", 0), ("v", 1)]
            await server.delivered("p")
            assert events == [("p", "Requested"), ("p", "Delivered")]
            assert client.connections == 1

    run(main)


def test_callbacks_come_anchors_first_and_pages_can_be_decoded_in_them():
    async def main():
        wanted = encoded()["k"]
        cache = np.zeros((50, 40), np.float32)
        order = []

        def refine(ready, tier):
            order.append(ready.stream)
            if ready.name == "k":
                tokens = slice(ready.start * 16, min(ready.stop * 16, 50))
                transfers[0].decode("k", tier, pages=(ready.start, ready.stop), out=cache[tokens])

        transfers = []

        class Early(stream.Received):
            """So that the first callback finds it: it comes before `request` returns."""

            def __init__(self, header):
                super().__init__(header)
                transfers.append(self)

        async with tcp.serve({"p": source()}) as server, connect(server) as client:
            transfer = await client.request(
                "p",
                sink=Early,
                on_anchor_ready=lambda ready: refine(ready, "anchor"),
                on_residual_ready=lambda ready: refine(ready, "full"),
            )
            await transfer.done()
            assert order == sorted(order)
            assert len(order) == 12
            assert cache.tobytes() == lynxq.decode_full(wanted).tobytes()

    run(main)


def test_encoding_while_sending():
    async def main():
        x = lynxq.testing.contents("normal", (1, 3, 1000, 8), "float32")
        params = lynxq.Params(page=32, range_size=32, chunk=32)
        made = {}

        def resolve(name):
            made[name] = stream.encoding({"k": x, "v": x}, params, token_axis=2, ahead=2)
            return made[name]

        async with tcp.serve(resolve) as server, connect(server) as client:
            transfer = await client.request("any")
            await transfer.done()
            whole = lynxq.encode(x, params, token_axis=2)
            check(transfer, {"k": whole, "v": whole})
        made["any"].close()

    run(main)


def test_many_requests_at_once():
    async def main():
        sources = {f"p{seed}": source(seed) for seed in range(20)}

        async def resolve(name):
            await asyncio.sleep(0.001)
            return sources[name]

        async with tcp.serve(resolve) as server, connect(server, lanes=2) as client:
            transfers = await asyncio.gather(*(client.request(name) for name in sources))
            await asyncio.gather(*(each.done() for each in transfers))
            for seed, transfer in enumerate(transfers):
                check(transfer, encoded(seed))
            assert client.connections == 1

    run(main)


def test_anchors_alone_and_later_requests_on_the_same_connection():
    async def main():
        async with tcp.serve({"p": source()}) as server, connect(server) as client:
            for _ in range(3):
                transfer = await client.request("p", "anchor")
                await transfer.done()
                assert transfer.tier("k") == "anchor"
                check(transfer, encoded(), "anchor")
                await asyncio.sleep(0.01)
            assert client.connections == 1

    run(main)


def test_two_receivers():
    async def main():
        async with tcp.serve({"p": source()}) as server, connect(server) as one, connect(server, lanes=2) as two:
            transfers = [await one.request("p"), await two.request("p")]
            for transfer in transfers:
                await transfer.done()
                check(transfer, encoded())
            await server.delivered("p", 2)

    run(main)


def test_tls():
    trustme = pytest.importorskip("trustme")

    async def main():
        authority = trustme.CA()
        ours, theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
        authority.issue_cert("localhost").configure_cert(ours)
        authority.configure_trust(theirs)
        async with tcp.serve({"p": source()}, ssl=ours) as server:
            for lanes in (1, 2):
                async with tcp.connect("localhost", server.port, ssl=theirs, lanes=lanes) as client:
                    transfer = await client.request("p")
                    await transfer.done()
                    check(transfer, encoded())
            # Who does not trust the authority, or speaks without TLS, gets nothing.
            async with tcp.connect("localhost", server.port, ssl=ssl.create_default_context(), attempts=1) as client:
                with pytest.raises(ConnectionLostError, match="CERTIFICATE_VERIFY_FAILED"):
                    await client.request("p")
            async with connect(server, attempts=1, timeouts=QUICK) as client:
                with pytest.raises(ConnectionLostError):
                    await client.request("p")

    run(main)


def test_a_token_bucket_limits_the_rate():
    """Sums of virtual time; nothing here depends on the speed of the machine but a lower bound."""
    now = [0.0]
    bucket = tcp.TokenBucket(1000.0, burst=50, clock=lambda: now[0])
    sent = 0
    for _ in range(100):
        now[0] += bucket.delay()
        assert bucket.delay() == pytest.approx(0, abs=1e-9)
        bucket.spend(30)
        sent += 30
        assert sent - 30 <= 50 + 1000 * now[0] + 1e-6
    assert now[0] == pytest.approx((sent - 50 - 30) / 1000, abs=0.031)
    now[0] += 1000
    assert bucket.delay() == 0
    bucket.spend(80)  # a pause gives no more than the burst
    assert bucket.delay() == pytest.approx(0.03)
    assert tcp.TokenBucket(1.0).portion == 1024
    for call in (lambda: tcp.TokenBucket(0), lambda: tcp.TokenBucket(1, burst=-1)):
        with pytest.raises(ParamsError):
            call()

    async def main():
        tensors = {"k": wide(16 * 30)}
        size = EncodedSource(tensors).header.segment_size
        async with (
            tcp.serve({"p": EncodedSource(tensors)}, bucket=tcp.TokenBucket(size * 4)) as server,
            connect(server, lanes=2) as client,
        ):
            begin = time.monotonic()
            transfer = await client.request("p")
            await transfer.done()
            assert time.monotonic() - begin > 0.2  # a quarter of a second, but for the last portion
            check(transfer, tensors)

    run(main)


def test_sockets_are_marked():
    marks = {}
    mark = tcp.client.mark

    def note(sock, code_point):
        result = mark(sock, code_point)
        marks[code_point] = sock.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) if result else None
        return result

    async def main():
        tcp.client.mark = tcp.server.mark = note
        try:
            async with (
                tcp.serve({"p": source()}, marks=(10, 8)) as server,
                connect(server, lanes=2, marks=(34, 1)) as client,
            ):
                await (await client.request("p")).done()
        finally:
            tcp.client.mark = tcp.server.mark = mark

    run(main)
    assert marks == {10: 40, 8: 32, 34: 136, 1: 4}


def test_little_waits_in_the_kernel():
    """An anchor that comes late overtakes what of residuals is not with the kernel yet."""

    async def main():
        size = 1 << 24
        big = {"k": wide(16 * 40, channels=8000)}
        assert EncodedSource(big).header.segment_size < size
        async with tcp.serve({"big": EncodedSource(big), "p": source()}) as server:
            reader, writer = await asyncio.open_connection(LOCAL, server.port, limit=1024)
            try:
                hello = Hello(
                    role=Role.RECEIVER, session=b"s" * 16, max_data=4096, max_control=1 << 20,
                    anchor_limit=size, residual_limit=size,
                )  # fmt: skip
                writer.write(hello.record().pack())
                for request, name in ((1, b"big"), (2, b"p")):
                    writer.write(Record(Type.REQUEST, 1, request, body=name).pack())
                    writer.write(Record(Type.ACCEPT, request=request).pack())
                    if request == 1:
                        await asyncio.sleep(0.2)  # nothing is read: anchors and residuals fill what there is to fill
                records, found = RecordReader(4096, 1 << 20), []
                while not any(record.request == 2 and record.type == Type.DATA for record in found):
                    found += records.feed(await reader.read(1 << 16))
                kinds = [record.kind for record in found if record.type == Type.DATA and record.request == 1]
                assert len(kinds) * 4096 < size // 2
            finally:
                writer.close()
                await writer.wait_closed()

    run(main)


# --- what goes wrong at one side ---------------------------------------------------------------------


def test_names_that_are_not_there_and_sources_that_fail():
    class Failing(EncodedSource):
        def frame(self, which, tensor, page):
            raise OSError("disk on fire")

    def resolve(name):
        if name == "broken":
            raise ZeroDivisionError("secret")
        return {"failing": Failing(encoded()), "good": source()}[name]

    async def main():
        async with tcp.serve(resolve) as server, connect(server) as client:
            with pytest.raises(RequestError) as caught:
                await client.request("absent")
            assert caught.value.code == Code.UNKNOWN
            with pytest.raises(RequestError) as caught:
                await client.request("broken")
            assert caught.value.code == Code.FAILED
            assert "secret" not in str(caught.value)
            transfer = await client.request("failing")
            for wait in (transfer.done, transfer.anchors):
                with pytest.raises(RequestError, match="disk on fire"):
                    await wait()
            with pytest.raises(RequestError, match="disk on fire"):
                [each async for each in transfer.ready()]
            good = await client.request("good")
            await good.done()
            check(good, encoded())
            assert client.connections == 1

    run(main)


def test_nobody_is_there():
    with socket.socket() as free:
        free.bind((LOCAL, 0))
        port = free.getsockname()[1]

    async def main():
        async with tcp.connect(LOCAL, port, attempts=3, delay=0.001) as client:
            with pytest.raises(ConnectionLostError, match="3 times"):
                await client.request("p")
        with pytest.raises(TransferError):
            await client.request("p")

    run(main)


def test_one_of_two_requests_is_cancelled():
    async def main():
        heard = []
        big = {"k": wide(16 * 200)}
        async with (
            tcp.serve(
                {"a": EncodedSource(big), "b": source()},
                bucket=tcp.TokenBucket(2e6),
                on_event=lambda name, event: heard.append((name, type(event).__name__)),
            ) as server,
            connect(server) as client,
        ):
            first, second = await client.request("a"), await client.request("b")
            waiting = asyncio.create_task(first.done())
            await asyncio.sleep(0)
            first.cancel()
            first.cancel()
            with pytest.raises(RequestError, match="cancelled"):
                await waiting
            await second.done()
            check(second, encoded())
            while ("a", "Cancelled") not in heard:
                await asyncio.sleep(0.001)
            with pytest.raises(IncompleteError):
                first.encoded("k")

    run(main)


def test_a_request_that_is_given_up_while_it_waits():
    async def main():
        never = asyncio.Event()

        async def resolve(name):
            if name == "slow":
                await never.wait()
            return source()

        async with tcp.serve(resolve) as server, connect(server) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await client.request("slow")
            good = await client.request("good")
            await good.done()
            check(good, encoded())

    run(main)


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


def test_a_callback_may_cancel():
    async def main():
        transfers = {}

        def stop(ready):
            transfers["a"].cancel()

        async with (
            tcp.serve({"a": EncodedSource({"k": wide(16 * 300)}), "b": source()}) as server,
            connect(server, limits=ReceiverLimits(anchor_window=20000, max_data=512)) as client,
        ):
            transfers["a"] = await client.request("a", on_residual_ready=stop)
            with pytest.raises(RequestError, match="cancelled"):
                await transfers["a"].done()
            good = await client.request("b")
            await good.done()
            check(good, encoded())
            assert client.connections == 1

    run(main)


def test_a_model_may_decode_in_another_thread():
    async def main():
        tensors = {"k": wide(16 * 200)}
        cache = np.zeros((16 * 200, 40), np.float32)
        async with tcp.serve({"p": EncodedSource(tensors)}) as server, connect(server) as client:
            transfer = await client.request("p")

            def refine(ready):
                tokens = slice(ready.start * 16, ready.stop * 16)
                tier = "anchor" if ready.stream == "anchor" else "full"
                transfer.decode("k", tier, pages=(ready.start, ready.stop), out=cache[tokens])

            async for ready in transfer.ready():
                await asyncio.to_thread(refine, ready)
            assert cache.tobytes() == lynxq.decode_full(tensors["k"]).tobytes()

    run(main)


def test_callbacks_that_fail_end_their_transfer_only():
    def refuse(ready):
        raise ValueError("no room")

    async def main():
        async with tcp.serve({"p": source()}) as server, connect(server) as client:
            bad = await client.request("p", on_anchor_ready=refuse)
            with pytest.raises(TransferError, match="no room"):
                await bad.done()
            good = await client.request("p")
            await good.done()
            check(good, encoded())

    run(main)


def test_a_client_that_leaves_in_the_middle():
    async def main():
        heard = []
        big = {"k": wide(16 * 300)}
        async with tcp.serve(
            {"p": EncodedSource(big)},
            bucket=tcp.TokenBucket(1e6),
            on_event=lambda _, event: heard.append(type(event).__name__),
        ) as server:
            async with connect(server, lanes=2) as client:
                transfer = await client.request("p")
            with pytest.raises(RequestError, match="cancelled"):
                await transfer.done()
            while "Cancelled" not in heard:
                await asyncio.sleep(0.001)
            while server._sessions:
                await asyncio.sleep(0.001)

    run(main)


def test_a_server_that_leaves_in_the_middle():
    async def main():
        big = {"k": wide(16 * 300)}
        server = tcp.serve({"p": EncodedSource(big)}, bucket=tcp.TokenBucket(1e6))
        async with server, connect(server, attempts=2) as client:
            transfer = await client.request("p")
            await server.close()
            with pytest.raises(ConnectionLostError):
                await transfer.done()
            with pytest.raises(ConnectionLostError):
                await transfer.anchors()

    run(main)


# --- strangers ---------------------------------------------------------------------------------------


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


def test_requests_are_limited():
    async def main():
        never = asyncio.Event()

        async def resolve(name):
            await never.wait()

        async with tcp.serve(resolve, limits=SenderLimits(max_requests=2)) as server, connect(server) as client:
            waiting = [asyncio.create_task(client.request("p")) for _ in range(2)]
            await asyncio.sleep(0.05)
            with pytest.raises(RequestError) as caught:
                await client.request("p")
            assert caught.value.code == Code.BUSY
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

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


# --- what goes wrong in between ----------------------------------------------------------------------


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


# --- misuse ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "port"),
    [("a" * 70 + ".com", 80), (5, 5)],  # no name of a host, and no host at all: not an OSError
)
def test_what_is_no_address_fails_each_request_and_none_hangs(host, port):
    async def main():
        async with tcp.connect(host, port, attempts=2, delay=0.001) as client:
            for _ in range(2):
                with pytest.raises(ConnectionLostError, match="failed"):
                    await client.request("a")

    run(main)


@pytest.mark.parametrize(
    "arguments",
    [
        {"port": 70000},
        {"port": 0},
        {"port": "80"},
        {"limits": 5},
        {"timeouts": 5},
        {"marks": (1,)},
        {"marks": (0, 64)},
        {"marks": "ab"},
    ],
)
def test_arguments_of_a_client_are_checked_when_it_is_made(arguments):
    with pytest.raises(lynxq.LynxqError, match=next(iter(arguments))):
        tcp.connect(LOCAL, **{"port": 80, **arguments})


@pytest.mark.parametrize(
    "arguments", [{"sources": 5}, {"port": 70000}, {"limits": 5}, {"timeouts": 5}, {"marks": (0, -1)}]
)
def test_arguments_of_a_server_are_checked_when_it_is_made(arguments):
    with pytest.raises(lynxq.LynxqError, match=next(iter(arguments))):
        tcp.serve(**{"sources": {}, **arguments})


def failing(method):
    """A source of which a method fails."""

    class Failing(EncodedSource):
        pass

    def fail(*_):
        raise ValueError("broken")

    setattr(Failing, method, property(fail, lambda *_: None) if method == "header" else fail)
    return Failing(encoded(0))


@pytest.mark.parametrize(
    "broken", [None, 5, *(failing(method) for method in ("header", "watch", "place", "frame"))], ids=str
)
def test_what_is_no_source_or_a_broken_one_fails_its_request_only(broken):
    async def main():
        async with tcp.serve({"broken": broken, "a": source()}) as server, connect(server) as client:
            other = await client.request("a")
            with pytest.raises(RequestError) as caught:
                await (await client.request("broken")).done()
            assert caught.value.code == Code.FAILED
            await other.done()
            check(other, encoded(0))
            assert client.connections == 1

    run(main)


def test_a_search_that_cancels_itself_fails_its_request():
    async def resolve(name):
        raise asyncio.CancelledError

    async def main():
        async with tcp.serve(resolve) as server, connect(server) as client:
            with pytest.raises(RequestError, match="CancelledError"):
                await client.request("a")

    run(main)


def test_a_callback_that_raises_cancellation_fails_its_transfer():
    def callback(ready):
        raise asyncio.CancelledError

    async def main():
        async with tcp.serve({"a": source()}) as server, connect(server) as client:
            transfer = await client.request("a", on_anchor_ready=callback)
            with pytest.raises(TransferError, match="CancelledError"):
                await transfer.done()
            other = await client.request("a")
            await other.done()
            check(other, encoded(0))

    run(main)


def test_a_callback_that_ends_the_program_leaves_nobody_waiting():
    def callback(ready):
        raise GeneratorExit

    async def main():
        async with tcp.serve({"a": source()}) as server, connect(server) as client:
            transfer = await client.request("a", on_anchor_ready=callback)
            with pytest.raises(ConnectionLostError):
                await transfer.done()
            with pytest.raises(TransferError):
                await client.request("a")

    run(main)


def test_refused_requests_are_told_and_forgotten():
    events = []

    async def main():
        server = tcp.serve({}, on_event=lambda name, event: events.append((name, event)))
        async with server, connect(server) as client:
            for number in range(20):
                with pytest.raises(RequestError):
                    await client.request(f"unknown-{number}")
            (session,) = server._sessions.values()
            assert session.names == {}
        ended = [(name, event.code) for name, event in events if isinstance(event, stream.Ended)]
        assert ended == [(f"unknown-{number}", Code.UNKNOWN) for number in range(20)]

    run(main)


def test_an_on_event_that_raises_ends_nothing():
    told = []

    def on_event(name, event):
        raise ValueError("broken")

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))
        async with tcp.serve({"a": source()}, on_event=on_event) as server, connect(server) as client:
            transfer = await client.request("a")
            await transfer.done()
            await server.delivered("a")
            check(transfer, encoded(0))
            assert client.connections == 1
        assert told
        assert set(told) == {"on_event of a server failed for 'a'"}

    run(main)


def test_a_client_and_a_server_are_entered_once():
    async def main():
        async with tcp.serve({"a": source()}) as server, connect(server) as client:
            for entered in (server, client):
                with pytest.raises(TransferError, match="once"):
                    await entered.__aenter__()
            await (await client.request("a")).done()

    run(main)


def test_another_event_loop_is_refused():
    async def main():
        async with tcp.serve({"a": source()}) as server, connect(server) as client:

            def elsewhere():
                with pytest.raises(TransferError, match="event loop"):
                    asyncio.run(client.request("a"))

            await asyncio.to_thread(elsewhere)
            await (await client.request("a")).done()

    run(main)


@pytest.mark.parametrize("pages", [5, "ab", (0,), (1, 0), (0, 99)])
def test_pages_that_are_none(pages):
    async def main():
        async with tcp.serve({"a": source()}) as server, connect(server) as client:
            transfer = await client.request("a")
            await transfer.done()
            name = next(iter(transfer.layouts))
            with pytest.raises(ShapeError, match="pages"):
                transfer.encoded(name, pages=pages)
            with pytest.raises(MissingTensorError):
                transfer.tier([])

    run(main)


def test_a_closed_container_fails_the_request(tmp_path):
    lynxq.save(tmp_path / "a.lynx", encoded(0))

    async def main():
        with lynxq.open(tmp_path / "a.lynx") as reader:
            container = stream.ContainerSource(reader)
        async with tcp.serve({"a": container}) as server, connect(server) as client:
            transfer = await client.request("a")
            with pytest.raises(RequestError, match="closed"):
                await transfer.done()
            assert transfer.damaged == []

    run(main)
