"""More requests than a sender serves at a time: they wait, and none of them fails for that."""

import asyncio
from collections import Counter

import pytest

from lynxq import stream
from lynxq.errors import ConnectionLostError, ProtocolError, RequestError
from lynxq.stream import EncodedSource, SenderLimits, tcp
from lynxq.stream.messages import Code
from lynxq.stream.records import Record, Type
from tests.stream_tools import Pair, coded, encoded, records, same

LOCAL = "127.0.0.1"
NAMES = [f"n{number}" for number in range(12)]


def sources():
    return {name: EncodedSource({"k": coded(9, seed)}) for seed, name in enumerate(NAMES)}


def asked(data):
    return [record.request for record in records(data) if record.type == Type.REQUEST]


# --- the state machine -------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("most", [1, 2, 5, 12])
@pytest.mark.parametrize("ahead", [1, 2])
def test_no_more_than_the_sender_serves_are_asked_for_and_all_come(most, lanes, ahead):
    pair = Pair(sources(), lanes=lanes, sender_limits=SenderLimits(max_requests=most))
    pair.receiver.connect(lanes, ahead=min(ahead, most))
    numbers = {name: pair.ask(name) for name in NAMES}
    pair.run()
    for seed, name in enumerate(NAMES):
        assert same(pair.received[numbers[name]].encoded("k"), coded(9, seed))
    assert len(pair.of(stream.Done)) == len(NAMES)
    assert pair.of(stream.Failed) == []
    open_now = most_open = 0
    for event in pair.sender_events:
        open_now += isinstance(event, stream.Requested) - isinstance(event, stream.Delivered)
        most_open = max(most_open, open_now)
    assert most_open == most


def test_before_the_greeting_no_more_are_asked_for_than_was_said():
    receiver = stream.Receiver()
    for name in NAMES[:3]:
        receiver.request(name)
    for ahead in (1, 2, 64):
        receiver.connect(ahead=ahead)
        assert asked(receiver.data_to_send()) == [1, 2, 3][:ahead]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_request_that_is_cancelled_while_it_waits_is_never_made(when):
    pair = Pair(sources(), sender_limits=SenderLimits(max_requests=1))
    if when == "after":
        pair.run()
    else:
        pair.receiver.connect(ahead=1)
    numbers = [pair.ask(name) for name in NAMES[:4]]
    pair.receiver.cancel(numbers[2])
    pair.run()
    made = [event.name for event in pair.sender_events if isinstance(event, stream.Requested)]
    assert made == [NAMES[0], NAMES[1], NAMES[3]]
    assert not any(isinstance(event, stream.Cancelled) for event in pair.sender_events)
    assert Counter(type(event).__name__ for event in pair.events)["Done"] == 3


@pytest.mark.parametrize("how", ["cancelled", "refused", "failed"])
def test_whatever_ends_a_request_lets_the_next_one_go(how):
    known = sources()
    if how == "refused":
        del known[NAMES[0]]
    pair = Pair(known, sender_limits=SenderLimits(max_requests=1))
    pair.run()
    numbers = [pair.ask(name) for name in NAMES[:3]]
    pair.to_sender()
    if how == "cancelled":
        pair.receiver.cancel(numbers[0])
    elif how == "failed":
        pair.sender.refuse(numbers[0], Code.FAILED, "gone")
    pair.run()
    assert {event.request for event in pair.of(stream.Done)} == set(numbers[1:])


def test_what_waited_is_asked_for_again_on_the_next_connection():
    pair = Pair(sources(), sender_limits=SenderLimits(max_requests=2))
    pair.run()
    for name in NAMES:
        pair.ask(name)
    pair.to_sender()
    pair.reconnect()
    pair.receiver.connect(ahead=1)
    pair.run()
    assert len(pair.of(stream.Done)) == len(NAMES)


def test_a_sender_must_not_speak_of_a_request_that_waits():
    pair = Pair(sources(), sender_limits=SenderLimits(max_requests=1))
    pair.run()
    pair.ask(NAMES[0])
    waiting = pair.ask(NAMES[1])
    with pytest.raises(ProtocolError, match=f"request {waiting} was never made"):
        pair.receiver.receive(Record(Type.OPEN, request=waiting, body=b"x").pack())


# --- over TCP ----------------------------------------------------------------------------------------


def run(main):
    async def checked():
        async with asyncio.timeout(60):
            await main()

    asyncio.run(checked())


@pytest.mark.parametrize("lanes", [1, 2])
def test_all_at_once_over_tcp(lanes):
    async def main():
        async with (
            tcp.serve(sources(), limits=SenderLimits(max_requests=3)) as server,
            tcp.connect(LOCAL, server.port, lanes=lanes) as client,
        ):

            async def fetch(name):
                transfer = await client.request(name)
                await transfer.done()
                return transfer.encoded("k")

            for seed, found in enumerate(await asyncio.gather(*map(fetch, NAMES))):
                assert same(found, coded(9, seed))

    run(main)


class Held:
    """Finds nothing until it is let go."""

    def __init__(self):
        self.names, self.go = [], asyncio.Event()

    async def __call__(self, name):
        self.names.append(name)
        await self.go.wait()
        return EncodedSource(encoded())


def test_waiting_ends_with_the_callers_timeout_and_the_others_go_on():
    async def main():
        held = Held()
        async with (
            tcp.serve(held, limits=SenderLimits(max_requests=1)) as server,
            tcp.connect(LOCAL, server.port) as client,
        ):
            first = asyncio.create_task(client.request("first"))
            while held.names != ["first"]:
                await asyncio.sleep(0.001)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await client.request("second")
            third = asyncio.create_task(client.request("third"))
            await asyncio.sleep(0.05)
            assert held.names == ["first"]
            held.go.set()
            for each in (first, third):
                await (await each).done()
            assert held.names == ["first", "third"]

    run(main)


def test_a_server_that_ends_ends_those_that_wait():
    async def main():
        held = Held()
        async with (
            tcp.serve(held, limits=SenderLimits(max_requests=1)) as server,
            tcp.connect(LOCAL, server.port, attempts=2, delay=0.001) as client,
        ):
            waiting = [asyncio.create_task(client.request(name)) for name in "abc"]
            while not held.names:
                await asyncio.sleep(0.001)
            await server.close()
            for error in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(error, ConnectionLostError)

    run(main)


def test_a_client_that_closes_ends_those_that_wait():
    async def main():
        held = Held()
        async with tcp.serve(held, limits=SenderLimits(max_requests=1)) as server:
            client = tcp.connect(LOCAL, server.port)
            async with client:
                waiting = [asyncio.create_task(client.request(name)) for name in "abc"]
                while not held.names:
                    await asyncio.sleep(0.001)
            for error in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(error, RequestError)
            assert held.names == ["a"]

    run(main)
