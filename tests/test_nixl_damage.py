"""Pages over NIXL that are damaged, or of another place: reported, and not used."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from lynxq.errors import AnchorChecksumError, FrameError, IncompleteError
from lynxq.stream import AnchorPage, AnchorReady, Damaged, Done, EncodedSource, ResidualReady
from lynxq.stream.nixl.messages import Notice, Ticket
from lynxq.stream.nixl.places import places
from tests.nixl_network import drive, pair, same, tensors


@pytest.mark.parametrize("stream", ["anchor", "residual"])
@pytest.mark.parametrize(("offset", "error"), [(70, None), (10, FrameError)])
def test_a_damaged_page_is_reported_and_not_used(stream, offset, error):
    encoded = tensors()
    network, sender, receiver = pair()
    number, ticket = receiver.open(sender.offer(EncodedSource(encoded)))
    place = places(EncodedSource(encoded).header, stream)[1]
    address = Ticket.unpack(ticket).regions[stream][0] + place.begin + offset
    written = [False]

    def damage():
        for _, data in network.agents["decode"].inbox:
            notice = Notice.unpack(data)
            if notice.stream == stream and notice.begin <= place.begin < notice.end and not written[0]:
                ctypes.memset(address, 0xA5, 1)
                written[0] = True

    sender.accept(ticket)
    _, got = drive(network, sender, receiver, damage)
    damaged = [event for event in got if isinstance(event, Damaged)]
    assert [(event.stream, event.name, event.page) for event in damaged][:1] == [(stream, "t0", 1)]
    if error is not None or stream == "anchor":
        assert isinstance(damaged[0].error, error or AnchorChecksumError)
    # The residual of an anchor that is not there is of no use.
    assert len(damaged) == (2 if stream == "anchor" else 1)
    assert got[-1] == Done(number, len(damaged))
    ready = {event.name for event in got if isinstance(event, AnchorReady if stream == "anchor" else ResidualReady)}
    assert ready == {"t1", "t2", "t3"}
    received = receiver.received(number)
    with pytest.raises(IncompleteError):
        received.encoded("t0")
    same(received.encoded("t1"), encoded["t1"])
    same(received.encoded("t0", pages=(2, 3)), encoded["t0"].pages(2, 3))


@pytest.mark.parametrize("other", [{"seed": 0, "page": 2, "n": "0"}, {"seed": 1, "page": 1, "n": "1"}])
def test_a_sound_frame_of_another_page_or_segment_is_not_taken(other):
    encoded = tensors(0, [(40, 2, 8)])
    network, sender, receiver = pair()
    source = EncodedSource(encoded, metadata={"n": "0"})
    number, ticket = receiver.open(sender.offer(source))
    sender.accept(ticket)
    place = places(source.header, "anchor")[1]
    elsewhere = EncodedSource(tensors(other["seed"], [(40, 2, 8)]), metadata={"n": other["n"]})
    frame = elsewhere.frame("anchor", 0, other["page"])
    foreign = np.frombuffer(frame.header.pack() + bytes(frame.payload), np.uint8)
    assert foreign.size == place.end - place.begin

    def damage():
        if any(Notice.unpack(data).end >= place.end for _, data in network.agents["decode"].inbox):
            begin = Ticket.unpack(ticket).regions["anchor"][0] + place.begin
            ctypes.memmove(begin, foreign.ctypes.data, foreign.size)

    _, got = drive(network, sender, receiver, damage)
    first, second = [event for event in got if isinstance(event, Damaged)]
    assert isinstance(first.error, FrameError)
    assert (first.stream, first.page, second.stream, second.page) == ("anchor", 1, "residual", 1)
    assert got[-1] == Done(number, 2)
    same(receiver.received(number).encoded("t0", pages=(2, 5)), encoded["t0"].pages(2, 5))


def test_memory_that_changes_later_changes_nothing():
    encoded = tensors()
    network, sender, receiver = pair()
    number, ticket = receiver.open(sender.offer(EncodedSource(encoded)))
    sender.accept(ticket)
    told = Ticket.unpack(ticket).regions["anchor"]
    got = []
    while not any(isinstance(event, AnchorReady) and event.name == "t0" for event in got):
        sender.poll()
        network.step()
        got += receiver.poll()
    layout = encoded["t0"].layout
    ctypes.memset(told[0], 0xFF, layout.pages * 64 + layout.stream_size("anchor"))
    same(receiver.received(number).encoded("t0", "anchor"), encoded["t0"].anchor_only())
    page = next(event for event in got if isinstance(event, AnchorPage))
    assert bytes(page.payload) == bytes(encoded["t0"].anchor)[: len(page.payload)]
