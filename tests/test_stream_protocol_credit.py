"""Credit of the protocol: windows, frames and requests beyond the limits."""

import pytest

from lynxq.stream import (
    AnchorPage,
    AnchorReady,
    EncodedSource,
    Ended,
    Failed,
    ReceiverLimits,
    RequestOpened,
    SenderLimits,
)
from lynxq.stream.messages import Code
from lynxq.stream.records import Type
from tests.stream_tools import Pair, coded, encoded, records, sent_sizes, source, wide


def largest(tensors, which):
    return max(64 + each.layout.page_size(which, 0) for each in tensors.values() if each.layout.pages)


@pytest.mark.parametrize("lanes", [1, 2])
def test_the_smallest_windows_suffice(lanes):
    tensors = encoded()
    limits = ReceiverLimits(
        anchor_window=largest(tensors, "anchor"), residual_window=largest(tensors, "residual"), max_data=256
    )
    pair = Pair({"a": EncodedSource(tensors), "b": EncodedSource(tensors)}, limits=limits, lanes=lanes)
    requests = [pair.ask("a"), pair.ask("b")]
    pair.run()
    for request in requests:
        pair.check(request, tensors)


def test_a_receiver_that_takes_nothing_holds_no_more_than_its_windows():
    tensors = {"k": wide(16 * 50)}
    limits = ReceiverLimits(anchor_window=20000, residual_window=10000, max_data=256)
    pair = Pair({"p": EncodedSource(tensors)}, limits=limits)
    request = pair.ask("p")
    pair.to_sender()
    sent = {0: 0, 1: 0}
    for _ in range(50):
        data = pair.from_sender(1 << 20)
        sent = {kind: size + sent[kind] for kind, size in sent_sizes(data).items()}
        pair.receiver.receive(data)
        pair.to_sender()
    assert 20000 - largest(tensors, "anchor") < sent[0] <= 20000
    assert 10000 - largest(tensors, "residual") < sent[1] <= 10000
    pair.run()
    pair.check(request, tensors)


def test_residuals_that_nobody_takes_do_not_stop_anchors():
    """Full of residuals that wait for the anchors of a slow first connection."""
    tensors = {"k": wide(16 * 50)}
    pair = Pair({"p": EncodedSource(tensors)}, lanes=2, limits=ReceiverLimits(residual_window=4000, max_data=256))
    request = pair.ask("p")
    pair.accept()
    anchors = pair.from_sender(1 << 24, 0)
    pair.receiver.receive(pair.from_sender(1 << 24, 1), 1)
    pair.to_sender()
    assert pair.from_sender(1 << 24, 1) == b""  # the window of residuals is used up
    pair.receiver.receive(anchors)
    pair.run()
    pair.check(request, tensors)


def test_a_large_frame_is_not_starved_by_small_ones():
    """It waits for the whole window, and a slow receiver gives credit bit by bit: small frames must not take it."""
    large = {"k": wide(32, channels=300)}
    small = {"k": coded(8 * 2000)}
    limits = ReceiverLimits(anchor_window=largest(large, "anchor"), max_data=256)
    pair = Pair({"large": EncodedSource(large), "small": EncodedSource(small)}, limits=limits)
    pair.ask("small")
    pair.ask("large")
    order = []
    for step in range(10**5):
        pair.to_sender()
        sent = pair.from_sender(1)
        order += [record.request for record in records(sent) if record.type == Type.DATA and record.kind == 0]
        pair.receiver.receive(sent)
        if step % 2:  # slower than what arrives, so there is always something that was not taken
            event = pair.receiver.next_event()
            if isinstance(event, AnchorReady) and event.request == 2:
                break
    assert order.count(1) < 1000
    assert isinstance(event, AnchorReady)


def test_a_frame_beyond_the_window_is_refused():
    pair = Pair({"p": source()}, limits=ReceiverLimits(anchor_window=1000))
    request = pair.ask("p")
    pair.run()
    (failed,) = pair.of(Failed)
    assert (failed.request, failed.code) == (request, Code.REFUSED)
    assert "window" in failed.reason


@pytest.mark.parametrize(
    ("limits", "word"),
    [(ReceiverLimits(max_request_bytes=2000), "2000 bytes"), (ReceiverLimits(max_tensors=2), "2 tensors")],
)
def test_a_request_beyond_the_limits_is_refused(limits, word):
    pair = Pair({"p": source()}, limits=limits)
    pair.ask("p")
    pair.run()
    (failed,) = pair.of(Failed)
    assert word in failed.reason
    assert not pair.of(AnchorPage)
    assert pair.of(RequestOpened) == []


def test_a_header_beyond_the_limit_is_refused_by_the_sender():
    tensors = {f"layer.{i}": coded(0) for i in range(60)}
    pair = Pair({"p": EncodedSource(tensors)}, limits=ReceiverLimits(max_header=4096))
    pair.ask("p")
    pair.run()
    (failed,) = pair.of(Failed)
    assert failed.code == Code.REFUSED
    assert isinstance(pair.sender_events[-1], Ended)


def test_too_many_requests():
    pair = Pair({"p": source()}, sender_limits=SenderLimits(max_requests=2))
    requests = [pair.ask("p") for _ in range(3)]
    pair.run()
    assert [(event.request, event.code) for event in pair.of(Failed)] == [(requests[2], Code.BUSY)]
    for request in requests[:2]:
        pair.check(request, encoded())
    again = pair.ask("p")
    pair.run()
    pair.check(again, encoded())
