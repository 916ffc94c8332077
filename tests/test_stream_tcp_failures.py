"""Transfers over TCP of which one side fails, cancels or leaves."""

import asyncio
import socket

import pytest

from lynxq.errors import ConnectionLostError, IncompleteError, RequestError, TransferError
from lynxq.stream import EncodedSource, ReceiverLimits, tcp
from lynxq.stream.messages import Code
from tests.stream_tools import encoded, source, wide
from tests.tcp_tools import LOCAL, check, connect, run


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
