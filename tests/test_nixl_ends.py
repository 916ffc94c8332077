"""How transfers over NIXL end: cancelled, cut, stuck, delivered, closed."""

from __future__ import annotations

import pytest

from lynxq.errors import ParamsError, SilenceError
from lynxq.stream import Cancelled, Delivered, Done, EncodedSource, Ended
from lynxq.stream.nixl.messages import Notice, Offer
from tests.nixl_network import FakeAgent, drive, pair, tensors


def test_cancel_waits_until_nothing_is_written():
    network, sender, receiver = pair(slice_bytes=1)
    number, ticket = receiver.open(sender.offer(EncodedSource(tensors())))
    other, other_ticket = receiver.open(sender.offer(EncodedSource(tensors(1))))
    sender.accept(ticket)
    sender.accept(other_ticket)
    sender.poll()
    receiver.poll()
    receiver.cancel(number)
    receiver.cancel(number)
    assert len(network.pending) == 2
    assert network.agents["decode"].memory  # still there: writes are under way
    sent, got = drive(network, sender, receiver)
    assert sorted(map(repr, sent)) == sorted(map(repr, [Cancelled(1), Delivered(2)]))
    assert [event for event in got if event.request == number] == [Cancelled(number)]
    assert Done(other, 0) in got
    assert all(not agent.memory for agent in network.agents.values())
    with pytest.raises(ParamsError):
        receiver.received(number)


def test_a_request_may_be_cancelled_before_its_ticket_has_come():
    network, sender, receiver = pair()
    number, ticket = receiver.open(sender.offer(EncodedSource(tensors())))
    receiver.cancel(number)
    FakeAgent(network, "stranger").notify("prefill", Notice("cancel", 2).pack())
    other, other_ticket = receiver.open(sender.offer(EncodedSource(tensors())))
    assert sender.poll() == []
    sender.accept(ticket)
    sender.accept(other_ticket)
    sent, got = drive(network, sender, receiver)
    assert sorted(map(repr, sent)) == sorted(map(repr, [Cancelled(1), Delivered(2)]))
    assert Cancelled(number) in got
    assert got[-1] == Done(other, 0)
    assert {notice.request for notice, _ in network.log} == {other}
    assert all(not agent.memory for agent in network.agents.values())


def test_a_network_that_is_cut_ends_the_request():
    network, sender, receiver = pair(slice_bytes=1)
    sender.accept(receiver.open(sender.offer(EncodedSource(tensors())))[1])
    sender.poll()
    network.cut = True
    (ended,) = sender.poll()
    assert isinstance(ended, Ended)
    assert "cut" in ended.reason
    assert not network.agents["prefill"].memory
    assert sender.poll() == []
    with pytest.raises(SilenceError):
        list(receiver.run(timeout=0.01))
    receiver.close(timeout=0.01)
    assert network.agents["decode"].memory  # who cannot be told to stop may still write


def test_a_sender_that_makes_no_progress():
    _, sender, receiver = pair()
    sender.accept(receiver.open(sender.offer(EncodedSource(tensors())))[1])
    with pytest.raises(SilenceError):
        list(sender.run(timeout=0.01))
    sender.close(timeout=0.01)


def test_delivered_means_that_the_receiver_has_seen_it():
    network, sender, receiver = pair()
    sender.accept(receiver.open(sender.offer(EncodedSource(tensors())))[1])
    for _ in range(100):
        assert sender.poll() == []
        network.step()
    assert isinstance(receiver.poll()[-1], Done)
    assert sender.poll() == [Delivered(1)]


def test_what_cannot_be_acknowledged_is_there_all_the_same():
    network, sender, receiver = pair()
    number, ticket = receiver.open(sender.offer(EncodedSource(tensors())))
    sender.accept(ticket)
    for _ in range(100):
        sender.poll()
        network.step()
    network.cut = True
    assert receiver.poll()[-1] == Done(number, 0)
    with pytest.raises(SilenceError):
        list(sender.run(timeout=0.01))


def test_closing_ends_what_is_open():
    network, sender, _ = pair()
    with sender:
        sender.offer(EncodedSource(tensors()))
        withdrawn = Offer.unpack(sender.offer(EncodedSource(tensors()))).request
        sender.withdraw(withdrawn)
        with pytest.raises(ParamsError):
            sender.withdraw(withdrawn)
    assert not network.agents["prefill"].memory


def test_a_request_is_forgotten_when_it_has_ended():
    network, sender, receiver = pair()
    number, ticket = receiver.open(sender.offer(EncodedSource(tensors())))
    with pytest.raises(ParamsError):
        receiver.forget(number)
    sender.accept(ticket)
    drive(network, sender, receiver)
    receiver.forget(number)
    with pytest.raises(ParamsError):
        receiver.received(number)
