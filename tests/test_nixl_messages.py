"""Offers, tickets and notices of a NIXL peer that are not right."""

from __future__ import annotations

import json

import pytest

from lynxq.errors import ConnectionLostError, HeaderChecksumError, LimitError, ProtocolError
from lynxq.stream import AnchorPage, Cancelled, Damaged, Delivered, EncodedSource, ReceiverLimits
from lynxq.stream.nixl.messages import Notice, Offer, Ticket
from tests.nixl_network import FakeAgent, check_events, drive, pair, same, tensors


def test_offers_that_are_not_right():
    _, sender, receiver = pair()
    offer = json.loads(sender.offer(EncodedSource(tensors())))
    for change in (
        {"lynxq": "ticket"},
        {"version": 2},
        {"header": "?"},
        {"header": 3},
        {"request": -1},
        {"request": 1.0},
        {"agent": None},
    ):
        with pytest.raises(ProtocolError):
            receiver.open(json.dumps({**offer, **change}).encode())
    for text in (b"", b"{", b"[]", b"\xff", b"3", b'{"lynxq": "offer", "version": 1}'):
        with pytest.raises(ProtocolError):
            receiver.open(text)
    header = bytearray(Offer.unpack(json.dumps(offer).encode()).header)
    header[100] ^= 1
    with pytest.raises(HeaderChecksumError):
        receiver.open(Offer(b"prefill", 1, bytes(header)).pack())
    with pytest.raises(ConnectionLostError):
        receiver.open(Offer(b"nobody", 1, Offer.unpack(json.dumps(offer).encode()).header).pack())


def test_offers_beyond_the_limits():
    offer = pair()[1].offer(EncodedSource(tensors()))
    for limits in (ReceiverLimits(max_request_bytes=1000), ReceiverLimits(max_tensors=3)):
        network, _, receiver = pair(limits=limits)
        with pytest.raises(LimitError):
            receiver.open(offer)
        assert not network.agents["decode"].memory


def test_tickets_that_are_not_right():
    _, sender, receiver = pair()
    _, ticket = receiver.open(sender.offer(EncodedSource(tensors())))
    fields = json.loads(ticket)
    anchor = fields["regions"]["anchor"]
    for change in (
        {"request": 7},
        {"identity": 0},
        {"regions": {}},
        {"regions": {"residual": fields["regions"]["residual"]}},
        {"regions": {"anchor": [anchor[0], anchor[1] - 1]}},
        {"regions": {"anchor": anchor, "other": [0, 0]}},
        {"regions": [1]},
        {"receiver": "1"},
    ):
        with pytest.raises(ProtocolError):
            sender.accept(json.dumps({**fields, **change}).encode())
    sender.accept(ticket)
    with pytest.raises(ProtocolError):  # twice
        sender.accept(ticket)


def test_notices_that_are_not_right_are_ignored():
    encoded = tensors()
    network, sender, receiver = pair()
    number, ticket = receiver.open(sender.offer(EncodedSource(encoded)))
    sender.accept(ticket)
    size = Ticket.unpack(ticket).regions["anchor"][1]
    inbox = network.agents["decode"].inbox
    FakeAgent(network, "stranger")
    inbox += [("stranger", Notice("written", number, "anchor", 0, size).pack())]
    inbox += [("stranger", Notice("stopped", number).pack())]
    inbox += [("prefill", Notice("stopped", number).pack())]
    inbox += [("prefill", Notice("written", 99, "anchor", 0, size).pack())]
    inbox += [("prefill", data) for data in (b"", b"hello", b"lynxq written 1 anchor 0", b"lynxq written x anchor 0 1")]
    assert not any(isinstance(event, AnchorPage | Damaged | Cancelled) for event in receiver.poll())
    assert Notice.unpack(b"lynxq written " + b"9" * 5000 + b" anchor 0 1") is None
    network.agents["prefill"].inbox += [("stranger", Notice("cancel", 1).pack())]
    sent, _ = drive(network, sender, receiver)
    assert sent == [Delivered(1)]
    for name, each in encoded.items():
        same(receiver.received(number).encoded(name), each)


def test_a_slice_that_is_announced_twice_is_handed_out_once():
    encoded = tensors()
    network, sender, receiver = pair()
    number, ticket = receiver.open(sender.offer(EncodedSource(encoded)))
    sender.accept(ticket)

    def twice():
        network.agents["decode"].inbox += network.agents["decode"].inbox

    _, got = drive(network, sender, receiver, twice)
    check_events([event for event in got if event.request == number], encoded)
