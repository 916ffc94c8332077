"""Arguments, sources and callbacks that are wrong: each fails what it belongs to, with a clear error."""

import asyncio

import pytest

import lynxq
from lynxq import stream
from lynxq.errors import ConnectionLostError, MissingTensorError, RequestError, ShapeError, TransferError
from lynxq.stream import EncodedSource, tcp
from lynxq.stream.messages import Code
from tests.stream_tools import encoded, source
from tests.tcp_tools import LOCAL, check, connect, run


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


BROKEN = {"None": None, "5": 5, **{method: failing(method) for method in ("header", "watch", "place", "frame")}}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
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
