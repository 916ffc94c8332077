"""`Child`: whoever waits for a process is told what became of it; with processes that load no model."""

import asyncio
import sys

import pytest

from lynxq.e2e import child
from lynxq.errors import WorkerError

READY = 'print(\'{"kind": "ready"}\', flush=True)\n'
TELLS = 'print(\'{"kind": "progress"}\', flush=True)\n'
ANSWERS = "import sys\nfor line in sys.stdin: print(%r, flush=True)\n"


def worker(code, listener=lambda _: None):
    made = child.Child("test", "unused", listener=listener)
    made._command = [sys.executable, "-c", code]
    return made


def run(awaitable):
    async def within():
        async with asyncio.timeout(60):
            return await awaitable

    with asyncio.Runner(debug=False) as runner:
        lost = []
        runner.get_loop().set_exception_handler(lambda _, context: lost.append(context))
        result = runner.run(within())
    assert not lost
    return result


def raising(message):
    raise LookupError(message["kind"])


@pytest.mark.parametrize(
    ("code", "listener", "message"),
    [
        (READY + "input()\n" + TELLS + "input()", raising, "ended: LookupError: progress"),
        (READY + ANSWERS % "no JSON", print, "ended: JSONDecodeError"),
        (READY + ANSWERS % ("x" * 2000), print, "ended: ValueError"),
        (READY + ANSWERS % "7", print, "ended: TypeError"),
        (READY + "input(); raise SystemExit('tired')", print, "ended with code 1: tired"),
    ],
)
def test_what_nobody_can_listen_to_ends_the_process_and_the_call(code, listener, message, monkeypatch):
    monkeypatch.setattr(child, "MAX_LINE", 1000)

    async def call():
        made = worker(code, listener)
        await made.start(60)
        with pytest.raises(WorkerError, match=message):
            await made.call("anything")
        await made.stop()
        assert not made.alive

    run(call())


def test_a_start_that_is_cancelled_is_no_error_of_the_process():
    async def cancel():
        made = worker(READY + "input()")
        starting = asyncio.create_task(made.start(60))
        while made._process is None:
            await asyncio.sleep(0.001)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        assert starting.cancelled()
        await asyncio.sleep(0.5)  # it becomes ready when nobody waits
        await made.stop()
        assert not made.alive

    run(cancel())


def test_what_was_never_started_can_be_stopped():
    async def stop():
        made = worker("")
        assert not made.alive
        await made.stop()
        await made.kill()
        with pytest.raises(WorkerError, match="was not started"):
            await made.call("anything")
        with pytest.raises(WorkerError, match="was not started"):
            assert made.pid

    run(stop())
