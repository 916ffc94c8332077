"""Either of two processes with the real NIXL: run by test_nixl_processes.py in an environment that has it.

Every process ends with `os._exit`: NIXL crashes when an interpreter ends.
"""

from __future__ import annotations

import base64
import os
import signal
import sys
import time
import traceback

import numpy as np

import lynxq
from lynxq.errors import IncompleteError, SilenceError
from lynxq.stream import (
    AnchorPage,
    AnchorReady,
    Cancelled,
    Damaged,
    Delivered,
    Done,
    EncodedSource,
    Ended,
    ResidualPage,
    ResidualReady,
)
from lynxq.stream.nixl import NixlReceiver, NixlSender

REQUESTS = 3


def tensors(seed):
    """What both processes know of a request: 64 pages of two tensors, 6 MiB of frames."""
    rng = np.random.default_rng(seed)
    return {
        name: lynxq.encode(rng.standard_normal((32 * 256, 4, 64), dtype=np.float32), params, token_axis=0)
        for name, params in (("key", lynxq.Params.keys()), ("value", lynxq.Params.values()))
    }


class Line:
    """The way beside NIXL: lines of text between the processes."""

    def __init__(self):
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # where NIXL's log goes

    def say(self, data):
        self._out.write(base64.b64encode(data).decode() + "\n")
        self._out.flush()

    def hear(self):
        return base64.b64decode(sys.stdin.readline())


def end_at_once():
    os.kill(os.getpid(), signal.SIGKILL)


def prefill(scenario, line):
    """The sender."""
    with NixlSender(slice_bytes=1 << 18) as sender:
        for seed in range(REQUESTS):
            line.say(sender.offer(EncodedSource(tensors(seed), metadata={"n": str(seed)})))
        for _ in range(REQUESTS):
            sender.accept(line.hear())
        if scenario == "killed-sender":
            for _ in range(20):
                sender.poll()
                time.sleep(0.01)
            end_at_once()
        events = []
        if scenario == "killed-receiver":  # slow, so that it dies in the middle
            while len(events) < REQUESTS:
                events += sender.poll()
                time.sleep(0.05)
        events += list(sender.run(timeout=20))
        kinds = {type(event) for event in events}
        assert len(events) == REQUESTS, events
        if scenario == "killed-receiver":
            assert kinds == {Ended}, events
        elif scenario == "cancel":
            assert sorted(event.request for event in events if isinstance(event, Delivered)) == [2, 3], events
            assert sum(isinstance(event, Cancelled) for event in events) == 1, events
        else:
            assert kinds == {Delivered}, events
    if scenario != "killed-receiver":
        line.say(b"enough")


def without_a_sender(receiver, numbers):
    """It says that nothing comes, and hands out nothing that is not there."""
    events = []
    try:
        for event in receiver.run(timeout=3):
            events.append(event)  # noqa: PERF402 - those before the error count
    except SilenceError:
        assert not any(isinstance(event, Done | Damaged) for event in events)
    else:
        raise AssertionError("a dead sender goes on")
    try:
        receiver.received(numbers[-1]).encoded("value")
    except IncompleteError:
        return
    raise AssertionError("what did not arrive was handed out")


def decode(scenario, line):
    """The receiver."""
    receiver = NixlReceiver()
    numbers = []
    for _ in range(REQUESTS):
        number, ticket = receiver.open(line.hear(), tier="anchor" if scenario == "anchors" else "full")
        numbers.append(number)
        line.say(ticket)
    if scenario == "cancel":
        receiver.cancel(numbers[0])
    if scenario == "killed-sender":
        without_a_sender(receiver, numbers)
        return
    events = []
    for event in receiver.run(timeout=30):
        events.append(event)
        if scenario == "killed-receiver" and len(events) > 20:
            end_at_once()
    assert not any(isinstance(event, Damaged) for event in events), events
    for seed, number in enumerate(numbers):
        own = [event for event in events if event.request == number]
        if scenario == "cancel" and seed == 0:
            assert own[-1] == Cancelled(number), own
        else:
            check(own, receiver.received(number), seed, residuals=scenario != "anchors")
    if scenario != "cancel":
        anchors = [index for index, event in enumerate(events) if isinstance(event, AnchorPage)]
        residuals = [index for index, event in enumerate(events) if isinstance(event, ResidualPage)]
        assert not residuals or max(anchors) < min(residuals), "a residual came before an anchor"
    receiver.close()
    assert line.hear() == b"enough"  # the last notices are on their way until then


def check(events, received, seed, *, residuals):
    """The events and tensors of one request."""
    assert events[-1] == Done(events[0].request, 0)
    assert received.metadata == {"n": str(seed)}
    expected = tensors(seed)
    pages = sum(each.layout.pages for each in expected.values())
    assert sum(isinstance(event, AnchorPage) for event in events) == pages
    assert sum(isinstance(event, AnchorReady) for event in events) == 2
    assert sum(isinstance(event, ResidualPage) for event in events) == pages * residuals
    assert sum(isinstance(event, ResidualReady) for event in events) == 2 * residuals
    for name, encoded in expected.items():
        assert bytes(received.encoded(name, "anchor").anchor) == bytes(encoded.anchor)
        if residuals:
            assert bytes(received.encoded(name).residual) == bytes(encoded.residual)


def main():
    role, scenario = sys.argv[1:]
    (prefill if role == "prefill" else decode)(scenario, Line())


if __name__ == "__main__":
    try:
        main()
    except BaseException:  # noqa: BLE001 - the code says it, and the log why
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)
