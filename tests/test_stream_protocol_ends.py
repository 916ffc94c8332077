"""How requests and connections of the protocol end: cancellation, farewells, errors."""

import pytest

from lynxq import stream
from lynxq.errors import PeerError
from lynxq.stream import Cancelled, Closed, Done, ReceiverLimits
from lynxq.stream.messages import Code
from lynxq.stream.records import Type
from tests.stream_tools import Pair, encoded, records, source


@pytest.mark.parametrize("after", range(0, 40, 3))
def test_one_of_two_requests_is_cancelled(after):
    pair = Pair({"a": source(1), "b": source(2)}, limits=ReceiverLimits(anchor_window=4000, residual_window=3000))
    first, second = pair.ask("a"), pair.ask("b")
    pair.to_sender()
    for _ in range(after):
        pair.receiver.receive(pair.from_sender(1))
        pair.to_sender()
        if after % 2:
            pair.take()
    pair.receiver.cancel(first)
    before = len(pair.events)
    pair.run()
    later = [event for event in pair.events[before:] if event.request == first]
    assert later == [Cancelled(first)] or (not later and Done(first, 0) in pair.events[:before])
    pair.check(second, encoded(2))
    # All credit came back: a third request gets through the same windows.
    third = pair.ask("a")
    pair.run()
    pair.check(third, encoded(1))


def test_the_sender_hears_of_a_cancellation():
    pair = Pair({"p": source()})
    request = pair.ask("p")
    pair.to_sender()
    pair.from_sender(1000)
    pair.receiver.cancel(request)
    pair.to_sender()
    assert pair.sender_events[-1] == Cancelled(request)
    assert pair.from_sender(1 << 20) == b""
    pair.receiver.cancel(request)  # once more does nothing
    assert pair.receiver.data_to_send() == b""


def test_a_request_that_is_cancelled_before_it_is_answered():
    sender, receiver = stream.Sender(), stream.Receiver()
    receiver.connect()
    request = receiver.request("p")
    receiver.cancel(request)
    assert [type(event) for event in sender.receive(receiver.data_to_send())] == [stream.Requested, Cancelled]
    assert sender.open(request, source()) is False
    assert [record.type for record in records(sender.data_to_send(1 << 20))] == [Type.HELLO]


def test_farewells():
    pair = Pair({"p": source()})
    pair.run()
    pair.sender.close()
    pair.run()
    assert pair.events == [Closed(0)]
    pair.receiver.close()
    pair.to_sender()
    assert pair.sender_events == [Closed(0)]


def test_nothing_follows_a_farewell():
    pair = Pair({"p": source()})
    pair.ask("p")
    pair.accept()
    pair.receiver.receive(pair.from_sender(3000))
    pair.take()
    pair.receiver.close()
    pair.ask("p")
    pair.receiver.keepalive()
    assert records(pair.receiver.data_to_send())[-1].type == Type.BYE
    assert pair.receiver.data_to_send() == b""
    pair.sender.close()
    pair.sender.keepalive()
    assert [record.type for record in records(pair.from_sender(1 << 20))] == [Type.BYE]
    assert pair.sender.ended() == [Cancelled(1)]
    pair.reconnect()
    pair.run()
    pair.check(1, encoded())
    pair.check(2, encoded())


def test_signs_of_life_are_no_events():
    pair = Pair({}, lanes=2)
    pair.run()
    for lane in (0, 1):
        pair.sender.keepalive(lane)
        pair.receiver.keepalive(lane)
        assert [record.type for record in records(pair.from_sender(1, lane))] == [Type.PING]
    pair.to_sender()
    assert pair.events == pair.sender_events == []


def test_an_error_is_passed_on():
    for side in ("sender", "receiver"):
        pair = Pair({"p": source()})
        pair.ask("p")
        pair.run(size=1)
        getattr(pair, side).fail(Code.FAILED, "out of order")
        take = pair.receiver.receive if side == "sender" else pair.sender.receive
        said = pair.from_sender() if side == "sender" else pair.receiver.data_to_send()
        with pytest.raises(PeerError, match=r"out of order \(code 3\)"):
            take(said)
