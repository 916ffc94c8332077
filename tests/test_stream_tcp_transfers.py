"""Transfers over TCP: one or two connections, requests at once, callbacks, other threads."""

import asyncio

import numpy as np
import pytest

import lynxq
from lynxq import stream
from lynxq.stream import EncodedSource, tcp
from tests.stream_tools import encoded, source, wide
from tests.tcp_tools import LOCAL, check, connect, run


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
