"""Two processes, one of which is killed: no wrong data, and no hang."""

import asyncio
import subprocess
import sys

import lynxq
from lynxq.stream import Timeouts, tcp
from tests.stream_tools import KEYS, same

TENSORS = """
import lynxq
from lynxq import Params, testing
params = Params(page=8, range_size=8, chunk=4, sink_tokens=2)
tensors = {name: testing.contents("normal", (8 * 60, 8), "float32", seed) for seed, name in enumerate("kv")}
"""
SENDER = (
    TENSORS
    + """
import asyncio, sys
from lynxq import stream
from lynxq.stream import tcp

async def main(port):
    # Encodes anew: another process, and the same bytes.
    with stream.encoding(tensors, params, token_axis=0, step=1) as source:
        async with tcp.serve({"p": source}, port=port, bucket=tcp.TokenBucket(3e5)) as server:
            print(server.port, flush=True)
            await asyncio.sleep(3600)

asyncio.run(main(int(sys.argv[1])))
"""
)
RECEIVER = """
import asyncio, sys
from lynxq.stream import tcp

async def main(port):
    async with tcp.connect("127.0.0.1", port, lanes=2) as client:
        transfer = await client.request("p")
        async for ready in transfer.ready():
            print(ready.stream, flush=True)

asyncio.run(main(int(sys.argv[1])))
"""
QUICK = Timeouts(greeting=10, silence=2, keepalive=0.2)


def wanted():
    found = {}
    exec(TENSORS, found)  # noqa: S102 - ours, from above
    return {name: lynxq.encode(x, KEYS, token_axis=0) for name, x in found["tensors"].items()}


class Process:
    """A process of ours that runs a script, and is killed in the end."""

    def __init__(self, script, argument=0):
        command = [sys.executable, "-W", "error", "-c", script, str(argument)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.process.stdout.close()
        self.process.stderr.close()

    async def line(self):
        found = await asyncio.to_thread(self.process.stdout.readline)
        if not found:
            raise AssertionError(await asyncio.to_thread(self.process.stderr.read))
        return found.strip()

    def kill(self):
        self.process.kill()
        self.process.wait()


def test_a_sender_that_is_killed_is_replaced_by_one_that_encodes_again():
    async def main():
        with Process(SENDER) as first:
            port = int(await first.line())
            async with tcp.connect("127.0.0.1", port, timeouts=QUICK, attempts=1000, delay=0.01) as client:
                transfer = await client.request("p")
                before = []
                async for ready in transfer.ready():
                    before.append(ready)
                    if len(before) == 3:
                        first.kill()
                        break
                with Process(SENDER, port) as second:
                    assert int(await second.line()) == port
                    await transfer.done()
                    assert client.connections > 1
                    for name, each in wanted().items():
                        assert same(transfer.encoded(name), each)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_sender_that_is_killed_and_stays_away():
    async def main():
        with Process(SENDER) as sender:
            async with tcp.connect(
                "127.0.0.1", int(await sender.line()), timeouts=QUICK, attempts=2, delay=0.01
            ) as client:
                transfer = await client.request("p")
                sender.kill()
                for wait in (transfer.anchors, transfer.done):
                    try:
                        await wait()
                    except lynxq.errors.ConnectionLostError:
                        continue
                    raise AssertionError("a transfer ended well without its sender")
                assert transfer.tier("k") is None

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_receiver_that_is_killed_is_noticed():
    async def main():
        events = asyncio.Queue()
        tensors = wanted()
        async with tcp.serve(
            {"p": lynxq.stream.EncodedSource(tensors)},
            bucket=tcp.TokenBucket(2e5),
            on_event=lambda _, event: events.put_nowait(type(event).__name__),
        ) as server:
            with Process(RECEIVER, server.port) as receiver:
                assert await receiver.line() == "anchor"
                receiver.kill()
                assert [await events.get(), await events.get()] == ["Requested", "Cancelled"]
            while server._sessions:
                await asyncio.sleep(0.001)
            async with tcp.connect("127.0.0.1", server.port) as client:  # others are served as ever
                transfer = await client.request("p", "anchor")
                await transfer.done()
                assert same(transfer.encoded("k", "anchor"), tensors["k"])

    asyncio.run(asyncio.wait_for(main(), 60))
