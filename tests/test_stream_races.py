"""Steps of transfers that meet: wake-ups, cancellation and ends at the same time."""

import asyncio
from contextlib import suppress

import pytest

from lynxq.errors import FrameError, ProtocolError, TransferError
from lynxq.stream import Delivered, EncodedSource, Receiver, SenderLimits, Timeouts, tcp
from lynxq.stream.records import Record, Type
from tests.stream_tools import Pair, encoded, source, wide
from tests.tcp_tools import LOCAL, check, connect, run

#: No sign of life comes to the rescue of a wake-up that was forgotten.
PATIENT = Timeouts(greeting=1000, silence=1000, keepalive=500)


class Worn(EncodedSource):
    """One page of residuals is damaged where it is kept, or the source fails there."""

    error: type[Exception] = FrameError

    def frame(self, which, tensor, page):
        if (which, tensor, page) == ("residual", 0, 0):
            raise self.error("worn")
        return super().frame(which, tensor, page)


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("error", [FrameError, OSError])
def test_what_is_found_on_the_second_lane_is_told_at_once(lanes, error):
    async def main():
        worn = Worn({"k": wide(16)})
        worn.error = error
        async with (
            tcp.serve({"p": worn}, timeouts=PATIENT) as server,
            connect(server, lanes=lanes, timeouts=PATIENT) as client,
        ):
            transfer = await client.request("p")
            async with asyncio.timeout(10):
                with pytest.raises(TransferError):
                    await transfer.done()

    run(main)


def test_what_a_receiver_said_before_it_broke_a_rule_is_heard():
    pair = Pair({"p": source()})
    request = pair.ask("p")
    pair.run()
    second = pair.ask("p")
    pair.accept()
    while data := pair.from_sender():
        pair.receiver.receive(data)
        pair.take()
    words = pair.receiver.data_to_send()
    assert pair.receiver.next_event() is None
    assert [type(event) for event in pair.sender_events].count(Delivered) == 1
    with pytest.raises(ProtocolError):
        pair.sender.receive(words + b"nonsense" * 8)
    assert Delivered(second) in pair.sender.ended()
    assert request != second


def test_answers_that_nobody_fetches_are_bounded():
    pair = Pair({"p": source()}, sender_limits=SenderLimits(max_backlog=4096))
    request = pair.ask("p")
    pair.accept()
    again = Record(Type.AGAIN, 0, request, 0, 1).pack()
    with pytest.raises(ProtocolError, match="read answers"):
        pair.sender.receive(again * 1000)


def test_a_client_whose_closing_is_cancelled_leaves_nothing():
    async def main():
        async with tcp.serve({"p": source()}) as server:
            for steps in range(1, 12):
                client = connect(server, lanes=2)
                await client.__aenter__()
                transfer = await client.request("p")
                await transfer.done()
                closing = asyncio.create_task(client.close())
                for _ in range(steps):
                    await asyncio.sleep(0)
                closing.cancel()
                await asyncio.gather(closing, return_exceptions=True)
                task = client._task
                async with asyncio.timeout(5):
                    await asyncio.wait([task])
                assert task.done()

    run(main)


def test_a_client_that_is_closed_while_a_peer_says_nothing_and_that_is_cancelled():
    async def mute(reader, writer):
        try:
            await reader.read(-1)
        finally:
            writer.transport.abort()

    async def main():
        async with await asyncio.start_server(mute, LOCAL, 0) as server:
            port = server.sockets[0].getsockname()[1]
            client = tcp.connect(LOCAL, port, timeouts=PATIENT)
            await client.__aenter__()
            asking = asyncio.create_task(client.request("p"))
            while not client.connections:
                await asyncio.sleep(0.001)
            wire = client._wires[0]
            wire.finish = lambda: None  # the connection is full, and the farewell waits
            closing = asyncio.create_task(client.close())
            await asyncio.sleep(0.01)
            closing.cancel()
            await asyncio.gather(closing, asking, return_exceptions=True)
            async with asyncio.timeout(5):
                await asyncio.wait([client._task])
            assert client._task.done()

    run(main)


def test_a_connection_whose_task_begins_after_the_server_has_closed_is_not_served():
    async def main():
        server = tcp.serve({"p": source()}, timeouts=PATIENT)
        accept, arrived, closed = server._accept, asyncio.Event(), asyncio.Event()

        async def late(reader, writer):
            arrived.set()
            await closed.wait()
            await accept(reader, writer)

        server._accept = late
        await server.__aenter__()
        reader, writer = await asyncio.open_connection(LOCAL, server.port)
        await arrived.wait()
        await server.close()
        closed.set()
        async with asyncio.timeout(5):
            with suppress(ConnectionError):
                assert await reader.read() == b""
        writer.transport.abort()

    run(main)


def test_who_waits_for_a_delivery_is_told_that_the_server_has_closed():
    async def main():
        async with tcp.serve({"p": source()}) as server:
            waiting = asyncio.create_task(server.delivered("p"))
            await asyncio.sleep(0)
        async with asyncio.timeout(5):
            with pytest.raises(TransferError, match="was closed"):
                await waiting
            with pytest.raises(TransferError, match="was closed"):
                await server.delivered("p")
        await server.delivered("p", 0)

    run(main)


def test_a_session_whose_end_is_cancelled_lets_go_of_its_sources():
    """Its end waits for a search that takes its time, when the server is closed."""

    async def main():
        watchers, cleaning = [], asyncio.Event()
        made = source()

        def watch(wake):
            watchers.append(wake)
            return lambda: watchers.remove(wake)

        made.watch = watch

        async def resolve(name):
            if name == "p":
                return made
            try:
                await asyncio.sleep(1000)
            finally:
                cleaning.set()
                await asyncio.sleep(0.05)

        server = tcp.serve(resolve)
        await server.__aenter__()
        receiver = Receiver()
        receiver.connect()
        receiver.request("p")
        receiver.request("slow")
        _, writer = await asyncio.open_connection(LOCAL, server.port)
        writer.write(receiver.data_to_send())
        while not watchers:
            await asyncio.sleep(0.001)
        writer.transport.abort()
        await cleaning.wait()
        await server.close()
        assert watchers == []

    run(main)


def test_callbacks_are_not_entered_while_one_runs():
    depth, deepest = [0], [0]

    async def main():
        async with tcp.serve({"p": source(), "q": source()}) as server, connect(server) as client:

            def each(ready):
                depth[0] += 1
                deepest[0] = max(deepest[0], depth[0])
                other.cancel()
                depth[0] -= 1

            other = await client.request("q")
            transfer = await client.request("p", on_anchor_ready=each, on_residual_ready=each)
            await transfer.done()
            check(transfer, encoded())
            assert deepest[0] == 1

    run(main)


def test_a_clock_that_jumps_back_stops_nothing():
    now = [1000.0]
    bucket = tcp.TokenBucket(1000.0, burst=100, clock=lambda: now[0])
    bucket.spend(350)
    now[0] = 0.0
    assert bucket.delay() == pytest.approx(0.25)
    now[0] = 0.25
    assert bucket.delay() == 0.0
