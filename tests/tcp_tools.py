"""What the tests of TCP share: a loop of which nothing may be left over, and clients on the same machine."""

import asyncio
import warnings

from lynxq.stream import Timeouts, tcp
from tests.stream_tools import same

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


def connect(server, **arguments):
    return tcp.connect(LOCAL, server.port, **{"delay": 0.001, **arguments})


def check(transfer, tensors, tier="full"):
    for name, wanted in tensors.items():
        assert same(transfer.encoded(name, tier), wanted)
