"""Lost connections of the protocol: resumed from the last whole frame."""

import pytest

from lynxq.errors import ProtocolError
from lynxq.stream import AnchorPage, Done, EncodedSource, Failed, RequestOpened, ResidualPage, SenderLimits
from lynxq.stream.messages import Code
from lynxq.stream.records import Type
from tests.stream_tools import SMALL, Pair, coded, data_kinds, encoded, records, source, wide


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("records_before", range(0, 60, 4))
def test_a_lost_connection_is_resumed_from_the_last_whole_frame(lanes, records_before):
    pair = Pair({"p": source()}, limits=SMALL, lanes=lanes)
    request = pair.ask("p")
    pair.to_sender()
    for _ in range(records_before):
        for lane in range(lanes):
            pair.receiver.receive(pair.from_sender(1, lane), lane)
        pair.to_sender()
        if records_before % 8:
            pair.take()
    pair.take()
    here = {(type(event), event.tensor, event.page) for event in pair.events if hasattr(event, "page")}
    pair.sources = {"p": source()}  # another process, which encoded the same again
    pair.reconnect()
    sent = []

    def note(data, lane):
        sent.extend(
            (AnchorPage if record.kind == 0 else ResidualPage, record.tensor, record.page)
            for record in records(data)
            if record.type == Type.DATA and record.offset == 0
        )
        return data

    pair.run(note)
    assert not here & set(sent)
    assert len(here) + len(sent) == 12 or Done(request, 0) in pair.events
    assert len(pair.of(RequestOpened)) == 1
    pair.check(request, encoded())


def test_many_resumptions():
    """Every connection carries little more than one frame, and all of it gets through."""
    pair = Pair({"p": source()}, limits=SMALL)
    request = pair.ask("p")
    for _ in range(200):
        pair.to_sender()
        for _ in range(12):
            pair.receiver.receive(pair.from_sender(1))
            pair.to_sender()
        pair.take()
        if Done(request, 0) in pair.events:
            break
        pair.reconnect()
    pair.check(request, encoded())
    assert len(pair.of(AnchorPage)) == len(pair.of(ResidualPage)) == 6


def test_residuals_can_be_asked_for_later():
    """What the receiver has is told with its checksums, and only the residual comes."""
    pair = Pair({"p": source()})
    request = pair.ask("p")
    pair.to_sender()
    anchors = pair.from_sender(1 << 20)
    assert set(data_kinds(anchors)) == {0}
    pair.receiver.receive(anchors)
    pair.reconnect()
    pair.to_sender()
    assert set(data_kinds(pair.from_sender(1 << 20))) == {1}
    assert pair.receiver.data_to_send() == b""
    del request


@pytest.mark.parametrize("name", ["content", "description"])
def test_a_sender_with_something_else_under_the_name(name):
    """Equal descriptions and other pages, or other descriptions: nothing is mixed up."""
    pair = Pair({"p": source()})
    request = pair.ask("p")
    pair.to_sender()
    pair.receiver.receive(pair.from_sender(3000))
    pair.take()
    assert 0 < len(pair.of(AnchorPage)) < 6
    pair.sources = {"p": source(7) if name == "content" else EncodedSource({"k": wide(16)})}
    pair.reconnect()
    pair.run()
    (failed,) = pair.of(Failed)
    assert (failed.request, failed.code) == (request, Code.CHANGED)
    assert not pair.of(Done)


def test_checksums_that_a_sender_keeps_are_limited():
    pair = Pair({"p": EncodedSource({"k": coded(8 * 40)})})
    pair.ask("p")
    pair.to_sender()
    pair.receiver.receive(pair.from_sender(1 << 20))
    pair.take()
    pair.sender_limits = SenderLimits(max_checksums=39)
    pair.reconnect()
    with pytest.raises(ProtocolError, match="39 checksums"):
        pair.to_sender()
    pair.sender_limits = SenderLimits(max_checksums=40)
    pair.reconnect()
    pair.run()
    pair.check(1, {"k": coded(8 * 40)})
